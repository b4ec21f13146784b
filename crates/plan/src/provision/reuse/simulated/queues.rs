//! Caches that keep entries in the order of their arrival: without eviction, SIEVE and S3-FIFO.
//!
//! An entry that is larger than the cache is not stored. An entry whose size changed keeps its place.
//!
//! Invariants: the entries' bytes never exceed the capacity once a reference has been served; each key is in one queue at most.

use std::collections::VecDeque;

use crate::provision::reuse::Reference;
use crate::provision::reuse::hashed::KeyMap;

/// A cache that keeps what came first.
#[derive(Debug)]
pub(super) struct First {
    capacity: u64,
    used: u64,
    entries: KeyMap<u32>,
}

impl First {
    pub(super) fn new(capacity: u64) -> Self {
        Self { capacity, used: 0, entries: KeyMap::default() }
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.used
    }

    /// Looks a key up, and stores its entry if there is room. Returns true for a hit.
    pub(super) fn refer(&mut self, Reference { key, bytes }: Reference) -> bool {
        // A hit writes nothing, so that the entry keeps the size with which it came.
        if self.entries.contains_key(&key) {
            return self.capacity > 0;
        }
        if self.used + u64::from(bytes) <= self.capacity && self.capacity > 0 {
            self.used += u64::from(bytes);
            self.entries.insert(key, bytes);
        }
        false
    }
}

/// An entry of [`Sieve`], in a list by arrival.
#[derive(Clone, Copy, Debug)]
struct Node {
    key: u64,
    bytes: u32,
    /// True if the entry was used since the hand last came by.
    was_used: bool,
    /// The entry that came next, and the one that came before; [`NONE`] at the ends.
    newer: u32,
    older: u32,
}

/// No entry.
const NONE: u32 = u32::MAX;

/// A cache that evicts by SIEVE.
#[derive(Debug)]
pub(super) struct Sieve {
    capacity: u64,
    used: u64,
    nodes: Vec<Node>,
    /// Places in `nodes` that are free.
    free: Vec<u32>,
    place_of: KeyMap<u32>,
    newest: u32,
    oldest: u32,
    /// The entry at which the search for the next eviction goes on; [`NONE`]: at the oldest.
    hand: u32,
}

impl Sieve {
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            used: 0,
            nodes: Vec::new(),
            free: Vec::new(),
            place_of: KeyMap::default(),
            newest: NONE,
            oldest: NONE,
            hand: NONE,
        }
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.used
    }

    /// Looks a key up, and stores its entry. Returns true for a hit.
    pub(super) fn refer(&mut self, Reference { key, bytes }: Reference) -> bool {
        if self.capacity == 0 {
            return false;
        }
        let place = self.place_of.get(&key).copied();
        match place {
            Some(place) => {
                let node = &mut self.nodes[place as usize];
                self.used = self.used - u64::from(node.bytes) + u64::from(bytes);
                (node.bytes, node.was_used) = (bytes, true);
            }
            None if u64::from(bytes) > self.capacity => return false,
            None => self.insert(key, bytes),
        }
        while self.used > self.capacity {
            self.evict();
        }
        place.is_some()
    }

    fn insert(&mut self, key: u64, bytes: u32) {
        // Room is made first, so that the new entry is not among those that can be evicted.
        while self.used + u64::from(bytes) > self.capacity {
            self.evict();
        }
        let node = Node { key, bytes, was_used: false, newer: NONE, older: self.newest };
        let place = match self.free.pop() {
            Some(place) => {
                self.nodes[place as usize] = node;
                place
            }
            None => {
                self.nodes.push(node);
                u32::try_from(self.nodes.len() - 1).expect("a trace has fewer than 2^32 keys")
            }
        };
        match self.newest {
            NONE => self.oldest = place,
            newest => self.nodes[newest as usize].newer = place,
        }
        self.newest = place;
        self.place_of.insert(key, place);
        self.used += u64::from(bytes);
    }

    /// Evicts the next entry, from the hand towards newer ones, that was not used since the hand last came by.
    fn evict(&mut self) {
        let or_oldest = |place: u32, oldest: u32| if place == NONE { oldest } else { place };
        let mut at = or_oldest(self.hand, self.oldest);
        while self.nodes[at as usize].was_used {
            self.nodes[at as usize].was_used = false;
            at = or_oldest(self.nodes[at as usize].newer, self.oldest);
        }
        let Node { key, bytes, newer, older, .. } = self.nodes[at as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.nodes[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.nodes[newer as usize].older = older,
        }
        self.hand = newer;
        self.place_of.remove(&key);
        self.free.push(at);
        self.used -= u64::from(bytes);
    }
}

/// The queue of [`S3Fifo`] in which an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    Small,
    Main,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    bytes: u32,
    /// Number of uses since the entry came into its queue, up to [`USES_MAX`].
    uses: u8,
    queue: Queue,
}

/// Largest number of uses that S3-FIFO counts.
const USES_MAX: u8 = 3;
/// Part of the capacity of the small queue: a tenth.
const SMALL: u64 = 10;

/// A cache that evicts by S3-FIFO.
#[derive(Debug)]
pub(super) struct S3Fifo {
    capacity: u64,
    entries: KeyMap<Held>,
    small: VecDeque<u64>,
    main: VecDeque<u64>,
    small_bytes: u64,
    main_bytes: u64,
    /// Keys that were evicted from the small queue, with the bytes of their entries, the oldest first; a key that came back
    /// is left in the queue and gone from `was_evicted`.
    evicted: VecDeque<(u64, u32)>,
    was_evicted: KeyMap<()>,
    evicted_bytes: u64,
}

impl S3Fifo {
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            entries: KeyMap::default(),
            small: VecDeque::new(),
            main: VecDeque::new(),
            small_bytes: 0,
            main_bytes: 0,
            evicted: VecDeque::new(),
            was_evicted: KeyMap::default(),
            evicted_bytes: 0,
        }
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.small_bytes + self.main_bytes
    }

    /// Looks a key up, and stores its entry. Returns true for a hit.
    pub(super) fn refer(&mut self, Reference { key, bytes }: Reference) -> bool {
        if self.capacity == 0 {
            return false;
        }
        if let Some(held) = self.entries.get_mut(&key) {
            let (before, queue) = (held.bytes, held.queue);
            *held = Held { bytes, uses: (held.uses + 1).min(USES_MAX), queue };
            let of_queue = self.bytes_of(queue);
            *of_queue = *of_queue - u64::from(before) + u64::from(bytes);
            self.make_room(0);
            return true;
        }
        if u64::from(bytes) > self.capacity {
            return false;
        }
        self.make_room(bytes);
        let queue = match self.was_evicted.remove(&key) {
            Some(()) => Queue::Main,
            None => Queue::Small,
        };
        self.entries.insert(key, Held { bytes, uses: 0, queue });
        self.enter(key, bytes, queue);
        false
    }

    fn bytes_of(&mut self, queue: Queue) -> &mut u64 {
        match queue {
            Queue::Small => &mut self.small_bytes,
            Queue::Main => &mut self.main_bytes,
        }
    }

    fn enter(&mut self, key: u64, bytes: u32, queue: Queue) {
        *self.bytes_of(queue) += u64::from(bytes);
        match queue {
            Queue::Small => self.small.push_back(key),
            Queue::Main => self.main.push_back(key),
        }
    }

    /// Evicts entries until there is room for one of so many bytes.
    fn make_room(&mut self, bytes: u32) {
        while self.held_bytes() + u64::from(bytes) > self.capacity {
            if self.small_bytes >= self.capacity / SMALL && !self.small.is_empty()
                || self.main.is_empty()
            {
                self.evict_from_small();
            } else {
                self.evict_from_main();
            }
        }
    }

    /// Moves entries that were used more than once to the main queue, up to one that is evicted, or until there is none.
    fn evict_from_small(&mut self) {
        while let Some(key) = self.small.pop_front() {
            let Held { bytes, uses, .. } = self.entries[&key];
            self.small_bytes -= u64::from(bytes);
            if uses > 1 {
                self.entries.insert(key, Held { bytes, uses: 0, queue: Queue::Main });
                self.enter(key, bytes, Queue::Main);
                continue;
            }
            self.entries.remove(&key);
            self.remember(key, bytes);
            return;
        }
    }

    /// Puts entries that were used to the end of the main queue, up to one that was not, which is evicted.
    fn evict_from_main(&mut self) {
        while let Some(key) = self.main.pop_front() {
            let Some(held) = self.entries.get_mut(&key) else { continue };
            if held.uses > 0 {
                held.uses -= 1;
                self.main.push_back(key);
                continue;
            }
            self.main_bytes -= u64::from(held.bytes);
            self.entries.remove(&key);
            return;
        }
    }

    /// Remembers the key of an evicted entry, as many as the main queue could hold.
    fn remember(&mut self, key: u64, bytes: u32) {
        self.evicted.push_back((key, bytes));
        self.was_evicted.insert(key, ());
        self.evicted_bytes += u64::from(bytes);
        while self.evicted_bytes > self.capacity - self.capacity / SMALL {
            let Some((oldest, bytes)) = self.evicted.pop_front() else { break };
            self.evicted_bytes -= u64::from(bytes);
            self.was_evicted.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// SIEVE with a list in a vector, the oldest entry first, and the hand as an index.
    struct Plain {
        capacity: u64,
        /// Key, bytes, and whether it was used.
        list: Vec<(u64, u32, bool)>,
        hand: usize,
    }

    impl Plain {
        fn used(&self) -> u64 {
            self.list.iter().map(|(_, bytes, _)| u64::from(*bytes)).sum()
        }

        fn evict(&mut self) {
            loop {
                self.hand %= self.list.len();
                if !self.list[self.hand].2 {
                    self.list.remove(self.hand);
                    // A hand beyond the newest begins anew at the oldest.
                    if self.hand == self.list.len() {
                        self.hand = 0;
                    }
                    return;
                }
                self.list[self.hand].2 = false;
                self.hand += 1;
            }
        }

        fn refer(&mut self, key: u64, bytes: u32) -> bool {
            let found = self.list.iter().position(|(of, ..)| *of == key);
            if let Some(at) = found {
                self.list[at] = (key, bytes, true);
            } else if u64::from(bytes) > self.capacity {
                return false;
            } else {
                while self.used() + u64::from(bytes) > self.capacity {
                    self.evict();
                }
                self.list.push((key, bytes, false));
            }
            while self.used() > self.capacity {
                self.evict();
            }
            found.is_some()
        }
    }

    fn references() -> impl Strategy<Value = Vec<(u64, u32)>> {
        prop::collection::vec((0..12_u64, 1..9_u32), 0..120)
    }

    proptest! {
        #[test]
        fn sieve_is_that_of_a_plain_list(references in references(), capacity in 1..40_u64) {
            let mut sieve = Sieve::new(capacity);
            let mut plain = Plain { capacity, list: Vec::new(), hand: 0 };
            for (key, bytes) in references {
                let is_hit = sieve.refer(Reference { key, bytes });
                prop_assert_eq!(is_hit, plain.refer(key, bytes), "{} of {} bytes", key, bytes);
                prop_assert_eq!(sieve.held_bytes(), plain.used());
            }
        }

        #[test]
        fn s3_fifo_holds_what_it_counts_and_no_more_than_fits(
            references in references(), capacity in 1..40_u64,
        ) {
            let mut cache = S3Fifo::new(capacity);
            for (key, bytes) in references {
                let was_there = cache.entries.contains_key(&key);
                prop_assert_eq!(cache.refer(Reference { key, bytes }), was_there);
                let of = |queue: Queue| {
                    let its = cache.entries.values().filter(|held| held.queue == queue);
                    its.map(|held| u64::from(held.bytes)).sum::<u64>()
                };
                prop_assert_eq!((of(Queue::Small), of(Queue::Main)), (cache.small_bytes, cache.main_bytes));
                prop_assert!(cache.held_bytes() <= capacity);
                prop_assert_eq!(cache.entries.len(), cache.small.len() + cache.main.len());
            }
        }
    }

    #[test]
    fn what_came_first_stays_without_eviction() {
        let mut cache = First::new(250);
        let hits: Vec<bool> = [7, 8, 9, 7, 8, 9]
            .into_iter()
            .map(|key| cache.refer(Reference { key, bytes: 100 }))
            .collect();
        assert_eq!((hits, cache.held_bytes()), (vec![false, false, false, true, true, false], 200));
    }

    #[test]
    fn scans_pass_by_without_evicting_what_is_used() {
        // 40 keys are used three times in turn, between scans of 200 keys that are used once.
        let hits = |refer: &mut dyn FnMut(Reference) -> bool| {
            let mut hits = 0;
            for round in 0..50_u64 {
                for key in (0..40).chain(0..40).chain(0..40) {
                    hits += usize::from(refer(Reference { key, bytes: 100 }));
                }
                for n in 0..200 {
                    refer(Reference { key: 1_000 + round * 200 + n, bytes: 100 });
                }
            }
            hits
        };
        let (mut sieve, mut fifo, mut first) =
            (Sieve::new(10_000), S3Fifo::new(10_000), First::new(10_000));
        let all = 50 * 120 - 40;
        assert!(hits(&mut |one| sieve.refer(one)) > all * 9 / 10);
        assert!(hits(&mut |one| fifo.refer(one)) > all * 9 / 10);
        assert_eq!(hits(&mut |one| first.refer(one)), all);
    }
}
