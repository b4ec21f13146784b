//! A write block has to wait for transactions.

use std::time::Duration;

use bson::{Document, doc};
use imago_mongo::server::block;
use imago_mongo::server::endpoint::Endpoint;
use imago_testbed::pool::replica_set;
use imago_testbed::wait;

use crate::reshard::scene::{BLOCKED, Scene};

const PREPARED: &str = "hangBeforeWritingDecision";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_that_waits_for_a_prepared_transaction_gets_through() {
    let scene = Scene::stoppable().await;
    let app = Box::pin(Endpoint::connect(&scene.cluster.uri(), "cluster")).await.unwrap();
    let coll = app.client().database("shop").collection::<Document>("reviews");
    let id = doc! {"_id": "moves", "productID": "B000000001"};
    coll.insert_one(id.clone()).await.unwrap();
    scene.fail_point(PREPARED, true).await;
    // From one shard to the other, which is a transaction over both.
    let moves = doc! {"$set": {"productID": "B000049999"}};
    let changing = tokio::spawn({
        let coll = coll.clone();
        async move { coll.update_one(id, moves).await }
    });
    scene.is_held_at(PREPARED).await;
    assert!(!changing.is_finished(), "the transaction is prepared, and not decided");
    let admin = scene.admin.clone();
    let mut blocking = tokio::spawn(async move { block::set(&admin).await });
    let asked = doc! {"command._shardsvrSetUserWriteBlockMode": {"$exists": true}};
    scene.is_at_work("the block is asked for", asked).await;
    assert!(!blocking.is_finished(), "the block waits for the transaction");
    scene.fail_point(PREPARED, false).await;
    let blocked = tokio::time::timeout(Duration::from_secs(40), &mut blocking).await;
    blocked.expect("the block does not wait for ever").unwrap().unwrap();
    assert_eq!(scene.application_writes().await, Err(BLOCKED));
    block::lift(&scene.admin).await.unwrap();
    assert_eq!(scene.application_writes().await, Ok(()));
    changing.await.unwrap().unwrap();
    let found = coll.find_one(doc! {"_id": "moves"}).await.unwrap().unwrap();
    assert_eq!(found.get_str("productID").unwrap(), "B000049999");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_that_waits_for_an_open_transaction_lets_the_others_work() {
    let scene = Scene::of(replica_set(1).with_auth()).await;
    let app = Box::pin(Endpoint::connect(&scene.cluster.uri(), "cluster")).await.unwrap();
    let coll = app.client().database("shop").collection::<Document>("reviews");
    coll.insert_one(doc! {"_id": "before"}).await.unwrap();
    let mut session = app.client().start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    coll.insert_one(doc! {"_id": "open"}).session(&mut session).await.unwrap();
    let admin = scene.admin.clone();
    let blocking = tokio::spawn(async move { block::set(&admin).await });
    // A read that queued behind the block's lock would wait until the transaction ends.
    for _ in 0..4 {
        wait::lasts(Duration::from_millis(250)).await;
        let reading = coll.find_one(doc! {"_id": "before"}).into_future();
        let read = tokio::time::timeout(Duration::from_secs(20), reading).await;
        assert!(read.expect("the server reads").unwrap().is_some());
    }
    assert!(!blocking.is_finished(), "the transaction is open");
    session.commit_transaction().await.unwrap();
    tokio::time::timeout(Duration::from_secs(40), blocking).await.unwrap().unwrap().unwrap();
    assert_eq!(scene.application_writes().await, Err(BLOCKED));
    block::lift(&scene.admin).await.unwrap();
    assert_eq!(coll.count_documents(doc! {}).await.unwrap(), 2);
}
