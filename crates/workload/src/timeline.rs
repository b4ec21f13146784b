//! The measurements: latency histograms per kind, a time line of 100 ms intervals, and the longest silences.
//!
//! A latency counts from the time at which the operation was *due*, not from when it was sent. So a stall of
//! the database or of the load itself is charged to every operation that it delayed (no coordinated
//! omission). An operation is counted in the interval in which it ended.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::history::Fate;
use crate::mix::Kind;

/// Width of one interval of the time line, in milliseconds.
pub const SLOT_MS: u64 = 100;
const SLOT_NS: u64 = SLOT_MS * 1_000_000;
/// Limit of the number of intervals: one day. A longer run still counts its totals, but has no further intervals.
pub const SLOTS_MAX: usize = 864_000;
/// Upper bound of recorded latencies, in µs (10 minutes); longer ones are recorded as this.
const LATENCY_US_MAX: u64 = 600_000_000;

/// Number of operations by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Number of operations that were acknowledged.
    pub ok: u64,
    /// Number of operations to which the database answered that there is no such document.
    pub not_found: u64,
    /// Number of operations that failed, whether certainly not applied or perhaps applied.
    pub failed: u64,
}

impl Tally {
    fn count(&mut self, fate: Fate) {
        match fate {
            Fate::Acked => self.ok += 1,
            Fate::NotFound => self.not_found += 1,
            Fate::Refused | Fate::Unknown => self.failed += 1,
        }
    }

    /// Returns the number of operations of all outcomes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.ok + self.not_found + self.failed
    }
}

/// Percentiles of latencies or delays, in µs; a latency counts from when the operation was due and includes failed
/// operations. All are 0 if there were no operations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Median, in µs.
    pub p50_us: u64,
    /// 95th percentile, in µs.
    pub p95_us: u64,
    /// 99th percentile, in µs.
    pub p99_us: u64,
    /// 99.9th percentile, in µs.
    pub p999_us: u64,
    /// Maximum, in µs.
    pub max_us: u64,
}

/// Measurements of the reads, or of the writes, that ended in one interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Number of these operations by outcome.
    #[serde(flatten)]
    pub tally: Tally,
    /// Median latency from when the operations were due, in µs; 0 if there were none.
    pub p50_us: u64,
    /// 99th percentile of the latency, in µs; 0 if there were no operations.
    pub p99_us: u64,
    /// Maximum latency, in µs; 0 if there were no operations.
    pub max_us: u64,
}

/// One interval of the time line, [`SLOT_MS`] long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Begin of the interval, in ms since the start of the run.
    pub at_ms: u64,
    /// Reads and scans that ended in the interval.
    pub reads: Part,
    /// Inserts, updates and deletes that ended in the interval.
    pub writes: Part,
    /// Number of operations that were due in the interval and not sent, because too many were in flight.
    pub dropped: u64,
}

/// The longest time without a successful or "not found" answer of the database.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silence {
    /// Begin of the silence, in ms since the start of the run.
    pub from_ms: u64,
    /// Duration of the silence, in µs.
    pub lasted_us: u64,
}

#[derive(Debug, Default)]
struct SilenceTracker {
    last_ns: u64,
    from_ns: u64,
    longest_ns: u64,
}

impl SilenceTracker {
    fn answered(&mut self, at_ns: u64) {
        let gap_ns = at_ns.saturating_sub(self.last_ns);
        if gap_ns > self.longest_ns {
            (self.from_ns, self.longest_ns) = (self.last_ns, gap_ns);
        }
        self.last_ns = self.last_ns.max(at_ns);
    }

    fn silence(&self) -> Silence {
        Silence { from_ms: self.from_ns / 1_000_000, lasted_us: self.longest_ns / 1000 }
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("the bounds are constants in order")
}

impl Latency {
    /// Returns the percentiles of `histogram`, whose values are in µs.
    #[must_use]
    pub fn of(histogram: &Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        let at = |quantile| histogram.value_at_quantile(quantile);
        Self {
            p50_us: at(0.5),
            p95_us: at(0.95),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: histogram.max(),
        }
    }
}

/// Measurements of the reads, or of the writes, over the whole run and in the current interval.
#[derive(Debug)]
struct Side {
    tally: Tally,
    quiet: SilenceTracker,
    slot_tally: Tally,
    slot_us: Histogram<u64>,
}

impl Side {
    fn new() -> Self {
        Self {
            tally: Tally::default(),
            quiet: SilenceTracker::default(),
            slot_tally: Tally::default(),
            slot_us: histogram(),
        }
    }

    fn count(&mut self, fate: Fate, end_ns: u64, latency_us: u64) {
        self.tally.count(fate);
        self.slot_tally.count(fate);
        self.slot_us.saturating_record(latency_us);
        if matches!(fate, Fate::Acked | Fate::NotFound) {
            self.quiet.answered(end_ns);
        }
    }

    fn take_slot(&mut self) -> Part {
        let mut part = Part { tally: std::mem::take(&mut self.slot_tally), ..Part::default() };
        if !self.slot_us.is_empty() {
            part.p50_us = self.slot_us.value_at_quantile(0.5);
            part.p99_us = self.slot_us.value_at_quantile(0.99);
            part.max_us = self.slot_us.max();
            self.slot_us.reset();
        }
        part
    }
}

/// Collects the measurements of a load during its run.
#[derive(Debug)]
pub struct Timeline {
    kinds: [(Tally, Histogram<u64>); Kind::ALL.len()],
    reads: Side,
    writes: Side,
    slots: Vec<Slot>,
    slot_index: u64,
    slot_dropped: u64,
    dropped: u64,
}

/// Measurements of one kind of operation over a whole run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindReport {
    /// Kind of the measured operations.
    pub kind: Kind,
    /// Number of these operations by outcome.
    #[serde(flatten)]
    pub tally: Tally,
    /// Latencies of these operations from when they were due, including those that failed.
    pub latency: Latency,
}

impl Default for Timeline {
    fn default() -> Self {
        Self::new()
    }
}

impl Timeline {
    /// Returns a time line without measurements.
    #[must_use]
    pub fn new() -> Self {
        Self {
            kinds: std::array::from_fn(|_| (Tally::default(), histogram())),
            reads: Side::new(),
            writes: Side::new(),
            slots: Vec::new(),
            slot_index: 0,
            slot_dropped: 0,
            dropped: 0,
        }
    }

    /// Counts an operation that was due at `intended_ns` and ended with `fate` at `end_ns`, both in ns since the
    /// start of the run.
    pub fn ended(&mut self, kind: Kind, fate: Fate, intended_ns: u64, end_ns: u64) {
        self.advance(end_ns);
        let latency_us = (end_ns.saturating_sub(intended_ns) / 1000).max(1);
        let (tally, histogram) = &mut self.kinds[kind as usize];
        tally.count(fate);
        histogram.saturating_record(latency_us);
        let side = if kind.writes() { &mut self.writes } else { &mut self.reads };
        side.count(fate, end_ns, latency_us);
    }

    /// Counts an operation that was due at `at_ns`, in ns since the start of the run, and was not sent.
    pub fn dropped(&mut self, at_ns: u64) {
        self.advance(at_ns);
        self.dropped += 1;
        self.slot_dropped += 1;
    }

    /// Finishes the intervals that end at or before `now_ns`, in ns since the start of the run.
    pub fn advance(&mut self, now_ns: u64) {
        // After the last interval, the rest of the run is collected in one that is never finished.
        while self.slots.len() < SLOTS_MAX && (self.slot_index + 1) * SLOT_NS <= now_ns {
            let slot = Slot {
                at_ms: self.slot_index * SLOT_MS,
                reads: self.reads.take_slot(),
                writes: self.writes.take_slot(),
                dropped: std::mem::take(&mut self.slot_dropped),
            };
            self.slots.push(slot);
            self.slot_index += 1;
        }
    }

    /// Ends the measurement at `now_ns`, in ns since the start of the run: finishes the last interval, and counts a
    /// silence that lasts until then.
    pub fn finish(&mut self, now_ns: u64) {
        self.advance(now_ns.next_multiple_of(SLOT_NS));
        for side in [&mut self.reads, &mut self.writes] {
            if side.tally.total() > 0 {
                side.quiet.answered(now_ns);
            }
        }
    }

    /// Returns the finished intervals in order of time.
    #[must_use]
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Returns the number of reads and scans that have ended, by outcome.
    #[must_use]
    pub fn reads(&self) -> Tally {
        self.reads.tally
    }

    /// Returns the number of inserts, updates and deletes that have ended, by outcome.
    #[must_use]
    pub fn writes(&self) -> Tally {
        self.writes.tally
    }

    /// Returns the number of operations of the run that were due and not sent.
    #[must_use]
    pub fn dropped_total(&self) -> u64 {
        self.dropped
    }

    /// Returns the longest silence so far of reads and scans, and that of writes; one that still lasts is not
    /// included.
    #[must_use]
    pub fn silences(&self) -> (Silence, Silence) {
        (self.reads.quiet.silence(), self.writes.quiet.silence())
    }

    /// Returns the measurements of each kind of operation that occurred.
    #[must_use]
    pub fn kinds(&self) -> Vec<KindReport> {
        Kind::ALL
            .into_iter()
            .map(|kind| (kind, &self.kinds[kind as usize]))
            .filter(|(_, (tally, _))| tally.total() > 0)
            .map(|(kind, (tally, us))| KindReport { kind, tally: *tally, latency: Latency::of(us) })
            .collect()
    }

    /// Returns the latencies of all reads and scans, and those of all writes.
    #[must_use]
    pub fn latencies(&self) -> (Latency, Latency) {
        let (mut reads, mut writes) = (histogram(), histogram());
        for kind in Kind::ALL {
            let side = if kind.writes() { &mut writes } else { &mut reads };
            side.add(&self.kinds[kind as usize].1).expect("all histograms have the same bounds");
        }
        (Latency::of(&reads), Latency::of(&writes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn an_operation_counts_in_the_interval_in_which_it_ended() {
        let mut timeline = Timeline::new();
        timeline.ended(Kind::Read, Fate::Acked, 90 * MS, 110 * MS);
        timeline.ended(Kind::Update, Fate::Refused, 100 * MS, 350 * MS);
        timeline.finish(360 * MS);
        let slots = timeline.slots();
        assert_eq!(slots.iter().map(|slot| slot.at_ms).collect::<Vec<_>>(), [0, 100, 200, 300]);
        assert_eq!(slots[1].reads.tally, Tally { ok: 1, not_found: 0, failed: 0 });
        assert_eq!(slots[3].writes.tally, Tally { ok: 0, not_found: 0, failed: 1 });
        assert!(slots[1].reads.max_us.abs_diff(20_000) < 100);
    }

    #[test]
    fn latency_counts_from_when_the_operation_was_due() {
        let mut timeline = Timeline::new();
        timeline.ended(Kind::Read, Fate::Acked, 0, 2000 * MS);
        assert!(timeline.latencies().0.max_us.abs_diff(2_000_000) < 2000);
    }

    #[test]
    fn the_longest_silence_is_found_between_answers() {
        let mut timeline = Timeline::new();
        for (fate, at) in [(Fate::Acked, 10), (Fate::Refused, 30), (Fate::NotFound, 60)] {
            timeline.ended(Kind::Update, fate, at * MS, at * MS);
        }
        timeline.finish(70 * MS);
        let (_, writes) = timeline.silences();
        assert_eq!(writes, Silence { from_ms: 10, lasted_us: 50_000 });
    }

    #[test]
    fn a_silence_may_last_until_the_end() {
        let mut timeline = Timeline::new();
        timeline.ended(Kind::Read, Fate::Acked, 0, 10 * MS);
        timeline.finish(500 * MS);
        let (reads, _) = timeline.silences();
        assert_eq!(reads, Silence { from_ms: 10, lasted_us: 490_000 });
    }

    #[test]
    fn dropped_operations_are_counted_where_they_were_due() {
        let mut timeline = Timeline::new();
        timeline.dropped(150 * MS);
        timeline.finish(200 * MS);
        assert_eq!(timeline.slots()[1].dropped, 1);
        assert_eq!(timeline.dropped_total(), 1);
    }
}
