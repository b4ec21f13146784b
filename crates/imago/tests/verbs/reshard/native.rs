//! The other engine: the server's own resharding, with Imago's placement.

use bson::{Bson, doc};
use imago_mongo::reshard::plan::Plan;
use imago_testbed::{Role, wait};

use crate::process::Process;
use crate::reshard::scene::{NS, Scene};

const DURATION: &str = "reshardingMinimumOperationDurationMillis";

/// A cluster whose own resharding takes so long at least.
async fn taking(shards: u32, ms: i64) -> Scene {
    let scene = Scene::start(shards).await;
    // The testbed's own setting.
    scene.cluster.undo(Role::Config, doc! {"setParameter": 1, DURATION: 0_i64});
    let nodes = scene.cluster.nodes();
    let config = nodes.iter().find(|node| node.role == Role::Config).unwrap();
    let set = doc! {"setParameter": 1, DURATION: ms};
    scene.direct(config.port).await.run("admin", set).await.unwrap();
    scene
}

fn begin(scene: &Scene, plan: &Plan) -> Process {
    scene.reshard(plan, &["--engine", "native"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_reshards_under_load_as_planned_and_keeps_no_zone() {
    let scene = taking(3, 3_000).await;
    let load = scene.load().await;
    let plan = scene.usual_plan().await;
    let mut at_work = begin(&scene, &plan);
    let (exit, done) = at_work.ended();
    assert_eq!((exit, done["engine"].as_str()), (0, Some("native")), "{done}");
    let said = at_work.said();
    assert!(said.iter().any(|said| said["code"] == "server_minimum"), "{}", at_work.errors());
    let copied = said.iter().filter_map(|said| said["documents_done"].as_u64()).max();
    assert!(copied > Some(2_400), "{copied:?}: {}", at_work.errors());
    scene.is_reshaped(load, &plan).await;
    // It is known what it made: the way back knows the collection.
    let job = done["job"].as_str().unwrap();
    let mut back = scene.revert(job, &[]);
    let (exit, done) = back.ended();
    assert_eq!(exit, 0, "{done}");
    assert!(!back.said().iter().any(|said| said["code"] == "known_by_key"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resharding_whose_watcher_dies_goes_on_and_is_found_by_the_next() {
    let scene = taking(2, 8_000).await;
    let load = scene.load().await;
    let plan = scene.usual_plan().await;
    let mut at_work = begin(&scene, &plan);
    let job = at_work.phase("prepare");
    at_work.kill();
    scene.bury(&job).await;
    let mut at_work = scene.resume(&job, &[]);
    at_work.phase("execute");
    at_work.kill();
    let before = scene.find("config", "reshardingOperations", doc! {}).await;
    assert_eq!(before.len(), 1, "it is under way");
    scene.bury(&job).await;
    let mut resume = scene.resume(&job, &[]);
    let (exit, done) = resume.ended();
    assert_eq!(exit, 0, "{done}");
    let made = scene.collection().await;
    assert_eq!(made.get("uuid"), before[0].get("_id"), "it is the same operation");
    scene.is_reshaped(load, &plan).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resharding_that_ended_unwatched_is_tidied_up() {
    let scene = taking(2, 3_000).await;
    let load = scene.load().await;
    let plan = scene.usual_plan().await;
    let mut at_work = begin(&scene, &plan);
    let job = at_work.phase("execute");
    at_work.kill();
    wait::until("the server is done", async || {
        scene.find("config", "reshardingOperations", doc! {}).await.is_empty()
    })
    .await;
    scene.bury(&job).await;
    // A job that is done can no longer be cancelled.
    let uri = scene.cluster.admin_uri();
    let (exit, refused) = scene.imago(&["job", "cancel", &job, "--to", &uri]).ended();
    assert_eq!(exit, 4, "{refused}");
    assert!(refused.to_string().contains("has its new shape already"), "{refused}");
    let (exit, done) = scene.resume(&job, &[]).ended();
    assert_eq!(exit, 0, "{done}");
    scene.is_reshaped(load, &plan).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_is_said_to_hold_nothing_up() {
    let scene = taking(2, 15_000).await;
    let load = scene.load().await;
    let plan = scene.usual_plan().await;
    let mut at_work = begin(&scene, &plan);
    let job = at_work.phase("execute");
    let uri = scene.cluster.admin_uri();
    let (exit, refused) = scene.imago(&["job", "work", &job, "--from", &uri, "--to", &uri]).ended();
    assert_eq!(exit, 4, "{refused}");
    assert!(refused.to_string().contains("nothing to share"), "{refused}");
    scene.job("pause", &job, &[]);
    at_work.until("it cannot be paused", |said| said["code"] == "not_paused");
    wait::until("nothing is left of it", async || {
        scene.collection().await.get_document("key").unwrap().contains_key("userID")
            && scene.find("config", "tags", doc! {}).await.is_empty()
    })
    .await;
    assert!(at_work.is_running(), "the job is paused still: {}", at_work.errors());
    scene.job("resume", &job, &["--from", &uri]);
    let (exit, done) = at_work.ended();
    assert_eq!(exit, 0, "{done}");
    scene.is_reshaped(load, &plan).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_server_does_not_do_is_refused() {
    let scene = taking(2, 0).await;
    let some = doc! {"insert": "reviews", "documents": [
        {"_id": 1, "productID": "a", "userID": "a"}, {"_id": 2, "productID": "b", "userID": "b"},
    ]};
    scene.run("shop", some).await;
    let refused = |mut process: Process, why: &str| {
        let (exit, refused) = process.ended();
        assert_eq!(exit, 4, "{refused}");
        assert!(refused.to_string().contains(why), "{refused}");
    };
    let mut same = scene.plan(doc! {"productID": 1}, 2).await;
    same.old_key.clone_from(&same.key);
    refused(begin(&scene, &same), "by the key that it has");
    let shard = scene.shards().await.remove(0);
    scene.cluster.end_with_this_test();
    scene.run("admin", doc! {"addShardToZone": &shard, "zone": "theirs"}).await;
    let range = |zone: Bson| {
        doc! {
            "updateZoneKeyRange": NS, "min": {"productID": "a"}, "max": {"productID": "b"},
            "zone": zone,
        }
    };
    scene.run("admin", range("theirs".into())).await;
    let plan = scene.plan(doc! {"userID": 1}, 2).await;
    refused(begin(&scene, &plan), "zone ranges, which are defined by the old key");
    assert_eq!(scene.find("config", "tags", doc! {}).await.len(), 1, "it is theirs");
    assert_eq!(scene.find("imago", "jobs", doc! {}).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelling_aborts_a_resharding_watched_or_not() {
    let scene = taking(2, 60_000).await;
    let load = scene.load().await;
    let plan = scene.usual_plan().await;
    let mut watched = begin(&scene, &plan);
    let job = watched.phase("execute");
    scene.job("cancel", &job, &[]);
    let (exit, cancelled) = watched.ended();
    assert_eq!(exit, 1, "{cancelled}");
    scene.is_tidy().await;

    let mut killed = begin(&scene, &plan);
    let job = killed.phase("execute");
    killed.kill();
    scene.bury(&job).await;
    let cancelled = scene.job("cancel", &job, &[]);
    assert_eq!(cancelled["state"], "cancelled", "{cancelled}");
    assert_eq!(scene.find("config", "reshardingOperations", doc! {}).await, []);
    scene.is_as_before(load).await;
}
