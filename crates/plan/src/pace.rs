//! How fast work that can wait may go beside clients that cannot: a rate from what a watch saw.
//!
//! The idea is TCP's. While answers come about as fast as they did without the work, the rate grows,
//! by a quarter until they were slow for the first time, and by a tenth from then on; when they come
//! slower than is tolerated, it shrinks by a quarter. So it swings about the rate at which clients
//! just begin to notice, wherever that is, and follows it when the load changes. A look errs now and
//! then: the rate still grows while no more than one of four does.
//!
//! Invariants: the rate stays between [`Bounds`], so that the work always goes on; it never grows
//! after a slow window, and never shrinks after a fast one.

use std::time::Duration;

/// Between which rates it stays, in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Slower would be no progress.
    pub least_s: u64,
    /// Faster would be no limit.
    pub most_s: u64,
}

/// A rate that follows what is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    bounds: Bounds,
    rate_s: u64,
    was_slow: bool,
}

/// How long answers took in a while, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// With the work.
    pub with_us: u64,
    /// Without it.
    pub without_us: u64,
}

/// Below this, differences are those of a scheduler and not of a load, in microseconds.
const NOISE_US: u64 = 100;

impl Window {
    /// Whether answers take longer than clients bear: a sixth more than without the work, and more
    /// than chance. So little, because the slowest hundredth suffers several times as much.
    #[must_use]
    pub fn is_slow(&self) -> bool {
        self.with_us > self.without_us + (self.without_us / 6).max(NOISE_US)
    }
}

impl Pace {
    /// Begins at `rate_s` bytes per second.
    ///
    /// # Panics
    ///
    /// If the bounds leave no rate, or one of zero.
    #[must_use]
    pub fn new(rate_s: u64, bounds: Bounds) -> Self {
        assert!((1..=bounds.most_s).contains(&bounds.least_s), "no rate within the bounds");
        let rate_s = rate_s.clamp(bounds.least_s, bounds.most_s);
        Self { bounds, rate_s, was_slow: false }
    }

    /// Bytes per second.
    #[must_use]
    pub fn rate_s(&self) -> u64 {
        self.rate_s
    }

    /// The rate after another window.
    #[must_use]
    pub fn after(self, seen: Window) -> Self {
        let was_slow = self.was_slow || seen.is_slow();
        let rate_s = if seen.is_slow() {
            self.rate_s - self.rate_s / 4
        } else {
            let part = if was_slow { 10 } else { 4 };
            self.rate_s.saturating_add((self.rate_s / part).max(1))
        };
        Self { was_slow, ..Self::new(rate_s, self.bounds) }
    }
}

/// How long to rest after a piece of work that took `took`, when `left` more like it wait and new
/// ones come: three times as long, so that clients have the servers to themselves most of the time,
/// but not longer than lets all of them be done `within`.
#[must_use]
pub fn rest(took: Duration, left: u32, within: Duration) -> Duration {
    let each = within / left.max(1);
    (took * RESTS).min(each.saturating_sub(took))
}

/// See [`rest`].
const RESTS: u32 = 3;

/// The `percent`-th percentile: the least of `values` that so many percent of them do not exceed;
/// nothing of nothing.
pub fn percentile(values: &mut [u64], percent: usize) -> Option<u64> {
    let at = (values.len() * percent).div_ceil(100).max(1) - 1;
    (at < values.len()).then(|| *values.select_nth_unstable(at).1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOUNDS: Bounds = Bounds { least_s: 100, most_s: 1_000_000 };

    /// Servers whose answers take longer the more work they are given: by `per_byte_s` microseconds
    /// for each byte per second beyond `free_s`.
    fn answer_us(rate_s: u64, free_s: u64) -> u64 {
        1_000 + rate_s.saturating_sub(free_s)
    }

    #[test]
    fn it_swings_about_what_clients_bear() {
        let free_s = 20_000;
        let mut pace = Pace::new(BOUNDS.most_s, BOUNDS);
        let rates: Vec<u64> = (0..300)
            .map(|_| {
                let with_us = answer_us(pace.rate_s(), free_s);
                pace = pace.after(Window { with_us, without_us: 1_000 });
                pace.rate_s()
            })
            .collect();
        let bearable_s = free_s + 166;
        for rate_s in &rates[50..] {
            assert!((bearable_s * 3 / 4 - 1..=bearable_s * 11 / 10).contains(rate_s), "{rate_s}");
        }
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        assert_eq!(percentile(&mut [], 50), None);
        assert_eq!(percentile(&mut [3, 1, 2], 50), Some(2));
        assert_eq!(percentile(&mut [3, 1, 2], 100), Some(3));
        assert_eq!(percentile(&mut [3, 1, 2], 0), Some(1));
    }

    proptest! {
        #[test]
        fn it_stays_within_its_bounds_and_goes_the_right_way(
            rate_s: u64, windows in prop::collection::vec((0..100_000_u64, 0..100_000_u64), 1..50),
        ) {
            let mut pace = Pace::new(rate_s, BOUNDS);
            for (with_us, without_us) in windows {
                let seen = Window { with_us, without_us };
                let before = pace.rate_s();
                pace = pace.after(seen);
                prop_assert!((BOUNDS.least_s..=BOUNDS.most_s).contains(&pace.rate_s()));
                if seen.is_slow() {
                    prop_assert!(pace.rate_s() < before || before == BOUNDS.least_s);
                } else {
                    prop_assert!(pace.rate_s() > before || before == BOUNDS.most_s);
                }
            }
        }

        #[test]
        fn who_rests_is_done_in_time_if_it_can_be(took_ms in 0..200_u64, left in 0..10_000_u32) {
            let (took, within) = (Duration::from_millis(took_ms), Duration::from_secs(5));
            let rest = rest(took, left, within);
            prop_assert!(rest <= took * 3);
            prop_assert!(rest.is_zero() || (took + rest) * left <= within);
            // No longer a rest would do, and no shorter one is taken.
            prop_assert!(rest == took * 3 || (took + rest + Duration::from_millis(1)) * left > within);
        }

        #[test]
        fn a_percentile_is_where_a_sorted_list_has_it(
            mut values in prop::collection::vec(0..100_u64, 1..60), percent in 1..=100_usize,
        ) {
            let found = percentile(&mut values.clone(), percent).unwrap();
            values.sort_unstable();
            let below = values.iter().filter(|value| **value <= found).count();
            prop_assert!(below * 100 >= values.len() * percent);
            let strictly = values.iter().filter(|value| **value < found).count();
            prop_assert!(strictly * 100 < values.len() * percent);
        }
    }
}
