//! `imago bench` at a size at which its figures mean nothing but must be there.

use std::process::Command;

use imago_testbed::{find_redis, pool, require};
use serde_json::{Value, json};

use crate::reshard::dice::is_long;

fn bench(arguments: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
    command.current_dir(folder.path()).arg("bench").args(arguments).arg("--json");
    // No figure here means anything: the servers' files may as well be in memory.
    command.env("TMPDIR", pool::folder().unwrap_or_else(std::env::temp_dir));
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
    let of_copies = ["copy", "replay", "verify", "reshard", "foresight"];
    let of_placement = ["chain-fetch", "placement", "flows", "flows-real"];
    let of_decisions = ["store", "store-postgres", "adapt"];
    let of_morphosys = ["morphosys-fig3", "morphosys-fig4", "morphosys-fig5", "morphosys-fig6"];
    let of_tuning = ["tune-schedule", "shard-keys", "cache-hits", "reuse"];
    let of_sophia =
        ["sophia-traces", "sophia-scenarios", "sophia-buses", "sophia-roll", "sophia-redis"];
    let of_chains = ["chained-mr"];
    let of_morphus = ["morphus-table1", "morphus-fig7", "morphus-fig8"];
    assert_eq!(
        names,
        [
            &of_copies[..],
            &of_placement,
            &of_decisions,
            &of_morphosys,
            &of_tuning,
            &of_sophia,
            &of_chains,
            &of_morphus
        ]
        .concat()
    );
}

#[test]
fn a_copy_is_measured_against_inserting_and_against_competitors() {
    let report = bench(&["run", "copy", "--quick"]);
    let figures = ["ratio_to_floor", "client_cpu_ratio", "client_rss_mb_max", "seconds"];
    assert_figures(&report, &figures);
    let competitors = report["competitors"].as_array().unwrap();
    assert_eq!(competitors.len(), 2);
    for competitor in competitors {
        assert_ne!(competitor["seconds"].is_null(), competitor["note"].is_null(), "{competitor}");
    }
}

#[test]
fn predictions_are_counted_beside_what_came() {
    let report = bench(&["run", "foresight", "--quick"]);
    let copies = report["copies"].as_array().unwrap().iter();
    assert_eq!(copies.filter(|one| one["beside_clients"] == true).count(), 3, "{report}");
    let of = |name: &str| {
        let all = report["predictions"].as_array().unwrap();
        all.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("{name}: {report}"))
    };
    // Copies of a few MB are too short for a prediction of their end.
    assert_eq!((&of("bytes")["realized"], &of("bytes")["inside"]), (&json!(12), &json!(12)));
    assert_eq!(of("index_s")["realized"], 12, "{report}");
    assert!(report["plans"] == 0 || of("operators_us")["predicted"] == report["plans"], "{report}");
    assert_eq!(of("reshard_s")["realized"], 3, "{report}");
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
fn fetching_by_batches_is_measured_against_one_find_after_the_other() {
    let report = bench(&["run", "chain-fetch", "--quick"]);
    let figures = ["ratio_to_find_one", "ratio_of_one_worker", "find_one_seconds", "seconds"];
    assert_figures(&report, &figures);
    if find_redis().is_ok() {
        assert_figures(&report, &["ratio_of_warm_cache", "warm_cache_seconds"]);
    }
}

#[test]
#[ignore = "a shard key is changed six times and more by make test-long"]
fn a_change_of_the_key_is_measured_against_the_servers_own_and_by_its_clients() {
    let report = bench(&["run", "reshard", "--quick", "--shards", "2"]);
    let figures = ["imago_s", "native_no_floor_s", "moved_bytes_native", "predicted_s"];
    assert_figures(&report, &figures);
    assert_figures(&report, &["write_gap_ms_max", "read_gap_ms_max", "acknowledged"]);
    assert!(report["native_s"].is_null(), "{report}");
    for anomalies in ["lost", "resurrected", "duplicated", "stale"] {
        assert_eq!(report[anomalies], 0, "{report}");
    }
    // 5,000 documents are all in the plan's sample, so that nothing is guessed.
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
fn changes_of_configuration_are_decided_exactly_and_compared_with_the_genetic_search() {
    let report = bench(&["run", "tune-schedule", "--quick"]);
    assert_figures(&report, &["exact_ms", "genetic_ms", "genetic_ratio", "static_ratio"]);
    assert!(report["genetic_ratio_max"].as_f64() <= Some(1.0 + 1e-9), "{report}");
}

#[test]
fn the_workloads_of_sophia_are_lived_through_beside_other_ways_to_choose() {
    let report = bench(&["run", "sophia-traces", "--quick"]);
    let workloads = report["workloads"].as_array().unwrap();
    assert_eq!(workloads.len(), 8, "{report}");
    assert_figures(&workloads[6]["demand_rmse"][0], &["one", "twelve"]);
    assert!(workloads[1]["changes"].as_u64() > Some(0), "buses have something to gain: {report}");
    for workload in workloads {
        assert_figures(workload, &["lived", "look_ahead"]);
        for ratio in workload["ratios"].as_array().unwrap() {
            assert!(ratio["ratio"].as_f64() > Some(0.0), "{workload}");
        }
    }
}

#[test]
#[ignore = "a minute and a half of replays, which make test-long has"]
fn the_figures_of_sophia_are_replayed_by_what_was_measured_and_by_what_is_published() {
    let files = ["fig3", "fig5", "fig6", "fig7", "fig8", "restarts", "fig9"]
        .map(|of| format!("sophia-{of}.svg"));
    let files = files.each_ref().map(String::as_str);
    let report = drawn(&["run", "sophia-fig6"], &files);
    assert_eq!(report["benchmark"], "sophia-scenarios", "its figures are of one replay");
    let rows = |name: &str| report[name].as_array().unwrap();
    let bases = rows("bases").len();
    assert_eq!(bases, 3, "{report}");
    assert_eq!(rows("scenarios").len(), bases * 5);
    assert_eq!((rows("ranges").len(), rows("scale").len()), (24, bases * 8));
    assert_eq!((rows("replicas").len(), rows("noise").len()), (bases * 5, bases * 6));
    assert_eq!(rows("volumes").len(), 3);
    for row in
        rows("scenarios").iter().chain(rows("scale")).chain(rows("restarts")).chain(rows("volumes"))
    {
        let ratios = &row["ratios"];
        assert_figures(ratios, &["default", "naive", "aggressive", "tuned", "oracle"]);
        let best = ratios["theoretical_best"].as_f64().unwrap();
        for (way, ratio) in ratios.as_object().unwrap() {
            assert!(ratio.as_f64().unwrap() <= best * (1.0 + 1e-9), "{way}: {row}");
        }
    }
    for row in rows("noise").iter().filter(|row| row["noise"] == 0.0) {
        assert_eq!(row["ratio_to_noiseless"]["median"], 1.0, "{row}");
    }
}

#[test]
fn jobs_that_fit_compact_only_fail_by_default_and_are_served_by_the_tuner() {
    let Some(_) = require(find_redis()) else { return };
    let report = drawn(&["run", "sophia-redis"], &["sophia-redis.svg"]);
    assert_figures(&report["records_max"], &["default", "compact"]);
    assert_figures(&report, &["probe_s", "change_s"]);
    let jobs = report["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 2 * 3, "{report}");
    for job in jobs {
        let [default, compact, tuned] = [0, 1, 2].map(|way| &job["ways"][way]);
        let kept = |way: &Value| way["encodings"].clone();
        match job["size"].as_str() {
            Some("0.28") => {
                for way in [default, compact, tuned] {
                    assert_figures(&way["requests_s"], &["median"]);
                }
                assert_eq!(
                    (kept(default), kept(compact)),
                    (json!(["hashtable"]), json!(["listpack"]))
                );
            }
            Some("1.11") => {
                assert_eq!((&default["failed"], &tuned["failed"]), (&1.into(), &0.into()), "{job}");
                assert!(default["refusal"].as_str().unwrap().starts_with("OOM"), "{job}");
                assert_eq!(kept(tuned), json!(["listpack"]));
                assert_figures(&job["tuned_to_better"], &["median"]);
            }
            _ => assert_eq!(
                (&default["failed"], &compact["failed"], &tuned["declined"]),
                (&1.into(), &1.into(), &1.into()),
                "{job}"
            ),
        }
    }
    assert_eq!((&report["unserved"], &report["failed"]["tuned"]), (&0.into(), &0.into()));
}

#[test]
#[ignore = "nodes of Java are started by make test-long"]
fn buses_and_rolls_of_sophia_are_measured_on_real_nodes() {
    let report = drawn(&["run", "sophia-roll"], &["sophia-roll.svg"]);
    let ways = report["ways"].as_array().unwrap();
    assert_eq!(ways.len(), 3, "{report}");
    for (way, failed) in [(&ways[0], "failed_for_availability"), (&ways[1], "failed")] {
        assert_eq!((&way[failed], &way["lost"]), (&0.into(), &0.into()), "{report}");
        assert_figures(way, &["roll_s", "operations", "rate_before", "rate_behind"]);
    }
    let report = drawn(&["run", "sophia-buses"], &["sophia-buses.svg"]);
    assert_eq!(report["ways"].as_array().unwrap().len(), 4, "{report}");
    assert_figures(&report, &["ratio_to_default", "ratio_to_static_optimal"]);
}

#[test]
fn the_store_is_measured_in_process_and_beside_redis() {
    let report = bench(&["run", "store", "--quick"]);
    let figures = [
        "rmw3_txn_per_core_s",
        "rmw3_logged_ratio",
        "two_sites_speedup",
        "split_ms_median",
        "merge_ms_median",
        "remaster_ms_median",
        "others_p99_ratio",
        "bytes_per_raw_byte",
        "recovery_s",
    ];
    assert_figures(&report, &figures);
    // Either it was compared, or it says which program is missing.
    assert_ne!(report["resp_ratio_to_redis"].is_null(), report["resp_note"].is_null(), "{report}");
    for one in report["resp"].as_array().unwrap() {
        assert_figures(one, &["store_per_core_s", "redis_per_core_s", "ratio"]);
    }
}

#[test]
fn the_stores_procedures_are_measured_beside_those_of_postgres_and_redis() {
    let Some(_) = imago_testbed::require(imago_testbed::find_postgres()) else { return };
    let report = bench(&["run", "store-postgres", "--quick"]);
    let ratios =
        ["ratio_per_core", "ratio_per_s", "ratio_per_core_inside", "ratio_per_core_to_redis"];
    assert_figures(&report, &ratios);
    for one in [&report["store"], &report["postgres"], &report["redis"]] {
        assert_figures(&one["txn_per_s"], &["median", "min", "max"]);
        assert_figures(&one["txn_per_core_s"], &["median", "min", "max"]);
    }
    assert_eq!(report["pairs"].as_array().map(Vec::len), Some(2), "{report}");
}

/// Each part of a figure has all six designs, and no load lost or tore a row.
fn assert_designs(report: &Value, parts: &[&str]) {
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6 * parts.len(), "{report}");
    for (part, rows) in parts.iter().zip(rows.chunks(6)) {
        assert!(rows.iter().all(|row| row["part"] == **part), "{rows:?}");
        for row in rows {
            assert_figures(row, &["txn_per_s", "morphosys_ratio", "partitions", "copies"]);
        }
        let of = |design: &str| rows.iter().find(|row| row["design"] == design).unwrap();
        for design in ["single-master", "morphosys", "dynamast"] {
            assert_eq!(of(design)["two_phase"], 0.0, "{design} changes its design: {rows:?}");
        }
        assert_eq!(of("single-master")["design_changed"], 0.0, "all is at one site: {rows:?}");
    }
    for part in report["parts"].as_array().unwrap() {
        assert_eq!(part["contradictions"], 0, "{part}");
    }
}

#[test]
fn figure_3_of_morphosys_compares_six_designs() {
    let report = bench(&["run", "morphosys-fig3", "--quick"]);
    assert_designs(&report, &["a", "b", "c", "d"]);
    let two_phase = |row: &&Value| row["two_phase"].as_f64().unwrap() > 0.0;
    let rows = report["rows"].as_array().unwrap();
    assert!(rows.iter().filter(two_phase).count() >= 8, "three designs commit so: {report}");
}

#[test]
fn a_design_that_is_measured_alone_has_no_ratio() {
    let report =
        bench(&["run", "morphosys-fig3", "--quick", "--parts", "b", "--designs", "single-master"]);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 1, "{report}");
    assert_figures(&rows[0], &["txn_per_s"]);
    assert!(rows[0]["morphosys_ratio"].is_null(), "{report}");
    assert!(report["parts"][0]["of_best_other"].is_null(), "{report}");
}

#[test]
fn a_part_that_a_figure_of_morphosys_lacks_is_refused_with_those_it_has() {
    let output = Command::new(env!("CARGO_BIN_EXE_imago"))
        .args(["bench", "run", "morphosys-fig5", "--quick", "--parts", "abc,d50"])
        .output();
    let output = output.unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("no part d50: its parts are abc, d0, d33, e"), "{stderr}");
}

#[test]
fn figure_4_of_morphosys_classifies_rows_and_checks_predictions() {
    let report = bench(&["run", "morphosys-fig4", "--quick", "--only-designs"]);
    let classes = report["classes"].as_array().unwrap();
    assert_eq!(classes.len(), 6, "{report}");
    assert!(classes.iter().all(|one| one["copies"].as_f64().unwrap() >= 1.0), "{report}");
    assert_eq!(report["predicted"].as_array().map(Vec::len), Some(2), "{report}");
}

#[test]
fn figures_5_and_6_of_morphosys_have_latencies_of_each_type() {
    let report = bench(&["run", "morphosys-fig5", "--quick"]);
    assert_designs(&report, &["abc", "d0", "d33", "e"]);
    let open = report["open"].as_array().unwrap();
    assert_eq!(open.len(), 3 * 6 * 3, "three types in three parts: {report}");
    open.iter().for_each(|row| assert_figures(row, &["rate_s", "p50_us", "p99_us"]));
    let report = bench(&["run", "morphosys-fig6", "--quick"]);
    assert_designs(&report, &["ab"]);
}

#[test]
fn every_strategy_of_figure_9_is_simulated_in_every_network() {
    let files = ["fig3", "fig9a", "fig9b", "table2"].map(|of| format!("morphus-{of}.svg"));
    let files = files.each_ref().map(String::as_str);
    let report = drawn(&["run", "morphus-fig9", "--window-kib", "16,32"], &files);
    assert_eq!(report["benchmark"], "flows", "its figures are of the same simulations");
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
fn table_2_of_morphus_is_simulated_for_its_receivers_and_for_imagos() {
    let report = bench(&["run", "morphus-table2", "--quick"]);
    let rows = report["geo"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 2 * 2, "{report}");
    for row in rows {
        assert_figures(row, &["makespan_s", "ratio_to_unaware", "ratio_to_floor"]);
        assert_figures(&row["spread"]["makespan_s"], &["median", "min", "max"]);
        assert_eq!(row["paper_s"].is_null(), row["receivers"] == "primaries", "{row}");
        if row["tags"] == "aware" {
            assert_eq!(row["crossing_mb"], 0.0, "{row}");
        }
    }
}

/// Runs a benchmark that draws, and returns its report; the files that it names must be SVG.
fn drawn(arguments: &[&str], files: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let pictures = folder.path().join("pictures");
    let report =
        bench(&[arguments, &["--quick", "--pictures", pictures.to_str().unwrap()]].concat());
    let expected: Vec<Value> =
        files.iter().map(|file| pictures.join(file).to_str().unwrap().into()).collect();
    assert_eq!(report["pictures"].as_array(), Some(&expected), "{report}");
    for file in files {
        let svg = std::fs::read_to_string(pictures.join(file)).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{file}: {svg}");
    }
    report
}

#[test]
#[ignore = "three loads are watched by make test-long"]
fn table_1_of_morphus_has_the_share_of_each_load_that_succeeds() {
    let files = ["morphus-fig4.svg", "morphus-fig5.svg", "morphus-fig6.svg"];
    let report = drawn(&["run", "morphus-fig5", "--shards", "2", "--rate", "40"], &files);
    assert_eq!(report["benchmark"], "morphus-table1", "its figures are of the same runs");
    for anomalies in ["lost", "resurrected", "duplicated", "stale"] {
        assert_eq!(report[anomalies], 0, "{report}");
    }
    let loads = report["loads"].as_array().unwrap();
    let names: Vec<_> = loads.iter().map(|row| &row["load"]).collect();
    assert_eq!(names, ["none", "read-only", "uniform"], "the first two of four");
    for row in loads {
        let has_writes = row["load"] != "read-only";
        assert_eq!(row["writes"].is_object(), has_writes, "{row}");
        for side in ["reads", "writes"].into_iter().take(1 + usize::from(has_writes)) {
            assert_figures(&row[side], &["operations", "percent", "p50_ms", "p96_ms", "p99_ms"]);
            assert!(row[side]["percent"].as_f64() <= Some(100.0), "{row}");
            assert_eq!(row[side]["paper_percent"].is_null(), row["load"] == "none", "{row}");
        }
    }
}

#[test]
#[ignore = "six collections get another key in make test-long"]
fn fig_7_of_morphus_has_three_placements_of_two_data_sets() {
    let report = drawn(&["run", "morphus-fig7"], &["morphus-fig7.svg"]);
    let bars = report["bars"].as_array().unwrap();
    assert_eq!(bars.len(), 6, "{report}");
    let moved = |keys: &str, placement: &str| {
        let bar = bars.iter().find(|bar| bar["keys"] == keys && bar["placement"] == placement);
        let bar = bar.unwrap_or_else(|| panic!("{keys} {placement}: {report}"));
        assert_figures(bar, &["ratio_to_balanced", "imbalance"]);
        assert_figures(&bar["seconds"], &["median", "min", "max"]);
        bar["moved_bytes"]["median"].as_f64().unwrap()
    };
    for keys in ["uncorrelated", "correlated"] {
        // 2,000 documents are all in the plan's sample, so that nothing is guessed.
        assert!(moved(keys, "greedy") <= moved(keys, "balanced"), "{report}");
        assert!(moved(keys, "greedy") <= moved(keys, "random"), "{report}");
    }
    assert!(moved("correlated", "greedy") < moved("uncorrelated", "greedy") / 2.0, "{report}");
}

#[test]
#[ignore = "a shard key is changed four times by make test-long"]
fn fig_8_of_morphus_has_a_chart_for_each_part_that_was_asked_for() {
    let files = ["morphus-fig8a.svg", "morphus-fig8b.svg", "morphus-fig8d.svg"];
    // The others differ only in what they vary; the fourth starts ten servers.
    let parts = if is_long() { 3 } else { 1 };
    let words = ["run", "morphus-fig8", "--parts", if is_long() { "a,b,d" } else { "a" }];
    let report = drawn(&words, &files[..parts]);
    let points = report["points"].as_array().unwrap();
    let of = |part: &str, varied: &str| -> Vec<u64> {
        let own = points.iter().filter(|point| point["part"] == part);
        let own = own.filter(|point| point["placement"] == "balanced");
        own.map(|point| point[varied].as_u64().unwrap()).collect()
    };
    assert_eq!(points.len(), parts * 2 * 2, "{report}");
    assert_eq!(of("a", "documents"), [1_000, 2_000]);
    assert_eq!(of("b", "rate_per_s"), if is_long() { vec![0, 100] } else { vec![] });
    assert_eq!(of("d", "members"), if is_long() { vec![1, 3] } else { vec![] });
    for point in points {
        assert_figures(point, &["chunks"]);
        assert_figures(&point["seconds"], &["median"]);
        assert_figures(&point["phases"], &["plan", "execute", "recover", "verify", "commit"]);
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
        ["copy", "--pictures", "here"],
        ["flows-real", "--pictures", "here"],
        ["morphus-table2", "--documents", "100"],
        ["morphus-fig7", "--rate", "100"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
        let output = command.args(["bench", "run"]).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(arguments[2]) || said.contains(arguments[1]), "{said}");
    }
}
