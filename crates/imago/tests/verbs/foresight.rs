//! What a copy predicts, beside what comes of it, on real servers.

use std::process::Command;

use bson::{Document, doc};
use imago_mongo::server::endpoint::Endpoint;
use imago_testbed::pool::{self, replica_set};
use serde_json::Value;

const DOCUMENTS: i32 = 30_000;

fn imago(words: &[&str]) -> (Vec<u8>, String) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
    command.current_dir(folder.path()).env_clear().args(words);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{words:?}: {said}");
    (output.stdout, said)
}

fn json(words: &[&str]) -> Value {
    serde_json::from_slice(&imago(&[words, &["--json"]].concat()).0).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_keeps_what_it_predicted_beside_what_came() {
    let [old, new] = Box::pin(pool::lease_all([replica_set(1), replica_set(1)])).await.unwrap();
    let source = Box::pin(Endpoint::connect(&old.uri(), "source")).await.unwrap();
    let orders = source.client().database("shop").collection::<Document>("orders");
    let order = |number: i32| {
        let customer = format!("customer-{:05}", number * 37 % 9_973);
        doc! {"_id": format!("order-{number:08}"), "customer": customer, "notes": "x".repeat(900)}
    };
    for first in (0..DOCUMENTS).step_by(5_000) {
        orders.insert_many((first..first + 5_000).map(order)).await.unwrap();
    }
    let index = doc! {"key": {"customer": 1}, "name": "customer_1"};
    source.run("shop", doc! {"createIndexes": "orders", "indexes": [index]}).await.unwrap();
    let to = new.uri();
    assert_eq!(json(&["foresight", "--to", &to])["jobs"], 0);

    let (from, ns) = (old.uri(), "shop.orders");
    let ends = ["copy", "--from", &from, "--to", &to, "--ns", ns, "--until", "caught-up"];
    let (result, said) =
        imago(&[&ends[..], &["--mb-s", "6", "--progress", "json", "--json"]].concat());
    let result: Value = serde_json::from_slice(&result).unwrap();
    let job = result["job"].as_str().unwrap();

    // Every estimate is an interval, and none says that nothing is left.
    let events = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let told: Vec<Value> = events.filter(|event| event["eta_ms"].is_u64()).collect();
    assert!(told.len() > 5, "{said}");
    for event in &told {
        let eta_ms = event["eta_ms"].as_u64().unwrap();
        let bound = |at: usize| event["eta_interval_ms"][at].as_u64().unwrap();
        assert!(eta_ms > 0 && bound(0) <= eta_ms && eta_ms <= bound(1), "{event}");
    }

    let report = json(&["job", "report", job, "--to", &to]);
    let predictions = report["predictions"].as_array().unwrap();
    let of = |name: &str| {
        let found = predictions.iter().find(|one| one["name"] == name);
        let found = found.unwrap_or_else(|| panic!("{name}: {report}"));
        (found["expected"].as_f64().unwrap(), found["realized"].as_f64().unwrap())
    };
    let (expected, realized) = of("bytes");
    assert!((expected / realized - 1.0).abs() < 0.02, "bytes {expected}, {realized}");
    let (expected, realized) = of("copy_s");
    assert!(expected > 0.5 && realized > 0.5 && realized < 60.0, "copy_s {expected}, {realized}");
    assert!(of("index_s").1 > 0.0);
    let (words, _) = imago(&["job", "report", job, "--to", &to]);
    assert!(String::from_utf8(words).unwrap().contains("90 % INTERVAL"));

    let all = json(&["foresight", "--to", &to, "--since", "1h"]);
    assert_eq!(all["jobs"], 1, "{all}");
    let names: Vec<&str> = all["predictions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["bytes", "copy_s", "index_s"]);
    assert_eq!(all["predictions"][0]["coverage"], 1.0, "{all}");
}
