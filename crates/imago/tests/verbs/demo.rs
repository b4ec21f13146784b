//! `imago demo`, small: what a new user types first.

use std::process::Command;

use imago_testbed::{find_cassandra, pool, require};
use serde_json::Value;

/// The output of `imago demo` with these words; it ends well, and counts none of what would be
/// `wrong`.
fn shown(words: &[&str], wrong: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = Command::new(env!("CARGO_BIN_EXE_imago"));
    demo.current_dir(folder.path()).arg("demo").args(words);
    demo.args(["--json", "--progress", "none"]);
    demo.env("TMPDIR", pool::folder().unwrap_or_else(std::env::temp_dir));
    let output = demo.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    for wrong in wrong {
        assert_eq!(summary[wrong], 0, "{wrong}: {summary}");
    }
    summary
}

#[test]
#[ignore = "three nodes of Java are started by make test-long"]
fn a_cluster_is_tuned_under_load_and_loses_nothing() {
    let Some(_) = require(find_cassandra()) else { return };
    let summary = shown(&["tune"], &["failed_for_availability", "lost", "stale", "undone"]);
    assert_eq!(summary["changes"], 1, "{summary}");
    assert!(summary["acknowledged"].as_u64() > Some(1_000), "{summary}");
    for measured in ["predicted", "realised", "noise", "roll_s"] {
        assert!(summary[measured].is_number(), "{measured}: {summary}");
    }
}

const WRONG: [&str; 5] = ["lost", "resurrected", "duplicated", "stale", "different"];
const SMALL: [&str; 6] = ["--documents", "3000", "--rate", "100", "--idle-s", "2"];

#[test]
fn the_demo_moves_a_busy_collection_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("cut-over.svg");
    let words = [&SMALL[..], &["--picture", picture.to_str().unwrap()]].concat();
    let summary = shown(&words, &WRONG);
    let svg = std::fs::read_to_string(&picture).unwrap();
    for drawn in ["reads", "writes", "copy", "verify", "cut-over", "moved"] {
        assert!(svg.contains(drawn), "{drawn}: {svg}");
    }
    assert!(summary["acknowledged"].as_u64() > Some(50), "{summary}");
    assert!(summary["documents"].as_u64() > Some(2_500), "{summary}");
    for measured in ["copy_s", "write_block_ms", "read_p99_ms_before", "read_p99_ms_during"] {
        assert!(summary[measured].is_number(), "{measured}: {summary}");
    }
}

#[test]
fn the_shard_key_of_a_busy_collection_changes_and_nothing_is_lost() {
    let summary =
        shown(&[&["reshard", "--shards", "2", "--members", "1"], &SMALL[..]].concat(), &WRONG);
    assert!(summary["acknowledged"].as_u64() > Some(50), "{summary}");
    assert!(summary["compared"].as_u64() > Some(2_500), "{summary}");
    for measured in ["reshard_s", "write_block_ms", "write_gap_ms_max", "read_p99_ms_during"] {
        assert!(summary[measured].is_number(), "{measured}: {summary}");
    }
}

#[test]
fn a_store_changes_its_design_and_loses_a_site_and_nothing_else() {
    let summary = shown(
        &["store", "--sessions", "4", "--times", "8", "--idle-s", "1"],
        &["lost", "anomalies"],
    );
    assert_eq!(summary["second_checker"], "sound", "{summary}");
    assert!(summary["acknowledged"].as_u64() > Some(200), "{summary}");
    for operator in ["split", "merge", "add_replica", "remove_replica", "remaster"] {
        let made = &summary["operators"][operator];
        assert!(made["times"].as_u64() >= Some(8), "{operator}: {summary}");
        assert!(made["median_ms"].is_number(), "{operator}: {summary}");
    }
    for measured in ["site_down_ms", "p99_ms_before", "p99_ms_during"] {
        assert!(summary[measured].is_number(), "{measured}: {summary}");
    }
}

#[test]
fn a_store_chooses_its_design_while_a_hotspot_moves_and_loses_nothing() {
    let summary = shown(
        &["adapt", "--seconds", "14", "--off-seconds", "4", "--users", "2000", "--clients", "16"],
        &["lost", "anomalies"],
    );
    assert!(summary["acknowledged"].as_u64() > Some(200), "{summary}");
    assert_eq!(summary["single_site_share"], 1.0, "{summary}");
    assert!(summary["partitions"].as_u64() > Some(0), "{summary}");
    // Speed, changes and recovery by then depend on the machine. The tests of adaptation itself wait until a
    // store gives work away.
    assert!(summary["changes"].is_u64(), "{summary}");
    for measured in ["throughput_off", "throughput_on", "throughput_ratio", "undone", "total_s"] {
        assert!(summary[measured].is_number(), "{measured}: {summary}");
    }
    assert!(summary["brought_together"].is_number(), "{summary}");
    assert!(summary.get("recover_s").is_some(), "{summary}");
}
