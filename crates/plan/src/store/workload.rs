//! The workload model (MorphoSys, §5.1): how often partitions are read and written, and which of them together.
//!
//! Samples hold the keys that transactions declared, not partitions. The statistics of a design, present or planned,
//! are computed from the samples. So a split, a merge or a moved boundary needs no conversion, and the halves of a
//! planned split are weighted by the sampled accesses in each, where the paper assumes that accesses within a partition
//! are uniform.

use std::collections::{BTreeMap, HashMap};

use super::layout::{Key, Layout};

/// A sampled transaction, with the accesses that it declared in its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample<K> {
    /// Key ranges that the transaction reads in addition to `writes`: start, and exclusive end; without an end, up to
    /// the last key.
    pub reads: Vec<(K, Option<K>)>,
    /// The keys that the transaction may write.
    pub writes: Vec<K>,
    /// Number of rows that the transaction read, including those that it also wrote.
    pub rows_read: u32,
    /// Number of rows that the transaction wrote.
    pub rows_written: u32,
}

/// The partitions that a transaction touches on a design, by their numbers in key order, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Numbers of the partitions that the transaction reads and does not write, in ascending order.
    pub reads: Vec<usize>,
    /// Numbers of the partitions that the transaction writes, in ascending order.
    pub writes: Vec<usize>,
}

/// A design with its partitions numbered in key order, from 0.
#[derive(Clone, Debug)]
pub struct Numbered<'l, K> {
    /// The design.
    pub layout: &'l Layout<K>,
    starts: Vec<&'l K>,
}

impl<'l, K: Key> Numbered<'l, K> {
    /// Numbers the partitions of a design in key order, from 0.
    #[must_use]
    pub fn new(layout: &'l Layout<K>) -> Self {
        Self { layout, starts: layout.partitions().map(|(start, _)| start).collect() }
    }

    /// Returns the start key of the partition with this number.
    #[must_use]
    pub fn start(&self, number: usize) -> &'l K {
        self.starts[number]
    }

    /// Returns the number of the partition that a key belongs to.
    #[must_use]
    pub fn of(&self, key: &K) -> usize {
        self.starts.partition_point(|start| *start <= key).saturating_sub(1)
    }

    /// Returns the partitions that a sampled transaction touches, by their numbers.
    #[must_use]
    pub fn touched(&self, sample: &Sample<K>) -> Touched {
        let mut writes: Vec<usize> = sample.writes.iter().map(|key| self.of(key)).collect();
        writes.sort_unstable();
        writes.dedup();
        let mut reads = Vec::new();
        for (from, end) in &sample.reads {
            let first = self.of(from);
            let end = end.as_ref();
            let behind = end
                .map_or(self.starts.len(), |end| self.starts.partition_point(|start| *start < end));
            reads.extend(first..behind.max(first + 1));
        }
        reads.sort_unstable();
        reads.dedup();
        reads.retain(|read| writes.binary_search(read).is_err());
        Touched { reads, writes }
    }
}

/// The accesses of weighted samples on a design: the partitions that each touches, and how often partitions are
/// accessed. They depend on where partitions begin, and not on masters and replicas.
#[derive(Clone, Debug, PartialEq)]
pub struct Accesses {
    /// The partitions that each sample touches, in the order of the samples.
    pub touched: Vec<Touched>,
    /// Access statistics over all samples.
    pub statistics: Statistics,
}

impl Accesses {
    /// Counts the accesses of samples, and which partitions they access together.
    #[must_use]
    pub fn of<K: Key>(numbered: &Numbered<'_, K>, samples: &[(f64, Sample<K>)]) -> Self {
        let touched = touched(numbered, samples);
        let statistics = Statistics::of(numbered.layout.len(), weighed(samples, &touched));
        Self { touched, statistics }
    }

    /// Counts the accesses of samples, but not which partitions they access together, which takes most of the time.
    #[must_use]
    pub fn counted<K: Key>(numbered: &Numbered<'_, K>, samples: &[(f64, Sample<K>)]) -> Self {
        let touched = touched(numbered, samples);
        let statistics = Statistics::counted(numbered.layout.len(), weighed(samples, &touched));
        Self { touched, statistics }
    }
}

fn touched<K: Key>(numbered: &Numbered<'_, K>, samples: &[(f64, Sample<K>)]) -> Vec<Touched> {
    samples.iter().map(|(_, sample)| numbered.touched(sample)).collect()
}

fn weighed<'t, K>(
    samples: &'t [(f64, Sample<K>)],
    touched: &'t [Touched],
) -> impl Iterator<Item = (f64, &'t Touched)> {
    samples.iter().map(|(weight, _)| *weight).zip(touched)
}

/// The kinds of two accesses of a transaction, to partitions p₁ and p₂, in a conditional probability; the given one,
/// to p₁, is named first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoAccess {
    /// The transaction reads p₂, given that it reads p₁: P(r(p₂) | r(p₁)).
    ReadRead,
    /// The transaction writes p₂, given that it writes p₁: P(w(p₂) | w(p₁)).
    WriteWrite,
    /// The transaction reads p₂, given that it writes p₁: P(r(p₂) | w(p₁)).
    WriteRead,
    /// The transaction writes p₂, given that it reads p₁: P(w(p₂) | r(p₁)).
    ReadWrite,
}

/// Frequencies of accesses to partitions, each alone and together with others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Statistics {
    /// For each partition, the weight of the samples that read it without writing it, and of those that write it.
    counts: Vec<(f64, f64)>,
    /// The weight of all reads and writes of partitions.
    all: f64,
    /// For two partitions, the weights of the samples that read both, write both, write the first and read the second,
    /// and read the first and write the second.
    together: HashMap<(usize, usize), [f64; 4]>,
    /// For each partition, the numbers of those that some sample touched together with it, in ascending order.
    partners: BTreeMap<usize, Vec<usize>>,
}

impl Statistics {
    /// Counts the accesses of weighted samples on a design with this number of partitions, alone and together.
    #[must_use]
    pub fn of<'t>(partitions: usize, touched: impl Iterator<Item = (f64, &'t Touched)>) -> Self {
        let mut statistics = Self::empty(partitions);
        for (weight, touched) in touched {
            statistics.count(weight, touched);
            let Touched { reads, writes } = touched;
            // A scan of everything does not show that two partitions belong together.
            if reads.len() + writes.len() > PARTNERS_MAX {
                continue;
            }
            let kinds = |of: &[usize], is_write| of.iter().map(move |n| (*n, is_write)).collect();
            let all: Vec<(usize, bool)> = [kinds(reads, false), kinds(writes, true)]
                .into_iter()
                .flat_map(|all: Vec<_>| all)
                .collect();
            for (one, one_writes) in &all {
                for (two, two_writes) in all.iter().filter(|(two, _)| two != one) {
                    let kind = kind(*one_writes, *two_writes) as usize;
                    statistics.together.entry((*one, *two)).or_default()[kind] += weight;
                }
            }
        }
        let mut pairs: Vec<(usize, usize)> = statistics.together.keys().copied().collect();
        pairs.sort_unstable();
        for (one, two) in pairs {
            statistics.partners.entry(one).or_default().push(two);
        }
        statistics
    }

    /// Counts the accesses of weighted samples on a design with this number of partitions, but not those together,
    /// which takes most of the time.
    #[must_use]
    pub fn counted<'t>(
        partitions: usize,
        touched: impl Iterator<Item = (f64, &'t Touched)>,
    ) -> Self {
        let mut statistics = Self::empty(partitions);
        touched.for_each(|(weight, touched)| statistics.count(weight, touched));
        statistics
    }

    fn empty(partitions: usize) -> Self {
        Self { counts: vec![(0.0, 0.0); partitions], ..Self::default() }
    }

    fn count(&mut self, weight: f64, Touched { reads, writes }: &Touched) {
        reads.iter().for_each(|read| self.counts[*read].0 += weight);
        writes.iter().for_each(|write| self.counts[*write].1 += weight);
        self.all += weight * (reads.len() + writes.len()) as f64;
    }

    /// Returns R(p): the share (0..1) of reads of the partition with this number in all accesses to partitions.
    #[must_use]
    pub fn reads(&self, partition: usize) -> f64 {
        self.counts[partition].0 / self.all.max(f64::MIN_POSITIVE)
    }

    /// Returns W(p): the share (0..1) of writes of the partition with this number in all accesses to partitions.
    #[must_use]
    pub fn writes(&self, partition: usize) -> f64 {
        self.counts[partition].1 / self.all.max(f64::MIN_POSITIVE)
    }

    /// Returns R(p) + W(p): the share (0..1) of the partition with this number in all accesses to partitions.
    #[must_use]
    pub fn accesses(&self, partition: usize) -> f64 {
        self.reads(partition) + self.writes(partition)
    }

    /// Returns the probability that a transaction accesses partition `two`, given that it accesses partition `one`;
    /// `kind` has the kinds of both accesses.
    #[must_use]
    pub fn conditional_probability(&self, kind: CoAccess, one: usize, two: usize) -> f64 {
        let (reads, writes) = self.counts[one];
        let all = match kind {
            CoAccess::ReadRead | CoAccess::ReadWrite => reads,
            CoAccess::WriteWrite | CoAccess::WriteRead => writes,
        };
        let together = self.together.get(&(one, two)).map_or(0.0, |kinds| kinds[kind as usize]);
        together / all.max(f64::MIN_POSITIVE)
    }

    /// Returns the weight of the samples that accessed both of two partitions, in any way.
    #[must_use]
    pub fn together(&self, one: usize, two: usize) -> f64 {
        self.together.get(&(one, two)).map_or(0.0, |kinds| kinds.iter().sum())
    }

    /// Returns the numbers of the partitions that some transaction touched together with this one, in ascending order.
    #[must_use]
    pub fn partners(&self, partition: usize) -> &[usize] {
        self.partners.get(&partition).map_or(&[], Vec::as_slice)
    }
}

/// Limit on the partitions of a transaction beyond which they are not counted as accessed together.
const PARTNERS_MAX: usize = 32;

fn kind(one_writes: bool, two_writes: bool) -> CoAccess {
    match (one_writes, two_writes) {
        (false, false) => CoAccess::ReadRead,
        (true, true) => CoAccess::WriteWrite,
        (true, false) => CoAccess::WriteRead,
        (false, true) => CoAccess::ReadWrite,
    }
}
