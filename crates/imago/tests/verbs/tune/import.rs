//! Traces of monitoring systems, from a file and from standard input; and a signal that ends a plan.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use imago_testbed::wait;

use super::{json, plan_alone};

fn import(folder: &std::path::Path, words: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
    command.current_dir(folder).env_clear().args(["tune", "import"]).args(words).arg("--json");
    command.output().unwrap()
}

#[test]
fn an_answer_of_prometheus_and_a_log_become_traces_that_are_planned_for() {
    let folder = tempfile::tempdir().unwrap();
    let points = |rate: fn(u64) -> u64| -> String {
        let point = |n: u64| format!("[{}.037,\"{}\"]", 1_490_054_400 + n * 900, rate(n));
        (1..=96 * 3).map(point).collect::<Vec<_>>().join(",")
    };
    let (day, night) =
        (|n: u64| if n % 96 < 48 { 900 } else { 20 }, |n: u64| if n % 96 < 48 { 20 } else { 900 });
    let answer = format!(
        "{{\"status\":\"success\",\"data\":{{\"resultType\":\"matrix\",\"result\":[\
         {{\"metric\":{{\"verb\":\"GET\"}},\"values\":[{}]}},{{\"metric\":{{\"verb\":\"POST\"}},\"values\":[{}]}}]}}}}",
        points(day),
        points(night)
    );
    std::fs::write(folder.path().join("range.json"), answer).unwrap();
    let words =
        ["range.json", "--from", "prometheus", "--out", "trace.csv", "--updates", "verb=POST"];
    let told = import(folder.path(), &words);
    let imported = json(&told.stdout);
    assert_eq!(
        (&imported["interval_s"], &imported["intervals"]),
        (&900.into(), &288.into()),
        "{told:?}"
    );
    let advice = json(&plan_alone(folder.path(), &["--json"]).stdout);
    assert_eq!(
        (&advice["intervals"], &advice["interval_s"]),
        (&288.into(), &900.into()),
        "{advice}"
    );
    let again = import(folder.path(), &words);
    let said = String::from_utf8(again.stderr).unwrap();
    assert!(
        again.status.code() == Some(2) && said.contains("trace.csv is there already"),
        "{said}"
    );

    let mut log =
        String::from("Running WRITE with 8 threads for 4 seconds\ntype, total ops, op/s, time\n");
    for n in 1..=60 {
        _ = writeln!(log, "total, {}, 500, {n}.0", n * 500);
    }
    std::fs::write(folder.path().join("stress.log"), log).unwrap();
    let words = ["stress.log", "--from", "cassandra-stress", "--out", "stress.csv"];
    assert_eq!(import(folder.path(), &words).status.code(), Some(2), "it has no time of day");
    let told = import(folder.path(), &[&words[..], &["--begin", "2026-11-28T09:00:00Z"]].concat());
    assert_eq!(json(&told.stdout)["intervals"], 60, "{told:?}");
    let trace = std::fs::read_to_string(folder.path().join("stress.csv")).unwrap();
    assert!(trace.contains("\n1795856400,0,500,0,0,\n"), "{trace}");
}

#[test]
fn a_signal_ends_a_plan_that_is_computed() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
    command.env_clear().args(["tune", "plan", "-"]);
    let mut plan =
        command.stdin(Stdio::piped()).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    // So many are compared by all forecasts and look-aheads for minutes.
    let mut trace = String::from("start,reads,updates\n");
    for n in 0..200_000_u64 {
        _ = writeln!(
            trace,
            "{},{},{}",
            1_490_054_400 + n * 60,
            n * 7_919 % 1_000,
            n * 104_729 % 1_000
        );
    }
    plan.stdin.take().unwrap().write_all(trace.as_bytes()).unwrap();
    let pid = plan.id().to_string();
    assert!(plan.try_wait().unwrap().is_none(), "it is computed");
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    wait::until_blocking("it ends", || plan.try_wait().unwrap().is_some());
    let ended = plan.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(5), "{said}");
    assert!(said.contains("interrupted"), "{said}");
}
