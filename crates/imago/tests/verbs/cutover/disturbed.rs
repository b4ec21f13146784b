//! Primaries, or majorities, go away during a cut-over.

use std::path::Path;
use std::time::{Duration, Instant};

use bson::doc;
use imago_mongo::server::endpoint::Endpoint;
use imago_testbed::pool::replica_set;
use imago_testbed::{Cluster, wait};

use crate::cutover::scene::{BLOCKED, Scene, application_writes};
use crate::process::Process;

/// Either it was cut over, or it said why not, the block is gone, and a second try succeeds.
async fn cut_over_in_the_end(scene: &Scene, job: &str, first: (i32, serde_json::Value)) {
    let (exit, ended) = first;
    if exit != 0 {
        assert!(matches!(exit, 1 | 4 | 5), "{exit} {ended}");
        assert!(ended["error"]["message"].is_string(), "{ended}");
        assert_eq!(application_writes(&scene.old).await, Ok(()), "{ended}");
        let hook = scene.switch_to(&scene.new);
        let (exit, done) = scene.run(scene.cutover(job, &["--on-cutover", &hook]));
        assert_eq!(exit, 0, "first {ended}, then {done}");
    }
    assert_eq!(application_writes(&scene.new).await, Ok(()));
}

/// A cut-over whose hook, which waits a moment and then moves the clients, has begun.
fn in_its_hook(scene: &Scene, job: &str) -> Process {
    let hook = format!("touch '{}'; sleep 1; {}", scene.path("begun"), scene.switch_to(&scene.new));
    let mut cutover = scene.spawn(scene.cutover(job, &["--on-cutover", &hook]), "cutover");
    wait::until_blocking("the hook runs", || {
        scene.folder().join("begun").exists() || !cutover.is_running()
    });
    cutover
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sources_primary_may_step_down_during_the_cut_over() {
    let old = replica_set(3).with_auth();
    let new = replica_set(1).with_auth();
    let scene = Scene::of(old, new).await;
    let load = scene.load();
    let job = scene.copied();
    // Operations that were under way to the old cluster when the hook switched come to its new
    // primary later: the block, which stays, refuses them.
    let mut cutover = in_its_hook(&scene, &job);
    scene.old.step_down(scene.old.name()).await.unwrap();
    cut_over_in_the_end(&scene, &job, cutover.ended()).await;
    scene.load_goes_on(20);
    scene.nothing_lost(load, &scene.new);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_destinations_primary_may_die_during_the_cut_over() {
    let old = replica_set(1).with_auth();
    let new = replica_set(3).with_auth();
    let scene = Scene::of(old, new).await;
    let load = scene.load();
    let job = scene.copied();
    let mut cutover = in_its_hook(&scene, &job);
    let primary = scene.new.primary(scene.new.name()).await.unwrap();
    scene.new.kill(&primary).unwrap();
    cut_over_in_the_end(&scene, &job, cutover.ended()).await;
    scene.load_goes_on(20);
    scene.nothing_lost(load, &scene.new);
}

/// Stops two of three members where they are, the primary among them; their names.
async fn stop_a_majority(cluster: &Cluster) -> [String; 2] {
    let primary = cluster.primary(cluster.name()).await.unwrap();
    let nodes = cluster.nodes();
    let other = nodes.iter().find(|node| node.name != primary).unwrap();
    let both = [primary, other.name.clone()];
    both.iter().for_each(|node| cluster.stop(node).unwrap());
    both
}

/// Lets stopped members go on, and waits until they have a primary.
async fn go_on(cluster: &Cluster, stopped: &[String; 2]) {
    stopped.iter().for_each(|node| cluster.resume(node).unwrap());
    cluster.settled(cluster.name()).await.unwrap();
}

/// Two of three members stop where they are, the primary among them, and go on a while later. `then` is called when they
/// have stopped.
async fn lose_the_majority(cluster: &Cluster, then: impl FnOnce()) {
    let stopped = stop_a_majority(cluster).await;
    then();
    wait::lasts(Duration::from_secs(6)).await;
    go_on(cluster, &stopped).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_that_is_lost_while_the_hook_runs_is_waited_for() {
    let scene = Scene::of(replica_set(3).with_auth(), replica_set(3).with_auth()).await;
    let load = scene.load();
    let job = scene.copied();
    // A hook that fails: the block is lifted as soon as the source has its majority again.
    let hook = format!("touch '{}'; sleep 1; exit 7", scene.path("failing"));
    let mut cutover = scene.spawn(scene.cutover(&job, &["--on-cutover", &hook]), "fails");
    wait::until("the hook runs", async || {
        scene.folder().join("failing").exists() || !cutover.is_running()
    })
    .await;
    lose_the_majority(&scene.old, || ()).await;
    let (exit, failed) = cutover.ended();
    assert_eq!(exit, 4, "{failed}");
    assert_eq!(application_writes(&scene.old).await, Ok(()), "{failed}");
    // One that moves the clients: their cluster is recorded once it has its majority again.
    let mut cutover = in_its_hook(&scene, &job);
    lose_the_majority(&scene.new, || ()).await;
    let (exit, done) = cutover.ended();
    assert_eq!(exit, 0, "{done}");
    scene.load_goes_on(20);
    scene.nothing_lost(load, &scene.new);
}

/// A cut-over that has blocked the writes at the source and was stopped before its hook, which fails unless the file `go`
/// is there.
async fn stopped_before_its_hook(scene: &Scene, job: &str) -> Process {
    let app = Endpoint::connect(&scene.old.uri(), "source").await.unwrap();
    let note = doc! {"insert": "notes", "documents": [{"text": "written"}]};
    let (begun, go) = (scene.path("begun"), scene.path("go"));
    let hook =
        format!("touch '{begun}'; test -e '{go}' || exit 7; {}", scene.switch_to(&scene.new));
    for attempt in 0..5 {
        let _ = std::fs::remove_file(&begun);
        let cutover = scene.cutover(job, &["--on-cutover", &hook]);
        let mut cutover = scene.spawn(cutover, &format!("attempt-{attempt}"));
        while cutover.is_running() {
            let reply = app.run("other", note.clone()).await;
            if reply.is_err() || reply.is_ok_and(|reply| reply.contains_key("writeErrors")) {
                break;
            }
        }
        cutover.freeze();
        if cutover.is_running() && !Path::new(&begun).exists() {
            std::fs::write(&go, "").unwrap();
            return cutover;
        }
        // It was too quick: its hook has failed, and it lifts the block.
        cutover.thaw();
        assert_eq!(cutover.ended().0, 4, "{}", cutover.errors());
    }
    panic!("no cut-over was met between its block and its hook");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "six servers are stopped in make test-long"]
async fn a_source_that_loses_its_majority_between_the_block_and_the_hook_is_waited_for() {
    let scene = Scene::of(replica_set(3).with_auth(), replica_set(3).with_auth()).await;
    let load = scene.load();
    let job = scene.copied();
    let mut cutover = stopped_before_its_hook(&scene, &job).await;
    lose_the_majority(&scene.old, || cutover.thaw()).await;
    let ended = cutover.ended();
    cut_over_in_the_end(&scene, &job, ended).await;
    scene.load_goes_on(20);
    scene.nothing_lost(load, &scene.new);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_destination_that_loses_its_majority_before_the_hook_blocks_no_writes_for_long() {
    let scene = Scene::of(replica_set(3).with_auth(), replica_set(3).with_auth()).await;
    let load = scene.load();
    let job = scene.copied();
    let mut cutover = stopped_before_its_hook(&scene, &job).await;
    let stopped = stop_a_majority(&scene.new).await;
    cutover.thaw();
    let lost = Instant::now();
    // The destination is still away when the source admits writes again.
    wait::until("the source admits writes", async || {
        application_writes(&scene.old).await == Ok(())
    })
    .await;
    assert!(lost.elapsed() < Duration::from_secs(12), "{:?}", lost.elapsed());
    scene.load_goes_on(20);
    assert!(cutover.is_running(), "its end is not recorded yet: {}", cutover.errors());
    go_on(&scene.new, &stopped).await;
    let (exit, ended) = cutover.ended();
    assert_eq!(exit, 4, "{ended}");
    let message = ended["error"]["message"].as_str().unwrap();
    assert!(message.contains("has acknowledged no write for"), "{ended}");
    let hook = scene.switch_to(&scene.new);
    let (exit, done) = scene.run(scene.cutover(&job, &["--on-cutover", &hook]));
    assert_eq!(exit, 0, "{done}");
    scene.load_goes_on(20);
    scene.nothing_lost(load, &scene.new);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a lift is given up after six minutes, which make test-long waits for"]
async fn a_block_that_a_lost_majority_keeps_is_reported_with_its_remedy() {
    let scene = Scene::of(replica_set(3).with_auth(), replica_set(1).with_auth()).await;
    let load = scene.load();
    let job = scene.copied();
    let hook = format!("touch '{}'; sleep 1; exit 7", scene.path("failing"));
    let mut failing = scene.telling(&["cutover", &job, "--on-cutover", &hook]);
    failing.args(["--from", &scene.old.admin_uri(), "--to", &scene.new.admin_uri()]);
    let mut cutover = scene.spawn(failing, "fails");
    wait::until("the hook runs", async || {
        scene.folder().join("failing").exists() || !cutover.is_running()
    })
    .await;
    let stopped = stop_a_majority(&scene.old).await;
    let lost = Instant::now();
    while cutover.is_running() && lost.elapsed() < Duration::from_secs(480) {
        wait::lasts(Duration::from_secs(1)).await;
    }
    let (exit, ended) = cutover.ended();
    assert_eq!(exit, 4, "{ended}");
    assert!(ended["error"]["message"].as_str().unwrap().contains("the hook failed"), "{ended}");
    let left = cutover.said().into_iter().find(|said| said["code"] == "block_may_stand");
    let left = left.unwrap_or_else(|| panic!("{}", cutover.errors()));
    assert!(left["help"].as_str().unwrap().contains("--unblock"), "{left}");
    go_on(&scene.old, &stopped).await;
    // The primary that was stopped may read the request that lifts the block now.
    let (before, is_known) = (application_writes(&scene.old).await, [Ok(()), Err(BLOCKED)]);
    assert!(is_known.contains(&before), "{before:?}");
    let status = scene.imago(&["job", "status", &job, "--to", &scene.new.admin_uri()]);
    let (exit, status) = scene.run(status);
    assert_eq!((exit, status["write_block"].as_str()), (0, Some("may_stand")), "{status}");
    let (exit, unblocked) = scene.run(scene.cutover(&job, &["--unblock"]));
    assert_eq!(exit, 0, "{unblocked}");
    assert_eq!(application_writes(&scene.old).await, Ok(()));
    let hook = scene.switch_to(&scene.new);
    let (exit, done) = scene.run(scene.cutover(&job, &["--on-cutover", &hook]));
    assert_eq!(exit, 0, "{done}");
    scene.load_goes_on(20);
    scene.nothing_lost(load, &scene.new);
}
