//! The text output of a trial of shard keys.

use imago_bench::key_trial::Confirmed;

use crate::render::grouped;
use crate::table::table;

/// Formats what a trial measured.
pub fn text(confirmed: &Confirmed) -> String {
    let mut text = format!(
        "\ntried out on a testbed of this machine, with {} documents and {} operations:\n",
        grouped(confirmed.documents as u64),
        grouped(confirmed.operations as u64),
    );
    let rows = confirmed.keys.iter().map(|key| {
        vec![
            key.key.clone().unwrap_or_else(|| "(not sharded)".to_owned()),
            format!("{:.2}", key.predicted_shards),
            format!("{:.2}", key.measured_shards),
            format!("{:.2} ×", key.predicted_ratio),
            format!("{:.2} ×", key.measured_ratio),
            format!("{:.0}", key.busiest_us),
            grouped(key.refused as u64),
        ]
    });
    let headings = [
        "KEY",
        "SHARDS, PREDICTED",
        "MEASURED",
        "THROUGHPUT, PREDICTED",
        "MEASURED",
        "BUSIEST, µS",
        "REFUSED",
    ];
    text += &table(&headings, rows, &[1, 2, 3, 4, 5, 6]);
    text
}
