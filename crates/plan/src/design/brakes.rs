//! What keeps adaptation from thrashing: plans that pay by the model are held back, watched, and undone.
//!
//! - *Cool-down*: a partition that was changed is left alone for as long as samples are kept, so that statistics
//!   from before a change say nothing against it.
//! - *Sustained*: a plan is carried out when it was found to pay in several decisions in a row. A burst is over
//!   before that.
//! - *Rate*: changes a second, on average and at once.
//! - *Measured*: after a change the latency is compared with what it was before. One that made it worse is undone,
//!   and not tried again for a time that doubles with each failure.
//!
//! Times are handed in, in ms.

use std::collections::BTreeMap;

use super::layout::{Key, Layout, Operator, Site};

/// How much is held back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// A partition that was changed is left alone for so long.
    pub cool_down_ms: u64,
    /// Decisions in a row in which a plan has to pay.
    pub sustained: u32,
    /// Operators a second, on average; so many at once.
    pub changes_s_max: f64,
    /// For how long the latency is measured before a change is judged.
    pub measured_ms: u64,
    /// A change made it worse if the latency grew by more than this share.
    pub worse_by: f64,
    /// How long a change that was undone is not tried again, the first time.
    pub banned_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            cool_down_ms: 5_000,
            sustained: 2,
            changes_s_max: 10.0,
            measured_ms: 3_000,
            worse_by: 0.1,
            banned_ms: 60_000,
        }
    }
}

/// A change that is being measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Watched<K> {
    /// Its operators, as they were carried out.
    pub operators: Vec<Operator<K>>,
    /// What takes them back, in this order.
    pub inverse: Vec<Operator<K>>,
    /// When the last of them was done.
    pub done_ms: u64,
    /// The mean latency before, in µs.
    pub before_us: f64,
    /// The mean latency that was predicted, in µs.
    pub predicted_us: f64,
}

/// The judgement on a change.
#[derive(Clone, Debug, PartialEq)]
pub enum Judged<K> {
    /// It stays.
    Kept(Watched<K>),
    /// It made things worse: its inverse has to be carried out.
    Undo(Watched<K>),
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Brakes<K> {
    limits: Limits,
    /// When each partition, by where it begins, was changed last.
    changed_ms: BTreeMap<K, u64>,
    /// Plans that paid in the last decision, by their shape, and in how many in a row.
    sustained: BTreeMap<Shape<K>, u32>,
    tokens: f64,
    filled_ms: u64,
    watched: Vec<Watched<K>>,
    /// Until when an operator is not tried again, and how often it failed.
    banned: BTreeMap<Operator<K>, (u64, u32)>,
}

/// What a plan does to which partitions: a split that is drawn a few keys further on is the same plan.
type Shape<K> = Vec<(&'static str, K, Option<Site>)>;

/// Partitions and operators that are remembered.
const REMEMBERED_MAX: usize = 10_000;
/// An operator's ban does not last longer than this, in ms.
const BANNED_MS_MAX: u64 = 3_600_000;

impl<K: Key> Brakes<K> {
    /// Brakes that know of no change.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            changed_ms: BTreeMap::new(),
            sustained: BTreeMap::new(),
            tokens: limits.changes_s_max.max(1.0),
            filled_ms: 0,
            watched: Vec::new(),
            banned: BTreeMap::new(),
        }
    }

    /// Why an operator may not be carried out now, if it may not.
    #[must_use]
    pub fn holds(&self, layout: &Layout<K>, operator: &Operator<K>, now_ms: u64) -> Option<String> {
        if let Some((until_ms, times)) =
            self.banned.get(operator).filter(|(until, _)| *until > now_ms)
        {
            let left_s = (until_ms - now_ms).div_ceil(1_000);
            return Some(format!("it made things worse {times} times: tried again in {left_s} s"));
        }
        let start = layout.of(operator.key()).0;
        let next = matches!(operator, Operator::Merge(_)).then(|| layout.next(start)).flatten();
        let starts = std::iter::once(start).chain(next.map(|(next, _)| next));
        let last_ms = starts.filter_map(|start| self.changed_ms.get(start)).max()?;
        let age_ms = now_ms.saturating_sub(*last_ms);
        (age_ms < self.limits.cool_down_ms)
            .then(|| format!("the partition was changed {:.1} s ago", age_ms as f64 / 1_000.0))
    }

    /// Takes note of the plans that pay in this decision, by the design that is; whether each did so often enough
    /// in a row.
    pub fn sustained(&mut self, layout: &Layout<K>, paying: &[&[Operator<K>]]) -> Vec<bool> {
        let shapes: Vec<Shape<K>> = paying.iter().map(|plan| shape(layout, plan)).collect();
        let times = |shape: &Shape<K>| self.sustained.get(shape).copied().unwrap_or(0) + 1;
        let counts: BTreeMap<_, _> = shapes.iter().map(|one| (one.clone(), times(one))).collect();
        self.sustained = counts;
        shapes.iter().map(|shape| self.sustained[shape] >= self.limits.sustained).collect()
    }

    /// Whether so many operators may be carried out now; they count as done if they may.
    pub fn may_spend(&mut self, operators: usize, now_ms: u64) -> bool {
        let most = self.limits.changes_s_max.max(1.0);
        let passed_s = now_ms.saturating_sub(self.filled_ms) as f64 / 1_000.0;
        self.tokens = (self.tokens + passed_s * self.limits.changes_s_max).min(most);
        self.filled_ms = self.filled_ms.max(now_ms);
        // A plan of more operators than there may be at once waits until there are as many as there can be.
        let cost = (operators as f64).min(most);
        let may = self.tokens >= cost;
        if may {
            self.tokens -= cost;
        }
        may
    }

    /// Takes note of operators that are carried out without a question, to take others back: later ones wait for it.
    pub fn spend(&mut self, operators: usize, now_ms: u64) {
        _ = self.may_spend(0, now_ms);
        self.tokens -= operators as f64;
    }

    /// Takes note of operators that were carried out on a design, and begins to measure what comes of them.
    pub fn done(
        &mut self,
        before: &Layout<K>,
        operators: Vec<Operator<K>>,
        now_ms: u64,
        (before_us, predicted_us): (f64, f64),
    ) {
        let inverse = inverse(before, &operators);
        self.touch(before, &operators, now_ms);
        self.watched.push(Watched { operators, inverse, done_ms: now_ms, before_us, predicted_us });
    }

    fn touch(&mut self, before: &Layout<K>, operators: &[Operator<K>], now_ms: u64) {
        let mut layout = before.clone();
        for operator in operators {
            let start = layout.of(operator.key()).0.clone();
            self.changed_ms.insert(start, now_ms);
            if let Operator::Split(key) = operator {
                self.changed_ms.insert(key.clone(), now_ms);
            }
            _ = layout.apply(operator);
        }
        let oldest =
            now_ms.saturating_sub(self.limits.cool_down_ms.max(self.limits.measured_ms) * 10);
        if self.changed_ms.len() > REMEMBERED_MAX {
            self.changed_ms.retain(|_, at_ms| *at_ms >= oldest);
        }
    }

    /// Judges the changes that were measured for long enough, by the mean latency since, in µs.
    pub fn judge(&mut self, now_ms: u64, latency_us: f64) -> Vec<Judged<K>> {
        let is_due =
            |one: &Watched<K>| now_ms.saturating_sub(one.done_ms) >= self.limits.measured_ms;
        let (due, rest) = std::mem::take(&mut self.watched).into_iter().partition(is_due);
        self.watched = rest;
        let due: Vec<Watched<K>> = due;
        due.into_iter().map(|one| self.judged(one, now_ms, latency_us)).collect()
    }

    fn judged(&mut self, one: Watched<K>, now_ms: u64, latency_us: f64) -> Judged<K> {
        if latency_us <= one.before_us * (1.0 + self.limits.worse_by) {
            return Judged::Kept(one);
        }
        for operator in &one.operators {
            let times = self.banned.get(operator).map_or(0, |(_, times)| *times) + 1;
            let banned_ms = self.limits.banned_ms.saturating_mul(1 << (times - 1).min(16));
            let until_ms = now_ms + banned_ms.min(BANNED_MS_MAX);
            self.banned.insert(operator.clone(), (until_ms, times));
        }
        if self.banned.len() > REMEMBERED_MAX {
            self.banned.retain(|_, (until_ms, _)| *until_ms > now_ms);
        }
        Judged::Undo(one)
    }

    /// Changes that are being measured.
    #[must_use]
    pub fn watched(&self) -> &[Watched<K>] {
        &self.watched
    }
}

fn shape<K: Key>(layout: &Layout<K>, plan: &[Operator<K>]) -> Shape<K> {
    let of = |operator: &Operator<K>| {
        let (kind, site) = match operator {
            Operator::Split(_) => ("split", None),
            Operator::Merge(_) => ("merge", None),
            Operator::AddReplica(_, site) => ("add-replica", Some(*site)),
            Operator::RemoveReplica(_, site) => ("remove-replica", Some(*site)),
            Operator::Remaster(_, site) => ("remaster", Some(*site)),
        };
        (kind, layout.of(operator.key()).0.clone(), site)
    };
    plan.iter().map(of).collect()
}

/// What takes operators back, in the order in which it has to be done.
#[must_use]
pub fn inverse<K: Key>(before: &Layout<K>, operators: &[Operator<K>]) -> Vec<Operator<K>> {
    let mut layout = before.clone();
    let mut inverse = Vec::new();
    for operator in operators {
        let (start, partition) = layout.of(operator.key());
        let master: Site = partition.master;
        inverse.push(match operator {
            Operator::Split(_) => Operator::Merge(start.clone()),
            Operator::Merge(first) => {
                let next = layout.next(first).map(|(next, _)| next.clone());
                Operator::Split(next.unwrap_or_else(|| first.clone()))
            }
            Operator::AddReplica(start, site) => Operator::RemoveReplica(start.clone(), *site),
            Operator::RemoveReplica(start, site) => Operator::AddReplica(start.clone(), *site),
            Operator::Remaster(start, _) => Operator::Remaster(start.clone(), master),
        });
        _ = layout.apply(operator);
    }
    inverse.reverse();
    inverse
}
