//! `imago store heat`: the use of keys over time, as text or as a picture. Both have one fixed
//! logarithmic scale, so that two of them can be compared.

mod picture;
mod text;

use std::path::PathBuf;

use imago_chart::heatmap::Scale;
use imago_store::adapt::{HeatRange, HeatReport};

use super::admin::{self, Where};
use crate::context::Context;
use crate::exit::{Exit, Failure};

/// The quantity that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Of {
    /// Keys and ranges that are read and not written, a second.
    Reads,
    /// Keys that are written, a second.
    Writes,
    /// Accesses by transactions that met another one, a second.
    Conflicts,
    /// Processor time of sites, in ms a second: 1000 is a core.
    Cpu,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Rows are ranges of keys, narrow where keys are hot, and columns are 10 s each, an hour in all. The scale is the same for \
every store and every time: a step of it is a factor. --json has all four numbers of each range and column.

Example: imago store heat --of writes --picture heat.svg")]
pub struct HeatArgs {
    /// The quantity that is shown.
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Of::Reads)]
    of: Of,
    /// Draw it into this file, as SVG, instead.
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    #[command(flatten)]
    store: Where,
}

impl Of {
    fn values(self, range: &HeatRange) -> &[f64] {
        match self {
            Self::Reads => &range.reads,
            Self::Writes => &range.writes,
            Self::Conflicts => &range.conflicts,
            Self::Cpu => &range.cpu_ms,
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Reads => "reads/s",
            Self::Writes => "writes/s",
            Self::Conflicts => "conflicts/s",
            Self::Cpu => "CPU in ms/s",
        }
    }
}

/// Ends of the scale of heat, in accesses or ms of CPU time per second; smaller and larger values are drawn as the
/// ends.
const SCALE: Scale = Scale { least: 0.1, most: 100_000.0 };

fn named(start: &str) -> &str {
    if start.is_empty() { "(first)" } else { start }
}

/// Shortens a key to at most `most` characters, by omitting its middle.
fn shortened(key: &str, most: usize) -> String {
    let count = key.chars().count();
    if count <= most {
        return key.to_owned();
    }
    let (head, tail) = ((most - 1) / 2, most / 2);
    let begin: String = key.chars().take(head).collect();
    let end: String = key.chars().skip(count - tail).collect();
    format!("{begin}…{end}")
}

/// Formats the reads of a store's key ranges over time as text, in at most `rows_max` rows.
pub fn reads_as_text(report: &HeatReport, rows_max: usize) -> String {
    text::map(report, Of::Reads, rows_max)
}

pub async fn heat(args: HeatArgs, context: &Context) -> Result<(), Failure> {
    let asked = admin::ask(&args.store, "heat", None).await?;
    let report: HeatReport = admin::understood(asked)?;
    let Some(file) = args.picture else {
        return context.output.result(&report, |report| text::map(report, args.of, text::ROWS_MAX));
    };
    std::fs::write(&file, picture::picture(&report, args.of)).map_err(|cause| {
        let message = format!("cannot write the picture {}", file.display());
        Failure::new(Exit::Failed, "picture", message).because(&cause)
    })?;
    context.output.result(&report, |report| {
        let (ranges, columns) = (report.ranges.len(), report.begins_ms.len());
        format!("{}: {} of {ranges} ranges in {columns} columns", file.display(), args.of.unit())
    })
}

#[cfg(test)]
fn example() -> HeatReport {
    use imago_store::adapt::HeatMark;
    let range = |start: &str, end: Option<&str>, reads: [f64; 3]| HeatRange {
        start: start.to_owned(),
        end: end.map(str::to_owned),
        reads: reads.to_vec(),
        writes: vec![0.0; 3],
        conflicts: vec![0.0; 3],
        cpu_ms: vec![0.0, 5_000.0, 0.0],
    };
    let mark = |at_ms, operator: &str, key: &str, site| HeatMark {
        at_ms,
        operator: operator.to_owned(),
        key: key.to_owned(),
        site,
    };
    HeatReport {
        begins_ms: vec![3_600_000, 3_610_000, 3_620_000],
        seconds: vec![10.0, 10.0, 5.0],
        ranges: vec![
            range("", Some("0:m"), [0.0, 10.0, 50_000.0]),
            range("0:m", Some("0:z<&"), [100.0, 0.0, 0.0]),
            range("0:z<&", None, [1e9, 0.0, 0.0]),
        ],
        marks: vec![
            mark(3_605_000, "split", "0:m", None),
            mark(3_612_000, "remaster", "0:m", Some(1)),
        ],
        cpu_unattributed_ms: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_key_keeps_its_ends() {
        assert_eq!(shortened("0:user:00000042", 9), "0:us…0042");
        assert_eq!(shortened("0:user", 9), "0:user");
    }
}
