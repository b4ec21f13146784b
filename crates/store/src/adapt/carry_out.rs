//! Execution of the plans that pay, and judgement of their effect.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use imago_plan::design::brakes::{Judged, inverse};
use imago_plan::design::controller::Outlook;
use imago_plan::design::decide::{Considered, Decided};
use imago_plan::design::layout::{self, Layout};
use imago_plan::design::plans::Thresholds;
use imago_plan::design::waves::waves;
use tokio::task::JoinSet;

use super::planner::{Carried, Planner};
use super::report::{DecisionReport, Verdict, reason};
use crate::key::Key;
use crate::record::{Epoch, Site};
use crate::transaction::Abort;

/// Most decisions that are remembered.
const DECISIONS_MAX: usize = 200;
/// Most rejected plans of one decision that are remembered.
const REJECTED_MAX: usize = 4;
/// Time from its start in which a new replica whose outcome is unknown may still appear.
const UNSETTLED: Duration = Duration::from_secs(60);
const OUTDATED: &str = "the design has changed since it was decided";

/// An operator whose outcome is unknown: it may still enter the log as long as the epoch of its site is the newest.
pub(super) struct Unsettled {
    operator: layout::Operator<Key>,
    by: (Site, Epoch),
    since: Instant,
}

impl Planner<'_> {
    /// Judges the changes that were measured for long enough, and undoes those that increased the latency. Returns true
    /// if it undid any.
    pub(super) async fn judge(&mut self, now_ms: u64, may_change: bool) -> bool {
        let undone = self.undone;
        for judged in self.controller.judge(now_ms) {
            let (watched, is_worse) = match judged {
                Judged::Kept(watched) => (watched, false),
                Judged::Undo(watched) => (watched, true),
            };
            let carried = self.carried.iter().position(|one| one.operators == watched.operators);
            let decision = carried.map(|at| self.carried.remove(at).decision);
            // Later changes may have used the room that the undo needs.
            let layout = self.of.store.layout().await;
            let may_undo = is_worse && may_change && self.of.permits(&watched.inverse, &layout);
            let is_undone = may_undo && {
                self.controller.brakes.spend(watched.inverse.len(), now_ms);
                let (done, failure) = self.apply(&watched.inverse, &layout).await;
                self.controller.brakes.taken_back(&layout, &done, self.now_ms());
                self.failure = failure;
                self.undone += u64::from(!done.is_empty());
                !done.is_empty()
            };
            let of_it = |(number, _): &&mut (u64, DecisionReport)| Some(*number) == decision;
            if let Some((_, report)) = self.decisions.iter_mut().find(of_it) {
                let before = watched.before.latency;
                report.measured_us = watched.after.map(|after| (before.mean_us, after.mean_us));
                report.measured_error_us =
                    watched.after.map(|after| before.error_us.hypot(after.error_us));
                if is_undone {
                    let operators = report.operators.join(", ");
                    tracing::info!(%operators, measured_us = ?report.measured_us, "undone");
                    report.verdict = Verdict::Undone;
                }
            }
        }
        self.undone > undone
    }

    /// Executes the plans that pay and have paid in enough consecutive decisions, and records a decision on each plan.
    pub(super) async fn carry_out(
        &mut self,
        now_ms: u64,
        mut layout: Layout<Key>,
        (decided, outlook): (&Decided<Key>, &Outlook<Key>),
        may_change: bool,
    ) {
        let chosen: Vec<&Considered<Key>> = decided.chosen().collect();
        let plans: Vec<&[layout::Operator<Key>]> =
            chosen.iter().map(|plan| &plan.operators[..]).collect();
        let sustained = self.controller.sustained(outlook, &layout, &plans);
        for (plan, is_sustained) in chosen.into_iter().zip(sustained) {
            let verdict = if !may_change {
                let why = if self.is_paused() { "adaptation is paused" } else { "it only advises" };
                Verdict::Advised(why.to_owned())
            } else if !is_sustained {
                Verdict::Advised("it has to pay again in the next decision".to_owned())
            } else if !self.of.permits(&plan.operators, &layout) {
                Verdict::Advised("a limit was lowered meanwhile".to_owned())
            } else if !self.controller.brakes.may_spend(plan.operators.len(), now_ms) {
                Verdict::Advised("changes a second are limited".to_owned())
            } else if !self.keeps(&plan.operators).await {
                Verdict::Failed(OUTDATED.to_owned())
            } else {
                let (mut done, failure) = self.apply(&plan.operators, &layout).await;
                if failure.is_some()
                    && self.thresholds().are_exceeded_by(&self.of.store.layout().await, &done)
                {
                    // The master did not move, and the copy that it was to become is one too many.
                    let back = inverse(&layout, &done);
                    self.controller.brakes.spend(back.len(), now_ms);
                    let (taken, _) = self.apply(&back, &layout).await;
                    done.truncate(done.len() - taken.len());
                }
                if !done.is_empty() {
                    let now_ms = self.now_ms();
                    self.controller.done(outlook, &layout, done.clone(), now_ms, plan.latency_us);
                    for operator in &done {
                        _ = layout.apply(operator);
                    }
                    let decision = self.next_decision;
                    self.carried.push(Carried { decision, operators: done });
                }
                self.failure.clone_from(&failure);
                failure.map_or(Verdict::Done, Verdict::Failed)
            };
            self.remember(DecisionReport::of(now_ms, plan, verdict));
        }
        let mut rejected: Vec<&Considered<Key>> =
            decided.considered.iter().filter(|plan| plan.rejected.is_some()).collect();
        rejected.sort_by(|one, two| two.net_us(1.0).total_cmp(&one.net_us(1.0)));
        for plan in rejected.into_iter().take(REJECTED_MAX) {
            let why = plan.rejected.as_ref().map(reason).unwrap_or_default();
            self.remember(DecisionReport::of(now_ms, plan, Verdict::Rejected(why)));
        }
    }

    fn thresholds(&self) -> Thresholds {
        self.of.options().parameters.thresholds
    }

    /// Remembers a decision, and logs it unless the plan was rejected.
    fn remember(&mut self, report: DecisionReport) {
        if !matches!(report.verdict, Verdict::Rejected(_)) {
            let (before_us, after_us) = report.predicted_us;
            tracing::info!(
                operators = %report.operators.join(", "),
                verdict = ?report.verdict,
                before_us, after_us, saves_us = report.benefit_us, costs_us = report.cost_us,
                "decision"
            );
        }
        if self.decisions.len() == DECISIONS_MAX {
            // Rejected plans are forgotten first.
            let is_rejected =
                |(_, one): &(u64, DecisionReport)| matches!(one.verdict, Verdict::Rejected(_));
            let oldest = self.decisions.iter().position(is_rejected).unwrap_or(0);
            self.decisions.remove(oldest);
        }
        self.decisions.push_back((self.next_decision, report));
        self.next_decision += 1;
    }

    /// True if operators keep to the limits on the present design. Operators of unknown outcome count as executed if
    /// they still can be.
    async fn keeps(&self, operators: &[layout::Operator<Key>]) -> bool {
        let (layout, unsettled) =
            (self.of.store.layout().await, self.unsettled.iter().map(|one| &one.operator));
        self.thresholds().keeps_beside(&layout, unsettled, operators)
    }

    /// Forgets operators whose outcome is known by now, and removes a replica that an unfinished plan left beyond a
    /// limit.
    pub(super) async fn settle(&mut self, now_ms: u64, may_change: bool) {
        if self.unsettled.is_empty() && self.owed.is_empty() {
            return;
        }
        let (layout, map) = (self.of.store.layout().await, self.of.store.map());
        self.unsettled.retain(|one| {
            let (site, epoch) = one.by;
            let is_open = map.design.epoch(site) == epoch && !map.design.is_fenced(site);
            let is_copy = matches!(one.operator, layout::Operator::AddReplica(..));
            let is_over = is_copy && one.since.elapsed() > UNSETTLED;
            is_open && !is_over && layout.clone().apply(&one.operator).is_ok()
        });
        let thresholds = self.thresholds();
        self.owed.retain(|made| {
            self.unsettled.iter().any(|one| one.operator == *made)
                || thresholds.surplus(&layout, [made]).next().is_some()
        });
        let back = thresholds.surplus(&layout, &self.owed).next();
        if let Some(back) = back.filter(|_| may_change) {
            self.controller.brakes.spend(1, now_ms);
            let (_, failure) = self.apply(&[back], &layout).await;
            self.failure = failure;
        }
    }

    /// Executes operators for as long as they keep to the limits, those of different partitions concurrently. Returns
    /// the operators that were executed, and the failure that ended it, if any.
    async fn apply(
        &mut self,
        operators: &[layout::Operator<Key>],
        layout: &Layout<Key>,
    ) -> (Vec<layout::Operator<Key>>, Option<String>) {
        let (mut done, mut design) = (Vec::new(), layout.clone());
        let mut ahead = VecDeque::from(waves(layout, operators));
        while let Some(mut wave) = ahead.pop_front() {
            // Splits are counted first, so that the limit of partitions holds in any order of completion.
            wave.sort_by_key(|operator| !matches!(operator, layout::Operator::Split(_)));
            let rest: Vec<_> = wave.iter().chain(ahead.iter().flatten()).cloned().collect();
            // Commands and the router change the design, too.
            let mut failure = (!self.keeps(&rest).await).then(|| OUTDATED.to_owned());
            if failure.is_none() {
                for (operator, failed) in self.carry_out_together(wave, &design).await {
                    match failed {
                        None => {
                            _ = design.apply(&operator);
                            done.push(operator);
                        }
                        Some(why) => _ = failure.get_or_insert(why),
                    }
                }
            }
            if failure.is_some() {
                self.owed.extend(done.iter().cloned());
                return (done, failure);
            }
        }
        (done, None)
    }

    /// Executes operators of different partitions concurrently. Returns each with its failure, if any.
    async fn carry_out_together(
        &mut self,
        operators: Vec<layout::Operator<Key>>,
        layout: &Layout<Key>,
    ) -> Vec<(layout::Operator<Key>, Option<String>)> {
        let mut under_way = JoinSet::new();
        let map = self.of.store.map();
        for operator in operators {
            let (store, since) = (Arc::clone(&self.of.store), Instant::now());
            let master = map.design.of(operator.key()).master;
            let by = (master, map.design.epoch(master));
            under_way.spawn(async move {
                let done = store.carry_out(&operator).await;
                (operator, by, since, done, since.elapsed())
            });
        }
        let mut ended = Vec::new();
        for (operator, by, since, done, took) in under_way.join_all().await {
            let failed = done.as_ref().err().map(ToString::to_string);
            match done {
                Ok(()) => {
                    self.learn_operator(&operator, layout, took);
                    self.changes += 1;
                }
                Err(Abort::Late | Abort::Unlogged | Abort::Deposed) => {
                    self.owed.push(operator.clone());
                    self.unsettled.push(Unsettled { operator: operator.clone(), by, since });
                }
                Err(_) => {}
            }
            ended.push((operator, failed));
        }
        ended
    }
}
