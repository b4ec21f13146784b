//! What map and reduce write is what plain code says, in every shape.

use std::time::Duration;

use imago_testbed::pool::sharded;
use imago_testbed::{ClusterSpec, Role};
use serde_json::{Value, json};

use super::scene::{
    MESSAGES, NS, ORDERS, ORDERS_NS, Scene, hex, lines, message, order, order_key, output, printed,
    rank, reference, root, said,
};

fn map_counts(output: &std::process::Output) -> Value {
    let said = said(output);
    let last = said.lines().last().unwrap_or_default();
    serde_json::from_str::<Value>(last).unwrap_or_else(|_| panic!("{said}"))["map"].clone()
}

#[tokio::test]
async fn next_keys_are_hashes_modulo_through_the_cache_and_without() {
    let scene = Scene::start().await;
    let keys = lines((0..MESSAGES).rev());
    let next = (0..MESSAGES).rev().map(|key| rank(&message(key), MESSAGES as u64));
    let expected = lines(next);
    assert_eq!(printed(scene.map(&[]), &keys), expected);
    assert_eq!(
        printed(scene.map(&["--batch", "7", "--workers", "5", "--reads", "nearest"]), &keys),
        expected
    );
    let tabs = keys.replace('\n', "\t\n");
    assert_eq!(
        printed(scene.map(&[]), tabs.trim_end()),
        expected,
        "Hadoop's tabs, and no last end of line"
    );
    assert_eq!(printed(scene.map(&[]), ""), "");

    let zipf = printed(scene.map(&["--job", "zipf"]), &keys);
    let distinct: std::collections::BTreeSet<&str> = zipf.lines().collect();
    assert!((100..900).contains(&distinct.len()), "{} keys, some of them often", distinct.len());
    if scene.cache.is_some() {
        let uri = scene.cache_uri();
        let cached = ["--cache", &uri, "--json"];
        let count = MESSAGES as u64;
        for (hits, misses) in [(0, count), (count, 0)] {
            let mapped = output(scene.map(&cached), &keys);
            assert_eq!(String::from_utf8_lossy(&mapped.stdout), expected);
            let counts = map_counts(&mapped);
            assert_eq!(
                (&counts["hits"], &counts["misses"]),
                (&json!(hits), &json!(misses)),
                "{counts}"
            );
        }
        assert_eq!(printed(scene.map(&["--job", "zipf", "--cache", &uri]), &keys), zipf);
        // A key that comes twice is fetched once, and has two results.
        let mapped = output(scene.map(&["--json"]), "7\n8\n7\n");
        let eight = lines([7, 8, 7].map(|key| rank(&message(key), count)));
        assert_eq!(String::from_utf8_lossy(&mapped.stdout), eight);
        assert_eq!(map_counts(&mapped)["keys"], 2);
    }
}

#[tokio::test]
async fn a_chain_in_one_process_is_the_pipes_chain_and_a_cache_changes_its_counts_alone() {
    let scene = Scene::start().await;
    let modulo = MESSAGES.to_string();
    let drawn = printed(scene.program(&["chain", "keys", "200", "--modulo", &modulo]), "");
    let start = drawn.lines().map(|key| key.parse().unwrap());
    assert_eq!(drawn.lines().count(), 200);
    let expected = reference(start, 4);
    let file = scene.file("keys", &drawn);
    let digest = hex(&<sha2::Sha256 as sha2::Digest>::digest(&expected));
    let by_number = scene.run_chain(&["--keys", "200", "--length", "4"]);
    let by_file =
        scene.run_chain(&["--keys", &file, "--length", "4", "--batch", "16", "--workers", "2"]);
    for report in [&by_number, &by_file] {
        assert_eq!(report["result_sha256"], digest, "{report}");
        assert_eq!(report["result_keys"], expected.lines().count(), "{report}");
        let phases = report["phases"].as_array().unwrap();
        assert_eq!((phases.len(), &phases[0]["keys"]), (4, &json!(200)));
        // Each phase reads what the one before has left.
        assert!(phases.windows(2).all(|two| two[0]["unique"] == two[1]["keys"]), "{report}");
    }
    if scene.cache.is_some() {
        let uri = scene.cache_uri();
        let cold = scene.run_chain(&["--keys", "200", "--length", "4", "--cache", &uri]);
        let read: u64 = by_number["keys"].as_u64().unwrap();
        let of = |report: &Value, name: &str| report[name].as_u64().unwrap();
        assert_eq!(cold["result_sha256"], digest);
        assert_eq!(of(&cold, "hits") + of(&cold, "misses"), read);
        // What a cache without a limit has is each different key that was read.
        assert_eq!(cold["cache"]["entries"], cold["misses"], "{cold}");
        let warm = scene.run_chain(&["--keys", "200", "--length", "4", "--cache", &uri]);
        assert_eq!((of(&warm, "hits"), of(&warm, "misses")), (read, 0));
        assert_eq!((&warm["result_sha256"], &warm["requests"]), (&json!(digest), &json!(0)));
    }
}

#[tokio::test]
async fn a_tree_has_the_root_of_its_definition_for_odd_numbers_of_leaves_too() {
    let scene = Scene::start().await;
    for count in [1, 2, 37] {
        let leaves: Vec<_> = (0..count).map(message).collect();
        let report = scene.run_chain(&["--job", "merkle", "--keys", &count.to_string()]);
        assert_eq!(report["root"], hex(&root(&leaves)), "{report}");
    }
}

#[tokio::test]
async fn keys_may_be_of_any_type_if_they_are_listed() {
    let scene = Scene::start().await;
    let all = scene.file("orders", &lines((0..ORDERS).map(order_key)));
    let uri = scene.cluster.uri();
    let words = ["chain", "map", "--uri", &uri, "--ns", ORDERS_NS, "--key-list", &all];
    let next = |number: usize| order_key(rank(&order(number), ORDERS as u64) as usize);
    let expected = lines((0..40).map(next));
    assert_eq!(printed(scene.program(&words), &lines((0..40).map(order_key))), expected);
    // Two collections share a cache, and the same integers in them are other documents.
    if scene.cache.is_some() {
        let cache = scene.cache_uri();
        let cached = [&words[..], &["--cache", &cache]].concat();
        for _ in 0..2 {
            assert_eq!(printed(scene.program(&cached), &lines((0..40).map(order_key))), expected);
        }
        scene
            .run(
                "shop",
                bson::doc! {"insert": "numbers", "documents": [{"_id": 3, "n": 1}, {"_id": 4.0}]},
            )
            .await;
        let numbers = [
            "chain",
            "map",
            "--uri",
            &uri,
            "--ns",
            "shop.numbers",
            "--modulo",
            "1000",
            "--cache",
            &cache,
        ];
        let own = [bson::doc! {"_id": 3, "n": 1}, bson::doc! {"_id": 4.0}];
        let expected = lines(own.iter().map(|document| rank(document, 1_000)));
        let messages = lines([3, 4].map(|key| rank(&message(key), MESSAGES as u64)));
        for _ in 0..2 {
            assert_eq!(printed(scene.map(&["--cache", &cache]), "3\n4\n"), messages, "{NS}");
            assert_eq!(printed(scene.program(&numbers), "3\n4\n"), expected, "int32 and double");
        }
    }
}

/// Finds that the secondaries of a scene have served so far.
async fn finds_of_secondaries(scene: &Scene) -> i64 {
    let mut finds = 0;
    for node in scene.cluster.nodes().iter().filter(|node| node.role == Role::Member) {
        let (_, shard) = scene
            .admin
            .shards()
            .await
            .unwrap()
            .into_iter()
            .find(|(name, _)| *name == node.set)
            .unwrap();
        let host = format!("{}:{}", node.host, node.port);
        let member = shard.unwrap().member(&host, Duration::from_secs(10)).unwrap();
        let status = member.run("admin", bson::doc! {"serverStatus": 1}).await.unwrap();
        let counters = status.get_document("opcounters").unwrap();
        let is_secondary = status.get_document("repl").unwrap().get_bool("secondary").unwrap();
        let query = counters.get("query").unwrap();
        let query = query.as_i64().or(query.as_i32().map(i64::from)).unwrap();
        finds += if is_secondary { query } else { 0 };
    }
    finds
}

#[tokio::test]
async fn reads_of_nearest_reach_secondaries_and_those_of_primary_do_not() {
    let scene = Scene::of(ClusterSpec { members: 2, ..sharded(2) }).await;
    let keys = lines(0..MESSAGES);
    let mut found = Vec::new();
    for reads in ["primary", "nearest"] {
        let before = finds_of_secondaries(&scene).await;
        let mapped = printed(scene.map(&["--batch", "15", "--reads", reads]), &keys);
        assert_eq!(mapped, lines((0..MESSAGES).map(|key| rank(&message(key), MESSAGES as u64))));
        found.push(finds_of_secondaries(&scene).await - before);
    }
    // Servers ask each other, too.
    assert!(found[1] > found[0] + 40, "{found:?} finds of 100 at each shard");
}
