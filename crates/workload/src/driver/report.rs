//! The report of a load, while it runs and at its end.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::{Arrival, Measured, Shared, lock};
use crate::history::Fate;
use crate::keys::Distribution;
use crate::mix::{Kind, Mix};
use crate::timeline::{KindReport, Latency, SLOTS_MAX, Silence, Slot, Tally, Timeline};

/// Different failures that are told apart.
const FAILURES_MAX: usize = 32;

/// The time from which operations went to a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchMark {
    /// Milliseconds since the start of the run.
    pub at_ms: u64,
    /// The target's label.
    pub target: String,
}

/// Failures of a kind of operation in one way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureCount {
    /// The kind of operation that failed.
    pub kind: Kind,
    /// The outcome as far as it is known: certainly not applied, or perhaps.
    pub fate: Fate,
    /// The error.
    pub message: String,
    /// Number of such failures.
    pub count: u64,
}

#[derive(Debug, Default)]
pub(super) struct Failures {
    counts: HashMap<(Kind, Fate, String), u64>,
}

impl Failures {
    pub(super) fn count(&mut self, kind: Kind, fate: Fate, message: String) {
        let known = self.counts.len() < FAILURES_MAX;
        let key = (kind, fate, message);
        if known || self.counts.contains_key(&key) {
            *self.counts.entry(key).or_default() += 1;
        } else {
            *self.counts.entry((kind, fate, "other failures".into())).or_default() += 1;
        }
    }

    fn list(&self) -> Vec<FailureCount> {
        let mut list: Vec<_> = self
            .counts
            .iter()
            .map(|((kind, fate, message), count)| FailureCount {
                kind: *kind,
                fate: *fate,
                message: message.clone(),
                count: *count,
            })
            .collect();
        list.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.message.cmp(&b.message)));
        list
    }
}

impl Measured {
    pub(super) fn new(first: SwitchMark) -> Self {
        Self {
            timeline: Timeline::new(),
            start_delay_us: Histogram::new_with_bounds(1, 600_000_000, 3)
                .expect("the bounds are constants in order"),
            failures: Failures::default(),
            unavailable: 0,
            switches: vec![first],
            in_flight_peak: 0,
        }
    }
}

/// A running load at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Since the start.
    pub elapsed_ms: u64,
    /// Operations sent.
    pub started: u64,
    /// Operations that wait for their answer.
    pub in_flight: u64,
    /// Operations that were due and not sent, since too many were in flight.
    pub dropped: u64,
    /// Operations that failed because too few replicas could be asked, or answered in time.
    #[serde(default)]
    pub unavailable: u64,
    /// Reads that ended.
    pub reads: Tally,
    /// Writes that ended.
    pub writes: Tally,
    /// The longest silence of reads so far.
    pub reads_longest_silence: Silence,
    /// The longest silence of writes so far.
    pub writes_longest_silence: Silence,
    /// The label of the present target.
    pub target: String,
    /// The last finished intervals, a second of them at most.
    pub recent: Vec<Slot>,
}

impl Snapshot {
    pub(super) fn take<T>(shared: &Shared<T>) -> Self {
        let now_ns = shared.now_ns();
        let ended = shared.ended.load(Ordering::SeqCst);
        let started = shared.started.load(Ordering::SeqCst);
        let mut measured = lock(&shared.measured);
        measured.timeline.advance(now_ns);
        let timeline = &measured.timeline;
        let (reads_longest_silence, writes_longest_silence) = timeline.silences();
        let slots = timeline.slots();
        Self {
            elapsed_ms: now_ns / 1_000_000,
            started,
            in_flight: started.saturating_sub(ended),
            dropped: timeline.dropped_total(),
            unavailable: measured.unavailable,
            reads: timeline.reads(),
            writes: timeline.writes(),
            reads_longest_silence,
            writes_longest_silence,
            target: measured.switches.last().map(|mark| mark.target.clone()).unwrap_or_default(),
            recent: slots[slots.len().saturating_sub(10)..].to_vec(),
        }
    }
}

/// Reads or writes of a whole run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SideReport {
    /// Their outcomes.
    #[serde(flatten)]
    pub tally: Tally,
    /// Their latencies, those of failures included.
    pub latency: Latency,
    /// The longest time in which the database answered none of them.
    pub longest_silence: Silence,
}

/// The measurements of a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// From the start until the last operation was due.
    pub elapsed_ms: u64,
    /// The rate that was asked for.
    pub rate_per_s: f64,
    /// The distribution of the times at which operations were due.
    pub arrival: Arrival,
    /// The mix.
    pub mix: Mix,
    /// Other mixes, with the times from which on they were asked for, in seconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<(f64, Mix)>,
    /// The key distribution.
    pub keys: Distribution,
    /// Operations sent.
    pub started: u64,
    /// Operations that were due and not sent, since `in_flight_max` were in flight.
    pub dropped: u64,
    /// The bound on operations in flight.
    pub in_flight_max: u32,
    /// The most that were in flight when one ended; equal to the bound when it was reached.
    pub in_flight_peak: u64,
    /// Reads.
    pub reads: SideReport,
    /// Inserts, updates and deletes.
    pub writes: SideReport,
    /// Each kind.
    pub kinds: Vec<KindReport>,
    /// From when operations were due until they were sent: the load's own lateness.
    pub start_delay: Latency,
    /// The targets, in order.
    pub targets: Vec<SwitchMark>,
    /// Operations that failed because too few replicas could be asked, or answered in time.
    #[serde(default)]
    pub unavailable: u64,
    /// The failures, the most frequent first.
    pub failures: Vec<FailureCount>,
    /// True if the run outlasted the time line, which then lacks its end.
    pub timeline_cut: bool,
    /// The time line.
    pub timeline: Vec<Slot>,
}

impl Report {
    pub(super) fn make<T>(shared: &Shared<T>, last_ns: u64) -> Self {
        let options = &shared.options;
        let now_ns = shared.now_ns();
        let mut measured = lock(&shared.measured);
        measured.timeline.finish(now_ns);
        let timeline = &measured.timeline;
        let ((reads, writes), (read_latency, write_latency)) =
            (timeline.silences(), timeline.latencies());
        let side = |tally, latency, longest_silence| SideReport { tally, latency, longest_silence };
        Self {
            elapsed_ms: last_ns / 1_000_000,
            rate_per_s: options.rate_per_s,
            arrival: options.arrival,
            mix: options.mix,
            turns: options.turns.iter().map(|(from, mix)| (from.as_secs_f64(), *mix)).collect(),
            keys: options.keys,
            started: shared.started.load(Ordering::SeqCst),
            dropped: timeline.dropped_total(),
            in_flight_max: options.in_flight_max,
            in_flight_peak: measured.in_flight_peak,
            reads: side(timeline.reads(), read_latency, reads),
            writes: side(timeline.writes(), write_latency, writes),
            kinds: timeline.kinds(),
            start_delay: Latency::of(&measured.start_delay_us),
            targets: measured.switches.clone(),
            unavailable: measured.unavailable,
            failures: measured.failures.list(),
            timeline_cut: timeline.slots().len() >= SLOTS_MAX,
            timeline: timeline.slots().to_vec(),
        }
    }
}
