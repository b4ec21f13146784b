//! The planner: a task that decides up to four times a second which plans pay, and executes them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use imago_plan::design::allowance::Allowance;
use imago_plan::design::brakes::Limits;
use imago_plan::design::controller::Controller;
use imago_plan::design::decide::Parameters;
use imago_plan::design::layout::{self, Layout};
use imago_plan::design::price::{Price, price};
use imago_plan::design::regimes::Settings;
use imago_plan::design::regression::Linear;
use imago_plan::design::strategy::{MorphoSys, Strategy};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::carry_out::Unsettled;
use super::explain::Known;
use super::heat::{HeatRecorder, HeatReport};
use super::kept::{Keeper, Kept};
use super::learn::{Fits, Pending};
use super::limits::LimitsRequest;
use super::report::{AdaptReport, DecisionReport, FunctionReport, SiteLoadReport};
use super::site_work::Work;
use crate::engine::Store;
use crate::key::Key;
use crate::record::Site;
use crate::sampler::{Sampled, Sampler, thread_cpu};

/// Shortest time between two decisions.
const ROUND: Duration = Duration::from_millis(250);
/// Share of a core that the planner may use (0..1).
pub(super) const CPU_SHARE: f64 = 0.0125;
/// Most unused CPU time that the planner may save up, in seconds of a core.
const CPU_SAVED_MAX_S: f64 = 0.25;
/// While the transaction rate is unknown, one of this many transactions is sampled.
const EVERY_UNKNOWN: u32 = 8;

/// Whether plans that pay are only reported, or executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Plans that pay are reported.
    #[default]
    Advise,
    /// Plans that pay are executed.
    On,
}

/// The options of adaptation.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether plans that pay are only reported, or executed.
    pub mode: Mode,
    /// Parameters of decisions.
    pub parameters: Parameters,
    /// Limits of the brakes.
    pub limits: Limits,
    /// Seed of the planner's rng.
    pub seed: u64,
}

/// Adaptation of a store; it runs in the process that has the store's map.
pub struct Adaptation {
    pub(super) store: Arc<Store>,
    pub(super) sampler: Arc<Sampler>,
    pub(super) options: Mutex<Options>,
    /// Limits that were set at run time.
    pub(super) set: Mutex<LimitsRequest>,
    pub(super) is_paused: AtomicBool,
    pub(super) report: Mutex<AdaptReport>,
    began: Instant,
    /// Clock of decisions and bans at `began`, in ms.
    base_ms: u64,
    pub(super) keeper: Keeper,
    /// Persisted state of an earlier run, until the planner restores it.
    pub(super) earlier: Mutex<Option<Kept>>,
    known: Mutex<Arc<Known>>,
    strategy: Mutex<Box<dyn Strategy<Key>>>,
    heat: Mutex<HeatRecorder>,
    /// Makes the planner panic, as a test fault.
    #[cfg(test)]
    pub(super) panics: AtomicBool,
}

impl Adaptation {
    /// Starts sampling. Decisions begin with [`Adaptation::run`].
    #[must_use]
    pub fn new(store: Arc<Store>, sampler: Arc<Sampler>, options: Options) -> Arc<Self> {
        Self::with_kept(store, sampler, options, Keeper::default(), Kept::default())
    }

    /// Replaces the strategy, from the next decision on.
    pub fn decide_by(&self, strategy: Box<dyn Strategy<Key>>) {
        let mut deciding = self.strategy.lock().unwrap_or_else(PoisonError::into_inner);
        *deciding = strategy;
    }

    /// Starts sampling, with the persisted state of an earlier run.
    pub(super) fn with_kept(
        store: Arc<Store>,
        sampler: Arc<Sampler>,
        options: Options,
        keeper: Keeper,
        earlier: Kept,
    ) -> Arc<Self> {
        store.sample(Arc::clone(&sampler));
        let horizon_s = options.parameters.horizon_s;
        let (is_paused, base_ms, set) = (earlier.is_paused, earlier.now_ms, earlier.limits);
        let report =
            AdaptReport { mode: options.mode, horizon_s, is_paused, ..AdaptReport::default() };
        let (is_paused, report) = (AtomicBool::new(is_paused), Mutex::new(report));
        Arc::new(Self {
            store,
            sampler,
            options: Mutex::new(options),
            set: Mutex::new(set),
            is_paused,
            report,
            began: Instant::now(),
            base_ms,
            keeper,
            earlier: Mutex::new(Some(earlier)),
            known: Mutex::default(),
            strategy: Mutex::new(Box::new(MorphoSys::default())),
            heat: Mutex::new(HeatRecorder::new()),
            #[cfg(test)]
            panics: AtomicBool::new(false),
        })
    }

    /// Returns the state of adaptation.
    #[must_use]
    pub fn report(&self) -> AdaptReport {
        let kept = self.keeper.report();
        AdaptReport { kept, ..self.report.lock().unwrap_or_else(PoisonError::into_inner).clone() }
    }

    /// Returns the heat of key ranges over the last hour.
    #[must_use]
    pub fn heat(&self) -> HeatReport {
        let heat = self.heat.lock().unwrap_or_else(PoisonError::into_inner);
        heat.report(self.up_ms(), SystemTime::now())
    }

    /// Discards the heat so far, and sets the length of its columns.
    pub fn heat_columns(&self, each: Duration) {
        let recorder = HeatRecorder::with_columns(each.as_millis() as u64);
        *self.heat.lock().unwrap_or_else(PoisonError::into_inner) = recorder;
    }

    fn record_heat(&self, fetched: &[Sampled], layout: &Layout<Key>) {
        let mut heat = self.heat.lock().unwrap_or_else(PoisonError::into_inner);
        heat.record(self.up_ms(), &self.sampler, fetched, layout);
    }

    /// Returns the time since this process began to adapt, in ms.
    fn up_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the clock of decisions and bans, in ms; it continues from where an earlier process left it.
    pub(super) fn now_ms(&self) -> u64 {
        self.base_ms.saturating_add(self.up_ms())
    }

    /// Converts a time to the clock of [`Adaptation::now_ms`], in ms.
    pub(super) fn ms_of(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.began);
        self.base_ms.saturating_add(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    /// Returns the state of the planner after its last round.
    pub(super) fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Pauses changes of the design, or resumes them.
    pub fn pause(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::SeqCst);
        self.keeper.amend(|kept| kept.is_paused = is_paused);
        self.report.lock().unwrap_or_else(PoisonError::into_inner).is_paused = is_paused;
    }

    /// Runs the planner, and persists its state periodically. If the planner panics, the store serves on without
    /// adaptation: the panic is reported as the failure of adaptation, and logged.
    pub async fn run(self: Arc<Self>) {
        let mut planner = JoinSet::new();
        planner.spawn(Arc::clone(&self).decide());
        let ended = tokio::select! {
            ended = planner.join_next() => ended,
            () = self.write_now_and_then() => None,
        };
        if let Some(Err(ended)) = ended {
            let failure = format!("adaptation has ended, and the store serves on: {ended}");
            tracing::error!(%failure, "please report this");
            self.sampler.set_every(0);
            let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
            (report.has_ended, report.failure) = (true, Some(failure));
        }
    }

    async fn decide(self: Arc<Self>) {
        let mut planner = Planner::new(&self);
        let mut allowance = Allowance::new(CPU_SHARE, CPU_SAVED_MAX_S);
        let (mut rest, mut counted) = (ROUND, Instant::now());
        let (mut used, began) = (Duration::ZERO, Instant::now());
        loop {
            sleep(rest).await;
            let took = planner.round().await;
            used += took;
            #[cfg(test)]
            assert!(!self.panics.load(Ordering::SeqCst), "it was told to");
            let share = used.as_secs_f64() / began.elapsed().as_secs_f64();
            self.report.lock().unwrap_or_else(PoisonError::into_inner).planner_cpu = share;
            allowance.earn(counted.elapsed().as_secs_f64());
            allowance.spend(took.as_secs_f64());
            counted = Instant::now();
            rest = ROUND.max(Duration::from_secs_f64(allowance.rest_s()));
        }
    }
}

/// An executed plan whose effect is being measured: the number of its decision, and its operators.
pub(super) struct Carried {
    pub(super) decision: u64,
    pub(super) operators: Vec<layout::Operator<Key>>,
}

/// The state of the planner's task.
pub(super) struct Planner<'a> {
    pub(super) of: &'a Adaptation,
    pub(super) controller: Controller<Key>,
    /// Time at which samples were last fetched.
    pub(super) fetched: Instant,
    /// The samples of each site since the model last learned from that site.
    pub(super) pending: BTreeMap<layout::Site, Pending>,
    /// Work ahead of one wait at each site, in µs, as of when the model last learned from that site.
    pub(super) ahead_us: BTreeMap<layout::Site, f64>,
    /// Log lag of each site, in entries: a moving mean over its samples.
    pub(super) behind: BTreeMap<layout::Site, f64>,
    /// Predicted total costs of transactions and operators, compared with measured ones.
    pub(super) fits: Fits,
    /// The rng of the decisions.
    pub(super) dice: StdRng,
    /// Total work of each site as of the last round.
    pub(super) work: HashMap<Site, Work>,
    /// Total work of each site as of when the model last learned from it.
    pub(super) learned_work: HashMap<Site, Work>,
    /// Elapsed time that the last round's samples of each site cover.
    pub(super) spans: BTreeMap<layout::Site, Duration>,
    /// Load of each site in its last span, as a share of the CPU that it has.
    pub(super) shares: BTreeMap<layout::Site, f64>,
    /// Share of a core that the sites had when the functions were learned; `None` if unknown.
    pub(super) learned_share: Option<f64>,
    /// The last decisions with their numbers, the oldest first.
    pub(super) decisions: VecDeque<(u64, DecisionReport)>,
    pub(super) next_decision: u64,
    /// Executed plans whose effect is being measured.
    pub(super) carried: Vec<Carried>,
    /// Operators whose outcome is unknown.
    pub(super) unsettled: Vec<Unsettled>,
    /// Operators of unfinished plans whose replicas may still have to be removed.
    pub(super) owed: Vec<layout::Operator<Key>>,
    /// Number of operators that were executed.
    pub(super) changes: u64,
    /// Number of plans that were undone.
    pub(super) undone: u64,
    /// Why the last change failed; `None` if it succeeded.
    pub(super) failure: Option<String>,
}

impl<'a> Planner<'a> {
    fn new(of: &'a Adaptation) -> Self {
        let options = of.options();
        let mut planner = Self {
            of,
            controller: Controller::new(Settings::default(), options.limits),
            fetched: Instant::now(),
            pending: BTreeMap::new(),
            ahead_us: BTreeMap::new(),
            behind: BTreeMap::new(),
            fits: Fits::default(),
            dice: StdRng::seed_from_u64(options.seed),
            work: HashMap::new(),
            learned_work: HashMap::new(),
            spans: BTreeMap::new(),
            shares: BTreeMap::new(),
            learned_share: None,
            decisions: VecDeque::new(),
            next_decision: 0,
            carried: Vec::new(),
            unsettled: Vec::new(),
            owed: Vec::new(),
            changes: 0,
            undone: 0,
            failure: None,
        };
        planner.restore();
        planner
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.of.now_ms()
    }

    /// Makes one decision, and returns the CPU time that it used.
    async fn round(&mut self) -> Duration {
        let options = self.of.options();
        self.controller.limit(options.limits);
        let may_change = options.mode == Mode::On && !self.is_paused();
        self.settle(self.now_ms(), may_change).await;
        let layout = self.of.store.layout().await;
        let began = thread_cpu();
        let fetched = self.of.sampler.fetch();
        self.check_share();
        let cpu = self.cpu_of_sites(&layout);
        self.of.record_heat(&fetched, &layout);
        self.learn(&layout, &fetched);
        match self.controller.regimes.rate_s() {
            // The rate is unknown before the first slice is over, and after a time without transactions.
            0.0 => self.of.sampler.set_every(EVERY_UNKNOWN),
            rate_s => self.of.sampler.adjust(rate_s),
        }
        let outlook = self.controller.outlook(&layout, &mut self.dice);
        let (behind, cost) = (self.behind.clone(), self.controller.cost.clone());
        let operators_error = self.fits.operators.recent_error_share();
        let parameters = self.controller.widened(options.parameters, operators_error);
        let situation = outlook.situation(&cost, &behind);
        let now_ms = self.now_ms();
        let (distrust, decided) = {
            let mut strategy = self.of.strategy.lock().unwrap_or_else(PoisonError::into_inner);
            let store = &self.of.store;
            let forbids = |layout: &Layout<Key>, operator: &layout::Operator<Key>| {
                store.forbids(layout, operator)
            };
            let decided = self.controller.decide(
                &mut **strategy,
                &layout,
                &situation,
                &parameters,
                (&forbids, now_ms),
                &mut self.dice,
            );
            (strategy.distrust(&situation), decided)
        };
        let is = decided
            .as_ref()
            .map_or_else(|| price(&layout, &situation), |decided| decided.before.clone());
        // No await lies in between: both times are of the same thread.
        let decided_in = thread_cpu().saturating_sub(began);
        let is_undone = self.judge(now_ms, may_change).await;
        // An undo invalidates the decision, which was made on the design before the undo.
        if let Some(decided) = decided.filter(|_| !is_undone) {
            self.carry_out(now_ms, layout, (&decided, &outlook), may_change).await;
        }
        let began = thread_cpu();
        self.tell(distrust, &is, &cpu);
        let brakes = Some(self.controller.brakes.clone());
        let known = Arc::new(Known { outlook, behind, cost, brakes, parameters });
        *self.of.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
        self.of.keeper.offer(|| self.keep());
        decided_in + thread_cpu().saturating_sub(began)
    }

    pub(super) fn is_paused(&self) -> bool {
        self.of.is_paused.load(Ordering::SeqCst)
    }

    fn tell(&self, distrust: Option<String>, is: &Price, cpu: &BTreeMap<layout::Site, f64>) {
        let strategy = self.of.strategy.lock().unwrap_or_else(PoisonError::into_inner).name();
        let mut report = self.of.report.lock().unwrap_or_else(PoisonError::into_inner);
        report.strategy = strategy.to_owned();
        report.r_squared_transactions = self.fits.transactions.r_squared();
        report.r_squared_operators = self.fits.operators.r_squared();
        report.distrust = distrust;
        report.transactions_s = self.controller.regimes.rate_s();
        report.regimes = self.controller.regimes.known();
        report.latency_us = self.controller.latency().map(|latency| latency.mean_us);
        report.samples = self.controller.regimes.samples().count();
        report.dropped = self.of.sampler.dropped();
        report.changing_cpu_s = self.of.sampler.changing_cpu().as_secs_f64();
        report.changes = self.changes;
        report.undone = self.undone;
        report.failure.clone_from(&self.failure);
        report.functions = vec![
            function("service", &self.controller.cost.service),
            function("wait_updates", &self.controller.cost.wait_updates),
            function("lock", &self.controller.cost.lock),
            function("read_write", &self.controller.cost.read_write),
            function("change", &self.controller.cost.change),
            function("commit", &self.controller.cost.commit),
            function("cpu", &self.controller.cost.cpu),
        ];
        let load = |(site, predicted): (&layout::Site, &f64)| SiteLoadReport {
            site: *site,
            cpu: cpu.get(site).copied().unwrap_or(0.0),
            predicted_cpu: *predicted,
        };
        report.sites = is.cpu.iter().map(load).collect();
        report.decisions = self.decisions.iter().map(|(_, report)| report.clone()).collect();
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
