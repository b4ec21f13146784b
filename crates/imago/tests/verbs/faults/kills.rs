//! The copying process is killed, in every phase, and another one goes on.
//!
//! A job whose owner was killed can be claimed only when its last write has certainly ended, twenty
//! seconds later: so several copies are killed at the same time, on one pair of clusters.

use imago_job::journal::Journal as _;
use imago_mongo::state::journal::MongoJournal;
use serde_json::Value;

use crate::faults::stage::{Stage, Subject};

/// The phases of a copy, in their order.
const PHASES: [&str; 4] = ["prepare", "copy", "index", "follow"];

async fn killed_in(stage: &Stage, phase: &str) {
    let subject = stage.collection(&format!("shop.killed_in_{phase}"), 4_000, 1_000).await;
    let mut copy = subject.copy(&["--documents-s", "4000"]);
    let job = copy.phase(phase).await;
    copy.kill().await;
    // On a quick disk it may have entered the next one before it died; what counts is what it kept.
    let journal = MongoJournal::new(subject.destination().await);
    let kept = journal.load(&job.parse().unwrap()).await.unwrap().state;
    let kept = kept.phase().expect("it was at work").to_owned();
    let resumed = subject.resume(&job).ended().await.with(0);
    let again = resumed.said.iter().find(|said| said["event"] == "phase");
    let again = again.unwrap()["to"].as_str().unwrap();
    // A write that was on its way when it was killed may be kept after this reading: one phase more.
    let at = PHASES.iter().position(|&known| known == kept).expect(&kept);
    let may_be = &PHASES[at..PHASES.len().min(at + 2)];
    assert!(may_be.contains(&again), "killed in {phase}, kept {kept}, it goes on in {again}");
    subject.prove(&job).await;
}

/// Killed while slices are half copied, and its successor too.
async fn killed_twice_in_the_bulk(stage: &Stage) {
    let subject = stage.collection("shop.killed_twice", 12_000, 3_000).await;
    let mut copy = subject.copy(&["--documents-s", "2000", "--slice-mb", "16"]);
    let job = copy.phase("copy").await;
    let first = copy.copied(2_000).await["documents_total"].as_u64();
    copy.kill().await;
    let mut resumed = subject.resume(&job);
    resumed.phase("copy").await;
    resumed.copied(2_000).await;
    resumed.kill().await;
    // The load has inserted and deleted since it filled the collection.
    assert!(first.is_some_and(|total| total >= 11_000), "{first:?}");
    subject.steer("set", &job, &["--documents-s", "none"]).await;
    let resumed = subject.resume(&job).ended().await.with(0);
    let is_told = |said: &Value| {
        said["event"] == "decision" && said.to_string().contains("the copy goes on from")
    };
    let told = resumed.said.iter().position(is_told).expect("it says where it goes on");
    let shown = resumed.said.iter().position(|said| said["event"] == "progress").unwrap();
    assert!(told < shown, "before progress that may be lower than what was shown");
    subject.prove(&job).await;
}

/// Killed while it applies changes, when much has been applied since the bulk.
async fn killed_following(stage: &Stage) {
    let subject = stage.collection("shop.killed_following", 3_000, 500).await;
    let mut copy = subject.copy(&[]);
    let job = copy.phase("follow").await;
    let seen = copy.progress()["changes_applied"].as_u64().unwrap_or(0);
    copy.applied(seen + 100).await;
    copy.kill().await;
    let journal = MongoJournal::new(subject.destination().await);
    let kept = journal.load(&job.parse().unwrap()).await.unwrap().progress.unwrap();
    let resumed = subject.resume(&job).ended().await.with(0);
    let shown = resumed.said.iter().find(|said| said["event"] == "progress").unwrap();
    let shown = shown["changes_applied"].as_u64().unwrap();
    assert!(shown >= kept.changes_applied, "{shown} is less than {}", kept.changes_applied);
    subject.prove(&job).await;
}

/// Frozen while it applies changes: when it is thawed, another process has taken its job over, and
/// it writes nothing any more.
async fn frozen_following(stage: &Stage) {
    let subject = stage.collection("shop.frozen", 3_000, 500).await;
    let mut copy = subject.copy(&[]);
    let job = copy.phase("follow").await;
    let seen = copy.progress()["changes_applied"].as_u64().unwrap_or(0);
    copy.applied(seen + 100).await;
    copy.freeze();
    subject.resume(&job).ended().await.with(0);
    copy.thaw();
    let ended = copy.ended().await;
    assert_eq!(ended.code, Some(5), "{}", ended.error);
    let message = ended.error["message"].as_str().unwrap_or_default();
    // If it slept so long that it may not write any more, it does not look whose the job is.
    let said = ["taken over", "new owner", "could not be saved"];
    assert!(said.iter().any(|words| message.contains(words)), "{}", ended.error);
    subject.prove(&job).await;
}

#[tokio::test]
async fn a_copy_killed_in_any_phase_is_resumed_and_loses_nothing() {
    let stage = Stage::new(1).await;
    tokio::join!(
        Box::pin(killed_in(&stage, "prepare")),
        Box::pin(killed_in(&stage, "copy")),
        Box::pin(killed_in(&stage, "index")),
        Box::pin(killed_twice_in_the_bulk(&stage)),
        Box::pin(killed_following(&stage)),
        Box::pin(frozen_following(&stage)),
    );
}

async fn terminate(subject: &Subject, at: &str) -> String {
    let mut copy = subject.copy(&["--documents-s", "3000"]);
    let job = copy.phase(at).await;
    match at {
        "copy" => copy.copied(1_000).await,
        _ => copy.applied(50).await,
    };
    copy.terminate();
    let ended = copy.ended().await.with(5);
    assert_eq!(ended.error["code"], "stopped", "{}", ended.error);
    assert!(ended.error["help"].as_str().unwrap().contains("imago job resume"), "{}", ended.error);
    assert!(ended.said.iter().any(|said| said["event"] == "interrupted"), "it says how it ended");
    job
}

#[tokio::test]
async fn a_copy_that_was_asked_to_end_is_resumed_at_once() {
    let stage = Stage::new(1).await;
    for at in ["copy", "follow"] {
        let subject = stage.collection(&format!("shop.terminated_in_{at}"), 6_000, 2_000).await;
        let job = terminate(&subject, at).await;
        let status = subject.steer("status", &job, &[]).await;
        assert_eq!(status["is_worked_at"], false, "{status}");
        subject.resume(&job).ended().await.with(0);
        subject.prove(&job).await;
    }
}
