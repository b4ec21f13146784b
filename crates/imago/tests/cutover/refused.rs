//! What may not be cut over is not, and nothing is blocked.

use bson::doc;
use imago_testbed::ClusterSpec;

use crate::scene::{NS, Scene, administer, application_writes};

fn refused(scene: &Scene, job: &str, because: &str) {
    let (exit, failed) = scene.run(scene.cutover(job, &["--on-cutover", "exit 0"]));
    assert_eq!(exit, 4, "{failed}");
    assert!(failed["error"]["message"].as_str().unwrap().contains(because), "{failed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_without_authorisation_cannot_block_and_says_what_can_be_done() {
    let old = ClusterSpec::replica_set("open-old", 1);
    let scene = Scene::of(old, ClusterSpec::replica_set("open-new", 1)).await;
    let load = scene.load();
    let job = scene.copied();
    refused(&scene, &job, "without authorisation");
    scene.load_goes_on(20);
    // The operator stops the writers, and says so.
    scene.nothing_lost(load, &scene.old);
    let (exit, done) = scene.run(scene.cutover(&job, &["--block", "none"]));
    assert_eq!(exit, 0, "{done}");
    let check = scene.imago(&["load", "check", "--uri", &scene.new.uri(), "--history", "h"]);
    assert_eq!(scene.run(check).0, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_that_differ_are_found_before_anything_is_blocked() {
    let scene = Scene::start("differ").await;
    let load = scene.load();
    let job = scene.copied();
    scene.nothing_lost(load, &scene.old);
    let (exit, _) = scene.run(scene.between(&["job", "resume", &job, "--until", "caught-up"]));
    assert_eq!(exit, 0);
    // One byte of every document.
    let damage = doc! {"q": {}, "u": {"$set": {"damaged": "x"}}, "multi": true};
    administer(&scene.new, "shop", doc! {"update": "reviews", "updates": [damage]}).await;
    refused(&scene, &job, "differ");
    assert_eq!(application_writes(&scene.old).await, Ok(()));

    let stragglers = ["verify", "--ns", NS, "--documents-only", "--stragglers", "d"];
    assert_eq!(scene.run(scene.between(&stragglers)).0, 3);
    let (exit, mended) = scene.run(scene.between(&["repair", "--ids-file", "d"]));
    assert_eq!(exit, 0, "{mended}");
    let (exit, done) = scene.run(scene.cutover(&job, &[]));
    assert_eq!(exit, 0, "{done}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_without_the_privilege_and_an_unfinished_copy_are_refused() {
    let scene = Scene::start("rights").await;
    let load = scene.load();
    // Slow enough to be unfinished when it is killed.
    let slow = scene.between(&["copy", "--ns", NS, "--documents-s", "50"]);
    let mut slow = scene.spawn(slow, "slow");
    let to = scene.new.admin_uri();
    let mut job = String::new();
    crate::scene::wait_until("the bulk is being copied", || {
        let jobs =
            crate::scene::json(&scene.imago(&["job", "list", "--to", &to]).output().unwrap());
        job = jobs[0]["id"].as_str().unwrap_or_default().to_owned();
        jobs.to_string().contains("\"copy\"") && jobs.to_string().contains("cutover_ready")
    });
    refused(&scene, &job, "not complete");
    assert_eq!(slow.ended().0, 0, "it was handed over");
    assert_eq!(application_writes(&scene.old).await, Ok(()));

    let unlimited = ["job", "set", &job, "--documents-s", "none", "--to", &to];
    assert_eq!(scene.run(scene.imago(&unlimited)).0, 0);
    let (exit, resumed) =
        scene.run(scene.between(&["job", "resume", &job, "--until", "caught-up"]));
    assert_eq!(exit, 0, "{resumed}");
    let from = scene.old.uri();
    let powerless = ["cutover", &job, "--from", &from, "--to", &to];
    let (exit, failed) = scene.run(scene.imago(&powerless));
    assert_eq!(exit, 4, "{failed}");
    assert!(failed["error"]["message"].as_str().unwrap().contains("may not block"), "{failed}");
    assert_eq!(application_writes(&scene.old).await, Ok(()));
    scene.load_goes_on(20);
    scene.nothing_lost(load, &scene.old);
}
