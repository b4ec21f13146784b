//! The facts that must be true when a change of shape has ended, one way or the other.

use bson::{Bson, Document, doc};
use imago_mongo::bson::ext_json::parse_document;
use imago_mongo::reshard::plan::Plan;

use crate::process::Process;
use crate::reshard::scene::{NS, Scene};

impl Scene {
    /// The collection has the shape of the plan, nothing else is left of the job, and nothing that
    /// was acknowledged is lost.
    pub async fn is_reshaped(&self, load: Process, plan: &Plan) {
        self.has_shape_of(plan).await;
        self.is_tidy().await;
        self.load_goes_on(50).await;
        self.nothing_lost(load);
    }

    /// The collection has its old shape, nothing of the job is left, and nothing that was
    /// acknowledged is lost.
    pub async fn is_as_before(&self, load: Process) {
        let kept = self.collection().await;
        assert_eq!(kept.get_document("key").unwrap(), &doc! {"productID": 1});
        self.is_tidy().await;
        self.load_goes_on(50).await;
        self.nothing_lost(load);
    }

    /// The collection's document in config.collections.
    pub async fn collection(&self) -> Document {
        self.find("config", "collections", doc! {"_id": NS}).await.remove(0)
    }

    /// Its shard key, and its chunks and where they are.
    pub async fn has_shape_of(&self, plan: &Plan) {
        let kept = self.collection().await;
        let key = parsed(&plan.key);
        let key_now = kept.get_document("key").unwrap();
        assert_eq!(key_now.keys().collect::<Vec<_>>(), key.keys().collect::<Vec<_>>());
        let mut lie = self.chunks().await;
        let wanted = plan.chunks.iter().map(|chunk| {
            let min = match &chunk.min {
                Some(min) => parsed(min),
                None => key_now.keys().map(|field| (field.clone(), Bson::MinKey)).collect(),
            };
            (min, plan.shards[chunk.shard].clone())
        });
        let mut wanted: Vec<(Document, String)> = wanted.collect();
        for chunks in [&mut lie, &mut wanted] {
            chunks.sort_by_key(|(min, _)| min.to_string());
        }
        assert_eq!(lie, wanted);
        let serving = self.serving("reviews", &key).await;
        for (_, shard) in lie {
            assert!(serving.contains(&shard), "{shard} has no index of the key");
        }
    }

    /// The shards whose part of a collection has an index of this key.
    pub async fn serving(&self, coll: &str, key: &Document) -> Vec<String> {
        let mut serving = Vec::new();
        for (name, shard) in self.admin.shards().await.unwrap() {
            let listed = shard.unwrap().run("shop", doc! {"listIndexes": coll}).await;
            // A shard without chunks has no such collection.
            let Ok(listed) = listed else { continue };
            let listed = listed.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
            let mut keys = listed.iter().map(|index| index.as_document().unwrap());
            let is_of = |index: &Document| index.get_document("key").unwrap().keys().eq(key.keys());
            if keys.any(is_of) {
                serving.push(name);
            }
        }
        serving
    }

    /// The first keys of its chunks, and the shards that they are on.
    pub async fn chunks(&self) -> Vec<(Document, String)> {
        let uuid = self.collection().await.get("uuid").unwrap().clone();
        let chunks = self.find("config", "chunks", doc! {"uuid": uuid}).await;
        let parts = chunks.iter().map(|chunk| {
            let min = chunk.get_document("min").unwrap().clone();
            (min, chunk.get_str("shard").unwrap().to_owned())
        });
        parts.collect()
    }

    /// No shadow, no zone, no block is left, and the balancer sees to the collection.
    pub async fn is_tidy(&self) {
        let shadows = doc! {"_id": {"$regex": r"imago\.shadow\."}};
        assert_eq!(self.find("config", "collections", shadows).await, []);
        let listed = self.run("shop", doc! {"listCollections": 1, "nameOnly": true}).await;
        assert!(!listed.to_string().contains("imago.shadow"), "{listed}");
        assert_eq!(self.find("config", "tags", doc! {}).await, []);
        for shard in self.find("config", "shards", doc! {}).await {
            assert_eq!(shard.get_array("tags").map_or(0, Vec::len), 0, "{shard}");
        }
        let kept = self.collection().await;
        assert!(!kept.get_bool("noBalance").unwrap_or(false), "{kept}");
        assert_eq!(self.application_writes().await, Ok(()));
    }

    /// Ends the load, and compares every acknowledged operation with what the collection holds.
    pub fn nothing_lost(&self, mut load: Process) {
        assert_eq!(self.imago(&["load", "stop", "--control", "s"]).ended().0, 0);
        assert_eq!(load.ended().0, 0);
        let uri = self.cluster.uri();
        let mut check = self.imago(&["load", "check", "--uri", &uri, "--history", "h"]);
        let (exit, verdict) = check.ended();
        assert_eq!(exit, 0, "{verdict} {}", check.printed());
        assert!(verdict["writes_acknowledged"].as_u64() > Some(50), "{verdict}");
        assert_eq!(verdict["lost"], 0, "{verdict}");
    }
}

fn parsed(text: &str) -> Document {
    Document::try_from(parse_document(text).unwrap()).unwrap()
}
