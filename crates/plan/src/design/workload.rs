//! The workload model (MorphoSys, §5.1): how often partitions are read and written, and which of them together.
//!
//! Samples hold the keys that transactions named, not partitions. The statistics are told from the samples
//! by the design that is, or that would be: so a split, a merge or a moved boundary carries them over by
//! itself, and the halves of a partition that would be split are weighed by what is really read and written
//! in each, where the paper assumes that accesses within a partition are uniform.

use std::collections::{BTreeMap, HashMap};

use super::layout::{Key, Layout};

/// A transaction as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample<K> {
    /// Key ranges that it reads besides: from a key on, up to another, exclusive; without an end, to the last
    /// key.
    pub reads: Vec<(K, Option<K>)>,
    /// The keys that it may write.
    pub writes: Vec<K>,
    /// Rows that it read, those that it writes among them.
    pub rows_read: u32,
    /// Rows that it wrote.
    pub rows_written: u32,
}

/// A sample by a design: which partitions it touches, by their numbers in the order of keys, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Those that it reads and does not write.
    pub reads: Vec<usize>,
    /// Those that it writes.
    pub writes: Vec<usize>,
}

/// The partitions of a design by number.
#[derive(Clone, Debug)]
pub struct Numbered<'l, K> {
    /// The design.
    pub layout: &'l Layout<K>,
    starts: Vec<&'l K>,
}

impl<'l, K: Key> Numbered<'l, K> {
    /// Numbers the partitions of a design.
    #[must_use]
    pub fn new(layout: &'l Layout<K>) -> Self {
        Self { layout, starts: layout.partitions().map(|(start, _)| start).collect() }
    }

    /// Returns the start of a partition, by its number.
    #[must_use]
    pub fn start(&self, number: usize) -> &'l K {
        self.starts[number]
    }

    /// The number of the partition that a key belongs to.
    #[must_use]
    pub fn of(&self, key: &K) -> usize {
        self.starts.partition_point(|start| *start <= key).saturating_sub(1)
    }

    /// Returns the partitions that a transaction touches.
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

/// Weighted samples by a design: the partitions that each touches, and the frequencies of accesses to these.
/// They depend on where partitions begin, and not on their masters and replicas.
#[derive(Clone, Debug, PartialEq)]
pub struct Accesses {
    /// For each sample, in their order.
    pub touched: Vec<Touched>,
    /// The statistics of all.
    pub statistics: Statistics,
}

impl Accesses {
    /// Of these samples, with what is touched together.
    #[must_use]
    pub fn of<K: Key>(numbered: &Numbered<'_, K>, samples: &[(f64, Sample<K>)]) -> Self {
        let touched = touched(numbered, samples);
        let statistics = Statistics::of(numbered.layout.len(), weighed(samples, &touched));
        Self { touched, statistics }
    }

    /// The same without what is touched together, which takes most of the time.
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

/// Which of two accesses is meant, the given one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// P(r(p₂) | r(p₁)).
    ReadRead,
    /// P(w(p₂) | w(p₁)).
    WriteWrite,
    /// P(r(p₂) | w(p₁)).
    WriteRead,
    /// P(w(p₂) | r(p₁)).
    ReadWrite,
}

/// Frequencies of accesses to partitions, each alone and together with others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Statistics {
    /// The weight of the samples that read and that write each partition.
    counts: Vec<(f64, f64)>,
    /// All reads and writes of partitions.
    all: f64,
    /// By the two numbers: the weight of samples in which the second was read with a read of the first, written
    /// with a write, read with a write, written with a read.
    together: HashMap<(usize, usize), [f64; 4]>,
    /// The partitions that were ever touched with each.
    partners: BTreeMap<usize, Vec<usize>>,
}

impl Statistics {
    /// The statistics of weighted samples by a design of so many partitions.
    #[must_use]
    pub fn of<'t>(partitions: usize, touched: impl Iterator<Item = (f64, &'t Touched)>) -> Self {
        let mut statistics = Self::empty(partitions);
        for (weight, touched) in touched {
            statistics.count(weight, touched);
            let Touched { reads, writes } = touched;
            // A scan of everything says of no two partitions that they belong together.
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

    /// The same without what is touched together, which takes most of the time.
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

    /// R(p): the share of reads of this partition in all accesses of partitions.
    #[must_use]
    pub fn reads(&self, partition: usize) -> f64 {
        self.counts[partition].0 / self.all.max(f64::MIN_POSITIVE)
    }

    /// W(p): the share of writes.
    #[must_use]
    pub fn writes(&self, partition: usize) -> f64 {
        self.counts[partition].1 / self.all.max(f64::MIN_POSITIVE)
    }

    /// Both together.
    #[must_use]
    pub fn accesses(&self, partition: usize) -> f64 {
        self.reads(partition) + self.writes(partition)
    }

    /// The probability that a transaction accesses `two` in one way, given that it accesses `one` in another.
    #[must_use]
    pub fn given(&self, kind: Given, one: usize, two: usize) -> f64 {
        let (reads, writes) = self.counts[one];
        let all = match kind {
            Given::ReadRead | Given::ReadWrite => reads,
            Given::WriteWrite | Given::WriteRead => writes,
        };
        let together = self.together.get(&(one, two)).map_or(0.0, |kinds| kinds[kind as usize]);
        together / all.max(f64::MIN_POSITIVE)
    }

    /// The partitions that were touched in one transaction with this one, in the order of their numbers.
    #[must_use]
    pub fn partners(&self, partition: usize) -> &[usize] {
        self.partners.get(&partition).map_or(&[], Vec::as_slice)
    }
}

/// A transaction that touches more partitions than this tells nothing of pairs.
const PARTNERS_MAX: usize = 32;

fn kind(one_writes: bool, two_writes: bool) -> Given {
    match (one_writes, two_writes) {
        (false, false) => Given::ReadRead,
        (true, true) => Given::WriteWrite,
        (true, false) => Given::WriteRead,
        (false, true) => Given::ReadWrite,
    }
}
