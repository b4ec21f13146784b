//! A sharded destination, read through its router.

use bson::{RawDocumentBuf, doc};
use imago_mongo::copy::repair::{RepairSpec, repair};
use imago_mongo::namespace::Namespace;
use imago_mongo::server::collection::Handle;
use imago_mongo::server::endpoint::Endpoint;
use imago_mongo::verify::{Mismatch, Mode, Spec};
use imago_testbed::Cluster;
use imago_testbed::pool::{self, replica_set};
use mongodb::{Client, Collection};

use crate::verify::world::{Sides, collection, control, create, listed, quick};

/// A replica set as the source, two shards with the key `k` as the destination: below 50 on the
/// first shard, from 50 on the other.
async fn sharded(source: &Cluster, destination: &Cluster) -> Sides {
    let source = Endpoint::connect(&source.uri(), "source").await.unwrap();
    let router = Endpoint::connect(&destination.uri(), "destination").await.unwrap();
    let admin = async |command| router.run("admin", command).await.unwrap();
    admin(doc! {"enableSharding": "shop"}).await;
    admin(doc! {"shardCollection": "shop.docs", "key": {"k": 1}}).await;
    admin(doc! {"split": "shop.docs", "middle": {"k": 50}}).await;
    for (k, shard) in [(0, "s1"), (50, "s2")] {
        let shard = format!("{}-{shard}", destination.name());
        admin(doc! {"moveChunk": "shop.docs", "find": {"k": k}, "to": shard}).await;
    }
    Sides {
        source: Handle::new(source, Namespace::new("shop", "docs")),
        destination: Handle::new(router, Namespace::new("shop", "docs")),
    }
}

/// The collection as one shard holds it, behind the router's back.
async fn on_shard(cluster: &Cluster, shard: &str) -> Collection<RawDocumentBuf> {
    let node = cluster.nodes().into_iter().find(|node| node.set == shard).unwrap();
    let uri = format!("mongodb://127.0.0.1:{}/?directConnection=true", node.port);
    Client::with_uri_str(uri).await.unwrap().database("shop").collection("docs")
}

async fn mended(sides: &Sides, mismatches: Vec<Mismatch>) {
    let lines = mismatches.into_iter().map(Ok);
    let (source, destination) = (&sides.source.endpoint, &sides.destination.endpoint);
    let spec = RepairSpec { retries: quick().retries, ..RepairSpec::default() };
    let report =
        Box::pin(repair(source, destination, lines, &spec, &control(), |_| {})).await.unwrap();
    assert!(report.is_clean(), "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sharded_copy_is_verified_and_repaired() {
    let specs = [replica_set(1), pool::sharded(2)];
    let [source, destination] = Box::pin(pool::lease_all(specs)).await.unwrap();
    let sides = Box::pin(sharded(&source, &destination)).await;
    create(&sides.source, doc! {}).await;
    // In `_id` order the documents alternate between the shards.
    sides.fill((0..100).map(|n| doc! {"_id": n, "k": (n * 37) % 100, "v": 0})).await;
    let clean = Box::pin(sides.verify(&quick())).await;
    assert!(clean.is_clean(), "the shard key's own index is no difference: {clean:?}");
    assert_eq!(clean.compared, 100);

    // One missing, one changed, one that moved between shards at the source, one held twice.
    let copy = collection(&sides.destination);
    copy.delete_one(doc! {"_id": 1, "k": 37}).await.unwrap();
    copy.update_one(doc! {"_id": 2, "k": 74}, doc! {"$set": {"v": 1}}).await.unwrap();
    let moves = doc! {"$set": {"k": 99}};
    collection(&sides.source).update_one(doc! {"_id": 0}, moves).await.unwrap();
    let twin = RawDocumentBuf::try_from(&doc! {"_id": 5, "k": 10, "v": 0}).unwrap();
    let first_shard = on_shard(&destination, &format!("{}-s1", destination.name())).await;
    first_shard.insert_one(twin).await.unwrap();

    let report = Box::pin(sides.verify(&quick())).await;
    let expected = [
        r#"different {"$numberInt":"0"}"#,
        r#"missing {"$numberInt":"1"}"#,
        r#"different {"$numberInt":"2"}"#,
        r#"duplicate {"$numberInt":"5"}"#,
    ];
    assert_eq!(listed(&report.differences), expected);
    Box::pin(mended(&sides, report.differences)).await;
    let report = Box::pin(sides.verify(&quick())).await;
    assert!(report.is_clean(), "{report:?}");

    // The other way round the source is sharded: its last operations come from a change stream.
    let swapped = Sides { source: sides.destination, destination: sides.source };
    copy.update_one(doc! {"_id": 7, "k": 59}, doc! {"$set": {"v": 2}}).await.unwrap();
    let spec = Spec { mode: Mode::LastOps(1), structure: false, ..quick() };
    let report = Box::pin(swapped.verify(&spec)).await;
    assert_eq!(listed(&report.differences), [r#"different {"$numberInt":"7"}"#]);
    assert_eq!(report.last_ops.unwrap().read_from, "change stream");
}
