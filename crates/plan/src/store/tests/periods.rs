//! Workloads that alternate: with the loop of a store in virtual time, it is never much worse than a store that is left
//! alone, nor than the best design that is made by hand.
//!
//! Throughput follows from the price of the design by the workload that is there, with a model that is taken for the
//! truth; the controller sees samples and noisy latencies of it, and decides once a second.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use proptest::prelude::*;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::learned;
use crate::store::controller::Controller;
use crate::store::cost::CostModel;
use crate::store::guardrails::{Judgement, Limits};
use crate::store::layout::{Layout, Operator, Partition, Site};
use crate::store::parameters::Parameters;
use crate::store::price::{CPU_WEIGHT, Situation, price};
use crate::store::regimes::{Expected, ObservedTransaction, Settings};
use crate::store::strategy::MorphoSys;
use crate::store::workload::Sample;

pub(super) const USERS: u64 = 40_000;
pub(super) const SITES: u16 = 4;
const ROWS: u32 = 3;
const POPULATION: f64 = 32.0;
const STEP_MS: u64 = 250;
const SAMPLES_S: u64 = 200;
/// The share of a second's transactions that an operator costs.
const OPERATOR_COSTS: f64 = 0.05;

/// Popular users are neighbours, by Zipf's law; so many of a hundred transactions scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Load {
    pub place: u64,
    pub scans: u32,
    /// Writes are of two users, so far from each other.
    pub far: Option<u64>,
}

pub(super) fn draw(load: Load, dice: &mut StdRng) -> Sample<u64> {
    let rank = (USERS as f64).powf(dice.random::<f64>()) as u64 - 1;
    let user = (load.place + rank) % USERS;
    if dice.random_range(0..100) < load.scans {
        let users = dice.random_range(60..300).min(USERS - user);
        let rows_read = users as u32 * ROWS;
        let reads = vec![(user, Some(user + users))];
        Sample { reads, writes: Vec::new(), rows_read, rows_written: 0 }
    } else {
        let (rows_read, rows_written) = (ROWS, ROWS);
        let writes =
            std::iter::once(user).chain(load.far.map(|far| (user + far) % USERS)).collect();
        Sample { reads: Vec::new(), writes, rows_read, rows_written }
    }
}

/// What operations take: a site reads a million rows a second, and writes 66,000.
pub(super) fn model() -> &'static CostModel {
    static MODEL: OnceLock<CostModel> = OnceLock::new();
    MODEL.get_or_init(|| {
        let mut model = learned();
        let plain = CostModel::default();
        (model.cpu, model.service) = (plain.cpu, plain.service);
        let mut dice = StdRng::seed_from_u64(12);
        for _ in 0..4_000 {
            let mut random = |max: f64| dice.random_range(0.0..max);
            let load =
                [random(1_500_000.0), random(100_000.0), random(200_000.0), random(100_000.0)];
            let cpu = load[0] * 1e-6 + load[1] * 15e-6 + load[2] * 6e-6;
            model.cpu.observe(load, cpu);
            let queued_work_us = random(20_000.0);
            model.service.observe([queued_work_us], queued_work_us);
        }
        model
    })
}

/// The mean latency by a design, in µs.
struct Truth {
    samples: BTreeMap<Load, Vec<(f64, Sample<u64>)>>,
}

impl Truth {
    fn of(loads: &[Load]) -> Self {
        let mut dice = StdRng::seed_from_u64(17);
        let samples = |load: &Load| (0..400).map(|_| (1.0, draw(*load, &mut dice))).collect();
        Self { samples: loads.iter().copied().zip(loads.iter().map(samples)).collect() }
    }

    /// Clients have so many transactions under way at once, and begin the next one when one has ended.
    fn latency_us(&self, layout: &Layout<u64>, load: Load) -> f64 {
        let lag_entries = BTreeMap::new();
        let mut rate_s = 5_000.0;
        for _ in 0..3 {
            let situation = Situation {
                samples: &self.samples[&load],
                rate_s,
                population: POPULATION,
                cost: model(),
                lag_entries: &lag_entries,
                cpu_weight: CPU_WEIGHT,
                expected: Expected::default(),
            };
            rate_s = POPULATION * 1e6 / price(layout, &situation).latency_us;
        }
        POPULATION * 1e6 / rate_s
    }
}

pub(super) fn layout(starts: &[(u64, Site)], is_replicated: bool) -> Layout<u64> {
    let ends = starts.iter().skip(1).map(|(start, _)| *start).chain([USERS]);
    let of = |((start, master), end): (&(u64, Site), u64)| {
        let replicas = (0..SITES).filter(|site| is_replicated && site != master).collect();
        let rows = (end - start) * u64::from(ROWS);
        (*start, Partition { master: *master, replicas, rows, bytes: rows * 120, pin: None })
    };
    Layout::new(starts.iter().zip(ends).map(of).collect(), (0..SITES).collect())
}

/// Designs as an operator would make them who knows all loads: pieces of equal load under any of them, in turn.
fn by_hand(loads: &[Load]) -> Vec<Layout<u64>> {
    let piece = |n: u64| (USERS as f64).powf(n as f64 / 16.0) as u64 - 1;
    let mut starts: Vec<u64> =
        loads.iter().flat_map(|load| (0..16).map(|n| (load.place + piece(n)) % USERS)).collect();
    starts.push(0);
    starts.sort_unstable();
    starts.dedup();
    let in_turn: Vec<(u64, Site)> =
        starts.iter().enumerate().map(|(n, start)| (*start, n as Site % SITES)).collect();
    let there_and_back: Vec<(u64, Site)> = in_turn
        .iter()
        .enumerate()
        .map(|(n, (start, site))| {
            let is_back = n as u16 / SITES % 2 == 1;
            (*start, if is_back { SITES - 1 - site } else { *site })
        })
        .collect();
    let both = [in_turn, there_and_back];
    both.iter().flat_map(|starts| [false, true].map(|all| layout(starts, all))).collect()
}

#[derive(Debug)]
struct Outcome {
    of_alone: f64,
    of_by_hand: f64,
    changes: u64,
    undone: u64,
}

/// Runs visits of loads, in ms, and compares with fixed designs: all of it with the start, and what comes after `warm_ms`
/// with those that are made by hand.
fn run(visits: &[(Load, u64)], warm_ms: u64, start: &Layout<u64>, seed: u64) -> Outcome {
    let mut loads: Vec<Load> = visits.iter().map(|(load, _)| *load).collect();
    loads.sort_unstable();
    loads.dedup();
    let truth = Truth::of(&loads);
    // A transaction of a load counts for what it takes by the design that is best for it alone.
    let best_us = |load: &Load| {
        let each = by_hand(&[*load]).into_iter().chain(by_hand(&loads));
        each.map(|layout| truth.latency_us(&layout, *load)).fold(f64::MAX, f64::min)
    };
    let best_us: BTreeMap<Load, f64> = loads.iter().map(|load| (*load, best_us(load))).collect();
    let speeds = |layout: &Layout<u64>| -> BTreeMap<Load, f64> {
        let speed = |load: &Load| best_us[load] / truth.latency_us(layout, *load);
        loads.iter().map(|load| (*load, speed(load))).collect()
    };
    let alone = speeds(start);
    let hands: Vec<_> = by_hand(&loads).iter().map(speeds).collect();
    let mut dice = StdRng::seed_from_u64(seed);
    let mut controller = Controller::new(Settings::default(), Limits::default());
    controller.cost = model().clone();
    let (mut strategy, lag_entries) = (MorphoSys::default(), BTreeMap::new());
    let (mut layout, mut speed) = (start.clone(), alone.clone());
    let (mut done, mut done_warm, mut was_alone, mut were_by_hand) =
        (0.0, 0.0, 0.0, vec![0.0; hands.len()]);
    let (mut now_ms, mut changes, mut undone, mut operators) = (0, 0, 0, 0);
    for (load, lasts_ms) in visits {
        let end_ms = now_ms + lasts_ms;
        while now_ms < end_ms {
            let latency_us = best_us[load] / speed[load];
            for _ in 0..SAMPLES_S * STEP_MS / 1_000 {
                let noise = 0.7 + 0.6 * dice.random::<f64>();
                controller.regimes.offer(ObservedTransaction {
                    at_ms: now_ms + dice.random_range(0..STEP_MS),
                    every: (POPULATION * 1e6 / latency_us / SAMPLES_S as f64) as u32,
                    latency_us: latency_us * noise,
                    chance: dice.random(),
                    sample: draw(*load, &mut dice),
                });
            }
            now_ms += STEP_MS;
            controller.regimes.pass(now_ms);
            controller.regimes.under_way(POPULATION);
            let step_s = STEP_MS as f64 / 1_000.0;
            let mut served = speed[load] * step_s;
            was_alone += alone[load] * step_s;
            if now_ms.is_multiple_of(1_000) {
                let outlook = controller.outlook(&layout, &mut dice);
                let situation = outlook.situation(model(), &lag_entries);
                let parameters = controller.widened(Parameters::default(), None, now_ms);
                let decided = controller.decide(
                    &mut strategy,
                    &layout,
                    &situation,
                    &parameters,
                    (&|_: &_, _: &_| None, now_ms),
                    &mut dice,
                );
                let (before, operators_before) = (changes + undone, operators);
                for judged in controller.judge(now_ms) {
                    if let Judgement::Undo(one) = judged {
                        controller.guardrails.record_undo(&layout, &one.inverse, now_ms);
                        undone += 1;
                        operators += one.inverse.len() as u64;
                        for operator in &one.inverse {
                            _ = layout.apply(operator);
                        }
                    }
                }
                if let Some(decided) = decided.filter(|_| before == changes + undone) {
                    let chosen: Vec<_> = decided.chosen().collect();
                    let plans: Vec<&[Operator<u64>]> =
                        chosen.iter().map(|plan| &plan.operators[..]).collect();
                    let sustained = controller.sustained(&outlook, &layout, &plans);
                    for (plan, _) in chosen.into_iter().zip(sustained).filter(|(_, is)| *is) {
                        if controller.guardrails.may_spend(plan.operators.len(), now_ms) {
                            let done = plan.operators.clone();
                            controller.done(&outlook, &layout, done, now_ms, plan.latency_us);
                            for operator in &plan.operators {
                                layout.apply(operator).expect("it was planned by this design");
                            }
                            changes += 1;
                            operators += plan.operators.len() as u64;
                        }
                    }
                }
                if changes + undone > before {
                    let many = operators - operators_before;
                    served -= (speed[load] * OPERATOR_COSTS * many as f64).min(served);
                    speed = speeds(&layout);
                }
            }
            done += served;
            if now_ms > warm_ms {
                done_warm += served;
                for (were, hand) in were_by_hand.iter_mut().zip(&hands) {
                    *were += hand[load] * step_s;
                }
            }
        }
    }
    let best = were_by_hand.into_iter().fold(0.0, f64::max);
    Outcome { of_alone: done / was_alone, of_by_hand: done_warm / best, changes, undone }
}

/// So many visits of two loads in turn.
fn in_turn(loads: [Load; 2], each_ms: u64, visits: usize) -> Vec<(Load, u64)> {
    loads.into_iter().cycle().map(|load| (load, each_ms)).take(visits).collect()
}

const PLACES: [Load; 2] =
    [Load { place: 3_000, scans: 50, far: None }, Load { place: 22_000, scans: 50, far: None }];
const MIXES: [Load; 2] =
    [Load { place: 3_000, scans: 90, far: None }, Load { place: 3_000, scans: 0, far: None }];

const PAIRS: [Load; 2] = [
    Load { place: 3_000, scans: 0, far: Some(10_000) },
    Load { place: 3_000, scans: 0, far: Some(20_000) },
];

/// The least share of the throughput of a fixed design.
const LEAST: f64 = 0.95;

/// The same in the worst of three runs.
const LEAST_ONCE: f64 = 0.9;

/// The same for visits whose durations are not known beforehand: the worst of those that a search drew and shrank had 0.80,
/// of mixes that follow each other at the same keys.
const LEAST_IRREGULAR: f64 = 0.75;

fn check(loads: [Load; 2], period_s: u64, outcome: &Outcome) {
    check_by(LEAST, 100, loads, period_s, outcome);
}

fn check_by(least_by_hand: f64, most: u64, loads: [Load; 2], period_s: u64, outcome: &Outcome) {
    let Outcome { of_alone, of_by_hand, changes, undone } = outcome;
    let is_served = *of_alone >= LEAST && *of_by_hand >= least_by_hand;
    assert!(is_served, "{loads:?} {period_s} s: {outcome:?}");
    assert!(*undone <= 8 && *changes <= most, "{loads:?} {period_s} s: {outcome:?}");
}

#[test]
fn loads_in_turn_are_served_as_well_as_by_fixed_designs() {
    let one = layout(&[(0, 0)], false);
    for loads in [PLACES, MIXES, PAIRS] {
        for period_s in [2, 5, 10, 20, 60] {
            let warm_ms = (period_s * 4_000).max(60_000);
            let visits = warm_ms / period_s / 1_000 * 2;
            let visits = in_turn(loads, period_s * 1_000, visits as usize);
            // One of some runs has a change that is undone, and pays for it.
            let mut runs = [4, 5, 6].map(|seed| run(&visits, warm_ms, &one, seed));
            runs.sort_by(|one, two| one.of_by_hand.total_cmp(&two.of_by_hand));
            check_by(LEAST_ONCE, 100, loads, period_s, &runs[0]);
            check(loads, period_s, &runs[1]);
        }
    }
}

#[test]
fn loads_that_last_for_minutes_are_served_as_well_as_by_fixed_designs() {
    let one = layout(&[(0, 0)], false);
    for loads in [PLACES, MIXES] {
        check(loads, 300, &run(&in_turn(loads, 300_000, 3), 60_000, &one, 5));
    }
}

#[test]
fn a_good_design_is_not_left_for_a_load_that_soon_ends() {
    for loads in [PLACES, MIXES, PAIRS] {
        let good = by_hand(&loads).swap_remove(1);
        for period_s in [2, 10] {
            let outcome =
                run(&in_turn(loads, period_s * 1_000, 90 / period_s as usize), 0, &good, 9);
            check(loads, period_s, &outcome);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn irregular_visits_are_served_better_than_by_a_store_left_alone(
        lasts_ms in prop::collection::vec(1_000..40_000_u64, 8..16),
        pair in 0..3_usize,
        seed in 0..1_000_u64,
    ) {
        let loads = [PLACES, MIXES, PAIRS][pair];
        let visits: Vec<(Load, u64)> = loads.into_iter().cycle().zip(lasts_ms).collect();
        let one = layout(&[(0, 0)], false);
        let half_ms = visits.iter().map(|(_, ms)| ms).sum::<u64>() / 2;
        check_by(LEAST_IRREGULAR, 120, loads, 0, &run(&visits, half_ms, &one, seed));
    }
}
