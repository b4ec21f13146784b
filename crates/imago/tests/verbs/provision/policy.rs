//! The eviction policy of a plan's cache, and predicted hits beside those of a real Redis.

use std::process::Command;

use serde_json::Value;

fn told(words: &[&str]) -> Value {
    let told = Command::new(env!("CARGO_BIN_EXE_imago")).args(words).output().unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    serde_json::from_slice(&told.stdout).unwrap()
}

#[test]
fn predicted_hits_are_those_of_a_real_redis() {
    let report = told(&["bench", "run", "cache-hits", "--quick", "--json"]);
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 7 * 3 * 5, "{report}");
    let median = report["error_points"]["median"].as_f64().unwrap();
    let within = |cell: &&Value| {
        let of = |name: &str| cell[name].as_f64().unwrap();
        (of("predicted") - of("measured")).abs() < 0.05
    };
    // The caches of this small form have some hundred entries, on which chance tells.
    let near = cells.iter().filter(within).count();
    assert!(median < 2.0 && near >= 90, "{median} points in the median, {near} near: {report}");
    // Exact LRU has no hits in a loop that does not fit; what Redis has there is predicted.
    let of_loop = |cell: &&Value| {
        cell["load"] == "loop" && cell["policy"] == "allkeys-lru" && cell["share"] == 0.75
    };
    let cell = cells.iter().find(of_loop).unwrap();
    assert_eq!(cell["predicted_lru"], 0.0);
    assert!(cell["measured"].as_f64() > Some(0.1), "{cell}");
}

#[test]
fn the_policy_decides_the_hits_of_a_plan_and_the_others_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("loop.csv");
    // Five passes over 2,000 orders, of which the cache holds a part.
    let pass =
        |pass: usize| (0..2_000).map(move |order| format!("pass-{pass},order-{order:06},400\n"));
    let lines: String = (0..5).flat_map(pass).collect();
    std::fs::write(&trace, format!("phase,key,bytes\n{lines}")).unwrap();
    let trace = trace.to_str().unwrap();
    let of = |policy: &str| {
        let words = ["provision", "plan", trace, "--deadline", "60s", "--cache", "700KiB"];
        told(&[&words[..], &["--policy", policy, "--json"]].concat())
    };
    let hits = |policy| of(policy)["advised"]["hit_ratio"].as_f64().unwrap();
    let (lru, sampled, first) = (hits("lru"), hits("allkeys-lru"), hits("noeviction"));
    assert_eq!(lru, 0.0);
    assert!(sampled > 0.02 && first > sampled, "{sampled} and {first}");
    let advice = of("allkeys-lru");
    let policies = advice["policies"].as_array().unwrap();
    assert_eq!((&advice["policy"], policies.len()), (&"allkeys-lru".into(), 6));
    let setting = |of: &Value| of["setting"] == "maxmemory-policy noeviction";
    assert!(policies.iter().any(setting), "{advice}");
}
