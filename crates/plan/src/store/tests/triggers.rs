//! Which transactions plans are made for, and how much a plan has to save.

use std::collections::BTreeMap;

use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::{learned, user, users, writes};
use crate::store::decide::decide;
use crate::store::parameters::Parameters;
use crate::store::price::{CPU_WEIGHT, Situation};
use crate::store::regimes::Expected;
use crate::store::strategy::{MorphoSys, Strategy as _};
use crate::store::workload::Sample;

/// Users of the first partition and the second are written together now and then, those of the third alone.
fn samples() -> Vec<(f64, Sample<String>)> {
    let together = (0..20).map(|n| writes([n * 9 % 1_000, 1_000 + n * 7 % 1_000]));
    let alone = (0..400).map(|n| writes([2_000 + n * 13 % 1_000]));
    together.chain(alone).map(|sample| (1.0, sample)).collect()
}

fn with_situation<R>(run: impl FnOnce(&Situation<'_, String>) -> R) -> R {
    let (samples, cost, lag_entries) = (samples(), learned(), BTreeMap::new());
    run(&Situation {
        samples: &samples,
        rate_s: 4_000.0,
        population: 30.0,
        cost: &cost,
        lag_entries: &lag_entries,
        cpu_weight: CPU_WEIGHT,
        expected: Expected::default(),
    })
}

#[test]
fn what_paid_before_is_looked_at_again_though_it_is_not_drawn() {
    let layout = users(&[(0, &[]), (1, &[0]), (2, &[]), (3, &[])]);
    let parameters = Parameters { triggers: 0, ..Parameters::default() };
    let mut dice = StdRng::seed_from_u64(3);
    with_situation(|situation| {
        let mut looked_at = |again: &[String]| {
            let decided = decide(&layout, situation, &parameters, &|_, _| None, again, &mut dice);
            let triggers = decided.considered.into_iter().filter_map(|plan| plan.trigger);
            triggers.collect::<Vec<_>>()
        };
        assert_eq!(looked_at(&[]), Vec::<String>::new());
        let again = looked_at(&[user(9)]);
        assert!(!again.is_empty() && again.iter().all(|key| *key < user(1_000)), "{again:?}");
        // The key itself need not be sampled again.
        assert!(looked_at(&[user(2_999)]).iter().all(|key| *key >= user(2_000)));
    });
}

#[test]
fn a_strategy_looks_again_at_what_paid() {
    let layout = users(&[(0, &[]), (1, &[0]), (2, &[]), (3, &[])]);
    let (drawn, none) = (Parameters { triggers: 60, ..Parameters::default() }, 0);
    let mut dice = StdRng::seed_from_u64(3);
    let mut strategy = MorphoSys::default();
    with_situation(|situation| {
        let first = strategy.decide(&layout, situation, &drawn, &|_, _| None, &mut dice);
        let paid = first.chosen().filter_map(|plan| plan.trigger.clone()).count();
        assert!(paid > 0, "{first:?}");
        let undrawn = Parameters { triggers: none, ..drawn };
        let second = strategy.decide(&layout, situation, &undrawn, &|_, _| None, &mut dice);
        assert_eq!(second.chosen().filter(|plan| plan.trigger.is_some()).count(), paid);
    });
}

#[test]
fn the_least_gain_falls_with_the_sites_beyond_a_few() {
    let parameters = Parameters::default();
    for (sites, least) in [(1, 0.01), (4, 0.01), (8, 0.005), (16, 0.0025)] {
        assert!((parameters.least_gain(sites, false) - least).abs() < 1e-12, "{sites}");
    }
}
