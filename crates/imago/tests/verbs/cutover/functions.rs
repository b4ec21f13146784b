//! Stored functions (`system.js`) that were named for a copy.

use bson::{Bson, Document, doc};
use imago_testbed::{Cluster, wait};

use crate::cutover::scene::{Scene, administer};

const FUNCTIONS: &str = "shop.system.js";

fn function(name: &str, body: &str) -> Document {
    doc! {"_id": name, "value": Bson::JavaScriptCode(body.to_owned())}
}

async fn insert(cluster: &Cluster, functions: Vec<Document>) {
    administer(cluster, "shop", doc! {"insert": "system.js", "documents": functions}).await;
}

async fn functions(cluster: &Cluster) -> Vec<Document> {
    let find = doc! {"find": "system.js", "sort": {"_id": 1}};
    let found = administer(cluster, "shop", find).await;
    let found = found.get_document("cursor").unwrap().get_array("firstBatch").unwrap().clone();
    found.into_iter().map(|function| function.as_document().unwrap().clone()).collect()
}

async fn change(cluster: &Cluster, function: Document) {
    let update = doc! {"q": {"_id": function.get("_id")}, "u": function, "upsert": true};
    administer(cluster, "shop", doc! {"update": "system.js", "updates": [update]}).await;
}

async fn delete(cluster: &Cluster, name: &str) {
    let delete = doc! {"q": {"_id": name}, "limit": 1};
    administer(cluster, "shop", doc! {"delete": "system.js", "deletes": [delete]}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_functions_that_are_named_are_copied_followed_and_cut_over() {
    let scene = Scene::start().await;
    let load = scene.load();
    let vat = function("vat", "function(price) { return price * 0.19; }");
    let old_fees = function("fees-2024", "function() { return 4.5; }");
    let limits = doc! {"_id": "limits", "value": {"order": 5_000_000_000_i64, "rate": 0.5}};
    insert(&scene.old, vec![vat, old_fees, limits]).await;

    let mut words = vec!["copy", "--ns", "shop.*", "--ns", FUNCTIONS];
    let (exit, planned) = scene.run(scene.between(&[&words[..], &["--dry-run"]].concat()));
    assert_eq!(exit, 0, "{planned}");
    assert_eq!(planned["functions"][0]["from"], FUNCTIONS, "{planned}");
    assert_eq!(planned["left_out"].as_array().map(Vec::len), Some(0), "{planned}");
    words.extend(["--until", "caught-up"]);
    let (exit, copied) = scene.run(scene.between(&words));
    assert_eq!(exit, 0, "{copied}");
    let job = copied["job"].as_str().unwrap();
    assert_eq!(functions(&scene.new).await.len(), 3);
    assert_eq!(functions(&scene.new).await, functions(&scene.old).await);

    // Changes are followed while the job runs,
    let mut follower = scene.spawn(scene.between(&["job", "resume", job]), "follower");
    change(&scene.old, function("vat", "function(price) { return price * 0.07; }")).await;
    delete(&scene.old, "fees-2024").await;
    change(&scene.old, function("fees-2026", "function() { return 4.9; }")).await;
    wait::until("the functions are followed", async || {
        assert!(follower.is_running(), "{}", follower.errors());
        functions(&scene.new).await == functions(&scene.old).await
    })
    .await;
    // and what changed just before the block is not left behind.
    change(&scene.old, function("vat", "function(price) { return price * 0.2; }")).await;
    let hook = scene.switch_to(&scene.new);
    let (exit, done) = scene.run(scene.cutover(job, &["--on-cutover", &hook]));
    assert_eq!(exit, 0, "{done}");
    assert_eq!(follower.ended().0, 0, "{}", follower.errors());
    assert_eq!(functions(&scene.new).await.len(), 3);
    assert_eq!(functions(&scene.new).await, functions(&scene.old).await);
    let (exit, verified) = scene.run(scene.between(&["verify", "--ns", FUNCTIONS]));
    assert_eq!(exit, 0, "{verified}");
    scene.nothing_lost(load, &scene.new);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn views_and_stored_functions_alone_are_jobs_and_what_cannot_be_is_refused() {
    let scene = Scene::start().await;
    let refused = |words: &[&str], reason: &str| {
        let (exit, said) = scene.run(scene.between(&[&["copy"], words].concat()));
        assert_eq!(exit, 4, "{words:?}: {said}");
        assert!(said.to_string().contains(reason), "{words:?}: {said}");
    };
    refused(&["--ns", FUNCTIONS], "the source has no stored functions shop.system.js");
    insert(&scene.old, vec![function("vat", "function(price) { return price * 0.19; }")]).await;
    let huge = format!("function() {{ return '{}'; }}", "x".repeat(5 << 20));
    insert(&scene.old, vec![function("huge", &huge)]).await;
    refused(&["--ns", FUNCTIONS], "holds more than 4 MB of functions");
    delete(&scene.old, "huge").await;
    refused(&["--ns", "shop.system.js=shop.functions"], "only another database may be named");
    refused(&["--ns", "shop.system.js=shop.system.views"], "which is a system collection");
    refused(&["--ns", FUNCTIONS, "--filter", r#"{"price": 1}"#], "a filter does not apply");

    let copy = ["copy", "--ns", "shop.system.js=archive.system.js", "--until", "caught-up"];
    let (exit, copied) = scene.run(scene.between(&copy));
    assert_eq!(exit, 0, "{copied}");
    let (exit, done) = scene.run(scene.cutover(copied["job"].as_str().unwrap(), &["--lift-block"]));
    assert_eq!(exit, 0, "{done}");
    let verify = ["verify", "--ns", "shop.system.js=archive.system.js"];
    let (exit, verified) = scene.run(scene.between(&verify));
    assert_eq!(exit, 0, "{verified}");
    assert_eq!(verified["collections"][0]["compared"], 1, "{verified}");

    insert(&scene.new, vec![function("tax", "function() { return 0; }")]).await;
    refused(&["--ns", FUNCTIONS], "the destination has stored functions in shop.system.js");
    assert_eq!(functions(&scene.new).await.len(), 1, "nothing was touched");
}
