//! An adaptable damped reservoir: a sample of a stream, in which recent items count for more.
//!
//! After Bailis et al., "MacroBase: Prioritizing Attention in Fast Data" (SIGMOD 2017), which MorphoSys uses (§5.1):
//! each item enters with the probability of the reservoir's size over the weight of the stream so far, and the weight
//! is damped by time and not by the number of items. Items older than the window leave in any case, so that a workload
//! that is over is forgotten also where few items follow it.
//!
//! Random numbers are parameters: one from 0 up to 1 for each item that is offered.

use std::collections::VecDeque;

/// An item with the time at which it was taken, in ms.
#[derive(Clone, Debug, PartialEq)]
struct Entry<T> {
    at_ms: u64,
    item: T,
}

/// A random sample of a stream of items, in which recent items count for more.
#[derive(Clone, Debug)]
pub struct Reservoir<T> {
    size: usize,
    window_ms: u64,
    /// Share (0..1) of the stream's weight that is left after a window has passed.
    weight_retained_per_window: f64,
    entries: Vec<Entry<T>>,
    weight: f64,
    damped_at_ms: u64,
    /// Number of items offered in each tenth of the window, each after the number of that tenth since time 0; the
    /// newest last.
    offered: VecDeque<(u64, u64)>,
}

/// Number of parts of the window in which offered items are counted.
const PARTS: u64 = 10;

impl<T> Reservoir<T> {
    /// Creates an empty reservoir of at most `size` items, which are at most `window_ms` ms old.
    ///
    /// # Panics
    /// If `size` is 0, or `window_ms` less than 10.
    #[must_use]
    pub fn new(size: usize, window_ms: u64) -> Self {
        assert!(size > 0 && window_ms >= PARTS, "a reservoir of nothing");
        Self {
            size,
            window_ms,
            weight_retained_per_window: 0.2,
            entries: Vec::with_capacity(size),
            weight: 0.0,
            damped_at_ms: 0,
            offered: VecDeque::new(),
        }
    }

    /// Offers an item that was observed at `at_ms` and stands for `count` items of the stream; `chance` is a random
    /// number from 0 up to 1. The item is made only if the reservoir takes it.
    pub fn offer(&mut self, at_ms: u64, count: u64, chance: f64, item: impl FnOnce() -> T) {
        self.pass(at_ms);
        self.weight += 1.0;
        let part = at_ms / (self.window_ms / PARTS);
        match self.offered.back_mut() {
            // A clock that went back does not open a part before the newest.
            Some((newest, offered)) if *newest >= part => *offered += count,
            _ => self.offered.push_back((part, count)),
        }
        if self.entries.len() < self.size {
            self.entries.push(Entry { at_ms, item: item() });
            return;
        }
        // One number decides whether the item is taken, and which item it replaces.
        let place = chance * self.weight.max(self.size as f64);
        if place < self.size as f64 {
            self.entries[place as usize] = Entry { at_ms, item: item() };
        }
    }

    /// Advances the time to `now_ms`: damps the weight of the stream, and drops the items that are older than the
    /// window.
    pub fn pass(&mut self, now_ms: u64) {
        if now_ms <= self.damped_at_ms {
            return;
        }
        let passed = (now_ms - self.damped_at_ms) as f64 / self.window_ms as f64;
        self.weight *= self.weight_retained_per_window.powf(passed);
        self.damped_at_ms = now_ms;
        let oldest = now_ms.saturating_sub(self.window_ms);
        self.entries.retain(|entry| entry.at_ms >= oldest);
        let first = oldest / (self.window_ms / PARTS);
        while self.offered.front().is_some_and(|(part, _)| *part <= first) {
            self.offered.pop_front();
        }
    }

    /// Returns the items in no order, with the times at which they were taken, in ms.
    pub fn samples(&self) -> impl ExactSizeIterator<Item = (u64, &T)> {
        self.entries.iter().map(|entry| (entry.at_ms, &entry.item))
    }

    /// Returns the number of items per second that the stream had over the window, those that offered items stand for
    /// included.
    #[must_use]
    pub fn rate_s(&self) -> f64 {
        let (Some((first, _)), Some((last, _))) = (self.offered.front(), self.offered.back())
        else {
            return 0.0;
        };
        let offered = self.offered.iter().map(|(_, offered)| offered).sum::<u64>();
        let parts = (last - first + 1) as f64;
        offered as f64 / (parts * (self.window_ms / PARTS) as f64 / 1_000.0)
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;

    fn offered(reservoir: &mut Reservoir<u64>, items: impl Iterator<Item = (u64, u64)>, seed: u64) {
        let mut dice = StdRng::seed_from_u64(seed);
        for (at_ms, item) in items {
            let chance = dice.random::<f64>();
            reservoir.offer(at_ms, 1, chance, || item);
        }
    }

    #[test]
    fn a_steady_stream_is_sampled_evenly_within_the_window() {
        // 50,000 orders over ten seconds; a window of four.
        let mut reservoir = Reservoir::new(1_000, 4_000);
        offered(&mut reservoir, (0..50_000).map(|n| (n / 5, n)), 7);
        assert_eq!(reservoir.samples().len(), 1_000);
        assert!(reservoir.samples().all(|(at_ms, _)| at_ms >= 5_999));
        let late = reservoir.samples().filter(|(at_ms, _)| *at_ms >= 8_000).count();
        assert!((500..800).contains(&late), "the recent half counts for more: {late} of 1000");
        assert!((4_500.0..5_500.0).contains(&reservoir.rate_s()), "{}", reservoir.rate_s());
    }

    #[test]
    fn a_workload_that_is_over_is_forgotten_in_a_window() {
        let mut reservoir = Reservoir::new(200, 2_000);
        offered(&mut reservoir, (0..100_000).map(|n| (n / 50, 1)), 3);
        // The next one is a hundred times slower.
        offered(&mut reservoir, (0..1_000).map(|n| (2_000 + n * 2, 2)), 4);
        let of_the_old = reservoir.samples().filter(|(_, item)| **item == 1).count();
        assert!(of_the_old <= 10, "{of_the_old} are left");
        reservoir.pass(60_000);
        assert_eq!((reservoir.samples().len(), reservoir.rate_s()), (0, 0.0));
    }

    #[test]
    fn a_clock_that_jumps_breaks_nothing() {
        let mut reservoir = Reservoir::new(10, 1_000);
        for at_ms in [5_000, 100, 5_001, u64::MAX / 2, 7, u64::MAX / 2 + 1] {
            reservoir.offer(at_ms, 1, 0.5, || at_ms);
            assert!(reservoir.rate_s().is_finite());
        }
        assert!(reservoir.samples().len() <= 10);
    }
}
