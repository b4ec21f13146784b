//! The block that hits one collection: a validator, which deletes pass.

use std::time::Duration;

use bson::{Bson, Document, doc};
use imago_mongo::reshard::plan::Plan;
use imago_mongo::server::endpoint::Endpoint;
use imago_testbed::pool::sharded;
use imago_testbed::{ClusterSpec, Role, wait};
use serde_json::Value;

use crate::process::Process;
use crate::reshard::scene::{NS, Scene, found};

/// Error code of a client's insert or update that is refused.
const INVALID: i32 = 121;
/// Delay of a rename, in ms: long enough on a busy machine for all that clients do meanwhile.
const HELD_MS: i64 = 6_000;
const VALIDATOR: [&str; 2] = ["--block", "validator"];

/// Documents of the tests themselves, which the load knows nothing of.
fn note(n: i32) -> Document {
    doc! {
        "_id": format!("note-{n:03}"), "productID": format!("B{:09}", n * 500),
        "userID": format!("A{:09}", (n * 37) % 100 * 500), "k": 0,
    }
}

fn id(n: i32) -> Document {
    doc! {"_id": format!("note-{n:03}")}
}

impl Scene {
    /// The collection's own validation, as the server lists it.
    pub async fn validation(&self) -> Document {
        let ask = doc! {"aggregate": "reviews", "pipeline": [{"$listCatalog": {}}], "cursor": {}};
        let reply = self.run("shop", ask).await;
        let on_shards = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
        let options = |entry: &Bson| {
            let entry = entry.as_document().unwrap().get_document("md").unwrap();
            entry.get_document("options").unwrap().clone()
        };
        let all: Vec<Document> = on_shards.iter().map(options).collect();
        let options = &all[0];
        let differs = all.iter().any(|of| of.get("validator") != options.get("validator"));
        assert!(!differs, "shards disagree: {reply}");
        let of = |name: &str| Some((name.to_owned(), options.get(name)?.clone()));
        ["validator", "validationLevel", "validationAction"].into_iter().filter_map(of).collect()
    }

    /// Gives it one, that all documents satisfy.
    async fn has_validator(&self) -> Document {
        self.run(
            "shop",
            doc! {
                "collMod": "reviews", "validator": {"productID": {"$type": "string"}},
                "validationLevel": "moderate", "validationAction": "warn",
            },
        )
        .await;
        let own = self.validation().await;
        assert_eq!(own.len(), 3, "{own}");
        own
    }

    /// Has every shard wait so long before it runs this command.
    async fn slow(&self, command: &str, by_ms: i64) {
        self.cluster.undo(Role::Member, doc! {"configureFailPoint": "failCommand", "mode": "off"});
        let data = doc! {
            "failCommands": [command], "failInternalCommands": true, "blockConnection": true,
            "blockTimeMS": by_ms,
        };
        let mode = if by_ms > 0 { "alwaysOn" } else { "off" };
        for shard in self.members().await {
            let command = doc! {"configureFailPoint": "failCommand", "mode": mode, "data": &data};
            shard.run("admin", command).await.unwrap();
        }
    }

    async fn insert_notes(&self, numbers: std::ops::Range<i32>) {
        let notes: Vec<Document> = numbers.map(note).collect();
        let reply = self.run("shop", doc! {"insert": "reviews", "documents": notes}).await;
        assert!(reply.get("writeErrors").is_none(), "{reply}");
    }

    async fn notes(&self) -> Vec<Document> {
        self.find("shop", "reviews", doc! {"_id": {"$regex": "^note-"}}).await
    }

    /// The load's check must not meet them.
    async fn without_notes(&self) {
        let all = doc! {"q": {"_id": {"$regex": "^note-"}}, "limit": 0};
        self.run("shop", doc! {"delete": "reviews", "deletes": [all]}).await;
    }

    /// Waits until the record of a job says so.
    async fn record_says(&self, job: &str, at_work: &mut Process, says: impl Fn(&Value) -> bool) {
        wait::until("the record says so", async || {
            let is_so = says(&self.record(job).await["checkpoint"]["job"]);
            assert!(is_so || at_work.is_running(), "it has ended: {}", at_work.errors());
            is_so
        })
        .await;
    }

    async fn is_renamed(&self, before: &Document) {
        wait::until("it is renamed", async || {
            let now = self.find("config", "collections", doc! {"_id": NS}).await;
            now.first().is_some_and(|now| now.get("uuid") != before.get("uuid"))
        })
        .await;
    }
}

/// A job whose rename was asked for, and is held up for so long.
async fn renaming(scene: &Scene, plan: &Plan, by_ms: i64) -> (Process, String) {
    let mut at_work = scene.reshard(plan, &VALIDATOR);
    let job = at_work.phase("verify");
    scene.slow("_shardsvrRenameCollection", by_ms).await;
    scene.is_noted(&job, "rename_requested", &mut at_work).await;
    (at_work, job)
}

async fn delete(app: &Endpoint, numbers: impl Iterator<Item = i32>) {
    let deletes: Vec<Document> = numbers.map(|n| doc! {"q": id(n), "limit": 1}).collect();
    let asked = deletes.len();
    let reply = app.run("shop", doc! {"delete": "reviews", "deletes": deletes}).await.unwrap();
    assert_eq!(reply.get_i32("n").unwrap() as usize, asked, "acknowledged: {reply}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_deleted_between_the_drain_and_the_rename_stays_deleted() {
    // Its counts are those of one primary: with three members, unplanned elections are rare.
    let spec = ClusterSpec { members: 3, ..sharded(2) };
    let scene = Scene::of(spec.with_auth().with_parameter("enableTestCommands", "1")).await;
    let load = scene.load().await;
    scene.insert_notes(0..100).await;
    let own = scene.has_validator().await;
    let mut plan = scene.usual_plan().await;
    for (n, chunk) in plan.chunks.iter_mut().enumerate() {
        chunk.shard = n % 2;
    }
    let app = Box::pin(Endpoint::connect(&scene.cluster.uri(), "cluster")).await.unwrap();
    let (mut at_work, _) = renaming(&scene, &plan, HELD_MS).await;
    delete(&app, (0..100).step_by(2)).await;

    // Writes of other collections go on; of this one inserts and updates do not.
    assert_eq!(scene.application_writes().await, Ok(()));
    let change = doc! {"q": id(1), "u": {"$inc": {"k": 1}}};
    for refused in [
        doc! {"insert": "reviews", "documents": [note(0)]},
        doc! {"update": "reviews", "updates": [change]},
    ] {
        let reply = app.run("shop", refused).await.unwrap();
        let error = reply.get_array("writeErrors").unwrap()[0].as_document().unwrap();
        assert_eq!(error.get_i32("code").unwrap(), INVALID, "{reply}");
        assert!(error.to_string().contains("changes the shape of this collection"), "{reply}");
    }
    let (exit, done) = at_work.ended();
    assert_eq!(exit, 0, "{done}");
    assert!(done["late_writes"]["deleted"].as_u64() >= Some(50), "{done}");
    assert_eq!(done["late_writes"]["lost"], serde_json::json!([]), "{done}");
    let left: Vec<Document> = (0..100).filter(|n| n % 2 == 1).map(note).collect();
    assert_eq!(scene.notes().await, left);
    assert_eq!(scene.validation().await, own);
    scene.without_notes().await;
    scene.is_reshaped(load, &plan).await;

    // And back, by the same way.
    let mut revert = scene.revert(done["job"].as_str().unwrap(), &VALIDATOR);
    let (exit, back) = revert.ended();
    assert_eq!(exit, 0, "{back}");
    assert_eq!(scene.validation().await, own);
    scene.is_tidy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_passes_the_validator_is_brought_over_or_named() {
    let scene = Scene::stoppable().await;
    scene.insert_notes(0..50).await;
    let plan = scene.usual_plan().await;
    let app = Box::pin(Endpoint::connect(&scene.cluster.uri(), "cluster")).await.unwrap();
    let (mut at_work, _) = renaming(&scene, &plan, HELD_MS).await;
    let change = |n: i32, change: Document| doc! {"q": id(n), "u": change};
    let mut replaced = note(2);
    replaced.insert("k", 5);
    for past in [
        doc! {"insert": "reviews", "documents": [note(50), note(51)]},
        doc! {"update": "reviews", "updates": [
            change(1, doc! {"$inc": {"k": 1}}), change(2, replaced.clone()),
        ]},
    ] {
        let mut past = past;
        past.insert("bypassDocumentValidation", true);
        let reply = app.run("shop", past).await.unwrap();
        assert_eq!(reply.get_i32("n").unwrap(), 2, "{reply}");
    }
    delete(&app, [3, 51].into_iter()).await;
    let (exit, done) = at_work.ended();
    assert_eq!(exit, 0, "{done}");
    let warned = |code: &str| at_work.said().iter().any(|said| said["code"] == code);
    assert!(warned("validator_bypassed"), "the application user may: {}", at_work.errors());
    assert!(warned("writes_lost"), "{}", at_work.errors());
    let late_writes = &done["late_writes"];
    assert_eq!(
        (&late_writes["deleted"], &late_writes["written"]),
        (&2.into(), &2.into()),
        "{done}"
    );
    assert!(late_writes["lost"].to_string().contains("note-001"), "{done}");
    assert_eq!(late_writes["lost"].as_array().unwrap().len(), 1, "{done}");
    let mut left: Vec<Document> = (0..51).filter(|n| *n != 3).map(note).collect();
    left[2] = replaced;
    assert_eq!(scene.notes().await, left);
    scene.is_tidy().await;
}

/// Writes until a shard's oplog has lost everything before now.
async fn roll_over(shard: &Endpoint) {
    let find = doc! {"find": "oplog.rs", "sort": {"$natural": 1}, "limit": 1};
    let oldest = async || {
        let first = found(shard, "local", find.clone()).await;
        first[0].get_timestamp("ts").unwrap()
    };
    let before = shard.cluster_time().await.unwrap();
    let filler = doc! {"filler": "x".repeat(1_000_000)};
    // The oplog is cut once a second.
    let poll = Duration::from_millis(50);
    wait::until_with(poll, "the oplog no longer reaches back to before", async || {
        let insert = doc! {"insert": "filler", "documents": [filler.clone()]};
        shard.run("elsewhere", insert).await.unwrap();
        oldest().await > before
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_the_oplog_no_longer_has_the_deletes_that_is_said_and_the_block_lifted() {
    let spec = ClusterSpec { oplog_mb: Some(8), ..sharded(2) };
    let scene = Scene::of(spec.with_auth().with_parameter("enableTestCommands", "1")).await;
    scene.insert_notes(0..50).await;
    let own = scene.has_validator().await;
    let before = scene.collection().await;
    let app = Box::pin(Endpoint::connect(&scene.cluster.uri(), "cluster")).await.unwrap();
    let plan = scene.usual_plan().await;
    let (mut at_work, job) = renaming(&scene, &plan, HELD_MS).await;
    delete(&app, (0..50).step_by(2)).await;
    let renaming = doc! {"command._shardsvrRenameCollection": {"$exists": true}};
    scene.is_at_work("it has asked for the rename", renaming).await;
    at_work.freeze();
    scene.is_renamed(&before).await;
    at_work.kill();
    scene.bury(&job).await;
    for shard in scene.members().await {
        roll_over(&shard).await;
    }
    let mut resume = scene.resume(&job, &[]);
    let (exit, done) = resume.ended();
    assert_eq!((exit, &done["late_writes"]["unknown"]), (0, &true.into()), "{done}");
    let said = resume.said();
    assert!(said.iter().any(|said| said["code"] == "deletes_unknown"), "{}", resume.errors());
    assert_eq!(scene.validation().await, own);
    assert_eq!(scene.notes().await.len(), 50, "they are there again, as was said");
    scene.is_tidy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_without_authorisation_is_blocked_too() {
    let scene = Scene::of(sharded(2)).await;
    let load = scene.load().await;
    let plan = scene.usual_plan().await;
    let mut at_work = scene.reshard(&plan, &["--block", "validator", "--max-block-ms", "1"]);
    let job = at_work.phase("prepare");
    at_work.until("the deadline is missed", |said| said["code"] == "drain_too_long");
    let refusing = scene.validation().await.to_string().contains("imago");
    assert!(!refusing, "the deadline lifts it");
    scene.load_goes_on(50).await;
    at_work.kill();
    scene.bury(&job).await;
    // It goes on by the block that it was begun with, unless told otherwise.
    let uri = scene.cluster.admin_uri();
    let mut resume = scene.imago(&["job", "resume", &job, "--from", &uri, "--to", &uri]);
    let (exit, done) = resume.ended();
    assert_eq!(exit, 0, "{done}");
    scene.is_reshaped(load, &plan).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_killed_at_any_step_of_the_block_is_followed_by_one_that_goes_on() {
    let scene = Scene::stoppable().await;
    let load = scene.load().await;
    scene.insert_notes(0..100).await;
    let own = scene.has_validator().await;
    let before = scene.collection().await;
    let plan = scene.usual_plan().await;
    let app = Box::pin(Endpoint::connect(&scene.cluster.uri(), "cluster")).await.unwrap();

    let mut at_work = scene.reshard(&plan, &VALIDATOR);
    let job = at_work.phase("verify");
    scene.record_says(&job, &mut at_work, |state| state["validation"].is_string()).await;
    at_work.kill();
    scene.bury(&job).await;

    // Dead when the rename has happened, and the deletes are not brought over.
    let mut at_work = scene.resume(&job, &[]);
    at_work.phase("verify");
    scene.slow("_shardsvrRenameCollection", 2_000).await;
    scene.is_noted(&job, "rename_requested", &mut at_work).await;
    delete(&app, (0..100).step_by(2)).await;
    at_work.freeze();
    scene.is_renamed(&before).await;
    at_work.kill();
    scene.bury(&job).await;
    let there = scene.notes().await.len();
    assert_eq!(there, 100, "readers see them once more");

    // Dead when they are, and the validator is not back.
    scene.slow("_shardsvrCollMod", 2_000).await;
    let mut at_work = scene.resume(&job, &[]);
    scene.record_says(&job, &mut at_work, |state| state["drained_to"].is_null()).await;
    at_work.kill();
    scene.bury(&job).await;
    assert_eq!(scene.notes().await.len(), 50);
    assert_ne!(scene.validation().await, own);

    scene.slow("_shardsvrCollMod", 0).await;
    let (exit, done) = scene.resume(&job, &[]).ended();
    assert_eq!(exit, 0, "{done}");
    let left: Vec<Document> = (0..100).filter(|n| n % 2 == 1).map(note).collect();
    assert_eq!(scene.notes().await, left);
    assert_eq!(scene.validation().await, own);
    scene.without_notes().await;
    scene.is_reshaped(load, &plan).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_of_a_dead_process_is_lifted_by_cancel() {
    let scene = Scene::stoppable().await;
    let load = scene.load().await;
    let own = scene.has_validator().await;
    let plan = scene.usual_plan().await;
    let mut at_work = scene.reshard(&plan, &VALIDATOR);
    let job = at_work.phase("verify");
    scene.slow("_shardsvrCollMod", 1_000).await;
    let modifying = doc! {"command._shardsvrCollMod": {"$exists": true}};
    // The block is asked for, and takes effect after the process that asked has died.
    scene.record_says(&job, &mut at_work, |state| state["validation"].is_string()).await;
    scene.is_at_work("the block is asked for", modifying.clone()).await;
    at_work.kill();
    scene.bury(&job).await;
    let cancelled = scene.job("cancel", &job, &[]);
    assert_eq!(cancelled["state"], "cancelled", "{cancelled}");
    scene.slow("_shardsvrCollMod", 0).await;
    scene.is_over("nothing of the block is under way", modifying).await;
    assert_eq!(scene.validation().await, own);
    scene.is_as_before(load).await;
}
