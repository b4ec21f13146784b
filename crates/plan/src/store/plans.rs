//! Candidate plans: operators that let a transaction run at a site, and others that may be good there (MorphoSys,
//! §5.3.3).
//!
//! A plan begins with the *necessary* operators: the site becomes the master of all that the transaction writes, and
//! gets a copy of all that it reads. Then follow operators that may be *beneficial* for the partitions of the
//! transaction: a split of one that is accessed far more than the others, a merge of two that are hardly accessed, and
//! masters and replicas of partitions that are accessed together with these. Whether a plan pays is not decided here
//! but by the price of the resulting design ([`super::decide`]).
//!
//! Invariants:
//! - A plan can be applied, in order, to the design that it was made for.
//! - A partition is split only above 1.5 times the mean access, and merged only if it and its neighbour are below half
//!   of the mean: so no merge undoes a split, nor the reverse, unless the workload changes.

use std::collections::BTreeMap;

use super::division::Division;
use super::layout::{Key, Layout, Operator, Site};
use super::workload::{CoAccess, Numbered, Sample, Statistics, Touched};

/// Thresholds and limits for making plans; the defaults are those of the paper's successor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// A partition with more than this multiple of the mean access of a partition may be split.
    pub split_above: f64,
    /// Two neighbouring partitions, each with less than this multiple of the mean access of a partition, may be
    /// merged.
    pub merge_below: f64,
    /// Two partitions belong together if both conditional probabilities, of accessing one given the other, are at
    /// least this (0..1).
    pub together_min: f64,
    /// Limit on the number of partitions of a design.
    pub partitions_max: usize,
    /// Limit on the number of replicas of one partition, its master not counted.
    pub replicas_max: usize,
    /// Least number of replicas of one partition: no plan leaves a partition with fewer that has as many.
    pub replicas_min: usize,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            split_above: 1.5,
            merge_below: 0.5,
            together_min: 0.5,
            partitions_max: 1_000,
            replicas_max: usize::MAX,
            replicas_min: 0,
        }
    }
}

impl Thresholds {
    /// True if operators that are executed on the design `before`, in order, are possible and keep to the limits of
    /// partitions and replicas: a limit that the design exceeds already may not be exceeded further. A partition that
    /// moves has one replica more until its old master has given its copy up.
    #[must_use]
    pub fn permits<K: Key>(&self, before: &Layout<K>, operators: &[Operator<K>]) -> bool {
        let mut layout = before.clone();
        let replicas = |layout: &Layout<K>, key: &K| layout.of(key).1.replicas.len();
        let mut touched = Vec::new();
        for operator in operators {
            let is_possible = layout.apply(operator).is_ok();
            let start = layout.of(operator.key()).0.clone();
            let replicas_before = replicas(before, &start);
            let replicas_max = (self.replicas_max.saturating_add(1)).max(replicas_before);
            let replicas_min = self.replicas_min.min(replicas_before);
            if !is_possible
                || layout.len() > self.partitions_max.max(before.len())
                || !(replicas_min..=replicas_max).contains(&replicas(&layout, &start))
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
    /// True if operators keep to the limits on the design `now` while the outcome of the `unsettled` ones is unknown:
    /// these count as executed if they still can be.
    #[must_use]
    pub fn permits_with_pending<'k, K: Key + 'k>(
        &self,
        now: &Layout<K>,
        unsettled: impl IntoIterator<Item = &'k Operator<K>>,
        operators: &[Operator<K>],
    ) -> bool {
        let mut layout = now.clone();
        unsettled.into_iter().for_each(|operator| _ = layout.apply(operator));
        self.permits(&layout, operators)
    }

    /// Returns the operators that remove the replicas which an unfinished plan added with the operators `made`, from
    /// partitions that now exceed the limit of replicas.
    pub fn surplus<'k, K: Key + 'k>(
        &'k self,
        now: &'k Layout<K>,
        made: impl IntoIterator<Item = &'k Operator<K>>,
    ) -> impl Iterator<Item = Operator<K>> {
        made.into_iter().filter_map(|operator| {
            let Operator::AddReplica(key, site) = operator else { return None };
            let (start, partition) = now.of(key);
            let replicas = partition.replicas;
            // If the site has become the master meanwhile, the surplus replica is at the old master.
            let copy = match partition.master == *site {
                true => replicas.iter().next(),
                false => replicas.contains(*site).then_some(*site),
            };
            let surplus = copy.filter(|_| replicas.len() > self.replicas_max);
            surplus.map(|site| Operator::RemoveReplica(start.clone(), site))
        })
    }

    /// True if the executed operators `done` have left a partition of the design `now` with more replicas than the
    /// limit, because the rest of their plan was not executed.
    #[must_use]
    pub fn are_exceeded_by<K: Key>(&self, now: &Layout<K>, done: &[Operator<K>]) -> bool {
        let added = done.iter().filter(|one| matches!(one, Operator::AddReplica(..)));
        let mut replicas = added.map(|one| now.of(one.key()).1.replicas.len());
        replicas.any(|replicas| replicas > self.replicas_max)
    }
}

/// A design with the access statistics of the samples on it, from which plans are made.
#[derive(Clone, Debug)]
pub struct View<'v, K> {
    /// The design, with its partitions numbered.
    pub numbered: &'v Numbered<'v, K>,
    /// Access statistics of the partitions.
    pub statistics: &'v Statistics,
    /// The weighted samples from which the statistics were computed.
    pub samples: &'v [(f64, Sample<K>)],
    /// Thresholds and limits for making plans.
    pub thresholds: &'v Thresholds,
    /// The best split key of each partition that may be split, by the partition's number.
    splits: BTreeMap<usize, K>,
}

impl<'v, K: Key> View<'v, K> {
    /// Creates a view of a design, from which plans are made; `statistics` are those of `samples` on that design.
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

/// The reason for which no plan lets a transaction run at a site.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPlan<K: std::fmt::Debug> {
    /// A partition that the transaction writes is pinned to another site: the partition's start, and that site.
    #[error("the partition at {0:?} is pinned to site {1}")]
    Pinned(K, Site),
    /// The partition that begins at this key has as many replicas as the limit allows.
    #[error("the partition at {0:?} may have no more replicas")]
    Replicas(K),
}

/// A plan under construction: its operators so far, and the design that they lead to.
struct PlanBuilder<K> {
    operators: Vec<Operator<K>>,
    layout: Layout<K>,
}

impl<K: Key> PlanBuilder<K> {
    /// Adds an operator to the plan if it is possible after the others. Returns true if it was added.
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
        // The old master keeps a replica; without room for one more, that replica is removed.
        let (old, is_full) = (partition.master, partition.replicas.len() >= replicas_max);
        let has_copy = partition.is_at(site);
        // A partition that has too many replicas already, because a plan was not finished, gets no further one.
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

/// Returns the operators after which a transaction that touches these partitions can run at a site: the necessary
/// ones, and no others.
///
/// # Errors
/// Fails if a pin of a partition or the limit of replicas forbids it.
#[cfg(test)]
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
) -> Result<PlanBuilder<K>, NoPlan<K>> {
    let layout = view.numbered.layout;
    let mut growing = PlanBuilder { operators: Vec::new(), layout: layout.clone() };
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

/// Returns the best split key of each partition that has more than its share of accesses: the median of the sampled
/// accesses, in front of the first key of some transaction there, so that the transaction is not divided. A key with
/// at least half of the accesses begins a partition, and the next split is at the key after it, so that a single hot
/// row ends in a partition of its own. A partition of which only one key was sampled has no split key.
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

/// Returns the key at which the partition that begins at `start` is split, by the weights of its sampled keys; `None`
/// if no key divides them.
fn split_key<K: Key>(start: &K, weights: &BTreeMap<&K, f64>) -> Option<K> {
    let all: f64 = weights.values().sum();
    let mut before = 0.0;
    let mut keys = weights.iter().peekable();
    while let Some((key, weight)) = keys.next() {
        if before + weight >= all / 2.0 {
            // In front of the key or after it, whichever makes the halves more alike, where both are possible.
            let next = keys.peek().map(|(next, _)| (**next).clone());
            let in_front = (before > 0.0 && *key > start).then(|| (**key).clone());
            let behind_is_better = all - before - weight > before;
            return if behind_is_better { next.or(in_front) } else { in_front.or(next) };
        }
        before += weight;
    }
    None
}

/// Returns the mean share of all accesses that a partition has. With fewer partitions than sites, it is the mean of as
/// many partitions as sites: a single partition has all accesses, and should be split.
#[must_use]
pub fn mean_access<K: Key>(layout: &Layout<K>) -> f64 {
    let (partitions, sites) = (layout.len(), layout.sites().len());
    1.0 / partitions.max(sites) as f64
}

/// Returns the plans for a transaction at a site: the necessary operators alone, these with the masters and replicas
/// of partitions that are accessed together, and splits and merges of the transaction's partitions. Equal plans are
/// returned once. Which plan to execute is decided by their prices.
///
/// # Errors
/// Fails if a pin of a partition or the limit of replicas forbids that the transaction runs at the site.
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

/// Adds to a plan for `site` the masters of partitions that are written together with those that the transaction
/// writes, and replicas of partitions that are read together with those that it reads, where the probabilities are
/// high in both directions.
fn together<K: Key>(
    view: &View<'_, K>,
    touched: &Touched,
    site: Site,
    growing: &mut PlanBuilder<K>,
) {
    let View { statistics, thresholds, numbered, .. } = view;
    let both = |forth: CoAccess, back: CoAccess, one: usize, two: usize| {
        statistics.conditional_probability(forth, one, two) >= thresholds.together_min
            && statistics.conditional_probability(back, two, one) >= thresholds.together_min
    };
    for one in &touched.writes {
        for two in statistics.partners(*one) {
            let start = numbered.start(*two);
            if both(CoAccess::WriteWrite, CoAccess::WriteWrite, *one, *two) {
                growing.master_to(start, site, thresholds.replicas_max);
            } else if both(CoAccess::WriteRead, CoAccess::ReadWrite, *one, *two) {
                growing.copy_to(start, site, thresholds.replicas_max);
            }
        }
    }
    for one in &touched.reads {
        for two in statistics.partners(*one) {
            if both(CoAccess::ReadRead, CoAccess::ReadRead, *one, *two) {
                growing.copy_to(numbered.start(*two), site, thresholds.replicas_max);
            }
        }
    }
}

fn split<K: Key>(view: &View<'_, K>, partition: usize) -> Vec<Vec<Operator<K>>> {
    view.splits.get(&partition).map(|key| vec![Operator::Split(key.clone())]).into_iter().collect()
}

/// Returns plans that split a partition and give one half to the site: such a split saves by what it allows the
/// halves.
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
        let mut growing = PlanBuilder { operators: Vec::new(), layout };
        let is_moved = growing.layout.of(half).1.master != site
            && growing.add(Operator::Split(key.clone()))
            && growing.master_to(half, site, replicas_max);
        is_moved.then_some(growing.operators)
    };
    [start, key].into_iter().filter_map(move_one).collect()
}

/// Returns the plans by which half of the transactions of a busy site move to `site`: splits at the starts of the
/// division's runs, then the masters of the partitions written there. In one plan copies stay at the old site, in the
/// other none do. Returns no plan where a limit or a pin forbids it.
#[must_use]
pub fn move_half<K: Key>(
    view: &View<'_, K>,
    division: &Division<K>,
    site: Site,
) -> Vec<Vec<Operator<K>>> {
    let layout = view.numbered.layout;
    let mut growing = PlanBuilder { operators: Vec::new(), layout: layout.clone() };
    let inner = division.starts.iter().filter(|start| layout.at(start).is_none());
    let is_split = inner.cloned().all(|start| growing.add(Operator::Split(start)));
    if !is_split || growing.layout.len() > view.thresholds.partitions_max {
        return Vec::new();
    }
    let written = view.samples.iter().flat_map(|(_, sample)| &sample.writes);
    let mut moved: Vec<K> = written
        .filter(|key| division.moves(key))
        .map(|key| growing.layout.of(key))
        .filter(|(_, partition)| partition.master == division.site)
        .map(|(start, _)| start.clone())
        .collect();
    moved.sort_unstable();
    moved.dedup();
    let replicas_max = view.thresholds.replicas_max;
    let is_moved = moved.iter().all(|start| growing.master_to(start, site, replicas_max));
    if !is_moved || moved.is_empty() {
        return Vec::new();
    }
    let with_copies = growing.operators.clone();
    moved
        .iter()
        .for_each(|start| _ = growing.add(Operator::RemoveReplica(start.clone(), division.site)));
    vec![with_copies, growing.operators]
}

/// Returns the merges of a partition with either neighbour, where both partitions are hardly accessed.
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

/// Returns one plan for each replica of the design, which removes that replica.
pub fn removals<'v, K: Key>(view: &'v View<'v, K>) -> impl Iterator<Item = Vec<Operator<K>>> + 'v {
    view.numbered.layout.partitions().flat_map(|(start, one)| {
        one.replicas.iter().map(|site| vec![Operator::RemoveReplica(start.clone(), site)])
    })
}
