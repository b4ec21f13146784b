//! The planner of an adaptive store, without I/O: it collects samples, learns the costs of operations, decides which
//! changes of the store's design save more than they cost, says which operators to execute, and judges their effect
//! (MorphoSys, §5).
//!
//! The store, the simulation of its sites and the simulated benchmark run this one planner, each with a driver of its
//! own. In each round a driver
//! 1. sets the limits ([`Planner::configure`]),
//! 2. reports the samples and the work of the sites ([`Planner::observe`]),
//! 3. lets the planner decide ([`Planner::decide`]),
//! 4. executes the operators that [`Planner::next`] returns, and reports their outcomes ([`Planner::ended`]), until there
//!    are none.
//!
//! [`Planner::events`] returns what was decided, and which effect it had. All times are in ms of the planner's clock,
//! which is the `now_ms` that the driver passes: its epoch is the driver's choice, and it does not go backwards.
//!
//! Invariants:
//! - Without [`Permission::Change`] no operator is returned.
//! - A change that would exceed a limit is not made, not even to undo an earlier change.
//! - A decision is executed on the design on which it was made: an undo voids it.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::considered::{Considered, LARGE_ABOVE};
use super::controller::{Controller, Forbids, Outlook};
use super::cost::CostModel;
use super::decide::Decided;
use super::guardrails::{Guardrails, Judgement, Limits};
use super::layout::{Key, Layout, Operator, Site};
use super::parameters::Parameters;
use super::price::price;
use super::regimes;
use super::strategy::Strategy;

mod decision;
mod execute;
mod learn;
mod load;
#[cfg(test)]
mod tests;

pub use decision::{Advised, DecisionSnapshot, Event, Verdict};
pub use execute::Outcome;
use execute::{Ended, Execution, Next, OUTDATED, Plan, Purpose};
use learn::Learner;
pub use learn::{Accuracy, Observed, WaitCause, Window};
use load::SiteLoads;
pub use load::SiteWork;

/// Target rate of sampled transactions of all sites together, in samples per second.
const SAMPLES_S: f64 = 400.0;
/// While the transaction rate is unknown, one of this many transactions is sampled.
const EVERY_UNKNOWN: u32 = 8;
/// Limit on the number of rejected plans of one decision that are reported as events.
const REJECTED_MAX: usize = 4;

/// Settings of a planner that do not change while it runs.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Settings by which workloads that alternate are distinguished.
    pub regimes: regimes::Settings,
    /// The time and number of samples of a site that are collected before the model learns from them.
    pub window: Window,
    /// Longest time, in ms, from the beginning of an `AddReplica` operator of unknown outcome in which its replica may
    /// still appear.
    pub in_doubt_ms: u64,
}

impl Default for Settings {
    fn default() -> Self {
        let (regimes, window) = (regimes::Settings::default(), Window::default());
        Self { regimes, window, in_doubt_ms: 60_000 }
    }
}

/// Whether the planner may change the design.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Permission {
    /// Plans that the decisions choose are executed.
    #[default]
    Change,
    /// Chosen plans are only reported, and nothing is executed.
    Advise,
    /// Adaptation is paused: chosen plans are only reported.
    Paused,
}

/// A plan that was chosen for execution, with its number, the time of its decision, and the workload that it was based on.
#[derive(Clone, Debug)]
struct Chosen<K: std::fmt::Debug> {
    number: u64,
    at_ms: u64,
    plan: Considered<K>,
    outlook: Outlook<K>,
}

/// The number of the plan whose change an undo reverses; `None` if it is not known any more.
type Undo = Option<u64>;

/// The planner of an adaptive store: it learns from samples, decides on changes of the design, and says which
/// operators come next.
#[derive(Debug)]
pub struct Planner<K: Key> {
    controller: Controller<K>,
    parameters: Parameters,
    permission: Permission,
    loads: SiteLoads,
    learner: Learner,
    execution: Execution<K, Chosen<K>, Undo>,
    /// The least share of a core (0..1) that any site had when the cost functions were learned; `None` if unknown.
    core_share: Option<f64>,
    rng: StdRng,
    events: Vec<Event<K>>,
    next_decision: u64,
    /// Executed changes whose effect is being measured: the number of the plan of each, and its operators.
    measured: Vec<(u64, Vec<Operator<K>>)>,
    /// Number of operators that were executed, since the planner was created.
    pub changes: u64,
    /// Number of changes that made the latency worse and were undone, since the planner was created.
    pub undone: u64,
    /// Why the last plan that ended failed; `None` if it succeeded.
    pub failure: Option<String>,
}

/// A driver's report to the planner for one round: the samples and the work of the sites since the last one.
#[derive(Debug)]
pub struct Round<'r, K> {
    /// The time now, in ms of the planner's clock.
    pub now_ms: u64,
    /// The present design.
    pub layout: &'r Layout<K>,
    /// The sampled transactions that ended since the last round.
    pub observed: Vec<Observed<K>>,
    /// Total work of each site since the site started.
    pub work: &'r BTreeMap<Site, SiteWork>,
    /// The least share of a core (0..1) that any site has; `None` if unknown.
    pub core_share: Option<f64>,
}

impl<K: Key> Planner<K> {
    /// Creates a planner that has learned nothing, and decides by `parameters` and `limits` until others are set. `seed`
    /// determines its random choices.
    #[must_use]
    pub fn new(
        settings: Settings,
        (parameters, limits): (Parameters, Limits),
        seed: u64,
        now_ms: u64,
    ) -> Self {
        Self {
            controller: Controller::new(settings.regimes, limits),
            parameters,
            permission: Permission::default(),
            loads: SiteLoads::new(settings.window.span_min),
            learner: Learner::new(settings.window, now_ms),
            execution: Execution::new(settings.in_doubt_ms),
            core_share: None,
            rng: StdRng::seed_from_u64(seed),
            events: Vec::new(),
            next_decision: 0,
            measured: Vec::new(),
            changes: 0,
            undone: 0,
            failure: None,
        }
    }

    /// Replaces the parameters and limits of decisions, and the permission to change the design, from now on.
    pub fn configure(&mut self, parameters: Parameters, limits: Limits, permission: Permission) {
        (self.parameters, self.permission) = (parameters, permission);
        self.controller.limit(limits);
    }

    /// Restores the cost functions and bans of an earlier run, which `restore` sets. `core_share` is the least share
    /// of a core that any site had when these functions were learned; `None` if unknown.
    pub fn restore(
        &mut self,
        core_share: Option<f64>,
        restore: impl FnOnce(&mut CostModel, &mut Guardrails<K>),
    ) {
        restore(&mut self.controller.cost, &mut self.controller.guardrails);
        self.core_share = core_share;
    }

    /// Reports the samples and the work of a round, from which the planner learns. If the share of a core of the sites
    /// has changed, the learned costs are discarded first.
    pub fn observe(&mut self, round: Round<'_, K>) {
        let Round { now_ms, layout, observed, work, core_share } = round;
        if let Some(core_share) = core_share {
            if self.core_share.is_some_and(|before| before != core_share) {
                self.events.push(Event::CostsDiscarded { core_share });
                self.controller.cost = CostModel::default();
            }
            self.core_share = Some(core_share);
        }
        let (controller, loads, rng) = (&mut self.controller, &mut self.loads, &mut self.rng);
        loads.record(layout.sites(), work, &mut controller.cost);
        let chance = || rng.random();
        self.learner.collect(controller, now_ms, layout, loads, observed, chance);
    }

    /// Returns the number of transactions of which one should be sampled.
    #[must_use]
    pub fn sample_every(&self) -> u32 {
        match self.controller.regimes.rate_s() {
            // The rate is unknown before the first slice is over, and after a time without transactions.
            0.0 => EVERY_UNKNOWN,
            rate_s => (rate_s / SAMPLES_S).ceil().clamp(1.0, f64::from(u32::MAX)) as u32,
        }
    }

    /// Decides which plans save more than they cost, judges earlier changes, and queues the plans that are to be
    /// executed. Returns the inputs of the decision. `forbids` returns why an operator cannot be executed now.
    pub fn decide(
        &mut self,
        now_ms: u64,
        layout: &Layout<K>,
        strategy: &mut dyn Strategy<K>,
        forbids: &Forbids<'_, K>,
    ) -> DecisionSnapshot<K> {
        let outlook = self.controller.outlook(layout, &mut self.rng);
        let lag_entries = self.learner.lag_entries.clone();
        let cost = self.controller.cost.clone();
        let operators_error = self.learner.accuracy.operators.recent_error_share();
        let parameters = self.controller.widened(self.parameters, operators_error, now_ms);
        let situation = outlook.situation(&cost, &lag_entries);
        // A decision is executed on the design on which it was made.
        let decided = self.execution.is_idle().then(|| {
            let (controller, forbids) = (&self.controller, (forbids, now_ms));
            controller.decide(strategy, layout, &situation, &parameters, forbids, &mut self.rng)
        });
        let decided = decided.flatten();
        let distrust = strategy.distrust(&situation);
        let price = match &decided {
            Some(decided) => decided.before.clone(),
            None => price(layout, &situation),
        };
        let is_undone = self.judge(now_ms, layout);
        let decided = decided.filter(|_| !is_undone);
        let saves_us = match (&decided, self.permission) {
            (Some(decided), Permission::Change) => {
                decided.chosen().map(|plan| plan.net_us(parameters.lambda)).sum()
            }
            _ => 0.0,
        };
        if let Some(decided) = decided {
            self.choose(now_ms, layout, decided, &outlook);
        }
        DecisionSnapshot { outlook, lag_entries, cost, parameters, price, saves_us, distrust }
    }

    /// Judges the changes that were measured for long enough, and queues undos of those that increased the latency.
    /// Returns true if it queued an undo that keeps to the limits of the design `layout`.
    fn judge(&mut self, now_ms: u64, layout: &Layout<K>) -> bool {
        let mut undoes = false;
        for judged in self.controller.judge(now_ms) {
            let (watched, is_worse) = match judged {
                Judgement::Keep(watched) => (watched, false),
                Judgement::Undo(watched) => (watched, true),
            };
            let at = self.measured.iter().position(|(_, done)| *done == watched.operators);
            let number = at.map(|at| self.measured.remove(at).0);
            if is_worse && self.permission == Permission::Change {
                let (purpose, operators) = (Purpose::Undo(number), watched.inverse.clone());
                undoes |= self.parameters.permits(&operators, layout);
                self.execution.queue.push_back(Plan { purpose, operators });
            }
            if let Some(number) = number {
                self.events.push(Event::Measured { number, watched: Box::new(watched) });
            }
        }
        let watched = self.controller.guardrails.watched();
        self.measured.retain(|(_, done)| watched.iter().any(|one| one.operators == *done));
        undoes
    }

    /// Queues the chosen plans that enough consecutive decisions chose, and reports the others.
    fn choose(
        &mut self,
        at_ms: u64,
        layout: &Layout<K>,
        decided: Decided<K>,
        outlook: &Outlook<K>,
    ) {
        let (chosen, mut rejected): (Vec<_>, Vec<_>) =
            decided.considered.into_iter().partition(|plan| plan.rejected.is_none());
        let plans: Vec<&[Operator<K>]> = chosen.iter().map(|plan| &plan.operators[..]).collect();
        let sustained = self.controller.sustained(outlook, layout, &plans);
        for (plan, is_sustained) in chosen.into_iter().zip(sustained) {
            let advised = self.not_permitted().or((!is_sustained).then_some(Advised::NotSustained));
            let number = self.number();
            if let Some(advised) = advised {
                self.decided(number, at_ms, plan, Verdict::Advised(advised));
                continue;
            }
            let operators = plan.operators.clone();
            let chosen = Chosen { number, at_ms, plan, outlook: outlook.clone() };
            let purpose = Purpose::Change(chosen);
            self.execution.queue.push_back(Plan { purpose, operators });
        }
        rejected.sort_by(|one, two| two.net_us(1.0).total_cmp(&one.net_us(1.0)));
        for plan in rejected.into_iter().take(REJECTED_MAX) {
            let number = self.number();
            self.decided(number, at_ms, plan, Verdict::Rejected);
        }
    }

    fn not_permitted(&self) -> Option<Advised> {
        match self.permission {
            Permission::Change => None,
            Permission::Advise => Some(Advised::OnlyAdvises),
            Permission::Paused => Some(Advised::Paused),
        }
    }

    fn number(&mut self) -> u64 {
        self.next_decision += 1;
        self.next_decision - 1
    }

    fn decided(&mut self, number: u64, at_ms: u64, plan: Considered<K>, verdict: Verdict) {
        self.events.push(Event::Decided { number, at_ms, plan: Box::new(plan), verdict });
    }

    /// True if plans wait for execution or are being executed.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.execution.is_idle()
    }

    /// True if operators have unknown outcomes, or unfinished plans may have left replicas: then [`Self::settle`] has
    /// something to do.
    #[must_use]
    pub fn is_unsettled(&self) -> bool {
        self.execution.is_unsettled()
    }

    /// Forgets operators whose outcome is known by now, and queues the removal of a replica that an unfinished plan
    /// left beyond the limit of replicas. `is_open` says whether an epoch of a site is the newest, and the site is not
    /// fenced.
    pub fn settle(&mut self, now_ms: u64, layout: &Layout<K>, is_open: &dyn Fn(Site, u64) -> bool) {
        let surplus = self.execution.settle(now_ms, layout, &self.parameters, is_open);
        if let Some(surplus) = surplus.filter(|_| self.permission == Permission::Change) {
            self.controller.guardrails.spend(1, now_ms);
            let (purpose, operators) = (Purpose::Cleanup, vec![surplus]);
            self.execution.queue.push_back(Plan { purpose, operators });
        }
    }

    /// Returns the operators to execute next on the present design, in any order or concurrently; `None` if there are
    /// none, or while operators that were returned earlier have no outcome yet.
    pub fn next(&mut self, now_ms: u64, layout: &Layout<K>) -> Option<Vec<Operator<K>>> {
        if self.not_permitted().is_some() {
            self.execution.stop_large("adaptation was paused or made to advise meanwhile");
        }
        loop {
            if !self.execution.is_running() {
                let plan = self.execution.queue.pop_front()?;
                self.begin(now_ms, plan, layout);
                continue;
            }
            let guardrails = &mut self.controller.guardrails;
            match self.execution.next(now_ms, layout, &self.parameters, guardrails) {
                Next::Wait => return None,
                Next::Execute(operators) => return Some(operators),
                Next::Ended(ended) => self.conclude(now_ms, *ended),
            }
        }
    }

    /// Begins the execution of a plan, unless it is not permitted any more: limits, permission and design may have
    /// changed since the plan was decided.
    fn begin(&mut self, now_ms: u64, plan: Plan<K, Chosen<K>, Undo>, layout: &Layout<K>) {
        let Plan { purpose, operators } = plan;
        let is_large = operators.len() > LARGE_ABOVE;
        let operators = if is_large { layout.possible(&operators) } else { operators };
        let (many, is_large) = (operators.len(), operators.len() > LARGE_ABOVE);
        let is_permitted = self.parameters.permits(&operators, layout);
        let purpose = match purpose {
            Purpose::Change(chosen) => {
                let lowered = (!is_permitted).then_some(Advised::LimitLowered);
                let advised = self.not_permitted().or(lowered).or_else(|| {
                    let guardrails = &mut self.controller.guardrails;
                    let may = is_large && guardrails.has_rested(now_ms)
                        || !is_large && guardrails.may_spend(many, now_ms);
                    (!may).then_some(Advised::RateLimited)
                });
                let keeps = || self.execution.keeps(&self.parameters, layout, &operators);
                let outdated = || (!keeps()).then(|| Verdict::Failed(OUTDATED.to_owned()));
                let verdict = advised.map(Verdict::Advised).or_else(outdated);
                if let Some(verdict) = verdict {
                    return self.decided(chosen.number, chosen.at_ms, chosen.plan, verdict);
                }
                Purpose::Change(chosen)
            }
            // Later changes may have used the room that an undo needs.
            Purpose::Undo(_) if !is_permitted || self.not_permitted().is_some() => return,
            Purpose::Undo(number) => {
                self.controller.guardrails.spend(many, now_ms);
                Purpose::Undo(number)
            }
            Purpose::Cleanup if self.not_permitted().is_some() => return,
            Purpose::Cleanup => Purpose::Cleanup,
        };
        self.execution.begin(Plan { purpose, operators }, layout);
    }

    /// Records the outcome of an operator that [`Self::next`] returned, and learns from its time.
    ///
    /// # Panics
    /// If the operator is not under way.
    pub fn ended(&mut self, operator: &Operator<K>, outcome: Outcome) {
        let took_us = match &outcome {
            Outcome::Done(us) => Some(*us),
            _ => None,
        };
        let design = self.execution.ended(operator, outcome);
        if let (Some(us), Some(design)) = (took_us, design) {
            self.learner.learn_operator(&mut self.controller, operator, &design, us);
            self.changes += 1;
        }
    }

    fn conclude(&mut self, now_ms: u64, ended: Ended<K, Chosen<K>, Undo>) {
        let Ended { purpose, before, done, took_us, failure } = ended;
        self.failure.clone_from(&failure);
        match purpose {
            Purpose::Change(Chosen { number, at_ms, mut plan, outlook }) => {
                plan.operators_took_us = took_us.filter(|_| done.len() == plan.operators.len());
                self.controller.timed(&plan, now_ms);
                if !done.is_empty() {
                    let predicted_us = plan.latency_us;
                    self.controller.done(&outlook, &before, done.clone(), now_ms, predicted_us);
                    self.measured.push((number, done));
                }
                let verdict = failure.map_or(Verdict::Done, Verdict::Failed);
                self.decided(number, at_ms, plan, verdict);
            }
            Purpose::Undo(number) => {
                self.controller.guardrails.record_undo(&before, &done, now_ms);
                if !done.is_empty() {
                    self.undone += 1;
                    self.events.push(Event::Undone { number });
                }
            }
            Purpose::Cleanup => {}
        }
    }

    /// Returns the events since the last call, in the order in which they occurred.
    pub fn events(&mut self) -> Vec<Event<K>> {
        std::mem::take(&mut self.events)
    }

    /// Returns the decision loop, which has the regimes of the workload, the learned costs and the guardrails.
    #[must_use]
    pub fn controller(&self) -> &Controller<K> {
        &self.controller
    }

    /// Returns the accuracy of the predicted costs of transactions and operators.
    #[must_use]
    pub fn accuracy(&self) -> &Accuracy {
        &self.learner.accuracy
    }

    /// Returns the load of each site over the time that its last report covers, as a share of the site's CPU.
    #[must_use]
    pub fn site_loads(&self) -> &BTreeMap<Site, f64> {
        &self.loads.shares
    }

    /// Returns the least share of a core (0..1) that any site had when the cost functions were learned; `None` if
    /// unknown.
    #[must_use]
    pub fn core_share(&self) -> Option<f64> {
        self.core_share
    }

    /// Returns the operators of all plans that wait for execution or are being executed, executed ones included.
    pub fn operators(&self) -> impl Iterator<Item = &Operator<K>> {
        self.execution.operators()
    }

    /// Returns the operators of unfinished plans that may have left a replica that still has to be removed.
    #[must_use]
    pub fn left(&self) -> &[Operator<K>] {
        self.execution.left()
    }

    /// True if the plan being executed moves a master, replaces a replica or rolls back, so that a partition may have one
    /// replica more than its limit for a while.
    #[must_use]
    pub fn moves(&self) -> bool {
        self.execution.moves()
    }
}
