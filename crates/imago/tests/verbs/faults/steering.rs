//! A running copy is steered from another process.

use std::time::{Duration, Instant};

use bson::doc;

use crate::faults::program::Program;
use crate::faults::stage::Stage;

/// Documents of the bulk that it has copied, by its next report.
async fn reported(copy: &mut Program) -> u64 {
    let report = copy.until("a report", |said| said["event"] == "progress").await;
    report["documents_done"].as_u64().unwrap_or(0)
}

#[tokio::test]
async fn a_copy_is_paced_paused_and_resumed_while_it_runs() {
    const PACE: u64 = 500;
    const REPORTS_MAX: u32 = 20;
    let stage = Stage::new(1).await;
    let subject = stage.collection("shop.steered", 12_000, 1_000).await;
    let mut copy = subject.copy(&["--documents-s", &PACE.to_string(), "--until", "caught-up"]);
    let job = copy.phase("copy").await;
    let began = Instant::now();
    copy.copied(4 * PACE).await;
    // Batches of a second pass whole, and reports lag: only far too fast and far too slow are wrong.
    let took = began.elapsed();
    assert!(took > Duration::from_secs(2), "{PACE} documents/s: {} in {took:?}", 4 * PACE);

    let asked = subject.steer("pause", &job, &[]).await;
    assert!(asked["owner"].is_string(), "{asked}");
    copy.until("a pause", |said| said["event"] == "paused").await;
    assert_eq!(subject.steer("status", &job, &[]).await["state"], "paused");
    // The batch that was under way still lands.
    let mut landed = reported(&mut copy).await;
    for _ in 0..REPORTS_MAX {
        let before = std::mem::replace(&mut landed, reported(&mut copy).await);
        if before == landed {
            break;
        }
    }
    for _ in 0..3 {
        assert_eq!(reported(&mut copy).await, landed, "it is paused");
    }
    assert!(copy.is_running(), "it waits");

    let resumed = subject.resume(&job).ended().await.with(0);
    assert_eq!(resumed.result["asked"], "resume", "{}", resumed.result);
    copy.until("going on", |said| said["event"] == "resumed").await;
    let began = Instant::now();
    copy.copied(landed + 4 * PACE).await;
    let took = began.elapsed();
    assert!(took > Duration::from_secs(2), "{PACE} documents/s: {} in {took:?}", 4 * PACE);
    subject.steer("set", &job, &["--documents-s", "none"]).await;
    let began = Instant::now();
    copy.ended().await.with(0);
    assert!(began.elapsed() < Duration::from_secs(60), "the limit was taken away");
    subject.prove(&job).await;
}

#[tokio::test]
async fn the_bulk_spares_clients_unless_set_otherwise() {
    let stage = Stage::new(1).await;
    let subject = stage.collection("shop.spared", 6_000, 1_000).await;
    // So slow that it waits for us.
    let slow = ["--documents-s", "300", "--max-slowdown", "2", "--until", "caught-up"];
    let mut copy = subject.copy(&slow);
    let job = copy.phase("copy").await;
    let gently = "the bulk goes at a pace that clients hardly notice";
    copy.until("clients are seen", |said| said["what"] == gently).await;
    let limits = &subject.steer("status", &job, &[]).await["limits"];
    assert_eq!((&limits["is_paced"], &limits["slowdown_percent"]), (&true.into(), &200.into()));
    let set = ["--pace", "full", "--max-slowdown", "1.5", "--documents-s", "none"];
    let limits = &subject.steer("set", &job, &set).await["limits"];
    assert_eq!((&limits["is_paced"], &limits["slowdown_percent"]), (&false.into(), &150.into()));
    copy.ended().await.with(0);
    subject.prove(&job).await;
}

#[tokio::test]
async fn a_cancelled_copy_leaves_the_source_untouched_and_never_runs_again() {
    let stage = Stage::new(1).await;
    let mut subject = stage.collection("shop.cancelled", 6_000, 1_000).await;
    let mut copy = subject.copy(&["--documents-s", "500"]);
    let job = copy.phase("copy").await;
    copy.copied(500).await;
    subject.steer("cancel", &job, &[]).await;
    let ended = copy.ended().await.with(1);
    assert!(ended.said.iter().any(|said| said["event"] == "cancelled"), "it says how it ended");
    let status = subject.steer("status", &job, &[]).await;
    assert_eq!((&status["state"], &status["is_worked_at"]), (&"cancelled".into(), &false.into()));
    let refused = subject.resume(&job).ended().await.with(4);
    assert_eq!(refused.error["code"], "job_final", "{}", refused.error);

    subject.load.stop().await;
    subject.load.check(&subject.from).await;
    let source = subject.source().await;
    let reply = source.run("admin", doc! {"listDatabases": 1, "nameOnly": true}).await.unwrap();
    let names = reply.get_array("databases").unwrap().iter();
    let names: Vec<&str> =
        names.map(|db| db.as_document().unwrap().get_str("name").unwrap()).collect();
    assert_eq!(names, ["admin", "config", "local", "shop"], "nothing of ours is at the source");
}
