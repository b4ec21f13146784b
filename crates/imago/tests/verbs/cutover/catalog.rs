//! Collections and views that come, go and change while a job follows.

use bson::oid::ObjectId;
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, DateTime, Document, doc};
use imago_mongo::server::endpoint::Endpoint;
use imago_testbed::{Cluster, wait};
use serde_json::Value;

use crate::cutover::scene::{Scene, administer, application_writes, json};
use crate::process::Process;

/// `_id`s of all kinds that applications have; the same for the same `n`.
fn id(n: u32) -> Bson {
    let wide = i64::from(n) + 1_764_000_000_000;
    match n % 6 {
        0 => ObjectId::parse_str(format!("6923f1e2{n:016x}")).unwrap().into(),
        1 => {
            let bytes = [&[0x7f; 12][..], &n.to_be_bytes()].concat();
            Binary { subtype: BinarySubtype::Uuid, bytes }.into()
        }
        2 => wide.into(),
        3 => (f64::from(n) + 0.25).into(),
        4 => doc! {"tenant": format!("shop-{}", n % 7), "order": wide}.into(),
        _ => format!("order-{n:08}").into(),
    }
}

pub fn orders(range: std::ops::Range<u32>) -> Vec<Document> {
    let order = |n: u32| {
        doc! {
            "_id": id(n), "customer": format!("customer-{}", n % 100),
            "at": DateTime::from_millis(1_764_000_000_000 + i64::from(n)), "amount": f64::from(n) / 8.0,
        }
    };
    range.map(order).collect()
}

pub async fn insert(cluster: &Cluster, coll: &str, documents: Vec<Document>) {
    for part in documents.chunks(1_000) {
        administer(cluster, "shop", doc! {"insert": coll, "documents": part}).await;
    }
}

pub async fn count(cluster: &Cluster, coll: &str) -> i32 {
    administer(cluster, "shop", doc! {"count": coll}).await.get_i32("n").unwrap()
}

/// The options of a collection or view, if there is one.
pub async fn options(cluster: &Cluster, coll: &str) -> Option<Document> {
    let admin = Endpoint::connect(&cluster.admin_uri(), "source").await.unwrap();
    let list = doc! {"listCollections": 1, "filter": {"name": coll}};
    let listed = admin.run("shop", list).await.unwrap();
    let found = listed.get_document("cursor").unwrap().get_array("firstBatch").unwrap().first()?;
    found.as_document().unwrap().get_document("options").ok().cloned()
}

pub fn status(scene: &Scene, job: &str) -> Value {
    scene.run(scene.imago(&["job", "status", job, "--to", &scene.new.admin_uri()])).1
}

fn names(of: &Value) -> Vec<&str> {
    of.as_array()
        .into_iter()
        .flatten()
        .filter_map(|name| name["ns"].as_str().or(name.as_str()))
        .collect()
}

/// Makes the owner of a job, which was killed, count as dead at once, when nothing that it sent is under
/// way any more.
pub async fn bury(at: &Cluster, job: &str) {
    let ask = doc! {
        "aggregate": 1, "cursor": {},
        "pipeline": [{"$currentOp": {}}, {"$match": {"active": true, "ns": {"$regex": "^shop\\."}}}],
    };
    let mut quiet = 0;
    wait::until("its last writes have ended", async || {
        let reply = administer(at, "admin", ask.clone()).await;
        let cursor = reply.get_document("cursor").unwrap();
        quiet = if cursor.get_array("firstBatch").unwrap().is_empty() { quiet + 1 } else { 0 };
        quiet == 3
    })
    .await;
    let found = administer(at, "imago", doc! {"find": "jobs", "filter": {"_id": job}}).await;
    let found = found.get_document("cursor").unwrap().get_array("firstBatch").unwrap()[0].clone();
    let record = found.as_document().unwrap().get_str("record").unwrap();
    let mut record: Value = serde_json::from_str(record).unwrap();
    record["owner"]["heartbeat_at_ms"] = 0.into();
    let change = doc! {"q": {"_id": job}, "u": {"$set": {"record": record.to_string()}}};
    administer(at, "imago", doc! {"update": "jobs", "updates": [change]}).await;
}

/// A copy that goes on following, once it may be cut over.
pub fn follows(scene: &Scene, words: &[&str]) -> (Process, String) {
    let copy = scene.spawn(scene.between(&[&["copy"], words].concat()), "copy");
    let to = scene.new.admin_uri();
    let mut job = String::new();
    wait::until_blocking("the copy may be cut over", || {
        let (_, jobs) = scene.run(scene.imago(&["job", "list", "--to", &to]));
        jobs.as_array().and_then(|jobs| jobs.first()).is_some_and(|first| {
            job = first["id"].as_str().unwrap().to_owned();
            first["progress"]["cutover_ready"] == true
        })
    });
    (copy, job)
}

fn is_verified(scene: &Scene) {
    let (exit, verified) = scene.run(scene.between(&["verify", "--ns", "shop.*"]));
    assert_eq!(exit, 0, "{verified}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_pattern_matches_later_is_copied_and_cut_over_too() {
    let scene = Scene::start().await;
    let load = scene.load();
    insert(&scene.old, "notes", orders(0..50)).await;
    let recent = |amount: i32| vec![doc! {"$match": {"amount": {"$gt": amount}}}];
    let view = doc! {"create": "recent", "viewOn": "reviews", "pipeline": recent(5)};
    administer(&scene.old, "shop", view).await;
    let (mut copy, job) = follows(&scene, &["--ns", "shop.*"]);

    let index =
        doc! {"createIndexes": "orders", "indexes": [{"key": {"customer": 1}, "name": "of"}]};
    insert(&scene.old, "orders", orders(0..600)).await;
    administer(&scene.old, "shop", index).await;
    let import = doc! {"insert": "import", "documents": orders(600..700)};
    administer(&scene.old, "staging", import).await;
    let rename = doc! {"renameCollection": "staging.import", "to": "shop.imported"};
    administer(&scene.old, "admin", rename).await;
    administer(&scene.old, "shop", doc! {"drop": "notes"}).await;
    insert(&scene.old, "notes", orders(50..60)).await;
    let change = doc! {"collMod": "recent", "viewOn": "reviews", "pipeline": recent(7)};
    administer(&scene.old, "shop", change).await;
    let best = doc! {"create": "best", "viewOn": "orders", "pipeline": recent(9)};
    administer(&scene.old, "shop", best).await;
    wait::until_blocking("all of it has joined the job", || {
        assert!(copy.is_running(), "{}", copy.errors());
        let status = status(&scene, &job);
        let joined = names(&status["joined"]);
        let new = ["shop.orders", "shop.imported", "shop.notes", "shop.best"];
        new.iter().all(|name| joined.contains(name)) && status["progress"]["cutover_ready"] == true
    });
    assert!(names(&status(&scene, &job)["gone"]).contains(&"shop.notes"));
    // Collections that joined are followed.
    let paid =
        doc! {"q": {"customer": "customer-7"}, "u": {"$set": {"is_paid": true}}, "multi": true};
    administer(&scene.old, "shop", doc! {"update": "orders", "updates": [paid]}).await;
    let gone = doc! {"q": {"_id": id(8)}, "limit": 1};
    administer(&scene.old, "shop", doc! {"delete": "orders", "deletes": [gone]}).await;

    let hook = scene.switch_to(&scene.new);
    let (exit, done) = scene.run(scene.cutover(&job, &["--on-cutover", &hook]));
    assert_eq!(exit, 0, "{done}");
    assert!(names(&done["joined"]).contains(&"shop.orders"), "{done}");
    assert_eq!(copy.ended().0, 0, "{}", copy.errors());
    scene.load_goes_on(20);
    assert_eq!(count(&scene.new, "orders").await, 599);
    assert_eq!(count(&scene.new, "imported").await, 100);
    assert_eq!(count(&scene.new, "notes").await, 10, "what was dropped does not come back");
    for name in ["orders", "imported", "notes", "recent", "best"] {
        assert_eq!(options(&scene.new, name).await, options(&scene.old, name).await, "{name}");
        let verify = ["verify", "--ns", &format!("shop.{name}")];
        let (exit, verified) = scene.run(scene.between(&verify));
        assert_eq!(exit, 0, "{name}: {verified}");
    }
    scene.nothing_lost(load, &scene.new);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cutover_takes_in_a_collection_created_after_the_copy_stopped() {
    let scene = Scene::start().await;
    insert(&scene.old, "reviews", orders(0..500)).await;
    let copy = ["copy", "--ns", "shop.*", "--until", "caught-up"];
    let (exit, copied) = scene.run(scene.between(&copy));
    assert_eq!(exit, 0, "{copied}");
    let job = copied["job"].as_str().unwrap();
    administer(&scene.old, "elsewhere", doc! {"insert": "orders", "documents": orders(0..5)}).await;
    insert(&scene.old, "orders", orders(0..2_000)).await;
    let (exit, done) = scene.run(scene.cutover(job, &["--lift-block"]));
    assert_eq!(exit, 0, "{done}");
    assert_eq!(names(&done["joined"]), ["shop.orders"]);
    is_verified(&scene);
    assert_eq!(application_writes(&scene.old).await, Ok(()), "the block is lifted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_joins_is_complete_after_a_death() {
    let scene = Scene::start().await;
    let load = scene.load();
    let (mut copy, job) = follows(&scene, &["--ns", "shop.*"]);
    for (nth, coll) in ["orders", "invoices", "parcels"].into_iter().enumerate() {
        insert(&scene.old, coll, orders(0..3_000)).await;
        wait::until_blocking("it joins", || names(&status(&scene, &job)["joined"]).len() > nth);
        copy.kill();
        bury(&scene.new, &job).await;
        let change =
            doc! {"q": {"customer": "customer-3"}, "u": {"$inc": {"amount": 1}}, "multi": true};
        administer(&scene.old, "shop", doc! {"update": coll, "updates": [change]}).await;
        let resume = scene.between(&["job", "resume", &job]);
        copy = scene.spawn(resume, &format!("resume-{nth}"));
    }
    wait::until_blocking("all are followed", || {
        assert!(copy.is_running(), "{}", copy.errors());
        let status = status(&scene, &job);
        status["progress"]["cutover_ready"] == true && status["is_worked_at"] == true
    });
    let hook = scene.switch_to(&scene.new);
    let (exit, done) = scene.run(scene.cutover(&job, &["--on-cutover", &hook]));
    assert_eq!(exit, 0, "{done}");
    for coll in ["orders", "invoices", "parcels"] {
        let (exit, verified) =
            scene.run(scene.between(&["verify", "--ns", &format!("shop.{coll}")]));
        assert_eq!(exit, 0, "{verified}");
    }
    scene.nothing_lost(load, &scene.new);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collection_that_is_dropped_or_renamed_ends_nothing_but_itself() {
    let scene = Scene::start().await;
    let load = scene.load();
    for coll in ["orders", "invoices", "parcels"] {
        insert(&scene.old, coll, orders(0..400)).await;
    }
    let named = ["--ns", "shop.reviews", "--ns", "shop.orders", "--ns", "shop.invoices"];
    let slow = ["--ns", "shop.parcels", "--documents-s", "400"];
    let copy = scene.between(&[&["copy"], &named[..], &slow].concat());
    let mut copy = scene.spawn(copy, "copy");
    let to = scene.new.admin_uri();
    let mut job = String::new();
    // One while the bulk is copied, the others later.
    wait::until_blocking("documents are copied", || {
        let (_, jobs) = scene.run(scene.imago(&["job", "list", "--to", &to]));
        jobs.as_array().and_then(|jobs| jobs.first()).is_some_and(|first| {
            job = first["id"].as_str().unwrap().to_owned();
            first["progress"]["documents_done"].as_u64() > Some(0)
        })
    });
    administer(&scene.old, "shop", doc! {"drop": "parcels"}).await;
    wait::until_blocking("it is known to be gone", || {
        assert!(copy.is_running(), "{}", copy.errors());
        names(&status(&scene, &job)["gone"]) == ["shop.parcels"]
    });
    let fast = ["job", "set", &job, "--to", &to, "--documents-s", "100000"];
    assert_eq!(scene.run(scene.imago(&fast)).0, 0);
    wait::until_blocking("the rest is followed", || {
        assert!(copy.is_running(), "{}", copy.errors());
        status(&scene, &job)["progress"]["cutover_ready"] == true
    });
    administer(&scene.old, "shop", doc! {"drop": "orders"}).await;
    let rename = doc! {"renameCollection": "shop.invoices", "to": "archive.invoices"};
    administer(&scene.old, "admin", rename).await;
    wait::until_blocking("their copies are dropped", || {
        assert!(copy.is_running(), "{}", copy.errors());
        let status = status(&scene, &job);
        names(&status["gone"]).len() == 3 && status["progress"]["cutover_ready"] == true
    });
    let hook = scene.switch_to(&scene.new);
    let (exit, done) = scene.run(scene.cutover(&job, &["--on-cutover", &hook]));
    assert_eq!(exit, 0, "{done}");
    assert_eq!(names(&done["gone"]).len(), 3, "{done}");
    for coll in ["orders", "invoices", "parcels"] {
        assert_eq!(options(&scene.new, coll).await, None, "{coll}");
    }
    scene.nothing_lost(load, &scene.new);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_join_is_not_left_behind_in_silence() {
    let scene = Scene::start().await;
    insert(&scene.old, "reviews", orders(0..10)).await;
    let (mut copy, job) = follows(&scene, &["--ns", "shop.*"]);
    let metrics = doc! {"create": "metrics", "timeseries": {"timeField": "at"}};
    administer(&scene.old, "shop", metrics).await;
    wait::until_blocking("it is named", || {
        assert!(copy.is_running(), "{}", copy.errors());
        let obstacles = status(&scene, &job)["progress"]["cutover_obstacles"].to_string();
        obstacles.contains("shop.metrics")
    });
    let (exit, refused) = scene.run(scene.cutover(&job, &[]));
    assert_eq!(exit, 4, "{refused}");
    assert!(refused.to_string().contains("shop.metrics"), "{refused}");
    assert!(copy.is_running(), "who follows the source was not disturbed: {}", copy.errors());
    let (exit, done) = scene.run(scene.cutover(&job, &["--ignore-new"]));
    assert_eq!(exit, 0, "{done}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_wants_no_new_collections_gets_none() {
    let scene = Scene::start().await;
    insert(&scene.old, "reviews", orders(0..10)).await;
    let copy = ["copy", "--ns", "shop.*", "--no-new", "--until", "caught-up"];
    let (exit, copied) = scene.run(scene.between(&copy));
    assert_eq!(exit, 0, "{copied}");
    insert(&scene.old, "orders", orders(0..10)).await;
    let (exit, done) = scene.run(scene.cutover(copied["job"].as_str().unwrap(), &[]));
    assert_eq!(exit, 0, "{done}");
    assert_eq!(options(&scene.new, "orders").await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verify_names_what_only_one_side_has_and_goes_on() {
    let scene = Scene::start().await;
    for coll in ["invoices", "orders", "reviews"] {
        insert(&scene.old, coll, orders(0..40)).await;
    }
    let metrics = doc! {"create": "metrics", "timeseries": {"timeField": "at"}};
    administer(&scene.old, "shop", metrics).await;
    let copy = ["copy", "--ns", "shop.orders", "--until", "caught-up"];
    assert_eq!(scene.run(scene.between(&copy)).0, 0);
    insert(&scene.new, "reviews", orders(0..40)).await;
    insert(&scene.new, "left over", orders(0..3)).await;
    let output = scene.between(&["verify", "--ns", "shop.*"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let found = json(&output);
    let collections = found["collections"].as_array().unwrap();
    let verdicts: Vec<(&str, bool, u64)> = collections
        .iter()
        .map(|of| {
            let missing = of["missing"].as_u64().unwrap();
            (of["source"].as_str().unwrap(), of["is_missing"] == true, missing)
        })
        .collect();
    let expected =
        [("shop.invoices", true, 40), ("shop.orders", false, 0), ("shop.reviews", false, 0)];
    assert_eq!(verdicts, expected, "{found}");
    assert_eq!(names(&found["only_at_destination"]), ["shop.left over"]);
    assert_eq!(names(&found["left_out"]), ["shop.metrics"]);
    // A collection that only the destination has is no difference.
    administer(&scene.old, "shop", doc! {"drop": "invoices"}).await;
    let (exit, verified) = scene.run(scene.between(&["verify", "--ns", "shop.*"]));
    assert_eq!((exit, &verified["clean"]), (0, &true.into()), "{verified}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verify_of_a_pattern_bears_collections_that_come_and_go() {
    let scene = Scene::start().await;
    for side in [&scene.old, &scene.new] {
        insert(side, "accounts", orders(0..40)).await;
        for empty in ["carts", "vouchers"] {
            administer(side, "shop", doc! {"create": empty}).await;
        }
        insert(side, "wishes", orders(0..40)).await;
    }
    // It is compared again with growing pauses, before the others are.
    let differs = doc! {"q": {"_id": id(8)}, "u": {"$set": {"amount": 0}}};
    administer(&scene.new, "shop", doc! {"update": "accounts", "updates": [differs]}).await;
    let (from, to) = (scene.old.admin_uri(), scene.new.admin_uri());
    let words = ["verify", "--ns", "shop.*", "--retries", "5", "--from", &from, "--to", &to];
    let mut verify = scene.spawn(scene.telling(&words), "verify");
    verify.until("it compares the first one", |said| said["to"] == "verify shop.accounts");
    for side in [&scene.old, &scene.new] {
        administer(side, "shop", doc! {"drop": "carts"}).await;
        administer(side, "shop", doc! {"create": "discounts"}).await;
    }
    administer(&scene.old, "shop", doc! {"drop": "wishes"}).await;
    let (exit, ended) = verify.ended();
    assert_eq!(exit, 3, "{ended}");
    let found: Value = serde_json::from_str(&verify.printed()).unwrap();
    assert_eq!(found["differences"], 1, "{found}");
    let compared = found["collections"].as_array().unwrap();
    let compared: Vec<&str> = compared.iter().map(|of| of["source"].as_str().unwrap()).collect();
    assert_eq!(compared, ["shop.accounts", "shop.vouchers"], "{found}");
    assert_eq!(names(&found["left_out"]), ["shop.carts", "shop.wishes"], "{found}");
    assert!(found["left_out"].to_string().contains("dropped at the source"), "{found}");
}
