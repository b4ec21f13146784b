//! Uncertainty asks for a greater gain, and stops nothing: from one busy partition with three idle sites the load spreads
//! although the model is badly wrong.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::periods::{Load, SITES, USERS, draw, layout, model};
use crate::store::controller::Controller;
use crate::store::guardrails::Limits;
use crate::store::layout::{Layout, Operator};
use crate::store::parameters::Parameters;
use crate::store::regimes::{ObservedTransaction, Settings};
use crate::store::strategy::MorphoSys;
use crate::store::workload::Sample;

/// A controller whose model predicts the load of sites as badly as on a machine that is shared.
fn misled(dice: &mut StdRng) -> Controller<u64> {
    let mut controller = Controller::new(Settings::default(), Limits::default());
    controller.cost = model().clone();
    for n in 0..400 {
        let mut random = |max: f64| dice.random_range(0.0..max);
        let load = [random(900_000.0), random(30_000.0), random(30_000.0), random(30_000.0)];
        let cpu = load[0] * 1e-6 + load[1] * 15e-6 + load[2] * 6e-6;
        controller.cost.cpu.observe(load, cpu * if n % 2 == 0 { 0.1 } else { 1.9 });
    }
    controller
}

fn read(user: u64) -> Sample<u64> {
    let reads = vec![(user, Some(user + 1))];
    Sample { reads, writes: Vec::new(), rows_read: 1, rows_written: 0 }
}

/// Decides for half a minute, once a second; latencies vary by a factor of three.
fn adapts(draw: impl Fn(&mut StdRng) -> Sample<u64>) -> Layout<u64> {
    let mut dice = StdRng::seed_from_u64(8);
    let (mut controller, mut strategy) = (misled(&mut dice), MorphoSys::default());
    let error = controller.cost.cpu.recent_error_share().unwrap();
    assert!((0.66..1.5).contains(&error), "{error}");
    let (mut design, lag_entries) = (layout(&[(0, 0)], false), BTreeMap::new());
    for now_s in 1..=30 {
        for _ in 0..200 {
            let at_ms = now_s * 1_000 - dice.random_range(1..1_000);
            let latency_us = 4_000.0 * dice.random_range(0.5..1.5);
            let (chance, sample) = (dice.random(), draw(&mut dice));
            controller.regimes.offer(ObservedTransaction {
                at_ms,
                every: 40,
                latency_us,
                chance,
                sample,
            });
        }
        let now_ms = now_s * 1_000;
        controller.regimes.pass(now_ms);
        controller.regimes.under_way(32.0);
        let outlook = controller.outlook(&design, &mut dice);
        let cost = controller.cost.clone();
        let situation = outlook.situation(&cost, &lag_entries);
        let parameters = controller.widened(Parameters::default(), Some(4.0), 0);
        assert!(
            parameters.gain_uncertainty > 0.03 && parameters.cost_factor == 5.0,
            "{parameters:?}"
        );
        let decided = controller.decide(
            &mut strategy,
            &design,
            &situation,
            &parameters,
            (&|_: &_, _: &_| None, now_ms),
            &mut dice,
        );
        let Some(decided) = decided else { continue };
        let chosen: Vec<_> = decided.chosen().collect();
        let plans: Vec<_> = chosen.iter().map(|plan| &plan.operators[..]).collect();
        let sustained = controller.sustained(&outlook, &design, &plans);
        for (plan, _) in chosen.into_iter().zip(sustained).filter(|(_, is)| *is) {
            let saved = 1.0 - plan.latency_us.1 / plan.latency_us.0;
            let is_split = plan.operators.iter().all(|one| matches!(one, Operator::Split(_)));
            assert!(is_split || saved > 0.02, "it saves too little for the doubt: {plan:?}");
            controller.done(&outlook, &design, plan.operators.clone(), now_ms, plan.latency_us);
            for operator in &plan.operators {
                design.apply(operator).unwrap();
            }
        }
    }
    design
}

/// Sites that can run something.
fn used(design: &Layout<u64>) -> usize {
    let has = |site: &u16| design.partitions().any(|(_, one)| one.is_at(*site));
    (0..SITES).filter(has).count()
}

#[test]
fn hot_reads_spread_though_the_model_is_wrong() {
    let hot = adapts(|dice| read(3_000 + dice.random_range(0..500)));
    assert!(used(&hot) >= 3, "{hot:?}");
}

#[test]
fn scans_with_writes_spread_though_the_model_is_wrong() {
    let design = adapts(|dice| draw(Load { place: 3_000, scans: 50, far: None }, dice));
    assert!(used(&design) >= 3, "{design:?}");
}

#[test]
fn distant_pairs_spread_though_the_model_is_wrong() {
    let design = adapts(|dice| draw(Load { place: 3_000, scans: 0, far: Some(20_000) }, dice));
    assert!(used(&design) >= 3, "{design:?}");
}

#[test]
fn popular_rows_spread_though_the_model_is_wrong() {
    let design = adapts(|dice| {
        let user = (USERS as f64).powf(dice.random::<f64>()) as u64 - 1;
        if dice.random_range(0..10) == 0 {
            let writes = vec![user];
            Sample { reads: Vec::new(), writes, rows_read: 1, rows_written: 1 }
        } else {
            read(user)
        }
    });
    assert!(used(&design) >= 3, "{design:?}");
}
