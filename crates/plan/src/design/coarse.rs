//! Samples with keys as coarse as decisions need them: so that many samples cost no more than few.
//!
//! The idea: a plan can only move partitions, and split them at keys that were sampled. So a key matters by the
//! partition that it is in, and in a partition that may be split, by the *piece* of it: an eighth of the accesses,
//! or a single key that has as many. Keys become the start of their piece, and samples that touch the same pieces
//! become one with the sum of their weights. A few dozen are left of a thousand, and designs are priced by all of them,
//! where a hundred sampled ones would show one site with a fifth more than another by chance.
//!
//! Invariants:
//! - By any design whose partitions begin at starts of pieces, the samples touch the partitions that they touched.
//! - Weights, and rows by their weights, keep their sums, but for the rounding of rows to whole ones.

use std::collections::{BTreeMap, HashMap};

use super::layout::{Key, Layout};
use super::plans::mean_access;
use super::workload::{Accesses, Numbered, Sample};

/// Pieces of a partition that may be split, at least.
const PIECES: f64 = 8.0;

/// Touched pieces: ranges that are read, by the first and the last one, and pieces that are written.
type Pattern = (Vec<(usize, usize)>, Vec<usize>);

/// Samples of a pattern: their weight, and with it the rows that they read and wrote.
#[derive(Default)]
struct Sums {
    weight: f64,
    rows: (f64, f64),
}

/// Returns samples with coarse keys: partitions with more than `split_above` times the mean access are in pieces.
#[must_use]
pub fn coarse<K: Key>(
    layout: &Layout<K>,
    samples: &[(f64, Sample<K>)],
    split_above: f64,
) -> Vec<(f64, Sample<K>)> {
    let starts = starts(layout, samples, split_above);
    let piece = |key: &K| starts.partition_point(|start| start <= key).saturating_sub(1);
    let mut patterns: HashMap<Pattern, usize> = HashMap::new();
    let mut sums: Vec<(Pattern, Sums)> = Vec::new();
    for (weight, sample) in samples {
        let range = |(from, end): &(K, Option<K>)| {
            let first = piece(from);
            let behind = end
                .as_ref()
                .map_or(starts.len(), |end| starts.partition_point(|start| start < end));
            (first, behind.max(first + 1) - 1)
        };
        let mut writes: Vec<usize> = sample.writes.iter().map(piece).collect();
        writes.sort_unstable();
        writes.dedup();
        let pattern = (sample.reads.iter().map(range).collect(), writes);
        let number = *patterns.entry(pattern).or_insert_with_key(|pattern| {
            sums.push((pattern.clone(), Sums::default()));
            sums.len() - 1
        });
        let of = &mut sums[number].1;
        of.weight += weight;
        of.rows.0 += weight * f64::from(sample.rows_read);
        of.rows.1 += weight * f64::from(sample.rows_written);
    }
    let sample = |((reads, writes), Sums { weight, rows }): (Pattern, Sums)| {
        let range =
            |(first, last): (usize, usize)| (starts[first].clone(), starts.get(last + 1).cloned());
        let mean = |rows: f64| (rows / weight.max(f64::MIN_POSITIVE)).round() as u32;
        let sample = Sample {
            reads: reads.into_iter().map(range).collect(),
            writes: writes.into_iter().map(|piece| starts[piece].clone()).collect(),
            rows_read: mean(rows.0),
            rows_written: mean(rows.1),
        };
        (weight, sample)
    };
    sums.into_iter().map(sample).collect()
}

/// The starts of all pieces, in order.
pub(super) fn starts<K: Key>(
    layout: &Layout<K>,
    samples: &[(f64, Sample<K>)],
    split_above: f64,
) -> Vec<K> {
    let numbered = Numbered::new(layout);
    let Accesses { statistics, .. } = Accesses::counted(&numbered, samples);
    let mean = mean_access(layout);
    let is_hot = |partition: usize| statistics.accesses(partition) > split_above * mean;
    // The accesses of each hot partition by the first key of a transaction there: no piece begins within one.
    let mut accesses: BTreeMap<usize, BTreeMap<&K, f64>> = BTreeMap::new();
    for (weight, sample) in samples {
        let keys = sample.writes.iter().chain(sample.reads.iter().map(|(from, _)| from));
        let mut here: BTreeMap<usize, (&K, f64)> = BTreeMap::new();
        for key in keys {
            let of = here.entry(numbered.of(key)).or_insert((key, 0.0));
            (of.0, of.1) = (of.0.min(key), of.1 + weight);
        }
        for (partition, (first, count)) in here.into_iter().filter(|(one, _)| is_hot(*one)) {
            *accesses.entry(partition).or_default().entry(first).or_default() += count;
        }
    }
    let mut starts: Vec<K> = layout.partitions().map(|(start, _)| start.clone()).collect();
    for keys in accesses.values() {
        let each = keys.values().sum::<f64>() / PIECES;
        let mut filled = 0.0;
        for (key, weight) in keys {
            // A piece that is full ends, and a key that fills one by itself begins one.
            if filled >= each || filled > 0.0 && *weight >= each {
                starts.push((*key).clone());
                filled = 0.0;
            }
            filled += weight;
        }
    }
    starts.sort_unstable();
    starts.dedup();
    starts
}
