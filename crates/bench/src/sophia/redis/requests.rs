//! The requests of clients: records in hashes of a thousand fields each. Hashes are loaded as a whole, and their
//! records then read and updated one by one.
//!
//! Small values with an id are often stored in such hashes, because they take less memory there than as separate
//! keys. All requests of a job are encoded in advance, and all methods get the same bytes, so the benchmark measures
//! the server.

use imago_tune::redis::topology::slot;
use imago_workload::keys::{Chooser, Distribution};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use redis::Pipeline;

/// Number of records in a hash: more than the default setting stores in the compact encoding.
pub(super) const FIELDS: u64 = 1_000;
/// Number of operations in a batch. A hash is loaded by one command.
const OPERATIONS_AT_ONCE: usize = 64;

/// Requests that are sent together.
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    pub(super) requests: usize,
}

impl Batch {
    fn of(commands: &Pipeline) -> Self {
        Self { bytes: commands.get_packed_pipeline(), requests: commands.len() }
    }
}

/// Names of the hashes. Each name has the hash tag of a master, so that all masters have the same number of hashes.
#[derive(PartialEq)]
pub(super) struct Names {
    tags: Vec<String>,
}

impl Names {
    /// Selects a tag for each of `masters` masters; `master` returns the index of the master of a slot. Returns None
    /// if a master has no slot.
    pub(super) fn new(masters: usize, master: impl Fn(u16) -> Option<usize>) -> Option<Self> {
        let tag = |number: usize| {
            let mut tags = (0..1_000_000_u32).map(|tag| tag.to_string());
            tags.find(|tag| master(slot(tag.as_bytes())) == Some(number))
        };
        (0..masters).map(tag).collect::<Option<_>>().map(|tags| Self { tags })
    }

    pub(super) fn masters(&self) -> usize {
        self.tags.len()
    }

    /// Returns how many of `hashes` hashes belong to each master.
    pub(super) fn shares(&self, hashes: u64) -> Vec<usize> {
        let masters = self.tags.len() as u64;
        (0..masters).map(|master| ((hashes + masters - 1 - master) / masters) as usize).collect()
    }

    /// Returns the index of the master of a hash.
    pub(super) fn master(&self, hash: u64) -> usize {
        (hash % self.tags.len() as u64) as usize
    }

    pub(super) fn name(&self, hash: u64) -> String {
        format!("records:{{{}}}:{hash}", self.tags[self.master(hash)])
    }
}

fn field(record: u64) -> String {
    format!("r{record:08}")
}

/// Returns a value of 16 characters, for a version of the record.
fn value(record: u64, version: u64) -> String {
    let mixed = (record ^ version.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("{mixed:016x}")
}

/// Returns the batches that load `hashes` hashes, by master. Each batch loads one hash, so the first batches load
/// fewer hashes.
pub(super) fn load(names: &Names, hashes: u64) -> Vec<Vec<Batch>> {
    let mut batches: Vec<Vec<Batch>> = (0..names.masters()).map(|_| Vec::new()).collect();
    for hash in 0..hashes {
        let records = hash * FIELDS..(hash + 1) * FIELDS;
        let fields: Vec<(String, String)> =
            records.map(|record| (field(record), value(record, 0))).collect();
        let mut commands = redis::pipe();
        commands.cmd("HSET").arg(names.name(hash)).arg(fields);
        batches[names.master(hash)].push(Batch::of(&commands));
    }
    batches
}

/// Returns batches of `count` reads and updates of records in `hashes` hashes, by master; `reads` is the share of
/// reads.
pub(super) fn operations(
    names: &Names,
    hashes: u64,
    (count, reads): (u64, f64),
    keys: Distribution,
    seed: u64,
) -> Vec<Vec<Batch>> {
    let mut rng = StdRng::seed_from_u64(seed);
    let records = hashes * FIELDS;
    let mut chooser = Chooser::new(keys, records, seed);
    let mut pending: Vec<Pipeline> = (0..names.masters()).map(|_| redis::pipe()).collect();
    let mut batches: Vec<Vec<Batch>> = (0..names.masters()).map(|_| Vec::new()).collect();
    for version in 1..=count {
        let Some(record) = chooser.choose(records, &mut rng) else { break };
        let hash = record / FIELDS;
        let master = names.master(hash);
        let commands = &mut pending[master];
        if rng.random_bool(reads) {
            commands.cmd("HGET").arg(names.name(hash)).arg(field(record));
        } else {
            let new = value(record, version);
            commands.cmd("HSET").arg(names.name(hash)).arg(field(record)).arg(new);
        }
        if commands.len() == OPERATIONS_AT_ONCE {
            batches[master].push(Batch::of(commands));
            *commands = redis::pipe();
        }
    }
    for (batches, rest) in batches.iter_mut().zip(&pending) {
        if !rest.is_empty() {
            batches.push(Batch::of(rest));
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hash_is_loaded_once_at_its_master_and_every_operation_goes_where_its_record_is() {
        // Three masters, each with every third slot.
        let names = Names::new(3, |slot| Some(usize::from(slot) % 3)).unwrap();
        let load = load(&names, 10);
        let loaded: Vec<usize> =
            load.iter().map(|of| of.iter().map(|batch| batch.requests).sum()).collect();
        assert_eq!((&*loaded, names.shares(10)), (&[4, 3, 3][..], vec![4, 3, 3]));
        assert_eq!((names.shares(2), names.shares(6)), (vec![1, 1, 0], vec![2, 2, 2]));
        for hash in 0..10 {
            let name = names.name(hash);
            let holds = |batches: &Vec<Batch>| {
                let has = |batch: &Batch| String::from_utf8_lossy(&batch.bytes).contains(&*name);
                batches.iter().any(has)
            };
            let at: Vec<usize> = (0..3).filter(|master| holds(&load[*master])).collect();
            assert_eq!(at, [usize::from(slot(name.as_bytes()) % 3)], "{name}");
        }
        let done = operations(&names, 10, (1_000, 0.9), Distribution::Uniform, 1);
        let count = |word: &str| {
            let texts = done.iter().flatten().map(|batch| String::from_utf8_lossy(&batch.bytes));
            texts.map(|text| text.matches(word).count()).sum::<usize>()
        };
        assert_eq!(count("HGET") + count("HSET"), 1_000);
        assert!((850..950).contains(&count("HGET")), "{}", count("HGET"));
    }

    #[test]
    fn values_have_one_length_and_change_with_their_version() {
        assert_eq!(value(7, 0).len(), value(99_999_999, 12).len());
        assert_ne!(value(7, 0), value(7, 1));
    }
}
