//! Clients move to the copy.

use bson::doc;
use imago_testbed::wait;

use crate::cutover::scene::{BLOCKED, NS, Scene, administer, application_writes, json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_move_while_another_process_follows_and_nothing_is_lost() {
    let scene = Scene::start().await;
    let load = scene.load();
    let mut follower = scene.spawn(scene.between(&["copy", "--ns", NS]), "follower");
    let to = scene.new.admin_uri();
    let mut job = String::new();
    wait::until_blocking("the job is ready to be cut over", || {
        let jobs = json(&scene.imago(&["job", "list", "--to", &to]).output().unwrap());
        job = jobs[0]["id"].as_str().unwrap_or_default().to_owned();
        jobs[0]["progress"]["cutover_ready"] == true
    });
    // As `--lift-block` demands, it waits until nothing is under way to the old cluster: an operation
    // that began before the switch and came after the block would be acknowledged there, and lost.
    let hook = format!("{} && sleep 1", scene.switch_to(&scene.new).replace("exec ", ""));
    let cutover = scene.cutover(&job, &["--lift-block", "--on-cutover", &hook]);
    let (exit, done) = scene.run(cutover);
    assert_eq!(exit, 0, "{done}");
    assert_eq!(done["job"], job.as_str());
    assert!(done["write_block_ms"].as_u64() >= done["drain_ms"].as_u64(), "{done}");
    assert!(done["sampled"].as_u64() >= Some(200), "{done}");
    assert!(done["last_verified"].as_u64() > Some(0), "{done}");
    assert!(done["reverse_job"].is_null(), "{done}");
    assert_eq!(done["is_blocked"], false, "{done}");
    let (exit, handed_over) = follower.ended();
    assert_eq!((exit, handed_over["state"].as_str()), (0, Some("handed_over")));
    assert_eq!(application_writes(&scene.old).await, Ok(()));
    scene.load_goes_on(50);
    scene.nothing_lost(load, &scene.new);
    let (exit, again) = scene.run(scene.cutover(&job, &[]));
    assert_eq!((exit, again["error"]["code"].as_str()), (4, Some("job_final")), "{again}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_block_stays_until_it_is_lifted() {
    let scene = Scene::start().await;
    let load = scene.load();
    let job = scene.copied();
    let hook = scene.switch_to(&scene.new);
    let (exit, done) = scene.run(scene.cutover(&job, &["--on-cutover", &hook]));
    assert_eq!(exit, 0, "{done}");
    assert_eq!(done["is_blocked"], true, "{done}");
    assert_eq!(application_writes(&scene.old).await, Err(BLOCKED));
    let (exit, lifted) = scene.run(scene.cutover(&job, &["--unblock"]));
    assert_eq!(exit, 0, "{lifted}");
    assert_eq!(application_writes(&scene.old).await, Ok(()));
    assert_eq!(application_writes(&scene.new).await, Ok(()));
    not_this_jobs_block(&scene, &job).await;
    scene.load_goes_on(20);
    scene.nothing_lost(load, &scene.new);
}

/// No job lifts an administrator's block, not even one that has lifted its own.
async fn not_this_jobs_block(scene: &Scene, job: &str) {
    administer(&scene.old, "admin", doc! {"setUserWriteBlockMode": 1, "global": true}).await;
    let (exit, refused) = scene.run(scene.cutover(job, &["--unblock"]));
    assert_eq!(exit, 4, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("not this job's"), "{refused}");
    let (exit, unknown) = scene.run(scene.cutover("1m7ya6gyq-24np", &["--unblock", "--force"]));
    assert_eq!((exit, unknown["error"]["code"].as_str()), (2, Some("unknown_job")), "{unknown}");
    assert_eq!(application_writes(&scene.old).await, Err(BLOCKED), "who set it lifts it");
    let (exit, lifted) = scene.run(scene.cutover(job, &["--unblock", "--force"]));
    assert_eq!(exit, 0, "{lifted}");
    assert!(lifted["overridden"].as_str().unwrap().contains(job), "{lifted}");
    assert_eq!(application_writes(&scene.old).await, Ok(()));
}
