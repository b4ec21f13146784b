//! The benchmark `sophia-roll`: a change of configuration on real nodes under load, node by node and on all nodes at
//! once; Fig. 2 of SOPHIA in form, and the cost of its aggressive variant (§6.2).
//!
//! Two changes are made under a fixed request rate, which does not depend on replies, so that lost service is
//! visible. Their setting needs a restart and has almost no effect itself: the measurements show the cost of the
//! restarts. One change is made, node by node, while clients scan and send the next operation as soon as one is
//! answered. Its configuration serves scans better: the loss by the restarts is regained, at the crossing point
//! (Fig. 2). Afterwards the table is checked against all replies that the clients got.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use imago_job::clock;
use imago_job::reporter::Events;
use imago_plan::statistics::percentile;
use imago_tune::cassandra::ClusterFile;
use imago_tune::cassandra::compaction::{self, Compaction};
use imago_tune::cassandra::roll::{Roller, Spec};
use imago_tune::cassandra::{Consistency, Error, Result};
use imago_workload::check::{Checker, Verdict};
use imago_workload::driver::{self, Arrival, Control, Options, Report as LoadReport};
use imago_workload::history::{Header as HistoryHeader, IdForm, Model, Recorder};
use imago_workload::review::Reviews;
use imago_workload::timeline::Slot;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::drawing;
use crate::Header;
use imago_load::Schema;
use imago_load::cassandra::{CassandraTarget, preload, rewrite, show_content};

const TABLE: (&str, &str) = ("rolled", "reviews");
/// Mix of operations under which the changes have no gain.
const MIX: &str = "read=50,update=40,insert=10";
/// The setting of the changes without a gain, with the value of each change.
const SETTING: (&str, [&str; 2]) = ("native_transport_max_threads", ["96", "112"]);
/// Scaling parameters of late and of early merging. Early merging serves scans better.
const MERGED: [&str; 2] = ["T32", "L10"];
/// The setting that is changed together with the compaction; it needs a restart.
const MEMTABLES: (&str, &str) = ("memtable_heap_space", "48MiB");
/// Number of files in each node that late merging does not merge.
const FILES: u64 = 20;
/// Reciprocal of the share of the rows that each of these files has.
const EVERY: u64 = 4;
/// Mix of operations under which the change has a gain.
const SCANS: &str = "read=8,update=2,scan=90";
/// Number of operations in flight, for clients that send the next operation when one is answered.
const IN_FLIGHT: u32 = 8;
/// Time of load after a change with a gain, as a multiple of [`Size::beside_s`]: the loss has to be regained.
const REGAINS: u32 = 6;
/// Maximum number of seconds before a change whose mean rate determines the crossing point.
const BEFORE_MAX: usize = 30;
/// Maximum time to wait until a newly filled cluster has settled.
const SETTLE_BOUND: Duration = Duration::from_secs(120);
/// Interval between two checks for obstacles.
const SETTLE_EVERY: Duration = Duration::from_secs(2);
/// Maximum number of entries of the history in memory.
const HISTORY_MAX: usize = 8_000_000;

/// Size of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Number of nodes of the cluster.
    pub nodes: u8,
    /// CPU limit of each node, in percent of one processor; 0 is no limit.
    pub cpu_percent: u16,
    /// Number of operations that clients send per second, at a fixed rate.
    pub rate_per_s: u32,
    /// Time of load before and after each change, in seconds. After the change with a gain it is six times as long.
    pub beside_s: u32,
    /// Number of rows of 1 KB before the load.
    pub rows: u64,
}

/// Result of the benchmark.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// The changes: with a gain, node by node; without a gain, node by node and all nodes at once.
    pub ways: Vec<Way>,
    /// Files of the picture.
    pub pictures: Vec<PathBuf>,
}

/// Measurements of a change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Way {
    /// Name of the variant.
    pub name: &'static str,
    /// Duration of the change, in seconds.
    pub roll_s: f64,
    /// Mean time until a node had the writes that it missed (T_r), in seconds.
    pub node_s: f64,
    /// Number of operations that were sent before, during and after the change.
    pub operations: u64,
    /// Number of operations that failed because too few replicas were available or answered in time.
    pub failed_for_availability: u64,
    /// Number of operations that failed for other reasons.
    pub failed: u64,
    /// Mean number of operations per second in the last seconds before the change, at most 30.
    pub rate_before: f64,
    /// Mean number of operations per second in as many seconds at the end of the load.
    pub rate_behind: f64,
    /// The crossing point: seconds from the start of the change until as many operations were served as at the rate
    /// before the change. Null if it was not reached, or if the change cost nothing.
    pub crossing_s: Option<f64>,
    /// Number of seconds in which no operation succeeded.
    pub unserved_s: u64,
    /// Median of the 99th percentiles of the latency in the seconds before the change, in milliseconds. Seconds
    /// without a reply are excluded.
    pub p99_ms_before: f64,
    /// Median of these percentiles in the seconds during the change, in milliseconds.
    pub p99_ms_during: f64,
    /// Maximum of these percentiles during the change, in milliseconds.
    pub p99_ms_max: f64,
    /// [`Self::p99_ms_during`] divided by [`Self::p99_ms_before`].
    pub p99_ratio: f64,
    /// Number of acknowledged writes.
    pub acknowledged: u64,
    /// Number of keys whose acknowledged write is missing.
    pub lost: u64,
    /// Number of keys whose content, when read, had been overwritten by an acknowledged write.
    pub stale: u64,
}

/// Measurements of one second of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Second {
    answered: u64,
    p99_ms: f64,
}

/// Changes the configuration of a cluster in each variant, under load.
///
/// # Errors
/// Fails if the cluster cannot be loaded or rolled, or if the picture cannot be drawn.
#[crate::boxed(?Send)]
pub async fn run(
    size: Size,
    file: &ClusterFile,
    process: &str,
    pictures: Option<&Path>,
    cancel: &CancellationToken,
    say: &(dyn Fn(String) + Sync),
) -> Result<Report> {
    let (mut told, mut drawn) = (Vec::new(), Vec::new());
    for kind in [Kind::with_gain(), Kind::plain("node by node"), Kind::plain("all at once")] {
        let name = kind.name;
        let (way, seconds, rolled) = one(size, file, process, kind, cancel).await?;
        let crossing = way
            .crossing_s
            .map_or_else(String::new, |at_s| format!(", regained {at_s:.0} s behind its begin"));
        say(format!(
            "{name}: {:.0} s, {} operations failed for want of replicas, {} s unserved{crossing}",
            way.roll_s, way.failed_for_availability, way.unserved_s
        ));
        told.push(way);
        drawn.push(drawing::Rolled {
            name,
            answered: seconds.iter().map(|one| one.answered as f64).collect(),
            p99_ms: seconds.iter().map(|one| one.p99_ms).collect(),
            from_to_s: rolled,
        });
    }
    let pictures = drawing::rolls(&drawn, pictures);
    Ok(Report {
        header: Header::of("sophia-roll", size),
        ways: told,
        pictures: pictures.map_err(|error| Error::Usage(error.to_string()))?,
    })
}

/// A variant: the change, and the load of the clients.
struct Kind {
    name: &'static str,
    spec: Spec,
    mix: &'static str,
    arrival: Arrival,
    in_flight_max: u32,
    /// Time of load after the change, as a multiple of that before it.
    behind: u32,
    /// True if the rows are spread over many files before the load.
    is_in_files: bool,
}

impl Kind {
    /// Builds a variant with a setting that has no gain, under a fixed request rate.
    fn plain(name: &'static str) -> Self {
        let is_at_once = name == "all at once";
        let value = SETTING.1[usize::from(is_at_once)];
        let spec = Spec {
            changes: BTreeMap::from([(SETTING.0.to_owned(), Some(value.to_owned()))]),
            compaction: BTreeMap::new(),
            consistency: "quorum".into(),
            tolerate: 0,
            is_at_once,
            canary_s: 0,
            is_of_controller: false,
        };
        let Options { arrival, in_flight_max, .. } = Options::default();
        Self { name, spec, mix: MIX, arrival, in_flight_max, behind: 1, is_in_files: false }
    }

    /// Builds the variant with a gain, under scans: from late to early merging, with another setting that needs a
    /// restart.
    fn with_gain() -> Self {
        let plain = Self::plain("with a gain");
        let changes = BTreeMap::from([(MEMTABLES.0.to_owned(), Some(MEMTABLES.1.to_owned()))]);
        let spec = Spec { changes, compaction: merged(MERGED[1]), ..plain.spec };
        Self {
            spec,
            mix: SCANS,
            arrival: Arrival::Closed,
            in_flight_max: IN_FLIGHT,
            behind: REGAINS,
            is_in_files: true,
            ..plain
        }
    }
}

/// Returns the unified compaction of the table with this scaling parameter.
fn merged(scaling: &str) -> BTreeMap<String, Compaction> {
    let options = [("class", "UnifiedCompactionStrategy"), ("scaling_parameters", scaling)];
    let options = options.map(|(name, value)| (name.to_owned(), value.into()));
    let compaction = Compaction::try_from(BTreeMap::from(options)).expect("it is known");
    BTreeMap::from([(table_name(), compaction)])
}

fn table_name() -> String {
    format!("{}.{}", TABLE.0, TABLE.1)
}

/// Spreads the rows over many files, as late merging does after a period of writes. Each file has a part of the rows.
async fn put_in_files(
    target: &CassandraTarget,
    size: Size,
    file: &ClusterFile,
    process: &str,
    cancel: &CancellationToken,
) -> Result<()> {
    let plain = Kind::plain("late merging");
    let spec = Spec { changes: BTreeMap::new(), compaction: merged(MERGED[0]), ..plain.spec };
    let roller = Roller::connect(file.clone(), spec).await?;
    settle(&roller).await?;
    Box::pin(roller.begin(process, &Events::default(), cancel.clone())).await?;
    for number in 0..FILES {
        rewrite(target, (0..size.rows).filter(|key| key % EVERY == number % EVERY)).await?;
        for node in &file.nodes {
            compaction::flush(node, &table_name()).await?;
        }
    }
    Ok(())
}

/// Waits, up to a limit, until a roll has no obstacles: nodes with many writes miss some of them for a while.
async fn settle(roller: &Roller) -> Result<()> {
    let began = std::time::Instant::now();
    while began.elapsed() < SETTLE_BOUND && !roller.preview().await?.obstacles.is_empty() {
        tokio::time::sleep(SETTLE_EVERY).await;
    }
    // If an obstacle remains, the roll fails with it.
    Ok(())
}

/// Runs one variant. Returns its results, its seconds, and the start and end of the change in seconds.
async fn one(
    size: Size,
    file: &ClusterFile,
    process: &str,
    kind: Kind,
    cancel: &CancellationToken,
) -> Result<(Way, Vec<Second>, (f64, f64))> {
    let reviews = Reviews { size_bytes: 1_000, ..Reviews::default() };
    let schema = Schema { id_form: IdForm::Text, reviews };
    let connect = || CassandraTarget::connect(&file.uri, TABLE, Consistency::Quorum, schema);
    let target = connect().await?;
    target.truncate().await?;
    preload(&target, size.rows, |_| {}).await?;
    if kind.is_in_files {
        put_in_files(&target, size, file, process, cancel).await?;
    }
    settle(&Roller::connect(file.clone(), kind.spec.clone()).await?).await?;
    let header = HistoryHeader {
        imago_history: HistoryHeader::VERSION,
        preloaded: size.rows,
        reviews,
        id_form: IdForm::Text,
        model: Model::Registers,
        reads_are_current: true,
        namespace: table_name(),
        started_unix_ms: clock::now_ms(),
    };
    let options = Options {
        mix: kind.mix.parse().expect("a mix"),
        arrival: kind.arrival,
        in_flight_max: kind.in_flight_max,
        rate_per_s: size.rate_per_s.into(),
        duration: None,
        preloaded: size.rows,
        reviews,
        ..Options::default()
    };
    let wrong = |error: driver::DriverError| Error::Failed {
        what: error.to_string(),
        help: "the benchmark can be begun again".into(),
    };
    let recorder = Recorder::memory(header, HISTORY_MAX);
    let running = driver::start(options, Arc::new(target), recorder).map_err(wrong)?;
    let control = running.control();
    let beside = Duration::from_secs(size.beside_s.into());
    tokio::time::sleep(beside).await;
    let from_s = elapsed_s(&control);
    let rolled = async {
        let roller = Roller::connect(file.clone(), kind.spec).await?;
        roller.begin(process, &Events::default(), cancel.clone()).await
    };
    let outcome = Box::pin(rolled).await;
    let to_s = elapsed_s(&control);
    if outcome.is_ok() {
        tokio::time::sleep(beside * kind.behind).await;
    }
    control.stop();
    let (report, history) = running.finish().await.map_err(wrong)?;
    let outcome = outcome?;
    let mut checker = Checker::new(history.expect("it was recorded in memory"));
    show_content(&connect().await?, &mut checker).await?;
    let seconds = seconds(&report.timeline);
    let nodes_s: Vec<f64> = outcome.took.values().map(|took| took.whole_s).collect();
    let way = Way {
        roll_s: outcome.elapsed_s,
        node_s: nodes_s.iter().sum::<f64>() / nodes_s.len().max(1) as f64,
        ..summarise(kind.name, &report, &seconds, (from_s, to_s), &checker.finish())
    };
    Ok((way, seconds, (from_s, to_s)))
}

fn elapsed_s(control: &Control<CassandraTarget>) -> f64 {
    control.snapshot().elapsed_ms as f64 / 1_000.0
}

/// Returns the complete seconds of a load: the number of answered operations, and the maximum of the 99th percentiles
/// of reads and writes in the tenths of the second.
fn seconds(slots: &[Slot]) -> Vec<Second> {
    let mut seconds: Vec<Second> = Vec::new();
    for slot in slots {
        let number = (slot.at_ms / 1_000) as usize;
        if seconds.len() <= number {
            seconds.resize(number + 1, Second::default());
        }
        let of = &mut seconds[number];
        let (reads, writes) = (slot.reads, slot.writes);
        of.answered += reads.tally.ok + reads.tally.not_found + writes.tally.ok;
        of.p99_ms = of.p99_ms.max(reads.p99_us.max(writes.p99_us) as f64 / 1_000.0);
    }
    // The last second is incomplete.
    seconds.pop();
    seconds
}

/// Returns the seconds from the start of the change, which is at `from`, until as many operations were served as at
/// the rate before it. Returns None if this point was not reached, or if the change lost nothing.
fn crossing_s(seconds: &[Second], from: usize) -> Option<f64> {
    let rate = mean(&seconds[from.saturating_sub(BEFORE_MAX)..from.min(seconds.len())])?;
    let mut gained = 0.0;
    let sums: Vec<f64> = seconds
        .get(from..)?
        .iter()
        .map(|second| {
            gained += second.answered as f64 - rate;
            gained
        })
        .collect();
    let least = (0..sums.len()).min_by(|one, two| sums[*one].total_cmp(&sums[*two]))?;
    let regained = sums[least..].iter().position(|sum| *sum >= 0.0)?;
    (sums[least] < 0.0).then_some((least + regained + 1) as f64)
}

/// Returns the mean number of operations per second; None for an empty slice.
fn mean(seconds: &[Second]) -> Option<f64> {
    let answered: u64 = seconds.iter().map(|second| second.answered).sum();
    (!seconds.is_empty()).then(|| answered as f64 / seconds.len() as f64)
}

fn summarise(
    name: &'static str,
    report: &LoadReport,
    seconds: &[Second],
    (from_s, to_s): (f64, f64),
    verdict: &Verdict,
) -> Way {
    let within = |from: f64, to: f64| {
        let numbered = (0_u32..).zip(seconds);
        let inside = numbered.filter(move |(at, second)| {
            second.answered > 0 && (from..to).contains(&f64::from(*at))
        });
        inside.map(|(_, second)| second.p99_ms)
    };
    let before = percentile(within(0.0, from_s), 50).unwrap_or(0.0);
    let during = percentile(within(from_s, to_s), 50).unwrap_or(0.0);
    let failed = report.reads.tally.failed + report.writes.tally.failed;
    let from = from_s as usize;
    let before_it = &seconds[from.saturating_sub(BEFORE_MAX)..from.min(seconds.len())];
    let behind_it = &seconds[seconds.len().saturating_sub(before_it.len())..];
    Way {
        name,
        roll_s: 0.0,
        node_s: 0.0,
        operations: report.started,
        failed_for_availability: report.unavailable,
        failed: failed.saturating_sub(report.unavailable),
        rate_before: mean(before_it).unwrap_or(0.0),
        rate_behind: mean(behind_it).unwrap_or(0.0),
        crossing_s: crossing_s(seconds, from),
        unserved_s: seconds.iter().filter(|second| second.answered == 0).count() as u64,
        p99_ms_before: before,
        p99_ms_during: during,
        p99_ms_max: within(from_s, to_s).fold(0.0, f64::max),
        p99_ratio: during / before.max(1e-9),
        acknowledged: verdict.writes_acknowledged,
        lost: verdict.counts.lost,
        stale: verdict.counts.stale,
    }
}

#[cfg(test)]
mod tests {
    use imago_workload::timeline::{Part, Tally};

    use super::*;

    #[test]
    fn a_change_has_crossed_when_what_it_lost_is_regained() {
        let of = |answered: u64| Second { answered, p99_ms: 4.0 };
        let all = |parts: &[(usize, u64)]| -> Vec<Second> {
            parts.iter().flat_map(|(count, answered)| vec![of(*answered); *count]).collect()
        };
        // 20 s at 60 % lose the operations of 8 s; at 120 %, regaining them takes 40 s.
        let crosses = all(&[(15, 1_000), (20, 600), (60, 1_200)]);
        assert_eq!(crossing_s(&crosses, 15), Some(60.0));
        assert_eq!(crossing_s(&crosses[..70], 15), None, "not yet");
        assert_eq!(crossing_s(&all(&[(15, 1_000), (40, 1_000)]), 15), None, "nothing was lost");
        assert_eq!(crossing_s(&[], 15), None);
    }

    #[test]
    fn seconds_have_what_was_answered_and_the_slowest_of_their_tenths() {
        let slot = |at_ms: u64, ok: u64, p99_us: u64| Slot {
            at_ms,
            reads: Part { tally: Tally { ok, ..Tally::default() }, p99_us, ..Part::default() },
            ..Slot::default()
        };
        let slots =
            [slot(0, 20, 5_000), slot(900, 19, 7_000), slot(2_400, 3, 900_000), slot(3_000, 1, 1)];
        let expected = [(39, 7.0), (0, 0.0), (3, 900.0)];
        let expected = expected.map(|(answered, p99_ms)| Second { answered, p99_ms });
        assert_eq!(seconds(&slots), expected);
    }
}
