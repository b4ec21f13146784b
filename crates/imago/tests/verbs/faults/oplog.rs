//! The source's oplog no longer reaches back to where the job is, or will not for long.

use std::time::{Duration, Instant};

use bson::{Timestamp, doc};
use imago_mongo::server::endpoint::Endpoint;
use imago_testbed::pool::replica_set;
use imago_testbed::{ClusterSpec, wait};
use serde_json::Value;

use crate::faults::stage::Stage;

/// The oldest time that the source's oplog holds.
async fn oldest(source: &Endpoint) -> Timestamp {
    let find = doc! {"find": "oplog.rs", "sort": {"$natural": 1}, "limit": 1};
    let reply = source.run("local", find).await.unwrap();
    let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    batch[0].as_document().unwrap().get_timestamp("ts").unwrap()
}

/// Writes a megabyte that the job has nothing to do with.
async fn fill(source: &Endpoint) {
    let document = doc! {"filler": "x".repeat(500_000)};
    let insert = doc! {"insert": "filler", "documents": [document.clone(), document]};
    source.run("elsewhere", insert).await.unwrap();
}

/// Writes until the oplog has lost everything before now.
async fn roll_over(source: &Endpoint) {
    let before = source.cluster_time().await.unwrap();
    // The oplog is cut once a second.
    let poll = Duration::from_millis(100);
    wait::until_with(poll, "the oplog no longer reaches back to before", async || {
        fill(source).await;
        oldest(source).await > before
    })
    .await;
}

#[tokio::test]
async fn a_resume_behind_the_oplog_says_so_and_fails() {
    let source = ClusterSpec { oplog_mb: Some(8), ..replica_set(1) };
    let stage = Stage::of(source, replica_set(1)).await;
    let mut subject = stage.collection("shop.rolled", 500, 500).await;
    let ended = subject.copy(&["--until", "caught-up"]).ended().await.with(0);
    let job = ended.result["job"].as_str().unwrap().to_owned();
    roll_over(&subject.source().await).await;

    let resumed = subject.resume(&job).ended().await.with(1);
    assert_eq!(resumed.error["code"], "oplog_rolled_over", "{}", resumed.error);
    let message = resumed.error["message"].as_str().unwrap();
    assert!(message.contains("no longer reaches back to"), "{message}");
    assert!(resumed.error["help"].as_str().unwrap().contains("a new one"), "{}", resumed.error);
    let status = subject.steer("status", &job, &[]).await;
    assert!(status["blocked_by"].as_str().unwrap().contains("oplog"), "{status}");
    assert_eq!(status["is_worked_at"], false, "{status}");
    subject.load.stop().await;
}

fn is_warning(said: &Value) -> bool {
    said["event"] == "warning" && said["code"] == "oplog_rolls_over"
}

#[tokio::test]
async fn a_job_is_warned_of_when_the_oplog_overtakes_it_and_not_before() {
    let source = ClusterSpec { oplog_mb: Some(8), ..replica_set(1) };
    let stage = Stage::of(source, replica_set(1)).await;
    let mut subject = stage.collection("shop.chased", 500, 500).await;
    let mut copy = subject.copy(&[]);
    let job = copy.phase("follow").await;
    let source = subject.source().await;
    // The oplog is full and holds some seconds, and the job keeps up with it, for long enough that
    // it is looked at twice.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(31) {
        fill(&source).await;
        wait::lasts(Duration::from_secs(1)).await;
    }
    assert!(copy.heard(is_warning).is_none(), "it keeps up: {:?}", copy.heard(is_warning));
    subject.steer("pause", &job, &[]).await;
    roll_over(&source).await;
    copy.until("a warning", is_warning).await;
    subject.load.stop().await;
}
