//! The default pace where no client is at work.

use std::process::Command;

use bson::{Document, doc};
use imago_mongo::server::endpoint::Endpoint;
use imago_testbed::pool::{self, replica_set};

/// Reads behind the first of each cursor, by the server's count.
async fn getmores(source: &Endpoint) -> i64 {
    let top = source.run("admin", doc! {"top": 1}).await.unwrap();
    let of = top.get_document("totals").unwrap().get_document("shop.orders").unwrap();
    let count = of.get_document("getmore").unwrap().get("count").unwrap();
    count.as_i64().or_else(|| count.as_i32().map(i64::from)).unwrap()
}

/// The bulk waits for the first look at clients; what it opened meanwhile must not stay small.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_without_clients_reads_in_large_batches() {
    let [old, new] = Box::pin(pool::lease_all([replica_set(1), replica_set(1)])).await.unwrap();
    let source = Box::pin(Endpoint::connect(&old.uri(), "source")).await.unwrap();
    let orders = source.client().database("shop").collection::<Document>("orders");
    let order =
        |number: i32| doc! {"_id": number, "customer": "Ana Ruiz", "notes": "x".repeat(960)};
    for first in (0..30_000).step_by(5_000) {
        orders.insert_many((first..first + 5_000).map(order)).await.unwrap();
    }
    let before = getmores(&source).await;
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
    command.current_dir(folder.path()).env_clear();
    command.args(["copy", "--from", &old.uri(), "--to", &new.uri(), "--ns", "shop.orders"]);
    command.args(["--until", "caught-up", "--progress", "json", "--json"]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("no client of the cluster is active"), "{said}");
    // 30 MB are eight batches of four; in those of a pause they were nine hundred.
    let read = getmores(&source).await - before;
    assert!(read < 100, "30,000 documents were read in {read} batches");
}
