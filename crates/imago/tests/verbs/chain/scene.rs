//! A sharded cluster with messages, a cache, and what plain code says that a chain makes of them.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use bson::oid::ObjectId;
use bson::{Bson, Document, doc};
use imago_mongo::server::endpoint::Endpoint;
use imago_testbed::pool::{self, Leased, sharded};
use imago_testbed::{ClusterSpec, Single, SingleSpec, find_redis, require};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

/// Messages of the collection with integers.
pub const MESSAGES: i64 = 1_500;
/// Orders of the collection with ObjectIds.
pub const ORDERS: usize = 300;
/// The collection whose `_id`s are integers, and the one whose are ObjectIds.
pub const NS: &str = "shop.messages";
pub const ORDERS_NS: &str = "shop.orders";

/// A cluster of two shards, and a cache if there is a Redis.
pub struct Scene {
    pub cluster: Leased,
    pub admin: Endpoint,
    pub cache: Option<Single>,
    folder: TempDir,
}

/// A message of a hundred characters, another one for each number.
pub fn message(number: i64) -> Document {
    let text = hex(&Sha256::digest(number.to_le_bytes()));
    doc! {"_id": number, "text": format!("{text}{}", &text[..36])}
}

pub fn order(number: usize) -> Document {
    let mut bytes = [0x65; 12];
    bytes[8..].copy_from_slice(&u32::try_from(number * 7_919).unwrap().to_be_bytes());
    doc! {"_id": ObjectId::from_bytes(bytes), "items": i32::try_from(number % 9).unwrap(), "paid": number.is_multiple_of(3)}
}

/// The line of an order's key.
pub fn order_key(number: usize) -> String {
    format!(r#"{{"$oid":"{}"}}"#, order(number).get_object_id("_id").unwrap().to_hex())
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The rank that follows from a document, as one divides by hand.
pub fn rank(document: &Document, count: u64) -> u64 {
    let digest = Sha256::digest(document.to_vec().unwrap());
    digest.iter().fold(0, |rest, byte| {
        ((u128::from(rest) * 256 + u128::from(*byte)) % u128::from(count)) as u64
    })
}

/// The lines of a phase's result.
pub fn lines(keys: impl IntoIterator<Item = impl ToString>) -> String {
    keys.into_iter().map(|key| key.to_string() + "\n").collect()
}

/// What a chain of such a length makes of these integers: sorted as text, each once.
pub fn reference(keys: impl Iterator<Item = i64>, length: u32) -> String {
    let mut texts: Vec<String> = keys.map(|key| key.to_string()).collect();
    for _ in 0..length {
        let next = texts
            .iter()
            .map(|key| rank(&message(key.parse().unwrap()), MESSAGES as u64).to_string());
        texts = next.collect();
        texts.sort();
        texts.dedup();
    }
    lines(texts)
}

/// The Merkle root over documents, from the root down.
pub fn root(documents: &[Document]) -> Vec<u8> {
    match documents {
        [one] => Sha256::digest(one.to_vec().unwrap()).to_vec(),
        all => {
            let half = all.len().next_power_of_two() / 2;
            Sha256::digest([root(&all[..half]), root(&all[half..])].concat()).to_vec()
        }
    }
}

impl Scene {
    pub async fn start() -> Self {
        Self::of(sharded(2)).await
    }

    pub async fn of(spec: ClusterSpec) -> Self {
        let cluster = Box::pin(pool::lease(spec)).await.unwrap();
        let admin = Box::pin(Endpoint::connect(&cluster.admin_uri(), "cluster")).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let cache = match require(find_redis()) {
            Some(_) => {
                let place = Some(folder.path().to_path_buf());
                let spec = SingleSpec { folder: place, ..SingleSpec::redis("cached") };
                Some(Single::start(spec).await.unwrap())
            }
            None => None,
        };
        let scene = Self { cluster, admin, cache, folder };
        let messages = (0..MESSAGES).map(message).collect();
        scene.fill("messages", messages, MESSAGES / 2).await;
        let orders = (0..ORDERS).map(order).collect();
        scene.fill("orders", orders, order(ORDERS / 2).get("_id").unwrap().clone()).await;
        scene
    }

    /// Fills a collection whose halves are on different shards.
    async fn fill(&self, coll: &str, documents: Vec<Document>, middle: impl Into<Bson>) {
        let (ns, middle) = (format!("shop.{coll}"), middle.into());
        self.run("admin", doc! {"enableSharding": "shop"}).await;
        self.run("admin", doc! {"shardCollection": &ns, "key": {"_id": 1}}).await;
        self.run("admin", doc! {"split": &ns, "middle": {"_id": middle.clone()}}).await;
        let find = doc! {"find": "databases", "filter": {"_id": "shop"}};
        let found = self.run("config", find).await;
        let first = found.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
        let own = first[0].as_document().unwrap().get_str("primary").unwrap().to_owned();
        let shards: Vec<String> = self.cluster.set_names().map(str::to_owned).collect();
        let other = shards.iter().find(|name| **name != own).unwrap();
        let moving =
            doc! {"moveChunk": &ns, "find": {"_id": middle}, "to": other, "_waitForDelete": true};
        self.run("admin", moving).await;
        let insert =
            doc! {"insert": coll, "documents": documents, "writeConcern": {"w": "majority"}};
        let inserted = self.run("shop", insert).await;
        assert!(!inserted.contains_key("writeErrors"), "{inserted}");
    }

    pub async fn run(&self, db: &str, command: Document) -> Document {
        self.admin.run(db, command).await.unwrap()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file, and says where it is.
    pub fn file(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name).to_str().unwrap().to_owned()
    }

    pub fn cache_uri(&self) -> String {
        self.cache.as_ref().unwrap().uri()
    }

    pub fn program(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
        command.current_dir(self.folder.path()).args(words);
        command
    }

    /// `imago chain map` on the messages, with more words.
    pub fn map(&self, more: &[&str]) -> Command {
        let (uri, modulo) = (self.cluster.uri(), MESSAGES.to_string());
        let words = ["chain", "map", "--uri", &uri, "--ns", NS, "--modulo", &modulo];
        self.program(&[&words[..], more].concat())
    }

    /// `imago chain run` on the messages, with more words.
    pub fn run_chain(&self, more: &[&str]) -> Value {
        let (uri, modulo) = (self.cluster.uri(), MESSAGES.to_string());
        let words = ["chain", "run", "--uri", &uri, "--ns", NS, "--modulo", &modulo, "--json"];
        let output = output(self.program(&[&words[..], more].concat()), "");
        assert!(output.status.success(), "{}", said(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// Starts a command whose standard streams are pipes.
pub fn piped(mut command: Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    imago_testbed::process::spawn(command).unwrap()
}

/// Runs a command with this input to its end.
pub fn output(command: Command, input: &str) -> Output {
    let mut child = piped(command);
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_owned());
    // A program that fails may not read all of it.
    let writer = std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

/// What a command printed, once it has succeeded.
#[track_caller]
pub fn printed(command: Command, input: &str) -> String {
    let output = output(command, input);
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Asserts that a command fails with exit code 1, and returns what it said.
#[track_caller]
pub fn failed(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}", said(output));
    said(output)
}
