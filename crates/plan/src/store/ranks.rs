//! Keys replaced by their ranks: a decision compares keys millions of times, and numbers are compared fastest.

use super::layout::{Key, Layout, Operator, Partition};
use super::plans::NoPlan;
use super::workload::Sample;

/// The keys of a design and of samples, in order; the rank of a key is its index among them.
pub(super) struct Ranks<K> {
    keys: Vec<K>,
}

impl<K: Key> Ranks<K> {
    pub(super) fn of<'s>(
        layout: &Layout<K>,
        samples: impl Iterator<Item = &'s (f64, Sample<K>)>,
    ) -> Self
    where
        K: 's,
    {
        let starts = layout.partitions().map(|(start, _)| start);
        let sampled = samples.flat_map(|(_, sample)| {
            let ends = |(from, end): &'_ (K, Option<K>)| [Some(from.clone()), end.clone()];
            let reads = sample.reads.iter().flat_map(ends).flatten();
            sample.writes.iter().cloned().chain(reads).collect::<Vec<K>>()
        });
        let mut keys: Vec<K> = starts.cloned().chain(sampled).collect();
        keys.sort_unstable();
        keys.dedup();
        Self { keys }
    }

    /// Returns the rank of a key of the design or of a sample.
    ///
    /// # Panics
    /// If the key is neither in the design nor in a sample.
    fn rank(&self, key: &K) -> u32 {
        self.keys.binary_search(key).expect("a key of the design or of a sample") as u32
    }

    /// Returns the rank of the greatest known key that is not above `key`; 0 if there is none.
    pub(super) fn nearest(&self, key: &K) -> u32 {
        self.keys.partition_point(|one| one <= key).saturating_sub(1) as u32
    }

    /// Returns the key that has this rank.
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

    /// Returns the operator with the ranks of its keys, or of the greatest known keys below them.
    pub(super) fn nearest_operator(&self, operator: &Operator<K>) -> Operator<u32> {
        let rank = |key: &K| self.nearest(key);
        match operator {
            Operator::Split(key) => Operator::Split(rank(key)),
            Operator::Merge(start) => Operator::Merge(rank(start)),
            Operator::AddReplica(start, site) => Operator::AddReplica(rank(start), *site),
            Operator::RemoveReplica(start, site) => Operator::RemoveReplica(rank(start), *site),
            Operator::Remaster(start, site) => Operator::Remaster(rank(start), *site),
        }
    }

    pub(super) fn no_plan(&self, why: &NoPlan<u32>) -> NoPlan<K> {
        match why {
            NoPlan::Pinned(start, site) => NoPlan::Pinned(self.key(*start), *site),
            NoPlan::Replicas(start) => NoPlan::Replicas(self.key(*start)),
        }
    }
}
