//! The planner: a task beside the sites that decides every half a second, and carries out what pays.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use imago_plan::design::brakes::{Brakes, Limits};
use imago_plan::design::cost::{CostModel, Inputs, Measured, Operation};
use imago_plan::design::decide::{Parameters, decide, emulated};
use imago_plan::design::layout::{self, Layout, Partition};
use imago_plan::design::price::{CPU_WEIGHT, Price, Situation, price};
use imago_plan::design::regression::Linear;
use imago_plan::design::reservoir::Reservoir;
use imago_plan::design::workload::{Numbered, Sample, Statistics, Touched};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::report::{AdaptReport, DecisionReport, FunctionReport, SiteLoadReport};
use crate::engine::Store;
use crate::engine::site::epoch::count;
use crate::key::Key;
use crate::record::Site;
use crate::sampler::{Sampled, Sampler};

/// Between two decisions, at least.
const ROUND: Duration = Duration::from_millis(500);
/// The share of a core that the planner may use.
pub(super) const CPU_SHARE: f64 = 0.03;
/// Samples that decisions are made by, and how old they may be: no older than the cool-down of a partition.
const SAMPLES: usize = 300;
const WINDOW_MS: u64 = 5_000;
/// Generated transactions beside them.
const GENERATED: usize = 30;
/// What is done about a plan that pays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// It is told.
    #[default]
    Advise,
    /// It is carried out.
    On,
}

/// How the store adapts.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What is done about a plan that pays.
    pub mode: Mode,
    /// How decisions are made.
    pub parameters: Parameters,
    /// What holds them back.
    pub limits: Limits,
    /// Where its random numbers begin.
    pub seed: u64,
}

/// Adaptation of a store whose sites are in this process.
pub struct Adaptation {
    pub(super) store: Arc<Store>,
    sampler: Arc<Sampler>,
    pub(super) options: Options,
    is_paused: AtomicBool,
    report: Mutex<AdaptReport>,
    /// A deliberate fault.
    #[cfg(test)]
    pub(super) panics: AtomicBool,
}

impl Adaptation {
    /// Begins to sample; [`Adaptation::run`] decides.
    #[must_use]
    pub fn new(store: Arc<Store>, sampler: Arc<Sampler>, options: Options) -> Arc<Self> {
        store.sample(Arc::clone(&sampler));
        let horizon_s = options.parameters.horizon_s;
        let report = AdaptReport { mode: options.mode, horizon_s, ..AdaptReport::default() };
        let (is_paused, report) = (AtomicBool::new(false), Mutex::new(report));
        Arc::new(Self {
            store,
            sampler,
            options,
            is_paused,
            report,
            #[cfg(test)]
            panics: AtomicBool::new(false),
        })
    }

    /// How it stands.
    #[must_use]
    pub fn report(&self) -> AdaptReport {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets it change nothing from now on, or again what pays.
    pub fn pause(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::SeqCst);
        self.report.lock().unwrap_or_else(PoisonError::into_inner).is_paused = is_paused;
    }

    /// Decides again and again. Should the planner panic, the store serves on, and adaptation has ended: that is
    /// told as its failure, and in the log.
    pub async fn run(self: Arc<Self>) {
        let mut planner = JoinSet::new();
        planner.spawn(Arc::clone(&self).decide());
        if let Some(Err(ended)) = planner.join_next().await {
            let failure = format!("adaptation has ended, and the store serves on: {ended}");
            tracing::error!(%failure, "please report this");
            let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
            (report.has_ended, report.failure) = (true, Some(failure));
        }
    }

    async fn decide(self: Arc<Self>) {
        let mut planner = Planner::new(&self);
        let mut rest = ROUND;
        loop {
            sleep(rest).await;
            let began = Instant::now();
            let took = planner.round().await;
            #[cfg(test)]
            assert!(!self.panics.load(Ordering::SeqCst), "it was told to");
            let share = took.as_secs_f64() / (began.elapsed() + rest).as_secs_f64();
            self.report.lock().unwrap_or_else(PoisonError::into_inner).planner_cpu = share;
            rest = ROUND.max(took.div_f64(CPU_SHARE));
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
    pub(super) began: Instant,
    reservoir: Reservoir<Sample<Key>>,
    pub(super) cost: CostModel,
    pub(super) brakes: Brakes<Key>,
    dice: StdRng,
    /// The processor time of each site when it was looked at last.
    cpu: HashMap<Site, (Instant, Duration)>,
    /// The mean latency of each round within the time in which changes are measured: when, its sum, of how many.
    latencies: VecDeque<(u64, f64, f64)>,
    pub(super) decisions: VecDeque<(u64, DecisionReport)>,
    pub(super) next_decision: u64,
    pub(super) carried: Vec<Carried>,
    pub(super) changes: u64,
    pub(super) undone: u64,
    pub(super) failure: Option<String>,
}

impl<'a> Planner<'a> {
    fn new(of: &'a Adaptation) -> Self {
        Self {
            of,
            began: Instant::now(),
            reservoir: Reservoir::new(SAMPLES, WINDOW_MS),
            cost: CostModel::default(),
            brakes: Brakes::new(of.options.limits),
            dice: StdRng::seed_from_u64(of.options.seed),
            cpu: HashMap::new(),
            latencies: VecDeque::new(),
            decisions: VecDeque::new(),
            next_decision: 0,
            carried: Vec::new(),
            changes: 0,
            undone: 0,
            failure: None,
        }
    }

    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// One decision; the time that it used.
    async fn round(&mut self) -> Duration {
        let layout = self.layout().await;
        let began = Instant::now();
        let fetched = self.of.sampler.fetch();
        let cpu = self.cpu_of_sites(&layout);
        self.learn(&layout, &fetched, &cpu);
        self.of.sampler.adjust(self.reservoir.rate_s());
        let samples: Vec<Sample<Key>> =
            self.reservoir.samples().map(|(_, sample)| sample.clone()).collect();
        let samples = emulated(&layout, &samples, GENERATED, &mut self.dice);
        let behind = BTreeMap::new();
        let (rate_s, parameters) = (self.reservoir.rate_s(), self.of.options.parameters);
        // As it stands now: what this round shows of the sites' loads counts from the next on.
        let cost = self.cost.clone();
        let situation = Situation {
            samples: &samples,
            rate_s,
            cost: &cost,
            behind: &behind,
            cpu_weight: CPU_WEIGHT,
        };
        let is = price(&layout, &situation);
        for (site, load) in &is.loads {
            if let Some(share) = cpu.get(site).filter(|_| rate_s > 0.0) {
                self.cost.cpu.observe(*load, *share);
            }
        }
        let now_ms = self.now_ms();
        let distrust = cost.distrust();
        let decided = if distrust.is_none() && !samples.is_empty() {
            let brakes = &self.brakes;
            let held = |layout: &Layout<Key>, operator: &layout::Operator<Key>| {
                brakes.holds(layout, operator, now_ms)
            };
            Some(decide(&layout, &situation, &parameters, &held, &mut self.dice))
        } else {
            None
        };
        let took = began.elapsed();
        let may_change = self.of.options.mode == Mode::On && !self.is_paused();
        let is_undone = self.judge(now_ms, &layout, may_change).await;
        // What was decided is by the design before that.
        if let Some(decided) = decided.filter(|_| !is_undone) {
            self.carry_out(now_ms, layout, &decided, may_change).await;
        }
        self.tell(distrust, &is, &cpu);
        took
    }

    pub(super) fn is_paused(&self) -> bool {
        self.of.is_paused.load(Ordering::SeqCst)
    }

    /// The design with the sizes of partitions, and the sites that are alive.
    pub(super) async fn layout(&self) -> Layout<Key> {
        let usage = self.of.store.usage().await;
        let map = self.of.store.map();
        let copies = usage.iter().flat_map(|(_, copies)| copies).filter(|copy| copy.is_master);
        let sizes: HashMap<&Key, _> = copies.map(|copy| (&copy.start, copy.size)).collect();
        let partition = |of: &crate::design::Partition| {
            let size = sizes.get(&of.range.start);
            let partition = Partition {
                master: of.master.0,
                replicas: of.replicas.iter().map(|site| site.0).collect(),
                rows: size.map_or(0, |size| size.rows),
                bytes: size.map_or(0, |size| size.bytes),
                pin: of.pin.map(|site| site.0),
            };
            (of.range.start.clone(), partition)
        };
        let is_live =
            |site: &Site| count(map.design.epoch(*site)) > 0 && !map.design.is_fenced(*site);
        let live = usage.iter().map(|(site, _)| *site).filter(is_live).map(|site| site.0);
        let mut sites: BTreeSet<layout::Site> = live.collect();
        if sites.is_empty() {
            // While none is alive nothing is sampled, and nothing decided.
            sites.insert(0);
        }
        Layout::new(map.design.partitions().map(partition).collect(), sites)
    }

    /// The share that each site used since the last time of what it has.
    fn cpu_of_sites(&mut self, layout: &Layout<Key>) -> BTreeMap<layout::Site, f64> {
        let now = Instant::now();
        let mut shares = BTreeMap::new();
        for site in layout.sites() {
            let cpu = self.of.sampler.cpu(Site(site));
            if let Some((then, before)) = self.cpu.insert(Site(site), (now, cpu)) {
                let used = cpu.saturating_sub(before).as_secs_f64() / self.of.sampler.share();
                shares.insert(site, used / (now - then).as_secs_f64().max(1e-3));
            }
        }
        shares
    }

    fn learn(
        &mut self,
        layout: &Layout<Key>,
        fetched: &[Sampled],
        cpu: &BTreeMap<layout::Site, f64>,
    ) {
        let numbered = Numbered::new(layout);
        let touched: Vec<Touched> =
            self.reservoir.samples().map(|(_, sample)| numbered.touched(sample)).collect();
        let statistics = Statistics::of(layout.len(), touched.iter().map(|touched| (1.0, touched)));
        let now_ms = self.now_ms();
        let (mut sum_us, mut count) = (0.0, 0.0);
        let commits = fetched.iter().filter(|sampled| sampled.rows.is_some());
        let quickest_us = commits.filter_map(|sampled| sampled.commit_us).fold(f64::MAX, f64::min);
        for sampled in fetched {
            let written = sampled.writes.len() as u32;
            let declared = (written + sampled.reads.len() as u32, written);
            let rows = sampled.rows.unwrap_or(declared);
            let sample = Sample {
                reads: sampled.reads.iter().map(|of| (of.start.clone(), of.end.clone())).collect(),
                writes: sampled.writes.clone(),
                rows_read: rows.0,
                rows_written: rows.1,
            };
            let touched = numbered.touched(&sample);
            let contention = touched.writes.iter().map(|write| statistics.writes(*write)).sum();
            let inputs = Inputs {
                cpu: cpu.get(&sampled.site.0).copied().unwrap_or(0.0),
                contention,
                rows: (f64::from(rows.0), f64::from(rows.1)),
                partitions: (touched.reads.len() as f64, touched.writes.len() as f64),
                ..Inputs::default()
            };
            let ran_at_once = sampled.rows.is_some();
            // The log takes what it takes at its quickest; what is beyond is the wait for the site's thread.
            let commit_us = sampled.commit_us.filter(|_| ran_at_once);
            let waited_us = commit_us.map_or(0.0, |us| us - quickest_us);
            let service_us = sampled.service_us + waited_us;
            let measured = Measured {
                service: Some(service_us).filter(|_| cpu.contains_key(&sampled.site.0)),
                read_write: Some(sampled.run_us).filter(|_| ran_at_once),
                commit: commit_us.map(|_| quickest_us),
                ..Measured::default()
            };
            let is = Operation::Transaction {
                reads: !touched.reads.is_empty(),
                writes: !touched.writes.is_empty(),
            };
            self.cost.observe(is, &inputs, &measured);
            sum_us += sampled.latency_us() * f64::from(sampled.every);
            count += f64::from(sampled.every);
            let chance = self.dice.random::<f64>();
            self.reservoir.offer(now_ms, u64::from(sampled.every), chance, || sample);
        }
        self.reservoir.pass(now_ms);
        self.latencies.push_back((now_ms, sum_us, count));
        let oldest = now_ms.saturating_sub(self.of.options.limits.measured_ms);
        while self.latencies.front().is_some_and(|(at_ms, _, _)| *at_ms < oldest) {
            self.latencies.pop_front();
        }
    }

    /// The mean latency of the last seconds, in µs.
    pub(super) fn latency_us(&self) -> Option<f64> {
        let sum = |of: fn(&(u64, f64, f64)) -> f64| self.latencies.iter().map(of).sum::<f64>();
        let count = sum(|(_, _, count)| *count);
        (count > 0.0).then(|| sum(|(_, us, _)| *us) / count)
    }

    fn tell(&self, distrust: Option<String>, is: &Price, cpu: &BTreeMap<layout::Site, f64>) {
        let mut report = self.of.report.lock().unwrap_or_else(PoisonError::into_inner);
        report.distrust = distrust;
        report.transactions_s = self.reservoir.rate_s();
        report.latency_us = self.latency_us();
        report.samples = self.reservoir.samples().len();
        report.dropped = self.of.sampler.dropped();
        report.changes = self.changes;
        report.undone = self.undone;
        report.failure.clone_from(&self.failure);
        report.functions = vec![
            function("service", &self.cost.service),
            function("wait_updates", &self.cost.wait_updates),
            function("lock", &self.cost.lock),
            function("read_write", &self.cost.read_write),
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
