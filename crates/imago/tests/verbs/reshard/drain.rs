//! The last changes take too long.

use bson::doc;

use crate::reshard::scene::{BLOCKED, Scene};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "six drains take two minutes, which make test-long has"]
async fn a_drain_that_misses_its_deadline_lifts_the_block_and_a_longer_one_succeeds() {
    let scene = Scene::start(2).await;
    let load = scene.load().await;
    let plan = scene.usual_plan().await;
    let mut at_work = scene.reshard(&plan, &["--max-block-ms", "1"]);
    let job = at_work.phase("prepare");
    let misses = |said: &serde_json::Value| said["code"] == "drain_too_long";
    at_work.until("the deadline is missed", misses);
    scene.load_goes_on(50).await;
    let (exit, failed) = at_work.ended();
    assert_eq!(exit, 4, "{failed}");
    assert!(failed.to_string().contains("could not be drained within 1 ms"), "{failed}");
    assert_eq!(at_work.said().iter().filter(|said| misses(said)).count(), 5);
    assert_eq!(scene.application_writes().await, Ok(()));

    // Another's block may go at any time, and stays if it is not imago's to lift.
    let block = |is_on| doc! {"setUserWriteBlockMode": 1, "global": is_on};
    scene.run("admin", block(true)).await;
    let (exit, refused) = scene.resume(&job, &[]).ended();
    assert_eq!(exit, 4, "{refused}");
    assert!(refused.to_string().contains("blocked already"), "{refused}");
    assert_eq!(scene.application_writes().await, Err(BLOCKED));
    scene.run("admin", block(false)).await;

    let (exit, done) = scene.resume(&job, &["--max-block-ms", "20000"]).ended();
    assert_eq!(exit, 0, "{done}");
    scene.is_reshaped(load, &plan).await;
}
