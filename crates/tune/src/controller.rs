//! The control loop: it observes the operations that clients request, decides, rolls, measures the effect of a change,
//! and reverts the change if the cluster performs worse (SOPHIA, §3.1).
//!
//! An interval has several samples. A change is judged by the samples before and after it, once throughput has stopped
//! rising; no other change begins earlier. A live change is judged by turns: both configurations serve alternately for some
//! minutes. Every decision is persisted in the cluster, with its reasons, and each
//! observed interval is appended to a file, the trace: a restarted controller resumes from both.
//!
//! Invariants:
//! - One controller decides for a cluster (a lease), and one job changes it (the roll's lock).
//! - No change is made while changes are suspended, beyond the daily limit, of a cost class that is not approved, or if
//!   the controller only advises.
//! - A change that is worse by more than its noise is reverted, and not repeated for a day.

mod begin;
pub(crate) mod cluster;
mod event;
mod limits;
mod outcome;
mod request;
mod samples;
mod trial;
mod turns;

use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use imago_job::clock;
use imago_job::reporter::Events;
use imago_plan::tune::judge::{WINDOWS_MIN, Window};
use imago_plan::tune::roll::{Costs, Rule};
use imago_plan::tune::workload::{Interval, KINDS, Mix};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cluster::costs::{NodeRollTime, learned};
use crate::cluster::error::chain;
use crate::cluster::observation::{Observation, is_quiet};
use crate::cluster::{Error, Result};
use crate::decision_inputs::Planning;
use crate::decisions::{DecisionLog, Kind, LEASE, lease_held_by};
use crate::trace;
use crate::transition_costs::transitions;
use crate::tuner::{Options, Tuner};
use begin::{Remembered, finish_rolls, read_history, remembered};
use cluster::{Cluster, Present, Rolled};
pub use event::{Change, Event, Judged, Summary};
use limits::ChangeLimits;
pub use request::Request;
use samples::Samples;
use trial::Trial;

/// Number of samples in an interval, and bounds of the time between two samples.
const SAMPLES_PER_INTERVAL: u32 = 6;
const SAMPLE_TIME_MIN: Duration = Duration::from_secs(1);
const SAMPLE_TIME_MAX: Duration = Duration::from_secs(20);
/// Maximum time for which a change that was made under low load waits to be judged, in seconds: a day has busy times.
const QUIET_MAX_S: f64 = 86_400.0;
/// Time for which a reverted or failed change is not repeated, and time for which a refused one is not, in seconds.
const BARRED_S: u64 = 86_400;
const PASSING_S: u64 = 900;

/// State of the control loop: whether a change is made, judged or reverted.
enum Phase<'a> {
    /// No change is in progress: after each interval the controller decides.
    Watching,
    Rolling(Rolling<'a>),
    /// A change has ended, and samples are collected to judge it.
    Judging(Trial),
    /// A change was worse, and the contained change, which reverts it, is made as soon as no obstacle is left.
    Undoing(Change),
    /// A roll failed, and nodes may have either configuration. Contains the reversion that remains to be made if a
    /// reversion was refused at its start; None otherwise.
    Unknown(Option<Change>),
}

/// A roll in progress.
struct Rolling<'a> {
    change: Change,
    purpose: Purpose,
    rolled: LocalBoxFuture<'a, Result<Rolled>>,
}

/// The purpose of a roll.
enum Purpose {
    /// It makes a change, which is judged by the samples before it.
    Change {
        before: Vec<Window>,
        /// True if the load was low when the roll started.
        is_quiet: bool,
    },
    /// It reverts an earlier change.
    Undo,
    /// It gives the turn to the other configuration of a change that is judged.
    Turn(Box<Trial>),
}

/// The control loop of one cluster, and its state.
struct Controller<'a, C: Cluster> {
    cluster: &'a C,
    request: &'a Request,
    process: &'a str,
    events: &'a Events,
    cancel: CancellationToken,
    say: &'a (dyn Fn(&Event) + Sync),
    log: C::Log,
    tuner: Tuner,
    phase: Phase<'a>,
    samples: Samples,
    limits: ChangeLimits,
    /// Assumed durations and lost capacity of changes; durations that past rolls have shown take precedence.
    costs: Costs,
    /// Durations of the changes of single nodes in past rolls.
    node_times: Vec<NodeRollTime>,
    /// Time of the last renewal of the controllers' lease.
    leads_since: Instant,
    /// Token that cancels the roll in progress.
    rolls: CancellationToken,
    /// True after the warning that the measurements may not apply to the cluster's present record size.
    has_warned_stale: bool,
    /// Error with which the controller ends after the roll in progress; None while it goes on.
    fault: Option<Error>,
    /// Job and duration, in seconds, of the last roll that gave a configuration its turn.
    last_turn: (String, f64),
    /// Text of the last reported decision or warning, to suppress repetitions.
    last_reported: String,
    summary: Summary,
}

/// Tunes a cluster until `cancel` is cancelled or the requested duration has passed, and returns the totals.
/// `process` is the holder's name in the lease; `say` receives the controller's events.
pub(crate) async fn run<C: Cluster>(
    cluster: &C,
    request: &Request,
    process: &str,
    events: &Events,
    cancel: CancellationToken,
    say: &(dyn Fn(&Event) + Sync),
) -> Result<Summary> {
    let same = cluster.configurations().iter().map(|one| &one.name).eq(&request.measurements.names);
    assert!(same, "configurations are in the order of their measurements");
    cluster.check()?;
    let past = read_history(request)?;
    let log = cluster.log().await?;
    lead(&log, process).await?;
    let controlled = async {
        let blocked_by = begin::initial_block(request, &log).await?;
        let finished = finish_rolls(cluster, blocked_by.as_deref(), process, events, &cancel);
        let has_finished = while_leading(&log, process, Box::pin(finished)).await?;
        lead(&log, process).await?;
        let Present { configuration: current, at_once } = cluster.present().await?;
        let node_times: Vec<NodeRollTime> =
            cluster.rolls().await?.iter().flat_map(C::node_roll_times).collect();
        let Remembered { barred, changes, rollback_due, unjudged } =
            remembered(request, &log).await?;
        let current_name = request.measurements.names[current].clone();
        let rollback_due =
            rollback_due.filter(|back| back.from == current_name && !request.is_advising);
        let costs = Costs { at_once, ..request.costs };
        let planning = Planning {
            interval_s: request.interval.as_secs(),
            season_s: request.season.as_secs(),
            costs: learned(costs, &node_times),
            transitions: transitions::<C::Database>(cluster.configurations(), &request.approved)?,
            rule: Rule::Phases,
            gain_min: request.gain_min,
            forecast: request.forecast.clone(),
            look_ahead: request.look_ahead,
            changes_max: None,
            weight: request.weight,
        };
        let options = Options { planning, busy_min: request.busy_min };
        let measurements = request.measurements.clone();
        say(&Event::Begins {
            configuration: current_name,
            intervals: past.len(),
            nodes_at_once: at_once,
        });
        let mut controller = Controller {
            costs,
            cluster,
            request,
            process,
            events,
            cancel: cancel.clone(),
            say,
            log: log.clone(),
            tuner: Tuner::new(measurements, options, current, past),
            phase: rollback_due.map_or(Phase::Watching, Phase::Undoing),
            samples: Samples::new(interval_of(request, now_s())),
            limits: ChangeLimits { barred, made: changes },
            node_times,
            leads_since: Instant::now(),
            rolls: cancel.child_token(),
            has_warned_stale: false,
            fault: None,
            last_turn: Default::default(),
            last_reported: String::new(),
            summary: Summary::default(),
        };
        if let Some(mut unjudged) = unjudged {
            if has_finished {
                unjudged.at_s = now_s();
            }
            controller.go_on_judging(unjudged);
        }
        let ended = controller.run().await;
        ended.map(|()| controller.summary)
    };
    let ended = Box::pin(controlled).await;
    // After the loop has ended the lease would expire by itself.
    let resigned = log.release_lease(process).await;
    let summary = ended?;
    resigned?;
    Ok(summary)
}

/// Acquires the controllers' lease; the error names the process that holds it.
async fn lead(log: &impl DecisionLog, process: &str) -> Result<()> {
    match log.acquire_lease(process).await? {
        None => Ok(()),
        Some(holder) => Err(lease_held_by(&holder)),
    }
}

/// Completes `work` and renews the controllers' lease meanwhile. The caller checks afterwards that it still has the
/// lease.
async fn while_leading<T>(
    log: &impl DecisionLog,
    process: &str,
    mut work: impl Future<Output = Result<T>> + Unpin,
) -> Result<T> {
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = tokio::time::sleep(LEASE / 6) => {
                // The result is checked at the end: a roll must not be abandoned halfway.
                let _ = log.acquire_lease(process).await;
            }
        }
    }
}

/// Returns the time between two samples for intervals of this length.
fn sample_time(interval: Duration) -> Duration {
    (interval / SAMPLES_PER_INTERVAL).clamp(SAMPLE_TIME_MIN, SAMPLE_TIME_MAX)
}

/// Returns the start of the interval that contains the time `at_s`; both are in seconds since 1970.
fn interval_of(request: &Request, at_s: u64) -> u64 {
    at_s - at_s % request.interval.as_secs()
}

fn now_s() -> u64 {
    clock::now_ms() / 1_000
}

impl<'a, C: Cluster> Controller<'a, C> {
    /// Takes samples and acts on them until the controller ends; completes a roll in progress first.
    async fn run(&mut self) -> Result<()> {
        let mut observer = self.cluster.observer().await?;
        let ends = self.request.duration.map(|duration| Instant::now() + duration);
        let every = sample_time(self.request.interval);
        let mut next = Instant::now() + every;
        loop {
            let is_rolling = matches!(self.phase, Phase::Rolling(_));
            let is_over = ends.is_some_and(|ends| Instant::now() >= ends);
            if !is_rolling && let Some(fault) = self.fault.take() {
                return Err(fault);
            }
            if (is_over || self.cancel.is_cancelled()) && !is_rolling {
                self.say_unjudged();
                return Ok(());
            }
            tokio::select! {
                rolled = ended(&mut self.phase) => self.rolled(rolled).await?,
                observation = sample_at(&mut observer, next), if self.fault.is_none() => {
                    next = Instant::now() + every;
                    let looked = match self.lead().await {
                        Ok(()) => self.add_sample(observation).await,
                        Err(lost) => Err(lost),
                    };
                    // A node that is stopped at this moment must return to service first.
                    if let Err(error) = looked {
                        self.rolls.cancel();
                        self.fault = Some(error);
                    }
                }
                () = self.cancel.cancelled(), if !is_rolling => {}
            }
        }
    }

    /// Renews the controllers' lease, long before it expires but not with each sample: a renewal costs a transaction.
    /// While the cluster does not answer, no other process can acquire the lease.
    async fn lead(&mut self) -> Result<()> {
        if self.leads_since.elapsed() < LEASE / 6 {
            return Ok(());
        }
        match self.log.acquire_lease(self.process).await {
            Ok(None) => self.leads_since = Instant::now(),
            Ok(Some(holder)) => return Err(lease_held_by(&holder)),
            Err(error) => {
                let help = "nothing is changed until it does";
                self.warn("lease", format!("the cluster does not answer: {}", chain(&error)), help);
            }
        }
        Ok(())
    }

    fn warn(&self, kind: &'static str, what: String, help: &str) {
        (self.say)(&Event::Warning { kind, what, help: help.to_owned() });
    }

    /// Adds an observation to the present interval; at the interval's end, decides.
    async fn add_sample(&mut self, observation: Observation) -> Result<()> {
        let window = observation.window();
        self.samples.add(observation.operations, window);
        if let Phase::Judging(trial) = &mut self.phase {
            let from = self.request.measurements.number(&trial.change.from).expect("measured");
            let is_quiet = match window {
                Some(window) => self.tuner.busy(&window, from) < self.request.busy_min,
                None => observation.missed.is_empty() && !observation.is_late,
            };
            trial.add(window, is_quiet);
            self.judge().await?;
            self.take_turn().await?;
        }
        let now_s = interval_of(self.request, now_s());
        let Some((first_s, counted)) = self.samples.end_interval(now_s, window) else {
            return Ok(());
        };
        // A late sample covers several intervals.
        let length = self.request.interval.as_secs();
        let several = (now_s - first_s) / length;
        let each = counted.map(|count| count / several);
        for start_s in (0..several).map(|number| first_s + number * length) {
            self.observed(start_s, each, &observation)?;
        }
        if matches!(self.phase, Phase::Unknown(_)) {
            self.find_out().await;
        }
        match &self.phase {
            Phase::Watching => self.decide().await,
            Phase::Undoing(back) => {
                let back = back.clone();
                self.undo(back).await
            }
            Phase::Rolling(_) | Phase::Judging(_) | Phase::Unknown(_) => Ok(()),
        }
    }

    /// Appends an interval with these numbers of operations to the trace, and passes it to the tuner.
    fn observed(&mut self, start_s: u64, counted: [u64; KINDS], last: &Observation) -> Result<()> {
        let is_quiet = is_quiet(counted, self.request.interval.as_secs_f64());
        let operations = if is_quiet { [0; KINDS] } else { counted };
        let record_bytes = last.record_bytes;
        trace::add(&self.request.trace, start_s, operations, record_bytes).map_err(|cause| {
            Error::failed(
                format!("cannot write {}: {cause}", self.request.trace.display()),
                "the controller goes on from its trace: make room, and start it again",
            )
        })?;
        self.warn_stale_measurements(record_bytes);
        let sum = operations.iter().sum::<u64>() as f64;
        let rate_s = sum / self.request.interval.as_secs() as f64;
        let mix = Mix::of(operations.map(|count| count as f64));
        (self.say)(&Event::Observed { start_s, operations, rate_s, missed: last.missed.clone() });
        self.summary.intervals += 1;
        self.tuner.observe(Interval { start_s, mix, rate_s: Some(rate_s) });
        Ok(())
    }

    /// Decides at the end of an interval, and starts the change if one is due and no obstacle is found.
    async fn decide(&mut self) -> Result<()> {
        self.lift_expired_bars()?;
        let Some(decision) = self.tuner.decide() else { return Ok(()) };
        let Some(to) = decision.change_to.clone() else {
            return self.report(decision, None).await;
        };
        let is_quiet = decision.busy.is_none_or(|busy| busy < self.request.busy_min);
        let obstacle = match self.obstacle().await {
            None if is_quiet && !self.knows_busy_times() => Some(
                "the load is too low now to judge a change, and no busy times were measured since \
                 the last change"
                    .into(),
            ),
            obstacle => obstacle,
        };
        if let Some(obstacle) = obstacle {
            // The plan is made again with the next interval.
            self.tuner.forget_plan();
            return self.report(decision, Some(obstacle)).await;
        }
        let predicted = decision.expected.map_or(0.0, |expected| expected.gain);
        let change = Change { from: decision.configuration.clone(), to, predicted };
        self.report(decision, None).await?;
        self.begin(change, false, is_quiet).await
    }

    /// Reports and persists a decision, unless it equals the last one; `not_done` is the reason against its change.
    async fn report(
        &mut self,
        decision: crate::tuner::Decision,
        not_done: Option<String>,
    ) -> Result<()> {
        self.summary.decisions += 1;
        let event = Event::Decided { decision: Box::new(decision), not_done };
        let (what, same) = (event.to_string(), event.sameness());
        if same == self.last_reported {
            return Ok(());
        }
        self.last_reported = same;
        (self.say)(&event);
        self.persist(Kind::Decided, &what, &event).await;
        Ok(())
    }

    /// Appends an entry to the log of decisions; if that fails, only warns: tuning continues without the entry.
    async fn persist(&self, kind: Kind, what: &str, detail: &impl serde::Serialize) {
        let detail = serde_json::to_value(detail).expect("texts and numbers");
        if let Err(error) = self.log.append(now_s(), kind, what, &detail).await {
            self.warn("not_kept", chain(&error), "`imago tune decisions` will not show it");
        }
    }

    fn number(&self, name: &str) -> usize {
        let found = self.request.measurements.number(name);
        found.expect("the configuration was measured")
    }

    /// Returns the samples since the last change whose load was high enough to judge a change by.
    fn busy_times(&self) -> Vec<Window> {
        let present = self.tuner.configuration();
        let is_busy = |one: &&Window| self.tuner.busy(one, present) >= self.request.busy_min;
        self.samples.history.iter().filter(is_busy).copied().collect()
    }

    fn knows_busy_times(&self) -> bool {
        self.busy_times().len() >= WINDOWS_MIN
    }

    /// Persists the start of a change, then starts its roll; `is_quiet` is true if the load is low now.
    async fn begin(&mut self, change: Change, is_undoing: bool, is_quiet: bool) -> Result<()> {
        let event = Event::Changing { change: change.clone(), is_undoing };
        let kind = if is_undoing { Kind::Changed } else { Kind::Changing };
        let before = if is_quiet { self.busy_times() } else { self.samples.recent.clone() };
        let detail = match is_undoing {
            false => begin::persisted_start(&event, &before, is_quiet),
            true => serde_json::to_value(&event).expect("texts and numbers"),
        };
        self.log.append(now_s(), kind, &event.to_string(), &detail).await?;
        (self.say)(&event);
        if !is_undoing {
            self.limits.made.push(now_s());
            self.summary.changes += 1;
        }
        let purpose = if is_undoing { Purpose::Undo } else { Purpose::Change { before, is_quiet } };
        self.roll(change, purpose);
        Ok(())
    }

    /// Starts a roll.
    fn roll(&mut self, change: Change, purpose: Purpose) {
        let numbers = (self.number(&change.from), self.number(&change.to));
        // Neither a reversion nor a turn has to prove that it is better.
        let is_undoing = !matches!(purpose, Purpose::Change { .. });
        let (process, events, cancel) = (self.process, self.events, self.rolls.clone());
        let rolled = self.cluster.change(numbers, is_undoing, process, events, cancel);
        let rolled: LocalBoxFuture<'a, Result<Rolled>> = Box::pin(rolled);
        self.phase = Phase::Rolling(Rolling { change, purpose, rolled });
    }
}

/// Waits for the end of the roll in progress, and returns its result; never returns if no roll is in progress.
async fn ended(phase: &mut Phase<'_>) -> Result<Rolled> {
    match phase {
        Phase::Rolling(rolling) => (&mut rolling.rolled).await,
        _ => std::future::pending().await,
    }
}

/// Takes a sample at the time `moment`. A sample whose future is dropped early does not reset the counters.
async fn sample_at(observer: &mut impl cluster::Observe, moment: Instant) -> Observation {
    tokio::time::sleep_until(moment).await;
    observer.observe().await
}
