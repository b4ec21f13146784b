//! Deletions by servers themselves: nothing expires at a destination but by the source's rules.

use std::time::Duration;

use bson::{DateTime, Document, doc};
use imago_testbed::pool::replica_set;
use imago_testbed::{Cluster, wait};

use crate::cutover::catalog::{count, follows, insert, options, status};
use crate::cutover::scene::{Scene, administer};

/// Two clusters whose servers look for expired documents every second.
async fn scene() -> Scene {
    let spec = || replica_set(1).with_auth().with_parameter("ttlMonitorSleepSecs", "1");
    Scene::of(spec(), spec()).await
}

/// Sessions that were last seen `ago_s` seconds ago.
fn sessions(users: std::ops::Range<u32>, ago_s: i64) -> Vec<Document> {
    let seen = DateTime::from_millis(DateTime::now().timestamp_millis() - ago_s * 1_000);
    let session = |n: u32| doc! {"_id": format!("session-{n:08x}"), "user": n, "seenAt": seen};
    users.map(session).collect()
}

async fn ttl(at: &Cluster, coll: &str, after_s: i32) {
    let index = doc! {"key": {"seenAt": 1}, "name": "seenAt_1", "expireAfterSeconds": after_s};
    administer(at, "shop", doc! {"createIndexes": coll, "indexes": [index]}).await;
}

/// The time of a collection's TTL index.
async fn after_s(at: &Cluster, coll: &str) -> Option<i32> {
    let listed = administer(at, "shop", doc! {"listIndexes": coll}).await;
    let indexes = listed.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    let found = indexes.iter().find_map(|index| index.as_document()?.get("expireAfterSeconds"))?;
    found.as_i32().or_else(|| i32::try_from(found.as_i64()?).ok())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_expires_at_the_destination_that_lives_at_the_source() {
    let scene = scene().await;
    for coll in ["carts", "logins", "sessions"] {
        insert(&scene.old, coll, sessions(0..200, 0)).await;
        ttl(&scene.old, coll, 3_600).await;
    }
    let events = doc! {"create": "events", "capped": true, "size": 8_192, "max": 40};
    administer(&scene.old, "shop", events).await;
    insert(&scene.old, "events", sessions(0..60, 0)).await;
    let (mut copy, job) = follows(&scene, &["--ns", "shop.*"]);
    let to = scene.new.admin_uri();
    assert_eq!(after_s(&scene.new, "sessions").await, Some(i32::MAX));
    let (exit, verified) = scene.run(scene.between(&["verify", "--ns", "shop.*"]));
    assert_eq!(exit, 0, "suspended rules are no difference: {verified}");

    assert_eq!(scene.run(scene.imago(&["job", "pause", &job, "--to", &to])).0, 0);
    // Documents whose time has passed by the rules of before live on by those of now.
    administer(&scene.old, "shop", doc! {"dropIndexes": "carts", "index": "seenAt_1"}).await;
    let longer = doc! {"name": "seenAt_1", "expireAfterSeconds": 86_400};
    administer(&scene.old, "shop", doc! {"collMod": "logins", "index": longer}).await;
    let old = sessions(0..200, 7_200)[0].get("seenAt").unwrap().clone();
    for coll in ["carts", "logins"] {
        let age = doc! {"q": {}, "u": {"$set": {"seenAt": old.clone()}}, "multi": true};
        administer(&scene.new, "shop", doc! {"update": coll, "updates": [age.clone()]}).await;
        administer(&scene.old, "shop", doc! {"update": coll, "updates": [age]}).await;
    }
    insert(&scene.old, "events", sessions(60..90, 0)).await;
    // Several looks of the server.
    wait::lasts(Duration::from_secs(3)).await;
    for coll in ["carts", "logins"] {
        assert_eq!(count(&scene.new, coll).await, 200, "{coll}");
    }
    assert_eq!(scene.run(scene.between(&["job", "resume", &job])).0, 0);
    // The source's own deletions arrive as changes.
    let age = doc! {"q": {"user": {"$lt": 50}}, "u": {"$set": {"seenAt": old}}, "multi": true};
    administer(&scene.old, "shop", doc! {"update": "sessions", "updates": [age]}).await;
    wait::until("expired sessions are gone at both", async || {
        count(&scene.old, "sessions").await == 150 && count(&scene.new, "sessions").await == 150
    })
    .await;
    wait::until_blocking("it may be cut over", || {
        assert!(copy.is_running(), "{}", copy.errors());
        status(&scene, &job)["progress"]["cutover_ready"] == true
    });

    let (exit, done) = scene.run(scene.cutover(&job, &["--lift-block"]));
    assert_eq!(exit, 0, "{done}");
    for coll in ["carts", "logins"] {
        assert_eq!(count(&scene.new, coll).await, 200, "{coll}");
    }
    assert_eq!(after_s(&scene.new, "carts").await, None);
    assert_eq!(after_s(&scene.new, "logins").await, Some(86_400));
    assert_eq!(after_s(&scene.new, "sessions").await, Some(3_600));
    assert_eq!(options(&scene.new, "events").await, options(&scene.old, "events").await);
    assert_eq!(count(&scene.new, "events").await, count(&scene.old, "events").await);

    // Now each cluster expires documents by its own monitor.
    let hour = sessions(1_000..1_100, 3_600 - 2);
    insert(&scene.old, "sessions", hour.clone()).await;
    administer(&scene.old, "admin", doc! {"setParameter": 1, "ttlMonitorEnabled": false}).await;
    insert(&scene.new, "sessions", hour).await;
    wait::until("one side has expired them", async || count(&scene.new, "sessions").await == 150)
        .await;
    let (exit, verified) = scene.run(scene.between(&["verify", "--ns", "shop.sessions"]));
    administer(&scene.old, "admin", doc! {"setParameter": 1, "ttlMonitorEnabled": true}).await;
    assert_eq!(exit, 0, "{verified}");
    assert_eq!(verified["collections"][0]["expired"], 100, "{verified}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_job_and_a_way_back_give_the_rules_back() {
    let scene = scene().await;
    insert(&scene.old, "sessions", sessions(0..100, 0)).await;
    ttl(&scene.old, "sessions", 3_600).await;
    let to = scene.new.admin_uri();
    let copy = ["copy", "--ns", "shop.sessions", "--until", "caught-up"];
    let (exit, copied) = scene.run(scene.between(&copy));
    assert_eq!(exit, 0, "{copied}");
    assert_eq!(after_s(&scene.new, "sessions").await, Some(i32::MAX));
    let job = copied["job"].as_str().unwrap();
    let (exit, cancelled) = scene.run(scene.imago(&["job", "cancel", job, "--to", &to]));
    assert_eq!(exit, 0, "{cancelled}");
    assert_eq!(after_s(&scene.new, "sessions").await, Some(3_600));

    administer(&scene.new, "shop", doc! {"drop": "sessions"}).await;
    let (exit, copied) = scene.run(scene.between(&copy));
    assert_eq!(exit, 0, "{copied}");
    let job = copied["job"].as_str().unwrap();
    let mut forward = scene.spawn(scene.cutover(job, &["--reverse"]), "forward");
    wait::until("the old cluster expires nothing while it follows", async || {
        assert!(forward.is_running(), "{} {}", forward.printed(), forward.errors());
        after_s(&scene.old, "sessions").await == Some(i32::MAX)
    })
    .await;
    assert_eq!(after_s(&scene.new, "sessions").await, Some(3_600));
    let longer = doc! {"name": "seenAt_1", "expireAfterSeconds": 86_400};
    administer(&scene.new, "shop", doc! {"collMod": "sessions", "index": longer}).await;
    let (exit, back) = scene.run(scene.cutover(job, &["--rollback"]));
    assert_eq!(exit, 0, "{back}");
    assert_eq!(forward.ended().0, 0, "{}", forward.errors());
    assert_eq!(after_s(&scene.old, "sessions").await, Some(86_400));
}
