//! The text output of the plan of a reshard.

use std::time::Duration;

use imago_mongo::reshard::plan::{Finding, Placing, Plan, Weight};
use imago_mongo::server::collection::Size;

use crate::render::{self, duration};
use crate::table::table;

/// Formats the plan of a reshard as tables and sentences.
pub fn text(plan: &Plan) -> String {
    let mut text = format!(
        "{}  {} → {}\n{} documents, {}; {} sampled\n",
        plan.ns,
        plan.old_key,
        plan.key,
        plan.size.documents,
        bytes(plan.size.bytes),
        plan.sampled
    );
    text += &section("shards", &shards(plan));
    text += &section("moves", &flows(plan));
    text += &section("compared", &compared(plan));
    text += &format!(
        "\nplaced {}: {:.1} % of the bytes move; the fullest shard holds {} its share, {} \
         afterwards\ntakes about {} without clients at work, by a simple model of copying \
         everything once{}\n",
        placing(plan.placing),
        percent(plan.moved.bytes, plan.size.bytes),
        times(plan.imbalance.0),
        times(plan.imbalance.1),
        lasts(plan.predicted_s),
        plan.paced_s.map(beside_clients).unwrap_or_default()
    );
    for finding in &plan.findings {
        text += &finding_text(finding);
    }
    text + "nothing was written\n"
}

fn beside_clients(paced_s: f64) -> String {
    format!("; while clients are active up to {}, at the minimum pace", lasts(paced_s))
}

fn lasts(seconds: f64) -> String {
    let ms = Duration::try_from_secs_f64(seconds).map_or(u128::MAX, |lasts| lasts.as_millis());
    duration(u64::try_from(ms).unwrap_or(u64::MAX))
}

fn finding_text(finding: &Finding) -> String {
    let Finding { code, what, help, .. } = finding;
    let weight = match finding.weight {
        Weight::Obstacle => "obstacle",
        Weight::Warning => "warning",
    };
    format!("\n{weight} ({code}): {what}\n  to do: {help}\n")
}

fn shards(plan: &Plan) -> Vec<Vec<String>> {
    let mut rows =
        vec![row(["shard", "holds", "new chunks", "will hold", "needs room for", "read from"])];
    for (shard, name) in plan.shards.iter().enumerate() {
        let own = plan.chunks.iter().filter(|chunk| chunk.shard == shard);
        let held = plan.chunks.iter().map(|chunk| chunk.bytes_on.get(shard).unwrap_or(&0)).sum();
        rows.push(vec![
            name.clone(),
            bytes(held),
            own.clone().count().to_string(),
            bytes(own.map(|chunk| chunk.size.bytes).sum()),
            bytes(plan.space_bytes.get(shard).copied().unwrap_or(0)),
            plan.members.get(shard).cloned().flatten().unwrap_or_else(|| "?".into()),
        ]);
    }
    rows
}

fn flows(plan: &Plan) -> Vec<Vec<String>> {
    let name = |shard: usize| plan.shards.get(shard).map_or("?", String::as_str).to_owned();
    let mut rows = vec![row(["from", "to", "documents", "bytes", "connections"])];
    for flow in &plan.flows {
        rows.push(vec![
            name(flow.from),
            name(flow.to),
            flow.size.documents.to_string(),
            bytes(flow.size.bytes),
            flow.sockets.to_string(),
        ]);
    }
    rows
}

fn compared(plan: &Plan) -> Vec<Vec<String>> {
    let mut rows = vec![row(["placement", "documents move", "bytes move", "share", "fullest"])];
    for other in &plan.compared {
        let Size { documents, bytes: moved } = other.moved;
        rows.push(vec![
            other.placing.clone(),
            documents.to_string(),
            bytes(moved),
            format!("{:.1} %", percent(moved, plan.size.bytes)),
            times(other.imbalance),
        ]);
    }
    rows
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// Formats a table with the heading `name`, whose numeric columns are right-aligned. The first row has the names of
/// the columns.
fn section(name: &str, rows: &[Vec<String>]) -> String {
    if rows.len() < 2 {
        return format!("\n{name}: nothing\n");
    }
    let headings: Vec<&str> = rows[0].iter().map(String::as_str).collect();
    // A column of names does not start with a digit in its first value.
    let is_number = |column: &usize| rows[1][*column].starts_with(|c: char| c.is_ascii_digit());
    let numbers: Vec<usize> = (0..headings.len()).filter(is_number).collect();
    let lines = table(&headings, rows[1..].iter().cloned(), &numbers);
    lines.lines().fold(String::from("\n"), |text, line| text + "  " + line + "\n")
}

fn placing(placing: Placing) -> &'static str {
    match placing {
        Placing::Balanced => "balanced",
        Placing::Greedy => "greedy",
        Placing::Random => "at random",
    }
}

fn times(ratio: f64) -> String {
    format!("{ratio:.2} ×")
}

#[expect(clippy::cast_precision_loss, reason = "to be read by people")]
fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

#[expect(clippy::cast_precision_loss, reason = "to be read by people")]
fn bytes(bytes: u64) -> String {
    render::bytes(bytes as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_told_in_the_unit_that_reads_best() {
        assert_eq!([bytes(999), bytes(1_500), bytes(2_340_000)], ["999 B", "1.5 kB", "2.3 MB"]);
    }

    #[test]
    fn names_stand_left_and_numbers_right() {
        let rows = [row(["shard", "holds"]), row(["a", "5 B"]), row(["bcdefgh", "1.2 kB"])];
        let expected = "\n  shard     holds\n  a           5 B\n  bcdefgh  1.2 kB\n";
        assert_eq!(section("shards", &rows), expected);
    }
}
