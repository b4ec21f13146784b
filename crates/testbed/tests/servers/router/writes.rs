//! insert, update, delete, findAndModify.

use bson::{Document, doc};
use imago_testbed::{Cluster, ClusterSpec};
use mongodb::error::{ErrorKind, WriteFailure};
use mongodb::options::ReturnDocument;

use super::{client, code, counts, number, on_both_shards, shared, split_collection};

#[tokio::test]
async fn documents_go_to_the_shards_that_own_them() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "w_owners").await;
    collection.insert_many(on_both_shards(50)).await.unwrap();
    assert_eq!(counts(&cluster, &collection).await, [50, 50]);
}

#[tokio::test]
async fn a_hashed_key_spreads_documents_and_finds_them_again() {
    let cluster = shared().await;
    let client = client(&cluster).await;
    let shard = doc! {
        "shardCollection": "w_hashed.c", "key": { "_id": "hashed" }, "numInitialChunks": 4,
    };
    client.database("admin").run_command(shard).await.unwrap();
    let collection = client.database("w_hashed").collection::<Document>("c");
    collection.insert_many((0..200).map(|id| doc! { "_id": id })).await.unwrap();
    let counts = counts(&cluster, &collection).await;
    assert_eq!(counts.iter().sum::<u64>(), 200);
    assert!(counts.iter().all(|count| *count > 40), "{counts:?}");
    for id in 0..20 {
        let update = doc! { "$set": { "seen": true } };
        let updated = collection.update_one(doc! { "_id": id }, update).await.unwrap();
        assert_eq!(updated.modified_count, 1, "{id}");
    }
}

#[tokio::test]
async fn a_duplicate_key_is_told_as_a_server_tells_it() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "w_duplicate").await;
    collection.insert_one(doc! { "_id": 7, "k": 1 }).await.unwrap();
    let insert = doc! { "insert": "c", "documents": [{ "_id": 7, "k": 1 }] };
    let database = collection.client().database("w_duplicate");
    let answer = database.run_command(insert).await.unwrap();
    let error = answer.get_array("writeErrors").unwrap()[0].as_document().unwrap();
    assert_eq!(error.get_i32("code").ok(), Some(11_000));
    assert_eq!(error.get_document("keyPattern").ok(), Some(&doc! { "_id": 1 }));
    assert_eq!(error.get_document("keyValue").ok(), Some(&doc! { "_id": 7 }));
}

#[tokio::test]
async fn an_unordered_insert_goes_on_behind_its_errors_and_numbers_them() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "w_unordered").await;
    let taken = [doc! { "_id": 1, "k": 1 }, doc! { "_id": -1, "k": -1 }];
    collection.insert_many(taken).await.unwrap();
    let batch = [2, -1, -2, 1, 3].map(|k| doc! { "_id": k, "k": k });
    let error = collection.insert_many(batch).ordered(false).await.unwrap_err();
    let ErrorKind::InsertMany(error) = &*error.kind else { panic!("{error}") };
    let mut failed: Vec<_> =
        error.write_errors.iter().flatten().map(|error| (error.index, error.code)).collect();
    failed.sort_unstable();
    assert_eq!(failed, [(1, 11_000), (3, 11_000)]);
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 5);
}

#[tokio::test]
async fn an_ordered_insert_stops_at_its_first_error() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "w_ordered").await;
    collection.insert_one(doc! { "_id": -1, "k": -1 }).await.unwrap();
    let batch = [2, -1, -2, 3].map(|k| doc! { "_id": k, "k": k });
    let error = collection.insert_many(batch).await.unwrap_err();
    assert_eq!(code(&error), Some(11_000));
    let left: Vec<_> = collection.distinct("_id", doc! {}).await.unwrap();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[tokio::test]
async fn a_write_by_id_reaches_its_document_on_any_shard() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "w_by_id").await;
    collection.insert_many(on_both_shards(3)).await.unwrap();
    for id in [-2, 2] {
        let update = doc! { "$set": { "seen": true } };
        let updated = collection.update_one(doc! { "_id": id }, update).await.unwrap();
        assert_eq!((updated.matched_count, updated.modified_count), (1, 1));
        let deleted = collection.delete_one(doc! { "_id": id }).await.unwrap();
        assert_eq!(deleted.deleted_count, 1);
    }
}

#[tokio::test]
async fn a_write_of_many_documents_counts_those_of_all_shards() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "w_many").await;
    collection.insert_many(on_both_shards(20)).await.unwrap();
    let update = doc! { "$set": { "seen": true } };
    let updated = collection.update_many(doc! { "k": { "$gte": -5 } }, update).await.unwrap();
    assert_eq!(updated.modified_count, 25);
    let deleted = collection.delete_many(doc! { "seen": true }).await.unwrap();
    assert_eq!(deleted.deleted_count, 25);
    assert_eq!(counts(&cluster, &collection).await, [15, 0]);
}

#[tokio::test]
async fn an_upsert_inserts_on_the_owning_shard() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "w_upsert").await;
    let upserted = collection
        .update_one(doc! { "_id": "new", "k": 5 }, doc! { "$set": { "x": 1 } })
        .upsert(true)
        .await
        .unwrap();
    assert_eq!(upserted.upserted_id, Some("new".into()));
    assert_eq!(counts(&cluster, &collection).await, [0, 1]);
}

#[tokio::test]
async fn a_write_of_one_document_that_names_no_place_is_refused() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "w_nowhere").await;
    collection.insert_many(on_both_shards(2)).await.unwrap();
    let update = collection.update_one(doc! { "x": 1 }, doc! { "$set": { "y": 1 } });
    assert_eq!(code(&update.await.unwrap_err()), Some(72));
}

#[tokio::test]
async fn a_replacement_is_placed_by_its_own_shard_key() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "w_replace").await;
    collection.insert_many(on_both_shards(2)).await.unwrap();
    let replacement = doc! { "_id": 1, "k": 1, "new": true };
    let replaced = collection.replace_one(doc! { "_id": 1 }, replacement.clone()).await.unwrap();
    assert_eq!(replaced.modified_count, 1);
    assert_eq!(collection.find_one(doc! { "_id": 1 }).await.unwrap(), Some(replacement));
}

#[tokio::test]
async fn a_new_shard_key_value_moves_the_document_to_its_new_owner() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "w_move").await;
    collection.insert_one(doc! { "_id": 1, "k": -3, "x": 1 }).await.unwrap();
    let update = doc! { "$set": { "k": 3 }, "$inc": { "x": 1 } };
    let updated = collection.update_one(doc! { "_id": 1, "k": -3 }, update).await.unwrap();
    assert_eq!((updated.matched_count, updated.modified_count), (1, 1));
    assert_eq!(counts(&cluster, &collection).await, [0, 1]);
    let moved = collection.find_one(doc! { "k": 3 }).await.unwrap();
    assert_eq!(moved, Some(doc! { "_id": 1, "k": 3, "x": 2 }));
}

#[tokio::test]
async fn find_and_modify_changes_the_document_that_its_shard_key_names() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "w_fam").await;
    collection.insert_many(on_both_shards(3)).await.unwrap();
    let increment = doc! { "$inc": { "x": 1 } };
    let before = collection.find_one_and_update(doc! { "k": -2 }, increment.clone()).await.unwrap();
    assert_eq!(before, Some(doc! { "_id": -2, "k": -2 }));
    let after = collection
        .find_one_and_update(doc! { "k": 2 }, increment.clone())
        .return_document(ReturnDocument::After)
        .await
        .unwrap();
    assert_eq!(after, Some(doc! { "_id": 2, "k": 2, "x": 1 }));
    let without_key = collection.find_one_and_update(doc! { "x": 1 }, increment).await;
    assert_eq!(code(&without_key.unwrap_err()), Some(61));
}

#[tokio::test]
async fn find_and_modify_moves_a_document_and_projects_it() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "w_fam_move").await;
    collection.insert_one(doc! { "_id": 1, "k": -1, "a": 1, "b": 2 }).await.unwrap();
    let after = collection
        .find_one_and_update(doc! { "k": -1 }, doc! { "$set": { "k": 1 } })
        .return_document(ReturnDocument::After)
        .projection(doc! { "a": 1 })
        .await
        .unwrap();
    assert_eq!(after, Some(doc! { "_id": 1, "a": 1 }));
    assert_eq!(counts(&cluster, &collection).await, [0, 1]);
}

#[tokio::test]
async fn a_repeated_write_of_the_same_number_happens_once() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "w_retried").await;
    collection.insert_many(on_both_shards(2)).await.unwrap();
    let port = cluster.nodes().into_iter().find(|node| node.set.is_empty()).unwrap().port;
    let session = doc! { "id": bson::Uuid::new() };
    let operation = |k: i32| doc! { "q": { "_id": k, "k": k }, "u": { "$inc": { "x": 1 } } };
    let update = doc! {
        "update": "c", "updates": [operation(-1), operation(1)], "lsid": session,
        "txnNumber": 1i64, "$db": "w_retried",
    };
    for _ in 0..2 {
        let answer = super::reads::raw_command(port, &update).await;
        assert_eq!(number(&answer, "n"), Some(2), "{answer}");
    }
    for k in [-1, 1] {
        let found = collection.find_one(doc! { "k": k }).await.unwrap().unwrap();
        assert_eq!(number(&found, "x"), Some(1));
    }
}

#[tokio::test]
async fn writes_of_a_collection_that_is_not_sharded_work_alike() {
    let cluster = shared().await;
    let client = client(&cluster).await;
    let collection = client.database("w_plain").collection::<Document>("c");
    collection.insert_many(on_both_shards(5)).await.unwrap();
    collection.update_one(doc! { "k": 1 }, doc! { "$set": { "x": 1 } }).await.unwrap();
    let found = collection.find_one_and_delete(doc! { "x": 1 }).await.unwrap();
    assert_eq!(found, Some(doc! { "_id": 1, "k": 1, "x": 1 }));
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 9);
}

#[tokio::test]
async fn a_decimal_shard_key_is_placed_as_the_servers_place_it() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "w_decimal").await;
    let decimal = |text: &str| bson::Bson::Decimal128(text.parse().unwrap());
    let documents = [("a", "-0.5"), ("b", "0"), ("c", "1E+100")];
    let documents = documents.map(|(id, k)| doc! { "_id": id, "k": decimal(k) });
    collection.insert_many(documents).await.unwrap();
    assert_eq!(counts(&cluster, &collection).await, [1, 2]);
}

#[tokio::test]
async fn a_write_that_says_nothing_is_acknowledged_by_the_majority() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "w_default").await;
    let port = cluster.nodes().into_iter().find(|node| node.set.is_empty()).unwrap().port;
    // The profiler tells with which write concern a shard was asked.
    let shard = super::past_router(&cluster, &super::shard_ids(&cluster)[0]).await;
    let profiled = shard.database("w_default");
    profiled.run_command(doc! { "profile": 2 }).await.unwrap();
    let insert = doc! { "insert": "c", "documents": [{ "_id": -1, "k": -1 }], "$db": "w_default" };
    super::reads::raw_command(port, &insert).await;
    profiled.run_command(doc! { "profile": 0 }).await.unwrap();
    let seen = profiled.collection::<Document>("system.profile");
    let seen = seen.find_one(doc! { "op": "insert", "ns": "w_default.c" }).await.unwrap().unwrap();
    let concern = seen.get_document("writeConcern").unwrap();
    assert_eq!(concern.get_str("w").ok(), Some("majority"), "{seen}");
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 1);
}

#[tokio::test]
async fn a_default_that_is_set_holds_at_once() {
    let cluster = Cluster::start(ClusterSpec::sharded("defaults", 1)).await.unwrap();
    let client = client(&cluster).await;
    let admin = client.database("admin");
    let set = doc! { "setDefaultRWConcern": 1, "defaultWriteConcern": { "w": 7, "wtimeout": 1 } };
    admin.run_command(set).await.unwrap();
    let insert = client.database("w").collection("c").insert_one(doc! { "_id": 1 }).await;
    let error = insert.unwrap_err();
    let ErrorKind::Write(WriteFailure::WriteConcernError(error)) = &*error.kind else {
        panic!("{error}")
    };
    // "UnsatisfiableWriteConcern": there are no seven members.
    assert_eq!(error.code, 100);
}
