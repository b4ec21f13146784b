//! Servers that are away while a verification runs: cut off, unseated, frozen.

use std::time::Duration;

use bson::doc;
use imago_mongo::namespace::Namespace;
use imago_mongo::server::collection::Handle;
use imago_mongo::server::endpoint::Endpoint;
use imago_mongo::verify::{Mode, Report, Spec};
use imago_testbed::pool::{self, replica_set};
use imago_testbed::{Cluster, ClusterSpec, Relay, wait};
use tokio_util::task::AbortOnDropHandle;

use crate::verify::world::{Sides, insert, quick};

/// More than two ranges of a full verification, so that some have to be drawn.
const DOCUMENTS: i32 = 120_000;

async fn side(uri: &str, role: &'static str, db: &str) -> Handle {
    let endpoint = Box::pin(Endpoint::connect(uri, role)).await.unwrap();
    Handle::new(endpoint, Namespace::new(db, "docs"))
}

/// Both sides in one replica set, the source reached by another address.
async fn sides(cluster: &Cluster, source: &str, documents: i32) -> Sides {
    let direct = Sides {
        source: side(&cluster.uri(), "source", "from").await,
        destination: side(&cluster.uri(), "destination", "to").await,
    };
    for start in (0..documents).step_by(20_000) {
        let end = (start + 20_000).min(documents);
        direct.fill((start..end).map(|n| doc! {"_id": n, "v": 0})).await;
    }
    insert(&direct.source, [doc! {"_id": "missing"}]).await;
    Sides { source: side(source, "source", "from").await, ..direct }
}

fn modes() -> [Mode; 4] {
    [Mode::Full, Mode::Sample(30_000), Mode::Fraction(1.0), Mode::LastOps(1_000)]
}

fn begin(sides: &Sides, mode: Mode) -> AbortOnDropHandle<Report> {
    let sides = Sides { source: sides.source.clone(), destination: sides.destination.clone() };
    let verifying = async move { sides.verify(&Spec { mode, ..quick() }).await };
    AbortOnDropHandle::new(tokio::spawn(Box::pin(verifying)))
}

fn check(mode: &Mode, report: &Report) {
    // A sample may or may not hold the one document that differs.
    let missing = if matches!(mode, Mode::Sample(_)) { report.missing } else { 1 };
    assert_eq!((report.document_differences(), report.missing), (missing, missing), "{mode:?}");
    assert!(report.compared >= 1_000, "{mode:?}: {report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_breaks_again_and_again_ends_no_verification() {
    let cluster = Box::pin(pool::lease(replica_set(1))).await.unwrap();
    let relay = Relay::start(cluster.nodes()[0].port).unwrap();
    let address = relay.address();
    // Impatient, so that it is not the driver that waits.
    let uri = format!("mongodb://{address}/?directConnection=true&serverSelectionTimeoutMS=200");
    let sides = Box::pin(sides(&cluster, &uri, DOCUMENTS)).await;
    for mode in modes() {
        relay.cut();
        let mut report = begin(&sides, mode.clone());
        wait::lasts(Duration::from_secs(1)).await;
        let report = loop {
            relay.restore();
            let open = tokio::time::timeout(Duration::from_millis(1_500), &mut report).await;
            if let Ok(report) = open {
                break report.unwrap();
            }
            relay.cut();
            wait::lasts(Duration::from_millis(300)).await;
        };
        check(&mode, &report);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn elections_cost_a_verification_time_only() {
    let spec = ClusterSpec { election_timeout_ms: 2_000, ..replica_set(3) };
    let cluster = Box::pin(pool::lease(spec)).await.unwrap();
    let sides = Box::pin(sides(&cluster, &cluster.uri(), DOCUMENTS)).await;
    let set = cluster.name();
    for mode in modes() {
        let report = begin(&sides, mode.clone());
        cluster.step_down(set).await.unwrap();
        let primary = cluster.primary(set).await.unwrap();
        cluster.kill(&primary).unwrap();
        cluster.primary_other_than(set, &primary).await.unwrap();
        cluster.restart(&primary).await.unwrap();
        check(&mode, &report.await.unwrap());
    }
}

/// A command that was sent to a frozen server is never answered; its successor answers the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_freezes_does_not_hang_a_verification() {
    let spec = ClusterSpec { election_timeout_ms: 2_000, ..replica_set(3) };
    let cluster = Box::pin(pool::lease(spec)).await.unwrap();
    let sides = Box::pin(sides(&cluster, &cluster.uri(), 1_000)).await;
    let primary = cluster.primary(cluster.name()).await.unwrap();
    cluster.stop(&primary).unwrap();
    let report = tokio::time::timeout(Duration::from_secs(110), begin(&sides, Mode::Full)).await;
    cluster.resume(&primary).unwrap();
    check(&Mode::Full, &report.expect("it asks another member").unwrap());
}
