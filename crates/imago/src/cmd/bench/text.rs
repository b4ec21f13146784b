//! A benchmark report as text: one figure per line, then tables.

use std::fmt::Write as _;

use serde_json::Value;

/// Formats a report: its single figures, one per line, then its tables. Other nested values are only in the JSON
/// output.
pub fn text(report: &Value) -> String {
    let mut text = String::new();
    for (name, value) in report.as_object().into_iter().flatten() {
        // A pair of figures is shown by its ratio.
        if let Some(shown) = scalar(value).or_else(|| scalar(&value["ratio"])) {
            let _ = writeln!(text, "{name:22} {shown}");
        }
    }
    for competitor in report["competitors"].as_array().into_iter().flatten() {
        let shown = match (&competitor["seconds"], &competitor["note"]) {
            (Value::Number(seconds), _) => format!("{seconds} s"),
            (_, note) => note.as_str().unwrap_or_default().to_owned(),
        };
        let _ = writeln!(text, "{:22} {shown}", competitor["name"].as_str().unwrap_or_default());
    }
    for picture in report["pictures"].as_array().into_iter().flatten() {
        let _ = writeln!(text, "{:22} {}", "picture", picture.as_str().unwrap_or_default());
    }
    for (name, columns) in TABLES {
        let rows = match &report[name] {
            Value::Array(rows) => &rows[..],
            Value::Null => continue,
            one => std::slice::from_ref(one),
        };
        text.push('\n');
        text.push_str(&columns_of(rows, columns));
    }
    text
}

/// Lists of a report that are shown as tables: the name of the list, and the columns of its table.
const TABLES: &[(&str, &[&str])] = &[
    (
        "predictions",
        &["name", "predicted", "realized", "inside", "median_error", "bias", "widening"],
    ),
    (
        "learned",
        &[
            "scans",
            "random_s",
            "ideal_s",
            "adapted_s",
            "at_15_s_of_ideal",
            "at_30_s_of_ideal",
            "of_random",
            "changes_per_1000",
            "undone_share",
            "gained_share",
            "r_squared_transactions",
            "r_squared_operators",
            "planner_share",
        ],
    ),
    (
        "shifted",
        &[
            "recover_s",
            "changes",
            "undone_share",
            "gained_share",
            "gained_share_told_apart",
            "r_squared_transactions",
            "r_squared_operators",
        ],
    ),
    (
        "rows",
        &[
            "part",
            "design",
            "txn_per_s",
            "spread",
            "morphosys_ratio",
            "two_phase",
            "design_changed",
            "partitions",
            "copies",
            "busiest",
        ],
    ),
    ("classes", &["scans", "class", "rows", "copies", "partitions"]),
    (
        "predicted",
        &["scans", "changes", "undone_share", "r_squared_transactions", "r_squared_operators"],
    ),
    ("open", &["part", "design", "rate_s", "kind", "p50_us", "p99_us", "p99_spread"]),
    ("compared", &["sites", "design", "measured_s", "simulated_s", "error"]),
    ("larger", &["sites", "random_s", "ideal_s", "adapted_s", "of_ideal", "of_random", "changes"]),
    (
        "resp",
        &["command", "store_per_s", "redis_per_s", "store_per_core_s", "redis_per_core_s", "ratio"],
    ),
    ("jobs", &["size", "records", "keys", "mix", "tuned_to_better.median", "tuned_to_better.min"]),
    (
        "patterns",
        &["pattern", "chunks", "servers", "seconds", "moved", "moved_greedy", "moved_random"],
    ),
    (
        "hungarian",
        &["pattern", "chunks", "seconds", "hungarian_seconds", "ratio_to_hungarian", "costs_equal"],
    ),
    (
        "strategies",
        &[
            "topology",
            "window_kib",
            "strategy",
            "sockets",
            "makespan_s",
            "ratio_to_fixed",
            "ratio_to_floor",
            "chunk_median_s",
            "last_to_median",
            "simulated_s",
            "ratio_to_simulated",
            "lost_packets",
        ],
    ),
    (
        "geo",
        &[
            "receivers",
            "tags",
            "window_kib",
            "makespan_s",
            "makespan_mean_s",
            "crossing_mb",
            "ratio_to_unaware",
            "ratio_to_floor",
            "paper_s",
        ],
    ),
    (
        "loads",
        &[
            "load",
            "change_s",
            "commit_s",
            "reads.percent",
            "reads.paper_percent",
            "reads.p50_ms",
            "reads.p96_ms",
            "writes.percent",
            "writes.paper_percent",
            "writes.p50_ms",
            "writes.p96_ms",
        ],
    ),
    (
        "bars",
        &[
            "keys",
            "placement",
            "seconds.median",
            "seconds.min",
            "seconds.max",
            "ratio_to_balanced",
            "moved_bytes.median",
            "imbalance",
        ],
    ),
    (
        "points",
        &[
            "part",
            "documents",
            "rate_per_s",
            "shards",
            "members",
            "placement",
            "chunks",
            "seconds.median",
            "phases.plan",
            "phases.prepare",
            "phases.execute",
            "phases.index",
            "phases.recover",
            "phases.verify",
            "phases.commit",
        ],
    ),
    (
        "ways",
        &[
            "name",
            "roll_s",
            "node_s",
            "operations",
            "moving_s.median",
            "searching_s.median",
            "write_p99_ms.median",
            "read_p99_ms.median",
            "changes",
            "undone",
            "failed_for_availability",
            "failed",
            "unserved_s",
            "p99_ms_before",
            "p99_ms_during",
            "p99_ratio",
            "rate_before",
            "rate_behind",
            "crossing_s",
            "acknowledged",
            "lost",
            "stale",
        ],
    ),
    ("bases", &["basis", "configurations", "writes", "reads", "restart_s", "catch_up"]),
    (
        "scenarios",
        &[
            "basis",
            "scenario",
            "days",
            "shifts_per_day",
            "reads",
            "ratios.default",
            "ratios.naive",
            "ratios.reactive",
            "ratios.aggressive",
            "ratios.tuned",
            "ratios.oracle",
            "ratios.theoretical_best",
            "changes.tuned",
            "changes.naive",
        ],
    ),
    (
        "ranges",
        &["nodes", "tokens", "racks", "replicas", "needed", "published_steps", "at_once", "steps"],
    ),
    (
        "concurrent",
        &[
            "basis",
            "at_once",
            "rolled.ratios.default",
            "rolled.ratios.naive",
            "rolled.ratios.reactive",
            "rolled.ratios.tuned",
            "rolled.ratios.oracle",
            "rolled.ratios.theoretical_best",
            "rolled.changes.tuned",
        ],
    ),
    (
        "scale",
        &[
            "basis",
            "nodes",
            "tokens",
            "racks",
            "needed",
            "steps",
            "roll_s",
            "ratios.default",
            "ratios.tuned",
            "ratios.oracle",
            "ratios.theoretical_best",
        ],
    ),
    (
        "replicas",
        &[
            "basis",
            "replicas",
            "needed",
            "is_aggressive",
            "rolled.at_once",
            "rolled.steps",
            "rolled.ratios.default",
            "rolled.ratios.naive",
            "rolled.ratios.reactive",
            "rolled.ratios.tuned",
            "rolled.of_theoretical_best",
        ],
    ),
    (
        "volumes",
        &[
            "rows",
            "writes",
            "reads",
            "scans",
            "restart_s",
            "ratios.default",
            "ratios.naive",
            "ratios.reactive",
            "ratios.tuned",
            "ratios.oracle",
            "ratios.theoretical_best",
            "changes.tuned",
        ],
    ),
    (
        "restarts",
        &[
            "basis",
            "restart_s",
            "ratios.naive",
            "ratios.reactive",
            "ratios.tuned",
            "ratios.oracle",
            "ratios.theoretical_best",
            "changes.tuned",
        ],
    ),
    (
        "noise",
        &[
            "basis",
            "noise",
            "ratio_to_static_optimal.median",
            "ratio_to_noiseless.median",
            "ratio_to_noiseless.min",
            "changes.median",
        ],
    ),
    ("judged", &["round", "to", "predicted", "realised", "noise"]),
];

/// Formats rows as a table with these columns, words left-aligned and other values right-aligned. Columns that no row
/// has are left out.
fn columns_of(rows: &[Value], columns: &[&str]) -> String {
    let is_there = |column: &&&str| rows.iter().any(|row| !inside(row, column).is_null());
    let columns: Vec<&str> = columns.iter().filter(is_there).copied().collect();
    let is_word = |column: &str| rows.iter().all(|row| inside(row, column).is_string());
    let right = (0..columns.len()).filter(|at| !is_word(columns[*at])).collect::<Vec<_>>();
    let cell = |row, column| shown(inside(row, column)).unwrap_or_default();
    let lines = rows.iter().map(|row| columns.iter().map(move |column| cell(row, column)));
    crate::table::table(&columns, lines, &right)
}

/// Returns the value in a column of a row, `null` if the row has none; a column name with dots is a path through
/// nested objects.
fn inside<'a>(row: &'a Value, column: &str) -> &'a Value {
    column.split('.').fold(row, |value, name| &value[name])
}

/// Formats a number, a boolean or a string briefly; `None` for any other value.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::Number(number) if number.is_f64() => number.as_f64().map(short),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::String(word) => Some(word.clone()),
        _ => None,
    }
}

/// Formats a value as [`scalar`] does, or a list of such values with "-" for the others; `None` for any other value.
fn shown(value: &Value) -> Option<String> {
    let Value::Array(all) = value else { return scalar(value) };
    let all = all.iter().map(|one| scalar(one).unwrap_or_else(|| "-".to_owned()));
    Some(all.collect::<Vec<_>>().join(" "))
}

/// Formats a number with three decimals, or with as many as give three significant digits if it is smaller.
fn short(number: f64) -> String {
    let zeros = if number == 0.0 { 0.0 } else { -number.abs().log10().floor() - 1.0 };
    let decimals = 3 + zeros.clamp(0.0, 9.0) as usize;
    format!("{number:.decimals$}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_small_figure_keeps_its_digits() {
        let shown = [12.345_678, 0.123_45, 0.001_234_5, 0.0].map(short);
        assert_eq!(shown, ["12.346", "0.123", "0.00123", "0.000"]);
    }

    #[test]
    fn a_table_has_its_columns_below_their_names() {
        let rows = [json!({"a": "long word", "n": 5}), json!({"a": "b", "n": 1_000, "x": 0})];
        assert_eq!(
            columns_of(&rows, &["a", "n", "absent"]),
            "a             n\nlong word     5\nb          1000\n"
        );
    }

    #[test]
    fn a_column_may_lie_within_another_and_be_missing() {
        let rows = [json!({"a": "x", "b": {"n": 1}}), json!({"a": "y", "b": null})];
        assert_eq!(columns_of(&rows, &["a", "b.n"]), "a  b.n\nx    1\ny\n");
        let report = json!({"shifted": {"recover_s": [3, null], "changes": 9}});
        assert_eq!(text(&report), "\nrecover_s  changes\n      3 -        9\n");
        let report = json!({"uniform": {"off_s": 8_000.0, "on_s": 8_800.0, "ratio": 1.1}});
        assert_eq!(text(&report), "uniform                1.100\n");
    }
}
