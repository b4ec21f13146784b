//! Keys as numbers in their order: deciding compares keys by the million, and numbers are compared at once.

use super::layout::{Key, Layout, Operator, Partition};
use super::plans::NoPlan;
use super::workload::Sample;

/// The keys of a design and of samples, in order; a key's number is its place.
pub(super) struct Ranks<K> {
    keys: Vec<K>,
}

impl<K: Key> Ranks<K> {
    pub(super) fn of(layout: &Layout<K>, samples: &[(f64, Sample<K>)]) -> Self {
        let starts = layout.partitions().map(|(start, _)| start);
        let sampled = samples.iter().flat_map(|(_, sample)| {
            let ends = |(from, end): &'_ (K, Option<K>)| [Some(from.clone()), end.clone()];
            let reads = sample.reads.iter().flat_map(ends).flatten();
            sample.writes.iter().cloned().chain(reads).collect::<Vec<K>>()
        });
        let mut keys: Vec<K> = starts.cloned().chain(sampled).collect();
        keys.sort_unstable();
        keys.dedup();
        Self { keys }
    }

    /// A key's number.
    ///
    /// # Panics
    /// If it is not among the keys.
    fn rank(&self, key: &K) -> u32 {
        self.keys.binary_search(key).expect("a key of the design or of a sample") as u32
    }

    /// The number of the last key that is not behind this one; the first one's for one before all.
    pub(super) fn nearest(&self, key: &K) -> u32 {
        self.keys.partition_point(|one| one <= key).saturating_sub(1) as u32
    }

    /// The key of a number.
    pub(super) fn key(&self, rank: u32) -> K {
        self.keys[rank as usize].clone()
    }

    pub(super) fn layout(&self, layout: &Layout<K>) -> Layout<u32> {
        let partitions = layout.partitions().map(|(start, one)| (self.rank(start), *one));
        Layout::new(partitions.collect(), layout.sites())
    }

    pub(super) fn named(&self, layout: &Layout<u32>) -> Layout<K> {
        let named = |(start, one): (&u32, &Partition)| (self.key(*start), *one);
        Layout::new(layout.partitions().map(named).collect(), layout.sites())
    }

    pub(super) fn sample(&self, sample: &Sample<K>) -> Sample<u32> {
        let range = |(from, end): &(K, Option<K>)| {
            (self.rank(from), end.as_ref().map(|end| self.rank(end)))
        };
        Sample {
            reads: sample.reads.iter().map(range).collect(),
            writes: sample.writes.iter().map(|key| self.rank(key)).collect(),
            rows_read: sample.rows_read,
            rows_written: sample.rows_written,
        }
    }

    pub(super) fn operator(&self, operator: &Operator<u32>) -> Operator<K> {
        match operator {
            Operator::Split(key) => Operator::Split(self.key(*key)),
            Operator::Merge(start) => Operator::Merge(self.key(*start)),
            Operator::AddReplica(start, site) => Operator::AddReplica(self.key(*start), *site),
            Operator::RemoveReplica(start, site) => {
                Operator::RemoveReplica(self.key(*start), *site)
            }
            Operator::Remaster(start, site) => Operator::Remaster(self.key(*start), *site),
        }
    }

    pub(super) fn no_plan(&self, why: &NoPlan<u32>) -> NoPlan<K> {
        match why {
            NoPlan::Pinned(start, site) => NoPlan::Pinned(self.key(*start), *site),
            NoPlan::Replicas(start) => NoPlan::Replicas(self.key(*start)),
        }
    }
}
