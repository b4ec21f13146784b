//! The clients of a demo: their load, its recorded history, and the check of every acknowledged
//! operation.

use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use imago_job::record::Limits;
use imago_load::Schema;
use imago_load::mongo::{MongoTarget, show_content};
use imago_mongo::namespace::Namespace;
use imago_workload::check::{Checker, Verdict};
use imago_workload::driver::{self, Options, Report, Running};
use imago_workload::history::{Header, History, Model, Recorder};
use imago_workload::mix::Kind;
use serde::Serialize;

use crate::exit::{Exit, Failure};

pub(super) const NAMESPACE: &str = "shop.reviews";

/// Starts a load of the demo's mix of operations at `rate` operations per second, and records its history in the file
/// `history`. The collection `ns` has the keys `0..documents`.
pub(super) fn begin_load(
    documents: u64,
    rate: u32,
    source: MongoTarget,
    schema: Schema,
    ns: &Namespace,
    history: &Path,
) -> Result<Running<MongoTarget>, Failure> {
    let header = Header {
        imago_history: Header::VERSION,
        preloaded: documents,
        reviews: schema.reviews,
        id_form: schema.id_form,
        model: Model::Documents,
        reads_are_current: false,
        namespace: ns.to_string(),
        started_unix_ms: u64::try_from(
            SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis(),
        )
        .unwrap_or(0),
    };
    let failed = |error: &dyn std::error::Error| {
        Failure::new(Exit::Failed, "load", format!("the load cannot start: {error}"))
    };
    let recorder = Recorder::file(history, &header).map_err(|error| failed(&error))?;
    let options = Options {
        mix: "read=40,update=40,insert=15,delete=5".parse().expect("a mix"),
        rate_per_s: f64::from(rate),
        duration: None,
        preloaded: documents,
        reviews: schema.reviews,
        ..Options::default()
    };
    driver::start(options, Arc::new(source), recorder).map_err(|error| failed(&error))
}

/// Returns the time since the start of a load, in ns.
pub(super) fn load_ns(load: &Running<MongoTarget>) -> u64 {
    load.control().snapshot().elapsed_ms * 1_000_000
}

/// 99th percentiles of the latencies of clients' reads and writes before and during a change, in ms.
pub(super) struct Latencies {
    pub(super) read_before: f64,
    pub(super) read_during: f64,
    pub(super) write_before: f64,
    pub(super) write_during: f64,
}

/// Checks the final content of `target` against the recorded history. Returns the verdict, and the latencies before
/// and during the copy, whose start and end are given in ns since the start of the load.
pub(super) async fn check(
    history: &Path,
    target: &MongoTarget,
    copy_began_ns: u64,
    copy_ended_ns: u64,
) -> Result<(Verdict, Latencies), Failure> {
    let unreadable = |error| Failure::from_error(Exit::Failed, "history", &error);
    let mut series: [Vec<u64>; 4] = Default::default();
    History::scan(history, |_, op| {
        let is_read = op.kind == Kind::Read;
        let at = match op.intended_ns {
            before if before < copy_began_ns => 0,
            during if during < copy_ended_ns => 1,
            _ => return,
        };
        series[at + if is_read { 0 } else { 2 }].push(op.end_ns.saturating_sub(op.intended_ns));
    })
    .map_err(unreadable)?;
    let [read_before, read_during, write_before, write_during] = series.map(p99_ms);
    let mut checker = Checker::new(History::read(history).map_err(unreadable)?);
    show_content(target, &mut checker).await?;
    let latencies = Latencies { read_before, read_during, write_before, write_during };
    Ok((checker.finish(), latencies))
}

/// Returns the 99th percentile of latencies, in ms; 0 if there are none. Latencies count from the intended start of
/// an operation, so that waiting for slow earlier operations is included.
pub(super) fn p99_ms(mut latencies_ns: Vec<u64>) -> f64 {
    latencies_ns.sort_unstable();
    let at = (latencies_ns.len() * 99).div_ceil(100).saturating_sub(1);
    latencies_ns.get(at).map_or(0.0, |&ns| ns as f64 / 1e6)
}

pub(super) fn testbed(error: &imago_testbed::Error) -> Failure {
    Failure::from_error(Exit::Precondition, "testbed", error)
        .help("`make setup` installs what the testbed needs")
}

/// The part of a demo's summary about its clients: the check of all acknowledged operations, and the latencies and
/// gaps that clients noticed.
#[derive(Debug, Serialize)]
pub(super) struct Checked {
    pub documents: u64,
    pub operations: u64,
    pub acknowledged: u64,
    pub refused: u64,
    pub unknown_outcome: u64,
    pub lost: u64,
    pub resurrected: u64,
    pub duplicated: u64,
    pub stale: u64,
    pub write_gap_ms_max: f64,
    pub read_gap_ms_max: f64,
    pub read_p99_ms_before: f64,
    pub read_p99_ms_during: f64,
    pub write_p99_ms_before: f64,
    pub write_p99_ms_during: f64,
}

impl Checked {
    pub(super) fn of(verdict: &Verdict, load: &Report, latencies: &Latencies) -> Self {
        Self {
            documents: verdict.documents,
            operations: load.started,
            acknowledged: verdict.writes_acknowledged,
            refused: verdict.writes_refused,
            unknown_outcome: verdict.writes_unknown,
            lost: verdict.counts.lost,
            resurrected: verdict.counts.resurrected,
            duplicated: verdict.counts.duplicated,
            stale: verdict.counts.stale,
            write_gap_ms_max: load.writes.longest_silence.lasted_us as f64 / 1000.0,
            read_gap_ms_max: load.reads.longest_silence.lasted_us as f64 / 1000.0,
            read_p99_ms_before: latencies.read_before,
            read_p99_ms_during: latencies.read_during,
            write_p99_ms_before: latencies.write_before,
            write_p99_ms_during: latencies.write_during,
        }
    }
}

/// Stops a load, and returns its report once every operation was answered or given up.
pub(super) async fn finish(load: Running<MongoTarget>) -> Result<Report, Failure> {
    load.control().stop();
    let finished = load.finish().await;
    let (report, _) =
        finished.map_err(|error| Failure::from_error(Exit::Failed, "load", &error))?;
    Ok(report)
}

/// Returns the limits for a bulk copy of `mb_s` MB/s; 0 paces the copy by the latencies of clients.
pub(super) fn limits(mb_s: u32) -> Limits {
    match mb_s {
        0 => Limits { is_paced: true, ..Limits::default() },
        mb_s => Limits { bytes_s: Some(u64::from(mb_s) * 1_000_000), ..Limits::default() },
    }
}

/// The time of a demo's start, and output lines with the time since then.
pub(super) struct Clock(Instant);

impl Clock {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    pub(super) fn say(&self, line: &str) {
        eprintln!("{:6.1} s  {line}", self.elapsed_s());
    }

    pub(super) fn elapsed_s(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}
