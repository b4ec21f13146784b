//! The process dies in the commit, between the block and the end of the rename.

use bson::doc;
use imago_mongo::reshard::plan::Plan;

use imago_testbed::wait;

use crate::process::Process;
use crate::reshard::scene::{BLOCKED, NS, Scene};

const BEFORE_RENAME: &str = "hangBeforeRunningCoordinatorInstance";
const BEFORE_BLOCK: &str = "hangInShardsvrSetUserWriteBlockMode";

/// A job whose rename was asked for, and the server has not begun it.
async fn renaming(scene: &Scene, plan: &Plan) -> (Process, String) {
    let mut at_work = scene.reshard(plan, &[]);
    let job = at_work.phase("verify");
    scene.fail_point(BEFORE_RENAME, true).await;
    scene.is_noted(&job, "rename_requested", &mut at_work).await;
    scene.is_held_at(BEFORE_RENAME).await;
    assert_eq!(scene.application_writes().await, Err(BLOCKED));
    (at_work, job)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rename_that_comes_after_the_death_of_who_asked_for_it_is_found_out() {
    let scene = Scene::stoppable().await;
    let load = scene.load().await;
    let plan = scene.usual_plan().await;
    let (mut at_work, job) = renaming(&scene, &plan).await;
    at_work.kill();
    scene.bury(&job).await;
    let mut resume = scene.resume(&job, &[]);
    scene.is_claimed(&job, 2).await;
    assert!(resume.is_running(), "the outcome is unknown yet: {}", resume.errors());
    scene.fail_point(BEFORE_RENAME, false).await;
    let (exit, done) = resume.ended();
    assert_eq!(exit, 0, "{done}");
    scene.is_reshaped(load, &plan).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rename_that_waits_behind_another_change_when_its_asker_dies_is_found_out() {
    let scene = Scene::stoppable().await;
    scene.run("shop", doc! {"create": "other"}).await;
    let load = scene.load().await;
    let plan = scene.usual_plan().await;
    let mut at_work = scene.reshard(&plan, &[]);
    let job = at_work.phase("verify");
    // Servers change one collection of a database at a time: this one keeps its turn until it may go on.
    scene.fail_point(BEFORE_RENAME, true).await;
    let admin = scene.admin.clone();
    let drop =
        tokio::spawn(async move { admin.run_at_length("shop", doc! {"drop": "other"}).await });
    scene.is_noted(&job, "rename_requested", &mut at_work).await;
    let renaming = doc! {"command._shardsvrRenameCollection": {"$exists": true}};
    scene.is_at_work("the rename waits", renaming).await;
    at_work.kill();
    scene.bury(&job).await;
    let mut resume = scene.resume(&job, &[]);
    scene.is_claimed(&job, 2).await;
    assert!(resume.is_running(), "the outcome is unknown yet: {}", resume.errors());
    assert_eq!(scene.application_writes().await, Err(BLOCKED));
    scene.fail_point(BEFORE_RENAME, false).await;
    drop.await.unwrap().unwrap();
    let (exit, done) = resume.ended();
    assert_eq!(exit, 0, "{done}");
    scene.is_reshaped(load, &plan).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_rename_has_happened_is_not_cancelled_but_ended() {
    let scene = Scene::stoppable().await;
    let load = scene.load().await;
    let plan = scene.usual_plan().await;
    let before = scene.collection().await;
    let (mut at_work, job) = renaming(&scene, &plan).await;
    at_work.freeze();
    scene.fail_point(BEFORE_RENAME, false).await;
    wait::until("it is renamed", async || {
        let now = scene.find("config", "collections", doc! {"_id": NS}).await;
        now.first().is_some_and(|now| now.get("uuid") != before.get("uuid"))
    })
    .await;
    at_work.kill();
    scene.bury(&job).await;
    let uri = scene.cluster.admin_uri();
    let mut cancel = scene.imago(&["job", "cancel", &job, "--to", &uri]);
    let (exit, refused) = cancel.ended();
    assert_eq!(exit, 4, "{refused}");
    assert!(refused.to_string().contains("has its new shape already"), "{refused}");
    // The refused `cancel` changes nothing: `resume` finds that the job is done.
    let (exit, done) = scene.resume(&job, &[]).ended();
    assert_eq!(exit, 0, "{done}");
    scene.is_reshaped(load, &plan).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_that_comes_after_the_death_of_who_asked_for_it_is_lifted_by_cancel() {
    let scene = Scene::stoppable().await;
    let load = scene.load().await;
    let plan = scene.usual_plan().await;
    let mut at_work = scene.reshard(&plan, &[]);
    let job = at_work.phase("verify");
    scene.fail_point(BEFORE_BLOCK, true).await;
    scene.is_noted(&job, "is_blocked", &mut at_work).await;
    scene.is_held_at(BEFORE_BLOCK).await;
    at_work.kill();
    scene.bury(&job).await;
    let uri = scene.cluster.admin_uri();
    let mut cancel = scene.imago(&["job", "cancel", &job, "--to", &uri]);
    scene.is_claimed(&job, 1).await;
    scene.fail_point(BEFORE_BLOCK, false).await;
    let (exit, cancelled) = cancel.ended();
    assert_eq!((exit, cancelled["state"].as_str()), (0, Some("cancelled")), "{cancelled}");
    scene.is_as_before(load).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_killed_as_soon_as_it_blocks_leaves_a_job_that_goes_on() {
    let scene = Scene::start(2).await;
    let load = scene.load().await;
    let plan = scene.usual_plan().await;
    let mut at_work = scene.reshard(&plan, &[]);
    let job = at_work.phase("verify");
    scene.is_noted(&job, "is_blocked", &mut at_work).await;
    at_work.kill();
    // Not buried: its successor waits until it must be dead.
    let (exit, done) = scene.resume(&job, &[]).ended();
    assert_eq!(exit, 0, "{done}");
    scene.is_reshaped(load, &plan).await;
}
