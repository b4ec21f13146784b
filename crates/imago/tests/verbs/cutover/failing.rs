//! A cut-over that fails lifts its block, and the job goes on.

use imago_testbed::process::{Liveness, ProcessId};
use imago_testbed::wait;

use crate::cutover::scene::{Scene, application_writes};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_hook_that_fails_the_job_can_go_on_and_be_cut_over() {
    let scene = Scene::start().await;
    let load = scene.load();
    let job = scene.copied();
    let (exit, failed) = scene.run(scene.cutover(&job, &["--on-cutover", "exit 7"]));
    assert_eq!(exit, 4, "{failed}");
    assert!(failed["error"]["message"].as_str().unwrap().contains("hook"), "{failed}");
    assert_eq!(application_writes(&scene.old).await, Ok(()));
    scene.load_goes_on(50);

    // A child of the hook that acts three seconds later, unless it ends with the hook.
    let (acts, child) = (scene.path("late"), scene.path("child"));
    let late = format!("(sleep 3; touch '{acts}') & echo $! > '{child}'; sleep 60");
    let (exit, slow) =
        scene.run(scene.cutover(&job, &["--max-block-ms", "1500", "--on-cutover", &late]));
    assert_eq!(exit, 4, "{slow}");
    assert!(slow["error"]["message"].as_str().unwrap().contains("1500 ms"), "{slow}");
    assert_eq!(application_writes(&scene.old).await, Ok(()));
    scene.load_goes_on(50);

    let (exit, none) = scene.run(scene.cutover(&job, &["--max-block-ms", "1"]));
    assert_eq!(exit, 4, "{none}");
    assert_eq!(application_writes(&scene.old).await, Ok(()));

    let child = std::fs::read_to_string(child).unwrap().trim().parse().unwrap();
    let is_gone = || ProcessId::of(child).is_none_or(|it| it.liveness() == Liveness::Gone);
    wait::until_blocking("the hook's child has ended", is_gone);
    let late = scene.folder().join("late");
    assert!(!late.exists(), "what the hook started ended with it: nothing of it acts later");

    let resume = scene.between(&["job", "resume", &job, "--until", "caught-up"]);
    let (exit, resumed) = scene.run(resume);
    assert_eq!((exit, resumed["state"].as_str()), (0, Some("caught_up")), "{resumed}");
    let hook = scene.switch_to(&scene.new);
    let (exit, done) = scene.run(scene.cutover(&job, &["--on-cutover", &hook]));
    assert_eq!(exit, 0, "{done}");
    scene.load_goes_on(20);
    scene.nothing_lost(load, &scene.new);
}
