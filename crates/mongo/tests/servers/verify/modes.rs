//! Samples, last operations, given `_id`s, and sides that change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bson::{RawBson, doc};
use imago_mongo::bson::order::Id;
use imago_mongo::verify::{Mode, Retries, Spec};
use tokio::task::{JoinHandle, JoinSet};

use imago_testbed::wait::{self, Wait};

use crate::verify::world::{Sides, collection, insert, listed, quick, with_sides};

fn numbered(count: i32) -> Vec<bson::Document> {
    (0..count).map(|n| doc! {"_id": n, "v": 0}).collect()
}

fn id(n: i32) -> Id {
    Id::from_raw(RawBson::Int32(n).as_raw_bson_ref())
}

#[test]
fn given_ids_are_compared_and_no_others() {
    with_sides("ids", |sides| async move {
        insert(&sides.source, numbered(10)).await;
        insert(&sides.destination, numbered(5)).await;
        let spec = Spec { mode: Mode::Ids(vec![id(1), id(7), id(99)]), ..quick() };
        let report = sides.verify(&spec).await;
        assert_eq!(listed(&report.differences), [r#"missing {"$numberInt":"7"}"#]);
        assert_eq!(report.compared, 3);
    });
}

#[test]
fn a_sample_of_everything_finds_everything() {
    with_sides("sample", |sides| async move {
        insert(&sides.source, numbered(50)).await;
        insert(&sides.destination, numbered(40)).await;
        insert(&sides.destination, [doc! {"_id": "extra"}]).await;
        for mode in [Mode::Sample(1_000), Mode::Fraction(1.0)] {
            let report = sides.verify(&Spec { mode, ..quick() }).await;
            assert_eq!((report.missing, report.extra), (10, 1));
        }
    });
}

#[test]
fn the_last_operations_name_their_documents() {
    with_sides("last", |sides| async move {
        sides.fill(numbered(100)).await;
        let (source, destination) = (collection(&sides.source), collection(&sides.destination));
        // An old difference that the last operations do not touch, then four operations.
        destination.delete_one(doc! {"_id": 3}).await.unwrap();
        source.update_one(doc! {"_id": 10}, doc! {"$inc": {"v": 1}}).await.unwrap();
        source.delete_one(doc! {"_id": 11}).await.unwrap();
        source.update_one(doc! {"_id": 10}, doc! {"$inc": {"v": 1}}).await.unwrap();
        insert(&sides.source, [doc! {"_id": 200}]).await;
        let report = sides.verify(&Spec { mode: Mode::LastOps(4), ..quick() }).await;
        assert_eq!(
            listed(&report.differences),
            [
                r#"different {"$numberInt":"10"}"#,
                r#"extra {"$numberInt":"11"}"#,
                r#"missing {"$numberInt":"200"}"#,
            ]
        );
        let last_ops = report.last_ops.unwrap();
        assert_eq!((last_ops.found, last_ops.documents), (4, 3));
        assert_eq!(last_ops.read_from, "oplog");
    });
}

#[test]
fn operations_of_a_transaction_count() {
    with_sides("transaction", |sides| async move {
        sides.fill(numbered(10)).await;
        let source = collection(&sides.source);
        let mut session = sides.source.endpoint.client().start_session().await.unwrap();
        session.start_transaction().await.unwrap();
        for n in [4, 5] {
            let change = doc! {"$inc": {"v": 1}};
            source.update_one(doc! {"_id": n}, change).session(&mut session).await.unwrap();
        }
        session.commit_transaction().await.unwrap();
        let report = sides.verify(&Spec { mode: Mode::LastOps(2), ..quick() }).await;
        assert_eq!(
            listed(&report.differences),
            [r#"different {"$numberInt":"4"}"#, r#"different {"$numberInt":"5"}"#]
        );
    });
}

#[test]
fn more_operations_than_the_log_holds_are_said_to_be_fewer() {
    with_sides("few", |sides| async move {
        sides.fill(numbered(7)).await;
        let report = sides.verify(&Spec { mode: Mode::LastOps(1_000), ..quick() }).await;
        assert_eq!(report.last_ops.unwrap().found, 7);
        assert!(report.differences.is_empty());
    });
}

/// A copy that follows its source some 50 ms behind is no difference.
#[test]
fn sides_that_change_settle() {
    with_sides("settle", |sides| async move {
        sides.fill(numbered(500)).await;
        let stop = Arc::new(AtomicBool::new(false));
        let (source, destination) = (collection(&sides.source), collection(&sides.destination));
        let stopped = Arc::clone(&stop);
        let writer = tokio::spawn(async move {
            let mut round = 0;
            while !stopped.load(Ordering::Relaxed) {
                let n = round % 500;
                let change = doc! {"$inc": {"v": 1}};
                source.update_one(doc! {"_id": n}, change.clone()).await.unwrap();
                wait::lasts(Duration::from_millis(50)).await;
                destination.update_one(doc! {"_id": n}, change).await.unwrap();
                round += 1;
            }
        });
        let retries = Retries { rounds: 8, first_ms: 100, pause_ms_max: 1_000 };
        for _ in 0..5 {
            let report = sides.verify(&Spec { retries, ..Spec::default() }).await;
            assert!(report.is_clean(), "{report:?}");
        }
        stop.store(true, Ordering::Relaxed);
        writer.await.unwrap();
    });
}

/// Changes one document every few milliseconds until it is told to stop, and the copy of it, if
/// there is one, 40 ms behind: whenever one side is read after the other, they differ.
fn keep_changing(sides: &Sides, follows: bool, stop: &Arc<AtomicBool>) -> JoinHandle<()> {
    let (source, destination) = (collection(&sides.source), collection(&sides.destination));
    let stopped = Arc::clone(stop);
    tokio::spawn(async move {
        let mut copies = JoinSet::new();
        for round in 1.. {
            if stopped.load(Ordering::Relaxed) {
                break;
            }
            let change = doc! {"$set": {"v": round}};
            source.update_one(doc! {"_id": 3}, change.clone()).await.unwrap();
            let destination = destination.clone();
            if follows {
                copies.spawn(async move {
                    wait::lasts(Duration::from_millis(40)).await;
                    destination.update_one(doc! {"_id": 3}, change).await.unwrap();
                });
            }
            wait::lasts(Duration::from_millis(10)).await;
        }
        while let Some(copied) = copies.join_next().await {
            copied.unwrap();
        }
    })
}

#[test]
fn a_document_that_changes_all_the_time_is_followed() {
    with_sides("hot", |sides| async move {
        sides.fill(numbered(10)).await;
        let stop = Arc::new(AtomicBool::new(false));
        let writer = keep_changing(&sides, true, &stop);
        let retries = Retries { rounds: 4, first_ms: 50, pause_ms_max: 100 };
        let report = sides.verify(&Spec { retries, ..Spec::default() }).await;
        stop.store(true, Ordering::Relaxed);
        writer.await.unwrap();
        assert!(report.is_clean(), "{report:?}");
    });
}

#[test]
fn a_document_that_changes_at_the_source_alone_is_a_difference() {
    with_sides("hot_alone", |sides| async move {
        sides.fill(numbered(10)).await;
        let stop = Arc::new(AtomicBool::new(false));
        let writer = keep_changing(&sides, false, &stop);
        let changed = doc! {"_id": 3, "v": {"$gt": 1}};
        let wait = Wait::until(Duration::from_millis(5), "the document changes");
        while collection(&sides.source).find_one(changed.clone()).await.unwrap().is_none() {
            wait.again().await;
        }
        let retries = Retries { rounds: 2, first_ms: 50, pause_ms_max: 100 };
        let report = sides.verify(&Spec { retries, ..Spec::default() }).await;
        stop.store(true, Ordering::Relaxed);
        writer.await.unwrap();
        assert_eq!((report.different, report.unsettled), (1, 1), "{report:?}");
    });
}

/// A document that lags at first and arrives during the retries is resolved, and the report says
/// so.
#[test]
fn a_late_copy_is_resolved_by_a_retry() {
    with_sides("late", |sides| async move {
        sides.fill(numbered(10)).await;
        insert(&sides.source, [doc! {"_id": 10, "v": 0}]).await;
        let destination = sides.destination.clone();
        let late = tokio::spawn(async move {
            wait::lasts(Duration::from_millis(700)).await;
            insert(&destination, [doc! {"_id": 10, "v": 0}]).await;
        });
        let retries = Retries { rounds: 20, first_ms: 500, pause_ms_max: 1_000 };
        let report = sides.verify(&Spec { retries, ..Spec::default() }).await;
        late.await.unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!((report.suspected, report.resolved), (1, 1));
        assert!(report.retries >= 1);
    });
}
