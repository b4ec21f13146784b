//! `imago bench` at a size at which its figures mean nothing but must be there.

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
    assert_eq!(names, ["copy", "replay", "verify", "reshard", "placement", "flows", "flows-real"]);
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

#[test]
fn a_change_of_the_key_is_measured_against_the_servers_own_and_by_its_clients() {
    let report = bench(&["run", "reshard", "--quick"]);
    let figures = ["imago_s", "native_no_floor_s", "moved_bytes_native", "predicted_s"];
    assert_figures(&report, &figures);
    assert_figures(&report, &["write_gap_ms_max", "read_gap_ms_max", "acknowledged"]);
    assert!(report["native_s"].is_null(), "{report}");
    for anomalies in ["lost", "resurrected", "duplicated", "stale"] {
        assert_eq!(report[anomalies], 0, "{report}");
    }
    // 20,000 documents are all in the plan's sample, so that nothing is guessed.
    let moved = &report["moved_bytes"];
    assert!(moved.as_u64() > Some(0), "{report}");
    assert_eq!((moved, moved), (&report["moved_bytes_optimum"], &report["predicted_bytes"]));
    for phase in ["execute", "verify", "commit"] {
        assert!(report["phases"][phase].as_f64() > Some(0.0), "{report}");
    }
    for side in ["reads", "writes"] {
        assert_figures(&report[side], &["p99_ms_idle", "p99_ms_during", "p99_ratio"]);
    }
}

#[test]
fn placements_are_decided_exactly_and_compared_with_the_hungarian_algorithm() {
    let report = bench(&["run", "placement", "--quick"]);
    assert_figures(&report, &["seconds", "moved", "moved_least", "ratio_to_hungarian"]);
    assert_eq!((&report["chunks"], &report["servers"]), (&2_000.into(), &20.into()));
    assert_eq!((&report["is_least"], &report["costs_equal"]), (&true.into(), &true.into()));
    let patterns: Vec<_> =
        report["patterns"].as_array().unwrap().iter().map(|one| &one["pattern"]).collect();
    assert_eq!(patterns, ["uncorrelated", "correlated", "skewed"]);
    assert!(patterns.contains(&&report["pattern"]), "{report}");
    for one in report["patterns"].as_array().unwrap() {
        assert_figures(one, &["seconds", "moved", "moved_greedy", "moved_random"]);
        assert!(one["moved_greedy"].as_u64() <= one["moved"].as_u64(), "{one}");
    }
}

#[test]
fn every_strategy_of_figure_9_is_simulated_in_every_network() {
    let report = bench(&["run", "flows", "--quick", "--window-kib", "16,32"]);
    let ratios = ["ratio_to_fixed", "ratio_to_chunk_based", "ratio_to_orchestra"];
    assert_figures(&report, &ratios);
    let strategies = report["strategies"].as_array().unwrap();
    assert_eq!(strategies.len(), 2 * 2 * 5);
    for one in strategies {
        let figures = ["makespan_s", "ratio_to_fixed", "ratio_to_floor", "last_to_median"];
        assert_figures(one, &figures);
        assert_eq!(one["chunk_tenths_s"].as_array().unwrap().len(), 11, "{one}");
    }
}

#[test]
fn an_option_of_another_benchmark_is_a_usage_error() {
    for arguments in [
        ["placement", "--documents", "100"],
        ["flows", "--size-bytes", "100"],
        ["flows-real", "--servers-max", "9"],
        ["copy", "--chunks", "100"],
        ["placement", "--hungarian-chunks", "5001"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
        let output = command.args(["bench", "run"]).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(arguments[2]) || said.contains(arguments[1]), "{said}");
    }
}
