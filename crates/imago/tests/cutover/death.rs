//! The process that cuts over dies while writes are blocked.

use crate::scene::{BLOCKED, Process, Scene, application_writes, wait_until};

/// Kills a cut-over whose hook has begun; the block stays behind.
async fn dead_cutover(scene: &Scene, job: &str) {
    let begun = scene.folder().join("begun");
    let hook = format!("touch '{}'; exec sleep 5", scene.path("begun"));
    let cutover = scene.cutover(job, &["--on-cutover", &hook]);
    let mut cutover: Process = scene.spawn(cutover, "dies");
    wait_until("the hook runs", || begun.exists() || !cutover.is_running());
    assert!(begun.exists(), "{}", cutover.errors());
    cutover.kill();
    assert_eq!(application_writes(&scene.old).await, Err(BLOCKED));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_resumes_the_job_lifts_the_block_of_a_dead_cutover() {
    let scene = Scene::start("dead").await;
    let load = scene.load();
    let job = scene.copied();
    dead_cutover(&scene, &job).await;
    let resume = scene.between(&["job", "resume", &job, "--until", "caught-up"]);
    let (exit, resumed) = scene.run(resume);
    assert_eq!(exit, 0, "{resumed}");
    assert_eq!(application_writes(&scene.old).await, Ok(()));
    scene.load_goes_on(50);
    let hook = scene.switch_to(&scene.new);
    let (exit, done) = scene.run(scene.cutover(&job, &["--on-cutover", &hook]));
    assert_eq!(exit, 0, "{done}");
    scene.nothing_lost(load, &scene.new);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_clients_wrote_at_the_new_cluster_is_not_overwritten_after_a_death_behind_the_hook() {
    let scene = Scene::start("moved").await;
    let load = scene.load();
    let job = scene.copied();
    // The hook moves the clients, and its cut-over dies before it knows.
    let hook = scene.switch_to(&scene.new).replace("exec ", "");
    let hook = format!("{hook} && touch '{}'; exec sleep 5", scene.path("moved"));
    let mut cutover = scene.spawn(scene.cutover(&job, &["--on-cutover", &hook]), "dies");
    wait_until("the clients moved", || scene.folder().join("moved").exists());
    cutover.kill();
    scene.load_goes_on(100);
    let unseen = ["cutover", &job, "--sample", "0", "--last-changes", "0"];
    let (exit, done) = scene.run(scene.between(&unseen));
    assert_eq!(exit, 0, "{done}");
    assert_eq!(application_writes(&scene.old).await, Ok(()));
    scene.nothing_lost(load, &scene.new);
}
