//! A job is given up: the collection is as it was, and nothing else is left.

use bson::doc;

use crate::reshard::scene::{NS, Scene};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_cancelled_leaves_the_collection_as_it_was() {
    let scene = Scene::start(2).await;
    let load = scene.load().await;
    let plan = scene.usual_plan().await;
    let mut slow = scene.reshard(&plan, &["--documents-s", "500"]);
    let job = slow.phase("execute");
    let mut second = scene.reshard(&plan, &[]);
    let (exit, refused) = second.ended();
    assert_eq!(exit, 4, "{refused}");
    assert!(refused.to_string().contains("is changing the shape of shop.reviews"), "{refused}");
    scene.job("cancel", &job, &[]);
    let (exit, cancelled) = slow.ended();
    assert_eq!(exit, 1, "{cancelled}");
    scene.is_tidy().await;

    // One whose process was killed, of a collection that the balancer left alone before.
    let off = doc! {"q": {"_id": NS}, "u": {"$set": {"noBalance": true}}};
    scene.run("config", doc! {"update": "collections", "updates": [off]}).await;
    let mut killed = scene.reshard(&plan, &["--documents-s", "500"]);
    let job = killed.phase("execute");
    killed.kill();
    scene.bury(&job).await;
    let cancelled = scene.job("cancel", &job, &[]);
    assert_eq!(cancelled["state"], "cancelled", "{cancelled}");
    assert!(scene.collection().await.get_bool("noBalance").unwrap(), "as it was");
    let on = doc! {"q": {"_id": NS}, "u": {"$unset": {"noBalance": ""}}};
    scene.run("config", doc! {"update": "collections", "updates": [on]}).await;
    scene.is_as_before(load).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_that_begin_at_once_one_is_refused() {
    let scene = Scene::start(2).await;
    let load = scene.load().await;
    let plan = scene.usual_plan().await;
    let uri = scene.cluster.admin_uri();
    let mut first = scene.reshard(&plan, &[]);
    let mut second = scene.imago(&["reshard", "run", "--uri", &uri, "--plan", "plan"]);
    let mut ended = [first.ended(), second.ended()];
    ended.sort_by_key(|(exit, _)| *exit);
    let [(done, outcome), (refused, why)] = ended;
    assert_eq!((done, refused), (0, 4), "{outcome} {why}");
    assert!(why.to_string().contains("the shape of"), "{why}");
    scene.is_reshaped(load, &plan).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_begin_is_told_which_collection_is_changed_and_since_when() {
    let scene = Scene::start(2).await;
    let load = scene.load().await;
    let plan = scene.usual_plan().await;
    let mut first = scene.reshard(&plan, &["--documents-s", "100"]);
    let job = first.phase("execute");
    let uri = scene.cluster.admin_uri();
    let (exit, why) = scene.imago(&["reshard", "run", "--uri", &uri, "--plan", "plan"]).ended();
    let message = why["error"]["message"].as_str().unwrap().to_owned();
    let named = [&job, "the shape of shop.reviews", "it is running", " s ago"];
    assert!(exit == 4 && named.iter().all(|part| message.contains(part)), "{exit} {why}");
    scene.job("set", &job, &["--pace", "full", "--documents-s", "none"]);
    assert_eq!(first.ended().0, 0, "{}", first.errors());
    scene.is_reshaped(load, &plan).await;
}
