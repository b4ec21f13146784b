//! The way back: the collection gets its old key again, if it is still what the job made of it.

use bson::doc;
use serde_json::Value;

use crate::process::Process;
use crate::reshard::scene::Scene;
use crate::reshard::writer::Writer;

fn job_of(done: &Value) -> String {
    done["job"].as_str().unwrap_or_else(|| panic!("no job: {done}")).to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collection_gets_its_old_key_back_under_load_and_nothing_is_lost() {
    let scene = Scene::start(3).await;
    let load = scene.load().await;
    let writer = Writer::start(&scene.cluster.uri()).await;
    let plan = scene.usual_plan().await;
    let (exit, there) = scene.reshard(&plan, &[]).ended();
    assert_eq!(exit, 0, "{there}");
    scene.has_shape_of(&plan).await;
    scene.load_goes_on(50).await;
    let mut at_work = scene.revert(&job_of(&there), &["--documents-s", "1500"]);
    let (exit, back) = at_work.ended();
    assert_eq!(exit, 0, "{back}");
    assert!(!at_work.said().iter().any(|said| said["code"] == "known_by_key"));
    assert!(back["verified"].as_u64() > Some(2_400), "{back}");
    let back = scene.plan_of(&job_of(&back)).await;
    assert_eq!((&*back.old_key, &*back.key), (r#"{"userID": 1}"#, r#"{"productID": 1}"#));
    let on = |shard| back.chunks.iter().filter(|chunk| chunk.shard == shard).count();
    assert!((0..3).all(|shard| on(shard) <= back.chunks.len().div_ceil(3)), "{:?}", back.chunks);
    scene.load_goes_on(50).await;
    assert!(writer.nothing_lost().await > 50);
    scene.is_reshaped(load, &back).await;
}

fn refused(mut process: Process, why: &str) {
    let (exit, refused) = process.ended();
    assert_eq!(exit, 4, "{why}: {refused}");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains(why), "{message} does not say {why}");
    assert!(!refused["error"]["help"].is_null(), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_what_a_job_made_is_not_changed_back() {
    let scene = Scene::start(2).await;
    let note = |n: i32| doc! {"_id": n, "productID": format!("B{n:09}"), "userID": n * 37 % 100};
    let notes: Vec<bson::Document> = (0..2_000).map(|n| note(n * 25)).collect();
    scene.run("shop", doc! {"insert": "reviews", "documents": &notes}).await;
    let plan = scene.usual_plan().await;

    let mut unfinished = scene.reshard(&plan, &["--documents-s", "100"]);
    let job = unfinished.phase("execute");
    refused(scene.revert(&job, &[]), "did not change the shape of shop.reviews");
    scene.job("cancel", &job, &[]);
    assert_eq!(unfinished.ended().0, 1);
    refused(scene.revert(&job, &[]), "is cancelled");

    let (exit, done) = scene.reshard(&plan, &[]).ended();
    assert_eq!(exit, 0, "{done}");
    let job = job_of(&done);
    let made = scene.record(&job).await;
    let but = async |change: &dyn Fn(&mut Value)| {
        let mut other = made.clone();
        change(&mut other);
        scene.set_record(&job, &other).await;
        scene.revert(&job, &[])
    };
    refused(but(&|record| record["kind"] = "copy".into()).await, "is a copy, not a reshard");
    let unsharded = but(&|record| record["spec"]["reshard"]["old_key"] = "{}".into()).await;
    refused(unsharded, "was not sharded before");
    scene.set_record(&job, &made).await;

    // The same key with other chunks: another collection, which only its UUID tells.
    let mut finer = scene.plan(doc! {"userID": 1}, 6).await;
    finer.old_key.clone_from(&finer.key);
    let (exit, done) = scene.reshard(&finer, &[]).ended();
    assert_eq!(exit, 0, "{done}");
    refused(scene.revert(&job, &[]), "another collection by its UUID");
    refused(scene.revert(&job_of(&done), &[]), "only its chunks changed");

    // A job that did not record what it made goes by the key, and says so.
    let mut blind = but(&|record| drop(record["checkpoint"]["job"]["becomes"].take())).await;
    let (exit, done) = blind.ended();
    assert_eq!(exit, 0, "{done}");
    assert!(blind.said().iter().any(|said| said["code"] == "known_by_key"), "{}", blind.errors());
    scene.has_shape_of(&scene.plan_of(&job_of(&done)).await).await;
    scene.is_tidy().await;
    assert!(scene.find("shop", "reviews", doc! {}).await == notes, "they are the same");
    refused(scene.revert(&job, &[]), r#"sharded by {"productID": 1}"#);

    scene.run("shop", doc! {"drop": "reviews"}).await;
    refused(scene.revert(&job, &[]), "there is no such collection");
}
