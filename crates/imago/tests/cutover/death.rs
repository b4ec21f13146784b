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

/// Nobody knows where the clients are: neither going on nor trying again is safe.
fn nobody_goes_on(scene: &Scene, job: &str) {
    let resume = scene.between(&["job", "resume", job, "--until", "caught-up"]);
    for command in [resume, scene.cutover(job, &[])] {
        let (exit, refused) = scene.run(command);
        assert_eq!(exit, 4, "{refused}");
        assert!(refused["error"]["help"].as_str().unwrap().contains("--clients-at"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_death_with_the_clients_where_they_were_the_job_goes_on() {
    let scene = Scene::start("dead").await;
    let load = scene.load();
    let job = scene.copied();
    dead_cutover(&scene, &job).await;
    nobody_goes_on(&scene, &job);
    assert_eq!(application_writes(&scene.old).await, Err(BLOCKED));
    let (exit, decided) = scene.run(scene.cutover(&job, &["--clients-at", "source"]));
    assert_eq!(exit, 0, "{decided}");
    assert_eq!(application_writes(&scene.old).await, Ok(()));
    scene.load_goes_on(50);
    let (exit, again) = scene.run(scene.cutover(&job, &["--clients-at", "source"]));
    assert_eq!(exit, 4, "{again}");
    let hook = scene.switch_to(&scene.new);
    let (exit, done) = scene.run(scene.cutover(&job, &["--on-cutover", &hook]));
    assert_eq!(exit, 0, "{done}");
    scene.nothing_lost(load, &scene.new);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_death_with_the_clients_moved_nothing_of_the_old_cluster_is_applied() {
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
    nobody_goes_on(&scene, &job);
    let (exit, decided) = scene.run(scene.cutover(&job, &["--clients-at", "destination"]));
    assert_eq!((exit, decided["state"].as_str()), (0, Some("done")), "{decided}");
    assert_eq!(application_writes(&scene.old).await, Err(BLOCKED), "no late operation gets in");
    scene.nothing_lost(load, &scene.new);
}
