//! Indexes that the source is still building.

use bson::{Document, doc};
use imago_mongo::error::Result;
use imago_mongo::server::endpoint::Endpoint;
use imago_testbed::pool::replica_set;
use imago_testbed::wait;
use tokio::task::JoinHandle;

use crate::cutover::catalog::{insert, orders, status};
use crate::cutover::scene::{Scene, administer};
use crate::process::Process;

/// Has index builds of the source stop before they look at documents.
async fn builds_stop(scene: &Scene, is_on: bool) {
    let mode = if is_on { "alwaysOn" } else { "off" };
    let point = doc! {"configureFailPoint": "hangAfterStartingIndexBuild", "mode": mode};
    administer(&scene.old, "admin", point).await;
}

/// Asks the source for an index, whose build has begun on return.
async fn begins(scene: &Scene, index: Document) -> JoinHandle<Result<Document>> {
    builds_stop(scene, true).await;
    let source = Endpoint::connect(&scene.old.admin_uri(), "source").await.unwrap();
    let create = doc! {"createIndexes": "orders", "indexes": [index]};
    let build = tokio::spawn(async move { source.run_at_length("shop", create).await });
    let list = doc! {"listIndexes": "orders", "includeBuildUUIDs": true};
    wait::until("the index is being built", async || {
        let listed = administer(&scene.old, "shop", list.clone()).await;
        let listed = listed.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
        listed.iter().any(|index| index.as_document().unwrap().contains_key("buildUUID"))
    })
    .await;
    build
}

/// Waits until the job's obstacles name the index, or there is none.
fn has_obstacle(scene: &Scene, job: &str, named: Option<&str>, copy: &mut Process) {
    wait::until_or_report(
        &format!("obstacle {named:?}"),
        || status(scene, job).to_string(),
        || {
            assert!(copy.is_running(), "{}", copy.errors());
            let progress = status(scene, job)["progress"].clone();
            let obstacles = progress["cutover_obstacles"].to_string();
            match named {
                None => progress["cutover_ready"] == true,
                Some(index) => {
                    obstacles.contains(&format!("{index} of shop.orders is being built"))
                }
            }
        },
    );
}

async fn names(scene: &Scene) -> Vec<String> {
    let listed = administer(&scene.new, "shop", doc! {"listIndexes": "orders"}).await;
    let listed = listed.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    let name =
        |index: &bson::Bson| index.as_document().unwrap().get_str("name").unwrap().to_owned();
    listed.iter().map(name).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_that_the_source_is_building_is_waited_for_and_not_built_yet() {
    let old = replica_set(1).with_auth().with_parameter("enableTestCommands", "1");
    let scene = Scene::of(old, replica_set(1).with_auth()).await;
    // Customers have several orders each: the index will fail, and not before it has been tried.
    insert(&scene.old, "orders", orders(0..400)).await;
    let unique = doc! {"key": {"customer": 1}, "name": "customer_1", "unique": true};
    let fails = begins(&scene, unique).await;
    let words = ["copy", "--ns", "shop.orders", "--from", &scene.old.admin_uri(), "--to"];
    let copy = scene.telling(&[&words[..], &[&scene.new.admin_uri()]].concat());
    let mut copy = scene.spawn(copy, "copy");
    let job = copy.phase("follow");
    has_obstacle(&scene, &job, Some("customer_1"), &mut copy);
    insert(&scene.old, "orders", orders(400..500)).await;
    builds_stop(&scene, false).await;
    fails.await.unwrap().unwrap_err();
    has_obstacle(&scene, &job, None, &mut copy);
    assert_eq!(names(&scene).await, ["_id_"]);

    let build = begins(&scene, doc! {"key": {"at": 1}, "name": "at_1"}).await;
    has_obstacle(&scene, &job, Some("at_1"), &mut copy);
    let (exit, refused) = scene.run(scene.cutover(&job, &["--on-cutover", "true"]));
    assert_eq!(exit, 4, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("being built"), "{refused}");
    builds_stop(&scene, false).await;
    build.await.unwrap().unwrap();
    let (exit, done) = scene.run(scene.cutover(&job, &["--on-cutover", "true"]));
    assert_eq!(exit, 0, "{done}");
    assert_eq!(names(&scene).await, ["_id_", "at_1"]);
    let (exit, verified) = scene.run(scene.between(&["verify", "--ns", "shop.orders"]));
    assert_eq!(exit, 0, "{verified}");
}
