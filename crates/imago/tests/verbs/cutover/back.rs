//! The old cluster follows the new one, and clients go back.

use imago_testbed::pool::{replica_set, sharded};
use imago_testbed::{ClusterSpec, wait};

use crate::cutover::scene::{BLOCKED, Scene, application_writes};

async fn there_and_back(new: ClusterSpec) {
    let old = replica_set(1).with_auth();
    let scene = Scene::of(old, new.with_auth()).await;
    let load = scene.load();
    let job = scene.copied();
    let hook = scene.switch_to(&scene.new);
    let forward = scene.cutover(&job, &["--reverse", "--on-cutover", &hook]);
    let mut forward = scene.spawn(forward, "forward");
    wait::until_blocking("clients are on the new cluster", || {
        assert!(forward.is_running(), "it ended: {} {}", forward.printed(), forward.errors());
        forward.printed().contains("reverse_job")
    });
    assert_eq!(application_writes(&scene.old).await, Err(BLOCKED));
    scene.load_goes_on(100);

    let fails = scene.cutover(&job, &["--rollback", "--on-cutover", "exit 7"]);
    let (exit, failed) = scene.run(fails);
    assert_eq!(exit, 4, "{failed}");
    assert_eq!(application_writes(&scene.old).await, Err(BLOCKED), "it follows on, blocked");
    assert_eq!(application_writes(&scene.new).await, Ok(()), "clients are still there");

    let hook = scene.switch_to(&scene.old);
    let (exit, back) = scene.run(scene.cutover(&job, &["--rollback", "--on-cutover", &hook]));
    assert_eq!(exit, 0, "{back}");
    assert_ne!(back["job"], job.as_str());
    let (exit, there) = forward.ended();
    assert_eq!(exit, 0, "{}", forward.errors());
    assert_eq!(there["reverse_job"], back["job"]);
    assert_eq!(there["is_blocked"], true);
    scene.load_goes_on(50);
    scene.nothing_lost(load, &scene.old);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn going_back_to_a_replica_set_loses_nothing_of_either_period() {
    there_and_back(replica_set(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn going_back_from_shards_loses_nothing_of_either_period() {
    there_and_back(sharded(2)).await;
}
