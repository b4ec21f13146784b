//! A cache that evicts as Redis 7 does under `allkeys-lru` and `allkeys-lfu`.
//!
//! While the cache exceeds its capacity, some entries are sampled and offered to a pool of sixteen candidates ordered
//! by rank: the time since the last use, or 255 minus the use counter. The candidate with the highest rank is evicted.
//! The others stay in the pool with their rank, until they are evicted, displaced by higher ranks, or found to be gone.
//! A candidate that is used meanwhile retains its old rank, as in Redis, and so may be evicted although it was used.
//!
//! Redis records the time of use in seconds: entries that were used in the same second are equally old, and a job that passes
//! over its keys in a second evicts those that the [`Table`] samples, which does not sample evenly.
//!
//! Invariant: `used` is the sum of the entries' bytes.

use rand::{Rng, RngExt as _};

use super::Policy;
use super::table::Table;
use crate::provision::reuse::Reference;

/// Limit on the number of candidates in the eviction pool.
const POOL: usize = 16;
/// Use counter of a new entry under `allkeys-lfu`.
const LFU_START: u8 = 5;

/// A simulated Redis cache that evicts entries by a policy.
#[derive(Debug)]
pub(super) struct Cache {
    policy: Policy,
    capacity: u64,
    entries: Table<Entry>,
    used: u64,
    pool: Pool,
}

/// The candidates for eviction as (rank, key), the highest rank last.
#[derive(Debug)]
struct Pool {
    candidates: Vec<(u64, u64)>,
    /// Limit on their number.
    max: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
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
            entries: Table::new(),
            used: 0,
            pool: Pool { candidates: Vec::with_capacity(pool_max + 1), max: pool_max },
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
        let (now, policy) = (self.clock(time), self.policy);
        let found = self.entries.get_mut(key);
        let is_hit = found.is_some();
        match found {
            Some(entry) => {
                let mut counter = decayed(policy, *entry, now);
                if let Policy::SampledLfu { log_factor, .. } = policy {
                    counter = incremented(counter, log_factor, rng);
                }
                self.used = self.used - u64::from(entry.bytes) + u64::from(bytes);
                *entry = Entry { bytes, last: now, counter };
            }
            None => {
                self.entries.insert(key, Entry { bytes, counter: LFU_START, last: now });
                self.used += u64::from(bytes);
            }
        }
        while self.used > self.capacity {
            self.evict(now, rng);
        }
        is_hit
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

    /// Evicts one entry. The cache is not empty, since it exceeds its capacity.
    fn evict(&mut self, now: u64, rng: &mut impl Rng) {
        loop {
            let (policy, pool) = (self.policy, &mut self.pool);
            self.entries.sample(policy.samples() as usize, rng, |key, entry| {
                pool.offer(rank(policy, entry, now), key);
            });
            while let Some((_, key)) = self.pool.candidates.pop() {
                // A candidate may be gone: a key may occur twice in the pool.
                if let Some(gone) = self.entries.remove(key) {
                    self.used -= u64::from(gone.bytes);
                    return;
                }
            }
        }
    }
}

impl Pool {
    /// Adds the entry of `key`, if there is room or its rank exceeds the lowest one there.
    fn offer(&mut self, rank: u64, key: u64) {
        let place = self.candidates.partition_point(|(other, _)| *other < rank);
        if self.candidates.len() < self.max {
            self.candidates.insert(place, (rank, key));
        } else if place > 0 {
            self.candidates.remove(0);
            self.candidates.insert(place - 1, (rank, key));
        }
    }
}

/// Returns the use counter of an entry at the time `now`, decayed by the minutes since its last use.
fn decayed(policy: Policy, entry: Entry, now: u64) -> u8 {
    let Policy::SampledLfu { decay_minutes, .. } = policy else { return entry.counter };
    let passed = (now - entry.last).checked_div(decay_minutes.into()).unwrap_or(0);
    entry.counter.saturating_sub(u8::try_from(passed).unwrap_or(u8::MAX))
}

/// Returns the rank of an entry among the candidates for eviction at the time `now`.
fn rank(policy: Policy, entry: Entry, now: u64) -> u64 {
    match policy {
        Policy::SampledLfu { .. } => (u8::MAX - decayed(policy, entry, now)).into(),
        _ => now - entry.last,
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
            cache.pool.offer(rank, rank);
        }
        // It is full: a low rank is refused, a higher one pushes the lowest out.
        cache.pool.offer(4, 4);
        cache.pool.offer(75, 75);
        let ranks: Vec<u64> = cache.pool.candidates.iter().map(|(rank, _)| *rank).collect();
        assert_eq!(ranks, [10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 90]);
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
        let entry = Entry { bytes: 10, counter: 7, last: 3 };
        let counters = [3, 4, 9, 10, 1_000].map(|now| decayed(LFU, entry, now));
        assert_eq!(counters, [7, 6, 1, 0, 0]);
        assert_eq!([2_999, 3_000, 16_500].map(|time| cache.clock(time)), [0, 1, 5]);
        let lru = Policy::SampledLru { samples: 5, references_per_s: Some(250.0) };
        assert_eq!([249, 250, 1_100].map(|time| Cache::new(lru, 1_000).clock(time)), [0, 1, 4]);
        let never = Policy::SampledLfu {
            samples: 5,
            log_factor: 10,
            decay_minutes: 0,
            references_per_s: 50.0,
        };
        assert_eq!(decayed(never, entry, 1_000), 7);
    }
}
