//! Impossible changes are refused before anything is written.

use bson::{Document, doc};
use imago_mongo::reshard::plan::Plan;
use imago_testbed::pool::{replica_set, sharded};

use crate::process::Process;
use crate::reshard::scene::{NS, Scene};

async fn refused(scene: &Scene, mut process: Process, why: &str) {
    let (exit, refused) = process.ended();
    assert_eq!(exit, 4, "{why}: {refused}");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains(why), "{message} does not say {why}");
    assert!(!refused["error"]["help"].is_null(), "{refused}");
    assert_eq!(scene.find("imago", "jobs", doc! {}).await, [], "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_that_does_not_fit_the_cluster_is_refused() {
    let scene = Scene::start(2).await;
    let some = doc! {"insert": "reviews", "documents": [
        {"_id": 1, "productID": "a", "userID": "a"}, {"_id": 2, "productID": "b", "userID": "b"},
    ]};
    scene.run("shop", some).await;
    let fits = scene.plan(doc! {"userID": 1}, 2).await;
    let but = |change: &dyn Fn(&mut Plan)| {
        let mut plan = fits.clone();
        change(&mut plan);
        scene.reshard(&plan, &[])
    };
    let unknown = but(&|plan| plan.ns = "shop.elsewhere".parse().unwrap());
    refused(&scene, unknown, "no collection shop.elsewhere").await;
    let foreign = but(&|plan| plan.shards[0] = "nowhere".into());
    refused(&scene, foreign, "no shard nowhere").await;
    let beyond = but(&|plan| plan.chunks[1].shard = 7);
    refused(&scene, beyond, "on a shard that it does not name").await;
    let other = but(&|plan| plan.old_key = r#"{"time": 1}"#.into());
    refused(&scene, other, "is for a collection sharded by").await;
    let gap = but(&|plan| drop(plan.chunks.remove(0)));
    refused(&scene, gap, "no chunk that begins at MinKey").await;
    let disorder = but(&|plan| {
        let chunk = plan.chunks[1].clone();
        plan.chunks.push(chunk);
    });
    refused(&scene, disorder, "does not begin after the previous one").await;

    let unique = doc! {"key": {"productID": 1, "n": 1}, "name": "one", "unique": true};
    scene.run("shop", doc! {"createIndexes": "reviews", "indexes": [unique]}).await;
    refused(&scene, but(&|_| {}), "keep its unique index one").await;
    scene.is_tidy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_set_and_a_block_without_authorisation_are_refused() {
    let open = Scene::of(sharded(2)).await;
    let some = doc! {"insert": "reviews", "documents": [{"_id": 1, "productID": "a"}]};
    open.run("shop", some).await;
    let plan = open.plan(doc! {"userID": 1}, 1).await;
    refused(&open, open.reshard(&plan, &[]), "without authorisation").await;
    drop(open);

    let set = Scene::of(replica_set(1).with_auth()).await;
    refused(&set, set.reshard(&plan, &[]), "is a replica set").await;
}

/// The router lists the indexes of one shard: the others may have others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_that_only_some_shards_have_is_found_before_anything_is_copied() {
    let scene = Scene::start(2).await;
    scene.run("shop", doc! {"drop": "reviews"}).await;
    scene.run("admin", doc! {"shardCollection": NS, "key": {"productID": "hashed"}}).await;
    let note =
        |n: i32| doc! {"_id": format!("{n:024x}"), "productID": format!("B{n:09}"), "userID": "a"};
    let notes: Vec<Document> = (0..200).map(note).collect();
    scene.run("shop", doc! {"insert": "reviews", "documents": notes}).await;
    let mut plan = scene.plan(doc! {"userID": 1}, 2).await;
    plan.old_key = r#"{"productID": "hashed"}"#.into();
    // A build that ended on one shard alone.
    let index = doc! {"key": {"text": 1}, "name": "by_text", "unique": false};
    let build = doc! {"createIndexes": "reviews", "indexes": [index]};
    scene.members().await[0].run("shop", build).await.unwrap();
    refused(&scene, scene.reshard(&plan, &[]), "by_text is not on").await;
    let uri = scene.cluster.admin_uri();
    let words = ["reshard", "plan", "--uri", &uri, "--ns", NS, "--key", r#"{"userID": 1}"#];
    let mut planned = scene.imago(&words);
    assert_eq!(planned.ended().0, 4, "{}", planned.errors());
    assert!(planned.printed().contains("index_gap"), "{}", planned.printed());
    let copy = ["copy", "--from", &uri, "--to", &uri, "--ns", "shop.reviews=shop.copied"];
    refused(&scene, scene.imago(&copy), "by_text is not on").await;
    let same = ["verify", "--from", &uri, "--to", &uri, "--ns", NS];
    let mut verified = scene.imago(&same);
    assert_eq!(verified.ended().0, 3, "{}", verified.errors());
    assert!(verified.printed().contains("by_text is not on"), "{}", verified.printed());
}
