//! Sharding, moving, resharding, the balancer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bson::{Bson, Document, doc};

use super::{
    client, code, counts, move_upper_half, move_upper_half_unseen, on_both_shards, shard_ids,
    shared, split_collection,
};

#[tokio::test]
async fn a_moved_range_is_served_by_its_new_owner_at_once() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "m_moved").await;
    collection.insert_many(on_both_shards(10)).await.unwrap();
    let shards = shard_ids(&cluster);
    move_upper_half_unseen(&cluster, "m_moved.c", &shards[0]).await;
    collection.insert_one(doc! { "_id": 100, "k": 100 }).await.unwrap();
    let updated =
        collection.update_one(doc! { "k": 5 }, doc! { "$set": { "x": 1 } }).await.unwrap();
    assert_eq!(updated.modified_count, 1);
    let modified = collection.find_one_and_update(doc! { "k": 6 }, doc! { "$set": { "x": 1 } });
    assert!(modified.await.unwrap().is_some());
    assert_eq!(collection.delete_one(doc! { "k": 7 }).await.unwrap().deleted_count, 1);
    assert_eq!(counts(&cluster, &collection).await, [20, 0]);
}

#[tokio::test]
async fn nothing_is_lost_or_done_twice_while_a_range_moves_to_and_fro() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "m_busy").await;
    collection.insert_many(on_both_shards(50)).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let writing = tokio::spawn({
        let (collection, stop) = (collection.clone(), Arc::clone(&stop));
        async move {
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) {
                let inserted: Vec<Document> = (-20..20)
                    .map(|k| doc! { "_id": format!("{rounds}/{k}"), "k": k, "round": rounds })
                    .collect();
                collection.insert_many(inserted).ordered(rounds % 2 == 0).await.unwrap();
                for k in [-7, 7] {
                    let increment = doc! { "$inc": { "x": 1 } };
                    collection.update_one(doc! { "_id": k, "k": k }, increment).await.unwrap();
                }
                rounds += 1;
            }
            rounds
        }
    });
    let shards = shard_ids(&cluster);
    for to in [0, 1, 0, 1] {
        move_upper_half(collection.client(), "m_busy.c", &shards[to]).await;
    }
    stop.store(true, Ordering::Relaxed);
    let rounds: i32 = writing.await.unwrap();
    assert!(rounds > 0);
    let expected = 100 + u64::try_from(rounds).unwrap() * 40;
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), expected);
    for k in [-7, 7] {
        let found = collection.find_one(doc! { "_id": k }).await.unwrap().unwrap();
        assert_eq!(super::number(&found, "x"), Some(i64::from(rounds)), "{k}");
    }
}

#[tokio::test]
async fn a_resharded_collection_is_served_by_its_new_key() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "m_reshard").await;
    collection.insert_many(on_both_shards(30)).await.unwrap();
    let admin = collection.client().database("admin");
    let reshard = doc! {
        "reshardCollection": "m_reshard.c", "key": { "_id": "hashed" }, "numInitialChunks": 4,
    };
    admin.run_command(reshard).await.unwrap();
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 60);
    for id in [-30, 0, 29] {
        let update = doc! { "$set": { "x": 1 } };
        let updated = collection.update_one(doc! { "_id": id }, update).await.unwrap();
        assert_eq!(updated.modified_count, 1, "{id}");
    }
    collection.insert_one(doc! { "_id": 1_000 }).await.unwrap();
    let config = collection.client().database("config").collection::<Document>("collections");
    let entry = config.find_one(doc! { "_id": "m_reshard.c" }).await.unwrap().unwrap();
    assert_eq!(entry.get_document("key").ok(), Some(&doc! { "_id": "hashed" }));
}

#[tokio::test]
async fn chunks_split_where_they_are_told_or_in_their_middle() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "m_split").await;
    collection.insert_many(on_both_shards(20)).await.unwrap();
    let client = client(&cluster).await;
    let admin = client.database("admin");
    admin.run_command(doc! { "split": "m_split.c", "middle": { "k": 15 } }).await.unwrap();
    admin.run_command(doc! { "split": "m_split.c", "find": { "k": -5 } }).await.unwrap();
    let config = client.database("config");
    let entry = config.collection::<Document>("collections");
    let entry = entry.find_one(doc! { "_id": "m_split.c" }).await.unwrap().unwrap();
    let chunks = config.collection::<Document>("chunks");
    let of_collection = doc! { "uuid": entry.get("uuid").cloned() };
    assert_eq!(chunks.count_documents(of_collection.clone()).await.unwrap(), 4);
    let merge = doc! { "mergeChunks": "m_split.c", "bounds": [{ "k": 0 }, { "k": Bson::MaxKey }] };
    admin.run_command(merge).await.unwrap();
    assert_eq!(chunks.count_documents(of_collection).await.unwrap(), 3);
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 40);
}

#[tokio::test]
async fn the_balancer_stops_and_starts() {
    let cluster = shared().await;
    let admin = client(&cluster).await.database("admin");
    let mode = async || {
        let status = admin.run_command(doc! { "balancerStatus": 1 }).await.unwrap();
        status.get_str("mode").unwrap().to_owned()
    };
    admin.run_command(doc! { "balancerStop": 1 }).await.unwrap();
    assert_eq!(mode().await, "off");
    admin.run_command(doc! { "balancerStart": 1 }).await.unwrap();
    assert_eq!(mode().await, "full");
}

#[tokio::test]
async fn the_shards_are_listed() {
    let cluster = shared().await;
    let admin = client(&cluster).await.database("admin");
    let listed = admin.run_command(doc! { "listShards": 1 }).await.unwrap();
    let listed = listed.get_array("shards").unwrap().iter().filter_map(Bson::as_document);
    let mut ids: Vec<_> = listed.map(|shard| shard.get_str("_id").unwrap().to_owned()).collect();
    ids.sort();
    assert_eq!(ids, shard_ids(&cluster));
}

#[tokio::test]
async fn moving_a_range_of_a_collection_that_is_not_sharded_is_refused() {
    let cluster = shared().await;
    let client = client(&cluster).await;
    client.database("m_plain").collection("c").insert_one(doc! { "_id": 1 }).await.unwrap();
    let shards = shard_ids(&cluster);
    let moving = doc! { "moveRange": "m_plain.c", "min": { "_id": 0 }, "toShard": &shards[0] };
    let refused = client.database("admin").run_command(moving).await.unwrap_err();
    assert_eq!(code(&refused), Some(118));
}
