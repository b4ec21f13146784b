//! The planner in the simulation: the store's own, over the simulated transactions and in the simulation's time; its
//! operators are handed in as steps. Everything is by the seed.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use imago_plan::store::cost::{CostModel, Inputs, Measured, Operation};
use imago_plan::store::guardrails::Limits;
use imago_plan::store::layout::{self, Layout};
use imago_plan::store::parameters::Parameters;
use imago_plan::store::planner::{
    Observed, Outcome, Permission, Planner, Round, Settings, SiteWork, Window,
};
use imago_plan::store::plans::Thresholds;
use imago_plan::store::regimes;
use imago_plan::store::site_set::SiteSet;
use imago_plan::store::strategy::MorphoSys;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::super::*;
use super::simulation::{KEYS, PATIENCE_MS, SITES, Simulation, key};
use super::transactions::Wish;
use crate::key::KeyRange;
use crate::record::Operator;
use crate::router::Step;

/// The limits that no prefix of the log may exceed.
pub(super) const THRESHOLDS: Thresholds = Thresholds {
    split_above: 1.5,
    merge_below: 0.5,
    together_min: 0.5,
    partitions_max: 4,
    replicas_max: 1,
    replicas_min: 0,
};
pub(super) const CHANGES_S_MAX: f64 = 12.0;

const ROUND_MS: u64 = 20;
const LESSONS: usize = 1_000;
/// Slices are so short that a run has several regimes, and windows so short that it learns.
const SETTINGS: Settings = Settings {
    regimes: regimes::Settings {
        samples: 25,
        window_ms: 400,
        slice_ms: 40,
        grace_ms: 20,
        slice_samples: 12,
        generated: 4,
    },
    window: Window {
        span_min: Duration::from_millis(100),
        samples_min: 10.0,
        span_max: Duration::from_millis(500),
    },
    in_doubt_ms: 4 * PATIENCE_MS,
};
/// CPU time of a row, in µs: read, written, applied for another site.
const ROW_US: [f64; 3] = [1_000.0, 2_000.0, 600.0];
const COMMIT_US: f64 = 100.0;

/// An operator under way: its ticket, its site's epoch when it was handed in, and the change that the log shows.
pub(super) struct Underway {
    operator: layout::Operator<Key>,
    ticket: Ticket,
    by: (Site, Epoch),
    since_ms: u64,
    pub change: Change,
}

pub(super) struct Driver {
    planner: Planner<Key>,
    parameters: Parameters,
    limits: Limits,
    strategy: MorphoSys<Key>,
    observed: Vec<Observed<Key>>,
    work: BTreeMap<layout::Site, SiteWork>,
    due_ms: u64,
    /// Operators of the present wave that are not handed in yet, and since when they wait.
    wave: VecDeque<layout::Operator<Key>>,
    wave_ms: u64,
    pub underway: Vec<Underway>,
}

impl Driver {
    pub(super) fn new(seed: u64, thresholds: Thresholds) -> Self {
        let limits = Limits {
            cool_down_ms: 60,
            reversal_ms: 60,
            sustained: 2,
            changes_s_max: CHANGES_S_MAX,
            measured_ms: 60,
            slowdown_max: 0.5,
            banned_ms: 300,
        };
        let parameters =
            Parameters { triggers: 6, plans_max: 2, thresholds, ..Parameters::default() };
        let mut planner = Planner::new(SETTINGS, (parameters, limits), seed, 0);
        let mut dice = StdRng::seed_from_u64(seed);
        planner.restore(Some(1.0), |cost, _| *cost = learned(&mut dice));
        Self {
            planner,
            parameters,
            limits,
            strategy: MorphoSys::default(),
            observed: Vec::new(),
            work: BTreeMap::new(),
            due_ms: ROUND_MS,
            wave: VecDeque::new(),
            wave_ms: 0,
            underway: Vec::new(),
        }
    }

    pub(super) fn undone(&self) -> u64 {
        self.planner.undone
    }

    /// Whether a plan changes a partition, or is about to, by the design of when it was decided.
    pub(super) fn touches(&self, range: &KeyRange) -> bool {
        self.planner.operators().any(|one| range.contains(one.key()))
    }

    /// Whether a replica may have to be removed: one that came, or may yet, of a plan that was not executed.
    pub(super) fn owes(&self, range: &KeyRange) -> bool {
        self.planner.left().iter().any(|one| range.contains(one.key()))
    }

    /// Whether the plan under way leaves a partition with one replica more for a while.
    pub(super) fn moves(&self) -> bool {
        self.planner.moves()
    }

    /// Records a transaction that has its outcome.
    pub(super) fn record(&mut self, now_ms: u64, design: &Design, wish: &Wish, waited_ms: u64) {
        let written = wish.writes.len() as u32;
        let rows = (written + wish.reads.len() as u32, written);
        let site = wish.writes.first().map_or(Site(0), |key| design.of(key).master);
        let run_us = ROW_US[0] * f64::from(rows.0) + ROW_US[1] * f64::from(rows.1);
        let commit_us = (written > 0).then_some(COMMIT_US);
        let latency_us = waited_ms as f64 * 1e3;
        self.observed.push(Observed {
            at_ms: now_ms - waited_ms,
            every: 1,
            site: site.0,
            reads: wish.reads.iter().map(|of| (of.start.clone(), of.end.clone())).collect(),
            writes: wish.writes.clone(),
            rows: Some(rows),
            lag_entries: 0,
            waited: None,
            service_us: (latency_us - run_us - commit_us.unwrap_or(0.0)).max(0.0),
            run_us,
            commit_us,
        });
        self.count(site, [u64::from(rows.0), u64::from(rows.1), 0, 1]);
        for key in &wish.writes {
            design.of(key).replicas.iter().for_each(|site| self.count(*site, [0, 0, 1, 0]));
        }
    }

    fn count(&mut self, site: Site, counts: [u64; 4]) {
        let work = self.work.entry(site.0).or_default();
        work.cpu += Duration::from_secs_f64(cpu_of(counts.map(|count| count as f64)));
        for (into, count) in work.counts.iter_mut().zip(counts) {
            *into += count;
        }
    }

    /// Makes one decision.
    fn decide(&mut self, now_ms: u64, design: &Design) {
        let layout = layout_of(design);
        self.planner.configure(self.parameters, self.limits, Permission::Change);
        if self.planner.is_unsettled() {
            let is_open = |site: layout::Site, epoch: u64| {
                let site = Site(site);
                design.epoch(site) == Epoch(epoch) && !design.is_fenced(site)
            };
            self.planner.settle(now_ms, &layout, &is_open);
            if self.planner.is_busy() {
                return;
            }
        }
        for site in 0..SITES {
            let work = self.work.entry(site).or_default();
            (work.span, work.core_share) = (Duration::from_millis(now_ms), 1.0);
        }
        let observed = std::mem::take(&mut self.observed);
        let (layout, work) = (&layout, &self.work);
        let core_share = Some(1.0);
        self.planner.observe(Round { now_ms, layout, observed, work, core_share });
        _ = self.planner.decide(now_ms, layout, &mut self.strategy, &|_: &_, _: &_| None);
    }

    /// Records the outcomes of operators under way. `outcome` is that of a ticket; `None` if there is none yet.
    fn take_outcomes(&mut self, now_ms: u64, outcome: impl Fn(Ticket) -> Option<bool>) {
        for one in std::mem::take(&mut self.underway) {
            let (site, epoch) = (one.by.0.0, one.by.1.0);
            let is_replica = matches!(one.operator, layout::Operator::AddReplica(..));
            let in_doubt = || Outcome::InDoubt("it has no outcome".to_owned(), site, epoch);
            let outcome = match outcome(one.ticket) {
                Some(true) => Outcome::Done((now_ms - one.since_ms) as f64 * 1e3),
                Some(false) if is_replica => in_doubt(),
                Some(false) => Outcome::Failed("it was refused".to_owned()),
                // A site that died does not answer.
                None if now_ms > one.since_ms + 2 * PATIENCE_MS => in_doubt(),
                None => {
                    self.underway.push(one);
                    continue;
                }
            };
            self.planner.ended(&one.operator, outcome);
        }
    }
}

fn cpu_of(load: [f64; 4]) -> f64 {
    load.iter().zip(ROW_US).map(|(rows, us)| rows * us / 1e6).sum()
}

/// Returns a model that has learned before: a run is too short to begin without.
fn learned(dice: &mut StdRng) -> CostModel {
    let mut cost = CostModel::default();
    for _ in 0..LESSONS {
        let load = [
            dice.random_range(0.0..600.0),
            dice.random_range(0.0..300.0),
            dice.random_range(0.0..300.0),
            dice.random_range(0.0..300.0),
        ];
        cost.cpu.observe(load, cpu_of(load));
        let rows = (f64::from(dice.random_range(0..4)), f64::from(dice.random_range(0..3)));
        let queued_work_us = dice.random_range(0.0..40_000.0);
        let inputs = Inputs { queued_work_us, rows, partitions: rows, ..Inputs::default() };
        let measured = Measured {
            service: Some(50.0 + queued_work_us),
            read_write: Some(ROW_US[0] * rows.0 + ROW_US[1] * rows.1),
            commit: (rows.1 > 0.0).then_some(COMMIT_US),
            ..Measured::default()
        };
        let is = Operation::Transaction { reads: rows.0 > rows.1, writes: rows.1 > 0.0 };
        cost.observe(is, &inputs, &measured);
    }
    cost
}

/// The design with the sites that live.
fn layout_of(design: &Design) -> Layout<Key> {
    let rows = |of: &Partition| (0..KEYS).filter(|n| of.range.contains(&key(*n))).count() as u64;
    let partition = |of: &Partition| {
        let partition = layout::Partition {
            master: of.master.0,
            replicas: of.replicas.iter().map(|site| site.0).collect(),
            rows: rows(of),
            bytes: rows(of) * 9,
            pin: of.pin.map(|site| site.0),
        };
        (of.range.start.clone(), partition)
    };
    let is_live =
        |site: &u16| design.epoch(Site(*site)).has_begun() && !design.is_fenced(Site(*site));
    let mut sites: SiteSet = (0..SITES).filter(is_live).collect();
    if sites.is_empty() {
        sites.insert(0);
    }
    Layout::new(design.partitions().map(partition).collect(), sites)
}

/// An operator as a step, by a design.
fn step_of(design: &Design, operator: &layout::Operator<Key>) -> Step {
    let partition = design.of(operator.key());
    let (master, start) = (partition.master, partition.range.start.clone());
    let operator = match operator {
        layout::Operator::AddReplica(_, site) => return Step::InstallReplica(Site(*site), start),
        layout::Operator::Split(key) => Operator::Split(key.clone()),
        layout::Operator::Merge(_) => Operator::Merge,
        layout::Operator::RemoveReplica(_, site) => Operator::RemoveReplica(Site(*site)),
        layout::Operator::Remaster(_, site) => Operator::Remaster(Site(*site)),
    };
    Step::Change(master, Change { start, operator })
}

impl Simulation {
    /// Lets the planner go on: outcomes of operators, the next operator, or the next decision.
    pub(super) fn adapt(&mut self) {
        if self.is_ending {
            return;
        }
        let Some(mut driver) = self.planner.take() else { return };
        driver.take_outcomes(self.now_ms, |ticket| self.steps.get(&ticket).copied());
        if driver.wave.is_empty() && driver.planner.is_busy() {
            let next = driver.planner.next(self.now_ms, &layout_of(&self.design));
            (driver.wave, driver.wave_ms) = (next.unwrap_or_default().into(), self.now_ms);
        }
        let is_over = self.now_ms > driver.wave_ms + 2 * PATIENCE_MS;
        if let Some(operator) = driver.wave.front().cloned() {
            let step = step_of(&self.design, &operator);
            let master = self.design.of(operator.key()).master;
            let by = (master, self.design.epoch(master));
            let change = match &step {
                Step::Change(_, change) => change.clone(),
                Step::InstallReplica(site, start) => Change {
                    start: start.clone(),
                    operator: Operator::AddReplica(*site, self.design.epoch(*site)),
                },
            };
            let since_ms = self.now_ms;
            if let Some(ticket) = self.take_step(step) {
                driver.wave.pop_front();
                driver.underway.push(Underway { operator, ticket, by, since_ms, change });
            } else if is_over {
                driver.wave.pop_front();
                driver.planner.ended(&operator, Outcome::Failed("its site is not there".into()));
            }
        } else if !driver.planner.is_busy() && self.now_ms >= driver.due_ms {
            driver.due_ms = self.now_ms + ROUND_MS;
            driver.decide(self.now_ms, &self.design);
        }
        drop(driver.planner.events());
        self.planner = Some(driver);
    }
}
