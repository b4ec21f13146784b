//! Which transactions plans are made for, and how much a plan has to save.

use std::collections::BTreeMap;

use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::{learned, users, writes};
use crate::store::considered::Rejected;
use crate::store::decide::{Again, decide};
use crate::store::parameters::Parameters;
use crate::store::price::{CPU_WEIGHT, Situation};
use crate::store::regimes::Expected;
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
fn what_paid_comes_first_though_it_is_not_drawn_and_others_save_more() {
    let layout = users(&[(0, &[]), (1, &[0]), (2, &[]), (3, &[])]);
    let drawn = Parameters { triggers: 60, ..Parameters::default() };
    let mut dice = StdRng::seed_from_u64(3);
    with_situation(|situation| {
        let first = decide(&layout, situation, &drawn, &|_, _| None, &[], &mut dice);
        let paid = Again::of(&first);
        assert!(!paid.is_empty(), "{first:?}");
        let undrawn = Parameters { triggers: 0, ..drawn };
        let second = decide(&layout, situation, &undrawn, &|_, _| None, &paid, &mut dice);
        let chosen: Vec<_> = second.chosen().map(|plan| &plan.operators).collect();
        assert!(paid.iter().all(|again| chosen.contains(&&again.operators)), "{second:?}");
        // Of the plans that pay, the one that saves least is chosen if it was chosen before.
        let one = Parameters { plans_max: 1, ..drawn };
        let pays = first.considered.iter().filter(|plan| plan.net_us(one.lambda) > 0.0);
        let pays = pays.filter(|plan| matches!(plan.rejected, None | Some(Rejected::Another)));
        let least = pays.min_by(|one, two| one.net_us(1.0).total_cmp(&two.net_us(1.0))).unwrap();
        let (trigger, site, operators) =
            (least.trigger.clone(), least.site, least.operators.clone());
        let again = [Again { trigger, site, operators }];
        let third = decide(&layout, situation, &one, &|_, _| None, &again, &mut dice);
        let third: Vec<_> = third.chosen().map(|plan| &plan.operators).collect();
        assert_eq!(third, [&again[0].operators]);
    });
}

#[test]
fn what_is_done_is_not_chosen_again() {
    let layout = users(&[(0, &[]), (1, &[0]), (2, &[]), (3, &[])]);
    let parameters = Parameters { triggers: 60, ..Parameters::default() };
    let mut dice = StdRng::seed_from_u64(3);
    with_situation(|situation| {
        let first = decide(&layout, situation, &parameters, &|_, _| None, &[], &mut dice);
        let paid = Again::of(&first);
        let mut after = layout.clone();
        for again in &paid {
            again.operators.iter().for_each(|operator| after.apply(operator).expect("it can be"));
        }
        let second = decide(&after, situation, &parameters, &|_, _| None, &paid, &mut dice);
        let is_done = |operators: &Vec<_>| paid.iter().any(|again| again.operators == *operators);
        assert!(!second.chosen().any(|plan| is_done(&plan.operators)), "{second:?}");
    });
}

#[test]
fn the_least_gain_falls_with_the_sites_beyond_a_few() {
    let parameters = Parameters::default();
    for (sites, least) in [(1, 0.01), (4, 0.01), (8, 0.005), (16, 0.0025)] {
        assert!((parameters.least_gain(sites, false) - least).abs() < 1e-12, "{sites}");
    }
}
