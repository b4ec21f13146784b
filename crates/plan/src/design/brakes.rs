//! Brakes on adaptation, against thrashing: plans that pay by the model are held back, watched, and undone.
//!
//! - *Cool-down*: a partition that was changed is left alone for a moment, and what would take the change back is not
//!   done for as long as samples are kept, so that statistics from before a change say nothing against it.
//! - *Sustained*: a plan is carried out when it was found to pay in several decisions in a row. A burst is over
//!   before that.
//! - *Rate*: changes a second, on average and at once.
//! - *Measured*: after a change the latency is compared with what it was before. One that made it worse, twice in a
//!   row, is undone, and not tried again for a time that doubles with each failure. Twice, because a moment in which
//!   the machine stood still is no fault of a change.
//!
//! Times are handed in, in ms.

use std::collections::BTreeMap;

use super::layout::{Key, Layout, Operator, Site};

mod bans;

/// The limits of the brakes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// A partition that was changed is left alone for so long.
    pub cool_down_ms: u64,
    /// Planned operators do not take a change back within this time, in ms.
    pub reversal_ms: u64,
    /// Decisions in a row in which a plan has to pay.
    pub sustained: u32,
    /// Operators a second, on average; so many at once.
    pub changes_s_max: f64,
    /// For how long the latency is measured before a change is judged; as long again before it is undone.
    pub measured_ms: u64,
    /// A change made it worse if the latency grew by more than this share.
    pub worse_by: f64,
    /// The first ban of the operators of a change that was undone, in ms.
    pub banned_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            cool_down_ms: 1_000,
            reversal_ms: 10_000,
            sustained: 2,
            changes_s_max: 10.0,
            measured_ms: 3_000,
            worse_by: 0.15,
            banned_ms: 60_000,
        }
    }
}

/// A mean latency that was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    /// In µs.
    pub mean_us: f64,
    /// Its standard error, in µs.
    pub error_us: f64,
}

/// A change that is being measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Watched<K> {
    /// Its operators, as they were carried out.
    pub operators: Vec<Operator<K>>,
    /// The operators that take them back, in this order.
    pub inverse: Vec<Operator<K>>,
    /// The time at which the last of them was done, in ms.
    pub done_ms: u64,
    /// The mean latency before.
    pub before: Latency,
    /// The mean latency that was predicted, in µs.
    pub predicted_us: f64,
    /// True if it looked worse when it was measured first: it is measured once more, from this time on, in ms.
    pub suspected_ms: Option<u64>,
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
    /// The time of the last change of each partition, in ms, by the partition's start.
    changed_ms: BTreeMap<K, u64>,
    /// Plans that paid in the last decision, by their shape, and in how many in a row.
    sustained: BTreeMap<Shape<K>, u32>,
    tokens: f64,
    filled_ms: u64,
    watched: Vec<Watched<K>>,
    /// Operators that would take back what was done, and when it was.
    reversals: BTreeMap<Operator<K>, u64>,
    /// Until when an operator is not tried again, and how often it failed.
    banned: BTreeMap<Operator<K>, (u64, u32)>,
}

/// The shape of a plan: the kind of each operator, and the start of the partition that it changes. Plans that
/// split a partition at different keys, or move it to different sites, have the same shape.
type Shape<K> = Vec<(&'static str, K)>;

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
            reversals: BTreeMap::new(),
            banned: BTreeMap::new(),
        }
    }

    /// Why an operator may not be carried out now, if it may not.
    #[must_use]
    pub fn holds(&self, layout: &Layout<K>, operator: &Operator<K>, now_ms: u64) -> Option<String> {
        self.ban(operator, now_ms).or_else(|| self.cool_down(layout, operator, now_ms))
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

    /// True if so many operators may be carried out now; they count as done if they may.
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
        layout: &Layout<K>,
        operators: Vec<Operator<K>>,
        now_ms: u64,
        (before, predicted_us): (Latency, f64),
    ) {
        let inverse = inverse(layout, &operators);
        self.touch(layout, &operators, now_ms);
        let reversal_ms = self.limits.reversal_ms;
        self.reversals.retain(|_, at_ms| now_ms.saturating_sub(*at_ms) < reversal_ms);
        self.reversals.extend(inverse.iter().map(|operator| (operator.clone(), now_ms)));
        let suspected_ms = None;
        let done_ms = now_ms;
        self.watched.push(Watched {
            operators,
            inverse,
            done_ms,
            before,
            predicted_us,
            suspected_ms,
        });
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

    /// Judges the changes that were measured for long enough, by the mean latency since.
    pub fn judge(&mut self, now_ms: u64, now: Latency) -> Vec<Judged<K>> {
        let since = |one: &Watched<K>| one.suspected_ms.unwrap_or(one.done_ms);
        let is_due =
            |one: &Watched<K>| now_ms.saturating_sub(since(one)) >= self.limits.measured_ms;
        let (due, rest) = std::mem::take(&mut self.watched).into_iter().partition(is_due);
        self.watched = rest;
        let due: Vec<Watched<K>> = due;
        due.into_iter().filter_map(|one| self.judged(one, now_ms, now)).collect()
    }

    /// The judgement on a change that was measured; none if it is measured once more.
    fn judged(&mut self, mut one: Watched<K>, now_ms: u64, now: Latency) -> Option<Judged<K>> {
        // Chance makes latencies differ, too.
        let chance_us = 2.0 * now.error_us.hypot(one.before.error_us);
        if now.mean_us <= one.before.mean_us * (1.0 + self.limits.worse_by) + chance_us {
            return Some(Judged::Kept(one));
        }
        if one.suspected_ms.is_none() {
            one.suspected_ms = Some(now_ms);
            self.watched.push(one);
            return None;
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
        Some(Judged::Undo(one))
    }

    /// Changes that are being measured.
    #[must_use]
    pub fn watched(&self) -> &[Watched<K>] {
        &self.watched
    }
}

fn shape<K: Key>(layout: &Layout<K>, plan: &[Operator<K>]) -> Shape<K> {
    let of = |operator: &Operator<K>| {
        let kind = match operator {
            Operator::Split(_) => "split",
            Operator::Merge(_) => "merge",
            Operator::AddReplica(..) => "add-replica",
            Operator::RemoveReplica(..) => "remove-replica",
            Operator::Remaster(..) => "remaster",
        };
        (kind, layout.of(operator.key()).0.clone())
    };
    let mut shape: Shape<K> = plan.iter().map(of).collect();
    shape.sort_unstable();
    shape
}

/// Returns the operators that take others back, in the order in which they have to be carried out.
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
