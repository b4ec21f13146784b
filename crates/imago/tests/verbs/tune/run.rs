//! `imago tune run` on three real nodes of Cassandra: what it decides, does, judges and takes back.

use imago_testbed::wait;
use serde_json::Value;

use super::ring::ring;

const MEASURED: &str = "\
configuration,operations_s,reads,updates
unified T8,5000,0,1
unified T8,2500,1,0
unified L10,4000,0,1
unified L10,4000,1,0
";

const CONFIGURATIONS: &str = "\
[[configuration]]
name = \"unified T8\"
settings = { compaction_throughput = \"64MiB/s\" }
compaction = { class = \"UnifiedCompactionStrategy\", scaling_parameters = \"T8\" }

[[configuration]]
name = \"unified L10\"
settings = { compaction_throughput = \"32MiB/s\" }
compaction = { class = \"UnifiedCompactionStrategy\", scaling_parameters = \"L10\" }
";

/// The events of a run.
pub(super) fn events(output: &[u8]) -> Vec<Value> {
    let text = String::from_utf8_lossy(output);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(super) fn of<'e>(events: &'e [Value], name: &str) -> Vec<&'e Value> {
    events.iter().filter(|event| event["event"] == name).collect()
}

/// Any answer is too slow for `--slowest-max 0.0001`; on a busy machine less may have been served as well, which is told first.
#[track_caller]
pub(super) fn assert_worse(judged: &Value) {
    let reasons = ["the slowest answers take too long", "clients are served less, and wait longer"];
    let worse = judged["worse"].as_str();
    assert!(worse.is_some_and(|worse| reasons.contains(&worse)), "{judged}");
}

#[test]
#[ignore = "three nodes of Java are started by make test-long"]
fn a_change_that_is_worse_is_undone_and_left_alone_and_a_hold_holds() {
    let Some(ring) = ring() else { return };
    let write = |name: &str, text: &str| {
        std::fs::write(ring.path(name), text).unwrap();
        ring.path(name).to_str().unwrap().to_owned()
    };
    let (two, measured) = (write("two.toml", CONFIGURATIONS), write("here.csv", MEASURED));
    let seen = ring.path("seen.csv").to_str().unwrap().to_owned();
    let tune = |more: &[&'static str]| -> Vec<String> {
        let usual = [
            "tune",
            "run",
            "--cluster",
            &*ring.cluster,
            "--ns",
            "shop.reviews",
            "--configurations",
            &*two,
            "--measurements",
            &*measured,
            "--trace",
            &*seen,
            "--interval",
            "5s",
            "--look-ahead",
            "20",
            "--busy-min",
            "0.0001",
            "--judged-by",
            "3",
        ];
        usual.iter().chain(more).map(ToString::to_string).collect()
    };
    let refused = |more: &[&'static str], exit: i32| {
        let arguments = tune(more);
        ring.refused(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), exit)
    };
    let run = |more: &[&'static str]| {
        let arguments = tune(&[more, &["--json"]].concat());
        let output = ring.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        events(&output.stdout)
    };
    let load = ["load", "--uri", &*ring.uri, "--ns", "shop.reviews", "--documents", "200"];
    let filled = ring.run(&[&load[..], &["--duration", "0s"]].concat());
    assert!(filled.status.success(), "{filled:?}");

    // Settings that no configuration has are no beginning.
    let said = refused(&["--duration", "1s"], 4);
    assert!(said.contains("has none of the configurations"), "{said}");
    let json = r#"shop.reviews={"class": "UnifiedCompactionStrategy", "scaling_parameters": "T8"}"#;
    ring.json(&ring.roll(&["--compaction", json]));

    let reading = ["--preloaded", "--mix", "read=95,update=5", "--rate", "60", "--until-stopped"];
    let mut reading = ring.start_process(&[&load[..], &reading].concat(), "load");

    // Held back, it says what it would do; another one is refused meanwhile.
    ring.json(&["tune", "hold", "--uri", &ring.uri]);
    let arguments = tune(&["--duration", "25s", "--json"]);
    let held = ring
        .command(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    wait::until_blocking("the trace has an interval", || {
        std::fs::read_to_string(&seen).is_ok_and(|text| text.lines().count() > 1)
    });
    let said = refused(&["--duration", "1s"], 4);
    assert!(said.contains("decides for this cluster"), "{said}");
    let held = events(&held.wait_with_output().unwrap().stdout);
    let decided = of(&held, "decided");
    let not_done = |one: &&&Value| {
        one["not_done"].as_str().is_some_and(|why| why.contains("has suspended changes"))
    };
    assert!(decided.iter().any(|one| not_done(&one)), "{decided:?}");
    assert_eq!(of(&held, "changing").len(), 0);
    ring.json(&["tune", "go-on", "--uri", &ring.uri]);

    // Of a change any answer is too slow, so that it is undone.
    let undone = run(&["--slowest-max", "0.0001", "--duration", "75s"]);
    let changing = of(&undone, "changing");
    assert_eq!(changing.len(), 2, "{undone:?}");
    assert_eq!(
        (&changing[0]["change"]["to"], &changing[0]["is_undoing"]),
        (&"unified L10".into(), &false.into())
    );
    assert_eq!(
        (&changing[1]["change"]["to"], &changing[1]["is_undoing"]),
        (&"unified T8".into(), &true.into())
    );
    let judged = of(&undone, "judged");
    assert_eq!(judged.len(), 1, "{undone:?}");
    assert_worse(judged[0]);
    let summary = undone.last().unwrap();
    assert_eq!(
        (&summary["changes"], &summary["undone"], &summary["failed"]),
        (&1.into(), &1.into(), &0.into())
    );
    let preview = ring.json(&ring.roll(&[
        "--compaction",
        json,
        "--set",
        "compaction_throughput=64MiB/s",
        "--dry-run",
    ]));
    assert_eq!(preview["tables"], Value::Array(vec![]), "it is as before: {preview}");

    // The next one knows that from the cluster.
    let after = run(&["--duration", "25s"]);
    assert_eq!(of(&after, "changing").len(), 0, "{after:?}");
    let why = |one: &&Value| {
        one["alternatives"][0]["because"].to_string().contains("is not tried for another")
    };
    assert!(of(&after, "decided").iter().any(why), "{after:?}");
    let decisions = ring.json(&["tune", "decisions", "--uri", &ring.uri]);
    let kinds: Vec<&str> = decisions["entries"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|one| one["kind"].as_str())
        .collect();
    for kind in ["decided", "changing", "changed", "judged"] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
    reading.kill();
}
