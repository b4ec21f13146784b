//! `imago tune design` and `imago tune search` as a user meets them: from ranges of settings to configurations to measure,
//! and from what these served to the settings that matter and the best configurations.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use imago_tune::cassandra::Cassandra;
use imago_tune::configurations::{self, Configuration};
use serde_json::Value;

fn tune(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
    command.current_dir(folder).env_clear().arg("tune");
    command.args(arguments).output().unwrap()
}

fn said(output: &Output, exit: i32) -> String {
    let (text, error) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(exit), "{text}{error}");
    if exit == 0 {
        text.into_owned()
    } else {
        error.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

fn json(output: &Output) -> Value {
    serde_json::from_str(&said(output, 0)).unwrap()
}

const T8: &str = r#"{"class": "UnifiedCompactionStrategy", "scaling_parameters": "T8"}"#;
const L10: &str = r#"{"class": "UnifiedCompactionStrategy", "scaling_parameters": "L10"}"#;

/// A design of four settings, as its file and as it was told.
fn design(folder: &Path, more: &[&str]) -> Output {
    let usual = [
        "design",
        "--knob",
        "concurrent_reads=16..64",
        "--knob",
        "memtable_flush_writers=1,2,4",
        "--knob",
        "compaction_throughput=16MiB/s..128MiB/s",
        "--compaction",
        T8,
        "--compaction",
        L10,
        "--out",
        "sampled.toml",
    ];
    tune(folder, &[&usual[..], more].concat())
}

/// What a cluster serves of reads and of updates: more readers help reads, the compaction helps one or the other; flush
/// writers and the speed of compaction do nothing.
fn serves(one: &Configuration) -> (f64, f64) {
    let readers: f64 =
        one.settings.get("concurrent_reads").map_or(32.0, |text| text.parse().unwrap());
    let for_reads = one.compaction.as_ref().unwrap().to_string().contains("L10");
    let reads = (1_600.0 + 12.0 * readers) * if for_reads { 1.3 } else { 1.0 };
    (reads, if for_reads { 2_300.0 } else { 3_000.0 })
}

/// Measurements of all configurations of a file in two rounds, with errors of two percent that look drawn.
fn measure(folder: &Path, mut serves: impl FnMut(&Configuration) -> (f64, f64)) {
    let mut text = String::from(
        "configuration,operations_s,reads,updates,inserts,scans,round,warm_s,spread\n",
    );
    let mut drawn = 1_u64;
    for round in 0..2 {
        for one in configurations::read::<Cassandra>(&folder.join("sampled.toml")).unwrap() {
            for reads in [0.0, 0.25, 0.5, 0.75, 1.0_f64] {
                let (of_reads, of_updates) = serves(&one);
                drawn = drawn
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let error = 0.04 * ((drawn >> 33) as f64 / f64::from(1_u32 << 31) - 0.5);
                let rate_s = (1.0 + error) / (reads / of_reads + (1.0 - reads) / of_updates);
                let (percent, rest) = (100.0 * reads, 100.0 - 100.0 * reads);
                _ = writeln!(
                    text,
                    "{},{rate_s:.1},{percent},{rest},0,0,{round},12.0,0.1",
                    one.name
                );
            }
        }
    }
    std::fs::write(folder.join("sampled.csv"), text).unwrap();
}

fn search(folder: &Path, more: &[&str]) -> Output {
    let usual = ["search", "--configurations", "sampled.toml", "--measurements", "sampled.csv"];
    tune(folder, &[&usual[..], more].concat())
}

#[test]
fn from_ranges_to_configurations_to_measure_and_from_measurements_to_optima() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let drawn = json(&design(folder, &["--runs", "16", "--seed", "3", "--json"]));
    assert_eq!(drawn["configurations"].as_array().unwrap().len(), 17);
    let class = |name: &str| {
        let all = drawn["knobs"].as_array().unwrap();
        all.iter().find(|one| one["name"] == name).unwrap()["class"].clone()
    };
    assert_eq!(
        [class("concurrent_reads"), class("compaction_throughput"), class("compaction")],
        ["live", "live", "alter"].map(Value::from)
    );
    assert!(drawn["correlation"].as_f64().unwrap() < 0.4, "{drawn}");
    let all = configurations::read::<Cassandra>(&folder.join("sampled.toml")).unwrap();
    assert!(all[0].name == "default" && all[0].settings.is_empty(), "{:?}", all[0]);
    let with_l10 = all.iter().filter(|one| serves(one).1 < 2_500.0).count();
    assert_eq!(with_l10, 8, "each compaction as often as the other");
    let text = std::fs::read_to_string(folder.join("sampled.toml")).unwrap();
    assert!(text.starts_with("# Configurations to measure"), "{text}");
    assert!(text.contains("#   concurrent_reads (live)\n"), "{text}");

    // Another draw is another design, the same one the same; nothing is written over.
    let again = said(&design(folder, &["--runs", "16", "--seed", "3"]), 4);
    assert!(again.contains("cannot write sampled.toml"), "{again}");
    let other = tempfile::tempdir().unwrap();
    let text_of = |seed: &str| {
        said(&design(other.path(), &["--runs", "16", "--seed", seed]), 0);
        let file = other.path().join("sampled.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(file).unwrap();
        text
    };
    assert_eq!(text_of("3"), text);
    assert_ne!(text_of("4"), text);

    measure(folder, serves);
    let answer =
        json(&search(folder, &["--json", "--out", "optima.toml", "--mix", "read=96,update=4"]));
    let ranking = &answer["ranking"];
    assert_eq!((&ranking["kept"], ranking["knobs"].as_array().unwrap().len()), (&2.into(), 4));
    let names = [&ranking["knobs"][0]["name"], &ranking["knobs"][1]["name"]];
    assert_eq!(names, ["compaction", "concurrent_reads"]);
    assert!(ranking["knobs"][1]["p_in_all"].as_f64().unwrap() < 0.01, "{ranking}");
    assert!(answer["surrogate"]["error_at_mixes"].as_f64().unwrap() < 0.075, "{answer}");
    let last = &answer["optima"][4];
    assert_eq!(
        (&last["mix"], &last["settings"]["concurrent_reads"]),
        (&"read=100".into(), &"64".into())
    );
    assert!(last["gain_over_default"].as_f64().unwrap() > 0.4, "{last}");
    let asked = &answer["asked"][0];
    assert_eq!((&asked["nearest"], &asked["is_near"]), (&"read=100".into(), &true.into()));
    assert!((asked["distance"].as_f64().unwrap() - 0.028_284).abs() < 1e-4, "{asked}");

    // The optima are a file for `sample`.
    let optima = configurations::read::<Cassandra>(&folder.join("optima.toml")).unwrap();
    assert_eq!(optima[0], all[0]);
    assert!(optima.iter().any(|one| serves(one).0 > 3_000.0), "{optima:?}");

    let text =
        said(&search(folder, &["--mix", "read=96,update=4", "--mix", "read=60,update=40"]), 0);
    for part in [
        "Left out of the ranking, because a setting depends on the machine there: default",
        "P IN ALL",
        "The list is cut where the share falls most",
        "ERROR AT NEW MIXES",
        "BEST FOR",
        "read=96,update=4: the optimum of read=100, at a distance of 0.028",
        "read=60,update=40: searched for, as read=50,update=50 is 0.071 away",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn where_nothing_but_chance_differs_no_optimum_is_made_up() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    said(&design(folder, &[]), 0);
    measure(folder, |_| (2_000.0, 3_000.0));
    let text = said(&search(folder, &[]), 0);
    assert!(text.contains("No setting has a significant effect: stay with the default"), "{text}");
    let refused = said(&search(folder, &["--out", "optima.toml"]), 4);
    assert!(refused.contains("no setting has a significant effect"), "{refused}");
    assert!(!folder.join("optima.toml").exists());
}

#[test]
fn what_is_wrong_with_a_question_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let out = ["--out", "sampled.toml"];
    for (arguments, part) in [
        (&["--knob", "concurrent_reeds=1..2"][..], "there is no setting concurrent_reeds"),
        (&["--knob", "concurrent_reads=0..2"], "a whole number from 1 to 1024"),
        (&["--knob", "concurrent_reads=64..16"], "the wrong way round"),
        (&["--knob", "concurrent_reads=64,64"], "there is nothing to choose"),
        (&["--knob", "concurrent_reads"], "write concurrent_reads=16..64"),
        (&["--knob", "memtable_heap_space=16..64MiB"], "16MiB to 65536MiB"),
        (
            &["--knob", "trickle_fsync=true,false", "--runs", "2"],
            "make 1 configurations besides the default",
        ),
        (
            &["--knob", "concurrent_reads=1..9", "--knob", "concurrent_reads=1..8"],
            "concurrent_reads is named twice",
        ),
        (&["--compaction", T8], "nothing is varied"),
        (&[], "nothing is varied"),
    ] {
        let told = tune(folder, &[&["design"], &out[..], arguments].concat());
        let error = said(&told, 2);
        assert!(error.contains(part), "{part}: {error}");
        assert!(!folder.join("sampled.toml").exists());
    }
    said(&design(folder, &[]), 0);
    measure(folder, serves);
    let mix = said(&search(folder, &["--mix", "read=50,delete=50"]), 2);
    assert!(mix.contains("not one of reads, updates, inserts and scans alone"), "{mix}");
    let file = folder.join("sampled.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("run-07", "run-70")).unwrap();
    let unknown = said(&search(folder, &[]), 2);
    assert!(unknown.contains("the measurements are of run-07 too"), "{unknown}");
}
