//! The cache at the router: the same results, other requests untouched, and nothing for users without permission.

use bson::doc;
use imago_mongo::server::endpoint::Endpoint;
use imago_testbed::pool::sharded;
use imago_testbed::process::{ProcessId, Signal};
use serde_json::{Value, json};

use super::scene::{MESSAGES, NS, Scene, lines, message, output, printed, rank, said};
use crate::process::Process;

/// The results that a process has printed so far.
fn results(process: &Process) -> Vec<Value> {
    process.printed().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn a_proxy_answers_finds_of_keys_from_its_cache_and_passes_everything_else() {
    let scene = Scene::of(sharded(2).with_auth()).await;
    if scene.cache.is_none() {
        return;
    }
    let (router, cache) = (scene.cluster.uri(), scene.cache_uri());
    let words = ["chain", "proxy", "--uri", &router, "--ns", NS, "--cache", &cache, "--json"];
    let mut proxy = Process::start(scene.program(&words), scene.path("proxy"));
    imago_testbed::wait::until_blocking("the proxy listens", || !results(&proxy).is_empty());
    let address =
        results(&proxy)[0]["uri"].as_str().unwrap().trim_start_matches("mongodb://").to_owned();
    let user = &scene.cluster.credentials().unwrap().app;
    let through = format!("mongodb://{}:{}@{address}/?authSource=admin", user.name, user.password);

    let (keys, modulo) = (lines(0..MESSAGES), MESSAGES.to_string());
    let map = |uri: &str| {
        let words =
            ["chain", "map", "--uri", uri, "--ns", NS, "--modulo", &modulo, "--batch", "100"];
        scene.program(&words)
    };
    let expected = lines((0..MESSAGES).map(|key| rank(&message(key), MESSAGES as u64)));
    for _ in 0..3 {
        assert_eq!(printed(map(&through), &keys), expected);
    }
    // A mixture of hits and misses, of which one is no document.
    let missing = output(map(&through), "5\n8888888\n");
    assert!(said(&missing).contains("no document of the _id 8888888"), "{}", said(&missing));

    // Other requests reach the router, with the client's own user.
    let endpoint = Box::pin(Endpoint::connect(&through, "proxy")).await.unwrap();
    let counted = endpoint.run("shop", doc! {"count": "messages"}).await.unwrap();
    assert_eq!(counted.get_i32("n").unwrap(), MESSAGES as i32);
    let projected =
        doc! {"find": "messages", "filter": {"_id": {"$in": [1, 2]}}, "projection": {"_id": 1}};
    let projected = endpoint.run("shop", projected).await.unwrap();
    let first = projected.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    assert_eq!(first, &[doc! {"_id": 1_i64}.into(), doc! {"_id": 2_i64}.into()]);
    let inserted =
        doc! {"insert": "messages", "documents": [{"_id": 9_999_999_i64, "text": "new"}]};
    endpoint.run("shop", inserted).await.unwrap();
    let find = doc! {"find": "messages", "filter": {"_id": {"$in": [9_999_999_i64, 7_i64]}}};
    let found = endpoint.run("shop", find.clone()).await.unwrap();
    let found = found.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    assert_eq!(found.len(), 2);

    // A client that has not logged in gets nothing, though the cache has it.
    let unknown = format!("mongodb://{address}/");
    let refused = output(map(&unknown), "5\n");
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(refused.stdout.is_empty());

    proxy_ends(&mut proxy);
    let totals = results(&proxy).pop().unwrap();
    let of = |name: &str| totals[name].as_u64().unwrap();
    // The first find of each connection is the router's.
    assert!(of("hits") > MESSAGES as u64 && of("misses") >= MESSAGES as u64, "{totals}");
    assert!(of("passed") > 4 && totals["refused"] == json!(0), "{totals}");
}

fn proxy_ends(proxy: &mut Process) {
    let process = ProcessId::of(proxy.id()).unwrap();
    process.signal(Signal::INT).unwrap();
    let (exit, said) = proxy.ended();
    assert_eq!(exit, 0, "{said}");
}

#[tokio::test]
async fn a_proxy_needs_a_router_behind_it() {
    let cluster = imago_testbed::pool::lease(imago_testbed::pool::replica_set(1)).await.unwrap();
    let uri = cluster.uri();
    let words = ["chain", "proxy", "--uri", &uri, "--ns", NS, "--cache", "redis://127.0.0.1:1"];
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_imago"));
    command.args(words);
    let refused = output(command, "");
    assert_eq!(refused.status.code(), Some(4), "{}", said(&refused));
    assert!(said(&refused).contains("it is no router"), "{}", said(&refused));
}
