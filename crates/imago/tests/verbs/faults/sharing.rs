//! Several processes share a bulk, and one of them is killed.

use imago_testbed::wait;

use crate::faults::program::Program;
use crate::faults::stage::{Stage, Subject};

/// Waits until a slice is leased by a process whose name there begins so.
async fn leased_by(subject: &Subject, job: &str, prefix: &str) {
    let held = |slice: &bson::Document| {
        slice.get_str("state").is_ok_and(|state| state == "leased")
            && slice.get_str("owner").is_ok_and(|owner| owner.starts_with(prefix))
    };
    wait::until(&format!("a slice is leased by {prefix}"), async || {
        subject.slices(job).await.iter().any(held)
    })
    .await;
}

/// A copy of four slices at a pace at which they last, with a helper, each with one slice in hand.
async fn shared(subject: &Subject) -> (String, Program, Program) {
    let mut lead = subject.copy(&["--workers", "1", "--documents-s", "400", "--slice-mb", "14"]);
    let job = lead.phase("copy").await;
    let helper = subject.work(&job);
    leased_by(subject, &job, &format!("{job}/")).await;
    leased_by(subject, &job, "worker/").await;
    assert!(subject.slices(&job).await.len() >= 3, "there is something to share");
    // Each is in the middle of its slice.
    lead.copied(200).await;
    (job, lead, helper)
}

async fn helper_killed(stage: &Stage) {
    let subject = stage.collection("shop.helper_killed", 7_000, 8_000).await;
    let (job, mut lead, helper) = shared(&subject).await;
    helper.kill().await;
    subject.steer("set", &job, &["--documents-s", "none"]).await;
    lead.phase("follow").await;
    lead.terminate();
    lead.ended().await.with(5);
    let taken_over = |slice: &bson::Document| slice.get_i32("attempt").is_ok_and(|n| n > 1);
    assert!(
        subject.slices(&job).await.iter().any(taken_over),
        "the helper's slice was leased anew"
    );
    subject.prove(&job).await;
}

async fn lead_killed(stage: &Stage) {
    let subject = stage.collection("shop.lead_killed", 7_000, 8_000).await;
    let (job, lead, helper) = shared(&subject).await;
    lead.kill().await;
    subject.steer("set", &job, &["--documents-s", "none"]).await;
    subject.resume(&job).ended().await.with(0);
    let helped = helper.ended().await.with(0);
    assert!(helped.result["documents"].as_u64().is_some_and(|n| n > 0), "{}", helped.result);
    subject.prove(&job).await;
}

#[tokio::test]
async fn the_others_finish_what_a_killed_process_was_copying() {
    let stage = Stage::new(1).await;
    tokio::join!(Box::pin(helper_killed(&stage)), Box::pin(lead_killed(&stage)));
}
