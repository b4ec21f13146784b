//! Guardrails of adaptation, against thrashing: they hold back, watch and undo plans that the model predicts to save
//! more than they cost.
//!
//! - *Cool-down*: a partition that was changed is not changed again for a moment. A change is not reversed for as long
//!   as samples are remembered, so that statistics from before the change do not speak against it. After that a
//!   reversal has to save more, for a time that doubles with each reversal ([`reversals`]).
//! - *Sustained*: a plan is executed when several consecutive decisions of one regime found that it pays: its
//!   predicted saving exceeds its cost. A burst is over before that.
//! - *Rate*: operators per second are limited, on average and at once.
//! - *Measured*: after a change the latency of each regime is compared with the latency before it ([`judge`]). A change
//!   that increased it in two consecutive measurements is undone, and its operators are banned for a time that doubles
//!   with each failure. There are two measurements because a pause of the machine is not the fault of a change.
//!
//! Times are parameters, in ms of the clock of [`super::planner`].

use std::collections::BTreeMap;

use super::considered::Hold;
use super::layout::{Key, Layout, Operator, Site};

mod bans;
mod judge;
mod reversals;

pub use judge::{Judgement, LatencyBaseline, Watched};
use reversals::Reversals;

/// The limits that the guardrails enforce on changes of the store's design.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Time for which a partition that was changed is not changed again, in ms.
    pub cool_down_ms: u64,
    /// Time for which no plan may reverse a change after it was made, in ms.
    pub reversal_ms: u64,
    /// Number of consecutive decisions of one regime that must choose a plan before it is executed.
    pub sustained: u32,
    /// Limit on the operators executed per second, on average over time; also the limit on the operators that may be
    /// executed at once after a rest.
    pub changes_s_max: f64,
    /// Time over which the latency after a change is measured before the change is judged, in ms of the regime's own
    /// time. The latency is measured for as long again before the change is undone.
    pub measured_ms: u64,
    /// Growth of the mean latency, as a share of the latency before the change (0.15: 15 %), above which the change
    /// counts as harmful.
    pub slowdown_max: f64,
    /// Length of the first ban of the operators of an undone change, in ms; each further ban of an operator is twice
    /// as long.
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
            slowdown_max: 0.15,
            banned_ms: 60_000,
        }
    }
}

/// The guardrails of adaptation against thrashing: what was changed when, which changes are being measured, and which
/// operators are banned.
#[derive(Clone, Debug)]
pub struct Guardrails<K> {
    limits: Limits,
    /// Time of each partition's last change, in ms of the planner's clock, by the start of the partition.
    changed_ms: BTreeMap<K, u64>,
    /// For each regime, by its number, the shapes of the operators of the plans that its last decision chose, each with
    /// the number of consecutive decisions that chose it.
    sustained: BTreeMap<u64, BTreeMap<Shape<K>, u32>>,
    /// Number of operators that may be executed now; negative after undos.
    tokens: f64,
    /// Time at which `tokens` was last refilled, in ms of the planner's clock.
    filled_ms: u64,
    watched: Vec<Watched<K>>,
    reversals: Reversals<K>,
    /// For each operator that made the latency worse, the end of its ban, in ms of the planner's clock, and how often
    /// it did so.
    banned: BTreeMap<Operator<K>, (u64, u32)>,
}

/// The shape of an operator: its kind, and the start of the partition that it changes. Operators that split a
/// partition at different keys, or move it to different sites, have the same shape.
type Shape<K> = (&'static str, K);

/// Limit on the number of regimes whose last plans are remembered.
const REGIMES_MAX: usize = 8;
/// One of this many operators of a plan need not have been chosen before: transactions change a design meanwhile.
const OTHERS_ALLOWED: usize = 10;
/// Limit on the number of changed partitions, and on that of banned operators, beyond which old ones are forgotten.
const REMEMBERED_MAX: usize = 10_000;
/// Longest ban of an operator, in ms.
const BANNED_MS_MAX: u64 = 3_600_000;

impl<K: Key> Guardrails<K> {
    /// Creates guardrails without any recorded change or ban.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            changed_ms: BTreeMap::new(),
            sustained: BTreeMap::new(),
            tokens: limits.changes_s_max.max(1.0),
            filled_ms: 0,
            watched: Vec::new(),
            reversals: Reversals::default(),
            banned: BTreeMap::new(),
        }
    }

    /// Returns why an operator is held back at `now_ms` on the design `layout`; `None` if it is not.
    #[must_use]
    pub fn holds(&self, layout: &Layout<K>, operator: &Operator<K>, now_ms: u64) -> Option<Hold> {
        let not = self.ban(operator, now_ms).or_else(|| self.cool_down(layout, operator, now_ms));
        not.map(Hold::Forbidden)
            .or_else(|| self.reversals.holds(layout, operator, now_ms, self.limits.reversal_ms))
    }

    /// Records the plans that this decision of the regime with number `regime` chose, on the present design. Returns
    /// for each plan whether enough consecutive decisions chose it: plans with nearly all of its operators, since a part of
    /// what was chosen before may have been done by others meanwhile.
    pub fn sustained(
        &mut self,
        regime: u64,
        layout: &Layout<K>,
        paying: &[&[Operator<K>]],
    ) -> Vec<bool> {
        let shapes: Vec<Vec<Shape<K>>> = paying
            .iter()
            .map(|plan| plan.iter().map(|operator| shape(layout, operator)).collect())
            .collect();
        let before = self.sustained.remove(&regime).unwrap_or_default();
        let times = |shape: &Shape<K>| before.get(shape).copied().unwrap_or(0) + 1;
        let counts: BTreeMap<_, _> =
            shapes.iter().flatten().map(|one| (one.clone(), times(one))).collect();
        let is_enough = |plan: &Vec<Shape<K>>| {
            let sustained = plan.iter().filter(|one| counts[*one] >= self.limits.sustained);
            sustained.count() >= plan.len() - plan.len() / OTHERS_ALLOWED
        };
        let enough = shapes.iter().map(is_enough).collect();
        self.sustained.insert(regime, counts);
        // The newest regimes have the highest numbers.
        while self.sustained.len() > REGIMES_MAX {
            self.sustained.pop_first();
        }
        enough
    }

    /// Returns true if this many operators may be executed at `now_ms` under the rate limit, and counts them as
    /// executed if they may.
    pub fn may_spend(&mut self, operators: usize, now_ms: u64) -> bool {
        let most = self.limits.changes_s_max.max(1.0);
        let passed_s = now_ms.saturating_sub(self.filled_ms) as f64 / 1_000.0;
        self.tokens = (self.tokens + passed_s * self.limits.changes_s_max).min(most);
        self.filled_ms = self.filled_ms.max(now_ms);
        // A plan with more operators than the limit at once waits for the full limit.
        let cost = (operators as f64).min(most);
        let may = self.tokens >= cost;
        if may {
            self.tokens -= cost;
        }
        may
    }

    /// Returns the number of operators that may be executed at once after a rest.
    pub fn at_once_max(&self) -> usize {
        self.limits.changes_s_max.max(1.0) as usize
    }

    /// Returns true if so much time has passed at `now_ms` that as many operators as the limit may be executed at once.
    pub fn has_rested(&mut self, now_ms: u64) -> bool {
        _ = self.may_spend(0, now_ms);
        self.tokens >= self.limits.changes_s_max.max(1.0)
    }

    /// Counts operators that are executed regardless of the rate limit, such as those that undo others or belong to a large
    /// plan; later operators wait longer.
    pub fn spend(&mut self, operators: usize, now_ms: u64) {
        _ = self.may_spend(0, now_ms);
        self.tokens -= operators as f64;
    }

    /// Records operators that were executed on the design `layout`, and begins to measure their effect against the
    /// latencies `before`.
    pub fn done(
        &mut self,
        layout: &Layout<K>,
        operators: Vec<Operator<K>>,
        now_ms: u64,
        before: LatencyBaseline,
    ) {
        let inverse = inverse(layout, &operators);
        self.touch(layout, &operators, now_ms);
        self.reversals.done(layout, &operators, now_ms);
        self.watch(operators, inverse, now_ms, before);
    }

    /// Records operators that undid a change, so that they are not reversed at once; their effect is not measured.
    pub fn record_undo(&mut self, layout: &Layout<K>, operators: &[Operator<K>], now_ms: u64) {
        self.touch(layout, operators, now_ms);
        self.reversals.done(layout, operators, now_ms);
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
}

fn shape<K: Key>(layout: &Layout<K>, operator: &Operator<K>) -> Shape<K> {
    let kind = match operator {
        Operator::Split(_) => "split",
        Operator::Merge(_) => "merge",
        Operator::AddReplica(..) => "add-replica",
        Operator::RemoveReplica(..) => "remove-replica",
        Operator::Remaster(..) => "remaster",
    };
    (kind, layout.of(operator.key()).0.clone())
}

/// Returns the operators that undo `operators`, which were executed on the design `before`, in the order in which the
/// undoing ones must be executed.
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
