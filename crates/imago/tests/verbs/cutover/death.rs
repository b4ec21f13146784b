//! The process that cuts over dies while writes are blocked.

use std::time::Instant;

use bson::doc;
use imago_job::journal::{Journal, Update};
use imago_job::state::State;
use imago_mongo::server::endpoint::Endpoint;
use imago_mongo::state::journal::MongoJournal;

use imago_testbed::wait;

use crate::cutover::scene::{BLOCKED, Scene, administer, application_writes};
use crate::process::Process;

/// Kills a cut-over whose hook has begun; the block stays behind.
async fn dead_cutover(scene: &Scene, job: &str) {
    let begun = scene.folder().join("begun");
    let hook = format!("touch '{}'; exec sleep 5", scene.path("begun"));
    let cutover = scene.cutover(job, &["--on-cutover", &hook]);
    let mut cutover: Process = scene.spawn(cutover, "dies");
    wait::until_blocking("the hook runs", || begun.exists() || !cutover.is_running());
    assert!(begun.exists(), "{}", cutover.errors());
    cutover.kill();
    assert_eq!(application_writes(&scene.old).await, Err(BLOCKED));
}

/// It is unknown where the clients are, so going on, trying again and giving up are all unsafe. They
/// are refused; `status` and the refusals name `--clients-at`.
fn refuses_to_go_on(scene: &Scene, job: &str) {
    let kept = scene.new.admin_uri();
    let (exit, status) = scene.run(scene.imago(&["job", "status", job, "--to", &kept]));
    assert_eq!((exit, &status["hook_begun"]), (0, &true.into()), "{status}");
    assert!(status["next"].as_str().unwrap().contains("--clients-at"), "{status}");
    let resume = scene.between(&["job", "resume", job, "--until", "caught-up"]);
    let cancel = scene.imago(&["job", "cancel", job, "--to", &kept]);
    let unblock = scene.cutover(job, &["--unblock", "--force"]);
    for command in [resume, scene.cutover(job, &[]), cancel, unblock] {
        let (exit, refused) = scene.run(command);
        assert_eq!(exit, 4, "{refused}");
        assert!(refused["error"]["help"].as_str().unwrap().contains("--clients-at"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_death_with_the_clients_where_they_were_the_job_goes_on() {
    let scene = Scene::start().await;
    let load = scene.load();
    let job = scene.copied();
    dead_cutover(&scene, &job).await;
    let dead = Instant::now();
    refuses_to_go_on(&scene, &job);
    assert_eq!(application_writes(&scene.old).await, Err(BLOCKED));
    let blocked_ms = dead.elapsed().as_millis();
    let (exit, decided) = scene.run(scene.cutover(&job, &["--clients-at", "source"]));
    assert_eq!(exit, 0, "{decided}");
    assert_eq!(application_writes(&scene.old).await, Ok(()));
    scene.load_goes_on(50);
    let (exit, again) = scene.run(scene.cutover(&job, &["--clients-at", "source"]));
    assert_eq!(exit, 4, "{again}");
    let hook = scene.switch_to(&scene.new);
    let (exit, done) = scene.run(scene.cutover(&job, &["--on-cutover", &hook]));
    assert_eq!(exit, 0, "{done}");
    // Writes were blocked until the operator's decision, too.
    let told_ms = u128::from(done["write_block_ms"].as_u64().unwrap());
    assert!(told_ms >= blocked_ms, "{told_ms} of at least {blocked_ms} ms: {done}");
    scene.nothing_lost(load, &scene.new);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_death_with_the_clients_moved_nothing_of_the_old_cluster_is_applied() {
    let scene = Scene::start().await;
    let load = scene.load();
    let job = scene.copied();
    // The hook moves the clients, and its cut-over dies before it knows.
    let hook = scene.switch_to(&scene.new).replace("exec ", "");
    let hook = format!("{hook} && touch '{}'; exec sleep 5", scene.path("moved"));
    let mut cutover = scene.spawn(scene.cutover(&job, &["--on-cutover", &hook]), "dies");
    wait::until_blocking("the clients moved", || scene.folder().join("moved").exists());
    cutover.kill();
    scene.load_goes_on(100);
    refuses_to_go_on(&scene, &job);
    let (exit, decided) = scene.run(scene.cutover(&job, &["--clients-at", "destination"]));
    assert_eq!((exit, decided["state"].as_str()), (0, Some("done")), "{decided}");
    assert_eq!(application_writes(&scene.old).await, Err(BLOCKED), "no late operation gets in");
    scene.nothing_lost(load, &scene.new);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_job_leaves_no_block_of_its_own() {
    let scene = Scene::start().await;
    let load = scene.load();
    let job = scene.copied();
    // A cut-over that died between its block and its hook.
    let journal =
        MongoJournal::new(Endpoint::connect(&scene.new.admin_uri(), "destination").await.unwrap());
    let id = job.parse().unwrap();
    let claimed = journal.claim(&id, "db7.example.com/4711", 20_000).await.unwrap();
    let mut state = claimed.record.checkpoint.clone();
    state["job"]["block"] = serde_json::json!({"state": "may_stand", "since_ms": null});
    let update = Update { checkpoint: Some(state), ..Update::default() };
    journal.save(&id, claimed.epoch, &update).await.unwrap();
    journal.release(&id, claimed.epoch).await.unwrap();
    administer(&scene.old, "admin", doc! {"setUserWriteBlockMode": 1, "global": true}).await;

    let kept = scene.new.admin_uri();
    let (exit, status) = scene.run(scene.imago(&["job", "status", &job, "--to", &kept]));
    assert_eq!((exit, status["write_block"].as_str()), (0, Some("may_stand")), "{status}");
    let (exit, refused) = scene.run(scene.imago(&["job", "cancel", &job, "--to", &kept]));
    assert_eq!(exit, 4, "{refused}");
    assert!(refused["error"]["help"].as_str().unwrap().contains("--from"), "{refused}");
    assert_eq!(application_writes(&scene.old).await, Err(BLOCKED));
    let (exit, cancelled) = scene.run(scene.between(&["job", "cancel", &job]));
    assert_eq!((exit, cancelled["state"].as_str()), (0, Some("cancelled")), "{cancelled}");
    assert_eq!(application_writes(&scene.old).await, Ok(()));
    scene.load_goes_on(20);
    scene.nothing_lost(load, &scene.old);
}

/// Kills a cut-over as soon as its job is seen in this phase or a later one; returns whether it was in this phase.
async fn killed_in(scene: &Scene, job: &str, phase: &str) -> bool {
    let admin = Endpoint::connect(&scene.new.admin_uri(), "destination").await.unwrap();
    let (journal, id) = (MongoJournal::new(admin), job.parse().unwrap());
    let mut cutover = scene.spawn(scene.cutover(job, &["--on-cutover", "exec sleep 30"]), phase);
    let mut seen = String::new();
    wait::until(phase, async || {
        let state = journal.load(&id).await.unwrap().state;
        if let State::Running { phase: now } = state
            && (now == phase || now == "cut-over")
        {
            seen = now;
        }
        let is_there = !seen.is_empty();
        assert!(is_there || cutover.is_running(), "before {phase}: {}", cutover.errors());
        is_there
    })
    .await;
    cutover.kill();
    seen == phase
}

/// How often a phase may be over, on a busy machine, before the test sees it.
const MISSES_MAX: usize = 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cutover_killed_in_any_phase_leaves_a_job_that_goes_on() {
    let scene = Scene::start().await;
    let load = scene.load();
    let job = scene.copied();
    for phase in ["catch-up", "check", "cut-over"] {
        let mut was_seen = false;
        for _ in 0..MISSES_MAX {
            was_seen = killed_in(&scene, &job, phase).await;
            let resume = || scene.between(&["job", "resume", &job, "--until", "caught-up"]);
            let (mut exit, mut resumed) = scene.run(resume());
            let help = resumed["error"]["help"].as_str().unwrap_or_default();
            if exit == 4 && help.contains("--clients-at") {
                // So quick was the drain that the hook had begun.
                assert_eq!(scene.run(scene.cutover(&job, &["--clients-at", "source"])).0, 0);
                (exit, resumed) = scene.run(resume());
            }
            assert_eq!(exit, 0, "{phase}: {resumed}");
            assert_eq!(application_writes(&scene.old).await, Ok(()), "after {phase}");
            scene.load_goes_on(20);
            if was_seen {
                break;
            }
        }
        assert!(was_seen, "{phase} was over {MISSES_MAX} times before it was seen");
    }
    let hook = scene.switch_to(&scene.new);
    let (exit, done) = scene.run(scene.cutover(&job, &["--on-cutover", &hook]));
    assert_eq!(exit, 0, "{done}");
    scene.nothing_lost(load, &scene.new);
}
