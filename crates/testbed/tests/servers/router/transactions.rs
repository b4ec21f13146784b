//! Transactions over both shards.

use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::error::TRANSIENT_TRANSACTION_ERROR;
use mongodb::{ClientSession, Collection};

use super::{client, code, counts, on_both_shards, shared, split_collection};

async fn begin(collection: &Collection<Document>) -> ClientSession {
    let mut session = collection.client().start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    session
}

#[tokio::test]
async fn a_commit_shows_the_writes_of_both_shards_at_once() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "t_commit").await;
    let mut session = begin(&collection).await;
    collection.insert_many(on_both_shards(5)).session(&mut session).await.unwrap();
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 0);
    session.commit_transaction().await.unwrap();
    assert_eq!(counts(&cluster, &collection).await, [5, 5]);
}

#[tokio::test]
async fn an_abort_leaves_nothing_on_either_shard() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "t_abort").await;
    let mut session = begin(&collection).await;
    collection.insert_many(on_both_shards(5)).session(&mut session).await.unwrap();
    session.abort_transaction().await.unwrap();
    assert_eq!(counts(&cluster, &collection).await, [0, 0]);
}

#[tokio::test]
async fn a_transaction_reads_its_own_writes_in_order_over_both_shards() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "t_reads").await;
    collection.insert_many(on_both_shards(150)).await.unwrap();
    let mut session = begin(&collection).await;
    let update = doc! { "$set": { "seen": true } };
    let wanted = doc! { "k": { "$gte": -120, "$lt": 120 } };
    let updated = collection.update_many(wanted, update).session(&mut session).await.unwrap();
    assert_eq!(updated.modified_count, 240);
    let mut cursor = collection
        .find(doc! { "seen": true })
        .sort(doc! { "k": -1 })
        .skip(10)
        .limit(200)
        .batch_size(30)
        .session(&mut session)
        .await
        .unwrap();
    let found: Vec<Document> = cursor.stream(&mut session).try_collect().await.unwrap();
    let keys: Vec<i32> = found.iter().map(|document| document.get_i32("k").unwrap()).collect();
    assert_eq!(keys, (-90..110).rev().collect::<Vec<_>>());
    assert!(found.iter().all(|document| document.len() == 3), "{:?}", found[0]);
    let count = collection.count_documents(doc! { "seen": true }).session(&mut session).await;
    assert_eq!(count.unwrap(), 240);
    assert_eq!(collection.count_documents(doc! { "seen": true }).await.unwrap(), 0);
    session.commit_transaction().await.unwrap();
}

#[tokio::test]
async fn a_failed_statement_ends_the_transaction_everywhere() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "t_failed").await;
    collection.insert_one(doc! { "_id": 1, "k": 1 }).await.unwrap();
    let mut session = begin(&collection).await;
    collection.insert_one(doc! { "_id": -1, "k": -1 }).session(&mut session).await.unwrap();
    let duplicate = collection.insert_one(doc! { "_id": 1, "k": 1 }).session(&mut session).await;
    assert_eq!(code(&duplicate.unwrap_err()), Some(11_000));
    let next = collection.insert_one(doc! { "_id": -2, "k": -2 }).session(&mut session).await;
    assert_eq!(code(&next.unwrap_err()), Some(251));
    let _ = session.abort_transaction().await;
    assert_eq!(counts(&cluster, &collection).await, [0, 1]);
}

#[tokio::test]
async fn of_two_transactions_that_write_one_document_the_second_may_try_again() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "t_conflict").await;
    collection.insert_many(on_both_shards(1)).await.unwrap();
    let increment = || doc! { "$inc": { "x": 1 } };
    let mut first = begin(&collection).await;
    let mut second = begin(&collection).await;
    collection.update_one(doc! { "k": 0 }, increment()).session(&mut first).await.unwrap();
    let conflict = collection.update_one(doc! { "k": 0 }, increment()).session(&mut second).await;
    let conflict = conflict.unwrap_err();
    assert!(conflict.contains_label(TRANSIENT_TRANSACTION_ERROR), "{conflict}");
    first.commit_transaction().await.unwrap();
}

#[tokio::test]
async fn a_new_shard_key_value_moves_the_document_within_the_transaction() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "t_move").await;
    collection.insert_one(doc! { "_id": 1, "k": -1 }).await.unwrap();
    let mut session = begin(&collection).await;
    let update = doc! { "$set": { "k": 1 } };
    collection.update_one(doc! { "k": -1 }, update).session(&mut session).await.unwrap();
    let found = collection.find_one(doc! { "_id": 1 }).session(&mut session).await.unwrap();
    assert_eq!(found, Some(doc! { "_id": 1, "k": 1 }));
    assert_eq!(counts(&cluster, &collection).await, [1, 0]);
    session.commit_transaction().await.unwrap();
    assert_eq!(counts(&cluster, &collection).await, [0, 1]);
}

#[tokio::test]
async fn a_transaction_survives_routing_data_that_became_stale_before_it() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "t_stale").await;
    collection.insert_many(on_both_shards(3)).await.unwrap();
    let shards = super::shard_ids(&cluster);
    super::move_upper_half_unseen(&cluster, "t_stale.c", &shards[0]).await;
    let mut session = begin(&collection).await;
    let update = doc! { "$set": { "seen": true } };
    let updated = collection.update_many(doc! {}, update).session(&mut session).await.unwrap();
    assert_eq!(updated.modified_count, 6);
    session.commit_transaction().await.unwrap();
    assert_eq!(collection.count_documents(doc! { "seen": true }).await.unwrap(), 6);
}

#[tokio::test]
async fn collections_that_are_not_sharded_take_part() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "t_mixed").await;
    let client = client(&cluster).await;
    let plain = client.database("t_mixed").collection::<Document>("plain");
    plain.insert_one(doc! { "_id": 0 }).await.unwrap();
    let sharded = client.database("t_mixed").collection::<Document>("c");
    let mut session = begin(&sharded).await;
    plain.insert_one(doc! { "_id": 1 }).session(&mut session).await.unwrap();
    sharded.insert_one(doc! { "_id": 1, "k": 1 }).session(&mut session).await.unwrap();
    session.commit_transaction().await.unwrap();
    assert_eq!(plain.count_documents(doc! {}).await.unwrap(), 2);
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 1);
}
