//! `imago tune` as a user meets it: advice from files, and what is said of wrong ones; and rolls of real clusters.

mod canary;
mod clocks;
mod death;
mod disturbed;
mod files;
mod fit;
mod import;
mod moments;
mod pair;
pub(crate) mod redis;
mod redis_files;
mod redis_run;
mod ring;
mod roll;
mod run;
mod sample;
mod search;
mod turns;

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const MEASURED: &str = "\
configuration,operations_s,reads,updates
size-tiered,52000,0,1
size-tiered,30000,1,0
leveled,37000,0,1
leveled,46000,1,0
";

fn plan(folder: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
    command.current_dir(folder).env_clear();
    command.args(["tune", "plan", "trace.csv", "--measurements", "here.csv"]);
    command.args(more).output().unwrap()
}

/// Nine days of quarters of an hour, written to by day and read by night.
fn days() -> String {
    let mut text = String::from("start,reads,updates\n");
    for n in 0..9 * 96 {
        let (reads, updates) =
            if (28..76).contains(&(n % 96)) { (900, 9_100) } else { (9_500, 500) };
        _ = writeln!(text, "{},{reads},{updates}", 1_490_054_400 + n * 900);
    }
    text
}

fn folder(trace: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("trace.csv"), trace).unwrap();
    std::fs::write(folder.path().join("here.csv"), MEASURED).unwrap();
    folder
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(bytes)))
}

#[test]
fn days_and_nights_are_worth_two_changes_a_day_and_it_is_said_what_else_there_is() {
    let folder = folder(&days());
    let told = plan(folder.path(), &["--json", "--nodes", "6", "--at-once", "2"]);
    assert_eq!(told.status.code(), Some(0), "{told:?}");
    let advice = json(&told.stdout);
    assert_eq!(
        (&advice["current"], &advice["plan"][0]["to"]),
        (&"size-tiered".into(), &"leveled".into())
    );
    assert!(advice["expected"]["gain"].as_f64() > Some(0.05), "{advice}");
    assert_eq!(advice["replay"]["changes"], 7, "{advice}");
    let names: Vec<&Value> =
        advice["baselines"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    let expected =
        ["default", "static optimal", "naive", "oracle", "theoretical best", "aggressive"];
    assert_eq!(names, expected);

    // Ten hours from midnight on: it changes in the morning.
    let told = plan(folder.path(), &["--current", "leveled", "--look-ahead", "40"]);
    let text = String::from_utf8(told.stdout).unwrap();
    for part in [
        "Change from leveled to size-tiered",
        "07:00:00 UTC",
        "theoretical best",
        "time of day",
        "RMSE",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // As if a node were away for half a day: nothing pays.
    let dear = plan(folder.path(), &["--restart", "6h", "--catch-up", "0"]);
    let text = String::from_utf8(dear.stdout).unwrap();
    assert!(text.starts_with("Stay with size-tiered: no change pays."), "{text}");
    assert!(text.contains("the change costs") || text.contains("serves no more"), "{text}");
}

/// `imago tune plan trace.csv` with these words alone.
fn plan_alone(folder: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
    command.current_dir(folder).env_clear().args(["tune", "plan", "trace.csv"]);
    command.args(more).output().unwrap()
}

#[test]
fn a_trace_alone_is_planned_for_by_what_comes_with_imago() {
    let folder = folder(&days());
    for (database, file, first) in
        [("cassandra", "cassandra-5.csv", "uploads"), ("redis", "redis-7.csv", "default")]
    {
        let told = plan_alone(folder.path(), &["--database", database, "--json"]);
        assert_eq!(told.status.code(), Some(0), "{told:?}");
        let advice = json(&told.stdout);
        assert!(advice["measurements"].as_str().unwrap().starts_with(file), "{advice}");
        assert_eq!(advice["current"], first, "{advice}");
        assert!(advice["busy_peak"].as_f64() > Some(0.0), "{advice}");
        assert_eq!(advice["demand"]["forecasts"][1]["name"], "time of day", "{advice}");
    }
    let told = plan_alone(folder.path(), &["--weigh-by", "capacity"]);
    let text = String::from_utf8(told.stdout).unwrap();
    assert!(text.contains("Measure your own: imago tune sample."), "{text}");
    assert!(!text.contains("DEMAND"), "{text}");
}

#[test]
fn a_queue_is_planned_for_and_changes_take_what_differs_and_are_bounded() {
    let folder = folder(&days());
    let of = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let mut text = String::from("start,reads,updates\n");
    for n in 9 * 96..11 * 96 {
        let (reads, updates) = if n % 96 < 48 { (9_500, 500) } else { (0, 10_000) };
        _ = writeln!(text, "{},{reads},{updates}", 1_490_054_400 + n * 900);
    }
    std::fs::write(of("queue.csv"), text).unwrap();
    let compaction = |class: &str, name: &str| {
        format!("[[configuration]]\nname = \"{name}\"\ncompaction = {{ class = \"{class}\" }}\n")
    };
    let two = compaction("SizeTieredCompactionStrategy", "size-tiered")
        + &compaction("LeveledCompactionStrategy", "leveled");
    std::fs::write(of("two.toml"), two).unwrap();
    let queue = ["--json", "--queue", "queue.csv", "--weigh-by", "capacity"];
    let told = |more: &[&str]| {
        let told = plan(folder.path(), &[&queue[..], more].concat());
        assert_eq!(told.status.code(), Some(0), "{told:?}");
        json(&told.stdout)
    };
    let advice = told(&[]);
    assert_eq!((&advice["forecast"], &advice["look_ahead"]), (&"job queue".into(), &192.into()));
    // To leveled at midnight, back at noon, and both again.
    assert_eq!(advice["plan"].as_array().unwrap().len(), 4, "{advice}");
    let advice = told(&["--changes-max", "1", "--gain-min", "0"]);
    assert_eq!(advice["plan"].as_array().unwrap().len(), 1, "{advice}");
    // Another strategy rewrites all data, which takes ten minutes if nothing else is said, and no node restarts.
    let advice = told(&["--configurations", "two.toml"]);
    assert!((600.0..610.0).contains(&advice["roll_s"].as_f64().unwrap()), "{advice}");
    let late = plan(folder.path(), &["--json", "--queue", "trace.csv"]);
    let said = String::from_utf8(late.stderr).unwrap();
    assert_eq!(late.status.code(), Some(2), "{said}");
    assert!(said.contains("continue where the trace ends"), "{said}");
}

#[test]
fn what_is_wrong_with_a_file_is_said_with_its_line() {
    let good = days();
    let back = good.replacen("1490056200", "1490050000", 1);
    let folder = folder(&back);
    let told = plan(folder.path(), &["--json"]);
    assert_eq!((told.status.code(), told.stdout.len()), (Some(2), 0), "{told:?}");
    let said = json(&told.stderr)["error"]["message"].as_str().unwrap().to_owned();
    assert!(said.starts_with("trace.csv, line 4: it begins"), "{said}");
    std::fs::write(folder.path().join("trace.csv"), good).unwrap();
    let told = plan(folder.path(), &["--current", "unified"]);
    let said = String::from_utf8(told.stderr).unwrap();
    assert_eq!(told.status.code(), Some(2));
    assert!(said.contains("there are size-tiered, leveled"), "{said}");
    std::fs::remove_file(folder.path().join("here.csv")).unwrap();
    let told = plan(folder.path(), &[]);
    let said = String::from_utf8(told.stderr).unwrap();
    assert_eq!(told.status.code(), Some(2));
    assert!(said.contains("cannot read here.csv"), "{said}");
}
