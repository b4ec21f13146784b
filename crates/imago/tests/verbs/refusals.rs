//! Refusals of `imago copy`: each comes with one clear error and its exit code, before anything is
//! written.

use std::process::{Child, Command, Output, Stdio};

use bson::{Document, doc};
use imago_mongo::server::endpoint::Endpoint;
use imago_testbed::pool::{self, Leased, replica_set};
use imago_testbed::port::Port;
use imago_testbed::{find_mongod, wait};
use serde_json::Value;

/// Two clusters: the source with users, so that there is something to get wrong.
struct Ends {
    source: Leased,
    destination: Leased,
}

impl Ends {
    async fn new() -> Self {
        let specs = [replica_set(1).with_auth(), replica_set(1)];
        let [source, destination] = Box::pin(pool::lease_all(specs)).await.unwrap();
        Self { source, destination }
    }

    fn copy(&self, more: &[&str]) -> Output {
        copy(&self.source.admin_uri(), &self.destination.uri(), more)
    }

    /// Every collection of the destination that is not the server's own.
    async fn names(&self) -> Vec<String> {
        let endpoint = connect(&self.destination.uri()).await;
        let client = endpoint.client();
        let mut names = Vec::new();
        for db in client.list_database_names().await.unwrap() {
            if ["admin", "config", "local"].contains(&&*db) {
                continue;
            }
            for coll in client.database(&db).list_collection_names().await.unwrap() {
                names.push(format!("{db}.{coll}"));
            }
        }
        names.sort();
        names
    }
}

async fn connect(uri: &str) -> Endpoint {
    Box::pin(Endpoint::connect(uri, "destination")).await.unwrap()
}

fn copy(from: &str, to: &str, more: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
    command.current_dir(folder.path()).env_clear();
    command.args(["copy", "--from", from, "--to", to, "--progress", "none", "--json"]);
    command.args(more).output().unwrap()
}

/// The exit code, and the one error.
fn refused(output: &Output) -> (i32, String) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.stdout.is_empty(), "an error is on stdout");
    let json: Value = serde_json::from_str(&stderr).unwrap_or_else(|_| panic!("{stderr}"));
    let message = json["error"]["message"].as_str().unwrap().to_owned();
    (output.status.code().unwrap(), message)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_copied_is_refused_and_nothing_is_written() {
    let ends = Ends::new().await;
    let source = connect(&ends.source.admin_uri()).await.client().database("shop");
    let there = connect(&ends.destination.uri()).await.client().database("shop");
    source.collection::<Document>("docs").insert_one(doc! {"_id": 1}).await.unwrap();
    source.collection::<Document>("full").insert_one(doc! {"_id": 1}).await.unwrap();
    there.collection::<Document>("full").insert_one(doc! {"_id": 2}).await.unwrap();
    let series = doc! {"create": "series", "timeseries": {"timeField": "at"}};
    source.run_command(series).await.unwrap();

    let collated = doc! {"create": "collated", "collation": {"locale": "en", "strength": 2}};
    there.run_command(collated).await.unwrap();
    let before = ["shop.collated", "shop.full"];

    let long = format!("shop.docs=shop.{}", "reviews-of-2026-".repeat(16));
    let cases: [(&[&str], i32, &str); 18] = [
        (&["--ns", "shop.nothing"], 4, "no collection shop.nothing"),
        (&["--ns", "nowhere.*"], 4, "no collection nowhere.*"),
        (&["--ns", "shop.docs", "--filter", "{price: 1"], 2, "{price: 1"),
        (&["--ns", "shop.docs", "--filter", r#"["a"]"#], 2, "the filter"),
        (&["--ns", "shop.docs", "--filter", r#"{"a": {"$near": 1}}"#], 2, "the filter"),
        (&["--ns", "shop.docs", "--filter", r#"{"a": {"$nonsense": 1}}"#], 2, "$nonsense"),
        (&["--ns", "shop.full"], 4, "shop.full already holds documents"),
        (&["--ns", "shop.docs=shop.full"], 4, "shop.full already holds documents"),
        (&["--ns", "shop.docs=shop.collated"], 4, "another option collation"),
        (&["--ns", "shop.series"], 4, "shop.series is a time series collection"),
        (&["--ns", "shop.docs", "--shard-key", r#"{"a": 1}"#], 4, "is a replica set"),
        (&["--ns", "shop.docs", "--ns", "shop.full=shop.docs"], 2, "two collections"),
        (&["--ns", "shop.docs=Shop.docs"], 4, "Shop and shop differ by case"),
        (&["--ns", &long], 4, "too long"),
        (&["--ns", "shop.system.js"], 4, "the source has no stored functions shop.system.js"),
        (&["--ns", "shop.system.profile"], 4, "shop.system.profile is a system collection"),
        (&["--ns", "shop.docs", "--shard-key", "{}"], 2, "it has no field"),
        (&["--ns", "shop.docs", "--shard-key", r#"{"a": 2}"#], 2, "neither 1 nor"),
    ];
    for (arguments, exit, said) in cases {
        let (code, message) = refused(&ends.copy(arguments));
        assert_eq!(code, exit, "{arguments:?}: {message}");
        assert!(message.contains(said), "{arguments:?}: {message}");
        assert_eq!(ends.names().await, before, "{arguments:?}");
    }

    let itself = copy(&ends.destination.uri(), &ends.destination.uri(), &["--ns", "shop.full"]);
    let (code, message) = refused(&itself);
    assert!(code == 4 && message.contains("onto itself"), "{code}: {message}");

    let dry = ends.copy(&["--ns", "shop.docs", "--dry-run"]);
    assert_eq!(dry.status.code(), Some(0), "{}", String::from_utf8_lossy(&dry.stderr));
    assert_eq!(ends.names().await, before, "a dry run writes nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clusters_that_cannot_be_used_are_refused() {
    let ends = Ends::new().await;
    let (to, ns) = (ends.destination.uri(), ["--ns", "shop.docs"]);

    let good = ends.source.admin_uri();
    let (scheme, host) = (good.find("://").unwrap() + 3, good.find('@').unwrap());
    let wrong = format!("{}stranger:s3cret{}", &good[..scheme], &good[host..]);
    let (code, message) = refused(&copy(&wrong, &to, &ns));
    assert!(code == 4 && message.contains("refused the credentials"), "{code}: {message}");
    assert!(!message.contains("s3cret"), "{message}");

    let nowhere = "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=300";
    for (from, to) in [(nowhere, &*to), (&*good, nowhere)] {
        let (code, message) = refused(&copy(from, to, &ns));
        assert!(code == 4 && message.contains("cannot be reached"), "{code}: {message}");
    }
    let silent = [&ns[..], &["--connect-timeout", "300ms"]].concat();
    let (code, message) = refused(&copy("mongodb://127.0.0.1:1/", &to, &silent));
    assert!(code == 4 && message.contains("answered within 0.3 s"), "{code}: {message}");
    let (code, message) = refused(&copy("no uri", &to, &ns));
    assert!(code == 2 && message.contains("connection string"), "{code}: {message}");
    assert!(ends.names().await.is_empty());
}

/// A destination whose user may read, and no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_without_rights_is_told_which_before_anything_is_made() {
    let specs = [replica_set(1).with_auth(), replica_set(1).with_auth()];
    let [source, destination] = Box::pin(pool::lease_all(specs)).await.unwrap();
    let docs = connect(&source.admin_uri()).await.client().database("shop").collection("docs");
    docs.insert_one(doc! {"_id": "64f1c0ffee64f1c0ffee0001"}).await.unwrap();
    let admin = connect(&destination.admin_uri()).await;
    let user = doc! {
        "createUser": "reader", "pwd": "reads", "roles": [{"role": "read", "db": "shop"}],
    };
    destination.end_with_this_test();
    admin.run("admin", user).await.unwrap();
    let uri = destination.admin_uri();
    let (scheme, host) = (uri.find("://").unwrap() + 3, uri.find('@').unwrap());
    let reader = format!("{}reader:reads{}", &uri[..scheme], &uri[host..]);
    for more in [&["--dry-run"][..], &[]] {
        let words = [&["--ns", "shop.docs"], more].concat();
        let (code, message) = refused(&copy(&source.admin_uri(), &reader, &words));
        let is_named = message.contains("may not") && message.contains("insert");
        assert!(code == 4 && is_named && message.contains("shop"), "{code}: {message}");
    }
    let names = admin.client().list_database_names().await.unwrap();
    assert!(!names.contains(&"shop".to_owned()), "{names:?}");
}

/// The right to block writes is needed at the cut-over, hours later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_whose_writes_cannot_be_blocked_is_named_before_the_copy() {
    let ends = Ends::new().await;
    let admin = connect(&ends.source.admin_uri()).await;
    let docs = admin.client().database("shop").collection("docs");
    docs.insert_one(doc! {"_id": "64f1c0ffee64f1c0ffee0001"}).await.unwrap();
    let user = doc! {
        "createUser": "reader", "pwd": "reads",
        "roles": ["readAnyDatabase", "clusterMonitor", {"role": "read", "db": "local"}],
    };
    ends.source.end_with_this_test();
    admin.run("admin", user).await.unwrap();
    let uri = ends.source.admin_uri();
    let (scheme, host) = (uri.find("://").unwrap() + 3, uri.find('@').unwrap());
    let reader = format!("{}reader:reads{}", &uri[..scheme], &uri[host..]);
    let notes = |from: &str| {
        let dry = copy(from, &ends.destination.uri(), &["--ns", "shop.docs", "--dry-run"]);
        assert_eq!(dry.status.code(), Some(0), "{}", String::from_utf8_lossy(&dry.stderr));
        let plan: Value = serde_json::from_slice(&dry.stdout).unwrap();
        plan["notes"].to_string()
    };
    let said = notes(&reader);
    assert!(
        said.contains("may not block writes") && said.contains("setUserWriteBlockMode"),
        "{said}"
    );
    assert_eq!(notes(&uri), "[]");
}

/// Two jobs that write one collection would undo what the other did.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_job_into_one_collection_and_help_for_one_that_ended_are_refused() {
    let ends = Ends::new().await;
    let source = connect(&ends.source.admin_uri()).await.client().database("shop");
    for coll in ["docs", "others"] {
        let document = doc! {"_id": "64f1c0ffee64f1c0ffee0001", "of": coll};
        source.collection::<Document>(coll).insert_one(document).await.unwrap();
    }
    let first = ends.copy(&["--ns", "shop.docs", "--until", "caught-up"]);
    let first: Value = serde_json::from_slice(&first.stdout).unwrap();
    let job = first["job"].as_str().unwrap();
    let again = ["--ns", "shop.others=shop.docs", "--into-existing", "--until", "caught-up"];
    let (code, message) = refused(&ends.copy(&again));
    assert!(code == 4 && message.contains(job) && message.contains("shop.docs"), "{message}");
    assert!(message.contains("running (follow), but no process has worked at it"), "{message}");
    let imago = |words: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
        command.current_dir(folder.path()).env_clear().args(words);
        command.args(["--to", &ends.destination.uri(), "--progress", "none", "--json"]);
        command.output().unwrap()
    };
    assert_eq!(imago(&["job", "cancel", job]).status.code(), Some(0));
    let from = ends.source.admin_uri();
    let (code, message) = refused(&imago(&["job", "work", job, "--from", &from]));
    assert!(code == 4 && message.contains("is cancelled"), "{code}: {message}");
    assert_eq!(ends.copy(&again).status.code(), Some(0), "it was given up");
}

/// A server without an oplog, killed with its test.
struct Standalone {
    server: Child,
    uri: String,
    _folder: tempfile::TempDir,
    _port: Port,
}

impl Standalone {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let reserved = Port::reserve().unwrap();
        let port = reserved.number();
        let mut command = Command::new(find_mongod().unwrap());
        command.args([
            "--bind_ip",
            "127.0.0.1",
            "--nounixsocket",
            "--wiredTigerCacheSizeGB",
            "0.25",
        ]);
        command.arg("--port").arg(port.to_string()).arg("--dbpath").arg(folder.path());
        let server = command.stdout(Stdio::null()).spawn().unwrap();
        let standalone = Self {
            server,
            uri: format!("mongodb://127.0.0.1:{port}/"),
            _folder: folder,
            _port: reserved,
        };
        wait::until("the server listens", async || {
            tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok()
        })
        .await;
        standalone
    }
}

impl Drop for Standalone {
    fn drop(&mut self) {
        self.server.kill().ok();
        self.server.wait().ok();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standalone_source_is_refused() {
    let (ends, standalone) = (Ends::new().await, Standalone::new().await);
    let output = copy(&standalone.uri, &ends.destination.uri(), &["--ns", "shop.docs"]);
    let (code, message) = refused(&output);
    assert!(code == 4 && message.contains("standalone"), "{code}: {message}");
    assert!(ends.names().await.is_empty());
}
