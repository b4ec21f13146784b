//! The report of a load, during the run and at its end.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::{Arrival, Measured, Shared, lock};
use crate::history::Fate;
use crate::keys::Distribution;
use crate::mix::{Kind, Mix};
use crate::timeline::{KindReport, Latency, SLOTS_MAX, Silence, Slot, Tally, Timeline};

/// Limit of the number of different failures that are counted separately; the others are counted together.
const FAILURES_MAX: usize = 32;

/// A target of a load, and the time from which on operations were sent to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchMark {
    /// Time from which on operations were sent to the target, in ms since the start of the run.
    pub at_ms: u64,
    /// Name of the target, for people to read.
    pub target: String,
}

/// The number of failures of one kind of operation with the same outcome and error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureCount {
    /// The kind of operation that failed.
    pub kind: Kind,
    /// Outcome of the operations: certainly not applied, or perhaps applied.
    pub fate: Fate,
    /// Error message of the database or the driver, or `other failures`.
    pub message: String,
    /// Number of operations that failed with this kind, outcome and message.
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

/// The state and the measurements of a load while it runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Time since the start of the run, in milliseconds.
    pub elapsed_ms: u64,
    /// Number of operations that were sent since the start of the run.
    pub started: u64,
    /// Number of operations that were sent and have not ended.
    pub in_flight: u64,
    /// Number of operations that were due and not sent, because `in_flight_max` were in flight.
    pub dropped: u64,
    /// Number of operations that failed because too few replicas were available or answered in time.
    #[serde(default)]
    pub unavailable: u64,
    /// Outcomes of the reads and scans that have ended.
    pub reads: Tally,
    /// Outcomes of the inserts, updates and deletes that have ended.
    pub writes: Tally,
    /// Longest time between two answered reads, or before the first; a silence that still lasts is not included.
    pub reads_longest_silence: Silence,
    /// Longest time between two answered writes, or before the first; a silence that still lasts is not included.
    pub writes_longest_silence: Silence,
    /// Name of the target to which operations are sent now.
    pub target: String,
    /// Last finished intervals of the time line, at most ten (one second), in order of time.
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

/// Measurements of all reads and scans, or of all writes, of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SideReport {
    /// Number of these operations by outcome.
    #[serde(flatten)]
    pub tally: Tally,
    /// Latencies of these operations from when they were due, including those that failed.
    pub latency: Latency,
    /// Longest time without a successful or "not found" answer to these operations.
    pub longest_silence: Silence,
}

/// Options and measurements of a whole run of a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Time from the start of the run until no more operations were started, in ms.
    pub elapsed_ms: u64,
    /// Requested average rate at which operations are due, in operations per second.
    pub rate_per_s: f64,
    /// Distribution of the times at which operations were due.
    pub arrival: Arrival,
    /// Requested mix of operations at the start of the run.
    pub mix: Mix,
    /// Later mixes, with the time since the start of the run from which on each was requested, in seconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<(f64, Mix)>,
    /// Requested distribution of operations over the keys.
    pub keys: Distribution,
    /// Number of operations that were sent in the whole run.
    pub started: u64,
    /// Number of operations that were due and not sent, because `in_flight_max` were in flight.
    pub dropped: u64,
    /// Limit of the number of operations in flight, from the options.
    pub in_flight_max: u32,
    /// Largest number of operations in flight, observed whenever one of them ended; equal to `in_flight_max` if that
    /// was reached.
    pub in_flight_peak: u64,
    /// Measurements of reads and scans together.
    pub reads: SideReport,
    /// Measurements of inserts, updates and deletes together.
    pub writes: SideReport,
    /// Measurements of each kind of operation that occurred.
    pub kinds: Vec<KindReport>,
    /// Delays from when operations were due until they were sent: the lateness of the load itself.
    pub start_delay: Latency,
    /// Targets to which operations were sent, in the order of the switches.
    pub targets: Vec<SwitchMark>,
    /// Number of operations that failed because too few replicas were available or answered in time.
    #[serde(default)]
    pub unavailable: u64,
    /// Failures by kind, outcome and message, the most frequent first.
    pub failures: Vec<FailureCount>,
    /// True if the run was longer than [`SLOTS_MAX`] intervals, so that the time line lacks the end.
    pub timeline_cut: bool,
    /// Time line: the finished intervals of the run, in order of time.
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
