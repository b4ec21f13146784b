//! A planner in the simulation: it decides by `imago_plan::design` over the simulated transactions, with times that
//! are the simulation's, and hands its operators in as steps. Everything is by the seed.

use std::collections::{BTreeMap, VecDeque};

use imago_plan::design::brakes::{Judged, Limits, inverse};
use imago_plan::design::controller::{Controller, Outlook};
use imago_plan::design::cost::{CostModel, Inputs, Measured, Operation};
use imago_plan::design::decide::Parameters;
use imago_plan::design::layout::{self, Layout};
use imago_plan::design::plans::Thresholds;
use imago_plan::design::price::price;
use imago_plan::design::regimes::{Seen, Settings};
use imago_plan::design::site_set::SiteSet;
use imago_plan::design::strategy::MorphoSys;
use imago_plan::design::workload::Sample;
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
};
/// Transactions that are under way at once, about.
const POPULATION: f64 = 6.0;
pub(super) const CHANGES_S_MAX: f64 = 12.0;

const ROUND_MS: u64 = 20;
/// How long a copy that did not come in time may still come.
const UNSETTLED_MS: u64 = 4 * PATIENCE_MS;
const LESSONS: usize = 1_000;
/// Slices are so short that a run has several regimes.
const SETTINGS: Settings = Settings {
    samples: 25,
    window_ms: 400,
    slice_ms: 40,
    grace_ms: 20,
    slice_samples: 12,
    generated: 4,
};
/// What a row costs, in µs: read, written, applied for another site.
const ROW_US: [f64; 3] = [1_000.0, 2_000.0, 600.0];

/// Operators that are carried out one after the other.
struct Plan {
    ahead: VecDeque<layout::Operator<Key>>,
    done: Vec<layout::Operator<Key>>,
    before: Layout<Key>,
    /// The predicted mean latency, before and after, and the workload; nothing where it takes another plan back.
    told: Option<((f64, f64), Outlook<Key>)>,
}

/// An operator whose outcome is unknown: it may come into the log as long as its site's epoch is the newest.
struct Unsettled {
    operator: layout::Operator<Key>,
    by: (Site, Epoch),
    since_ms: u64,
}

/// The operator under way: since when, and the change that the log shows.
pub(super) struct Underway {
    ticket: Ticket,
    by: (Site, Epoch),
    since_ms: u64,
    pub change: Change,
}

pub(super) struct Planner {
    dice: StdRng,
    parameters: Parameters,
    controller: Controller<Key>,
    strategy: MorphoSys<Key>,
    cpu: BTreeMap<layout::Site, f64>,
    due_ms: u64,
    plans: VecDeque<Plan>,
    pub underway: Option<Underway>,
    pub undone: usize,
    unsettled: Vec<Unsettled>,
    /// Copies that unfinished plans made and that may have to be taken back yet.
    owed: Vec<layout::Operator<Key>>,
}

impl Planner {
    pub(super) fn new(seed: u64, thresholds: Thresholds) -> Self {
        let limits = Limits {
            cool_down_ms: 60,
            reversal_ms: 60,
            sustained: 2,
            changes_s_max: CHANGES_S_MAX,
            measured_ms: 60,
            worse_by: 0.5,
            banned_ms: 300,
        };
        let parameters =
            Parameters { triggers: 6, plans_max: 2, thresholds, ..Parameters::default() };
        let mut dice = StdRng::seed_from_u64(seed);
        let mut controller = Controller::new(SETTINGS, limits);
        controller.cost = learned(&mut dice);
        Self {
            dice,
            parameters,
            controller,
            strategy: MorphoSys::default(),
            cpu: BTreeMap::new(),
            due_ms: ROUND_MS,
            plans: VecDeque::new(),
            underway: None,
            undone: 0,
            unsettled: Vec::new(),
            owed: Vec::new(),
        }
    }

    /// True if operators keep to the limits by the design now, for any outcome of those that are unknown.
    fn keeps<'a>(
        &self,
        layout: &Layout<Key>,
        operators: impl IntoIterator<Item = &'a layout::Operator<Key>>,
    ) -> bool {
        let operators: Vec<_> = operators.into_iter().cloned().collect();
        let unsettled = self.unsettled.iter().map(|one| &one.operator);
        self.parameters.thresholds.keeps_beside(layout, unsettled, &operators)
    }

    /// Forgets what is settled; true if a copy has to be taken back that an unfinished plan left.
    fn settle(&mut self, now_ms: u64, design: &Design) -> bool {
        let layout = layout_of(design);
        self.unsettled.retain(|one| {
            let is_open = design.epoch(one.by.0) == one.by.1 && !design.is_fenced(one.by.0);
            let is_copy = matches!(one.operator, layout::Operator::AddReplica(..));
            let is_over = is_copy && now_ms > one.since_ms + UNSETTLED_MS;
            is_open && !is_over && layout.clone().apply(&one.operator).is_ok()
        });
        let thresholds = self.parameters.thresholds;
        let unsettled: Vec<_> = self.unsettled.iter().map(|one| one.operator.clone()).collect();
        self.owed.retain(|one| {
            unsettled.contains(one) || thresholds.surplus(&layout, [one]).next().is_some()
        });
        let back = thresholds.surplus(&layout, &self.owed).next();
        if let Some(back) = &back {
            self.controller.brakes.spend(1, now_ms);
            self.plan(&layout, std::slice::from_ref(back), None);
        }
        back.is_some()
    }

    /// Whether a plan changes a partition, or is about to, by the design of when it was decided.
    pub(super) fn touches(&self, range: &KeyRange) -> bool {
        let operators = self.plans.iter().flat_map(|plan| plan.done.iter().chain(&plan.ahead));
        operators.into_iter().any(|one| range.contains(one.key()))
    }

    /// Whether a copy may have to be taken back: one that came, or may yet, of a plan that was not carried out.
    pub(super) fn owes(&self, range: &KeyRange) -> bool {
        self.owed.iter().any(|one| range.contains(one.key()))
    }

    /// Whether the plan under way moves a master, or takes back what one left, so that a partition has one copy more
    /// for a while.
    pub(super) fn moves(&self) -> bool {
        self.plans.front().is_some_and(|plan| {
            let mut operators = plan.done.iter().chain(&plan.ahead);
            plan.told.is_none()
                || operators.any(|one| matches!(one, layout::Operator::Remaster(..)))
        })
    }

    /// Takes note of a transaction that has its outcome.
    pub(super) fn learn(&mut self, now_ms: u64, design: &Design, wish: &Wish, waited_ms: u64) {
        let written = wish.writes.len() as u32;
        let sample = Sample {
            reads: wish.reads.iter().map(|of| (of.start.clone(), of.end.clone())).collect(),
            writes: wish.writes.clone(),
            rows_read: written + wish.reads.len() as u32,
            rows_written: written,
        };
        let site = wish.writes.first().map_or(Site(0), |key| design.of(key).master);
        let cpu = self.cpu.get(&site.0).copied().unwrap_or(0.0);
        observe(
            &mut self.controller.cost,
            POPULATION * cpu * ROW_US[1],
            (sample.rows_read, written),
            !wish.reads.is_empty(),
        );
        let (latency_us, chance) = (waited_ms as f64 * 1e3, self.dice.random());
        self.controller.regimes.offer(Seen { at_ms: now_ms, every: 1, latency_us, chance, sample });
    }

    /// One decision, as the store's planner makes it.
    fn decide(&mut self, now_ms: u64, design: &Design) {
        let layout = layout_of(design);
        self.controller.regimes.pass(now_ms);
        self.controller.regimes.under_way(POPULATION);
        let outlook = self.controller.outlook(&layout, &mut self.dice);
        let (behind, cost) = (BTreeMap::new(), self.controller.cost.clone());
        let situation = outlook.situation(&cost, &behind);
        for (site, load) in &price(&layout, &situation).loads {
            self.cpu.insert(*site, cpu_of(*load));
            self.controller.cost.cpu.observe(*load, cpu_of(*load));
        }
        let parameters = self.controller.widened(self.parameters, None);
        let (strategy, dice) = (&mut self.strategy, &mut self.dice);
        let decided = self.controller.decide(
            strategy,
            &layout,
            &situation,
            &parameters,
            (&|_: &_, _: &_| None, now_ms),
            dice,
        );
        let undone = self.undone;
        for judged in self.controller.judge(now_ms) {
            if let Judged::Undo(watched) = judged
                && self.keeps(&layout, &watched.inverse)
            {
                self.controller.brakes.spend(watched.inverse.len(), now_ms);
                self.controller.brakes.taken_back(&layout, &watched.inverse, now_ms);
                self.undone += 1;
                self.plan(&layout, &watched.inverse, None);
            }
        }
        // What was decided is by the design before that.
        let Some(decided) = decided.filter(|_| undone == self.undone) else { return };
        let chosen: Vec<_> = decided.chosen().collect();
        let plans: Vec<_> = chosen.iter().map(|plan| &plan.operators[..]).collect();
        let sustained = self.controller.sustained(&outlook, &layout, &plans);
        for (plan, is_sustained) in chosen.into_iter().zip(sustained) {
            if is_sustained && self.controller.brakes.may_spend(plan.operators.len(), now_ms) {
                let told = (plan.latency_us, outlook.clone());
                self.plan(&layout, &plan.operators, Some(told));
            }
        }
    }

    fn plan(
        &mut self,
        layout: &Layout<Key>,
        operators: &[layout::Operator<Key>],
        told: Option<((f64, f64), Outlook<Key>)>,
    ) {
        let (ahead, done, before) =
            (operators.iter().cloned().collect(), Vec::new(), layout.clone());
        self.plans.push_back(Plan { ahead, done, before, told });
    }

    /// An operator was not carried out: what was done before it stays, unless it exceeds a limit.
    fn fail_plan(&mut self, now_ms: u64, now: &Layout<Key>) {
        let Some(plan) = self.plans.front() else { return };
        let is_back =
            plan.told.is_some() && self.parameters.thresholds.are_exceeded_by(now, &plan.done);
        let (before, done) = (plan.before.clone(), plan.done.clone());
        self.owed.extend(done.iter().cloned());
        if !is_back {
            return self.end_plan(now_ms);
        }
        self.plans.pop_front();
        let back = inverse(&before, &done);
        self.controller.brakes.spend(back.len(), now_ms);
        self.plan(&before, &back, None);
        self.plans.rotate_right(1);
    }

    /// The plan under way is over: all of it was done, or its next operator was not.
    fn end_plan(&mut self, now_ms: u64) {
        let Some(plan) = self.plans.pop_front() else { return };
        if let Some((predicted_us, outlook)) = plan.told.filter(|_| !plan.done.is_empty()) {
            self.controller.done(&outlook, &plan.before, plan.done, now_ms, predicted_us);
        }
    }
}

/// What a transaction costs, by a law that the model can learn.
fn observe(cost: &mut CostModel, ahead_us: f64, rows: (u32, u32), reads: bool) {
    let (read, written) = (f64::from(rows.0), f64::from(rows.1));
    let inputs = Inputs {
        ahead_us,
        rows: (read, written),
        partitions: (read, written),
        ..Inputs::default()
    };
    let measured = Measured {
        service: Some(50.0 + ahead_us),
        read_write: Some(ROW_US[0] * read + ROW_US[1] * written),
        commit: (written > 0.0).then_some(100.0),
        ..Measured::default()
    };
    cost.observe(Operation::Transaction { reads, writes: written > 0.0 }, &inputs, &measured);
}

fn cpu_of(load: [f64; 3]) -> f64 {
    load.iter().zip(ROW_US).map(|(rows, us)| rows * us / 1e6).sum()
}

/// A model that has learned before: a run is too short to learn in.
fn learned(dice: &mut StdRng) -> CostModel {
    let mut cost = CostModel::default();
    for _ in 0..LESSONS {
        let load = [
            dice.random_range(0.0..600.0),
            dice.random_range(0.0..300.0),
            dice.random_range(0.0..300.0),
        ];
        cost.cpu.observe(load, cpu_of(load));
        let rows = (dice.random_range(0..4), dice.random_range(0..3));
        observe(&mut cost, POPULATION * cpu_of(load) * ROW_US[1], rows, rows.0 > rows.1);
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
    /// Lets the planner go on: the outcome of the operator under way, the next operator, or the next decision.
    pub(super) fn adapt(&mut self) {
        if self.is_ending {
            return;
        }
        let Some(mut planner) = self.planner.take() else { return };
        if let Some(underway) = &planner.underway {
            let outcome = self.steps.get(&underway.ticket).copied();
            // A site that died does not answer.
            let (by, since_ms) = (underway.by, underway.since_ms);
            let is_lost = self.now_ms > since_ms + 2 * PATIENCE_MS;
            if outcome.is_some() || is_lost {
                planner.underway = None;
                let plan = planner.plans.front_mut().expect("it is under way");
                if outcome == Some(true) {
                    plan.done.extend(plan.ahead.pop_front());
                } else {
                    let operator = plan.ahead.front().expect("it is under way").clone();
                    if outcome.is_none() || matches!(operator, layout::Operator::AddReplica(..)) {
                        planner.owed.push(operator.clone());
                        planner.unsettled.push(Unsettled { operator, by, since_ms });
                    }
                    planner.fail_plan(self.now_ms, &layout_of(&self.design));
                }
            }
        } else if let Some(plan) = planner.plans.front() {
            match plan.ahead.front() {
                None => planner.end_plan(self.now_ms),
                // The design has changed since it was decided, or since the operator before.
                Some(_) if !planner.keeps(&layout_of(&self.design), &plan.ahead) => {
                    planner.fail_plan(self.now_ms, &layout_of(&self.design));
                }
                Some(operator) => {
                    let step = step_of(&self.design, operator);
                    let master = self.design.of(operator.key()).master;
                    let by = (master, self.design.epoch(master));
                    let change = match &step {
                        Step::Change(_, change) => change.clone(),
                        Step::InstallReplica(site, start) => Change {
                            start: start.clone(),
                            operator: Operator::AddReplica(*site, self.design.epoch(*site)),
                        },
                    };
                    self.planner = Some(planner);
                    let ticket = self.take_step(step);
                    planner = self.planner.take().expect("it was put there");
                    let since_ms = self.now_ms;
                    planner.underway =
                        ticket.map(|ticket| Underway { ticket, by, since_ms, change });
                }
            }
        } else if self.now_ms >= planner.due_ms {
            planner.due_ms = self.now_ms + ROUND_MS;
            if !planner.settle(self.now_ms, &self.design) {
                planner.decide(self.now_ms, &self.design);
            }
        }
        self.planner = Some(planner);
    }
}
