//! Benchmark of the adaptive store: transactions per second of processor time, compared with Redis; the cost of
//! changes of design; memory; and the time of recovery.
//!
//! The cost of generating transactions is excluded where it can be separated. In process, transactions are generated
//! before the clock starts; over RESP, only the processor time of the servers counts.

mod kernel;
mod operators;
pub mod postgres;
mod redis;
mod redis_script;

use std::path::Path;

use imago_store::key::{Key, Table};
use serde::Serialize;

use crate::Header;
use crate::error::Result;
use crate::statistics::Figure;

pub use redis::Compared;

/// Size of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Number of rows, each of 100 bytes with a key of 16 bytes.
    pub rows: u64,
    /// Number of transactions of each measurement in process.
    pub transactions: u64,
    /// Number of requests of each measurement over RESP; MSET and MGET, which have ten keys, get a quarter of it.
    pub requests: u64,
    /// Duration of the phase without changes of design and of the phase with them, in seconds each.
    pub operators_s: u64,
    /// Number of runs of each measurement; figures are medians.
    pub runs: u32,
}

/// Returns the key of the n-th row.
fn key(n: u64) -> Key {
    Key::new(Table(0), format!("user{n:012}").as_bytes())
}

/// The measurements; figures are medians of the runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// Read-modify-write transactions of three uniformly drawn rows, per second of processor time: in process, by one
    /// thread, without a log.
    pub rmw3_txn_per_core_s: f64,
    /// The same throughput with the embedded log, divided by `rmw3_txn_per_core_s`. Each reply waits for the disk,
    /// and the processor time of the thread of the log counts too.
    pub rmw3_logged_ratio: f64,
    /// Transactions per second of two threads with a site each, divided by those of one thread with one site.
    pub two_sites_speedup: f64,
    /// Processor time that Redis needs for the same requests, divided by that of the store: the smaller ratio of MSET
    /// and MGET. Absent without Redis.
    pub resp_ratio_to_redis: Option<f64>,
    /// Results of each command over RESP, for the store and for Redis.
    pub resp: Vec<Compared>,
    /// Reason why there is no comparison with Redis.
    pub resp_note: Option<String>,
    /// Time of a split of a partition of 5,000 rows under load, in ms: from the request until the reply that the log
    /// contains the split.
    pub split_ms_median: f64,
    /// Time of a merge of such a partition, in ms, measured likewise.
    pub merge_ms_median: f64,
    /// Time of a change of the master of such a partition, in ms, measured likewise.
    pub remaster_ms_median: f64,
    /// 99th percentile of the latencies of transactions on another partition while the design does not change, in ms.
    pub others_p99_ms_before: f64,
    /// 99th percentile of these latencies while one partition changes all the time, in ms.
    pub others_p99_ms_during: f64,
    /// `others_p99_ms_during` divided by `others_p99_ms_before`.
    pub others_p99_ratio: f64,
    /// Resident memory per byte of keys and values.
    pub bytes_per_raw_byte: f64,
    /// Time from the start on a folder whose log has all rows until the store serves, in seconds.
    pub recovery_s: f64,
    /// Figures with their extremes over the runs.
    pub spread: Vec<Spread>,
}

/// A figure with its extremes over the runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Name of the figure in the report.
    pub name: &'static str,
    /// Median and extremes of the figure.
    #[serde(flatten)]
    pub figure: Figure,
}

/// Runs the benchmark and returns its report. `program` serves the store to Redis clients. The function blocks.
///
/// # Errors
/// Returns an error if a process cannot be started, or a measurement fails.
pub fn run(size: Size, program: &Path) -> Result<Report> {
    let mut spread: Vec<(&'static str, Vec<f64>)> = Vec::new();
    let mut note = |name, value| match spread.iter_mut().find(|(known, _)| *known == name) {
        Some((_, values)) => values.push(value),
        None => spread.push((name, vec![value])),
    };
    let mut resp = Vec::new();
    let mut resp_note = None;
    for run in 0..size.runs {
        // Memory is measured first: memory that the other measurements leave allocated would count as its own.
        let alone = kernel::alone(size)?;
        note("rmw3_txn_per_core_s", alone.per_core_s);
        // Memory is measured in the first run only: in later ones, memory that was freed before is reused and does
        // not add to the resident memory.
        if run == 0 {
            note("bytes_per_raw_byte", alone.bytes_per_raw_byte);
        }
        let logged = kernel::logged(size)?;
        note("rmw3_logged_ratio", logged.per_core_s / alone.per_core_s);
        note("recovery_s", logged.recovery_s);
        note("two_sites_speedup", kernel::two_sites(size)? / kernel::one_site(size)?);
        let operators = operators::run(size)?;
        note("split_ms_median", operators.split_ms);
        note("merge_ms_median", operators.merge_ms);
        note("remaster_ms_median", operators.remaster_ms);
        note("others_p99_ms_before", operators.p99_ms_before);
        note("others_p99_ms_during", operators.p99_ms_during);
        note("others_p99_ratio", operators.p99_ms_during / operators.p99_ms_before);
        match redis::run(size, program) {
            Ok(compared) => resp.push(compared),
            Err(redis::Absent::Missing(program)) => {
                resp_note = Some(format!("{program} is not on PATH"));
            }
            Err(redis::Absent::Failed(error)) => return Err(error),
        }
    }
    let resp = redis::medians(&resp);
    let least = |names: &[&str]| {
        let ratios = resp.iter().filter(|one| names.contains(&one.command)).map(|one| one.ratio);
        ratios.min_by(f64::total_cmp)
    };
    let median = |name: &str| {
        let found = spread.iter().find(|(known, _)| *known == name);
        Figure::of(found.into_iter().flat_map(|(_, values)| values.iter().copied())).median
    };
    Ok(Report {
        header: Header::of("store", size),
        rmw3_txn_per_core_s: median("rmw3_txn_per_core_s"),
        rmw3_logged_ratio: median("rmw3_logged_ratio"),
        two_sites_speedup: median("two_sites_speedup"),
        resp_ratio_to_redis: least(&["MSET", "MGET"]),
        resp,
        resp_note,
        split_ms_median: median("split_ms_median"),
        merge_ms_median: median("merge_ms_median"),
        remaster_ms_median: median("remaster_ms_median"),
        others_p99_ms_before: median("others_p99_ms_before"),
        others_p99_ms_during: median("others_p99_ms_during"),
        others_p99_ratio: median("others_p99_ratio"),
        bytes_per_raw_byte: median("bytes_per_raw_byte"),
        recovery_s: median("recovery_s"),
        spread: spread
            .iter()
            .map(|(name, values)| Spread { name, figure: Figure::of(values.iter().copied()) })
            .collect(),
    })
}
