//! The samples by which a controller judges changes, and the interval that they add up to.

use std::collections::VecDeque;

use imago_plan::tune::judge::Window;
use imago_plan::tune::workload::KINDS;

/// Maximum number of recent samples, and of intervals since the last change of which one sample is retained.
const RECENT_MAX: usize = 24;
const HISTORY_MAX: usize = 2_000;

/// The recent samples, and the counts of the interval in progress.
pub(super) struct Samples {
    /// Most recent samples since the last change, at most [`RECENT_MAX`].
    pub recent: Vec<Window>,
    /// One sample of each interval since the last change, at most [`HISTORY_MAX`].
    pub history: VecDeque<Window>,
    /// Numbers of reads, updates, inserts and scans counted in the present interval.
    counted: [u64; KINDS],
    /// Start of the present interval, in seconds since 1970.
    start_s: u64,
    /// False until the first complete interval has begun; the interval before is not observed from its start.
    is_whole: bool,
}

impl Samples {
    /// Begins with the interval that started at `start_s`, in seconds since 1970.
    pub fn new(start_s: u64) -> Self {
        let (recent, history) = (Vec::new(), VecDeque::new());
        Self { recent, history, counted: [0; KINDS], start_s, is_whole: false }
    }

    /// Drops the samples from before a change.
    pub fn clear(&mut self) {
        self.recent.clear();
        self.history.clear();
    }

    /// Adds a sample to the present interval: its numbers of operations, and its window if it is valid.
    pub fn add(&mut self, operations: [u64; KINDS], window: Option<Window>) {
        for (sum, count) in self.counted.iter_mut().zip(operations) {
            *sum += count;
        }
        self.recent.extend(window);
        if self.recent.len() > RECENT_MAX {
            self.recent.remove(0);
        }
    }

    /// Ends the present interval if the one that starts at `start_s` is later, and returns the start of the ended one
    /// and its numbers of operations. Returns `None` for the first interval, which began before the observation did.
    /// `last` is the last sample of the interval.
    ///
    /// If the clock is set back, the present interval goes on: the start times of intervals must increase.
    pub fn end_interval(
        &mut self,
        start_s: u64,
        last: Option<Window>,
    ) -> Option<(u64, [u64; KINDS])> {
        if start_s <= self.start_s {
            return None;
        }
        // One sample of each interval is retained longer: a change under low load is judged by samples under high
        // load.
        self.history.extend(last);
        if self.history.len() > HISTORY_MAX {
            self.history.pop_front();
        }
        let ended = (self.start_s, std::mem::take(&mut self.counted));
        self.start_s = start_s;
        std::mem::replace(&mut self.is_whole, true).then_some(ended)
    }
}

#[cfg(test)]
mod tests {
    use imago_plan::tune::workload::Mix;

    use super::*;

    #[test]
    fn the_first_interval_is_not_reported_and_time_never_goes_back() {
        let mut samples = Samples::new(1_795_929_600);
        samples.add([8_137, 411, 7, 0], None);
        assert_eq!(samples.end_interval(1_795_929_600, None), None, "it goes on");
        assert_eq!(samples.end_interval(1_795_929_660, None), None, "it began earlier");
        samples.add([7_990, 402, 3, 1], None);
        samples.add([10, 0, 0, 0], None);
        assert_eq!(samples.end_interval(1_795_929_540, None), None, "the clock was set back");
        let ended = samples.end_interval(1_795_929_780, None);
        assert_eq!(ended, Some((1_795_929_660, [8_000, 402, 3, 1])));
    }

    #[test]
    fn the_latest_samples_are_retained() {
        let window = |rate_s: u16| Window {
            mix: Mix::of([8_137.0, 411.0, 7.0, 0.0]).unwrap(),
            rate_s: f64::from(rate_s),
            median: [None; KINDS],
            slowest: [None; KINDS],
            memory: None,
        };
        let mut samples = Samples::new(1_795_929_600);
        for number in 0..100 {
            samples.add([1, 0, 0, 0], Some(window(number)));
        }
        assert_eq!(samples.recent.len(), RECENT_MAX);
        assert_eq!(samples.recent.last(), Some(&window(99)));
        samples.clear();
        assert!(samples.recent.is_empty());
    }
}
