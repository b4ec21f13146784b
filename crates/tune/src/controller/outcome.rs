//! The end of a roll: the judgement of the change that it made, and the reversion of a change that was worse.

use imago_plan::tune::gain_interval::Gain;
use imago_plan::tune::judge::{Bounds, Window};
use imago_plan::tune::records::Records;
use imago_plan::tune::switchback::Side;
use imago_plan::tune::workload::Mix;

use super::begin::Unjudged;
use super::cluster::{Cluster, Rolled};
use super::event::{Change, Event, Judged};
use super::trial::Trial;
use super::{BARRED_S, Controller, PASSING_S, Phase, Purpose, QUIET_MAX_S, Rolling};
use super::{now_s, sample_time};
use crate::advice::RecordsReport;
use crate::cluster::costs::learned;
use crate::cluster::error::chain;
use crate::cluster::{Error, Result};
use crate::decisions::{DAYS_MAX, DecisionLog as _, Kind};

impl<C: Cluster> Controller<'_, C> {
    /// Handles the end of the roll in progress, whose result is `rolled`: begins the judgement of its change.
    pub(super) async fn rolled(&mut self, rolled: Result<Rolled>) -> Result<()> {
        let Phase::Rolling(Rolling { change, purpose, .. }) =
            std::mem::replace(&mut self.phase, Phase::Watching)
        else {
            unreachable!("a roll ended");
        };
        self.samples.clear();
        self.tuner.forget_plan();
        self.last_reported.clear();
        let (from, to) = (self.number(&change.from), self.number(&change.to));
        let outcome = match (rolled, purpose) {
            (Ok(outcome), purpose) => (outcome, purpose),
            (Err(error), Purpose::Turn(trial)) => {
                return self.turn_failed(*trial, change, &error).await;
            }
            (Err(error), purpose) => {
                let is_undoing = !matches!(purpose, Purpose::Change { .. });
                self.failed(change, is_undoing, &error).await;
                return Ok(());
            }
        };
        let (outcome, purpose) = outcome;
        self.node_times.extend(&outcome.node_times);
        self.tuner.set_costs(learned(self.costs, &self.node_times));
        self.tuner.changed(to);
        let is_undoing = matches!(purpose, Purpose::Undo);
        match purpose {
            Purpose::Turn(mut trial) => {
                trial.turned(if trial.change.to == change.to { Side::New } else { Side::Old });
                self.last_turn = (outcome.job, outcome.elapsed_s);
                self.phase = Phase::Judging(*trial);
                return Ok(());
            }
            Purpose::Undo => {
                self.limits.barred.remove(&(from, to));
                self.summary.undone += 1;
                self.limits.barred.insert((to, from), now_s() + BARRED_S);
            }
            Purpose::Change { before, is_quiet } => {
                self.limits.barred.remove(&(from, to));
                let trial = self.trial(change.clone(), before, is_quiet, 0.0);
                self.phase = Phase::Judging(self.with_turns(trial)?);
            }
        }
        let Rolled { elapsed_s, job, .. } = outcome;
        let event = Event::Changed { change, is_undoing, elapsed_s, job };
        (self.say)(&event);
        self.persist(Kind::Changed, &event.to_string(), &event).await;
        Ok(())
    }

    /// Starts the judgement of a change that ended `ago_s` seconds ago; `before` are the samples from before it, and
    /// `is_quiet` is true if the load was low when it started.
    fn trial(&self, change: Change, before: Vec<Window>, is_quiet: bool, ago_s: f64) -> Trial {
        let looks_in =
            |seconds: f64| (seconds / sample_time(self.request.interval).as_secs_f64()) as usize;
        let quiet_max = is_quiet.then(|| looks_in((QUIET_MAX_S - ago_s).max(0.0)));
        let (from, to) = (self.number(&change.from), self.number(&change.to));
        let rewrites = if self.tuner.rewrites(from, to) {
            looks_in((self.costs.rewrite_s - ago_s).max(0.0))
        } else {
            0
        };
        Trial::new(change, before, self.request.judged_by, quiet_max, rewrites)
    }

    /// Returns the trial with turns, if its change is live and the load was not low when it was made.
    fn with_turns(&self, trial: Trial) -> Result<Trial> {
        let numbers = (self.number(&trial.change.from), self.number(&trial.change.to));
        if !self.request.takes_turns || !self.cluster.can_take_turns(numbers)? {
            return Ok(trial);
        }
        let every_s = sample_time(self.request.interval).as_secs_f64();
        let remembered = (C::LATENCY_COVERS_S / every_s).ceil() as usize;
        Ok(trial.with_turns(Side::drawn(&mut rand::rng()), remembered))
    }

    /// Handles a turn's roll that failed, was refused or cancelled: if all nodes have one of both configurations, the change is judged by
    /// what was seen until now. Otherwise it has failed.
    async fn turn_failed(&mut self, mut trial: Trial, turn: Change, error: &Error) -> Result<()> {
        let is_ending = matches!(error, Error::Stopped(_)) && self.rolls.is_cancelled();
        let numbers = (self.number(&trial.change.from), self.number(&trial.change.to));
        let present = match self.cluster.present().await {
            Ok(present) if !is_ending => present.configuration,
            _ => usize::MAX,
        };
        let side = match present {
            number if number == numbers.0 => Side::Old,
            number if number == numbers.1 => Side::New,
            _ => {
                self.failed(trial.change, false, error).await;
                return Ok(());
            }
        };
        let what = format!("{} does not take its turn: {}", turn.to, chain(error));
        self.warn("turn", what, "the change is judged by what was seen until now");
        self.tuner.changed(present);
        trial.turned(side);
        trial.end_turns();
        self.phase = Phase::Judging(trial);
        self.judge().await
    }

    /// Gives the turn to the other configuration of the change that is judged, if it is time for that.
    pub(super) async fn take_turn(&mut self) -> Result<()> {
        let Phase::Judging(trial) = &self.phase else { return Ok(()) };
        let Some((side, (number, all))) = trial.due() else { return Ok(()) };
        if let Some(why) = self.blocked_by().await {
            let what = format!("the configurations do not take turns: {why}");
            self.warn_once("held", what, "the change is judged by what was seen until now");
            if let Phase::Judging(trial) = &mut self.phase {
                trial.end_turns();
            }
            return self.judge().await;
        }
        let Phase::Judging(trial) = std::mem::replace(&mut self.phase, Phase::Watching) else {
            unreachable!("a change is judged");
        };
        let Change { from, to, .. } = trial.change.clone();
        let change = match side {
            Side::New => Change { from, to, predicted: 0.0 },
            Side::Old => Change { from: to, to: from, predicted: 0.0 },
        };
        (self.say)(&Event::Turn { configuration: change.to.clone(), number: number + 1, all });
        self.roll(change, Purpose::Turn(Box::new(trial)));
        Ok(())
    }

    /// Resumes the judgement of a previous controller's change, if the cluster still has the configuration after the
    /// change.
    pub(super) fn go_on_judging(&mut self, unjudged: Unjudged) {
        let names = &self.request.measurements.names;
        let is_present = names[self.tuner.configuration()] == unjudged.change.to;
        if !is_present || !matches!(self.phase, Phase::Watching) || self.request.is_advising {
            return;
        }
        let (now, to) = (now_s(), unjudged.change.to.clone());
        let known = names.contains(&unjudged.change.from);
        if !known || !unjudged.is_recent(now) {
            let what = format!("the result of the change to {to} was not judged");
            self.warn("unjudged", what, "the change is kept: compare the throughput yourself");
            return;
        }
        let ago_s = now.saturating_sub(unjudged.at_s) as f64;
        let Unjudged { change, before, is_quiet, .. } = unjudged;
        self.phase = Phase::Judging(self.trial(change, before, is_quiet, ago_s).late());
    }

    /// Handles a roll that failed or was refused: bars its change for some time, and determines the cluster's present
    /// configuration again.
    async fn failed(&mut self, change: Change, is_undoing: bool, error: &Error) {
        self.phase = Phase::Unknown(None);
        // The next controller resumes the roll.
        if matches!(error, Error::Stopped(_)) {
            return;
        }
        let numbers = (self.number(&change.from), self.number(&change.to));
        let is_refused = matches!(error, Error::Precondition { .. });
        if is_refused {
            // The obstacle is temporary: a replica that lags, a node that is down, another roll.
            self.limits.barred.insert(numbers, now_s() + PASSING_S);
            if !is_undoing {
                self.limits.made.pop();
                self.summary.changes -= 1;
            }
            let what = format!("the change to {} could not be begun: {}", change.to, chain(error));
            self.warn("not_begun", what, "the change is tried again later");
        } else {
            self.summary.failed += 1;
            self.limits.barred.insert(numbers, now_s() + BARRED_S);
            let event = Event::Failed { change: change.clone(), why: chain(error) };
            (self.say)(&event);
            self.persist(Kind::Changed, &event.to_string(), &event).await;
        }
        self.phase = Phase::Unknown((is_undoing && is_refused).then_some(change));
        if !self.rolls.is_cancelled() {
            self.find_out().await;
        }
    }

    /// Determines the cluster's present configuration after a failed roll; if that fails too, warns, and stays in the
    /// phase `Unknown`.
    pub(super) async fn find_out(&mut self) {
        let Phase::Unknown(back) = &self.phase else { return };
        let back = back.clone();
        match self.cluster.present().await {
            Ok(present) => {
                self.tuner.changed(present.configuration);
                let is_still = |back: &Change| self.number(&back.from) == present.configuration;
                let back = back.filter(is_still);
                self.phase = back.map_or(Phase::Watching, Phase::Undoing);
            }
            Err(error) => {
                let what =
                    format!("the configuration of the cluster is unknown: {}", chain(&error));
                self.warn_once("unknown", what, "mend that, or roll one of the configurations out");
            }
        }
    }

    /// Warns, unless this text was the last reported one.
    fn warn_once(&mut self, kind: &'static str, what: String, help: &str) {
        if what != self.last_reported {
            self.warn(kind, what.clone(), help);
            self.last_reported = what;
        }
    }

    /// Warns once if the records have another mean size (in bytes) than those that the configurations were measured
    /// with.
    pub(super) fn warn_stale_measurements(&mut self, record_bytes: Option<f64>) {
        let seen = Records { bytes: record_bytes, reuse_distance: None };
        let doubts = RecordsReport::of(seen, self.request.measurements.records).doubts;
        if let Some(doubt) = doubts.into_iter().next().filter(|_| !self.has_warned_stale) {
            self.has_warned_stale = true;
            self.warn("records", doubt, "until then gains may differ from the predictions");
        }
    }

    /// Warns if a change has not been judged when the controller ends.
    pub(super) fn say_unjudged(&self) {
        if let Phase::Judging(trial) = &self.phase {
            let Change { from, to, .. } = &trial.change;
            if self.tuner.configuration() == self.number(from) {
                let what = format!("the change to {to} is not judged, and the cluster has {from}");
                self.warn("unjudged", what, "the next controller plans for it again");
                return;
            }
            let what = format!("the result of the change to {to} is not judged");
            self.warn("unjudged", what, "a controller that begins within the hour judges it");
        }
    }

    /// Judges the last change if there are enough samples after it, and reverts it if it was worse.
    pub(super) async fn judge(&mut self) -> Result<()> {
        let Phase::Judging(trial) = &mut self.phase else { return Ok(()) };
        let (from, to) = {
            let number = |name: &str| self.request.measurements.number(name).expect("measured");
            (number(&trial.change.from), number(&trial.change.to))
        };
        let tuner = &self.tuner;
        let rates = |mix: Mix| tuner.rates(mix);
        let bounds = self.request.bounds;
        let bounds = Bounds { slowest: bounds.slowest * C::LATENCY_WITHIN, ..bounds };
        let Some(judgement) = trial.judged(&rates, (from, to), &bounds) else {
            return Ok(());
        };
        let (change, mix) = (trial.change.clone(), trial.mix());
        let past = self.past_gains().await.unwrap_or_else(|error| {
            let what =
                format!("the judgements of earlier changes cannot be read: {}", chain(&error));
            self.warn("past", what, "the interval of this prediction is that of a first change");
            Vec::new()
        });
        let predicted_times = self
            .request
            .measurements
            .latencies
            .as_ref()
            .zip(mix)
            .map(|(latencies, mix)| latencies.ratios(mix, (from, to)));
        // The turns may have ended in that of the old configuration.
        let is_taken_back = self.tuner.configuration() == from;
        let judged = Judged {
            predicted_times,
            is_taken_back,
            ..Judged::new(change.clone(), judgement.as_ref(), &past)
        };
        let event = Event::Judged(judged.clone());
        (self.say)(&event);
        self.persist(Kind::Judged, &event.to_string(), &judged).await;
        self.summary.judged.push(judged.clone());
        self.phase = Phase::Watching;
        if judged.worse.is_none() {
            return Ok(());
        }
        self.limits.barred.insert((from, to), now_s() + BARRED_S);
        let back = Change { from: change.to, to: change.from, predicted: 0.0 };
        if !is_taken_back {
            return self.undo(back).await;
        }
        self.summary.undone += 1;
        // The next controller must not undo it once more.
        let (job, elapsed_s) = self.last_turn.clone();
        let event = Event::Changed { change: back, is_undoing: true, elapsed_s, job };
        (self.say)(&event);
        self.persist(Kind::Changed, &event.to_string(), &event).await;
        Ok(())
    }

    /// Returns the gains that were predicted for earlier changes of the cluster, and realised.
    async fn past_gains(&self) -> Result<Vec<Gain>> {
        let entries = self.log.decisions(now_s(), DAYS_MAX).await?;
        Ok(entries.iter().filter_map(Judged::of).filter_map(|one| one.gain()).collect())
    }

    /// Makes the change `back`, which reverts one that was worse; if an obstacle exists, the reversion is retried
    /// later.
    pub(super) async fn undo(&mut self, back: Change) -> Result<()> {
        if let Some(why) = self.blocked_by().await {
            let what = format!("{} is worse, and stays for the time being: {why}", back.from);
            self.warn_once("held", what, "it is undone as soon as the obstacle is gone");
            self.phase = Phase::Undoing(back);
            return Ok(());
        }
        self.begin(back, true, false).await
    }
}
