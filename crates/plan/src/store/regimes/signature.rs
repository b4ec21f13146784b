//! The signature of a workload, by which regimes are distinguished: the shares of its transactions by kind and by keys.
//!
//! A transaction counts by its kind (whether it reads, whether it writes, and how many rows), and by the quantiles of
//! the regime's own keys that contain its first and its last key. Two workloads are alike if the total variation
//! distance of these shares exceeds chance by no more than a margin. The signature does not show which keys of a
//! transaction belong together.

use std::collections::BTreeMap;

use super::ObservedTransaction;
use crate::store::layout::Key;
use crate::store::workload::Sample;

/// Number of quantiles into which keys are divided.
const BUCKETS: usize = 8;
/// Limit on the weight of the samples that a signature remembers; older ones count less.
const WEIGHT_MAX: f64 = 500.0;
/// Distance (0..1) beyond chance up to which two signatures count as alike.
const MARGIN: f64 = 0.15;
/// Mean distance of two samples of one distribution, per √(categories · (1/n₁ + 1/n₂)) for samples of n₁ and n₂
/// transactions.
const CHANCE: f64 = 0.4;
/// Largest distance that may be chance, as a multiple of the mean distance by [`CHANCE`].
const CHANCE_MAX: f64 = 1.2;

/// Weight of each category of transactions: a kind of transaction and a quantile of keys.
type Shares = BTreeMap<(u8, usize), f64>;

/// The signature of a workload: the shares of its transactions by kind and by keys.
#[derive(Clone, Debug)]
pub(super) struct Signature<K> {
    /// Starts of all quantiles but the first.
    bounds: Vec<K>,
    weight: f64,
    /// Weights by kind and quantile of the first key; by quantile of the last key; and by kind.
    shares: [Shares; 3],
}

fn first<K>(sample: &Sample<K>) -> Option<&K> {
    sample.writes.first().or(sample.reads.first().map(|(from, _)| from))
}

fn last<K>(sample: &Sample<K>) -> Option<&K> {
    let read = sample.reads.last().map(|(from, end)| end.as_ref().unwrap_or(from));
    sample.writes.last().or(read)
}

fn kind<K>(sample: &Sample<K>) -> u8 {
    let rows = u64::from(sample.rows_read) + u64::from(sample.rows_written);
    // By powers of four: a scan of two hundred rows is of another kind than a read of one.
    let size = (rows.max(1).ilog2() / 2) as u8;
    size * 4 + u8::from(!sample.reads.is_empty()) * 2 + u8::from(!sample.writes.is_empty())
}

impl<K: Key> Signature<K> {
    /// Returns the signature of a slice's transactions.
    pub fn of(seen: &[ObservedTransaction<K>]) -> Self {
        let mut keys: Vec<&K> = seen.iter().filter_map(|one| first(&one.sample)).collect();
        keys.sort_unstable();
        let mut bounds: Vec<K> = Vec::new();
        for n in 1..BUCKETS {
            bounds.extend(keys.get(keys.len() * n / BUCKETS).map(|key| (*key).clone()));
        }
        bounds.dedup();
        let mut signature = Self { bounds, weight: 0.0, shares: Default::default() };
        signature.add(seen);
        signature
    }

    fn shares_of(&self, seen: &[ObservedTransaction<K>]) -> [Shares; 3] {
        let bucket = |key: Option<&K>| {
            key.map_or(0, |key| self.bounds.partition_point(|bound| bound <= key))
        };
        let mut shares: [Shares; 3] = Default::default();
        for ObservedTransaction { sample, .. } in seen {
            let kind = kind(sample);
            let of = [(kind, bucket(first(sample))), (0, bucket(last(sample))), (kind, 0)];
            for (shares, category) in shares.iter_mut().zip(of) {
                *shares.entry(category).or_default() += 1.0;
            }
        }
        shares
    }

    /// Adds the transactions of a slice of the signature's regime; those of earlier slices count less then.
    pub fn add(&mut self, seen: &[ObservedTransaction<K>]) {
        let added = self.shares_of(seen);
        self.weight += seen.len() as f64;
        let left = (WEIGHT_MAX / self.weight.max(1.0)).min(1.0);
        for (shares, added) in self.shares.iter_mut().zip(added) {
            for (category, weight) in added {
                *shares.entry(category).or_default() += weight;
            }
            shares.values_mut().for_each(|weight| *weight *= left);
            shares.retain(|_, weight| *weight > 0.01);
        }
        self.weight *= left;
    }

    /// Returns the distance of a slice's transactions from the signature, beyond chance and margin; the slice fits if
    /// the result is 0 or less.
    pub fn misfit(&self, seen: &[ObservedTransaction<K>]) -> f64 {
        let (many, weight) = (seen.len().max(1) as f64, self.weight.max(1.0));
        let by = |(mine, its): (&Shares, Shares)| {
            let share = |of: &Shares, all: f64, category: &(u8, usize)| {
                of.get(category).copied().unwrap_or(0.0) / all
            };
            let mut categories: Vec<_> = mine.keys().chain(its.keys()).collect();
            categories.sort_unstable();
            categories.dedup();
            let far = |category: &&(u8, usize)| {
                (share(mine, weight, category) - share(&its, many, category)).abs()
            };
            let distance = categories.iter().map(far).sum::<f64>() / 2.0;
            let chance = CHANCE * (categories.len() as f64 * (1.0 / many + 1.0 / weight)).sqrt();
            distance - MARGIN - CHANCE_MAX * chance
        };
        let all = self.shares.iter().zip(self.shares_of(seen));
        all.map(by).fold(f64::MIN, f64::max)
    }
}
