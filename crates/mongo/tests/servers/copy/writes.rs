//! Ways in which a source is written: transactions, expiry, and the events that end a copy.

use std::time::Duration;

use bson::{DateTime, doc};
use imago_job::record::Limits;
use imago_mongo::error::Error;

use imago_testbed::wait::Wait;

use crate::copy::world::{Between, Ends, create, documents, fill, request, run, run_on};

async fn transact(ends: &Ends, from: i32, is_committed: bool) {
    let client = ends.clusters.source.client();
    let mut session = client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let (left, right) = (documents(&ends.source("left")), documents(&ends.source("right")));
    for n in from..from + 50 {
        let this = doc! {"_id": n};
        left.delete_one(this.clone()).session(&mut session).await.unwrap();
        let moved = doc! {"$set": {"moved": is_committed}, "$unset": {"filler": ""}};
        right.update_one(this, moved).session(&mut session).await.unwrap();
        let new = doc! {"_id": format!("new {n}"), "x": "x".repeat(20_000)};
        right.insert_one(new).session(&mut session).await.unwrap();
    }
    if is_committed {
        session.commit_transaction().await.unwrap();
    } else {
        session.abort_transaction().await.unwrap();
    }
}

#[test]
fn transactions_arrive_if_they_commit() {
    run(Between::ReplicaSets, "transactions", |ends| async move {
        fill(&ends.source("left"), 1_200).await;
        fill(&ends.source("right"), 1_200).await;
        let mut job = ends.copy(&ends.all()).await;
        for batch in 0..6 {
            Box::pin(transact(&ends, batch * 200, batch % 2 == 0)).await;
        }
        job.reaches("follow").await;
        for batch in 0..6 {
            Box::pin(transact(&ends, batch * 200 + 100, batch % 2 == 0)).await;
        }
        job.catches_up().await;
        ends.assert_same("left").await;
        ends.assert_same("right").await;
        let new = doc! {"_id": {"$regex": "^new "}};
        let arrived = documents(&ends.destination("right")).count_documents(new).await.unwrap();
        assert_eq!(arrived, 300, "of the transactions that were committed");
        job.stop().await;
    });
}

#[test]
fn documents_that_expire_are_gone_at_both_sides() {
    run(Between::ReplicaSets, "expiry", |ends| async move {
        let source = ends.source("expiry");
        let docs = documents(&source);
        // Nothing expires at the destination: a document that goes there goes because it went at
        // the source.
        let monitor = |enabled: bool| doc! {"setParameter": 1, "ttlMonitorEnabled": enabled};
        ends.clusters.destination.run("admin", monitor(false)).await.unwrap();
        let key = doc! {"key": {"at": 1}, "name": "expiry", "expireAfterSeconds": 1};
        run_on(&source, doc! {"createIndexes": "expiry", "indexes": [key]}).await;
        fill(&source, 1_500).await;
        let mut job = ends.copy(&ends.all()).await;
        let expire = |from: i32| {
            let now = doc! {"$set": {"at": DateTime::now()}};
            docs.update_many(doc! {"_id": {"$gte": from, "$lt": from + 300}}, now)
        };
        expire(0).await.unwrap();
        job.reaches("follow").await;
        expire(600).await.unwrap();
        let gone = || docs.count_documents(doc! {"at": {"$exists": true}});
        let wait = Wait::until(Duration::from_millis(50), "the documents have expired");
        while gone().await.unwrap() > 0 {
            wait.again().await;
        }
        assert_eq!(docs.count_documents(doc! {}).await.unwrap(), 900);
        job.catches_up().await;
        let copies = documents(&ends.destination("expiry"));
        assert_eq!(copies.count_documents(doc! {}).await.unwrap(), 900);
        ends.assert_same("expiry").await;
        ends.clusters.destination.run("admin", monitor(true)).await.unwrap();
        job.stop().await;
    });
}

#[test]
fn a_dropped_collection_ends_the_copy_and_leaves_the_destination() {
    run(Between::ReplicaSets, "dropped", |ends| async move {
        fill(&ends.source("docs"), 500).await;
        let mut job = ends.copy(&request(&["dropped.docs"])).await;
        job.catches_up().await;
        run_on(&ends.source("docs"), doc! {"drop": "docs"}).await;
        let error = job.failure().await;
        let is_told = matches!(&error, Error::Disrupted { ns, what }
            if ns == "dropped.docs" && what == "dropped");
        assert!(is_told, "{error}");
        let kept = documents(&ends.destination("docs")).count_documents(doc! {}).await.unwrap();
        assert_eq!(kept, 500);
    });
}

#[test]
fn a_renamed_collection_ends_the_copy_and_leaves_the_destination() {
    run(Between::ReplicaSets, "renamed", |ends| async move {
        fill(&ends.source("docs"), 500).await;
        create(&ends.source("other"), doc! {}).await;
        let mut job = ends.copy(&request(&["renamed.docs"])).await;
        job.catches_up().await;
        let rename = doc! {"renameCollection": "renamed.docs", "to": "renamed.away"};
        ends.clusters.source.run("admin", rename).await.unwrap();
        let error = job.failure().await;
        assert_eq!(
            error.to_string(),
            "renamed.docs was renamed to renamed.away at the source while it was being copied"
        );
        let kept = documents(&ends.destination("docs")).count_documents(doc! {}).await.unwrap();
        assert_eq!(kept, 500);
    });
}

#[test]
fn a_collection_whose_name_another_takes_ends_the_copy() {
    run(Between::ReplicaSets, "replaced", |ends| async move {
        fill(&ends.source("docs"), 500).await;
        fill(&ends.source("other"), 10).await;
        let mut job = ends.copy(&request(&["replaced.docs"])).await;
        job.catches_up().await;
        let rename = doc! {
            "renameCollection": "replaced.other", "to": "replaced.docs", "dropTarget": true,
        };
        ends.clusters.source.run("admin", rename).await.unwrap();
        let error = job.failure().await;
        let is_told = matches!(&error, Error::Disrupted { ns, what }
            if ns == "replaced.docs" && what == "replaced by a rename of replaced.other");
        assert!(is_told, "{error}");
        let kept = documents(&ends.destination("docs")).count_documents(doc! {}).await.unwrap();
        assert_eq!(kept, 500);
    });
}

#[test]
fn a_collection_that_goes_with_its_database_ends_the_copy() {
    run(Between::ReplicaSets, "gone", |ends| async move {
        fill(&ends.source("docs"), 500).await;
        let mut job = ends.copy(&request(&["gone.docs"])).await;
        job.catches_up().await;
        run_on(&ends.source("docs"), doc! {"dropDatabase": 1}).await;
        let error = job.failure().await;
        let is_told = matches!(&error, Error::Disrupted { ns, what }
            if ns == "gone.docs" && what.starts_with("dropped"));
        assert!(is_told, "{error}");
        let kept = documents(&ends.destination("docs")).count_documents(doc! {}).await.unwrap();
        assert_eq!(kept, 500);
    });
}

#[test]
fn a_collection_dropped_under_the_bulk_ends_the_copy() {
    run(Between::ReplicaSets, "dropped_early", |ends| async move {
        fill(&ends.source("docs"), 3_000).await;
        let mut job = ends.copy(&request(&["dropped_early.docs"])).await;
        job.reaches("copy").await;
        run_on(&ends.source("docs"), doc! {"drop": "docs"}).await;
        let error = job.failure().await;
        assert!(matches!(error, Error::Disrupted { .. }), "{error}");
    });
}

#[test]
fn limits_hold_for_changes_too() {
    run(Between::ReplicaSets, "limited", |ends| async move {
        let source = ends.source("docs");
        fill(&source, 400).await;
        let limits = Limits { documents_s: Some(100), ..Limits::default() };
        let mut job = ends.copy_at(&ends.all(), limits).await;
        job.catches_up().await;
        let began = std::time::Instant::now();
        documents(&source).update_many(doc! {}, doc! {"$inc": {"n": 1}}).await.unwrap();
        job.catches_up().await;
        assert!(began.elapsed().as_secs() >= 2, "400 at 100 a second in {:?}", began.elapsed());
        ends.assert_same("docs").await;
        job.stop().await;
    });
}
