//! The pages that the members of shards read from disk, where their storage caches are smaller than the collection.
//!
//! A server keeps documents in pages, in the order in which they were inserted. A read of a document needs its page, which is in
//! the storage cache or has to be read from disk. So a storage cache of C bytes is an LRU cache of pages: the share of reads
//! that find their page follows from stack distances, as for a cache of documents ([`super::exact()`]), with one reference to a
//! page for each read that the cache in front does not answer.
//!
//! Keys are distributed over shards evenly and by chance, and reads over members by chance. An LRU cache that is split in this way
//! over s servers of C bytes each has nearly the hits of one of s · C bytes. So one curve tells the hits for all numbers of shards
//! and all sizes; with reads from r members of a shard, a page counts once for each member.
//!
//! WiredTiger evicts pages when its cache is filled to [`USED`]. Pages of the index of `_id` are read a hundred times more often
//! than those of documents: they take their size off the cache, and are not read from disk.
//!
//! Invariants: a page is read for at most one of the keys that the cache does not answer each; a larger storage cache reads no
//! more pages.

use std::collections::BTreeMap;

use super::hashed::scattered;
use super::stack::Stack;
use super::{Curve, Reference, Sampling, Start, exact, sampled};
use crate::provision::shape::Shape;

/// Share (0..1) of a storage cache that WiredTiger fills before it evicts (`eviction_target`).
pub const USED: f64 = 0.8;
/// Number of reads up to which stack distances are exact; of more reads, the pages are sampled.
const EXACT_MAX: usize = 1_000_000;
/// Seed of the choice of members.
const SEED: u64 = 11;

/// What a collection takes on its shards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stored {
    /// Number of documents in the collection.
    pub documents: u64,
    /// Mean size of a document in a storage cache, in bytes.
    pub document_bytes: f64,
    /// Bytes of all indexes per document.
    pub index_bytes: f64,
    /// Mean size of a page of documents in a storage cache, in bytes.
    pub page_bytes: f64,
}

impl Stored {
    /// Returns the number of documents on a page, at least 1.
    fn per_page(&self) -> f64 {
        (self.page_bytes / self.document_bytes.max(1.0)).max(1.0)
    }

    /// Returns the number of pages that the storage caches of all members that are read hold together.
    fn capacity(&self, shape: Shape, storage_bytes: u64) -> u64 {
        let indexes = self.index_bytes * self.documents as f64 / f64::from(shape.shards.max(1));
        let pages = (USED * storage_bytes as f64 - indexes) / self.page_bytes.max(1.0);
        (pages.max(1.0) * f64::from(shape.shards) * f64::from(shape.read_members())) as u64
    }
}

/// A read of a stored document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredRead {
    /// The document's reference in a cache in front of the shards.
    pub reference: Reference,
    /// Position of the document in the order in which documents are stored, from 0.
    pub position: u64,
}

/// The pages that are read from disk, by phase, for some sizes of the cache in front and some numbers of members that are read.
#[derive(Clone, Debug)]
pub struct PageReads {
    stored: Stored,
    /// Curves of hits by the number of pages that all storage caches hold, by the size of the cache in front in bytes, and by the
    /// number of members of a shard that are read.
    curves: BTreeMap<(u64, u32), Curve>,
}

impl PageReads {
    /// Computes the curves of the phases of a job, for each size in bytes of the cache in front (0: none), and each number of
    /// members of a shard that are read. The job begins with this state of the cache and of the storage caches.
    #[must_use]
    pub fn new(
        phases: &[Vec<StoredRead>],
        (start, storage_start): (Start, Start),
        caches_bytes: &[u64],
        read_members: &[u32],
        stored: Stored,
    ) -> Self {
        let depths = depths(phases, start);
        let mut curves = BTreeMap::new();
        for cache_bytes in caches_bytes {
            for members in read_members {
                let pages = pages(phases, &depths, *cache_bytes, *members, stored.per_page());
                let reads: usize = pages.iter().map(Vec::len).sum();
                let curve = match reads {
                    0..=EXACT_MAX => exact(&pages, storage_start),
                    _ => sampled(&pages, storage_start, Sampling::default()),
                };
                curves.insert((*cache_bytes, *members), curve);
            }
        }
        Self { stored, curves }
    }

    /// Returns the share (0..1) of the phase's keys that the cache does not answer for which a page is read from disk; 0 if
    /// the storage caches hold all.
    ///
    /// # Panics
    /// If the curves were not computed for the shape's cache or members, or there is no such phase.
    #[must_use]
    pub fn ratio(&self, phase: usize, shape: Shape) -> f64 {
        let Some(storage_bytes) = shape.storage_bytes else { return 0.0 };
        let of = (shape.cache_bytes, shape.read_members());
        let curve = self.curves.get(&of).expect("curves are computed for all shapes");
        let reads = curve.references(phase) as f64;
        if reads == 0.0 {
            return 0.0;
        }
        let hits = curve.hits(phase, self.stored.capacity(shape, storage_bytes));
        (1.0 - hits / reads).clamp(0.0, 1.0)
    }
}

/// Returns the stack distance of each read in a cache of documents, in bytes; `u64::MAX` for the first read of a key.
fn depths(phases: &[Vec<StoredRead>], start: Start) -> Vec<Vec<u64>> {
    let mut stack = Stack::new();
    let mut all = Vec::new();
    for counts in start.passes() {
        for reads in phases {
            let depth = |read: &StoredRead| {
                let Reference { key, bytes } = read.reference;
                stack.refer(key, bytes).unwrap_or(u64::MAX)
            };
            let depths: Vec<u64> = reads.iter().map(depth).collect();
            if *counts {
                all.push(depths);
            }
        }
    }
    all
}

/// Returns the references to pages, of one byte each, of the reads that a cache of `cache_bytes` bytes does not answer.
fn pages(
    phases: &[Vec<StoredRead>],
    depths: &[Vec<u64>],
    cache_bytes: u64,
    members: u32,
    per_page: f64,
) -> Vec<Vec<Reference>> {
    let mut number = 0;
    let mut phase = |(reads, depths): (&Vec<StoredRead>, &Vec<u64>)| -> Vec<Reference> {
        let missed = reads.iter().zip(depths).filter(|(_, depth)| **depth > cache_bytes);
        let page = |(read, _): (&StoredRead, &u64)| {
            number += 1;
            let page = (read.position as f64 / per_page) as u64;
            let member = scattered(number, SEED) % u64::from(members.max(1));
            Reference { key: page * u64::from(members.max(1)) + member, bytes: 1 }
        };
        missed.map(page).collect()
    };
    phases.iter().zip(depths).map(&mut phase).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;
    use crate::provision::shape::{CacheAt, Reads};

    const MIB: u64 = 1 << 20;
    /// An empty cache, and storage caches after the same job.
    const START: (Start, Start) = (Start::Cold, Start::Warm);

    fn shape(shards: u32, replicas: u32, storage_bytes: Option<u64>, cache_bytes: u64) -> Shape {
        let (cache_at, reads) = (CacheAt::Worker, Reads::Nearest);
        Shape { shards, replicas, storage_bytes, cache_bytes, cache_at, reads }
    }

    /// A collection of 300 MB, in pages of 60 documents.
    const STORED: Stored = Stored {
        documents: 600_000,
        document_bytes: 500.0,
        index_bytes: 30.0,
        page_bytes: 30_000.0,
    };

    /// Reads of documents at random positions; popular ones are read more often.
    fn reads(phases: usize, each: usize) -> Vec<Vec<StoredRead>> {
        let mut dice = StdRng::seed_from_u64(8);
        let mut read = || {
            let chance: f64 = dice.random();
            let position = (chance * chance * STORED.documents as f64) as u64;
            // Popular documents are anywhere.
            let position = position.wrapping_mul(314_159_269) % STORED.documents;
            let reference = Reference { key: scattered(position, 3), bytes: 580 };
            StoredRead { reference, position }
        };
        (0..phases).map(|_| (0..each).map(|_| read()).collect()).collect()
    }

    /// Plays all reads of a shape twice, server by server, and returns the share of the second pass's reads that the cache does
    /// not answer for which a page is read.
    fn played(phases: &[Vec<StoredRead>], shape: Shape) -> f64 {
        let mut dice = StdRng::seed_from_u64(5);
        let (shards, members) = (u64::from(shape.shards), shape.read_members() as usize);
        let index = STORED.index_bytes * STORED.documents as f64 / shards as f64;
        let storage = shape.storage_bytes.expect("a size") as f64;
        let room = ((USED * storage - index) / STORED.page_bytes) as usize;
        let mut servers = vec![VecDeque::new(); shards as usize * members];
        let (mut asked, mut read) = (0, 0);
        for pass in 0..2 {
            let mut cache: VecDeque<u64> = VecDeque::new();
            for one in phases.iter().flatten() {
                let capacity = (shape.cache_bytes / u64::from(one.reference.bytes)) as usize;
                let at = cache.iter().position(|key| *key == one.reference.key);
                let is_hit = at.is_some();
                if let Some(at) = at {
                    cache.remove(at);
                }
                cache.push_front(one.reference.key);
                cache.truncate(capacity);
                if is_hit {
                    continue;
                }
                let page = one.position / 60;
                let shard = (scattered(page, 77) % shards) as usize;
                let server = &mut servers[shard * members + dice.random_range(0..members)];
                let at = server.iter().position(|other| *other == page);
                asked += pass;
                read += if at.is_none() { pass } else { 0 };
                if let Some(at) = at {
                    server.remove(at);
                }
                server.push_front(page);
                server.truncate(room);
            }
        }
        f64::from(read) / f64::from(asked)
    }

    #[test]
    fn pages_are_read_as_often_as_when_each_server_is_played() {
        let phases = reads(2, 15_000);
        let all = PageReads::new(&phases, START, &[0, 4 * MIB], &[1, 2], STORED);
        for (shards, replicas, storage, cache) in [
            (1, 1, 64, 0),
            (2, 1, 64, 0),
            (4, 1, 32, 0),
            (2, 2, 64, 0),
            (2, 1, 64, 4),
            (1, 1, 256, 4),
        ] {
            let shape = shape(shards, replicas, Some(storage * MIB), cache * MIB);
            let told: f64 = (0..2).map(|phase| all.ratio(phase, shape)).sum::<f64>() / 2.0;
            let played = played(&phases, shape);
            assert!((told - played).abs() < 0.03, "{shape}: {told} and {played}");
        }
    }

    #[test]
    fn what_is_in_memory_is_not_read_from_disk() {
        let phases = reads(2, 5_000);
        let all = PageReads::new(&phases, START, &[0], &[1], STORED);
        assert_eq!(all.ratio(0, shape(2, 1, None, 0)), 0.0);
        assert_eq!(all.ratio(1, shape(1, 1, Some(1 << 30), 0)), 0.0);
        let sizes = [16, 64, 128, 256, 512];
        let told = sizes.map(|mib| all.ratio(1, shape(1, 1, Some(mib * MIB), 0)));
        assert!(told.windows(2).all(|two| two[0] >= two[1]), "{told:?}");
        assert!(told[0] > 0.8, "{told:?}");
        // An index that is larger than the cache leaves room for hardly any page.
        let small = Stored { index_bytes: 500.0, ..STORED };
        let all = PageReads::new(&phases, START, &[0], &[1], small);
        assert!(all.ratio(1, shape(1, 1, Some(64 * MIB), 0)) > 0.99);
    }

    #[test]
    fn neighbours_that_are_read_one_after_the_other_share_a_page() {
        let read = |position| StoredRead {
            reference: Reference { key: scattered(position, 3), bytes: 580 },
            position,
        };
        let phases = vec![(0..60_000).map(read).collect()];
        let all = PageReads::new(&phases, START, &[0], &[1], STORED);
        let ratio = all.ratio(0, shape(1, 1, Some(32 * MIB), 0));
        assert!((ratio - 1.0 / 60.0).abs() < 1e-3, "{ratio}");
    }
}
