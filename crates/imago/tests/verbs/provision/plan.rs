//! `imago provision plan` on trace files alone: the advice, its reasons, and what is said of wrong input.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use imago_provision::trace::Trace;
use serde_json::Value;

/// Four phases of 20,000 reads of messages by number; from the second phase on each reads half of the first one's.
fn messages() -> String {
    let mut text = String::from("phase,key,bytes\n");
    for phase in 0..4_u64 {
        for read in 0..20_000_u64 {
            let key = if read % 2 == 0 { read } else { 1_000_000 * (phase + 1) + read };
            _ = writeln!(text, "{phase},{key},150");
        }
    }
    text
}

fn folder(trace: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("messages.csv"), trace).unwrap();
    folder
}

fn plan(folder: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
    command.current_dir(folder).env_clear();
    command.args(["provision", "plan", "messages.csv"]).args(more).output().unwrap()
}

fn json(told: &Output) -> Value {
    assert_eq!(told.status.code(), Some(0), "{}", String::from_utf8_lossy(&told.stderr));
    serde_json::from_slice(&told.stdout).unwrap()
}

fn text(told: &Output) -> String {
    assert_eq!(told.status.code(), Some(0), "{}", String::from_utf8_lossy(&told.stderr));
    String::from_utf8(told.stdout.clone()).unwrap()
}

const PRICES: &str = "core=0.04,gb=0.005";
const SLOW_SHARDS: &str = "client=2,shard=0.3";

fn time_of(advice: &Value, is_it: impl Fn(&Value) -> bool) -> f64 {
    let shape = advice["shapes"].as_array().unwrap().iter().find(|shape| is_it(shape));
    shape.unwrap_or_else(|| panic!("{advice}"))["time_s"].as_f64().unwrap()
}

#[test]
fn a_trace_alone_is_enough_and_it_is_said_whose_costs_are_used() {
    let folder = folder(&messages());
    let told = text(&plan(folder.path(), &["--deadline", "1h", "--cores", SLOW_SHARDS]));
    for part in [
        "Provision 1 shard, no cache: ",
        "fewest processors",
        "costs: ",
        "Shapes that no other beats",
        "Why not",
        "2 shards instead of 1 take ",
        "the costs are those of another machine",
        "no shape is the cheapest",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

#[test]
fn the_cheapest_shape_that_meets_the_deadline_is_advised_and_its_neighbours_are_not() {
    let folder = folder(&messages());
    let ask = |deadline: &str| {
        json(&plan(
            folder.path(),
            &["--json", "--deadline", deadline, "--price", PRICES, "--cores", SLOW_SHARDS],
        ))
    };
    let all = ask("1h");
    let alone = |shards: u64| {
        move |shape: &Value| {
            shape["shards"] == shards && shape["replicas"] == 1 && shape["cache_bytes"] == 0
        }
    };
    let (one, two) = (time_of(&all, alone(1)), time_of(&all, alone(2)));
    assert!(two < one, "{one} {two}");
    let advice = ask(&format!("{:.3}s", (one + two) / 2.0));
    assert_eq!(advice["meets_deadline"], true, "{advice}");
    let price = advice["advised"]["price_hour"].as_f64().unwrap();
    let deadline = advice["deadline_s"].as_f64().unwrap();
    for shape in advice["shapes"].as_array().unwrap() {
        let late = shape["time_s"].as_f64().unwrap() > deadline;
        assert!(late || shape["price_hour"].as_f64().unwrap() >= price * 0.999_99, "{shape}");
    }
    let neighbours = advice["neighbours"].as_array().unwrap();
    assert!(!neighbours.is_empty());
    for neighbour in neighbours {
        let late = neighbour["time_s"].as_f64().unwrap() > deadline;
        let because = neighbour["because"].as_str().unwrap();
        assert_eq!(because.contains("beyond the deadline"), late, "{neighbour}");
    }
    assert!(advice["advice"].as_str().unwrap().contains("cheapest"), "{advice}");
}

#[test]
fn a_cache_answers_what_was_read_before_and_no_more() {
    let folder = folder(&messages());
    let advice = json(&plan(folder.path(), &["--json", "--deadline", "1h", "--cache", "0,64MiB"]));
    let with =
        advice["shapes"].as_array().unwrap().iter().find(|shape| shape["cache_bytes"] == 64 << 20);
    // Half of three phases of four.
    assert!((with.unwrap()["hit_ratio"].as_f64().unwrap() - 0.375).abs() < 1e-9, "{advice}");
    let held = with.unwrap()["cache_held_bytes"].as_f64().unwrap();
    let distinct = advice["distinct_bytes"].as_f64().unwrap();
    assert!((held - distinct).abs() < 1.0 && distinct > 50_000.0 * 150.0, "{held} {distinct}");
}

#[test]
fn a_deadline_that_no_shape_meets_gets_the_fastest_and_its_bottleneck() {
    let folder = folder(&messages());
    let advice = json(&plan(folder.path(), &["--json", "--deadline", "1ms"]));
    assert_eq!(advice["meets_deadline"], false);
    let fastest = advice["advised"]["time_s"].as_f64().unwrap();
    assert!((advice["missed_by_s"].as_f64().unwrap() - (fastest - 0.001)).abs() < 1e-9);
    let told = advice["advice"].as_str().unwrap();
    assert!(told.starts_with("No shape of ") && told.contains("it is bounded by "), "{told}");
}

#[test]
fn uneven_shards_are_named_with_the_command_that_mends_them() {
    let folder = folder(&messages());
    let ask = |deadline: &str, more: &[&str]| {
        let mut all =
            vec!["--json", "--deadline", deadline, "--cache", "0", "--cores", "client=2,shard=0.1"];
        all.extend(["--shards", "1,4", "--replicas", "1", "--workers", "16"]);
        all.extend(more);
        json(&plan(folder.path(), &all))
    };
    let four = |advice: &Value| time_of(advice, |shape| shape["shards"] == 4);
    let even = four(&ask("1h", &[]));
    let uneven = four(&ask("1h", &["--share", "14,14,39,33"]));
    assert!(uneven > 1.2 * even, "{uneven} {even}");
    let deadline = format!("{:.3}s", (even + uneven) / 2.0);
    let advice = ask(&deadline, &["--share", "14,14,39,33"]);
    assert_eq!(advice["meets_deadline"], false, "{advice}");
    let finding = &advice["uneven"];
    assert!((finding["largest"].as_f64().unwrap() - 0.39).abs() < 1e-9, "{advice}");
    let command = finding["command"].as_str().unwrap();
    assert!(command.starts_with("imago reshard run --uri \"$ROUTER\" --ns "), "{command}");
    assert_eq!(ask(&deadline, &[])["uneven"], Value::Null);
}

#[test]
fn a_picture_shows_the_time_over_the_cache_with_the_deadline() {
    let folder = folder(&messages());
    let told = plan(folder.path(), &["--json", "--deadline", "10s", "--picture", "plan.svg"]);
    json(&told);
    let svg = std::fs::read_to_string(folder.path().join("plan.svg")).unwrap();
    assert!(svg.contains("4 shards") && svg.contains("deadline"), "{svg}");
}

#[test]
fn what_makes_no_sense_is_refused_with_the_flag_at_fault() {
    let folder = folder(&messages());
    let refused = |more: &[&str], part: &str| {
        let told = plan(folder.path(), more);
        let error = String::from_utf8_lossy(&told.stderr).replace('\n', " ");
        assert_eq!(told.status.code(), Some(2), "{more:?}: {error}");
        assert!(error.contains(part), "{part}: {error}");
        assert!(told.stdout.is_empty());
    };
    refused(&["--deadline", "0s"], "the deadline must be above 0");
    refused(&[], "--deadline");
    let with = |more: &[&str], part: &str| {
        let mut all = vec!["--deadline", "60s"];
        all.extend(more);
        refused(&all, part);
    };
    with(&["--price", "core=0.04"], "gb=… is missing");
    with(&["--price", "core=-1,gb=0.005"], "is no price");
    with(&["--share", "44,50"], "sum up to 94");
    with(&["--share", "30,30,40"], "no shape has so many shards");
    with(&["--shards", "0"], "--shards");
    with(&["--cache", "128MB"], "KiB, MiB or GiB");
    with(&["--probe", "nowhere.json"], "nowhere.json");
    with(&["--cores", "shard=0"], "above 0");
}

#[test]
fn a_file_that_is_no_trace_is_refused() {
    let folder = folder("hello\nworld\n");
    let told = plan(folder.path(), &["--deadline", "60s"]);
    assert_eq!(told.status.code(), Some(2), "{told:?}");
    assert!(String::from_utf8_lossy(&told.stderr).contains("messages.csv"), "{told:?}");
    std::fs::write(folder.path().join("messages.csv"), "phase,key,bytes\n").unwrap();
    let told = plan(folder.path(), &["--deadline", "60s"]);
    assert_eq!(told.status.code(), Some(2), "{told:?}");
    assert!(String::from_utf8_lossy(&told.stderr).contains("no reads"), "{told:?}");
}

#[test]
fn a_torn_trace_is_refused_unless_its_whole_phases_are_asked_for() {
    let folder = folder(&messages());
    let file = folder.path().join("messages.csv");
    let trace = Trace::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    trace.write(&file).unwrap();
    let whole = std::fs::read(&file).unwrap();
    let advice = json(&plan(folder.path(), &["--json", "--deadline", "60s"]));
    assert_eq!(advice["reads"], 80_000, "{advice}");
    std::fs::write(&file, &whole[..whole.len() - whole.len() / 8]).unwrap();
    let told = plan(folder.path(), &["--deadline", "60s"]);
    let error = String::from_utf8_lossy(&told.stderr).replace('\n', " ");
    assert_eq!(told.status.code(), Some(2), "{error}");
    assert!(error.contains("is torn") && error.contains("--torn"), "{error}");
    let advice = json(&plan(folder.path(), &["--json", "--deadline", "60s", "--torn"]));
    assert_eq!(advice["reads"], 60_000, "{advice}");
    let notes = advice["notes"].to_string();
    assert!(notes.contains("does not have the whole job"), "{notes}");
}
