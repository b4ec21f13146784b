//! Operations that each method to choose a configuration serves (SOPHIA, §6), by interval, so that any part of a
//! replay can be evaluated separately.

use imago_plan::tune::baselines::{Baseline, Comparison};
use imago_plan::tune::roll::Sliced;
use imago_plan::tune::schedule::{Change, Outlook};
use serde::Serialize;

/// A value for each method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PerMethod<T> {
    /// The default configuration throughout.
    pub default: T,
    /// The single configuration that serves most operations over the whole time, chosen in hindsight.
    pub static_optimal: T,
    /// Always the best configuration for the interval that begins, as if its mix were known; each change restarts all
    /// nodes at once.
    pub naive: T,
    /// Always the best configuration for the interval that has just ended, which is known without a forecast; each
    /// change restarts all nodes at once.
    pub reactive: T,
    /// The plans of the tuner, made for changes that restart all nodes at once.
    pub aggressive: T,
    /// The tuner.
    pub tuned: T,
    /// The best plan for the real workload.
    pub oracle: T,
    /// The best configuration in each interval, with changes that cost nothing.
    pub theoretical_best: T,
}

impl<T> PerMethod<T> {
    /// Applies a function to the value of each method.
    pub fn map<U>(&self, of: impl Fn(&T) -> U) -> PerMethod<U> {
        PerMethod {
            default: of(&self.default),
            static_optimal: of(&self.static_optimal),
            naive: of(&self.naive),
            reactive: of(&self.reactive),
            aggressive: of(&self.aggressive),
            tuned: of(&self.tuned),
            oracle: of(&self.oracle),
            theoretical_best: of(&self.theoretical_best),
        }
    }
}

/// Results of a method in a replay.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MethodResult {
    /// Number of operations served in each interval.
    pub(crate) served: Vec<f64>,
    /// Indices of the intervals in which a change started.
    pub(crate) changes: Vec<usize>,
}

/// Computes the operations that each method serves of the real workload. `tuned` and `aggressive` are the planned
/// changes of these methods, and `at_once` has the rolls that restart all nodes at once.
pub(crate) fn replay_methods(
    real: &Outlook,
    at_once: &[Vec<Sliced>],
    tuned: &[Change],
    aggressive: &[Change],
) -> PerMethod<MethodResult> {
    let compared = Comparison { real, at_once, default: real.start };
    let quick = Outlook { rolls: at_once.to_vec(), ..real.clone() };
    let changed = |outlook: &Outlook, changes: &[Change]| MethodResult {
        served: outlook.served_each(changes),
        changes: outlook.served(changes).changes.iter().map(|change| change.interval).collect(),
    };
    let stays = |configuration: usize| {
        let served = real.rates_s.iter().map(|rates| rates[configuration] * real.interval_s);
        MethodResult { served: served.collect(), changes: Vec::new() }
    };
    let all = (0..real.configurations()).map(stays);
    let by_operations = |one: &MethodResult, two: &MethodResult| {
        one.served.iter().sum::<f64>().total_cmp(&two.served.iter().sum())
    };
    let naive = compared.of(Baseline::Naive).changes;
    let late = |change: &Change| Change { interval: change.interval + 1, ..*change };
    let reactive: Vec<Change> = each_best(real).iter().map(late).collect();
    let most = |rates: &Vec<f64>| rates.iter().copied().fold(0.0, f64::max) * real.interval_s;
    PerMethod {
        default: stays(real.start),
        static_optimal: all.max_by(by_operations).unwrap_or_default(),
        naive: changed(&quick, &naive),
        reactive: changed(&quick, &reactive),
        aggressive: changed(&quick, aggressive),
        tuned: changed(real, tuned),
        oracle: changed(real, &real.best().changes),
        theoretical_best: MethodResult {
            served: real.rates_s.iter().map(most).collect(),
            changes: Vec::new(),
        },
    }
}

/// Returns the best configuration of each interval.
fn each_best(real: &Outlook) -> Vec<Change> {
    let best = |(interval, rates): (usize, &Vec<f64>)| {
        let to = (0..rates.len()).max_by(|one, two| rates[*one].total_cmp(&rates[*two]));
        to.map(|to| Change { interval, to })
    };
    real.rates_s.iter().enumerate().filter_map(best).collect()
}

impl PerMethod<MethodResult> {
    /// Returns the operations of each method divided by those of the best fixed configuration. Each interval counts
    /// by its weight.
    pub(crate) fn ratios(&self, weight: impl Fn(usize) -> f64) -> PerMethod<f64> {
        let sum = |lived: &MethodResult| {
            lived.served.iter().enumerate().map(|(at, served)| weight(at) * served).sum::<f64>()
        };
        let fixed = sum(&self.static_optimal);
        self.map(|lived| if fixed > 0.0 { sum(lived) / fixed } else { 1.0 })
    }

    /// Returns the number of changes of each method that start in the counted intervals.
    pub(crate) fn changes(&self, is_counted: impl Fn(usize) -> bool) -> PerMethod<usize> {
        self.map(|lived| lived.changes.iter().filter(|at| is_counted(**at)).count())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Checks that no method serves more than the theoretical best in any interval, and that over the whole time no
    /// method whose changes are the same rolls as the oracle's serves more than the oracle.
    pub(crate) fn assert_bounds(lived: &PerMethod<MethodResult>) {
        let best = &lived.theoretical_best.served;
        lived.map(|way| {
            assert_eq!(way.served.len(), best.len());
            for (served, best) in way.served.iter().zip(best) {
                assert!(*served <= best * (1.0 + 1e-9), "{served} {best}");
            }
        });
        let ratios = lived.ratios(|_| 1.0);
        assert!((ratios.static_optimal - 1.0).abs() < 1e-12);
        assert!(ratios.default <= 1.0 + 1e-9);
        for way in [ratios.default, ratios.tuned] {
            assert!(way <= ratios.oracle * (1.0 + 1e-9), "{ratios:?}");
        }
    }

    #[test]
    fn reacting_is_one_interval_late() {
        let away = Sliced { capacity_s: vec![(0.0, 15.0)] };
        let rolls = vec![vec![away; 2]; 2];
        let (writes, reads) = (vec![2_100.0, 1_300.0], vec![1_250.0, 2_300.0]);
        let rates_s = [&writes, &writes, &reads, &reads, &reads, &writes].map(Clone::clone).into();
        let real = Outlook {
            rates_s,
            interval_s: 20.0,
            rolls: rolls.clone(),
            start: 0,
            changes_max: None,
        };
        let lived = replay_methods(&real, &rolls, &[], &[]);
        assert_eq!((lived.naive.changes, lived.reactive.changes), (vec![2, 5], vec![3]));
    }

    proptest! {
        #[test]
        fn ways_keep_their_bounds_whatever_is_planned(
            rates_s in prop::collection::vec(prop::array::uniform2(900.0..2_500.0_f64), 1..40),
            plans in prop::array::uniform2(prop::collection::vec((0..40_usize, 0..2_usize), 0..9)),
            away_s in 0.0..60.0_f64,
        ) {
            let roll = |capacity: f64| {
                let phases = [imago_plan::tune::roll::Phase { seconds: away_s, old: capacity, new: 0.0 }];
                vec![vec![Sliced::new(&phases, 20.0, imago_plan::tune::roll::Rule::Phases, 0.0); 2]; 2]
            };
            let real = Outlook {
                rates_s: rates_s.iter().map(|of| of.to_vec()).collect(),
                interval_s: 20.0,
                rolls: roll(0.6),
                start: 0,
                changes_max: None,
            };
            let [tuned, aggressive] = plans.map(|plan| {
                let mut changes: Vec<Change> =
                    plan.into_iter().map(|(interval, to)| Change { interval, to }).collect();
                changes.sort();
                changes
            });
            assert_bounds(&replay_methods(&real, &roll(0.0), &tuned, &aggressive));
        }
    }
}
