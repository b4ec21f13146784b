//! The driver of the planner: up to four times a second it passes the samples to the planner, and executes the
//! operators that the planner returns.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use imago_plan::store::allowance::{Budget, Spent};
use imago_plan::store::layout::{self, Layout, Operator};
use imago_plan::store::planner::{
    DecisionSnapshot, Event, Observed, Outcome, Permission, Planner, Round, Settings, SiteWork,
    WaitCause,
};
use imago_plan::store::regression::Linear;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::adaptation::Adaptation;
use super::coalesce::coalesced;
use super::explanation::Known;
use super::options::Mode;
use super::persisted::{Persisted, VERSION};
use super::report::{DecisionReport, FunctionReport, SiteLoadReport, Verdict};
use crate::key::Key;
use crate::record::{Epoch, Site};
use crate::sampler::{Cause, Sampled, thread_cpu};
use crate::transaction::Abort;

/// Minimum time between two decisions of the planner.
const ROUND: Duration = Duration::from_millis(250);
/// Share of one CPU core that the planner may use on average (0..1), without decisions that pay.
const CPU_SHARE: f64 = 0.0125;
/// Share of one CPU core that the planner may use on average (0..1) with decisions whose plans save far more than a
/// decision costs.
pub(super) const CPU_SHARE_PAYING: f64 = 0.125;
/// Maximum unused CPU time that the planner may save up for later rounds, in seconds of a core.
const CPU_SAVED_MAX_S: f64 = 0.25;
/// Maximum number of decisions that the report retains; rejected plans are dropped first.
const DECISIONS_MAX: usize = 200;

/// The task that runs the planner for one [`Adaptation`], and the decisions that it reports.
pub(super) struct Driver<'a> {
    pub(super) of: &'a Adaptation,
    pub(super) planner: Planner<Key>,
    /// The last decisions, the oldest first, each with the planner's number for it; `None` for a decision that was
    /// restored from an earlier process.
    pub(super) decisions: VecDeque<(Option<u64>, DecisionReport)>,
}

impl Adaptation {
    /// Runs the planner round after round, with pauses that keep it within its share of a core ([`CPU_SHARE`],
    /// [`CPU_SHARE_PAYING`]).
    pub(super) async fn decide(self: Arc<Self>) {
        let mut driver = Driver::new(&self);
        let mut budget = Budget::new(CPU_SHARE, CPU_SHARE_PAYING, CPU_SAVED_MAX_S);
        let (mut rest, mut counted) = (ROUND, Instant::now());
        let (mut used, began) = (Duration::ZERO, Instant::now());
        loop {
            sleep(rest).await;
            let before = driver.planner.changes;
            let (took, saves_us) = driver.round().await;
            used += took;
            #[cfg(test)]
            assert!(!self.panics.load(std::sync::atomic::Ordering::SeqCst), "it was told to");
            let share = used.as_secs_f64() / began.elapsed().as_secs_f64();
            self.report.lock().unwrap_or_else(PoisonError::into_inner).planner_cpu = share;
            let rest_s = budget.spend(Spent {
                passed_s: counted.elapsed().as_secs_f64(),
                took_s: took.as_secs_f64(),
                saves_s: saves_us / 1e6,
                has_changed: driver.planner.changes > before,
            });
            counted = Instant::now();
            rest = ROUND.max(Duration::from_secs_f64(rest_s));
        }
    }
}

impl<'a> Driver<'a> {
    fn new(of: &'a Adaptation) -> Self {
        let options = of.options();
        let limits = (options.parameters, options.limits);
        let planner = Planner::new(Settings::default(), limits, options.seed, of.now_ms());
        let mut driver = Self { of, planner, decisions: VecDeque::new() };
        driver.restore();
        driver
    }

    /// Runs one round of the planner. Returns the CPU time that the planner used in it, and the predicted saving of the
    /// plans that it chose, in µs of transactions.
    async fn round(&mut self) -> (Duration, f64) {
        let (options, is_paused) = (self.of.options(), self.of.is_paused());
        let permission = match options.mode {
            _ if is_paused => Permission::Paused,
            Mode::Advise => Permission::Advise,
            Mode::On => Permission::Change,
        };
        let mut parameters = options.parameters;
        parameters.thresholds.replicas_min = self.of.store.replicas_min();
        self.planner.configure(parameters, options.limits, permission);
        self.settle().await;
        let layout = self.of.store.layout().await;
        let began = thread_cpu();
        let snapshot = self.decide(&layout);
        // No await lies in between: both times are of the same thread.
        let decided_in = thread_cpu().saturating_sub(began);
        self.execute().await;
        let saves_us = snapshot.saves_us;
        let began = thread_cpu();
        self.report(snapshot);
        self.of.persist(|| self.persisted());
        (decided_in + thread_cpu().saturating_sub(began), saves_us)
    }

    /// Resolves operators whose outcome was in doubt, now that the design shows it, and executes the operators that
    /// follow.
    async fn settle(&mut self) {
        if !self.planner.is_unsettled() {
            return;
        }
        let (layout, map) = (self.of.store.layout().await, self.of.store.map());
        let is_open = |site: layout::Site, epoch: u64| {
            let site = Site(site);
            map.design.epoch(site) == Epoch(epoch) && !map.design.is_fenced(site)
        };
        self.planner.settle(self.of.now_ms(), &layout, &is_open);
        self.execute().await;
    }

    /// Passes the samples since the last round to the planner, and lets it decide about the design `layout`.
    fn decide(&mut self, layout: &Layout<Key>) -> DecisionSnapshot<Key> {
        let Adaptation { sampler, store, .. } = self.of;
        let fetched = sampler.fetch();
        self.of.record_heat(&fetched, layout);
        let now_ms = self.of.now_ms();
        let work = |site: layout::Site| {
            let (span, (cpu, counts)) = (sampler.span(Site(site)), sampler.work(Site(site)));
            (site, SiteWork { span, cpu, counts, core_share: sampler.share_of(Site(site)) })
        };
        let work: BTreeMap<layout::Site, SiteWork> = layout.sites().iter().map(work).collect();
        let observed =
            fetched.into_iter().map(|one| observed(self.of.to_clock_ms(one.began), one)).collect();
        let core_share = sampler.share();
        self.planner.observe(Round { now_ms, layout, observed, work: &work, core_share });
        sampler.set_every(self.planner.sample_every());
        let mut strategy = self.of.strategy.lock().unwrap_or_else(PoisonError::into_inner);
        let forbids =
            |layout: &Layout<Key>, operator: &Operator<Key>| store.forbids(layout, operator);
        self.planner.decide(now_ms, layout, &mut **strategy, &forbids)
    }

    /// Executes the operators that the planner returns, wave by wave. Those of one wave are of different partitions,
    /// and run concurrently.
    async fn execute(&mut self) {
        while self.planner.is_busy() {
            let layout = self.of.store.layout().await;
            let Some(operators) = self.planner.next(self.of.now_ms(), &layout) else { break };
            let map = self.of.store.map();
            let mut under_way = JoinSet::new();
            for operator in operators {
                let (store, since) = (Arc::clone(&self.of.store), Instant::now());
                let master = map.design.of(operator.key()).master;
                let epoch = map.design.epoch(master);
                under_way.spawn(async move {
                    let done = store.execute(&operator).await;
                    (operator, (master, epoch), done, since.elapsed())
                });
            }
            for (operator, (site, epoch), done, took) in under_way.join_all().await {
                let outcome = match done {
                    Ok(()) => Outcome::Done(took.as_secs_f64() * 1e6),
                    Err(abort @ (Abort::Late | Abort::Unlogged | Abort::Deposed)) => {
                        Outcome::InDoubt(abort.to_string(), site.0, epoch.0)
                    }
                    Err(abort) => Outcome::Failed(abort.to_string()),
                };
                self.planner.ended(&operator, outcome);
            }
        }
        for event in self.planner.events() {
            self.record(event);
        }
    }

    /// Records an event of the planner in the decisions: a decision, the measured effect of one, or the undoing of
    /// one.
    fn record(&mut self, event: Event<Key>) {
        match event {
            Event::Decided { number, at_ms, plan, verdict } => {
                let verdict = Verdict::of(&plan, verdict);
                self.remember(Some(number), DecisionReport::of(at_ms, &plan, verdict));
            }
            Event::Measured { number, watched } => {
                let Some(report) = self.decision(Some(number)) else { return };
                let before = watched.before.latency;
                report.measured_us = watched.after.map(|after| (before.mean_us, after.mean_us));
                report.measured_error_us =
                    watched.after.map(|after| before.error_us.hypot(after.error_us));
            }
            Event::Undone { number } => {
                let Some(report) = number.and_then(|number| self.decision(Some(number))) else {
                    return;
                };
                let operators = report.operators.join(", ");
                tracing::info!(%operators, measured_us = ?report.measured_us, "undone");
                report.verdict = Verdict::Undone;
            }
            Event::CostsDiscarded { core_share } => {
                tracing::info!(
                    share = core_share,
                    "the cost functions are learned anew: sites have another share"
                );
            }
        }
    }

    fn decision(&mut self, number: Option<u64>) -> Option<&mut DecisionReport> {
        self.decisions.iter_mut().find(|(of, _)| *of == number).map(|(_, report)| report)
    }

    /// Adds a decision with the planner's number to the report, and logs it unless the plan was rejected.
    fn remember(&mut self, number: Option<u64>, report: DecisionReport) {
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
                |(_, one): &(_, DecisionReport)| matches!(one.verdict, Verdict::Rejected(_));
            let oldest = self.decisions.iter().position(is_rejected).unwrap_or(0);
            self.decisions.remove(oldest);
        }
        self.decisions.push_back((number, report));
    }

    /// Updates the report of adaptation and the state from which placements are explained, after a round with this
    /// snapshot.
    fn report(&self, snapshot: DecisionSnapshot<Key>) {
        let (planner, sampler) = (&self.planner, &self.of.sampler);
        let (controller, accuracy) = (planner.controller(), planner.accuracy());
        let strategy = self.of.strategy.lock().unwrap_or_else(PoisonError::into_inner).name();
        let mut report = self.of.report.lock().unwrap_or_else(PoisonError::into_inner);
        report.strategy = strategy.to_owned();
        report.r_squared_transactions = accuracy.transactions.r_squared();
        report.r_squared_operators = accuracy.operators.r_squared();
        report.distrust.clone_from(&snapshot.distrust);
        report.transactions_s = controller.regimes.rate_s();
        report.regimes = controller.regimes.known();
        report.latency_us = controller.latency().map(|latency| latency.mean_us);
        report.samples = controller.regimes.samples().count();
        report.dropped = sampler.dropped();
        report.changing_cpu_s = sampler.changing_cpu().as_secs_f64();
        (report.changes, report.undone) = (planner.changes, planner.undone);
        report.failure.clone_from(&planner.failure);
        let cost = &controller.cost;
        report.functions = vec![
            function("service", &cost.service),
            function("wait_updates", &cost.wait_updates),
            function("lock", &cost.lock),
            function("read_write", &cost.read_write),
            function("change", &cost.change),
            function("commit", &cost.commit),
            function("cpu", &cost.cpu),
        ];
        let load = |(site, predicted_cpu): (&layout::Site, &f64)| SiteLoadReport {
            site: *site,
            cpu: planner.site_loads().get(site).copied().unwrap_or(0.0),
            predicted_cpu: *predicted_cpu,
        };
        report.sites = snapshot.price.cpu.iter().map(load).collect();
        report.decisions = self.decisions.iter().map(|(_, report)| report.clone()).collect();
        drop(report);
        let known = Arc::new(Known { snapshot, brakes: Some(controller.guardrails.clone()) });
        *self.of.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
    }
}

impl Driver<'_> {
    /// Returns the present state of adaptation in the form in which it is persisted.
    pub(super) fn persisted(&self) -> Persisted {
        let (of, planner) = (self.of, &self.planner);
        let mut state = Persisted {
            version: VERSION,
            now_ms: of.now_ms(),
            limits: *of.set.lock().unwrap_or_else(PoisonError::into_inner),
            is_paused: of.is_paused(),
            changes: planner.changes,
            undone: planner.undone,
            decisions: self.decisions.iter().map(|(_, report)| report.clone()).collect(),
            sites: of.sampler.sites(),
            site_cpu: planner.core_share(),
            ..Persisted::default()
        };
        state.learn(&planner.controller().cost);
        state.copy_bans(&planner.controller().guardrails);
        state
    }

    /// Restores the persisted state of an earlier process, if there is one. Cost functions that were learned for
    /// another number of sites, or for sites with another share of a core, are not used. Where sites are separate
    /// processes, restored functions are used until a site reports another share of a core.
    pub(super) fn restore(&mut self) {
        let earlier = self.of.earlier.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(state) = earlier.filter(|state| state.version > 0) else { return };
        let sampler = &self.of.sampler;
        let share = sampler.share().or(state.site_cpu);
        let is_of_these_sites =
            state.site_cpu.is_some() && (state.sites, state.site_cpu) == (sampler.sites(), share);
        if !is_of_these_sites {
            tracing::info!("the cost functions are learned anew: they were of other sites");
        }
        // Functions and bans were checked when the file was read.
        self.planner.restore(share.filter(|_| is_of_these_sites), |cost, brakes| {
            if is_of_these_sites {
                _ = state.model(cost);
            }
            _ = state.restore_bans(brakes);
        });
        (self.planner.changes, self.planner.undone) = (state.changes, state.undone);
        self.decisions = state.decisions.into_iter().map(|report| (None, report)).collect();
        self.of.report.lock().unwrap_or_else(PoisonError::into_inner).decisions =
            self.decisions.iter().map(|(_, report)| report.clone()).collect();
    }
}

/// Converts a sample of the sites to the planner's form; `at_ms` is the start of the transaction on the clock of
/// decisions.
fn observed(at_ms: u64, sampled: Sampled) -> Observed<Key> {
    let cause = |cause: Cause| match cause {
        Cause::Updates => WaitCause::Updates,
        Cause::Partition => WaitCause::Partition,
        Cause::Client => WaitCause::Client,
    };
    Observed {
        at_ms,
        every: sampled.every,
        site: sampled.site.0,
        reads: coalesced(sampled.reads).into_iter().map(|of| (of.start, of.end)).collect(),
        writes: sampled.writes,
        rows: sampled.rows,
        lag_entries: sampled.log_lag_entries,
        waited: sampled.waited.map(|waited| (cause(waited.cause), waited.us)),
        service_us: sampled.service_us,
        run_us: sampled.run_us,
        commit_us: sampled.commit_us,
    }
}

fn function<const N: usize>(name: &str, of: &Linear<N>) -> FunctionReport {
    let (constant, weights) = of.weights();
    FunctionReport {
        name: name.to_owned(),
        constant,
        weights: weights.to_vec(),
        samples: of.samples(),
        r_squared: of.r_squared(),
    }
}
