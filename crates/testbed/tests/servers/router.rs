//! The stand-in router on real sharded clusters, through the official driver.
//!
//! If this machine has a real `mongos`, the same tests run against that one.
mod auth;
mod ddl;
mod failover;
mod reads;
mod sharding;
mod streams;
mod transactions;
mod writes;

use std::sync::{Arc, Weak};

use bson::{Bson, Document, doc};
use imago_testbed::{Cluster, ClusterSpec};
use mongodb::error::{Error, ErrorKind, WriteFailure};
use mongodb::options::{ClientOptions, ServerAddress};
use mongodb::{Client, Collection};
use tokio::sync::Mutex;

/// The cluster of two shards that tests share; the last one to end drops it.
async fn shared() -> Arc<Cluster> {
    static SHARED: Mutex<Weak<Cluster>> = Mutex::const_new(Weak::new());
    let mut shared = SHARED.lock().await;
    if let Some(cluster) = shared.upgrade() {
        return cluster;
    }
    let spec = ClusterSpec::sharded("router", 2)
        .with_parameter("reshardingMinimumOperationDurationMillis", "0")
        .with_parameter("orphanCleanupDelaySecs", "0");
    let cluster = Arc::new(Cluster::start(spec).await.unwrap());
    *shared = Arc::downgrade(&cluster);
    cluster
}

async fn client(cluster: &Cluster) -> Client {
    Client::with_uri_str(cluster.uri()).await.unwrap()
}

/// The ids of the shards, in order.
fn shard_ids(cluster: &Cluster) -> Vec<String> {
    cluster.set_names().filter(|name| !name.ends_with("-cfg")).map(str::to_owned).collect()
}

/// A client of one shard itself, past the router.
async fn past_router(cluster: &Cluster, shard: &str) -> Client {
    let primary = cluster.primary(shard).await.unwrap();
    let node = cluster.nodes().into_iter().find(|node| node.name == primary).unwrap();
    let options = ClientOptions::builder()
        .hosts(vec![ServerAddress::Tcp { host: "127.0.0.1".into(), port: Some(node.port) }])
        .direct_connection(true)
        .build();
    Client::with_options(options).unwrap()
}

/// A collection sharded by `k`: below zero on the first shard, from zero on the second.
async fn split_collection(cluster: &Cluster, database: &str) -> Collection<Document> {
    let client = client(cluster).await;
    shard_by_k(cluster, &client, database).await;
    client.database(database).collection("c")
}

/// Zones place the two chunks at once: a shard takes part in one migration at a time, and tests
/// run in parallel.
async fn shard_by_k(cluster: &Cluster, client: &Client, database: &str) {
    let admin = client.database("admin");
    let name = format!("{database}.c");
    let shards = shard_ids(cluster);
    let enable = doc! { "enableSharding": database, "primaryShard": &shards[0] };
    admin.run_command(enable).await.unwrap();
    let bounds = [Bson::MinKey, Bson::Int32(0), Bson::MaxKey];
    for (shard, bounds) in shards.iter().zip(bounds.windows(2)) {
        admin.run_command(doc! { "addShardToZone": shard, "zone": shard }).await.unwrap();
        let (min, max) = (doc! { "k": &bounds[0] }, doc! { "k": &bounds[1] });
        let range = doc! { "updateZoneKeyRange": &name, "min": min, "max": max, "zone": shard };
        admin.run_command(range).await.unwrap();
    }
    admin.run_command(doc! { "shardCollection": &name, "key": { "k": 1 } }).await.unwrap();
    // From here on the tests decide the places of chunks.
    for bounds in bounds.windows(2) {
        let (min, max) = (doc! { "k": &bounds[0] }, doc! { "k": &bounds[1] });
        let range = doc! { "updateZoneKeyRange": &name, "min": min, "max": max, "zone": null };
        admin.run_command(range).await.unwrap();
    }
}

/// Held while a range is moved.
static MOVING: Mutex<()> = Mutex::const_new(());

/// Moves the chunks from zero upwards to a shard, through the router.
async fn move_upper_half(client: &Client, namespace: &str, shard: &str) {
    let _moving = MOVING.lock().await;
    let moving = doc! { "moveRange": namespace, "min": { "k": 0 }, "toShard": shard };
    client.database("admin").run_command(moving).await.unwrap();
}

/// The same past the router, so that it cannot know.
async fn move_upper_half_unseen(cluster: &Cluster, namespace: &str, shard: &str) {
    let _moving = MOVING.lock().await;
    let moving = doc! {
        "_configsvrMoveRange": namespace, "min": { "k": 0 }, "toShard": shard,
        "waitForDelete": true, "writeConcern": { "w": "majority" },
    };
    let config = cluster.set_names().find(|name| name.ends_with("-cfg")).unwrap();
    let config = past_router(cluster, config).await;
    config.database("admin").run_command(moving).await.unwrap();
}

/// Documents with `k` from `-count` to `count - 1`, half of them on each shard.
fn on_both_shards(count: i32) -> Vec<Document> {
    (-count..count).map(|k| doc! { "_id": k, "k": k }).collect()
}

/// Documents of a collection on each shard.
async fn counts(cluster: &Cluster, collection: &Collection<Document>) -> Vec<u64> {
    let name = collection.namespace();
    let mut counts = Vec::new();
    for shard in shard_ids(cluster) {
        let shard = past_router(cluster, &shard).await;
        let part = shard.database(&name.db).collection::<Document>(&name.coll);
        counts.push(part.count_documents(doc! {}).await.unwrap());
    }
    counts
}

/// The code of a command or write that was refused.
fn code(error: &Error) -> Option<i32> {
    match &*error.kind {
        ErrorKind::Command(error) => Some(error.code),
        ErrorKind::Write(WriteFailure::WriteError(error)) => Some(error.code),
        ErrorKind::InsertMany(error) => {
            error.write_errors.as_ref().and_then(|errors| errors.first()).map(|error| error.code)
        }
        _ => None,
    }
}

/// A number of either integer type.
fn number(document: &Document, key: &str) -> Option<i64> {
    match document.get(key)? {
        Bson::Int32(value) => Some(i64::from(*value)),
        Bson::Int64(value) => Some(*value),
        _ => None,
    }
}

/// Documents of a collection, through the router.
async fn counts_of(collection: &Collection<Document>) -> u64 {
    collection.count_documents(doc! {}).await.unwrap()
}
