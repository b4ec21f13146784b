//! Plans: what would let a transaction run at a site, and what else would be good there (MorphoSys, §5.3.3).
//!
//! A plan begins with what is *necessary*: the site becomes the master of all that the transaction writes and
//! gets a copy of all that it reads. Then comes what may be *beneficial* for the partitions of the transaction:
//! a split of one that is accessed far more than the others, a merge of two that hardly are, and masters and
//! replicas of partitions that are accessed together with these. Whether it pays is not decided here but by
//! the price of the design that would be ([`super::decide`]).
//!
//! Invariants:
//! - A plan can be applied to the design it was made for, in its order, or there is none.
//! - A partition is split only above 1.5 times the mean access and merged only below half of it with its
//!   neighbour likewise: so no merge undoes a split, nor the reverse, unless the workload changes.

use std::collections::BTreeMap;

use super::layout::{Key, Layout, Operator, Site};
use super::workload::{Given, Numbered, Sample, Statistics, Touched};

/// Thresholds of plans; the defaults are those of the paper's successor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// A partition with more than this times the mean access may be split.
    pub split_above: f64,
    /// Two partitions with less than this times the mean access each may be merged.
    pub merge_below: f64,
    /// Partitions belong together when both probabilities are at least this.
    pub together_min: f64,
    /// A design has no more partitions than this.
    pub partitions_max: usize,
    /// A partition has no more replicas than this.
    pub replicas_max: usize,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            split_above: 1.5,
            merge_below: 0.5,
            together_min: 0.5,
            partitions_max: 1_000,
            replicas_max: usize::MAX,
        }
    }
}

impl Thresholds {
    /// True if operators that are carried out on a design, one after the other, keep to its limits: a design
    /// that exceeds one already may not exceed it further. A partition that moves has one replica more until
    /// its old master has given its copy up.
    #[must_use]
    pub fn keeps<K: Key>(&self, before: &Layout<K>, operators: &[Operator<K>]) -> bool {
        let mut layout = before.clone();
        let replicas = |layout: &Layout<K>, key: &K| layout.of(key).1.replicas.len();
        let mut touched = Vec::new();
        for operator in operators {
            let is_possible = layout.apply(operator).is_ok();
            let start = layout.of(operator.key()).0.clone();
            let replicas_max = (self.replicas_max.saturating_add(1)).max(replicas(before, &start));
            if !is_possible
                || layout.len() > self.partitions_max.max(before.len())
                || replicas(&layout, &start) > replicas_max
            {
                return false;
            }
            touched.push(start);
        }
        touched
            .iter()
            .all(|start| replicas(&layout, start) <= self.replicas_max.max(replicas(before, start)))
    }
}

impl Thresholds {
    /// The same where it is not known yet whether others were carried out: these count as done if they still can be.
    #[must_use]
    pub fn keeps_beside<'k, K: Key + 'k>(
        &self,
        now: &Layout<K>,
        unsettled: impl IntoIterator<Item = &'k Operator<K>>,
        operators: &[Operator<K>],
    ) -> bool {
        let mut layout = now.clone();
        unsettled.into_iter().for_each(|operator| _ = layout.apply(operator));
        self.keeps(&layout, operators)
    }

    /// The operators that take back the copies that a plan made which was not carried out to its end, of partitions with more than
    /// there may be by the design now.
    pub fn surplus<'k, K: Key + 'k>(
        &'k self,
        now: &'k Layout<K>,
        made: impl IntoIterator<Item = &'k Operator<K>>,
    ) -> impl Iterator<Item = Operator<K>> {
        made.into_iter().filter_map(|operator| {
            let Operator::AddReplica(key, site) = operator else { return None };
            let (start, partition) = now.of(key);
            let replicas = partition.replicas;
            // It may have become the master meanwhile: then the old one has the copy that is too many.
            let copy = match partition.master == *site {
                true => replicas.iter().next(),
                false => replicas.contains(*site).then_some(*site),
            };
            let surplus = copy.filter(|_| replicas.len() > self.replicas_max);
            surplus.map(|site| Operator::RemoveReplica(start.clone(), site))
        })
    }

    /// True if operators that were carried out have left a partition with a replica too many, by the design
    /// now: the rest of their plan was not carried out.
    #[must_use]
    pub fn are_exceeded_by<K: Key>(&self, now: &Layout<K>, done: &[Operator<K>]) -> bool {
        let added = done.iter().filter(|one| matches!(one, Operator::AddReplica(..)));
        let mut replicas = added.map(|one| now.of(one.key()).1.replicas.len());
        replicas.any(|replicas| replicas > self.replicas_max)
    }
}

/// A design with the statistics of what was sampled by it.
#[derive(Clone, Debug)]
pub struct View<'v, K> {
    /// The partitions by number.
    pub numbered: &'v Numbered<'v, K>,
    /// Their statistics.
    pub statistics: &'v Statistics,
    /// The samples that these are told from.
    pub samples: &'v [(f64, Sample<K>)],
    /// The thresholds.
    pub thresholds: &'v Thresholds,
    /// For each partition that may be split: the best key for it.
    splits: BTreeMap<usize, K>,
}

impl<'v, K: Key> View<'v, K> {
    /// A view of a design; its statistics are those of the samples by it.
    #[must_use]
    pub fn new(
        numbered: &'v Numbered<'v, K>,
        statistics: &'v Statistics,
        samples: &'v [(f64, Sample<K>)],
        thresholds: &'v Thresholds,
    ) -> Self {
        let splits = splits(numbered, statistics, samples, thresholds);
        Self { numbered, statistics, samples, thresholds, splits }
    }
}

/// Why there is no plan for a transaction at a site.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPlan<K: std::fmt::Debug> {
    /// A partition that it writes is pinned elsewhere.
    #[error("the partition at {0:?} is pinned to site {1}")]
    Pinned(K, Site),
    /// A partition has as many replicas as it may have.
    #[error("the partition at {0:?} may have no more replicas")]
    Replicas(K),
}

/// A growing plan, and the design that it leads to.
struct Growing<K> {
    operators: Vec<Operator<K>>,
    layout: Layout<K>,
}

impl<K: Key> Growing<K> {
    /// Adds an operator, if it is possible behind the others.
    fn add(&mut self, operator: Operator<K>) -> bool {
        let is_possible = self.layout.apply(&operator).is_ok();
        if is_possible {
            self.operators.push(operator);
        }
        is_possible
    }

    fn copy_to(&mut self, start: &K, site: Site, replicas_max: usize) -> bool {
        let partition = self.layout.of(start).1;
        if partition.is_at(site) {
            return true;
        }
        partition.replicas.len() < replicas_max
            && self.add(Operator::AddReplica(start.clone(), site))
    }

    fn master_to(&mut self, start: &K, site: Site, replicas_max: usize) -> bool {
        let partition = self.layout.of(start).1;
        if partition.master == site {
            return true;
        }
        // The old master keeps a copy: with room for none it is removed.
        let (old, is_full) = (partition.master, partition.replicas.len() >= replicas_max);
        let has_copy = partition.is_at(site);
        // One that has too many already, because a plan was not carried out to its end, gets no further one.
        let has_room = partition.replicas.len() <= replicas_max;
        if partition.pin.is_some_and(|pin| pin != site)
            || !has_copy && !has_room
            || !has_copy && !self.add(Operator::AddReplica(start.clone(), site))
            || !self.add(Operator::Remaster(start.clone(), site))
        {
            return false;
        }
        !is_full || has_copy || self.add(Operator::RemoveReplica(start.clone(), old))
    }
}

/// The plan after which a transaction can run at a site: what is necessary, and nothing else.
///
/// # Errors
/// Which limit forbids it.
pub fn necessary<K: Key>(
    view: &View<'_, K>,
    touched: &Touched,
    site: Site,
) -> Result<Vec<Operator<K>>, NoPlan<K>> {
    grown(view, touched, site).map(|grown| grown.operators)
}

fn grown<K: Key>(
    view: &View<'_, K>,
    touched: &Touched,
    site: Site,
) -> Result<Growing<K>, NoPlan<K>> {
    let layout = view.numbered.layout;
    let mut growing = Growing { operators: Vec::new(), layout: layout.clone() };
    let replicas_max = view.thresholds.replicas_max;
    for write in &touched.writes {
        let start = view.numbered.start(*write);
        if !growing.master_to(start, site, replicas_max) {
            let pin = layout.at(start).and_then(|one| one.pin).filter(|pin| *pin != site);
            let start = start.clone();
            return Err(
                pin.map_or(NoPlan::Replicas(start.clone()), |pin| NoPlan::Pinned(start, pin))
            );
        }
    }
    for read in &touched.reads {
        let start = view.numbered.start(*read);
        if !growing.copy_to(start, site, replicas_max) {
            return Err(NoPlan::Replicas(start.clone()));
        }
    }
    Ok(growing)
}

/// The best keys to split partitions at that have more than their share: the median of the sampled accesses, in front
/// of the first key of some transaction there, which so is not torn apart. A key with half of them or more begins a
/// partition, and the next one the one behind it, so that a single hot row ends alone. A partition of which only one
/// key was sampled has none.
fn splits<K: Key>(
    numbered: &Numbered<'_, K>,
    statistics: &Statistics,
    samples: &[(f64, Sample<K>)],
    thresholds: &Thresholds,
) -> BTreeMap<usize, K> {
    let layout = numbered.layout;
    if layout.len() >= thresholds.partitions_max {
        return BTreeMap::new();
    }
    let hot_above = thresholds.split_above * mean_access(layout);
    let is_hot = |partition: usize| statistics.accesses(partition) > hot_above;
    let mut hot: BTreeMap<usize, BTreeMap<&K, f64>> =
        (0..layout.len()).filter(|one| is_hot(*one)).map(|one| (one, BTreeMap::new())).collect();
    for (weight, sample) in samples {
        let mut here: BTreeMap<usize, (&K, f64)> = BTreeMap::new();
        for key in sample.writes.iter().chain(sample.reads.iter().map(|(from, _)| from)) {
            let of = here.entry(numbered.of(key)).or_insert((key, 0.0));
            *of = (of.0.min(key), of.1 + weight);
        }
        for (partition, (first, weight)) in here {
            if let Some(weights) = hot.get_mut(&partition) {
                *weights.entry(first).or_default() += weight;
            }
        }
    }
    let key = |(partition, weights): (usize, BTreeMap<&K, f64>)| {
        split_key(numbered.start(partition), &weights).map(|key| (partition, key))
    };
    hot.into_iter().filter_map(key).collect()
}

/// Where a partition is split by the weights of keys in it.
fn split_key<K: Key>(start: &K, weights: &BTreeMap<&K, f64>) -> Option<K> {
    let all: f64 = weights.values().sum();
    let mut before = 0.0;
    let mut keys = weights.iter().peekable();
    while let Some((key, weight)) = keys.next() {
        if before + weight >= all / 2.0 {
            // In front of it, or behind, by which halves are more alike; in front where nothing lies before.
            let next = keys.peek().map(|(next, _)| (**next).clone());
            let in_front = (before > 0.0 && *key > start).then(|| (**key).clone());
            let behind_is_better = all - before - weight > before;
            return if behind_is_better { next.or(in_front) } else { in_front.or(next) };
        }
        before += weight;
    }
    None
}

/// The mean access of a partition. While there are fewer partitions than sites, the mean of that many: a single
/// partition has all accesses, and should be split.
#[must_use]
pub fn mean_access<K: Key>(layout: &Layout<K>) -> f64 {
    let (partitions, sites) = (layout.len(), layout.sites().len());
    1.0 / partitions.max(sites) as f64
}

/// Plans for a transaction at a site: the necessary operators alone, then with what may be beneficial, each
/// extension by itself and all together; those that differ. Which of them pays is decided by their prices.
///
/// # Errors
/// Which limit forbids that it runs there.
pub fn plans<K: Key>(
    view: &View<'_, K>,
    touched: &Touched,
    site: Site,
) -> Result<Vec<Vec<Operator<K>>>, NoPlan<K>> {
    let base = grown(view, touched, site)?;
    let mut plans = vec![base.operators.clone()];
    let mut all = base;
    together(view, touched, site, &mut all);
    plans.push(all.operators.clone());
    for one in touched.writes.iter().chain(&touched.reads) {
        for mut extended in [split(view, *one), split_and_move(view, *one, site), merge(view, *one)]
        {
            plans.append(&mut extended);
        }
    }
    plans.retain(|plan| !plan.is_empty());
    let mut seen = std::collections::BTreeSet::new();
    plans.retain(|plan| seen.insert(plan.clone()));
    Ok(plans)
}

/// Piggy-backs masters of what is written together with what the transaction writes, and replicas of what is
/// read with it, where the probabilities are high in both directions.
fn together<K: Key>(view: &View<'_, K>, touched: &Touched, site: Site, growing: &mut Growing<K>) {
    let View { statistics, thresholds, numbered, .. } = view;
    let both = |forth: Given, back: Given, one: usize, two: usize| {
        statistics.given(forth, one, two) >= thresholds.together_min
            && statistics.given(back, two, one) >= thresholds.together_min
    };
    for one in &touched.writes {
        for two in statistics.partners(*one) {
            let start = numbered.start(*two);
            if both(Given::WriteWrite, Given::WriteWrite, *one, *two) {
                growing.master_to(start, site, thresholds.replicas_max);
            } else if both(Given::WriteRead, Given::ReadWrite, *one, *two) {
                growing.copy_to(start, site, thresholds.replicas_max);
            }
        }
    }
    for one in &touched.reads {
        for two in statistics.partners(*one) {
            if both(Given::ReadRead, Given::ReadRead, *one, *two) {
                growing.copy_to(numbered.start(*two), site, thresholds.replicas_max);
            }
        }
    }
}

fn split<K: Key>(view: &View<'_, K>, partition: usize) -> Vec<Vec<Operator<K>>> {
    view.splits.get(&partition).map(|key| vec![Operator::Split(key.clone())]).into_iter().collect()
}

/// A split whose one half goes to the site: here a split pays by what it lets the halves do.
fn split_and_move<K: Key>(
    view: &View<'_, K>,
    partition: usize,
    site: Site,
) -> Vec<Vec<Operator<K>>> {
    let start = view.numbered.start(partition);
    let Some(key) = view.splits.get(&partition) else { return Vec::new() };
    let replicas_max = view.thresholds.replicas_max;
    let move_one = |half: &K| {
        let layout = view.numbered.layout.clone();
        let mut growing = Growing { operators: Vec::new(), layout };
        let is_moved = growing.layout.of(half).1.master != site
            && growing.add(Operator::Split(key.clone()))
            && growing.master_to(half, site, replicas_max);
        is_moved.then_some(growing.operators)
    };
    [start, key].into_iter().filter_map(move_one).collect()
}

/// Merges with either neighbour, if all are hardly accessed.
fn merge<K: Key>(view: &View<'_, K>, partition: usize) -> Vec<Vec<Operator<K>>> {
    let limit = view.thresholds.merge_below * mean_access(view.numbered.layout);
    let is_cold = |one: usize| view.statistics.accesses(one) < limit;
    let count = view.numbered.layout.len();
    let pairs = [partition.checked_sub(1), Some(partition).filter(|one| one + 1 < count)];
    let is_mergeable = |first: &usize| {
        is_cold(*first)
            && is_cold(first + 1)
            && view.numbered.layout.are_alike(view.numbered.start(*first))
    };
    let pairs = pairs.into_iter().flatten().filter(is_mergeable);
    pairs.map(|first| vec![Operator::Merge(view.numbered.start(first).clone())]).collect()
}

/// Replicas that might be removed: each alone.
pub fn removals<'v, K: Key>(view: &'v View<'v, K>) -> impl Iterator<Item = Vec<Operator<K>>> + 'v {
    view.numbered.layout.partitions().flat_map(|(start, one)| {
        one.replicas.iter().map(|site| vec![Operator::RemoveReplica(start.clone(), site)])
    })
}
