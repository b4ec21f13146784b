//! `imago bench` on real clusters, at a size at which its figures mean nothing but must be there.

#![allow(clippy::unwrap_used, reason = "in a test, to panic is to fail")]

use std::process::Command;

use serde_json::Value;

fn bench(arguments: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
    command.current_dir(folder.path()).arg("bench").args(arguments).arg("--json");
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Every one of these figures is a positive, finite number.
fn assert_figures(report: &Value, names: &[&str]) {
    for name in names {
        let figure = report[name].as_f64();
        assert!(figure.is_some_and(|value| value > 0.0 && value.is_finite()), "{name}: {report}");
    }
}

#[test]
fn every_benchmark_is_listed() {
    let listed = bench(&["list"]);
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["copy", "replay", "verify"]);
}

#[test]
fn a_copy_is_measured_against_inserting_and_against_peers() {
    let report = bench(&["run", "copy", "--quick"]);
    let figures = ["ratio_to_floor", "client_cpu_ratio", "client_rss_mb_max", "seconds"];
    assert_figures(&report, &figures);
    let peers = report["peers"].as_array().unwrap();
    assert_eq!(peers.len(), 2);
    for peer in peers {
        assert_ne!(peer["seconds"].is_null(), peer["note"].is_null(), "{peer}");
    }
}

#[test]
fn a_replay_is_measured_against_bulk_writes_and_its_lag_by_markers() {
    let report = bench(&["run", "replay", "--quick"]);
    assert_figures(&report, &["ratio_to_bulk_apply", "seconds", "bulk_apply_seconds"]);
    let lag = &report["lag"];
    assert_figures(lag, &["marker_ms_max", "markers", "told", "writes_per_s"]);
    let told = lag["told_ms_max"].as_f64().unwrap();
    let greater = told.max(lag["marker_ms_max"].as_f64().unwrap());
    assert_eq!(report["lag_ms_max"].as_f64(), Some(greater), "{report}");
}

#[test]
fn a_verification_is_measured_against_reading() {
    let report = bench(&["run", "verify", "--quick"]);
    assert_figures(&report, &["ratio_to_read_floor", "seconds", "floor_seconds"]);
}
