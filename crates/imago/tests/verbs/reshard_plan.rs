//! `imago reshard plan` as a user meets it: what is printed where, and the exit codes.

use std::process::{Command, Output};

use bson::doc;
use imago_mongo::server::endpoint::Endpoint;
use imago_testbed::Cluster;
use imago_testbed::pool;
use serde_json::Value;

fn plan(uri: &str, more: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
    command.current_dir(folder.path()).env_clear();
    command.args(["reshard", "plan", "--uri", uri, "--ns", "shop.reviews", "--progress", "none"]);
    command.args(more).output().unwrap()
}

fn json(bytes: &[u8]) -> Value {
    let text = String::from_utf8_lossy(bytes);
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"))
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

async fn sharded(cluster: &Cluster) {
    let router = Box::pin(Endpoint::connect(&cluster.admin_uri(), "cluster")).await.unwrap();
    let command = doc! {"shardCollection": "shop.reviews", "key": {"product": 1}};
    router.run("admin", command).await.unwrap();
    let reviews = router.client().database("shop").collection("reviews");
    let review = |n: i32| doc! {"_id": n, "product": n, "user": n * 7 % 100};
    reviews.insert_many((0..300).map(review)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_is_printed_and_what_is_in_the_way_is_the_exit_code() {
    let specs = [pool::sharded(2).with_auth(), pool::replica_set(1)];
    let [shards, set] = Box::pin(pool::lease_all(specs)).await.unwrap();
    let second = format!("{}-s2", shards.name());
    sharded(&shards).await;
    let key = r#"{"user": 1}"#;

    let free = plan(&shards.admin_uri(), &["--key", key]);
    assert_eq!(code(&free), 0, "{free:?}");
    let text = String::from_utf8(free.stdout).unwrap();
    for part in [r#"{"product": 1} → {"user": 1}"#, &*second, "server", "nothing was written"] {
        assert!(text.contains(part), "{part}: {text}");
    }

    assert!(!text.contains("warning"), "{text}");
    assert!(text.contains("while clients are active up to"), "{text}");

    let full = plan(&shards.admin_uri(), &["--key", key, "--pace", "full"]);
    let text = String::from_utf8(full.stdout).unwrap();
    assert!(
        text.contains("without clients") && !text.contains("while clients are active"),
        "{text}"
    );
    let native = plan(&shards.admin_uri(), &["--key", key, "--engine", "native", "--json"]);
    assert_eq!((code(&native), &json(&native.stdout)["paced_s"]), (0, &Value::Null), "{native:?}");

    let same = ["--chunks", "8", "--engine", "native", "--json"];
    let same = plan(&shards.admin_uri(), &same);
    let (code_of_it, findings) = (code(&same), json(&same.stdout)["findings"].clone());
    assert_eq!((code_of_it, findings[0]["code"].as_str()), (4, Some("same_key")), "{findings}");

    // As in the database's shell.
    let same = plan(&shards.admin_uri(), &["--key", "{user: 1}", "--json"]);
    assert_eq!((code(&same), &json(&same.stdout)["key"]), (0, &key.into()), "{same:?}");

    // The application's user may neither move chunks nor block writes.
    let bound = plan(&shards.uri(), &["--key", key, "--json"]);
    assert_eq!(code(&bound), 4, "{bound:?}");
    let printed = json(&bound.stdout);
    assert_eq!(printed["findings"][0]["code"], "privileges");
    assert_eq!(printed["size"]["documents"], 300);
    assert_eq!(json(&bound.stderr)["error"]["code"], "obstacles");

    for (uri, more, expected, what) in [
        (shards.admin_uri(), vec!["--key", "{user: 1"], 2, "cannot be read"),
        (shards.admin_uri(), vec![], 2, "sharded by"),
        (shards.admin_uri(), vec!["--add-shard", "none"], 4, "no shard none"),
        (set.uri(), vec!["--key", key], 4, "is a replica set"),
    ] {
        let refused = plan(&uri, &[&more[..], &["--json"]].concat());
        assert_eq!((code(&refused), refused.stdout.is_empty()), (expected, true), "{refused:?}");
        let message = json(&refused.stderr)["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(what), "{message}");
    }
}
