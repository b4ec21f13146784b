//! A change of configuration on real nodes under load, one node after the other and all at once: Fig. 2 of SOPHIA in form,
//! and what its aggressive way costs (§6.2).
//!
//! Twice clients ask at a fixed rate, whether or not they are answered, so that what is not served is seen. The setting that
//! is changed then needs a restart and changes next to nothing by itself: what is seen is what restarts cost. Once clients
//! scan as fast as they are answered, and get a configuration that is better for that, node by node: what restarts cost is
//! regained, and the crossing point is when (Fig. 2). All that clients were told is checked against the table afterwards.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use imago_job::clock;
use imago_job::reporter::Events;
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
use crate::load::cassandra::{CassandraTarget, Schema, preload, rewrite, show_content};
use crate::statistics::percentile;

const TABLE: (&str, &str) = ("rolled", "reviews");
const MIX: &str = "read=50,update=40,insert=10";
/// The setting that is changed, with the values that it gets in turn.
const SETTING: (&str, [&str; 2]) = ("native_transport_max_threads", ["96", "112"]);
/// Scans, which early merging serves better than late merging, with the setting that goes with it.
const MERGED: [&str; 2] = ["T32", "L10"];
const MEMTABLES: (&str, &str) = ("memtable_heap_space", "48MiB");
/// Files in each node that late merging leaves as they are, and the share of rows that each of them has.
const FILES: u64 = 20;
const EVERY: u64 = 4;
const SCANS: &str = "read=8,update=2,scan=90";
/// Operations at once while clients are as fast as they are answered.
const IN_FLIGHT: u32 = 8;
/// Seconds behind a change with a gain, as a multiple of those beside the others: what was lost has to be regained.
const REGAINS: u32 = 6;
/// Seconds before a change by which the crossing point is told, at most.
const BEFORE_MAX: usize = 30;
/// For a cluster that has been filled to settle.
const SETTLE_BOUND: Duration = Duration::from_secs(120);
const SETTLE_EVERY: Duration = Duration::from_secs(2);
/// Entries of a history in memory.
const HISTORY_MAX: usize = 8_000_000;

/// Size of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Nodes of the cluster.
    pub nodes: u8,
    /// What each node may use of the processors, in percent of one; 0: as much as it gets.
    pub cpu_percent: u16,
    /// Operations that clients ask for in a second.
    pub rate_per_s: u32,
    /// Seconds before and behind each roll.
    pub beside_s: u32,
    /// Rows of 1 KB at the beginning.
    pub rows: u64,
}

/// The measurements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// With a gain, one node after the other; and without one, one after the other and all at once.
    pub ways: Vec<Way>,
    /// The files of the picture.
    pub pictures: Vec<PathBuf>,
}

/// A way to change the configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Way {
    /// Its name.
    pub name: &'static str,
    /// How long the change took, in seconds.
    pub roll_s: f64,
    /// How long a node took until it had all that it missed, in the mean (T_r).
    pub node_s: f64,
    /// Operations that clients asked for, before, during and behind the change.
    pub operations: u64,
    /// Operations that failed for want of replicas.
    pub failed_for_availability: u64,
    /// Operations that failed otherwise.
    pub failed: u64,
    /// Operations a second before the change and behind it, in the mean of as many seconds.
    pub rate_before: f64,
    /// See [`Self::rate_before`].
    pub rate_behind: f64,
    /// The crossing point: seconds from the begin of the change until as much was served since as would have been without
    /// it. Null: that was not seen.
    pub crossing_s: Option<f64>,
    /// Seconds in which no operation succeeded.
    pub unserved_s: u64,
    /// The time that one answer of a hundred exceeds, in milliseconds: the median of the seconds before the change. Seconds
    /// without an answer have none.
    pub p99_ms_before: f64,
    /// The same of the seconds of the change.
    pub p99_ms_during: f64,
    /// The largest of them.
    pub p99_ms_max: f64,
    /// `p99_ms_during` as a ratio to `p99_ms_before`.
    pub p99_ratio: f64,
    /// Writes that were acknowledged.
    pub acknowledged: u64,
    /// Of these, the ones that are not there.
    pub lost: u64,
    /// Reads that showed less than had been acknowledged before.
    pub stale: u64,
}

/// A second of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Second {
    answered: u64,
    p99_ms: f64,
}

/// Rolls a cluster both ways, under load.
///
/// # Errors
/// The cluster cannot be loaded or rolled; the picture cannot be drawn.
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

/// What is changed, and what clients ask for meanwhile.
struct Kind {
    name: &'static str,
    spec: Spec,
    mix: &'static str,
    arrival: Arrival,
    in_flight_max: u32,
    /// Seconds behind the change, as a multiple of those before it.
    behind: u32,
    /// True if the rows lie in many files before it.
    is_in_files: bool,
}

impl Kind {
    /// A setting that gains nothing, under a fixed rate.
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

    /// From late merging to early merging, and another setting that needs a restart, under scans.
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

/// The table's compaction, unified with this scaling parameter.
fn merged(scaling: &str) -> BTreeMap<String, Compaction> {
    let options = [("class", "UnifiedCompactionStrategy"), ("scaling_parameters", scaling)];
    let options = options.map(|(name, value)| (name.to_owned(), value.into()));
    let compaction = Compaction::try_from(BTreeMap::from(options)).expect("it is known");
    BTreeMap::from([(table_name(), compaction)])
}

fn table_name() -> String {
    format!("{}.{}", TABLE.0, TABLE.1)
}

/// Has the rows lie in many files, as under late merging after a time of writes: each file has some of the rows.
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

/// Waits until nothing speaks against a roll: nodes that write much miss some of it for a while.
async fn settle(roller: &Roller) -> Result<()> {
    let began = std::time::Instant::now();
    while began.elapsed() < SETTLE_BOUND && !roller.preview().await?.obstacles.is_empty() {
        tokio::time::sleep(SETTLE_EVERY).await;
    }
    // Otherwise the roll says what speaks against it.
    Ok(())
}

/// One way: its figures, its seconds, and when the change began and ended.
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
        ..told(kind.name, &report, &seconds, (from_s, to_s), &checker.finish())
    };
    Ok((way, seconds, (from_s, to_s)))
}

fn elapsed_s(control: &Control<CassandraTarget>) -> f64 {
    control.snapshot().elapsed_ms as f64 / 1_000.0
}

/// Whole seconds: what was answered, and the longest of the slowest percents of its tenths.
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
    // The last one is not whole.
    seconds.pop();
    seconds
}

/// When as much was served since the change began as by the rate before it, in seconds behind its begin; none if that was not
/// seen. Before it has lost anything, it has regained nothing.
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

/// Operations a second; none of no second.
fn mean(seconds: &[Second]) -> Option<f64> {
    let answered: u64 = seconds.iter().map(|second| second.answered).sum();
    (!seconds.is_empty()).then(|| answered as f64 / seconds.len() as f64)
}

fn told(
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
        // 20 s at 60 % lose 8 s of what was served; at 120 % that takes 40 s.
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
