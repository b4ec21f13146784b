//! The forecast for a batch queue: the waiting jobs and their workloads are known (SOPHIA, §5).

use super::{Chances, Forecast};
use crate::tune::workload::{Interval, Mix};

/// A forecast by a schedule of intervals, such as a batch queue; it has no prediction beyond the last scheduled
/// interval.
#[derive(Clone, Debug)]
pub struct Queue {
    /// The scheduled intervals, in the order of their starts.
    scheduled: Vec<Interval>,
    /// Start of the last observed interval, in seconds since 1970.
    last_s: Option<u64>,
    /// The last observed mix.
    last: Option<Mix>,
}

impl Queue {
    /// Creates a forecast from scheduled intervals, which may be in any order.
    #[must_use]
    pub fn new(mut scheduled: Vec<Interval>) -> Self {
        scheduled.sort_by_key(|interval| interval.start_s);
        Self { scheduled, last_s: None, last: None }
    }

    /// Returns the scheduled intervals up to the last observed time, and the next `intervals` ones; `None` if there
    /// are fewer, or nothing was observed.
    fn coming(&self, intervals: usize) -> Option<(&[Interval], &[Interval])> {
        let last_s = self.last_s?;
        let from = self.scheduled.partition_point(|interval| interval.start_s <= last_s);
        let (past, coming) = self.scheduled.split_at(from);
        Some((past, coming.get(..intervals)?))
    }
}

impl Forecast for Queue {
    fn name(&self) -> &'static str {
        "job queue"
    }

    fn observe(&mut self, seen: &Interval) {
        self.last_s = Some(seen.start_s);
        self.last = seen.mix.or(self.last);
    }

    fn ahead(&self, intervals: usize) -> Option<Vec<Chances>> {
        let (past, coming) = self.coming(intervals)?;
        // An interval without jobs has no operations, so any mix is correct: the one before is used.
        let mut mix = past.iter().rev().find_map(|interval| interval.mix).or(self.last);
        let of = |interval: &Interval| -> Option<Chances> {
            mix = interval.mix.or(mix);
            mix.map(|mix: Mix| vec![(1.0, mix)])
        };
        coming.iter().map(of).collect()
    }

    fn rates_ahead(&self, intervals: usize) -> Option<Vec<f64>> {
        let (_, coming) = self.coming(intervals)?;
        Some(coming.iter().map(|interval| interval.rate_s.unwrap_or(0.0)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_begins_idle_has_the_mix_that_was_seen_before() {
        let of = |n: u64, mix, rate_s| Interval { start_s: 1_600_000_000 + n * 20, mix, rate_s };
        let jobs = Some(Mix::of_reads(0.9));
        let mut queue = Queue::new(vec![of(1, None, Some(0.0)), of(2, jobs, Some(3_000.0))]);
        queue.observe(&of(0, Some(Mix::of_reads(0.2)), Some(700.0)));
        let ahead = queue.ahead(2).unwrap();
        assert_eq!(ahead[0], [(1.0, Mix::of_reads(0.2))]);
        assert_eq!(queue.rates_ahead(2), Some(vec![0.0, 3_000.0]));
    }

    #[test]
    fn what_is_scheduled_is_known_as_far_as_it_reaches() {
        let interval = |n: u64, reads: Option<f64>| Interval {
            start_s: 1_600_000_000 + n * 20,
            mix: reads.map(Mix::of_reads),
            rate_s: Some(3_000.0),
        };
        let scheduled = [Some(0.0), Some(0.9), None, Some(0.05)];
        let scheduled: Vec<Interval> =
            (0..).zip(scheduled).map(|(n, reads)| interval(n, reads)).collect();
        let mut queue = Queue::new(scheduled.clone());
        assert_eq!(queue.ahead(1), None);
        queue.observe(&scheduled[0]);
        let said = queue.ahead(3).unwrap();
        let reads: Vec<f64> = said.iter().map(|chances| chances[0].1.shares()[0]).collect();
        assert_eq!(reads, [0.9, 0.9, 0.05]);
        assert_eq!(queue.rates_ahead(2), Some(vec![3_000.0; 2]));
        assert_eq!(queue.ahead(4), None, "nothing is known of what comes behind");
    }
}
