//! A sharded cluster, a collection under a recorded load, and a plan of its new shape.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bson::{Bson, Document, doc};
use imago_mongo::error::{Error, code};
use imago_mongo::reshard::plan::{Chunk, Flowing, Placing, Plan};
use imago_mongo::server::collection::Size;
use imago_mongo::server::endpoint::Endpoint;
use imago_testbed::pool::{self, Leased, sharded};
use imago_testbed::{Cluster, ClusterSpec, Role, wait};
use serde_json::Value;
use tempfile::TempDir;

use crate::process::Process;

/// The collection whose shape is changed.
pub const NS: &str = "shop.reviews";
/// Error code of a user's write while writes are blocked.
pub const BLOCKED: i32 = 371;
const DOCUMENTS: &str = "3000";

/// A cluster, and a folder for histories, sockets, plans and what processes print.
pub struct Scene {
    /// The cluster, which other tests have had before.
    pub cluster: Leased,
    /// Its router as the administrator.
    pub admin: Endpoint,
    folder: TempDir,
    processes: AtomicUsize,
    /// Number of times that each shard had been at each fail point when the point was switched on.
    entered: Mutex<BTreeMap<String, Vec<i64>>>,
}

impl Scene {
    /// So many shards of one member, with the collection spread over them by its old key.
    pub async fn start(shards: u32) -> Self {
        Self::of(sharded(shards).with_auth()).await
    }

    /// The same with servers that can be made to stop at places in their code.
    pub async fn stoppable() -> Self {
        let spec = sharded(2).with_auth();
        Self::of(spec.with_parameter("enableTestCommands", "1")).await
    }

    /// A cluster like this, with the collection spread over its shards.
    pub async fn of(spec: ClusterSpec) -> Self {
        let cluster = Box::pin(pool::lease(spec)).await.unwrap();
        let admin = Box::pin(Endpoint::connect(&cluster.admin_uri(), "cluster")).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let scene = Self {
            cluster,
            admin,
            folder,
            processes: AtomicUsize::new(0),
            entered: Mutex::default(),
        };
        if scene.admin.is_sharded() {
            scene.spread().await;
        }
        scene
    }

    async fn spread(&self) {
        self.run("admin", doc! {"enableSharding": "shop"}).await;
        self.run("admin", doc! {"shardCollection": NS, "key": {"productID": 1}}).await;
        let shards = self.shards().await;
        let own = self.find("config", "databases", doc! {"_id": "shop"}).await;
        let own = own[0].get_str("primary").unwrap();
        let others: Vec<&String> = shards.iter().filter(|shard| *shard != own).collect();
        for (n, shard) in others.iter().enumerate() {
            let at = doc! {"productID": format!("B{:09}", 50_000 * (n + 1) / shards.len())};
            self.run("admin", doc! {"split": NS, "middle": at.clone()}).await;
            let command =
                doc! {"moveChunk": NS, "find": at, "to": shard.as_str(), "_waitForDelete": true};
            self.run("admin", command).await;
        }
        let index = doc! {"key": {"time": -1, "score": 1}, "name": "newest"};
        self.run("shop", doc! {"createIndexes": "reviews", "indexes": [index]}).await;
    }

    /// The name of a replica set: of shard `s1`, `s2`, or of the config server `cfg`.
    pub fn set(&self, which: &str) -> String {
        format!("{}-{which}", self.cluster.name())
    }

    /// The names of the shards.
    pub async fn shards(&self) -> Vec<String> {
        let found = self.find("config", "shards", doc! {}).await;
        found.iter().map(|shard| shard.get_str("_id").unwrap().to_owned()).collect()
    }

    /// Runs a command as the administrator.
    pub async fn run(&self, db: &str, command: Document) -> Document {
        self.admin.run(db, command).await.unwrap()
    }

    /// All that the administrator finds.
    pub async fn find(&self, db: &str, coll: &str, filter: Document) -> Vec<Document> {
        found(&self.admin, db, doc! {"find": coll, "filter": filter, "sort": {"_id": 1}}).await
    }

    /// A plan that cuts the documents as they are now by `key` into so many chunks of equal numbers
    /// and deals them out to the shards in turn.
    pub async fn plan(&self, key: Document, chunks: usize) -> Plan {
        let sorted = doc! {
            "find": "reviews", "sort": key.clone(), "batchSize": 100_000,
            "projection": key.keys().map(|field| (field.clone(), 1.into())).collect::<Document>(),
        };
        let documents = found(&self.admin, "shop", sorted).await;
        let keys: Vec<Document> = documents.iter().map(|document| key_of(document, &key)).collect();
        let mut points: Vec<Document> =
            (1..chunks).map(|n| keys[keys.len() * n / chunks].clone()).collect();
        points.dedup();
        let shards = self.shards().await;
        let place = |n: usize, min: Option<String>| Chunk {
            min,
            size: Size::default(),
            bytes_on: vec![0; shards.len()],
            // Not the order of the shards, so that a chunk that was left where it was is noticed.
            shard: (n * 2 + 1) % shards.len(),
        };
        let mins = std::iter::once(None).chain(points.iter().map(|at| Some(text_of(at))));
        let chunks = mins.enumerate().map(|(n, min)| place(n, min)).collect();
        Plan {
            ns: NS.parse().unwrap(),
            old_key: r#"{"productID": 1}"#.into(),
            key: text_of(&key),
            space_bytes: vec![0; shards.len()],
            shards,
            size: Size::default(),
            chunks,
            placing: Placing::Balanced,
            flowing: Flowing::Wfs,
            flows: Vec::new(),
            moved: Size::default(),
            imbalance: (1.0, 1.0),
            compared: Vec::new(),
            sampled: 0,
            predicted_s: 0.0,
            paced_s: None,
            members: Vec::new(),
            findings: Vec::new(),
        }
    }

    /// The same with the load's usual new key, two chunks for each shard.
    pub async fn usual_plan(&self) -> Plan {
        let chunks = 2 * self.shards().await.len();
        self.plan(doc! {"userID": 1}, chunks).await
    }

    /// Documents of the collection that its shadow does not have, and the shards that have them all the
    /// same: for the message of a test that fails.
    pub async fn missing(&self) -> String {
        let shadows = doc! {"_id": {"$regex": "imago.shadow"}};
        let shadow = self.find("config", "collections", shadows).await;
        let Some(shadow) = shadow.first().and_then(|found| found.get_str("_id").ok()) else {
            return "there is no shadow".into();
        };
        let (db, coll) = shadow.split_once('.').unwrap();
        let there = self.find(db, coll, doc! {}).await;
        let is_there = |of: &Document| there.iter().any(|found| found.get("_id") == of.get("_id"));
        let all = self.find("shop", "reviews", doc! {}).await;
        let missing: Vec<&Document> = all.iter().filter(|of| !is_there(of)).collect();
        let mut told = format!("{} of {} are not in {shadow}\n", missing.len(), all.len());
        let ids: Vec<_> = missing.iter().map(|of| of.get("_id").unwrap().clone()).collect();
        told += &format!("{ids:?}\n");
        for (name, shard) in self.admin.shards().await.unwrap() {
            let held = async |coll: &str| {
                let find = doc! {"find": coll, "filter": {"_id": {"$in": ids.clone()}}};
                found(shard.as_ref().unwrap(), db, find).await.len()
            };
            let (of_shadow, of_source) = (held(coll).await, held("reviews").await);
            told += &format!(
                "{name} has {of_shadow} of them in the shadow, {of_source} in the source\n"
            );
        }
        let moves = doc! {"what": {"$regex": "moveChunk"}};
        told += &format!("{:?}\n", self.find("config", "changelog", moves).await);
        told
    }

    /// A path within the scene's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The program with these words, in the scene's folder.
    pub fn imago(&self, words: &[&str]) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
        command.current_dir(self.folder.path()).args(words);
        command.args(["--json", "--progress", "json"]);
        let n = self.processes.fetch_add(1, Ordering::Relaxed);
        Process::start(command, self.path(&format!("{n}-{}", words[0])))
    }

    /// `imago reshard run` of this plan, as the administrator.
    pub fn reshard(&self, plan: &Plan, words: &[&str]) -> Process {
        std::fs::write(self.path("plan"), serde_json::to_vec(plan).unwrap()).unwrap();
        let uri = self.cluster.admin_uri();
        self.imago(&[&["reshard", "run", "--uri", &uri, "--plan", "plan"], words].concat())
    }

    /// `imago reshard resume`.
    pub fn resume(&self, job: &str, words: &[&str]) -> Process {
        let uri = self.cluster.admin_uri();
        self.imago(&[&["reshard", "resume", job, "--uri", &uri], words].concat())
    }

    /// `imago reshard revert`.
    pub fn revert(&self, job: &str, words: &[&str]) -> Process {
        let uri = self.cluster.admin_uri();
        self.imago(&[&["reshard", "revert", job, "--uri", &uri], words].concat())
    }

    /// `imago job VERB`, which must succeed; its result.
    pub fn job(&self, verb: &str, job: &str, words: &[&str]) -> Value {
        let uri = self.cluster.admin_uri();
        let mut asked = self.imago(&[&["job", verb, job, "--to", &uri], words].concat());
        let (exit, said) = asked.ended();
        assert_eq!(exit, 0, "{said}");
        said
    }

    /// Fills the collection, and begins a load that goes on until it is stopped.
    pub async fn load(&self) -> Process {
        self.load_of("40", "read=20,update=45,insert=25,delete=10").await
    }

    /// The same with so many operations a second, of these kinds.
    pub async fn load_of(&self, rate: &str, mix: &str) -> Process {
        let uri = self.cluster.uri();
        let what = ["load", "--uri", &uri, "--ns", NS, "--documents", DOCUMENTS, "--size-bytes"];
        let how = ["500", "--until-stopped", "--rate", rate, "--op-timeout", "60s", "--mix"];
        let record = [mix, "--record", "h", "--control", "s", "--reinsert", "0.5"];
        let mut load = self.imago(&[&what[..], &how, &record].concat());
        wait::until("the load can be steered", async || {
            assert!(load.is_running(), "the load ended: {}", load.errors());
            self.path("s").exists()
        })
        .await;
        self.load_goes_on(50).await;
        load
    }

    /// Writes of the load that were acknowledged.
    fn acknowledged(&self) -> Option<u64> {
        let (_, status) = self.imago(&["load", "status", "--control", "s"]).ended();
        status["writes"]["ok"].as_u64()
    }

    /// Waits until so many further writes of the load are acknowledged.
    pub async fn load_goes_on(&self, by: u64) {
        let before = self.acknowledged().unwrap_or(0);
        // Each look is a process.
        let poll = Duration::from_millis(250);
        wait::until_with(poll, "the load's writes are acknowledged", async || {
            self.acknowledged().is_some_and(|now| now >= before + by)
        })
        .await;
    }

    /// Makes it known that a job's process is dead, so that its successor does not have to wait until
    /// it must be: the test has seen it die, and sees here that its last write has ended.
    pub async fn bury(&self, job: &str) {
        let shards = self.members().await;
        let pipeline = [
            doc! {"$currentOp": {}},
            doc! {"$match": {"active": true, "ns": {"$regex": r"imago\.shadow\."}}},
        ];
        let ask = doc! {"aggregate": 1, "pipeline": &pipeline[..], "cursor": {}};
        let mut quiet = 0;
        let poll = Duration::from_millis(60);
        wait::until_with(poll, "its last writes have ended", async || {
            let mut is_quiet = true;
            for shard in &shards {
                let reply = shard.run("admin", ask.clone()).await.unwrap();
                let cursor = reply.get_document("cursor").unwrap();
                is_quiet &= cursor.get_array("firstBatch").unwrap().is_empty();
            }
            quiet = if is_quiet { quiet + 1 } else { 0 };
            quiet == 5
        })
        .await;
        let mut record = self.record(job).await;
        if record["owner"].is_object() {
            record["owner"]["heartbeat_at_ms"] = 0.into();
        }
        self.set_record(job, &record).await;
    }

    /// Waits until another process has a job that was buried, and has given so many signs of life.
    pub async fn is_claimed(&self, job: &str, signs: usize) {
        let mut beats = Vec::new();
        wait::until_with(Duration::from_millis(50), "the job is taken over", async || {
            let record = self.record(job).await;
            let beat = record["owner"]["heartbeat_at_ms"].as_u64().filter(|beat| *beat > 0);
            beats.extend(beat);
            beats.dedup();
            beats.len() >= signs
        })
        .await;
    }

    /// The record of a job.
    pub async fn record(&self, job: &str) -> Value {
        let kept = self.find("imago", "jobs", doc! {"_id": job}).await;
        serde_json::from_str(kept[0].get_str("record").unwrap()).unwrap()
    }

    /// Keeps something else of a job.
    pub async fn set_record(&self, job: &str, record: &Value) {
        let change = doc! {"q": {"_id": job}, "u": {"$set": {"record": record.to_string()}}};
        self.run("imago", doc! {"update": "jobs", "updates": [change]}).await;
    }

    /// The plan of a job that made it itself.
    pub async fn plan_of(&self, job: &str) -> Plan {
        serde_json::from_value(self.record(job).await["spec"]["reshard"].clone()).unwrap()
    }

    /// Every server that holds data, directly, as the administrator.
    pub async fn members(&self) -> Vec<Endpoint> {
        let mut members = Vec::new();
        for node in self.cluster.nodes() {
            if node.role == Role::Member && node.process.is_some() {
                members.push(self.direct(node.port).await);
            }
        }
        members
    }

    /// The server at this port, as the administrator.
    pub async fn direct(&self, port: u16) -> Endpoint {
        direct(&self.cluster, port).await
    }

    /// Has every shard wait so long before it writes into a collection.
    pub async fn slow_writes_to(&self, ns: &str, by: Duration) {
        self.cluster.undo(Role::Member, doc! {"configureFailPoint": "failCommand", "mode": "off"});
        let data = doc! {
            "failCommands": ["insert", "update", "delete"], "namespace": ns,
            "blockConnection": true, "blockTimeMS": i64::try_from(by.as_millis()).unwrap(),
        };
        for shard in self.members().await {
            let command =
                doc! {"configureFailPoint": "failCommand", "mode": "alwaysOn", "data": &data};
            shard.run("admin", command).await.unwrap();
        }
    }

    /// Waits until a shard has stopped at a place in its code that [`Self::fail_point`] names.
    pub async fn is_held_at(&self, place: &str) {
        let shards = self.members().await;
        let before = self.entered.lock().unwrap()[place].clone();
        let held = format!("a shard is held at {place}");
        wait::until_with(Duration::from_millis(20), &held, async || {
            for (shard, before) in shards.iter().zip(&before) {
                let once_more = before + 1;
                let ask =
                    doc! {"waitForFailPoint": place, "timesEntered": once_more, "maxTimeMS": 50};
                if shard.run("admin", ask).await.is_ok() {
                    return true;
                }
            }
            false
        })
        .await;
    }

    /// Waits until a shard has a command at work that fits a filter of `$currentOp`.
    pub async fn is_at_work(&self, what: &str, filter: Document) {
        let shards = self.members().await;
        wait::until_with(Duration::from_millis(20), what, async || at_work(&shards, &filter).await)
            .await;
    }

    /// Waits until no shard has.
    pub async fn is_over(&self, what: &str, filter: Document) {
        let shards = self.members().await;
        wait::until_with(Duration::from_millis(20), what, async || {
            !at_work(&shards, &filter).await
        })
        .await;
    }

    /// Has every shard stop at a place in its code, or go on from there.
    pub async fn fail_point(&self, place: &str, is_on: bool) {
        self.cluster.undo(Role::Member, doc! {"configureFailPoint": place, "mode": "off"});
        let mode = if is_on { "alwaysOn" } else { "off" };
        let mut entered = Vec::new();
        for shard in self.members().await {
            let command = doc! {"configureFailPoint": place, "mode": mode};
            let reply = shard.run("admin", command).await.unwrap();
            let count = reply.get("count").unwrap();
            entered.push(count.as_i64().or(count.as_i32().map(i64::from)).unwrap());
        }
        if is_on {
            self.entered.lock().unwrap().insert(place.to_owned(), entered);
        }
    }

    /// Waits until a process has written down that it blocks writes (`is_blocked`), or that it requests
    /// the rename (`rename_requested`).
    pub async fn is_noted(&self, job: &str, what: &str, at_work: &mut Process) {
        let noted = doc! {"_id": job, "record": {"$regex": format!(r#""{what}":true"#)}};
        wait::until(what, async || {
            let is_noted = !self.find("imago", "jobs", noted.clone()).await.is_empty();
            assert!(is_noted || at_work.is_running(), "it has ended: {}", at_work.errors());
            is_noted
        })
        .await;
    }

    /// One write of the application to another collection; the server's refusal.
    pub async fn application_writes(&self) -> Result<(), i32> {
        let command = doc! {"insert": "notes", "documents": [{"text": "written"}]};
        let app = Box::pin(Endpoint::connect(&self.cluster.uri(), "cluster")).await.unwrap();
        match app.run("other", command).await {
            Ok(reply) => match reply.get_array("writeErrors").ok().and_then(|all| all.first()) {
                Some(error) => Err(error.as_document().unwrap().get_i32("code").unwrap()),
                None => Ok(()),
            },
            Err(Error::Server { cause, .. }) => Err(code(&cause).unwrap()),
            Err(error) => panic!("{error}"),
        }
    }
}

/// The server at this port of a cluster, as the administrator.
pub async fn direct(cluster: &Cluster, port: u16) -> Endpoint {
    Box::pin(Endpoint::connect(&direct_uri(cluster, port), "shard")).await.unwrap()
}

/// Its connection string.
pub fn direct_uri(cluster: &Cluster, port: u16) -> String {
    let login = cluster.credentials().map(|known| {
        let user = &known.admin;
        (format!("{}:{}@", user.name, user.password), "&authSource=admin")
    });
    let (login, source) = login.unwrap_or_default();
    format!("mongodb://{login}127.0.0.1:{port}/?directConnection=true{source}")
}

async fn at_work(shards: &[Endpoint], filter: &Document) -> bool {
    let pipeline = [doc! {"$currentOp": {"allUsers": true}}, doc! {"$match": filter}];
    let ask = doc! {"aggregate": 1, "pipeline": &pipeline[..], "cursor": {}};
    for shard in shards {
        let reply = shard.run("admin", ask.clone()).await.unwrap();
        let cursor = reply.get_document("cursor").unwrap();
        if !cursor.get_array("firstBatch").unwrap().is_empty() {
            return true;
        }
    }
    false
}

/// The documents of a cursor that fit into one batch.
pub async fn found(endpoint: &Endpoint, db: &str, mut find: Document) -> Vec<Document> {
    find.insert("batchSize", 100_000);
    find.insert("singleBatch", true);
    let reply = endpoint.run(db, find).await.unwrap();
    let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    batch.iter().map(|found| found.as_document().unwrap().clone()).collect()
}

/// The values of a document in the fields of a shard key.
pub fn key_of(document: &Document, key: &Document) -> Document {
    let value = |field: &String| document.get(field).cloned().unwrap_or(Bson::Null);
    key.keys().map(|field| (field.clone(), value(field))).collect()
}

/// A key as extended JSON: those that occur here are texts and small numbers, which are the same in
/// both notations.
pub fn text_of(key: &Document) -> String {
    let value = |value: &Bson| match value {
        Bson::String(text) => Value::from(text.as_str()),
        Bson::Int32(number) => Value::from(*number),
        Bson::Int64(number) => serde_json::json!({"$numberLong": number.to_string()}),
        Bson::Null => Value::Null,
        other => panic!("{other} is no part of a key here"),
    };
    let fields = key.iter().map(|(field, of)| (field.clone(), value(of)));
    Value::Object(fields.collect()).to_string()
}
