//! `imago tune import`: makes a trace of operations from a reply of Prometheus, or from the log of cassandra-stress.

use std::path::PathBuf;

use imago_tune::import::{Imported, Selector, Values, cassandra_stress, prometheus};
use imago_tune::trace;

use super::plan::{computed, failure, opened};
use crate::context::Context;
use crate::exit::{Exit, Failure};

/// The arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Prometheus: the answer to a range query, whose series each count one kind of operations. A label whose value is read, get, \
select; write, update, set; insert; scan, range says which; otherwise name labels. Series of one kind are summed.

cassandra-stress: what it prints, or its -log file=…. Its log has no times of day, so --begin is required.

Examples:
  curl -sG http://prometheus:9090/api/v1/query_range -d start=2026-11-01T00:00:00Z -d end=2026-11-07T00:00:00Z -d step=300 \
--data-urlencode 'query=sum by (operation) (rate(requests_total[5m]))' | imago tune import - --from prometheus --out trace.csv
  imago tune import stress.log --from cassandra-stress --begin 2026-11-28T09:00:00Z --out trace.csv
  imago tune plan trace.csv")]
pub(super) struct Args {
    /// The file to read; - is standard input. It may be packed (gzip).
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// What wrote it.
    #[arg(long, value_enum, value_name = "SOURCE")]
    from: Source,
    /// The trace that is written; it must not be there yet.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Meaning of the values (Prometheus only).
    #[arg(long, value_enum, default_value = "rate", value_name = "WHAT")]
    values: What,
    /// Series that count reads, by a label's value (Prometheus only).
    #[arg(long, value_name = "LABEL=VALUE", value_parser = label)]
    reads: Vec<(String, String)>,
    /// Series that count updates.
    #[arg(long, value_name = "LABEL=VALUE", value_parser = label)]
    updates: Vec<(String, String)>,
    /// Series that count inserts.
    #[arg(long, value_name = "LABEL=VALUE", value_parser = label)]
    inserts: Vec<(String, String)>,
    /// Series that count scans.
    #[arg(long, value_name = "LABEL=VALUE", value_parser = label)]
    scans: Vec<(String, String)>,
    /// When the load began, as 2026-11-28T09:00:00Z or in seconds since 1970 (cassandra-stress only).
    #[arg(long, value_name = "TIME", value_parser = moment, required_if_eq("from", "cassandra-stress"))]
    begin: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
enum Source {
    /// The JSON of /api/v1/query_range.
    Prometheus,
    /// A log.
    CassandraStress,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum What {
    /// Operations a second: rate(…).
    Rate,
    /// Operations since the value before: increase(…) over one step.
    Increase,
    /// A counter as it is.
    Counter,
}

/// Parses a selector `LABEL=VALUE` of time series.
fn label(text: &str) -> Result<(String, String), String> {
    let (label, value) = text.split_once('=').ok_or("it must be LABEL=VALUE")?;
    Ok((label.to_owned(), value.to_owned()))
}

/// Parses a time (RFC 3339, or seconds), and returns it in seconds since 1970.
fn moment(text: &str) -> Result<u64, String> {
    trace::seconds(text)
        .ok_or_else(|| "it must be as 2026-11-28T09:00:00Z, or seconds since 1970".into())
}

/// Runs `imago tune import`: reads the file, writes the new trace and prints a summary.
pub(super) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    if args.out.exists() {
        let what = format!("{} is there already", args.out.display());
        return Err(Failure::new(Exit::Usage, "file", what).help("name another file, or remove it"));
    }
    let (from, file) = (opened(&args.file)?, args.file.display().to_string());
    let kinds = [args.reads, args.updates, args.inserts, args.scans];
    let of_kind = |(kind, labels): (usize, Vec<(String, String)>)| {
        labels.into_iter().map(move |(label, value)| (kind, label, value))
    };
    let by: Vec<Selector> = kinds.into_iter().enumerate().flat_map(of_kind).collect();
    let values = match args.values {
        What::Rate => Values::Rate,
        What::Increase => Values::Increase,
        What::Counter => Values::Counter,
    };
    let (source, begin_s) = (args.from, args.begin.unwrap_or(0));
    let imported = computed(context, move || match source {
        Source::Prometheus => prometheus(&file, from, &by, values),
        Source::CassandraStress => cassandra_stress(&file, from, begin_s),
    });
    let imported = imported.await?.map_err(failure)?;
    trace::write(&args.out, imported.intervals.iter().copied()).map_err(|cause| {
        let problem = format!("cannot write {}", args.out.display());
        Failure::new(Exit::Failed, "file", problem).because(&cause)
    })?;
    let out = args.out.display().to_string();
    let written = serde_json::json!({
        "out": out, "interval_s": imported.interval_s, "intervals": imported.intervals.len(), "from": imported.from,
    });
    context.output.result(&written, |_| text(&imported, &out))
}

/// Formats a summary of the imported trace, which was written to the file `out`, as text.
fn text(imported: &Imported, out: &str) -> String {
    let mut text = format!(
        "{} intervals of {} s are in {out}\n",
        imported.intervals.len(),
        imported.interval_s
    );
    for (kind, from) in ["reads", "updates", "inserts", "scans"].iter().zip(&imported.from) {
        if !from.is_empty() {
            text.push_str(&format!("  {kind}: {}\n", from.join(", ")));
        }
    }
    text
}
