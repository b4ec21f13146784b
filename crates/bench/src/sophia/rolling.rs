//! A change of configuration on real nodes under load, one node after the other and all at once: Fig. 2 of SOPHIA in form,
//! and what its aggressive way costs (§6.2).
//!
//! Clients ask at a fixed rate, whether or not they are answered, so that what is not served is seen. The setting that is
//! changed needs a restart and changes next to nothing by itself: what is seen is what restarts cost. All that clients
//! were told is checked against the table afterwards.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use imago_job::clock;
use imago_job::reporter::Events;
use imago_tune::cassandra::ClusterFile;
use imago_tune::cassandra::roll::{Roller, Spec};
use imago_tune::cassandra::{Consistency, Error, Result};
use imago_workload::check::{Checker, Verdict};
use imago_workload::driver::{self, Control, Options, Report as LoadReport};
use imago_workload::history::{Header as HistoryHeader, IdForm, Model, Recorder};
use imago_workload::review::Reviews;
use imago_workload::timeline::Slot;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::drawing;
use crate::Header;
use crate::load::cassandra::{CassandraTarget, Schema, preload, show_content};
use crate::statistics::percentile;

const TABLE: (&str, &str) = ("rolled", "reviews");
const MIX: &str = "read=50,update=40,insert=10";
/// The setting that is changed, with the values that it gets in turn.
const SETTING: (&str, [&str; 2]) = ("native_transport_max_threads", ["96", "112"]);
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
    /// One node after the other, and all at once.
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
pub async fn run(
    size: Size,
    file: &ClusterFile,
    process: &str,
    pictures: Option<&Path>,
    cancel: &CancellationToken,
    say: &(dyn Fn(String) + Sync),
) -> Result<Report> {
    let ways = [("node by node", false), ("all at once", true)];
    let (mut told, mut drawn) = (Vec::new(), Vec::new());
    for ((name, is_at_once), value) in ways.into_iter().zip(SETTING.1) {
        let (way, seconds, rolled) =
            one(size, file, process, (name, is_at_once, value), cancel).await?;
        say(format!(
            "{name}: {:.0} s, {} operations failed for want of replicas, {} s unserved",
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

/// One way: its figures, its seconds, and when the change began and ended.
async fn one(
    size: Size,
    file: &ClusterFile,
    process: &str,
    (name, is_at_once, value): (&'static str, bool, &str),
    cancel: &CancellationToken,
) -> Result<(Way, Vec<Second>, (f64, f64))> {
    let reviews = Reviews { size_bytes: 1_000, ..Reviews::default() };
    let schema = Schema { id_form: IdForm::Text, reviews };
    let connect = || CassandraTarget::connect(&file.uri, TABLE, Consistency::Quorum, schema);
    let target = connect().await?;
    target.truncate().await?;
    preload(&target, size.rows, |_| {}).await?;
    let header = HistoryHeader {
        imago_history: HistoryHeader::VERSION,
        preloaded: size.rows,
        reviews,
        id_form: IdForm::Text,
        model: Model::Registers,
        reads_are_current: true,
        namespace: format!("{}.{}", TABLE.0, TABLE.1),
        started_unix_ms: clock::now_ms(),
    };
    let options = Options {
        mix: MIX.parse().expect("a mix"),
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
    let spec = Spec {
        changes: BTreeMap::from([(SETTING.0.to_owned(), Some(value.to_owned()))]),
        compaction: BTreeMap::new(),
        consistency: "quorum".into(),
        tolerate: 0,
        is_at_once,
        canary_s: 0,
        is_of_controller: false,
    };
    let rolled = async {
        let roller = Roller::connect(file.clone(), spec).await?;
        roller.begin(process, &Events::default(), cancel.clone()).await
    };
    let outcome = Box::pin(rolled).await;
    let to_s = elapsed_s(&control);
    if outcome.is_ok() {
        tokio::time::sleep(beside).await;
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
        ..told(name, &report, &seconds, (from_s, to_s), &checker.finish())
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
    Way {
        name,
        roll_s: 0.0,
        node_s: 0.0,
        operations: report.started,
        failed_for_availability: report.unavailable,
        failed: failed.saturating_sub(report.unavailable),
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
