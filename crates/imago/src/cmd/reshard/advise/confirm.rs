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
    if confirmed.left_out > 0 {
        text += &format!(
            "{} writes of many documents are not in it: no condition of theirs chooses shards\n",
            grouped(confirmed.left_out as u64)
        );
    }
    let rows = confirmed.keys.iter().map(|key| {
        vec![
            key.key.clone().unwrap_or_else(|| "(not sharded)".to_owned()),
            format!("{:.2}", key.predicted_shards),
            format!("{:.2}", key.measured_shards),
            format!("{:.2} ×", key.predicted_ratio),
            key.measured_ratio.map_or("too few".to_owned(), |ratio| format!("{ratio:.2} ×")),
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
