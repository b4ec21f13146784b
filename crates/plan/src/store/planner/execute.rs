//! The execution of plans, one after another, as a state machine: which operators come next, what follows when one
//! fails, and which outcomes are unknown.
//!
//! A plan is executed in [`waves`], sets of operators that can run concurrently. If an operator fails, the rest of its
//! plan is not executed, unless the plan is large ([`LARGE_ABOVE`]): then no more operators are executed at a time than the
//! limit of changes a second permits at once, and what has become impossible is left out. The executed operators stay,
//! unless they left a partition with a replica beyond its limit: then they are rolled back.
//!
//! Invariants:
//! - The operators of one plan are executed at a time, and a wave only when all of the one before have ended.
//! - A wave keeps to the limits on the present design, also if the operators of unknown outcome are executed.
//! - A replica that an unfinished plan left beyond a limit is removed, as soon as it is known to be there.

use std::collections::VecDeque;

use crate::store::considered::LARGE_ABOVE;
use crate::store::guardrails::{Guardrails, inverse};
use crate::store::layout::{Key, Layout, Operator, Site};
use crate::store::parameters::Parameters;
use crate::store::waves::waves;

/// The outcome of an operator.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The operator was executed, in this time in µs.
    Done(f64),
    /// The operator was not executed, for this reason.
    Failed(String),
    /// The operator may still be executed, as long as this epoch (incarnation) of the site is the newest: the reason
    /// for the doubt, the site, and the epoch.
    InDoubt(String, Site, u64),
}

/// An operator whose outcome is unknown.
#[derive(Clone, Debug)]
struct InDoubt<K> {
    operator: Operator<K>,
    site: Site,
    epoch: u64,
    since_ms: u64,
}

/// The reason for which a plan is executed.
#[derive(Clone, Debug)]
pub(super) enum Purpose<C, U> {
    /// The plan was chosen by a decision.
    Change(C),
    /// The plan undoes a change that made the latency worse.
    Undo(U),
    /// The plan removes a replica that an unfinished plan left beyond the limit of replicas.
    Cleanup,
}

/// A plan that waits for execution.
#[derive(Clone, Debug)]
pub(super) struct Plan<K, C, U> {
    pub purpose: Purpose<C, U>,
    pub operators: Vec<Operator<K>>,
}

/// The plan that is being executed.
#[derive(Clone, Debug)]
struct Running<K, C, U> {
    purpose: Purpose<C, U>,
    /// The design when the plan began, and the same with the operators that were executed.
    before: Layout<K>,
    design: Layout<K>,
    ahead: VecDeque<Vec<Operator<K>>>,
    /// Operators of the present wave without an outcome, each with the time of its beginning in ms of the planner's
    /// clock.
    open: Vec<(Operator<K>, u64)>,
    done: Vec<Operator<K>>,
    /// The time that the executed operators took together, in µs.
    took_us: f64,
    /// The first failure, and whether the operators ahead are not executed because of one.
    failure: Option<String>,
    is_stopped: bool,
    /// True if the plan has more than [`LARGE_ABOVE`] operators, and the number of those that failed.
    is_large: bool,
    failed: usize,
    /// While a failed plan is rolled back: the operators that it had executed.
    rolls_back: Option<Vec<Operator<K>>>,
}

/// A plan whose execution has ended.
#[derive(Debug)]
pub(super) struct Ended<K, C, U> {
    pub purpose: Purpose<C, U>,
    pub before: Layout<K>,
    /// Operators of the plan that were executed, and not rolled back.
    pub done: Vec<Operator<K>>,
    /// The time that all operators of the plan took together, in µs; `None` if not all were executed.
    pub took_us: Option<f64>,
    /// Why the rest of the plan was not executed; `None` if all operators were.
    pub failure: Option<String>,
}

/// The next step of the execution.
#[derive(Debug)]
pub(super) enum Next<K, C, U> {
    /// There is nothing to do until an operator being executed has an outcome, or a plan is begun.
    Wait,
    /// These operators are to be executed now, in any order or concurrently.
    Execute(Vec<Operator<K>>),
    /// The execution of the plan has ended.
    Ended(Box<Ended<K, C, U>>),
}

/// The failure of a plan that is impossible, or exceeds a limit, on the present design.
pub(super) const OUTDATED: &str = "the design has changed since it was decided";

/// Number of operators of a large plan that may fail.
const FAILED_MAX: usize = 16;

/// The state machine that executes plans: the queue, the plan being executed, and the operators of unknown outcome.
#[derive(Clone, Debug)]
pub(super) struct Execution<K, C, U> {
    /// Longest time, in ms, from the beginning of an `AddReplica` operator of unknown outcome in which its replica may
    /// still appear.
    in_doubt_ms: u64,
    pub queue: VecDeque<Plan<K, C, U>>,
    running: Option<Running<K, C, U>>,
    in_doubt: Vec<InDoubt<K>>,
    /// Operators of unfinished plans that may have left a replica that still has to be removed.
    left: Vec<Operator<K>>,
}

impl<K: Key, C, U> Execution<K, C, U> {
    pub fn new(in_doubt_ms: u64) -> Self {
        let (queue, running) = (VecDeque::new(), None);
        Self { in_doubt_ms, queue, running, in_doubt: Vec::new(), left: Vec::new() }
    }

    pub fn is_idle(&self) -> bool {
        self.running.is_none() && self.queue.is_empty()
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// True if operators have unknown outcomes, or unfinished plans may have left replicas that have to be removed.
    pub fn is_unsettled(&self) -> bool {
        !self.in_doubt.is_empty() || !self.left.is_empty()
    }

    /// True if operators, in order, are possible on the design `layout` and keep to its limits. Operators of unknown
    /// outcome count as executed if they still can be.
    pub fn keeps(
        &self,
        parameters: &Parameters,
        layout: &Layout<K>,
        operators: &[Operator<K>],
    ) -> bool {
        let in_doubt = self.in_doubt.iter().map(|one| &one.operator);
        parameters.permits(operators, layout)
            && parameters.thresholds.permits_with_pending(layout, in_doubt, operators)
    }

    /// Begins the execution of a plan on the design `layout`. Panics if another plan is being executed.
    pub fn begin(&mut self, plan: Plan<K, C, U>, layout: &Layout<K>) {
        assert!(self.running.is_none(), "one plan is executed at a time");
        let Plan { purpose, operators } = plan;
        self.running = Some(Running {
            purpose,
            ahead: waves(layout, &operators).into(),
            before: layout.clone(),
            design: layout.clone(),
            open: Vec::new(),
            done: Vec::new(),
            took_us: 0.0,
            failure: None,
            is_stopped: false,
            is_large: operators.len() > LARGE_ABOVE,
            failed: 0,
            rolls_back: None,
        });
    }

    /// Returns the next step on the present design: the operators of the next wave, or those of a rollback, or the
    /// end.
    pub fn next(
        &mut self,
        now_ms: u64,
        layout: &Layout<K>,
        parameters: &Parameters,
        guardrails: &mut Guardrails<K>,
    ) -> Next<K, C, U> {
        loop {
            let Some(plan) = self.running.as_mut().filter(|plan| plan.open.is_empty()) else {
                return Next::Wait;
            };
            if plan.is_stopped
                && plan.rolls_back.is_none()
                && parameters.thresholds.are_exceeded_by(layout, &plan.done)
            {
                // The master did not move, and the replica that it was to become is one too many.
                let back = inverse(&plan.before, &plan.done);
                guardrails.spend(back.len(), now_ms);
                self.left.extend(plan.done.iter().cloned());
                plan.ahead = waves(layout, &back).into();
                plan.rolls_back = Some(std::mem::take(&mut plan.done));
                plan.is_stopped = false;
            }
            if plan.is_stopped || plan.ahead.is_empty() {
                return self.end();
            }
            let rest: Vec<_> = plan.ahead.iter().flatten().cloned().collect();
            // Commands and the router change the design, too.
            let keeps = self.keeps(parameters, layout, &rest);
            let plan = self.running.as_mut().expect("it is under way");
            if !keeps {
                let still = layout.possible(&rest);
                // Those that are left are checked again. Fewer of them are, so this ends.
                if plan.is_large && still.len() < rest.len() {
                    plan.ahead = waves(layout, &still).into();
                } else {
                    plan.fail(OUTDATED.to_owned());
                }
                continue;
            }
            let mut wave = plan.ahead.pop_front().expect("there is a wave");
            // Splits are counted first, so that the limit of partitions holds in any order of completion.
            wave.sort_by_key(|operator| !matches!(operator, Operator::Split(_)));
            if plan.is_large && matches!(plan.purpose, Purpose::Change(_)) {
                let later = wave.split_off(wave.len().min(guardrails.at_once_max()));
                if !later.is_empty() {
                    plan.ahead.push_front(later);
                }
                guardrails.spend(wave.len(), now_ms);
            }
            plan.open = wave.iter().map(|operator| (operator.clone(), now_ms)).collect();
            return Next::Execute(wave);
        }
    }

    /// Ends the execution of a plan that a decision chose, after the operators that are being executed, if it is large: it
    /// may take long.
    pub fn stop_large(&mut self, why: &str) {
        let running = self.running.as_mut();
        let is_open = |plan: &&mut Running<K, C, U>| {
            plan.is_large && !plan.is_stopped && matches!(plan.purpose, Purpose::Change(_))
        };
        if let Some(plan) = running.filter(is_open) {
            plan.fail(why.to_owned());
        }
    }

    /// Records the outcome of an operator. Returns the design on which the operator was executed, or `None` if it was
    /// not.
    pub fn ended(&mut self, operator: &Operator<K>, outcome: Outcome) -> Option<Layout<K>> {
        let plan = self.running.as_mut().expect("an operator ends that was begun");
        let at = plan.open.iter().position(|(open, _)| open == operator);
        let (operator, since_ms) = plan.open.remove(at.expect("an operator ends that was begun"));
        match outcome {
            Outcome::Done(us) => {
                plan.took_us += us;
                let before = plan.design.clone();
                _ = plan.design.apply(&operator);
                plan.done.push(operator);
                return Some(before);
            }
            Outcome::Failed(why) => {
                plan.failed += 1;
                if !plan.is_large || plan.failed > FAILED_MAX {
                    plan.fail(why);
                }
            }
            Outcome::InDoubt(why, site, epoch) => {
                self.left.push(operator.clone());
                self.in_doubt.push(InDoubt { operator, site, epoch, since_ms });
                plan.fail(why);
            }
        }
        None
    }

    fn end(&mut self) -> Next<K, C, U> {
        let plan = self.running.take().expect("it is under way");
        // Of a large plan the removals of replicas may have failed, or become impossible for a while.
        if plan.failure.is_some() || plan.is_large {
            self.left.extend(plan.done.iter().cloned());
        }
        let done = match plan.rolls_back {
            // The inverse undoes the last operator first.
            Some(mut done) => {
                done.truncate(done.len() - plan.done.len());
                done
            }
            None => plan.done,
        };
        let Running { purpose, before, failure, took_us, failed, .. } = plan;
        let took_us = (failure.is_none() && failed == 0).then_some(took_us);
        Next::Ended(Box::new(Ended { purpose, before, done, took_us, failure }))
    }

    /// Forgets operators whose outcome is known by now. Returns the removal of a replica that an unfinished plan left
    /// beyond the limit of replicas; `None` if there is none. `is_open` says whether an epoch of a site is the newest,
    /// and the site is not fenced.
    pub fn settle(
        &mut self,
        now_ms: u64,
        layout: &Layout<K>,
        parameters: &Parameters,
        is_open: &dyn Fn(Site, u64) -> bool,
    ) -> Option<Operator<K>> {
        self.in_doubt.retain(|one| {
            let is_replica = matches!(one.operator, Operator::AddReplica(..));
            let is_over = is_replica && now_ms.saturating_sub(one.since_ms) > self.in_doubt_ms;
            is_open(one.site, one.epoch) && !is_over && layout.clone().apply(&one.operator).is_ok()
        });
        let (thresholds, in_doubt) = (parameters.thresholds, &self.in_doubt);
        self.left.retain(|made| {
            in_doubt.iter().any(|one| one.operator == *made)
                || thresholds.surplus(layout, [made]).next().is_some()
        });
        thresholds.surplus(layout, &self.left).next()
    }

    /// Returns the operators of all plans that wait for execution or are being executed, including the executed ones.
    pub fn operators(&self) -> impl Iterator<Item = &Operator<K>> {
        let running = self.running.iter().flat_map(|plan| {
            let open = plan.open.iter().map(|(operator, _)| operator);
            plan.done.iter().chain(plan.ahead.iter().flatten()).chain(open)
        });
        running.chain(self.queue.iter().flat_map(|plan| &plan.operators))
    }

    /// Returns the operators of unfinished plans that may have left a replica that still has to be removed.
    pub fn left(&self) -> &[Operator<K>] {
        &self.left
    }

    /// True if the plan being executed moves a master, puts a replica in the place of another, rolls back, undoes another
    /// plan or removes its remains, so that a partition may have one replica more than its limit for a while.
    pub fn moves(&self) -> bool {
        self.running.as_ref().is_some_and(|plan| {
            let open = plan.open.iter().map(|(operator, _)| operator);
            let mut all = plan.done.iter().chain(plan.ahead.iter().flatten()).chain(open);
            plan.rolls_back.is_some()
                || !matches!(plan.purpose, Purpose::Change(_))
                || all
                    .any(|one| matches!(one, Operator::Remaster(..) | Operator::RemoveReplica(..)))
        })
    }
}

impl<K, C, U> Running<K, C, U> {
    /// Records a failure, after which no further operator of the plan is executed.
    fn fail(&mut self, why: String) {
        _ = self.failure.get_or_insert(why);
        self.is_stopped = true;
    }
}
