//! The planner: a task beside the sites that decides four times a second, and carries out what pays.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use imago_plan::design::brakes::{Brakes, Limits};
use imago_plan::design::cost::CostModel;
use imago_plan::design::decide::{Parameters, emulated};
use imago_plan::design::layout::{self, Layout};
use imago_plan::design::price::{CPU_WEIGHT, Price, Situation, price};
use imago_plan::design::regression::Linear;
use imago_plan::design::reservoir::Reservoir;
use imago_plan::design::strategy::{MorphoSys, Strategy};
use imago_plan::design::workload::Sample;
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

/// Between two decisions, at least.
const ROUND: Duration = Duration::from_millis(250);
/// The share of a core that the planner may use, and how much of it at once, in seconds of a core.
pub(super) const CPU_SHARE: f64 = 0.0125;
const CPU_AT_ONCE: f64 = 0.25;
/// Samples that decisions are made by, and how old they may be: no older than the cool-down of a partition.
const SAMPLES: usize = 1_000;
const WINDOW_MS: u64 = 5_000;
/// Generated transactions beside them.
const GENERATED: usize = 100;
/// The treatment of plans that pay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// It is told.
    #[default]
    Advise,
    /// It is carried out.
    On,
}

/// The options of adaptation.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The treatment of plans that pay.
    pub mode: Mode,
    /// The parameters of decisions.
    pub parameters: Parameters,
    /// The limits of its brakes.
    pub limits: Limits,
    /// The seed of its random numbers.
    pub seed: u64,
}

/// Adaptation of a store, in the process that has its map.
pub struct Adaptation {
    pub(super) store: Arc<Store>,
    pub(super) sampler: Arc<Sampler>,
    pub(super) options: Mutex<Options>,
    /// Limits that were set while it ran.
    pub(super) set: Mutex<LimitsRequest>,
    pub(super) is_paused: AtomicBool,
    pub(super) report: Mutex<AdaptReport>,
    began: Instant,
    /// The time of its clock at that moment, in ms.
    base_ms: u64,
    pub(super) keeper: Keeper,
    /// The kept state of an earlier run, until the planner takes it.
    pub(super) earlier: Mutex<Option<Kept>>,
    known: Mutex<Arc<Known>>,
    strategy: Mutex<Box<dyn Strategy<Key>>>,
    heat: Mutex<HeatRecorder>,
    /// A deliberate fault.
    #[cfg(test)]
    pub(super) panics: AtomicBool,
}

impl Adaptation {
    /// Begins to sample; [`Adaptation::run`] decides.
    #[must_use]
    pub fn new(store: Arc<Store>, sampler: Arc<Sampler>, options: Options) -> Arc<Self> {
        Self::with_kept(store, sampler, options, Keeper::default(), Kept::default())
    }

    /// Lets another strategy decide from the next decision on.
    pub fn decide_by(&self, strategy: Box<dyn Strategy<Key>>) {
        let mut deciding = self.strategy.lock().unwrap_or_else(PoisonError::into_inner);
        *deciding = strategy;
    }

    /// The same, going on from what was kept.
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

    /// The heat of key ranges over the last hour.
    #[must_use]
    pub fn heat(&self) -> HeatReport {
        let heat = self.heat.lock().unwrap_or_else(PoisonError::into_inner);
        heat.report(self.up_ms(), SystemTime::now())
    }

    /// Forgets the heat so far, and has its columns be so long from now on.
    pub fn heat_columns(&self, each: Duration) {
        let recorder = HeatRecorder::with_columns(each.as_millis() as u64);
        *self.heat.lock().unwrap_or_else(PoisonError::into_inner) = recorder;
    }

    fn record_heat(&self, fetched: &[Sampled], layout: &Layout<Key>) {
        let mut heat = self.heat.lock().unwrap_or_else(PoisonError::into_inner);
        heat.record(self.up_ms(), &self.sampler, fetched, layout);
    }

    /// In ms since this process began to adapt.
    fn up_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The clock of decisions and bans, in ms: it goes on from where an earlier process left it.
    pub(super) fn now_ms(&self) -> u64 {
        self.base_ms.saturating_add(self.up_ms())
    }

    /// A moment by that clock.
    pub(super) fn ms_of(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.began);
        self.base_ms.saturating_add(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    /// Knowledge of the planner in its last round.
    pub(super) fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lets it change nothing from now on, or again what pays.
    pub fn pause(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::SeqCst);
        self.keeper.amend(|kept| kept.is_paused = is_paused);
        self.report.lock().unwrap_or_else(PoisonError::into_inner).is_paused = is_paused;
    }

    /// Decides again and again. Should the planner panic, the store serves on, and adaptation has ended: that is
    /// told as its failure, and in the log.
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
        let (mut rest, mut left_s, mut looked) = (ROUND, CPU_AT_ONCE, Instant::now());
        let (mut used, began) = (Duration::ZERO, Instant::now());
        loop {
            sleep(rest).await;
            let took = planner.round().await;
            used += took;
            #[cfg(test)]
            assert!(!self.panics.load(Ordering::SeqCst), "it was told to");
            let share = used.as_secs_f64() / began.elapsed().as_secs_f64();
            self.report.lock().unwrap_or_else(PoisonError::into_inner).planner_cpu = share;
            let earned_s = looked.elapsed().as_secs_f64() * CPU_SHARE;
            left_s = (left_s + earned_s).min(CPU_AT_ONCE) - took.as_secs_f64();
            looked = Instant::now();
            // A round that used more than its share is followed by a longer rest.
            rest = ROUND.max(Duration::from_secs_f64((-left_s / CPU_SHARE).max(0.0)));
        }
    }
}

/// A change that is being measured: its decision, by number, and its operators.
pub(super) struct Carried {
    pub(super) decision: u64,
    pub(super) operators: Vec<layout::Operator<Key>>,
}

pub(super) struct Planner<'a> {
    pub(super) of: &'a Adaptation,
    pub(super) reservoir: Reservoir<Sample<Key>>,
    pub(super) cost: CostModel,
    /// Transactions under way at once, as of the last rounds.
    pub(super) population: f64,
    /// The time at which samples were fetched last.
    pub(super) fetched: Instant,
    /// The samples of each site since the model learned from them last.
    pub(super) pending: BTreeMap<layout::Site, Pending>,
    /// The work ahead of one wait at each site, in µs, as of when it was learned from last.
    pub(super) ahead_us: BTreeMap<layout::Site, f64>,
    /// The log entries that each site is behind, as of its last samples.
    pub(super) behind: BTreeMap<layout::Site, f64>,
    /// Predicted costs of transactions and of operators in whole, beside what was measured.
    pub(super) fits: Fits,
    pub(super) brakes: Brakes<Key>,
    pub(super) dice: StdRng,
    /// The span of time of each site, its processor time in it, and its rows, as of the last round.
    pub(super) work: HashMap<Site, Work>,
    /// The same as of when it was learned from last.
    pub(super) learned_work: HashMap<Site, Work>,
    /// The spans that the last round's samples are of, and the shares that sites used in their last spans.
    pub(super) spans: BTreeMap<layout::Site, Duration>,
    pub(super) shares: BTreeMap<layout::Site, f64>,
    /// The share of a core of the sites that the functions were learned of, if it is known.
    pub(super) learned_share: Option<f64>,
    /// The mean latency of each round within the time in which changes are measured: when, its sum, of how many.
    pub(super) latencies: VecDeque<(u64, f64, f64)>,
    pub(super) decisions: VecDeque<(u64, DecisionReport)>,
    pub(super) next_decision: u64,
    pub(super) carried: Vec<Carried>,
    pub(super) unsettled: Vec<Unsettled>,
    /// Copies that unfinished plans made and that may have to be taken back yet.
    pub(super) owed: Vec<layout::Operator<Key>>,
    pub(super) changes: u64,
    pub(super) undone: u64,
    pub(super) failure: Option<String>,
}

impl<'a> Planner<'a> {
    fn new(of: &'a Adaptation) -> Self {
        let options = of.options();
        let mut planner = Self {
            of,
            reservoir: Reservoir::new(SAMPLES, WINDOW_MS),
            cost: CostModel::default(),
            population: 0.0,
            fetched: Instant::now(),
            pending: BTreeMap::new(),
            ahead_us: BTreeMap::new(),
            behind: BTreeMap::new(),
            fits: Fits::default(),
            brakes: Brakes::new(options.limits),
            dice: StdRng::seed_from_u64(options.seed),
            work: HashMap::new(),
            learned_work: HashMap::new(),
            spans: BTreeMap::new(),
            shares: BTreeMap::new(),
            learned_share: None,
            latencies: VecDeque::new(),
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

    /// One decision; the time that it used.
    async fn round(&mut self) -> Duration {
        let options = self.of.options();
        self.brakes.limit(options.limits);
        let may_change = options.mode == Mode::On && !self.is_paused();
        self.settle(self.now_ms(), may_change).await;
        let layout = self.of.store.layout().await;
        let began = thread_cpu();
        let fetched = self.of.sampler.fetch();
        self.check_share();
        let cpu = self.cpu_of_sites(&layout);
        self.of.record_heat(&fetched, &layout);
        self.learn(&layout, &fetched);
        self.of.sampler.adjust(self.reservoir.rate_s());
        let samples: Vec<Sample<Key>> =
            self.reservoir.samples().map(|(_, sample)| sample.clone()).collect();
        let samples = emulated(&layout, &samples, GENERATED, &mut self.dice);
        let behind = self.behind.clone();
        let (rate_s, mut parameters) = (self.reservoir.rate_s(), options.parameters);
        parameters.gain_min = parameters.gain_min.max(self.gain_seen_min());
        let cost = self.cost.clone();
        let situation = Situation {
            samples: &samples,
            rate_s,
            population: self.population,
            cost: &cost,
            behind: &behind,
            cpu_weight: CPU_WEIGHT,
        };
        let now_ms = self.now_ms();
        let (distrust, decided) = {
            let mut strategy = self.of.strategy.lock().unwrap_or_else(PoisonError::into_inner);
            let distrust = strategy.distrust(&situation);
            let (brakes, store) = (&self.brakes, &self.of.store);
            let held = |layout: &Layout<Key>, operator: &layout::Operator<Key>| {
                let is_dead = !store.has_live_master(operator.key());
                let absent = is_dead.then(|| "its master is not there".to_owned());
                absent.or_else(|| brakes.holds(layout, operator, now_ms))
            };
            let may_decide = distrust.is_none() && !samples.is_empty();
            let decided = may_decide
                .then(|| strategy.decide(&layout, &situation, &parameters, &held, &mut self.dice));
            (distrust, decided)
        };
        let is = decided
            .as_ref()
            .map_or_else(|| price(&layout, &situation), |decided| decided.before.clone());
        // Nothing was awaited in between: it was one thread.
        let took = thread_cpu().saturating_sub(began);
        let is_undone = self.judge(now_ms, may_change).await;
        // An undo voids the decision, which is by the design before it.
        if let Some(decided) = decided.filter(|_| !is_undone) {
            self.carry_out(now_ms, layout, &decided, may_change).await;
        }
        self.tell(distrust, &is, &cpu);
        let brakes = Some(self.brakes.clone());
        let population = self.population;
        let known = Arc::new(Known { samples, rate_s, population, behind, cost, brakes });
        *self.of.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
        self.of.keeper.offer(|| self.keep());
        took
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
        report.transactions_s = self.reservoir.rate_s();
        report.latency_us = self.latency().map(|latency| latency.mean_us);
        report.samples = self.reservoir.samples().len();
        report.dropped = self.of.sampler.dropped();
        report.changing_cpu_s = self.of.sampler.changing_cpu().as_secs_f64();
        report.changes = self.changes;
        report.undone = self.undone;
        report.failure.clone_from(&self.failure);
        report.functions = vec![
            function("service", &self.cost.service),
            function("wait_updates", &self.cost.wait_updates),
            function("lock", &self.cost.lock),
            function("read_write", &self.cost.read_write),
            function("change", &self.cost.change),
            function("commit", &self.cost.commit),
            function("cpu", &self.cost.cpu),
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
