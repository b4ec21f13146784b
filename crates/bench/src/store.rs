//! The adaptive store: transactions for each second of processor time, beside Redis's own; what changes
//! of design cost; memory; and how soon it is back.
//!
//! The cost of generating transactions is left out where it can be told apart: in process they are
//! generated before the clock runs, and over RESP only the servers' own time counts.

mod kernel;
mod operators;
mod redis;

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
    /// Rows of 100 bytes, under keys of 16.
    pub rows: u64,
    /// Transactions of each measurement in process.
    pub transactions: u64,
    /// Requests of each measurement over RESP.
    pub requests: u64,
    /// Duration of each phase of the changes of design, in seconds.
    pub operators_s: u64,
    /// Runs of each measurement; figures are medians.
    pub runs: u32,
}

/// The key of a row.
fn key(n: u64) -> Key {
    Key::new(Table(0), format!("user{n:012}").as_bytes())
}

/// The measurements; figures are medians of the runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// Read-modify-writes of three rows, uniform, for each second of processor time; in process, one
    /// thread, without a log.
    pub rmw3_txn_per_core_s: f64,
    /// The same with the embedded log and a wait for the disk before each answer, the log's thread
    /// counted too, of that.
    pub rmw3_logged_ratio: f64,
    /// Transactions a second of two threads with a site each, of one's.
    pub two_sites_speedup: f64,
    /// The processor time that Redis needs for the same requests, of the store's: the lesser of MSET's
    /// and MGET's. Nothing where there is no Redis.
    pub resp_ratio_to_redis: Option<f64>,
    /// Each command over RESP, beside Redis.
    pub resp: Vec<Compared>,
    /// The reason why there is no comparison.
    pub resp_note: Option<String>,
    /// From the order to the answer that the log has it, of a partition of 5,000 rows under load.
    pub split_ms_median: f64,
    /// The same.
    pub merge_ms_median: f64,
    /// The same.
    pub remaster_ms_median: f64,
    /// p99 of transactions on other partitions while nothing changes.
    pub others_p99_ms_before: f64,
    /// And while a partition changes all the time.
    pub others_p99_ms_during: f64,
    /// The second, of the first.
    pub others_p99_ratio: f64,
    /// Resident memory for each byte of keys and values.
    pub bytes_per_raw_byte: f64,
    /// From a folder with all rows in the log to a store that serves.
    pub recovery_s: f64,
    /// Figures over the runs.
    pub spread: Vec<Spread>,
}

/// A figure over the runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Its name in the report.
    pub name: &'static str,
    /// Its values.
    #[serde(flatten)]
    pub figure: Figure,
}

/// Measures. Takes the program, which serves the store for Redis's clients. Blocks.
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
        // Memory first: what the others leave behind would be taken for it.
        let alone = kernel::alone(size)?;
        note("rmw3_txn_per_core_s", alone.per_core_s);
        // Only once: later, what was freed before is not asked of the system again.
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
