//! `imago provision probe`: costs of all stations, and nothing left behind.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::Command;

use bson::doc;
use imago_mongo::server::endpoint::Endpoint;
use imago_provision::probe::Probe;
use imago_testbed::process::{ProcessId, Signal};
use imago_testbed::{Cluster, ClusterSpec, wait};
use rand::distr::{Alphanumeric, SampleString as _};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::chain::scene::{MESSAGES, NS, Scene, message, output, said};
use crate::process::Process;

/// The entries that the cache has.
fn entries(scene: &Scene) -> u64 {
    let uri = scene.cache_uri();
    let mut connection = TcpStream::connect(uri.trim_start_matches("redis://")).unwrap();
    connection.write_all(b"DBSIZE\r\n").unwrap();
    let mut answer = String::new();
    BufReader::new(connection).read_line(&mut answer).unwrap();
    answer.trim().trim_start_matches(':').parse().unwrap()
}

#[tokio::test]
async fn all_stations_have_costs_and_the_cache_is_left_as_it_was() {
    let scene = Scene::start().await;
    if scene.cache.is_none() {
        return;
    }
    let (uri, cache) = (scene.cluster.uri(), scene.cache_uri());
    let words = ["provision", "probe", "--uri", &uri, "--ns", NS, "--cache", &cache];
    let more = ["--seconds", "6", "--cores", "shard=0.3", "--out", "probe.json", "--json"];
    let probed = output(scene.program(&[&words[..], &more[..]].concat()), "");
    assert!(probed.status.success(), "{}", said(&probed));
    let probe = Probe::read(&scene.path("probe.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Probe>(&probed.stdout).unwrap(), probe);
    assert_eq!(probe.borrowed(), [""; 0]);
    let costs = probe.costs();
    for (station, cost) in [
        ("client", costs.client),
        ("client_find", costs.client_find),
        ("client_get", costs.client_get),
        ("client_set", costs.client_set),
        ("cache_get", costs.cache_get),
        ("cache_set", costs.cache_set),
        ("router", costs.router),
        ("shard", costs.shard),
    ] {
        let per_key_us = cost.of(1.0, 128.0) / 128.0 * 1e6;
        assert!((0.001..10_000.0).contains(&per_key_us), "{station}: {per_key_us} µs");
    }
    assert_eq!(costs.documents, MESSAGES as u64);
    let bytes = message(7).to_vec().unwrap().len() as f64;
    assert!((costs.document_bytes - bytes).abs() < 1.0, "{}", costs.document_bytes);
    assert!((40.0..200.0).contains(&costs.entry_bytes), "{}", costs.entry_bytes);
    assert!(costs.index_bytes > 0.0 && costs.server_bytes > 1e7);
    assert_eq!((probe.machine().shard_cores, probe.machine().cache_cores), (0.3, 1.0));
    assert_eq!(probe.shards.len(), 2);
    for share in &probe.shards {
        assert!((share.documents - 0.5).abs() < 0.01, "{share:?}");
        assert!((share.keys - 0.5).abs() < 0.01, "{share:?}");
    }
    assert_eq!(entries(&scene), 0, "entries of the probe are left in the cache");
}

#[tokio::test]
async fn an_interrupted_probe_deletes_its_entries_and_writes_no_file() {
    let scene = Scene::start().await;
    if scene.cache.is_none() {
        return;
    }
    let (uri, cache) = (scene.cluster.uri(), scene.cache_uri());
    let words = ["provision", "probe", "--uri", &uri, "--ns", NS, "--cache", &cache];
    let more = ["--seconds", "600", "--out", "probe.json"];
    let probing = scene.program(&[&words[..], &more[..]].concat());
    let mut running = Process::start(probing, scene.path("printed.json"));
    let errors = scene.path("printed.err");
    let said = || std::fs::read_to_string(&errors).unwrap();
    wait::until_blocking("the servers are measured at rest", || said().contains("at rest"));
    assert!(entries(&scene) > 0);
    ProcessId::of(running.id()).unwrap().signal(Signal::INT).unwrap();
    let (exit, _) = running.ended();
    assert_eq!(exit, 5, "{}", running.errors());
    assert_eq!(entries(&scene), 0);
    assert!(!scene.path("probe.json").exists());
}

#[tokio::test]
async fn keys_of_a_trace_are_read_and_too_few_of_them_are_refused() {
    let scene = Scene::start().await;
    let uri = scene.cluster.uri();
    let csv = |keys: i64| -> String {
        let lines: String = (0..keys).map(|key| format!("0,{key},133\n")).collect();
        format!("phase,key,bytes\n{lines}")
    };
    let (few, all) = (scene.file("few.csv", &csv(100)), scene.file("all.csv", &csv(MESSAGES / 2)));
    let words = ["provision", "probe", "--uri", &uri, "--ns", NS, "--out", "probe.json"];
    let more = ["--seconds", "4", "--keys"];
    let refused = output(scene.program(&[&words[..], &more[..], &[&*few]].concat()), "");
    assert_eq!(refused.status.code(), Some(4), "{}", said(&refused));
    assert!(said(&refused).contains("only 100 documents"), "{}", said(&refused));
    let probed = output(scene.program(&[&words[..], &more[..], &[&*all]].concat()), "");
    assert!(probed.status.success(), "{}", said(&probed));
    let probe = Probe::read(&scene.path("probe.json")).unwrap();
    assert_eq!(probe.keys.count, MESSAGES as u64 / 2);
    // The lower half of the keys is on one shard.
    let shares: Vec<f64> = probe.shards.iter().map(|share| share.keys).collect();
    assert!(shares.iter().any(|share| *share > 0.99), "{shares:?}");
    assert_eq!(probe.borrowed(), ["cache", "proxy"]);
}

/// Orders of 2 KB each, of which a server of the least storage cache holds half in memory.
const ORDERS: i64 = 150_000;
const ORDER_BYTES: usize = 2_000;

/// Inserts all orders.
async fn insert_orders(uri: &str) {
    let endpoint = Endpoint::connect(uri, "shop").await.unwrap();
    let orders = endpoint.client().database("shop").collection::<bson::Document>("orders");
    // Text that hardly compresses.
    let text: String = Alphanumeric.sample_string(&mut StdRng::seed_from_u64(4), 1 << 20);
    for from in (0..ORDERS).step_by(5_000) {
        let order = |id: i64| {
            let at = id as usize * 7_919 % (text.len() - ORDER_BYTES);
            doc! {"_id": id, "lines": &text[at..at + ORDER_BYTES]}
        };
        orders.insert_many((from..from + 5_000).map(order)).await.unwrap();
    }
}

#[tokio::test]
async fn pages_are_measured_where_the_collection_exceeds_the_storage_caches() {
    let spec = ClusterSpec { cache_mb: 256, ..ClusterSpec::replica_set("shop", 1) };
    let cluster = Cluster::start(spec).await.unwrap();
    let uri = cluster.uri();
    insert_orders(&uri).await;
    let folder = tempfile::tempdir().unwrap();
    let imago = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
        command.current_dir(folder.path()).args(words);
        output(command, "")
    };
    let words = ["provision", "probe", "--uri", &uri, "--ns", "shop.orders", "--seconds", "4"];
    let probed = imago(&[&words[..], &["--out", "probe.json"]].concat());
    assert!(probed.status.success(), "{}", said(&probed));
    let text = String::from_utf8_lossy(&probed.stdout).into_owned();
    assert!(text.contains("KiB that a shard reads from disk"), "{text}");
    let probe = Probe::read(&folder.path().join("probe.json")).unwrap();
    assert_eq!(probe.sizes.storage_cache_bytes, Some(256 << 20));
    let page = probe.costs.page.unwrap_or_else(|| panic!("{text}"));
    assert!(page.pages >= 100 && page.processor_s > 0.0, "{page:?}");
    assert!((4_096.0..300_000.0).contains(&page.bytes), "{page:?}");

    // A job that reads orders anywhere reads most of them from disk, unless two shards or more memory hold them.
    let mut dice = StdRng::seed_from_u64(5);
    let mut read = |phase| format!("{phase},{},2030\n", dice.random_range(0..ORDERS));
    let reads: String = (0..40_000).map(|n| read(n / 20_000)).collect();
    std::fs::write(folder.path().join("job.csv"), format!("phase,key,bytes\n{reads}")).unwrap();
    let words = ["provision", "plan", "job.csv", "--probe", "probe.json", "--deadline", "10m"];
    let told = imago(&[&words[..], &["--shards", "1,4", "--replicas", "1", "--json"]].concat());
    assert!(told.status.success(), "{}", said(&told));
    let advice: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
    let time = |shards: u64, mib: u64| {
        let is_it = |shape: &&serde_json::Value| {
            shape["shards"] == shards
                && shape["storage_bytes"] == mib << 20
                && shape["cache_bytes"] == 0
        };
        let its = advice["shapes"].as_array().unwrap().iter().find(is_it);
        its.unwrap_or_else(|| panic!("{shards}, {mib}: {advice}"))["time_s"].as_f64().unwrap()
    };
    assert!(time(1, 256) > 1.1 * time(1, 1_024), "{} {}", time(1, 256), time(1, 1_024));
    assert_eq!(time(4, 256), time(4, 1_024), "four shards hold all");
}
