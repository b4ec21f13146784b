//! A cache that evicts as Redis 7 does under `allkeys-lru` and `allkeys-lfu`.
//!
//! While the cache exceeds its capacity, some entries are sampled and offered to a pool of sixteen candidates ordered
//! by rank: the time since the last use, or 255 minus the use counter. The candidate with the highest rank is evicted.
//! The others stay in the pool with their rank, until they are evicted, displaced by higher ranks, or found to be gone.
//! A candidate that is used meanwhile retains its old rank, as in Redis, and so may be evicted although it was used.
//!
//! Redis records the time of use in seconds: entries that were used in the same second are equally old, and a job that passes
//! over its keys in a second evicts at random. Redis samples entries from neighbouring places of its hash table, which is as
//! good as random; here they are sampled at random, without repetition.
//!
//! Invariant: `place_of` holds the index of each entry, and `used` is the sum of their bytes.

use rand::{Rng, RngExt as _};

use super::Policy;
use crate::provision::reuse::Reference;
use crate::provision::reuse::hashed::KeyMap;

/// Limit on the number of candidates in the eviction pool.
const POOL: usize = 16;
/// Use counter of a new entry under `allkeys-lfu`.
const LFU_START: u8 = 5;

/// A simulated Redis cache that evicts entries by a policy.
#[derive(Debug)]
pub(super) struct Cache {
    policy: Policy,
    capacity: u64,
    /// Limit on the number of candidates in the eviction pool.
    pool_max: usize,
    entries: Vec<Entry>,
    place_of: KeyMap<u32>,
    used: u64,
    /// Candidates for eviction as (rank, key), the highest rank last.
    pool: Vec<(u64, u64)>,
    /// Indexes of the entries that were sampled last.
    drawn: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u64,
    bytes: u32,
    /// Number of uses of the entry on a logarithmic scale, for LFU.
    counter: u8,
    /// Time of the entry's last use, by the clock of the policy.
    last: u64,
}

impl Cache {
    pub(super) fn new(policy: Policy, capacity: u64) -> Self {
        Self::with_pool(policy, capacity, POOL)
    }

    pub(super) fn with_pool(policy: Policy, capacity: u64, pool_max: usize) -> Self {
        Self {
            policy,
            capacity,
            pool_max,
            entries: Vec::new(),
            place_of: KeyMap::default(),
            used: 0,
            pool: Vec::with_capacity(pool_max + 1),
            drawn: Vec::new(),
        }
    }

    /// Returns the number of bytes that the entries use.
    pub(super) fn held_bytes(&self) -> u64 {
        self.used
    }

    /// Looks the key up and stores its entry; `time` is the number of references so far. Returns true for a hit.
    pub(super) fn refer(&mut self, reference: Reference, time: u64, rng: &mut impl Rng) -> bool {
        if self.capacity == 0 {
            return false;
        }
        let Reference { key, bytes } = reference;
        let now = self.clock(time);
        let place = self.place_of.get(&key).map(|place| *place as usize);
        match place {
            Some(place) => {
                let counter = self.counter(self.entries[place], now);
                let entry = &mut self.entries[place];
                self.used = self.used - u64::from(entry.bytes) + u64::from(bytes);
                *entry = Entry { bytes, last: now, counter, ..*entry };
                if let Policy::SampledLfu { log_factor, .. } = self.policy {
                    entry.counter = incremented(counter, log_factor, rng);
                }
            }
            None => {
                let at =
                    u32::try_from(self.entries.len()).expect("a trace has fewer than 2^32 keys");
                self.place_of.insert(key, at);
                self.entries.push(Entry { key, bytes, counter: LFU_START, last: now });
                self.used += u64::from(bytes);
            }
        }
        while self.used > self.capacity {
            self.evict(now, rng);
        }
        place.is_some()
    }

    /// Converts the number of references into the clock of the policy: seconds for LRU, minutes for LFU.
    fn clock(&self, time: u64) -> u64 {
        match self.policy {
            Policy::SampledLru { references_per_s: Some(rate), .. } => (time as f64 / rate) as u64,
            Policy::SampledLfu { references_per_s, .. } => {
                (time as f64 / (60.0 * references_per_s)) as u64
            }
            _ => time,
        }
    }

    /// Returns the use counter of an entry at the time `now`, decayed by the minutes since its last use.
    fn counter(&self, entry: Entry, now: u64) -> u8 {
        let Policy::SampledLfu { decay_minutes, .. } = self.policy else { return entry.counter };
        let passed = (now - entry.last).checked_div(decay_minutes.into()).unwrap_or(0);
        entry.counter.saturating_sub(u8::try_from(passed).unwrap_or(u8::MAX))
    }

    fn rank(&self, entry: Entry, now: u64) -> u64 {
        match self.policy {
            Policy::SampledLfu { .. } => (u8::MAX - self.counter(entry, now)).into(),
            _ => now - entry.last,
        }
    }

    /// Evicts one entry. The cache is not empty, since it exceeds its capacity.
    fn evict(&mut self, now: u64, rng: &mut impl Rng) {
        loop {
            self.offer_drawn(now, rng);
            while let Some((_, key)) = self.pool.pop() {
                // A candidate may be gone: a key may occur twice in the pool.
                if let Some(place) = self.place_of.remove(&key) {
                    let gone = self.entries.swap_remove(place as usize);
                    self.used -= u64::from(gone.bytes);
                    if let Some(moved) = self.entries.get(place as usize) {
                        self.place_of.insert(moved.key, place);
                    }
                    return;
                }
            }
        }
    }

    fn offer_drawn(&mut self, now: u64, rng: &mut impl Rng) {
        let all = self.entries.len();
        let samples = (self.policy.samples() as usize).min(all);
        self.drawn.clear();
        // One of the indices up to `last`, or `last` itself if that one is sampled already (Floyd's method: Bentley and
        // Floyd, "A sample of brilliance", CACM 1987). If all entries are sampled, they come in order.
        for last in all - samples..all {
            let place = if samples == all { last } else { rng.random_range(0..=last) };
            let place = if self.drawn.contains(&place) { last } else { place };
            self.drawn.push(place);
            self.offer(self.rank(self.entries[place], now), self.entries[place].key);
        }
    }

    /// Adds the entry of `key` to the pool of candidates, if there is room or its rank exceeds the lowest one there.
    fn offer(&mut self, rank: u64, key: u64) {
        let place = self.pool.partition_point(|(other, _)| *other < rank);
        if self.pool.len() < self.pool_max {
            self.pool.insert(place, (rank, key));
        } else if place > 0 {
            self.pool.remove(0);
            self.pool.insert(place - 1, (rank, key));
        }
    }
}

/// Returns the use counter after one more use: the higher the counter is, the less likely it grows.
fn incremented(counter: u8, log_factor: u32, rng: &mut impl Rng) -> u8 {
    let above = f64::from(counter.saturating_sub(LFU_START));
    let grows = rng.random::<f64>() < 1.0 / (above * f64::from(log_factor) + 1.0);
    counter.saturating_add(u8::from(grows))
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    use super::*;

    const LFU: Policy =
        Policy::SampledLfu { samples: 5, log_factor: 10, decay_minutes: 1, references_per_s: 50.0 };

    #[test]
    fn the_pool_keeps_the_highest_ranks_in_order() {
        let mut cache =
            Cache::new(Policy::SampledLru { samples: 5, references_per_s: None }, 1_000);
        for rank in [5, 90, 30, 70, 10, 20, 40, 60, 50, 80, 15, 25, 35, 45, 55, 65] {
            cache.offer(rank, rank);
        }
        // It is full: a low rank is refused, a higher one pushes the lowest out.
        cache.offer(4, 4);
        cache.offer(75, 75);
        let ranks: Vec<u64> = cache.pool.iter().map(|(rank, _)| *rank).collect();
        assert_eq!(ranks, [10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 90]);
    }

    #[test]
    fn places_are_drawn_evenly_and_without_repetition() {
        let mut dice = StdRng::seed_from_u64(4);
        let mut cache =
            Cache::new(Policy::SampledLru { samples: 5, references_per_s: None }, 1_000);
        for key in 0..20 {
            cache.refer(Reference { key, bytes: 10 }, key, &mut dice);
        }
        let mut counts = [0; 20];
        for _ in 0..20_000 {
            cache.offer_drawn(100, &mut dice);
            let mut drawn = cache.drawn.clone();
            drawn.sort_unstable();
            drawn.dedup();
            assert_eq!(drawn.len(), 5);
            drawn.iter().for_each(|place| counts[*place] += 1);
        }
        // 5,000 are expected; the deviation is 61.
        assert!(counts.iter().all(|count| (4_750..5_250).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_counter_grows_as_the_documentation_of_redis_says() {
        // The table in redis.conf, for a factor of 10: about 10, 18, 142 after 100, 1,000 and 100,000 hits.
        let mut dice = StdRng::seed_from_u64(8);
        let mut after = |hits: u32, log_factor| {
            let counters = (0..50).map(|_| {
                let grown = (0..hits)
                    .fold(LFU_START, |counter, _| incremented(counter, log_factor, &mut dice));
                f64::from(grown)
            });
            counters.sum::<f64>() / 50.0
        };
        assert!((8.5..11.5).contains(&after(100, 10)));
        assert!((16.0..20.5).contains(&after(1_000, 10)));
        assert!((135.0..150.0).contains(&after(100_000, 10)));
        assert_eq!(after(1_000, 0), 255.0);
    }

    #[test]
    fn an_unused_counter_falls_by_one_each_minute() {
        let cache = Cache::new(LFU, 1_000);
        let entry = Entry { key: 1, bytes: 10, counter: 7, last: 3 };
        let counters = [3, 4, 9, 10, 1_000].map(|now| cache.counter(entry, now));
        assert_eq!(counters, [7, 6, 1, 0, 0]);
        assert_eq!([2_999, 3_000, 16_500].map(|time| cache.clock(time)), [0, 1, 5]);
        let lru = Policy::SampledLru { samples: 5, references_per_s: Some(250.0) };
        assert_eq!([249, 250, 1_100].map(|time| Cache::new(lru, 1_000).clock(time)), [0, 1, 4]);
        let never = Cache::new(
            Policy::SampledLfu {
                samples: 5,
                log_factor: 10,
                decay_minutes: 0,
                references_per_s: 50.0,
            },
            1_000,
        );
        assert_eq!(never.counter(entry, 1_000), 7);
    }
}
