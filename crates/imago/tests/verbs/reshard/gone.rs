//! Collections that were dropped after a job's process died.

use bson::doc;

use crate::reshard::scene::{NS, Scene};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_shadow_is_not_taken_for_a_filled_one() {
    let scene = Scene::start(2).await;
    let load = scene.load().await;
    let plan = scene.usual_plan().await;
    let mut at_work = scene.reshard(&plan, &[]);
    let job = at_work.phase("verify");
    at_work.kill();
    scene.bury(&job).await;
    scene.run("shop", doc! {"drop": format!("imago.shadow.{job}")}).await;
    // Without a comparison an empty one would take the name.
    let (exit, refused) = scene.resume(&job, &["--verify", "none"]).ended();
    assert_eq!(exit, 4, "{refused}");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("is gone"), "{message}");
    let cancelled = scene.job("cancel", &job, &[]);
    assert_eq!(cancelled["state"], "cancelled", "{cancelled}");
    scene.is_as_before(load).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_collection_is_gone_at_the_rename_can_be_given_up() {
    let scene = Scene::start(2).await;
    let notes = (0..100).map(|n| doc! {"_id": n, "productID": format!("B{:09}", n * 500)});
    let notes: Vec<bson::Document> = notes.collect();
    scene.run("shop", doc! {"insert": "reviews", "documents": notes}).await;
    let plan = scene.plan(doc! {"_id": 1}, 4).await;
    let mut at_work = scene.reshard(&plan, &["--documents-s", "20"]);
    let job = at_work.phase("execute");
    at_work.kill();
    // As if it had died right after it asked for the rename, with writes blocked.
    let mut record = scene.record(&job).await;
    record["checkpoint"]["job"]["rename_requested"] = true.into();
    record["checkpoint"]["job"]["is_blocked"] = true.into();
    scene.set_record(&job, &record).await;
    scene.run("admin", doc! {"setUserWriteBlockMode": 1, "global": true}).await;
    scene.run("shop", doc! {"drop": "reviews"}).await;
    scene.bury(&job).await;

    let (exit, refused) = scene.resume(&job, &[]).ended();
    assert_eq!(exit, 4, "{refused}");
    assert!(refused.to_string().contains("is gone"), "{refused}");
    let cancelled = scene.job("cancel", &job, &[]);
    assert_eq!(cancelled["state"], "cancelled", "{cancelled}");
    assert_eq!(scene.application_writes().await, Ok(()), "the block is lifted");
    // The next one has its turn.
    scene.run("admin", doc! {"shardCollection": NS, "key": {"productID": 1}}).await;
    let some = doc! {"_id": 1, "productID": "a", "userID": "a"};
    scene.run("shop", doc! {"insert": "reviews", "documents": [some]}).await;
    let (exit, done) = scene.reshard(&scene.plan(doc! {"userID": 1}, 1).await, &[]).ended();
    assert_eq!(exit, 0, "{done}");
}
