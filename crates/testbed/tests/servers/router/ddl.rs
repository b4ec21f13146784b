//! Collections and indexes.

use bson::{Document, doc};
use mongodb::IndexModel;
use mongodb::options::IndexOptions;

use super::{
    client, code, number, on_both_shards, past_router, shard_ids, shared, split_collection,
};

#[tokio::test]
async fn an_index_is_built_and_dropped_on_every_owner() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "d_index").await;
    collection.insert_many(on_both_shards(3)).await.unwrap();
    let index = IndexModel::builder().keys(doc! { "x": 1 }).build();
    collection.create_index(index).await.unwrap();
    let mut names = collection.list_index_names().await.unwrap();
    names.sort();
    assert_eq!(names, ["_id_", "k_1", "x_1"]);
    for shard in shard_ids(&cluster) {
        let shard = past_router(&cluster, &shard).await;
        let part = shard.database("d_index").collection::<Document>("c");
        assert_eq!(part.list_index_names().await.unwrap().len(), 3);
    }
    collection.drop_index("x_1").await.unwrap();
    for shard in shard_ids(&cluster) {
        let shard = past_router(&cluster, &shard).await;
        let part = shard.database("d_index").collection::<Document>("c");
        assert_eq!(part.list_index_names().await.unwrap().len(), 2);
    }
}

#[tokio::test]
async fn a_unique_index_without_the_shard_key_is_refused() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "d_unique").await;
    let options = IndexOptions::builder().unique(true).build();
    let index = IndexModel::builder().keys(doc! { "x": 1 }).options(options).build();
    assert_eq!(code(&collection.create_index(index).await.unwrap_err()), Some(67));
}

#[tokio::test]
async fn a_rename_carries_the_documents_of_both_shards_over_the_target() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "d_rename").await;
    collection.insert_many(on_both_shards(4)).await.unwrap();
    let client = collection.client();
    let target = client.database("d_rename").collection::<Document>("target");
    target.insert_one(doc! { "_id": "old" }).await.unwrap();
    let rename =
        doc! { "renameCollection": "d_rename.c", "to": "d_rename.target", "dropTarget": true };
    client.database("admin").run_command(rename).await.unwrap();
    assert_eq!(target.count_documents(doc! {}).await.unwrap(), 8);
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 0);
    target.update_one(doc! { "k": 1 }, doc! { "$set": { "x": 1 } }).await.unwrap();
    assert_eq!(super::counts(&cluster, &target).await, [4, 4]);
}

#[tokio::test]
async fn a_dropped_collection_may_come_back_unsharded() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "d_drop").await;
    collection.insert_many(on_both_shards(4)).await.unwrap();
    collection.drop().await.unwrap();
    assert_eq!(super::counts(&cluster, &collection).await, [0, 0]);
    collection.insert_many(on_both_shards(2)).await.unwrap();
    assert_eq!(super::counts(&cluster, &collection).await, [4, 0]);
}

#[tokio::test]
async fn a_dropped_database_is_gone_from_the_list() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "d_database").await;
    collection.insert_many(on_both_shards(2)).await.unwrap();
    let client = client(&cluster).await;
    let listed = client.list_database_names().await.unwrap();
    assert!(listed.contains(&"d_database".to_owned()), "{listed:?}");
    client.database("d_database").drop().await.unwrap();
    let listed = client.list_database_names().await.unwrap();
    assert!(!listed.contains(&"d_database".to_owned()), "{listed:?}");
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 0);
}

#[tokio::test]
async fn options_are_set_at_creation_and_changed_on_all_shards() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "d_options").await;
    let database = collection.client().database("d_options");
    database.create_collection("capped").capped(true).size(4_096).await.unwrap();
    let again = database.create_collection("c").await.unwrap_err();
    assert_eq!(code(&again), Some(48));
    let validator = doc! { "collMod": "c", "validator": { "x": { "$exists": false } } };
    database.run_command(validator).await.unwrap();
    for k in [-1, 1] {
        let refused = collection.insert_one(doc! { "_id": k, "k": k, "x": 1 }).await.unwrap_err();
        assert_eq!(code(&refused), Some(121));
    }
    let mut names = database.list_collection_names().await.unwrap();
    names.sort();
    assert_eq!(names, ["c", "capped"]);
}

#[tokio::test]
async fn statistics_add_the_shards_up() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "d_stats").await;
    collection.insert_many(on_both_shards(6)).await.unwrap();
    let database = collection.client().database("d_stats");
    let stats = database.run_command(doc! { "collStats": "c" }).await.unwrap();
    assert_eq!(number(&stats, "count"), Some(12));
    assert_eq!(stats.get_document("shards").unwrap().len(), 2);
    let stats = database.run_command(doc! { "dbStats": 1 }).await.unwrap();
    assert_eq!(number(&stats, "objects"), Some(12));
}
