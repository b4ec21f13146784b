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

/// Maximum number of different failures that are counted separately.
const FAILURES_MAX: usize = 32;

/// The time from which on operations went to a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchMark {
    /// Time of the switch, in milliseconds since the start of the run.
    pub at_ms: u64,
    /// The label of the target.
    pub target: String,
}

/// The number of failures of one kind of operation with the same outcome and error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureCount {
    /// The kind of operation that failed.
    pub kind: Kind,
    /// The outcome: certainly not applied, or perhaps applied.
    pub fate: Fate,
    /// The error message.
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

/// The state and the measurements of a running load at one time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Time since the start of the run, in milliseconds.
    pub elapsed_ms: u64,
    /// Number of operations that were sent.
    pub started: u64,
    /// Number of operations that wait for their answer.
    pub in_flight: u64,
    /// Number of operations that were due and not sent, because too many were in flight.
    pub dropped: u64,
    /// Number of operations that failed because too few replicas were available or answered in time.
    #[serde(default)]
    pub unavailable: u64,
    /// Outcomes of the reads that ended.
    pub reads: Tally,
    /// Outcomes of the writes that ended.
    pub writes: Tally,
    /// The longest time without an answered read so far.
    pub reads_longest_silence: Silence,
    /// The longest time without an answered write so far.
    pub writes_longest_silence: Silence,
    /// The label of the present target.
    pub target: String,
    /// The last finished intervals, at most ten (one second).
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

/// The measurements of all reads, or of all writes, of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SideReport {
    /// Number of operations by outcome.
    #[serde(flatten)]
    pub tally: Tally,
    /// Latencies of the operations, including those that failed.
    pub latency: Latency,
    /// The longest time without an answer of the database other than a failure.
    pub longest_silence: Silence,
}

/// The measurements of a whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Time from the start until no more operations were started, in milliseconds.
    pub elapsed_ms: u64,
    /// The requested rate, in operations per second.
    pub rate_per_s: f64,
    /// The distribution of the times at which operations were due.
    pub arrival: Arrival,
    /// The requested mix of operations.
    pub mix: Mix,
    /// Other mixes, with the time since the start from which on each was requested, in seconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<(f64, Mix)>,
    /// The distribution of operations over the keys.
    pub keys: Distribution,
    /// Number of operations that were sent.
    pub started: u64,
    /// Number of operations that were due and not sent, because `in_flight_max` were in flight.
    pub dropped: u64,
    /// Maximum number of operations in flight.
    pub in_flight_max: u32,
    /// Largest number of operations in flight when one of them ended; equal to `in_flight_max` if that was
    /// reached.
    pub in_flight_peak: u64,
    /// The measurements of reads and scans.
    pub reads: SideReport,
    /// The measurements of inserts, updates and deletes.
    pub writes: SideReport,
    /// The measurements of each kind of operation that occurred.
    pub kinds: Vec<KindReport>,
    /// Delay from when operations were due until they were sent: the lateness of the load itself.
    pub start_delay: Latency,
    /// The targets, in the order of the switches.
    pub targets: Vec<SwitchMark>,
    /// Number of operations that failed because too few replicas were available or answered in time.
    #[serde(default)]
    pub unavailable: u64,
    /// The failures, the most frequent first.
    pub failures: Vec<FailureCount>,
    /// True if the run was longer than the time line can represent, so that the end is missing.
    pub timeline_cut: bool,
    /// The finished intervals of the run.
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
