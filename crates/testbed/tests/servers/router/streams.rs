//! Change streams over the whole cluster.

use std::time::Duration;

use bson::{Document, doc};
use mongodb::Collection;
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::{ChangeStreamEvent, OperationType};
use tokio::time::timeout;

use super::{client, shared, split_collection};

/// Longest time for an event on a slow machine before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(60);

async fn next(
    stream: &mut ChangeStream<ChangeStreamEvent<Document>>,
) -> ChangeStreamEvent<Document> {
    let event = async {
        loop {
            if let Some(event) = stream.next_if_any().await.unwrap() {
                return event;
            }
        }
    };
    timeout(PATIENCE, event).await.expect("an event comes")
}

fn id(event: &ChangeStreamEvent<Document>) -> i32 {
    event.document_key.as_ref().unwrap().get_i32("_id").unwrap()
}

async fn insert(collection: &Collection<Document>, k: i32) {
    collection.insert_one(doc! { "_id": k, "k": k }).await.unwrap();
}

#[tokio::test]
async fn events_of_both_shards_come_in_the_order_of_the_writes() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "s_order").await;
    let mut stream = collection.watch().await.unwrap();
    let order = [1, -1, -2, 2, 3, -3, 4, -4];
    for k in order {
        insert(&collection, k).await;
    }
    for k in order {
        assert_eq!(id(&next(&mut stream).await), k);
    }
}

#[tokio::test]
async fn a_resumed_stream_repeats_nothing_and_misses_nothing() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "s_resume").await;
    let mut stream = collection.watch().await.unwrap();
    let order = [1, -1, 2, -2, 3, -3];
    for k in order {
        insert(&collection, k).await;
    }
    for at in 0..order.len() {
        assert_eq!(id(&next(&mut stream).await), order[at]);
        let token = stream.resume_token().unwrap();
        let mut resumed = collection.watch().resume_after(token).await.unwrap();
        if let Some(following) = order.get(at + 1) {
            assert_eq!(id(&next(&mut resumed).await), *following);
        }
    }
}

#[tokio::test]
async fn a_stream_begins_at_a_given_time() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "s_time").await;
    insert(&collection, -9).await;
    let write = doc! { "insert": "c", "documents": [{ "_id": 1, "k": 1 }] };
    let answer = collection.client().database("s_time").run_command(write).await.unwrap();
    let time = answer.get_timestamp("operationTime").unwrap();
    insert(&collection, -1).await;
    let mut stream = collection.watch().start_at_operation_time(time).await.unwrap();
    assert_eq!(id(&next(&mut stream).await), 1);
    assert_eq!(id(&next(&mut stream).await), -1);
}

#[tokio::test]
async fn an_empty_stream_still_has_a_token_that_advances() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "s_token").await;
    let mut stream = collection.watch().await.unwrap();
    let first = stream.resume_token().unwrap();
    // Writes elsewhere let the shards promise more.
    let other = collection.client().database("s_token").collection::<Document>("other");
    let advanced = async {
        for n in 0.. {
            other.insert_one(doc! { "n": n }).await.unwrap();
            assert!(stream.next_if_any().await.unwrap().is_none());
            if stream.resume_token().unwrap() != first {
                return;
            }
        }
    };
    timeout(PATIENCE, advanced).await.expect("the token advances");
}

#[tokio::test]
async fn updates_carry_the_document_if_it_is_asked_for() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "s_lookup").await;
    insert(&collection, 5).await;
    let mut stream = collection
        .watch()
        .full_document(mongodb::options::FullDocumentType::UpdateLookup)
        .await
        .unwrap();
    collection.update_one(doc! { "k": 5 }, doc! { "$set": { "x": 1 } }).await.unwrap();
    let event = next(&mut stream).await;
    assert_eq!(event.operation_type, OperationType::Update);
    assert_eq!(event.full_document, Some(doc! { "_id": 5, "k": 5, "x": 1 }));
}

#[tokio::test]
async fn a_stages_filter_applies_on_every_shard() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "s_filter").await;
    let wanted = doc! { "$match": { "fullDocument.k": { "$in": [-2, 2] } } };
    let mut stream = collection.watch().pipeline([wanted]).await.unwrap();
    for k in [-3, -2, 2, 3] {
        insert(&collection, k).await;
    }
    assert_eq!(id(&next(&mut stream).await), -2);
    assert_eq!(id(&next(&mut stream).await), 2);
}

#[tokio::test]
async fn a_moved_range_makes_no_events() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "s_moved").await;
    insert(&collection, 1).await;
    let mut stream = collection.watch().await.unwrap();
    let shards = super::shard_ids(&cluster);
    super::move_upper_half(collection.client(), "s_moved.c", &shards[0]).await;
    insert(&collection, 2).await;
    assert_eq!(id(&next(&mut stream).await), 2);
}

#[tokio::test]
async fn dropping_the_collection_ends_the_stream() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "s_drop").await;
    insert(&collection, 1).await;
    let mut stream = collection.watch().await.unwrap();
    collection.drop().await.unwrap();
    assert_eq!(next(&mut stream).await.operation_type, OperationType::Drop);
    assert_eq!(next(&mut stream).await.operation_type, OperationType::Invalidate);
    assert!(!stream.is_alive());
}

#[tokio::test]
async fn a_database_and_the_cluster_can_be_watched() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "s_wide").await;
    let client = client(&cluster).await;
    let mut database = client.database("s_wide").watch().await.unwrap();
    let ours = doc! { "$match": { "ns.db": "s_wide" } };
    let mut whole = client.watch().pipeline([ours]).await.unwrap();
    insert(&collection, -1).await;
    insert(&collection, 1).await;
    for stream in [&mut database, &mut whole] {
        assert_eq!(id(&next(stream).await), -1);
        assert_eq!(id(&next(stream).await), 1);
    }
}
