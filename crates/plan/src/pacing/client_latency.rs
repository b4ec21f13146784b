//! Controls the rate of background work next to client traffic, from measured latencies of clients' requests.
//!
//! As in TCP, the rate grows while replies are about as fast as without the work, and shrinks by a
//! quarter when they are slower than tolerated. So it oscillates around the rate at which clients
//! begin to notice, and follows it when the load changes.
//!
//! The growth depends on the known limit. Until a limit was found, the rate doubles while clients
//! notice nothing at all, and otherwise grows by a quarter. Below a known limit it also grows by a
//! quarter, near it by a tenth; once the rate is well above the limit, the limit is forgotten. One
//! window in five misleads, so a single slow window is no limit yet. If the next one is fast, the
//! rate returns at once to its former value; only a second slow window in a row, or one at that
//! same rate, establishes the limit.
//!
//! The latency without the work drifts too: with the time of day, the cache, and other users of the
//! machine. So the work pauses repeatedly, and adjacent periods with and without it are compared
//! ([`BaselineLatencies`]).
//!
//! Only the tail is compared: the mean excess of replies over the usual latency. Work makes most
//! replies no slower, and even faster where it keeps processors awake, long after the slowest
//! hundredth suffers. A high percentile alone would be mostly chance in a window of a few hundred
//! replies.
//!
//! Invariants: the rate stays within [`Bounds`], so the work always continues; it never grows after
//! a slow window, and never shrinks after a fast one.

pub mod clients;

use std::collections::VecDeque;

/// Limits on the rate of background work, in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Lowest rate, in bytes per second; a lower one would make no progress.
    pub least_s: u64,
    /// Highest rate, in bytes per second; a higher one would be no limit.
    pub most_s: u64,
}

/// A controller of the rate of background work, which adapts the rate to measured client latencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    bounds: Bounds,
    rate_s: u64,
    /// Rate of work at which replies to clients were last found to be slow, in bytes per second; `None` while no such
    /// limit is known.
    limit_s: Option<u64>,
    evidence: LimitEvidence,
}

/// The interpretation of recent windows in which clients were slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LimitEvidence {
    /// No window was slow since the limit was last found or passed.
    None,
    /// The last window was slow at this rate, in bytes per second: by chance, or because of the
    /// limit.
    SlowOnce(u64),
    /// The rate returned to one at which a window was slow. If the next window is slow, that rate
    /// is the limit.
    Retried,
}

/// Comparison of the reply times of clients with and without the background work: the mean excess over the usual
/// latency (the 95th percentile without the work), averaged over all replies, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Mean excess of replies during the work, in nanoseconds.
    pub with_ns: u64,
    /// Mean excess of replies while the work pauses, in nanoseconds.
    pub without_ns: u64,
}

/// Smallest significant difference of two mean excesses, in nanoseconds. Smaller differences are due to the scheduler,
/// not to load.
const NOISE_NS: u64 = 10_000;

impl Window {
    /// Returns true if the tail of reply times with the work is longer than `tolerated_percent` of the tail without
    /// it, and the difference exceeds scheduler noise. In a window of two hundred replies, chance alone makes the tail
    /// longer by half one time in five.
    ///
    /// # Panics
    ///
    /// If `tolerated_percent` is below 100.
    #[must_use]
    pub fn is_slow(&self, tolerated_percent: u32) -> bool {
        assert!(tolerated_percent >= 100, "no work makes clients faster");
        let more = u128::from(self.without_ns) * u128::from(tolerated_percent - 100) / 100;
        let more = u64::try_from(more).unwrap_or(u64::MAX);
        self.with_ns > self.without_ns.saturating_add(more.max(NOISE_NS))
    }

    /// Returns true if clients do not notice the background work at all.
    fn is_free(&self) -> bool {
        self.with_ns <= self.without_ns + (self.without_ns / 8).max(NOISE_NS)
    }
}

/// Default of the tolerated slowdown of clients, in percent of the tail without the work.
pub const SLOWDOWN_PERCENT_DEFAULT: u32 = 150;

/// The most recent reply times of clients while the background work pauses, in microseconds.
#[derive(Clone, Debug, Default)]
pub struct BaselineLatencies {
    answers_us: VecDeque<u64>,
}

/// Limit on the number of reply times that are retained: enough for a tail, few enough to follow a drift.
const BASELINE_REPLIES_MAX: usize = 600;
/// Percentile of reply times that counts as the usual latency, in percent.
const MOST_PERCENT: usize = 95;

impl BaselineLatencies {
    /// Returns true if no reply time without the work is known yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.answers_us.is_empty()
    }

    /// Adds reply times without the work, in microseconds, and drops the oldest ones beyond a limit.
    pub fn add(&mut self, answers_us: &[u64]) {
        self.answers_us.extend(answers_us);
        let over = self.answers_us.len().saturating_sub(BASELINE_REPLIES_MAX);
        self.answers_us.drain(..over);
    }

    /// Compares the reply times `with_us` during the work, in microseconds, with the retained ones without it. Returns
    /// `None` if there are no replies on either side.
    #[must_use]
    pub fn compare(&self, with_us: &[u64]) -> Option<Window> {
        let most_us = percentile(&mut self.answers_us.iter().copied().collect::<Vec<_>>())?;
        let with_ns = tail_ns(most_us, with_us.iter().copied())?;
        let without_ns = tail_ns(most_us, self.answers_us.iter().copied())?;
        Some(Window { with_ns, without_ns })
    }
}

/// Returns the usual value, the [`MOST_PERCENT`]th percentile of `values`; `None` if there are no values.
fn percentile(values: &mut [u64]) -> Option<u64> {
    let at = (values.len() * MOST_PERCENT).div_ceil(100).checked_sub(1)?;
    Some(*values.select_nth_unstable(at).1)
}

/// Returns the mean excess of the reply times `answers_us` over the usual time `most_us`, in nanoseconds; `None` if
/// there are no replies. The excess of one reply is capped at twice `most_us`: a reply delayed by a checkpoint would
/// outweigh all others.
fn tail_ns(most_us: u64, answers_us: impl ExactSizeIterator<Item = u64>) -> Option<u64> {
    let count = answers_us.len() as u128;
    let beyond = answers_us.map(|took| took.saturating_sub(most_us).min(most_us.saturating_mul(2)));
    let mean = (beyond.map(u128::from).sum::<u128>() * 1_000).checked_div(count)?;
    Some(u64::try_from(mean).unwrap_or(u64::MAX))
}

impl Pace {
    /// Creates a controller that starts at a rate of `rate_s` bytes per second, clamped to the bounds.
    ///
    /// # Panics
    ///
    /// If the lower bound is zero or above the upper one.
    #[must_use]
    pub fn new(rate_s: u64, bounds: Bounds) -> Self {
        assert!((1..=bounds.most_s).contains(&bounds.least_s), "no rate within the bounds");
        let rate_s = rate_s.clamp(bounds.least_s, bounds.most_s);
        Self { bounds, rate_s, limit_s: None, evidence: LimitEvidence::None }
    }

    /// Returns the current rate of the background work, in bytes per second.
    #[must_use]
    pub fn rate_s(&self) -> u64 {
        self.rate_s
    }

    /// Returns the controller with its rate adapted to another window `seen`, if clients tolerate a tail of reply
    /// times of `tolerated_percent` percent of that without the work.
    #[must_use]
    pub fn after(self, seen: Window, tolerated_percent: u32) -> Self {
        if seen.is_slow(tolerated_percent) { self.slower() } else { self.faster(seen.is_free()) }
    }

    fn slower(self) -> Self {
        let (limit_s, evidence) = match self.evidence {
            LimitEvidence::None => (self.limit_s, LimitEvidence::SlowOnce(self.rate_s)),
            LimitEvidence::SlowOnce(_) | LimitEvidence::Retried => {
                (Some(self.rate_s), LimitEvidence::None)
            }
        };
        Self { limit_s, evidence, ..self.at(self.rate_s - self.rate_s / 4) }
    }

    fn faster(self, is_free: bool) -> Self {
        if let LimitEvidence::SlowOnce(rate_s) = self.evidence {
            return Self { evidence: LimitEvidence::Retried, ..self.at(rate_s) };
        }
        let limit_s =
            self.limit_s.filter(|limit_s| self.rate_s < limit_s.saturating_add(limit_s / 5));
        let quarter_s = self.rate_s / 4;
        let more_s = match limit_s {
            None if is_free => self.rate_s,
            Some(limit_s) if self.rate_s.saturating_add(quarter_s) > limit_s => self.rate_s / 10,
            _ => quarter_s,
        };
        let rate_s = self.rate_s.saturating_add(more_s.max(1));
        Self { limit_s, evidence: LimitEvidence::None, ..self.at(rate_s) }
    }

    fn at(self, rate_s: u64) -> Self {
        Self { rate_s: rate_s.clamp(self.bounds.least_s, self.bounds.most_s), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOUNDS: Bounds = Bounds { least_s: 100, most_s: 1_000_000 };

    /// Servers whose answers' tail is longer the more work they are given, beyond `free_s`.
    fn tail_ns_at(rate_s: u64, free_s: u64) -> u64 {
        100_000 + 100 * rate_s.saturating_sub(free_s)
    }

    #[test]
    fn it_swings_about_what_clients_bear() {
        let free_s = 20_000;
        let mut pace = Pace::new(BOUNDS.most_s, BOUNDS);
        let rates: Vec<u64> = (0..300)
            .map(|_| {
                let with_ns = tail_ns_at(pace.rate_s(), free_s);
                pace =
                    pace.after(Window { with_ns, without_ns: 100_000 }, SLOWDOWN_PERCENT_DEFAULT);
                pace.rate_s()
            })
            .collect();
        let bearable_s = free_s + 500;
        for rate_s in &rates[50..] {
            assert!((bearable_s * 3 / 4 - 1..=bearable_s * 11 / 10).contains(rate_s), "{rate_s}");
        }
    }

    /// The share of the room that a work of so many looks uses, where a look in five is slow by
    /// chance.
    fn used(seed: u64, looks: u64) -> f64 {
        let room_s = 200_000_000;
        let bounds = Bounds { least_s: 1_000_000, most_s: 1_000_000_000 };
        let mut pace = Pace::new(2_000_000, bounds);
        let mut chance = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let moved: u64 = (0..looks)
            .map(|_| {
                chance ^= chance << 13;
                chance ^= chance >> 7;
                chance ^= chance << 17;
                let with_ns = if chance.is_multiple_of(5) { 200_000 } else { 100_000 };
                let moved = pace.rate_s().min(room_s);
                pace =
                    pace.after(Window { with_ns, without_ns: 100_000 }, SLOWDOWN_PERCENT_DEFAULT);
                moved
            })
            .sum();
        moved as f64 / (looks * room_s) as f64
    }

    #[test]
    fn where_there_is_room_chance_does_not_keep_the_work_slow() {
        // Of two and of five minutes, by looks of three seconds.
        let mean = |looks| (0..200).map(|seed| used(seed, looks)).sum::<f64>() / 200.0;
        assert!(mean(40) > 0.6, "{}", mean(40));
        assert!(mean(100) > 0.8, "{}", mean(100));
        let least = (0..200).map(|seed| used(seed, 100)).fold(1.0, f64::min);
        assert!(least > 0.5, "{least}");
    }

    #[test]
    fn what_clients_bear_can_be_said() {
        let seen = Window { with_ns: 180_000, without_ns: 100_000 };
        assert!(seen.is_slow(150) && !seen.is_slow(180) && seen.is_slow(179));
    }

    /// A thousand answers of 400 to 600 us, and `late` of a thousand that took `late_us`.
    fn answers(late: usize, late_us: u64) -> Vec<u64> {
        (0..1_000).map(|n| if n % 1_000 < late { late_us } else { 400 + n as u64 % 200 }).collect()
    }

    fn beside(still: &[u64], with: &[u64]) -> Window {
        let mut before = BaselineLatencies::default();
        before.add(still);
        before.compare(with).unwrap()
    }

    #[test]
    fn only_the_tail_counts() {
        let still = answers(20, 1_000);
        assert!(!beside(&still, &still).is_slow(SLOWDOWN_PERCENT_DEFAULT));
        let quicker: Vec<u64> =
            still.iter().map(|us| if *us < 900 { us / 2 } else { *us }).collect();
        assert!(!beside(&still, &quicker).is_slow(SLOWDOWN_PERCENT_DEFAULT));
        assert!(
            beside(&still, &answers(60, 1_000)).is_slow(SLOWDOWN_PERCENT_DEFAULT),
            "more are late"
        );
        assert!(
            beside(&answers(40, 800), &answers(40, 1_300)).is_slow(SLOWDOWN_PERCENT_DEFAULT),
            "they are later"
        );
        let quicker_but: Vec<u64> =
            answers(60, 1_000).iter().map(|us| if *us < 900 { us / 2 } else { *us }).collect();
        assert!(beside(&still, &quicker_but).is_slow(SLOWDOWN_PERCENT_DEFAULT));
    }

    #[test]
    fn a_stall_is_no_more_than_late() {
        let mut with = answers(20, 1_000);
        with[500] = 1_000_000;
        assert!(!beside(&answers(20, 1_000), &with).is_slow(SLOWDOWN_PERCENT_DEFAULT));
    }

    #[test]
    fn without_answers_nothing_is_known() {
        let mut still = BaselineLatencies::default();
        assert_eq!(still.compare(&[1]), None);
        still.add(&[1]);
        assert_eq!(still.compare(&[]), None);
        assert_eq!(still.compare(&[2]), Some(Window { with_ns: 1_000, without_ns: 0 }));
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let mut still = BaselineLatencies::default();
        still.add(&[10; BASELINE_REPLIES_MAX]);
        still.add(&[1_000; BASELINE_REPLIES_MAX]);
        assert_eq!(still.compare(&[1_000]), Some(Window { with_ns: 0, without_ns: 0 }));
    }

    proptest! {
        #[test]
        fn it_stays_within_its_bounds_and_goes_the_right_way(
            rate_s: u64, windows in prop::collection::vec((0..1_000_000_u64, 0..1_000_000_u64), 1..50),
        ) {
            let mut pace = Pace::new(rate_s, BOUNDS);
            for (with_ns, without_ns) in windows {
                let seen = Window { with_ns, without_ns };
                let before = pace.rate_s();
                pace = pace.after(seen, SLOWDOWN_PERCENT_DEFAULT);
                prop_assert!((BOUNDS.least_s..=BOUNDS.most_s).contains(&pace.rate_s()));
                if seen.is_slow(SLOWDOWN_PERCENT_DEFAULT) {
                    prop_assert!(pace.rate_s() < before || before == BOUNDS.least_s);
                } else {
                    prop_assert!(pace.rate_s() > before || before == BOUNDS.most_s);
                }
            }
        }

        #[test]
        fn what_most_take_is_where_a_sorted_list_has_it(
            mut values in prop::collection::vec(0..100_u64, 1..60),
        ) {
            let found = percentile(&mut values.clone()).unwrap();
            values.sort_unstable();
            let up_to = values.iter().filter(|value| **value <= found).count();
            let below = values.iter().filter(|value| **value < found).count();
            prop_assert!(up_to * 100 >= values.len() * MOST_PERCENT);
            prop_assert!(below * 100 < values.len() * MOST_PERCENT);
        }
    }
}
