//! A client that changes the new key's value, which the load does not.

use imago_testbed::wait;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bson::{Document, doc};
use imago_mongo::server::endpoint::Endpoint;
use tokio::task::JoinHandle;

const DOCUMENTS: usize = 40;

/// It writes until it is ended.
pub struct Writer {
    stops: Arc<AtomicBool>,
    writes: JoinHandle<(Endpoint, Vec<Document>, usize)>,
}

impl Writer {
    /// Inserts documents, and changes one at a time from then on: one of three changes gives it
    /// another user, the others leave it where it is.
    pub async fn start(uri: &str) -> Self {
        let app = Box::pin(Endpoint::connect(uri, "cluster")).await.unwrap();
        let id = |n: usize| format!("writer-{n:04}");
        let mut documents: Vec<Document> = (0..DOCUMENTS)
            .map(
                |n| doc! {"_id": id(n), "productID": product(n * 1_250), "userID": user(n), "k": 0},
            )
            .collect();
        let coll = app.client().database("shop").collection::<Document>("reviews");
        coll.insert_many(&documents).await.unwrap();
        let stops = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stops);
        let writes = tokio::spawn(async move {
            let mut done = 0;
            while !told.load(Ordering::Relaxed) {
                let document = &mut documents[done % DOCUMENTS];
                let mut key = document.clone();
                key.remove("k");
                let user = match done % 3 {
                    0 => user(done * 7919),
                    _ => document.get_str("userID").unwrap().to_owned(),
                };
                let mut change = doc! {"$inc": {"k": 1}};
                if done % 3 == 0 {
                    change.insert("$set", doc! {"userID": &user});
                }
                // Blocked for a moment, or unlucky: the document says whether it was done.
                let changed = coll.update_one(key.clone(), change).await;
                let is_done = match changed {
                    Ok(changed) => changed.matched_count == 1,
                    Err(_) => {
                        wait::lasts(Duration::from_millis(200)).await;
                        let id = document.get_str("_id").unwrap();
                        let now = loop {
                            if let Ok(now) = coll.find_one(doc! {"_id": id}).await {
                                break now;
                            }
                        };
                        now.is_some_and(|now| now != *document)
                    }
                };
                if is_done {
                    document.insert("userID", user);
                    document.insert("k", document.get_i32("k").unwrap() + 1);
                    done += 1;
                }
                wait::lasts(Duration::from_millis(5)).await;
            }
            (app, documents, done)
        });
        Self { stops, writes }
    }

    /// Ends it, compares what it wrote with what is there, and removes that. How often it wrote.
    pub async fn nothing_lost(self) -> usize {
        self.stops.store(true, Ordering::Relaxed);
        let (app, documents, done) = self.writes.await.unwrap();
        let coll = app.client().database("shop").collection::<Document>("reviews");
        for document in documents {
            let id = doc! {"_id": document.get_str("_id").unwrap()};
            assert_eq!(coll.count_documents(id.clone()).await.unwrap(), 1, "{id}");
            assert_eq!(coll.find_one(id.clone()).await.unwrap(), Some(document));
            coll.delete_many(id).await.unwrap();
        }
        done
    }
}

fn product(n: usize) -> String {
    format!("B{n:09}")
}

fn user(n: usize) -> String {
    format!("A{:09}", n * 31 % 50_000)
}
