//! A job that may not be cut over is refused, and nothing is blocked.

use bson::doc;
use imago_testbed::pool::replica_set;
use imago_testbed::wait;

use crate::cutover::catalog::{count, insert, orders};
use crate::cutover::scene::{BLOCKED, NS, Scene, administer, application_writes};
use crate::reshard::scene::direct_uri;

fn refused(scene: &Scene, job: &str, because: &str) {
    let (exit, failed) = scene.run(scene.cutover(job, &["--on-cutover", "exit 7"]));
    assert_eq!(exit, 4, "{failed}");
    assert!(failed["error"]["message"].as_str().unwrap().contains(because), "{failed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_without_authorisation_cannot_block_and_says_what_can_be_done() {
    let old = replica_set(1);
    let scene = Scene::of(old, replica_set(1)).await;
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
    let scene = Scene::start().await;
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

    let mismatches = ["verify", "--ns", NS, "--documents-only", "--mismatches", "d"];
    assert_eq!(scene.run(scene.between(&mismatches)).0, 3);
    let (exit, mended) = scene.run(scene.between(&["repair", "--ids-file", "d"]));
    assert_eq!(exit, 0, "{mended}");
    let (exit, done) = scene.run(scene.cutover(&job, &[]));
    assert_eq!(exit, 0, "{done}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_without_the_privilege_and_an_unfinished_copy_are_refused() {
    let scene = Scene::start().await;
    let load = scene.load();
    // Slow enough to be unfinished when it is killed.
    let slow = scene.between(&["copy", "--ns", NS, "--documents-s", "50"]);
    let mut slow = scene.spawn(slow, "slow");
    let to = scene.new.admin_uri();
    let mut job = String::new();
    wait::until_blocking("the bulk is being copied", || {
        let jobs = crate::cutover::scene::json(
            &scene.imago(&["job", "list", "--to", &to]).output().unwrap(),
        );
        job = jobs[0]["id"].as_str().unwrap_or_default().to_owned();
        jobs.to_string().contains("\"copy\"") && jobs.to_string().contains("cutover_ready")
    });
    refused(&scene, &job, "not complete");
    assert_eq!(application_writes(&scene.old).await, Ok(()));

    let unlimited = ["job", "set", &job, "--documents-s", "none", "--to", &to];
    assert_eq!(scene.run(scene.imago(&unlimited)).0, 0);
    wait::until_blocking("the copy is complete", || {
        assert!(slow.is_running(), "it goes on: {}", slow.errors());
        let jobs = crate::cutover::scene::json(
            &scene.imago(&["job", "list", "--to", &to]).output().unwrap(),
        );
        jobs[0]["progress"]["cutover_ready"] == true
    });
    let from = scene.old.uri();
    let powerless = ["cutover", &job, "--from", &from, "--to", &to];
    let (exit, failed) = scene.run(scene.imago(&powerless));
    assert_eq!(exit, 4, "{failed}");
    assert!(failed["error"]["message"].as_str().unwrap().contains("may not block"), "{failed}");
    assert_eq!(scene.run(scene.imago(&["job", "pause", &job, "--to", &to])).0, 0);
    refused(&scene, &job, "it is paused");
    let (exit, resumed) = scene.run(scene.between(&["job", "resume", &job]));
    assert_eq!((exit, resumed["asked"].as_str()), (0, Some("resume")), "{resumed}");
    assert!(slow.is_running(), "who follows the source was not disturbed: {}", slow.errors());
    assert_eq!(application_writes(&scene.old).await, Ok(()));
    scene.load_goes_on(20);
    scene.nothing_lost(load, &scene.old);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_that_went_is_made_again_and_another_jobs_block_is_left_alone() {
    let scene = Scene::start().await;
    let index = doc! {"createIndexes": "docs", "indexes": [{"key": {"a": 1}, "name": "a"}]};
    administer(&scene.old, "shop", index).await;
    let partly = ["copy", "--ns", "shop.docs", "--until", "caught-up", "--filter", "{}"];
    let (exit, copied) = scene.run(scene.between(&partly));
    assert_eq!(exit, 0, "{copied}");
    let job = copied["job"].as_str().unwrap();
    let (exit, failed) = scene.run(scene.cutover(job, &["--reverse"]));
    assert_eq!(exit, 4, "{failed}");
    assert!(failed["error"]["message"].as_str().unwrap().contains("only a part"), "{failed}");

    administer(&scene.new, "shop", doc! {"dropIndexes": "docs", "index": "a"}).await;
    refused(&scene, job, "the hook failed");
    let listed = administer(&scene.new, "shop", doc! {"listIndexes": "docs"}).await;
    assert!(listed.to_string().contains("\"name\": \"a\""), "the job made it again: {listed}");

    administer(&scene.old, "admin", doc! {"setUserWriteBlockMode": 1, "global": true}).await;
    let (exit, failed) = scene.run(scene.cutover(job, &["--on-cutover", "exit 1"]));
    assert_eq!(exit, 4, "{failed}");
    assert_eq!(application_writes(&scene.old).await, Err(BLOCKED), "who set it lifts it");
    administer(&scene.old, "admin", doc! {"setUserWriteBlockMode": 1, "global": false}).await;
    let (exit, done) = scene.run(scene.cutover(job, &[]));
    assert_eq!(exit, 0, "{done}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_secondary_is_followed_and_not_cut_over_from() {
    let scene = Scene::of(replica_set(3).with_auth(), replica_set(1).with_auth()).await;
    let all = doc! {"insert": "orders", "documents": orders(0..200), "writeConcern": {"w": 3}};
    administer(&scene.old, "shop", all).await;
    let primary = scene.old.primary(scene.old.name()).await.unwrap();
    let port = scene.old.nodes().iter().find(|node| node.name != primary).unwrap().port;
    let (from, to) = (direct_uri(&scene.old, port), scene.new.admin_uri());
    let of_one =
        |words: &[&str]| scene.run(scene.imago(&[words, &["--from", &from, "--to", &to]].concat()));
    let (exit, copied) = of_one(&["copy", "--ns", "shop.orders", "--until", "caught-up"]);
    assert_eq!(exit, 0, "{copied}");
    let job = copied["job"].as_str().unwrap();
    let (_, status) = scene.run(scene.imago(&["job", "status", job, "--to", &to]));
    assert_eq!(status["progress"]["cutover_ready"], false, "{status}");
    let cutover = ["cutover", job, "--block", "none", "--on-cutover", "true"];
    let (exit, refused) = of_one(&cutover);
    assert_eq!(exit, 4, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("not the primary"), "{refused}");
    assert!(refused["error"]["help"].as_str().unwrap().contains("replicaSet="), "{refused}");
    // By all members the same job is cut over.
    insert(&scene.old, "orders", orders(200..300)).await;
    let (exit, done) = scene.run(scene.between(&cutover));
    assert_eq!(exit, 0, "{done}");
    assert_eq!(count(&scene.new, "orders").await, 300);
}
