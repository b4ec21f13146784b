//! The errors and answers that clients see when shards lose their primaries.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bson::{Document, doc};
use futures_util::TryStreamExt;
use imago_testbed::{Cluster, ClusterSpec, wait};
use mongodb::options::{ReadPreference, SelectionCriteria};

use super::{client, code, number, on_both_shards, shard_by_k, shard_ids, split_collection};

async fn replicated(name: &str) -> Cluster {
    let spec = ClusterSpec { members: 3, ..ClusterSpec::sharded(name, 2) };
    Cluster::start(spec).await.unwrap()
}

/// Waits until each of the two has written again and again.
async fn both_write(written: &[Arc<AtomicU64>; 2]) {
    let now = || written.each_ref().map(|count| count.load(Ordering::Relaxed));
    let before = now();
    wait::until("both shards take writes", async || {
        now().iter().zip(before).all(|(now, before)| *now >= before + 20)
    })
    .await;
}

#[tokio::test]
async fn every_acknowledged_write_counts_once_through_a_killed_and_a_stepped_down_primary() {
    let cluster = replicated("fail").await;
    let collection = split_collection(&cluster, "f_load").await;
    collection.insert_many(on_both_shards(1)).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let written = [0, 1].map(|_| Arc::new(AtomicU64::new(0)));
    let writers: Vec<_> = [(-1, &written[0]), (0, &written[1])]
        .map(|(k, acknowledged_so_far)| {
            let (collection, stop) = (collection.clone(), Arc::clone(&stop));
            let acknowledged_so_far = Arc::clone(acknowledged_so_far);
            tokio::spawn(async move {
                let mut acknowledged = 0;
                while !stop.load(Ordering::Relaxed) {
                    let increment = doc! { "$inc": { "x": 1 } };
                    let filter = doc! { "_id": k, "k": k };
                    let updated = collection.update_one(filter, increment).await;
                    match updated {
                        Ok(updated) => acknowledged += updated.modified_count,
                        Err(error) => panic!("{error}"),
                    }
                    acknowledged_so_far.fetch_add(1, Ordering::Relaxed);
                    wait::lasts(Duration::from_millis(5)).await;
                }
                (k, acknowledged)
            })
        })
        .into();
    let shards = shard_ids(&cluster);
    both_write(&written).await;
    let killed = cluster.primary(&shards[0]).await.unwrap();
    cluster.kill(&killed).unwrap();
    cluster.primary_other_than(&shards[0], &killed).await.unwrap();
    cluster.step_down(&shards[1]).await.unwrap();
    both_write(&written).await;
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        let (k, acknowledged) = writer.await.unwrap();
        assert!(acknowledged > 0);
        let found = collection.find_one(doc! { "_id": k }).await.unwrap().unwrap();
        assert_eq!(number(&found, "x"), i64::try_from(acknowledged).ok(), "{k}");
    }

    // The same cluster for the rest, because seven servers take their time to start.
    a_change_stream_resumes_behind_an_election(&cluster).await;
    secondaries_serve_reads(&cluster).await;
}

async fn a_change_stream_resumes_behind_an_election(cluster: &Cluster) {
    let collection = split_collection(cluster, "f_stream").await;
    let mut stream = collection.watch().await.unwrap();
    collection.insert_one(doc! { "_id": 1, "k": 1 }).await.unwrap();
    let shards = shard_ids(cluster);
    cluster.step_down(&shards[1]).await.unwrap();
    collection.insert_many([doc! { "_id": 2, "k": 2 }, doc! { "_id": 3, "k": -3 }]).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 3 {
        if let Some(event) = stream.next_if_any().await.unwrap() {
            seen.push(event.document_key.unwrap().get_i32("_id").unwrap());
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3]);
}

async fn secondaries_serve_reads(cluster: &Cluster) {
    let collection = split_collection(cluster, "f_secondary").await;
    let majority = mongodb::options::WriteConcern::majority();
    collection.insert_many(on_both_shards(20)).write_concern(majority).await.unwrap();
    let secondary = ReadPreference::SecondaryPreferred { options: None };
    let found: Vec<Document> = collection
        .find(doc! {})
        .selection_criteria(SelectionCriteria::ReadPreference(secondary))
        .read_concern(mongodb::options::ReadConcern::majority())
        .batch_size(7)
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    assert_eq!(found.len(), 40);
}

#[tokio::test]
async fn a_shard_that_is_down_is_told_within_a_bound_and_does_not_hinder_the_other() {
    let cluster = Cluster::start(ClusterSpec::sharded("down", 2)).await.unwrap();
    let client = client(&cluster).await;
    shard_by_k(&cluster, &client, "f_down").await;
    let collection = client.database("f_down").collection::<Document>("c");
    collection.insert_many(on_both_shards(5)).await.unwrap();
    let shards = shard_ids(&cluster);
    let down = cluster.primary(&shards[1]).await.unwrap();
    cluster.kill(&down).unwrap();
    collection.insert_one(doc! { "_id": "left", "k": -10 }).await.unwrap();
    let refused = collection.insert_one(doc! { "_id": "right", "k": 10 }).await.unwrap_err();
    assert_eq!(code(&refused), Some(133), "{refused}");
    cluster.restart(&down).await.unwrap();
    collection.insert_one(doc! { "_id": "right", "k": 10 }).await.unwrap();
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 12);
}
