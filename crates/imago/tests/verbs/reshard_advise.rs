//! `imago reshard record` and `advise` on real sharded clusters: what they say beside what the shards received.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use bson::oid::ObjectId;
use bson::{Bson, Document, doc};
use imago_mongo::server::endpoint::Endpoint;
use imago_testbed::pool::{self, Leased};
use imago_testbed::process::{ProcessId, Signal};
use imago_testbed::wait;
use serde_json::Value;
use tempfile::TempDir;

use crate::reshard::scene::direct;

const NS: &str = "shop.reviews";
const USERS: i64 = 400;

fn imago(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
    command.current_dir(folder).env_clear().args(words).args(["--progress", "none"]);
    command
}

/// Starts `imago reshard advise`.
fn advising(folder: &Path, uri: &str, more: &[&str]) -> Child {
    let words = ["reshard", "advise", "--uri", uri, "--ns", NS, "--json"];
    let mut command = imago(folder, &[&words[..], more].concat());
    // A trial starts servers.
    for name in ["HOME", "PATH", "IMAGO_MONGOD"] {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    command.env("TMPDIR", pool::folder().unwrap_or_else(std::env::temp_dir));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn advise(folder: &Path, uri: &str, more: &[&str]) -> Output {
    advising(folder, uri, more).wait_with_output().unwrap()
}

fn json(bytes: &[u8]) -> Value {
    let text = String::from_utf8_lossy(bytes);
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"))
}

/// The advice that was printed.
fn advice(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    json(&output.stdout)
}

/// Reviews on two shards by their ids: object ids, the later half on the second shard.
struct Shop {
    cluster: Leased,
    admin: Endpoint,
    folder: TempDir,
}

impl Shop {
    async fn open() -> Self {
        let cluster = Box::pin(pool::lease(pool::sharded(2).with_auth())).await.unwrap();
        let admin = Box::pin(Endpoint::connect(&cluster.admin_uri(), "cluster")).await.unwrap();
        let shop = Self { cluster, admin, folder: tempfile::tempdir().unwrap() };
        shop.run("admin", doc! {"enableSharding": "shop"}).await;
        shop.run("admin", doc! {"shardCollection": NS, "key": {"_id": 1}}).await;
        let reviews = shop.admin.client().database("shop").collection("reviews");
        reviews.insert_many((0..4_000).map(review)).await.unwrap();
        let own = shop.admin.client().database("config").collection::<Document>("databases");
        let own = own.find_one(doc! {"_id": "shop"}).await.unwrap().unwrap();
        let primary = own.get_str("primary").unwrap();
        let other = ["s1", "s2"].map(|shard| format!("{}-{shard}", shop.cluster.name()));
        let other = other.iter().find(|shard| *shard != primary).unwrap();
        let middle = doc! {"_id": id(2_000)};
        shop.run("admin", doc! {"split": NS, "middle": middle.clone()}).await;
        let command = doc! {"moveChunk": NS, "find": middle, "to": other, "_waitForDelete": true};
        shop.run("admin", command).await;
        shop
    }

    async fn run(&self, db: &str, command: Document) -> Document {
        self.admin.run(db, command).await.unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The primaries of the shards, in the order of their names.
    async fn primaries(&self) -> Vec<Endpoint> {
        let mut primaries = Vec::new();
        for node in self.cluster.nodes() {
            if node.set.ends_with("-s1") || node.set.ends_with("-s2") {
                primaries.push((node.set.clone(), direct(&self.cluster, node.port).await));
            }
        }
        primaries.sort_by(|a, b| a.0.cmp(&b.0));
        primaries.into_iter().map(|(_, primary)| primary).collect()
    }

    /// Runs the recorder with more words, and clients at its address until `work` is done.
    async fn recorded(&self, out: &str, more: &[&str], work: impl AsyncFn(&Endpoint)) {
        let port = free_port();
        let listen = format!("127.0.0.1:{port}");
        let words = ["reshard", "record", "--uri", &self.cluster.admin_uri(), "--ns", NS];
        let more = [&["--out", out, "--listen", &listen], more].concat();
        let mut recorder = imago(self.folder.path(), &[&words[..], &more].concat());
        let mut recorder = recorder.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let uri = self.cluster.admin_uri();
        let (start, rest) = uri.split_at(uri.rfind('@').unwrap() + 1);
        let uri = format!("{start}{listen}{}", &rest[rest.find('/').unwrap()..]);
        let client = reached(&uri).await;
        work(&client).await;
        ProcessId::of(recorder.id()).unwrap().signal(Signal::INT).unwrap();
        assert!(recorder.wait().unwrap().success());
    }
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

async fn reached(uri: &str) -> Endpoint {
    let mut proxy = None;
    wait::until("the proxy listens", async || {
        proxy = Box::pin(Endpoint::connect(uri, "proxy")).await.ok();
        proxy.is_some()
    })
    .await;
    proxy.unwrap()
}

/// An object id that grows with `n`.
fn id(n: i64) -> ObjectId {
    ObjectId::parse_str(format!("6560{n:08x}aabbccddeeff")).unwrap()
}

fn user(n: i64) -> String {
    format!("user{:05}@example.org", n.rem_euclid(USERS))
}

fn review(n: i64) -> Document {
    doc! {"_id": id(n), "user": user(n * 7), "stars": n % 5, "tags": ["a", "b"],
    "text": "x".repeat(300)}
}

/// The number of operations that clients make: reads by user, inserts, updates by id, and ones that no router directs.
const READS: i64 = 300;
const INSERTS: i64 = 60;
const UPDATES: i64 = 40;

/// Works; the inserted documents have numbers from `first` on.
async fn work(client: &Endpoint, first: i64) {
    let run = async |command: Document| {
        let reply = client.run("shop", command).await.unwrap();
        assert!(!reply.contains_key("writeErrors"), "{reply}");
    };
    for n in 0..READS {
        run(doc! {"find": "reviews", "filter": {"user": user(n * 31)}}).await;
    }
    for n in 0..INSERTS {
        run(doc! {"insert": "reviews", "documents": [review(first + n)]}).await;
    }
    for n in 0..UPDATES {
        let update = doc! {"q": {"_id": id(n * 99)}, "u": {"$set": {"stars": 1}}};
        run(doc! {"update": "reviews", "updates": [update]}).await;
    }
    let either = doc! {"$or": [{"user": user(3)}, {"stars": 9}]};
    run(doc! {"find": "reviews", "filter": {"$and": [either.clone()]}}).await;
    run(doc! {"count": "reviews", "query": either}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recording_tells_the_key_and_what_shards_received() {
    let shop = Shop::open().await;
    shop.cluster.end_with_this_test();
    let primaries = shop.primaries().await;
    for primary in &primaries {
        primary.run("shop", doc! {"profile": 2}).await.unwrap();
    }
    shop.recorded("ops.bson", &[], async |client| work(client, 10_000).await).await;
    let mut received = Vec::new();
    for primary in &primaries {
        primary.run("shop", doc! {"profile": 0}).await.unwrap();
        let of_clients = doc! {"ns": NS, "op": {"$in": ["query", "insert", "update"]},
        "command.explain": {"$exists": false}};
        let profile = primary.client().database("shop").collection::<Document>("system.profile");
        received.push(profile.count_documents(of_clients).await.unwrap());
    }
    let uri = shop.cluster.admin_uri();
    let named = r#"{"stars": 1}"#;
    let said = advice(&advise(
        shop.folder.path(),
        &uri,
        &["--recording", "ops.bson", "--pace", "full", "--key", named],
    ));
    // Two reads that no router directs: `$or` of several fields.
    let expected = READS + INSERTS + UPDATES + 2;
    assert_eq!(said["operations"], expected, "{said}");
    assert_eq!(said["ignored"][0]["operations"], 2, "{said}");
    let present = &said["present"];
    assert_eq!(present["reads"]["all"], 1.0, "{present}");
    assert_eq!(present["writes"]["one"], 1.0, "{present}");
    // What the present key is said to do is what the shards received.
    let predicted: Vec<i64> =
        present["requests"].as_array().unwrap().iter().map(|n| n.as_i64().unwrap()).collect();
    for (predicted, received) in predicted.iter().zip(&received) {
        let off = (predicted - i64::try_from(*received).unwrap()).abs();
        assert!(off <= expected / 50, "{predicted} of {received}: {said}");
    }
    let advised = said["advised"].as_str().unwrap();
    assert!(advised.starts_with(r#"{"user": "#), "{advised}");
    let first = &said["keys"][0];
    assert!(first["reads"]["one"].as_f64().unwrap() > 0.9, "{first}");
    assert!(first["ratio_interval"][0].as_f64().unwrap() > 1.0, "{first}");
    let command = first["change"]["command"].as_str().unwrap();
    assert!(command.starts_with("imago reshard plan --uri ") && !command.contains("password"));
    let stars = said["keys"].as_array().unwrap().iter().find(|key| key["key"] == named).unwrap();
    assert!(stars["key_changes"].as_f64().unwrap() > 0.3, "{stars}");
    assert!(stars["why_not"].as_str().is_some_and(|why| !why.is_empty()), "{stars}");

    // Names of users are not in the file, unless that is asked for; the advice is the same.
    let hashed = std::fs::read(shop.path("ops.bson")).unwrap();
    let holds = |bytes: &[u8]| bytes.windows(12).any(|part| part == b"@example.org");
    assert!(!holds(&hashed));
    shop.recorded("plain.bson", &["--keep-values"], async |client| work(client, 20_000).await)
        .await;
    assert!(holds(&std::fs::read(shop.path("plain.bson")).unwrap()));
    let plain =
        advice(&advise(shop.folder.path(), &uri, &["--recording", "plain.bson", "--pace", "full"]));
    let one = |said: &Value, key: &str| {
        let keys = said["keys"].as_array().unwrap();
        keys.iter().find(|of| of["key"] == key).unwrap()["reads"]["one"].as_f64().unwrap()
    };
    for key in [r#"{"user": 1}"#, r#"{"user": "hashed"}"#, r#"{"user": 1, "_id": 1}"#] {
        assert!((one(&said, key) - one(&plain, key)).abs() < 0.02, "{key}");
    }

    // A file that ends within an operation is read up to there.
    std::fs::write(shop.path("torn.bson"), &hashed[..hashed.len() - 5]).unwrap();
    let torn = advice(&advise(shop.folder.path(), &uri, &["--recording", "torn.bson"]));
    assert_eq!(torn["operations"], expected - 1);
    assert!(torn["source"]["notes"].to_string().contains("ends within an operation"), "{torn}");
}

async fn level(primary: &Endpoint) -> Document {
    primary.run("shop", doc! {"profile": -1}).await.unwrap()
}

/// Waits until the profilers of these servers are on.
async fn profiled(primaries: &[Endpoint]) {
    for primary in primaries {
        let is_on = async || level(primary).await.get_i32("was").unwrap() == 1;
        wait::until("the profiler is on", is_on).await;
    }
}

async fn notes(shop: &Shop) -> u64 {
    noted(shop, doc! {}).await
}

async fn noted(shop: &Shop, which: Document) -> u64 {
    let notes = shop.admin.client().database("imago").collection::<Document>("profilers");
    notes.count_documents(which).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn profilers_are_restored_also_after_a_kill() {
    let shop = Shop::open().await;
    shop.cluster.end_with_this_test();
    let primaries = shop.primaries().await;
    let filter = doc! {"ns": "shop.orders", "millis": {"$gte": 40}};
    let set = doc! {"profile": 0, "slowms": 37, "filter": filter.clone()};
    primaries[0].run("shop", set).await.unwrap();
    let before = level(&primaries[0]).await;
    assert!(before.contains_key("filter"), "{before}");
    let uri = shop.cluster.admin_uri();
    let words = ["reshard", "advise", "--uri", &uri, "--ns", NS, "--json", "--profile", "30s"];
    let mut killed = imago(shop.folder.path(), &words);
    let mut killed: Child = killed.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    profiled(&primaries).await;
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(notes(&shop).await, 2);

    let more = ["--profile", "10s", "--profile-rate", "1", "--pace", "full"];
    let running = advising(shop.folder.path(), &uri, &more);
    // Until then the settings of the process that was killed are there.
    let pid = format!("/{}$", running.id());
    let by = doc! {"process": {"$regex": pid}};
    wait::until("both are restored", async || noted(&shop, by.clone()).await == 2).await;
    profiled(&primaries).await;
    work(&shop.admin, 10_000).await;
    let said = running.wait_with_output().unwrap();
    let said = advice(&said);
    assert_eq!(notes(&shop).await, 0);
    let after = level(&primaries[0]).await;
    for field in ["was", "slowms", "filter"] {
        assert_eq!(after.get(field), before.get(field), "{field}");
    }
    assert_eq!(level(&primaries[1]).await.get_i32("was").unwrap(), 0);
    // Both shards show a read by user; it counts once. Its own reads of a sample begin later.
    let seen = said["operations"].as_i64().unwrap();
    let expected = READS + INSERTS + UPDATES + 2;
    assert!((seen - expected).abs() <= expected / 20, "{seen} of {expected}: {said}");
    assert!(said["advised"].as_str().unwrap().starts_with(r#"{"user": "#), "{said}");

    // A profiler that was on before is read and not changed.
    primaries[0].run("shop", doc! {"profile": 2, "filter": "unset"}).await.unwrap();
    let running = advising(shop.folder.path(), &uri, &["--profile", "5s", "--pace", "full"]);
    profiled(&primaries[1..]).await;
    work(&shop.admin, 20_000).await;
    let said = advice(&running.wait_with_output().unwrap());
    assert!(said["source"]["notes"].to_string().contains("was left as it was"), "{said}");
    assert_eq!(level(&primaries[0]).await.get_i32("was").unwrap(), 2);
    primaries[0].run("shop", doc! {"profile": 0}).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_tell_slow_operations_and_bad_input_is_refused() {
    let shop = Shop::open().await;
    shop.cluster.end_with_this_test();
    let primaries = shop.primaries().await;
    // Every operation is slow, as far as the log goes.
    primaries[0].run("shop", doc! {"profile": 0, "slowms": -1}).await.unwrap();
    work(&shop.admin, 10_000).await;
    let log = primaries[0].run("admin", doc! {"getLog": "global"}).await.unwrap();
    let lines = log.get_array("log").unwrap().iter().filter_map(Bson::as_str);
    let lines: Vec<&str> = lines.collect();
    std::fs::write(shop.path("mongod.log"), lines.join("\n") + "\nnot json\n").unwrap();
    primaries[0].run("shop", doc! {"profile": 0, "slowms": 100}).await.unwrap();
    let uri = shop.cluster.admin_uri();
    let said =
        advice(&advise(shop.folder.path(), &uri, &["--log", "mongod.log", "--pace", "full"]));
    assert!(said["present"]["reads"]["operations"].as_i64() > Some(100), "{said}");
    assert!(said["source"]["notes"].to_string().contains("1 lines cannot be read"), "{said}");
    assert!(said["advised"].as_str().unwrap().starts_with(r#"{"user": "#), "{said}");

    std::fs::write(shop.path("empty.log"), "").unwrap();
    std::fs::write(shop.path("other.bson"), [12, 0, 0, 0, 16, b'a', 0, 1, 0, 0, 0, 0]).unwrap();
    // The application's user may set no profiler any more.
    let app = &shop.cluster.credentials().unwrap().app;
    let less = doc! {"revokeRolesFromUser": &app.name, "roles": ["dbAdminAnyDatabase"]};
    for primary in &primaries {
        primary.run("admin", less.clone()).await.unwrap();
    }
    let reader = shop.cluster.uri();
    for (uri, more, exit, what) in [
        (&uri, vec!["--log", "none.log"], 2, "none.log cannot be read"),
        (&uri, vec!["--log", "empty.log"], 4, "shows no operation on shop.reviews"),
        (&uri, vec!["--recording", "other.bson"], 2, "no recording of"),
        (&uri, vec![], 2, "required"),
        (&uri, vec!["--sampled-queries"], 4, "samples no queries: 7.0 and newer do"),
        (&uri, vec!["--log", "mongod.log", "--key", "{user: 2}"], 2, "cannot be a shard key"),
        (&uri, vec!["--log", "mongod.log", "--request-us", "0"], 2, "more than 0"),
        (&reader, vec!["--profile", "2s"], 4, "the roles dbAdmin and read"),
    ] {
        let refused = advise(shop.folder.path(), uri, &[&more[..], &["--pace", "full"]].concat());
        assert_eq!(refused.status.code(), Some(exit), "{more:?}: {refused:?}");
        let errors = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(errors.contains(what), "{more:?}: {errors}");
    }
    assert_eq!(notes(&shop).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_is_tried_out_before_and_reported_beside_its_advice() {
    let shop = Shop::open().await;
    shop.cluster.end_with_this_test();
    let folder = shop.folder.path();
    let uri = shop.cluster.admin_uri();
    shop.recorded("before.bson", &[], async |client| work(client, 10_000).await).await;
    let tried =
        advise(folder, &uri, &["--recording", "before.bson", "--pace", "full", "--confirm"]);
    let before = advice(&tried);
    let confirmed = &before["confirmed"];
    assert_eq!(confirmed["operations"], READS + INSERTS + UPDATES + 2, "{confirmed}");
    assert_eq!(confirmed["documents"], 4_000 + INSERTS, "{confirmed}");
    let keys = confirmed["keys"].as_array().unwrap();
    assert_eq!(keys.len(), 3, "the present key and two: {confirmed}");
    for key in keys {
        let (predicted, measured) = (&key["predicted_shards"], &key["measured_shards"]);
        let off = predicted.as_f64().unwrap() - measured.as_f64().unwrap();
        assert!(off.abs() < 0.1, "{confirmed}");
        assert_eq!(key["refused"], 0, "{confirmed}");
    }
    assert_eq!(keys[1]["key"], before["advised"], "{confirmed}");
    std::fs::write(shop.path("advice.json"), &tried.stdout).unwrap();

    let key = before["advised"].as_str().unwrap();
    let changing = ["reshard", "run", "--uri", &uri, "--ns", NS, "--key", key, "--json"];
    let changed = imago(folder, &changing).args(["--pace", "full"]).output().unwrap();
    assert!(changed.status.success(), "{changed:?}");
    let job = json(&changed.stdout)["job"].as_str().unwrap().to_owned();
    shop.recorded("after.bson", &[], async |client| work(client, 20_000).await).await;
    let report = |advice: &str| {
        let words = ["reshard", "report", &job, "--uri", &uri, "--advice", advice, "--json"];
        let source = ["--recording", "after.bson", "--pace", "full"];
        imago(folder, &words).args(source).output().unwrap()
    };
    let reported = advice(&report("advice.json"));
    assert_eq!((&reported["key"], &reported["ns"]), (&before["advised"], &NS.into()));
    let (predicted, now) = (&reported["predicted"], &reported["now"]);
    for share in ["reads_by_one", "writes_by_one", "busiest"] {
        let off = predicted[share].as_f64().unwrap() - now[share].as_f64().unwrap();
        assert!(off.abs() < 0.1, "{share}: {reported}");
    }
    assert!(reported["before"]["reads_by_one"].as_f64() < Some(0.1), "{reported}");
    let (predicted, now) = (&reported["predicted_ratio"], &reported["ratio_now"]);
    let ratio = now.as_f64().unwrap() / predicted.as_f64().unwrap();
    assert!((0.7..1.4).contains(&ratio), "{reported}");

    // Advice of after the change says nothing of it, and a recording is no advice.
    std::fs::write(shop.path("later.json"), {
        advise(folder, &uri, &["--recording", "after.bson", "--pace", "full"]).stdout
    })
    .unwrap();
    for (file, what) in
        [("later.json", "while the collection had"), ("after.bson", "holds no advice")]
    {
        let refused = report(file);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        let errors = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(errors.contains(what), "{errors}");
    }
}

#[test]
fn advice_is_compared_with_what_shards_received() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
    command.current_dir(folder.path()).args(["bench", "run", "shard-keys", "--quick", "--json"]);
    command.env("TMPDIR", pool::folder().unwrap_or_else(std::env::temp_dir));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report = json(&output.stdout);
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 10, "five loads with two keys each: {report}");
    // 400 operations of a load are recorded, and 400 others are measured.
    let off = report["reach_error_points"]["max"].as_f64().unwrap();
    assert!(off < 10.0, "{report}");
    assert!(cells.iter().all(|cell| cell["measured_busiest_us"].as_f64() > Some(0.0)), "{report}");
}
