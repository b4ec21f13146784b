//! The text output of the advice on a shard key.

use std::time::Duration;

use imago_mongo::reshard::advise::{Advice, KeyEffect};
use imago_mongo::reshard::plan::Weight;

use crate::render::{self, duration, grouped};
use crate::table::table;

/// Number of keys that are shown.
const SHOWN: usize = 10;

/// Formats the advice as a table of keys and sentences.
pub fn text(advice: &Advice) -> String {
    let present = advice.present.key.as_deref();
    let mut text = format!(
        "{}  {} on {} shards\n{} operations ({} reads, {} writes) from {}; {} documents sampled\n",
        advice.ns,
        present.map_or("not sharded,".to_owned(), |key| format!("sharded by {key}")),
        advice.shards.len(),
        grouped(advice.operations),
        grouped(advice.present.reads.operations),
        grouped(advice.present.writes.operations),
        advice.source.source,
        grouped(advice.documents),
    );
    for note in &advice.source.notes {
        text += &format!("note: {note}\n");
    }
    for ignored in &advice.ignored {
        let count = grouped(ignored.operations);
        text += &format!("chooses no shards in {count} operations: {}\n", ignored.conditions);
    }
    text += "\n";
    let shown = advice.keys.iter().take(SHOWN);
    let rows = std::iter::once(&advice.present).chain(shown).map(row);
    let headings = [
        "KEY",
        "THROUGHPUT",
        "90 % INTERVAL",
        "READS BY ONE",
        "BY ALL",
        "WRITES BY ONE",
        "BY ALL",
        "BUSIEST SHARD",
        "ONE VALUE",
        "LARGEST CHUNK",
    ];
    text += &table(&headings, rows, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    if advice.keys.len() > SHOWN {
        text += &format!("{} more keys are in --json\n", advice.keys.len() - SHOWN);
    }
    text += &advised(advice);
    for key in &advice.keys {
        text += &details(key, advice.advised.is_some() && key.key == advice.advised);
    }
    for field in advice.fields.iter().filter(|field| field.operations > 0) {
        if let Some(reason) = &field.ruled_out {
            text += &format!("\nin no key: {} ({reason})\n", field.field);
        }
    }
    text + "\nthe collection was not changed\n"
}

fn row(key: &KeyEffect) -> Vec<String> {
    let busiest = key.load.iter().copied().fold(0.0, f64::max);
    let (low, high) = key.ratio_interval;
    vec![
        key.key.clone().unwrap_or_else(|| "(not sharded)".to_owned()),
        format!("{:.2} ×", key.ratio),
        format!("{low:.2} to {high:.2}"),
        percent(key.reads.one),
        percent(key.reads.all),
        percent(key.writes.one),
        percent(key.writes.all),
        percent(busiest),
        percent(key.hottest),
        render::bytes(key.largest_chunk_bytes as f64),
    ]
}

fn advised(advice: &Advice) -> String {
    match &advice.advised {
        Some(key) => format!("\nadvised: {key}\n"),
        None => {
            "\nadvised: none; no possible key certainly allows more throughput than the present \
                 one\n"
                .to_owned()
        }
    }
}

/// Formats what is known of a key beyond the table: its change if that was planned, and findings.
fn details(key: &KeyEffect, is_advised: bool) -> String {
    let name = key.key.as_deref().unwrap_or_default();
    let mut text = String::new();
    if let Some(change) = &key.change {
        text += &format!(
            "\n{name}\n  a change moves {} to other shards and takes about {}{}\n  {}\n",
            render::bytes(change.moved_bytes as f64),
            lasts(change.predicted_s),
            change.paced_s.map_or(String::new(), |paced| {
                format!(", or up to {} while clients are active", lasts(paced))
            }),
            change.command,
        );
        for finding in &key.findings {
            let weight = match finding.weight {
                Weight::Obstacle => "obstacle",
                Weight::Warning => "warning",
            };
            text += &format!("  {weight} ({}): {}\n", finding.code, finding.what);
        }
    }
    match &key.why_not {
        Some(why) if key.change.is_some() && !is_advised => text += &format!("  why not: {why}\n"),
        _ => {}
    }
    text
}

fn lasts(seconds: f64) -> String {
    let ms = Duration::try_from_secs_f64(seconds).map_or(u128::MAX, |lasts| lasts.as_millis());
    duration(u64::try_from(ms).unwrap_or(u64::MAX))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}
