//! Samples whose keys are only as precise as decisions need them, so that a decision on many samples costs no more
//! than one on few.
//!
//! A plan can only move partitions, and split them at sampled keys. So a key matters by its partition and, in a
//! partition that may be split, by its *piece*: a range with an eighth of the accesses, or a single key that has as
//! many. Keys are replaced by the start of their piece, and samples that touch the same pieces become one with the sum
//! of their weights. A thousand samples become a few dozen, and designs are priced by all of them. If only a hundred
//! randomly chosen samples were used, one site would by chance seem to have a fifth more load than another.
//!
//! Invariants:
//! - On any design whose partitions begin at starts of pieces, the coarse samples touch the same partitions as before.
//! - The sums of weights, and of rows times weights, stay the same, except that rows are rounded to whole ones.

use std::collections::{BTreeMap, HashMap};

use super::layout::{Key, Layout};
use super::plans::mean_access;
use super::workload::{Accesses, Numbered, Sample};

/// Least number of pieces into which a partition that may be split is cut.
const PIECES: f64 = 8.0;

/// The pieces that a sample touches, by their indexes in key order: the first and last piece of each range that the
/// sample reads, and the pieces that it writes.
type Pattern = (Vec<(usize, usize)>, Vec<usize>);

/// Sums over the samples with one pattern: their weight, and their weighted numbers of rows read and of rows written.
#[derive(Default)]
struct Sums {
    weight: f64,
    rows: (f64, f64),
}

/// Returns weighted samples whose keys are replaced by the starts of their pieces; samples that touch the same pieces
/// are joined. Partitions with more than `split_above` times the mean access are cut into pieces; any other partition
/// is one piece.
#[must_use]
pub fn coarse<K: Key>(
    layout: &Layout<K>,
    samples: &[(f64, Sample<K>)],
    split_above: f64,
) -> Vec<(f64, Sample<K>)> {
    coarse_by(&starts(layout, samples, split_above), samples)
}

/// Returns the weighted `samples` with each key replaced by the start of its piece, given the `starts` of all pieces
/// in key order.
pub(super) fn coarse_by<K: Key>(
    starts: &[K],
    samples: &[(f64, Sample<K>)],
) -> Vec<(f64, Sample<K>)> {
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

/// Returns the starts of all pieces of a design, in key order: each partition's start, and keys inside the partitions
/// that have more than `split_above` times the mean access.
pub(super) fn starts<K: Key>(
    layout: &Layout<K>,
    samples: &[(f64, Sample<K>)],
    split_above: f64,
) -> Vec<K> {
    let numbered = Numbered::new(layout);
    let Accesses { statistics, .. } = Accesses::counted(&numbered, samples);
    let mean = mean_access(layout);
    let is_hot = |partition: usize| statistics.accesses(partition) > split_above * mean;
    // The accesses of each hot partition, by the first key of a transaction there: no piece begins within a
    // transaction.
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
            // A piece ends when it is full, and a key that fills a piece by itself begins one.
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
