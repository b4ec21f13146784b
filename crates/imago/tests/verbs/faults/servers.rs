//! Servers step down, die, freeze and vanish behind the network while a copy runs.

use std::time::Duration;

use imago_testbed::pool::replica_set;
use imago_testbed::{Cluster, ClusterSpec, Relay, wait};
use serde_json::Value;

use crate::faults::program::Program;
use crate::faults::stage::Stage;

/// Another primary by an orderly step-down, then another one by a kill.
async fn unseat(cluster: &Cluster) {
    let set = cluster.name();
    cluster.step_down(set).await.unwrap();
    let primary = cluster.primary(set).await.unwrap();
    cluster.kill(&primary).unwrap();
    cluster.primary_other_than(set, &primary).await.unwrap();
    cluster.restart(&primary).await.unwrap();
}

/// It must go on applying changes from here.
async fn goes_on(copy: &mut Program) {
    let seen = copy.progress()["changes_applied"].as_u64().unwrap_or(0);
    copy.applied(seen + 100).await;
}

#[tokio::test]
async fn elections_on_both_sides_in_every_phase_cost_time_only() {
    let stage = Stage::new(3).await;
    let subject = stage.collection("shop.elections", 12_000, 1_000).await;
    let mut copy = subject.copy(&["--documents-s", "400"]);
    let job = copy.phase("copy").await;
    copy.copied(400).await;
    tokio::join!(unseat(&stage.source), unseat(&stage.destination));
    assert!(copy.progress()["phase"] == "copy", "the bulk lasted: {}", copy.progress());
    subject.steer("set", &job, &["--documents-s", "none"]).await;
    copy.phase("follow").await;
    goes_on(&mut copy).await;
    tokio::join!(unseat(&stage.source), unseat(&stage.destination));
    goes_on(&mut copy).await;
    copy.terminate();
    copy.ended().await.with(5);
    subject.prove(&job).await;
}

#[tokio::test]
#[ignore = "two minutes of stalls are waited for by make test-long"]
async fn a_frozen_destination_and_a_cut_source_are_waited_for() {
    let stage = Stage::new(1).await;
    let mut subject = stage.collection("shop.frozen", 8_000, 1_000).await;
    let node = |cluster: &Cluster| cluster.nodes()[0].clone();
    let (source, destination) = (node(&stage.source), node(&stage.destination));
    let relay = Relay::start(source.port).unwrap();
    subject.from = format!("mongodb://{}/?directConnection=true", relay.address());
    let mut copy = subject.copy(&["--documents-s", "500"]);
    let job = copy.phase("copy").await;
    for phase in ["copy", "follow"] {
        if phase == "follow" {
            subject.steer("set", &job, &["--documents-s", "none"]).await;
            copy.phase(phase).await;
        }
        stage.destination.stop(&destination.name).unwrap();
        copy.until("the destination is named", |said| is_silent(said, "destination")).await;
        if phase == "follow" {
            // Longer than a silent owner's job may not be taken over by another process.
            wait::lasts(Duration::from_secs(24)).await;
        }
        stage.destination.resume(&destination.name).unwrap();
        relay.cut();
        copy.until("the source is named", |said| is_silent(said, "source")).await;
        if phase == "follow" {
            let may_not = |said: &Value| said["cutover_ready"] == false;
            let said = copy.until("it may not be cut over", may_not).await;
            assert!(said["cutover_obstacles"].to_string().contains("not answered"), "{said}");
        }
        relay.restore();
        goes_on_in(&mut copy, phase).await;
    }
    // Asked once, it ends although the server that has its record never answers.
    stage.destination.stop(&destination.name).unwrap();
    copy.terminate();
    copy.ended().await.with(5);
    stage.destination.resume(&destination.name).unwrap();
    subject.prove(&job).await;
}

/// True if it reports that a cluster does not answer.
fn is_silent(said: &Value, role: &str) -> bool {
    let message = said["message"].as_str().unwrap_or_default();
    said["code"] == "no_answer" && message.contains(&format!("the {role} "))
}

async fn goes_on_in(copy: &mut Program, phase: &str) {
    if phase == "follow" {
        return goes_on(copy).await;
    }
    let done = copy.progress()["documents_done"].as_u64().unwrap_or(0);
    copy.copied(done + 500).await;
}

/// Commands sent to a frozen server are never answered. Its successor answers the next ones; but a
/// process that could not give a sign of life for too long must end, in a way that can be resumed.
#[tokio::test]
async fn a_primary_that_freezes_for_good_does_not_hang_the_job() {
    let destination = ClusterSpec { election_timeout_ms: 2_000, ..replica_set(3) };
    let stage = Stage::of(replica_set(1), destination).await;
    let subject = stage.collection("shop.icy", 8_000, 1_000).await;
    let mut copy = subject.copy(&["--documents-s", "500", "--until", "caught-up"]);
    let job = copy.phase("copy").await;
    copy.copied(500).await;
    let set = stage.destination.name();
    let primary = stage.destination.primary(set).await.unwrap();
    stage.destination.stop(&primary).unwrap();
    stage.destination.primary_other_than(set, &primary).await.unwrap();
    let ended = copy.ended().await;
    assert!(matches!(ended.code, Some(0 | 5)), "{:?}: {}", ended.code, ended.error);
    subject.steer("set", &job, &["--documents-s", "none"]).await;
    // The frozen member is still among those that are asked.
    subject.resume(&job).ended().await.with(0);
    stage.destination.resume(&primary).unwrap();
    stage.destination.settled(set).await.unwrap();
    subject.prove(&job).await;
}

#[tokio::test]
#[ignore = "members that freeze for long are waited for by make test-long"]
async fn two_of_three_members_may_freeze_for_45_s() {
    let stage = Stage::new(3).await;
    let subject = stage.collection("shop.majority", 3_000, 500).await;
    let mut copy = subject.copy(&[]);
    let job = copy.phase("follow").await;
    for (cluster, role) in [(&stage.source, "source"), (&stage.destination, "destination")] {
        goes_on(&mut copy).await;
        let primary = cluster.primary(cluster.name()).await.unwrap();
        let nodes = cluster.nodes();
        let other = nodes.iter().find(|node| node.name != primary).unwrap();
        for node in [&primary, &other.name] {
            cluster.stop(node).unwrap();
        }
        copy.until(&format!("the {role} is named"), |said| is_silent(said, role)).await;
        wait::lasts(Duration::from_secs(45)).await;
        for node in [&primary, &other.name] {
            cluster.resume(node).unwrap();
        }
        cluster.settled(cluster.name()).await.unwrap();
        goes_on(&mut copy).await;
    }
    copy.terminate();
    copy.ended().await.with(5);
    subject.prove(&job).await;
}
