//! `imago provision measure` on real servers: cells beside their predictions, and a file that goes on.

use std::process::{Command, Output};

use imago_testbed::pool;
use serde_json::Value;

fn run(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
    command.env("TMPDIR", pool::folder().unwrap_or_else(std::env::temp_dir));
    command.args(words).output().unwrap()
}

fn told(words: &[&str]) -> Value {
    let output = run(words);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refused(words: &[&str], exit: i32) -> String {
    let output = run(words);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(exit), "{said}");
    said
}

#[test]
fn shapes_are_measured_beside_what_was_predicted_and_the_file_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("cells.jsonl");
    let out = out.to_str().unwrap();
    let measure = |shards: &'static str, cache: &'static str, keys: &'static str| {
        let usual = ["provision", "measure", "--out", out, "--documents", "20000", "--keys", keys];
        let size = ["--length", "3", "--runs", "1", "--probe-seconds", "10", "--cpu-share", "0.5"];
        let cells = ["--shards", shards, "--cache", cache, "--json"];
        [&usual[..], &size, &cells].concat()
    };
    // As an interrupted run leaves it: the second one goes on.
    let first = told(&measure("1", "0,4MiB", "4000"));
    assert_eq!(first["cells"].as_array().unwrap().len(), 2, "{first}");
    let lines = std::fs::read_to_string(out).unwrap();
    let both = told(&measure("1,2", "0,4MiB", "4000"));
    let after = std::fs::read_to_string(out).unwrap();
    assert!(after.starts_with(&lines), "what was measured stays");
    let cells = both["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 4, "{both}");
    for cell in cells {
        let [measured, predicted] =
            [&cell["job_s"]["mean"], &cell["predicted_s"]].map(Value::as_f64);
        assert!(measured > Some(0.0) && predicted > Some(0.0), "{cell}");
        let is_cached = cell["cache_bytes"].as_u64() > Some(0);
        let [hits, expected] =
            [&cell["hit_ratio"], &cell["predicted_hit_ratio"]].map(|ratio| ratio.as_f64().unwrap());
        // The keys of later phases are drawn from as few documents, so that many were read before.
        assert_eq!(hits > 0.1, is_cached, "{cell}");
        assert!((hits - expected).abs() < 0.02, "{cell}");
    }
    // Two shards were not probed.
    assert_eq!(both["accuracy"]["held_out"], 2, "{both}");

    let said = refused(&measure("1", "0", "5000"), 2);
    assert!(said.contains("other settings"), "{said}");
    let said = refused(&measure("1", "0", "30000"), 2);
    assert!(said.contains("cannot be drawn from 20000"), "{said}");

    // The advice is from the files beside it alone.
    let [trace, probe] = ["imt", "probe.json"].map(|ending| out.replace("jsonl", ending));
    let plan =
        told(&["provision", "plan", &trace, "--probe", &probe, "--deadline", "5m", "--json"]);
    assert_eq!(plan["advised"]["shards"], 1, "all shapes are in time: {plan}");
}
