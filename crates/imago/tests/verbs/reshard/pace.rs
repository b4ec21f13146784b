//! Clients are spared while there are any.

use std::time::Duration;

use bson::{Document, doc};
use imago_mongo::server::endpoint::Endpoint;
use serde_json::Value;
use tokio_util::task::AbortOnDropHandle;

use crate::process::Process;
use crate::reshard::scene::Scene;

/// The decisions about the pace, in their order.
fn decided(process: &Process) -> Vec<String> {
    let said = process.said();
    let decisions = said.iter().filter(|said| said["event"] == "decision");
    let whats = decisions.filter_map(|said| said["what"].as_str());
    whats.filter(|what| what.starts_with("the bulk goes a")).map(str::to_owned).collect()
}

const GENTLY: &str = "the bulk goes at a pace that clients hardly notice";
const AT_ANY_SPEED: &str = "the bulk goes at any speed";

/// A client that reads now and then, at all shards: 25 times a second, until it is dropped.
fn reader(of: &Endpoint) -> AbortOnDropHandle<()> {
    let reviews = of.client().database("shop").collection::<Document>("reviews");
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut next = tokio::time::interval(Duration::from_millis(40));
        loop {
            next.tick().await;
            reviews.find_one(doc! {"_id": "absent"}).await.unwrap();
        }
    }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pace_is_the_clients_while_there_are_any_and_can_be_changed() {
    let scene = Scene::start(2).await;
    let load = scene.load().await;
    let plan = scene.usual_plan().await;
    // So slow that it waits for us.
    let mut gentle = scene.reshard(&plan, &["--documents-s", "100"]);
    let job = gentle.phase("execute");
    gentle.until(GENTLY, |said| said["what"] == GENTLY);
    let is_paced = |said: &Value| said["limits"]["is_paced"].as_bool();
    assert_eq!(is_paced(&scene.job("set", &job, &["--documents-s", "2000"])), Some(true));
    assert_eq!(is_paced(&scene.job("set", &job, &["--pace", "full"])), Some(false));
    assert_eq!(gentle.ended().0, 0, "{}", gentle.errors());
    assert_eq!(decided(&gentle)[..1], [GENTLY], "{}", gentle.errors());
    scene.is_reshaped(load, &plan).await;

    let mut alone = scene.revert(&job, &[]);
    assert_eq!(alone.ended().0, 0, "{}", alone.errors());
    assert_eq!(decided(&alone), [AT_ANY_SPEED], "{}", alone.errors());

    // No client writes and one reads: its reads are distinguished from the job's own.
    let reader = reader(&scene.admin);
    let plan = scene.usual_plan().await;
    let mut beside = scene.reshard(&plan, &["--documents-s", "300"]);
    beside.until(GENTLY, |said| said["what"] == GENTLY);
    drop(reader);
    beside.until(AT_ANY_SPEED, |said| said["what"] == AT_ANY_SPEED);
    assert_eq!(beside.ended().0, 0, "{}", beside.errors());
}
