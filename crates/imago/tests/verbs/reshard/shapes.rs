//! Shapes that are asked for on the command line: shards that leave and come back, chunks of another size;
//! and what an operator sees and does meanwhile.

use bson::{Document, doc};

use imago_testbed::wait;

use crate::process::Process;
use crate::reshard::scene::{NS, Scene, found};

const DOCUMENTS: i32 = 4_000;

impl Scene {
    /// `imago reshard run` of a plan that it makes itself.
    pub fn change(&self, words: &[&str]) -> Process {
        let uri = self.cluster.admin_uri();
        self.imago(&[&["reshard", "run", "--uri", &uri, "--ns", NS], words].concat())
    }

    /// Number of documents that each shard holds.
    async fn held(&self) -> Vec<usize> {
        let mut held = Vec::new();
        for shard in self.members().await {
            held.push(found(&shard, "shop", doc! {"find": "reviews"}).await.len());
        }
        held
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_is_drained_and_gets_its_part_again() {
    let scene = Scene::start(3).await;
    let note = |n: i32| {
        let product = format!("B{:09}", n * 12);
        doc! {"_id": n, "productID": product, "userID": n * 37 % 100, "text": "x".repeat(2_000)}
    };
    let notes: Vec<Document> = (0..DOCUMENTS).map(note).collect();
    scene.run("shop", doc! {"insert": "reviews", "documents": &notes}).await;
    assert!(scene.held().await[2] > 500, "it has its part");

    let third = scene.set("s3");
    let drained = ["--drain-shard", &third, "--verify", "sample", "--flows", "fixed"];
    let (exit, done) = scene.change(&drained).ended();
    assert_eq!(exit, 0, "{done}");
    let verified = done["verified"].as_i64().unwrap();
    assert!(verified >= i64::from(DOCUMENTS / 2), "drawn at random from both: {done}");
    let held = scene.held().await;
    assert!(held[2] == 0 && held[0] > 1_000 && held[1] > 1_000, "{held:?}");
    let key = scene.collection().await.get_document("key").unwrap().clone();
    assert_eq!(key, doc! {"productID": 1});

    let back = ["--add-shard", &third, "--flows", "orchestra", "--sockets", "7"];
    let (exit, done) = scene.change(&back).ended();
    assert_eq!(exit, 0, "{done}");
    assert!(scene.held().await[2] > 500, "it has its part again");

    // Chunks of a mebibyte, of some eight that there are.
    let before = scene.chunks().await.len();
    let (exit, done) = scene.change(&["--chunk-size-mb", "1"]).ended();
    assert_eq!(exit, 0, "{done}");
    let after = scene.chunks().await.len();
    assert!(before == 6 && (8..12).contains(&after), "{before} chunks, then {after}");
    assert!(scene.find("shop", "reviews", doc! {}).await == notes, "they are the same");
    scene.is_tidy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hashed_keys_come_and_go() {
    let scene = Scene::start(2).await;
    let note = |n: i32| doc! {"_id": n, "productID": format!("B{:09}", n * 50), "userID": n % 70};
    let notes: Vec<Document> = (0..1_000).map(note).collect();
    scene.run("shop", doc! {"insert": "reviews", "documents": &notes}).await;
    for key in [r#"{"_id": "hashed"}"#, r#"{"userID": 1, "productID": "hashed"}"#, r#"{"_id": 1}"#]
    {
        let (exit, done) = scene.change(&["--key", key, "--chunks", "6"]).ended();
        assert_eq!(exit, 0, "{key}: {done}");
        let held = scene.held().await;
        assert!(held.iter().all(|held| *held > 300), "{key}: {held:?}");
        assert!(scene.find("shop", "reviews", doc! {}).await == notes, "{key}: they are the same");
    }
    scene.is_tidy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collection_with_a_collation_keeps_it() {
    let scene = Scene::start(2).await;
    scene.run("shop", doc! {"drop": "reviews"}).await;
    let collation = doc! {"locale": "en", "strength": 2};
    scene.run("shop", doc! {"create": "reviews", "collation": collation}).await;
    let simple = doc! {"locale": "simple"};
    let key = doc! {"productID": 1};
    let shard = doc! {"shardCollection": NS, "key": key, "collation": simple};
    scene.run("admin", shard).await;
    // To the collection two users are one, to its chunks they are two.
    let user = |n: i32| format!("{}{}", if n % 2 == 0 { "a" } else { "A" }, n / 2 % 50);
    let note = |n: i32| doc! {"_id": n, "productID": format!("B{n:09}"), "userID": user(n)};
    let notes: Vec<Document> = (0..1_000).map(note).collect();
    scene.run("shop", doc! {"insert": "reviews", "documents": &notes}).await;
    let words = ["--key", r#"{"userID": 1}"#, "--chunks", "4"];
    let (exit, done) = scene.change(&words).ended();
    assert_eq!(exit, 0, "{done}");
    assert!(scene.find("shop", "reviews", doc! {}).await == notes, "they are the same");
    assert_eq!(scene.find("shop", "reviews", doc! {"userID": "a7"}).await.len(), 20);
    assert!(scene.held().await.iter().all(|held| *held > 300), "both have their part");
    scene.is_tidy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_is_paused_stands_still_says_what_went_where_and_goes_on() {
    let scene = Scene::start(2).await;
    let load = scene.load().await;
    let plan = scene.usual_plan().await;
    let mut at_work = scene.reshard(&plan, &["--documents-s", "500"]);
    let job = at_work.phase("execute");
    at_work.until("what went where", |said| {
        let flows = said["flows"].as_array().map(Vec::as_slice).unwrap_or_default();
        flows.iter().any(|flow| flow["from"] != flow["to"] && flow["bytes"].as_u64() > Some(0))
    });
    scene.job("pause", &job, &[]);
    at_work.until("a pause", |said| said["event"] == "paused");
    assert_eq!(scene.job("status", &job, &[])["state"], "paused");
    let copied = || {
        let said = at_work.said();
        said.iter().filter_map(|said| said["documents_done"].as_u64()).max().unwrap()
    };
    // The batches that were under way still land.
    let mut before = copied();
    wait::until("they have landed", async || {
        scene.load_goes_on(50).await;
        let last = std::mem::replace(&mut before, copied());
        last == before
    })
    .await;
    scene.load_goes_on(100).await;
    assert_eq!(copied(), before, "it stands still, and clients do not");

    let uri = scene.cluster.admin_uri();
    let mut asked = scene.imago(&["job", "resume", &job, "--from", &uri, "--to", &uri]);
    let (exit, said) = asked.ended();
    assert_eq!((exit, said["asked"].as_str()), (0, Some("resume")), "{said}");
    scene.job("set", &job, &["--documents-s", "none", "--pace", "full"]);
    let (exit, done) = at_work.ended();
    assert_eq!(exit, 0, "{done}");
    scene.is_reshaped(load, &plan).await;
}
