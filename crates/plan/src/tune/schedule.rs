//! The best plan over a look-ahead: the times to change the configuration, and the configurations to change to (SOPHIA,
//! §4.4, Eqs. 5 to 8).
//!
//! The paper searches with a genetic algorithm, because the space of plans is large. But a plan has a state: the
//! interval, and the configuration that the cluster has when no roll is in progress. The operations served from there
//! on do not depend on the past, so the best plan is found exactly by dynamic programming, from the last interval back
//! to the first. A roll is not aborted: no other one begins before it ends (§4.3), which bounds M, the number of
//! changes in a plan. A roll that would end after the look-ahead counts up to the end of the look-ahead.
//!
//! Invariants:
//! - No plan under the same rules serves more operations.
//! - Of plans that serve equally many, the one that changes later is taken: a change has to gain something.

use super::roll::Sliced;

/// The throughputs of all configurations in each interval of a look-ahead, and the rolls between configurations.
#[derive(Clone, Debug)]
pub struct Outlook {
    /// For each interval, the throughput of each configuration, in operations per second (weighted, if intervals are).
    pub rates_s: Vec<Vec<f64>>,
    /// T_d: length of an interval, in seconds.
    pub interval_s: f64,
    /// For each configuration, the roll (the change with its capacities) to each other one.
    pub rolls: Vec<Vec<Sliced>>,
    /// Index of the cluster's configuration at the start.
    pub start: usize,
    /// M: limit on the number of changes; `None`: as many as time allows.
    pub changes_max: Option<usize>,
}

/// A change of the cluster's configuration in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change {
    /// Index of the interval, within the look-ahead, in which the roll begins.
    pub interval: usize,
    /// Index of the new configuration.
    pub to: usize,
}

/// A plan: changes of the configuration, and the total number of operations served with them.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// The changes, in the order of their intervals.
    pub changes: Vec<Change>,
    /// Number of operations served in all intervals (weighted, if intervals are).
    pub operations: f64,
}

/// Minimum relative gain of a change over staying; a smaller one counts as a rounding error.
const GAIN_MIN: f64 = 1e-12;

impl Outlook {
    /// Returns the number of intervals of the look-ahead.
    #[must_use]
    pub fn intervals(&self) -> usize {
        self.rates_s.len()
    }

    /// Returns the number of configurations that are compared.
    #[must_use]
    pub fn configurations(&self) -> usize {
        self.rolls.len()
    }

    /// Checks that rates and rolls have the same number of configurations.
    ///
    /// # Panics
    /// If the matrices do not fit together.
    fn check(&self) {
        let configurations = self.configurations();
        assert!(self.start < configurations, "configuration {} is not there", self.start);
        assert!(self.rates_s.iter().all(|rates| rates.len() == configurations), "rates of others");
        assert!(self.rolls.iter().all(|rolls| rolls.len() == configurations), "rolls of others");
    }

    /// Returns the operations served in the interval with this index, without a change, by the configuration with this
    /// index.
    fn stays(&self, interval: usize, configuration: usize) -> f64 {
        self.rates_s[interval][configuration] * self.interval_s
    }

    /// Returns the operations served in each interval of a roll that begins in `interval`, up to the end of the
    /// look-ahead.
    fn during(&self, interval: usize, from: usize, to: usize) -> impl Iterator<Item = f64> {
        let rates = self.rates_s[interval..].iter().zip(&self.rolls[from][to].capacity_s);
        rates.map(move |(rates, (old_s, new_s))| rates[from] * old_s + rates[to] * new_s)
    }

    /// Returns the operations served in all intervals of a roll that begins in `interval`, up to the end of the
    /// look-ahead, and the index of the interval after the roll.
    fn rolls(&self, interval: usize, from: usize, to: usize) -> (f64, usize) {
        let behind = interval + self.rolls[from][to].intervals();
        (self.during(interval, from, to).sum(), behind.min(self.intervals()))
    }

    /// Executes changes in order, and returns those that were executed, with the operations served in all intervals. A
    /// change during a roll, or to the present configuration, is left out.
    #[must_use]
    pub fn served(&self, changes: &[Change]) -> Schedule {
        let (mut interval, mut configuration) = (0, self.start);
        let mut done = Schedule { changes: Vec::new(), operations: 0.0 };
        let mut changes = changes.iter().copied().peekable();
        while interval < self.intervals() {
            while changes.next_if(|change| change.interval < interval).is_some() {}
            let due = changes.next_if(|change| change.interval == interval);
            match due.filter(|change| change.to != configuration) {
                Some(change) => {
                    let (operations, behind) = self.rolls(interval, configuration, change.to);
                    done.operations += operations;
                    done.changes.push(change);
                    (interval, configuration) = (behind, change.to);
                }
                None => {
                    done.operations += self.stays(interval, configuration);
                    interval += 1;
                }
            }
        }
        done
    }

    /// Returns the operations served in each interval if these changes are executed in order; their sum is that of
    /// [`Self::served`].
    #[must_use]
    pub fn served_each(&self, changes: &[Change]) -> Vec<f64> {
        let mut each = Vec::with_capacity(self.intervals());
        let mut from = self.start;
        for Change { interval, to } in self.served(changes).changes {
            each.extend((each.len()..interval).map(|before| self.stays(before, from)));
            each.extend(self.during(interval, from, to));
            from = to;
        }
        each.extend((each.len()..self.intervals()).map(|behind| self.stays(behind, from)));
        each
    }

    /// Returns the plan that serves the most operations.
    ///
    /// # Panics
    /// If rates or rolls are not those of the same configurations.
    #[must_use]
    pub fn best(&self) -> Schedule {
        self.check();
        let configurations = self.configurations();
        // A bound of the changes that is never reached need not be tracked.
        let bound = self.changes_max.filter(|most| *most < self.intervals());
        let floors = bound.map_or(1, |most| most + 1);
        // By the changes left, the interval and the configuration: the operations served from there on, and the
        // configuration to change to.
        let floor_of = (self.intervals() + 1) * configurations;
        let mut best: Vec<(f64, Option<usize>)> = vec![(0.0, None); floors * floor_of];
        let at = |left: usize, interval: usize, configuration: usize| {
            left * floor_of + interval * configurations + configuration
        };
        for interval in (0..self.intervals()).rev() {
            for left in 0..floors {
                for from in 0..configurations {
                    let stays = self.stays(interval, from) + best[at(left, interval + 1, from)].0;
                    let mut found = (stays, None);
                    let left_behind =
                        if bound.is_some() { left.checked_sub(1) } else { Some(left) };
                    for to in (0..configurations).filter(|to| *to != from) {
                        let Some(left) = left_behind else { break };
                        let (operations, behind) = self.rolls(interval, from, to);
                        let all = operations + best[at(left, behind, to)].0;
                        if all > found.0 + GAIN_MIN * found.0.abs() {
                            found = (all, Some(to));
                        }
                    }
                    best[at(left, interval, from)] = found;
                }
            }
        }
        let (mut changes, mut interval, mut configuration) = (Vec::new(), 0, self.start);
        let mut left = floors - 1;
        while interval < self.intervals() {
            match best[at(left, interval, configuration)].1 {
                Some(to) => {
                    changes.push(Change { interval, to });
                    interval = self.rolls(interval, configuration, to).1;
                    configuration = to;
                    left = if bound.is_some() { left - 1 } else { left };
                }
                None => interval += 1,
            }
        }
        Schedule { changes, operations: best[at(floors - 1, 0, self.start)].0 }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The most that can be served, by trying every plan.
    fn brute_force(outlook: &Outlook, interval: usize, from: usize, left: usize) -> f64 {
        if interval == outlook.intervals() {
            return 0.0;
        }
        let stays = outlook.stays(interval, from) + brute_force(outlook, interval + 1, from, left);
        let others = (0..outlook.configurations()).filter(|to| *to != from && left > 0);
        let changed = others.map(|to| {
            let (operations, behind) = outlook.rolls(interval, from, to);
            operations + brute_force(outlook, behind, to, left - 1)
        });
        changed.fold(stays, f64::max)
    }

    /// Small instances: throughputs as of real clusters, rolls of one to three intervals.
    pub(in crate::tune) fn outlooks(intervals_max: usize) -> impl Strategy<Value = Outlook> {
        let roll = prop::collection::vec((0.0..30.0_f64, 0.0..30.0_f64), 1..4);
        let roll = roll.prop_map(|capacity_s| Sliced { capacity_s });
        let sizes = (1..intervals_max + 1, 1..4_usize);
        sizes.prop_flat_map(move |(intervals, configurations)| {
            let rates = prop::collection::vec(8_000.0..60_000.0_f64, configurations);
            let rolls = prop::collection::vec(roll.clone(), configurations);
            (
                prop::collection::vec(rates, intervals),
                prop::collection::vec(rolls, configurations),
                0..configurations,
                prop::option::of(0..4_usize),
            )
                .prop_map(|(rates_s, rolls, start, changes_max)| Outlook {
                    rates_s,
                    interval_s: 30.0,
                    rolls,
                    start,
                    changes_max,
                })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn no_plan_serves_more(outlook in outlooks(6)) {
            let best = outlook.best();
            let most = brute_force(&outlook, 0, outlook.start, outlook.changes_max.unwrap_or(usize::MAX));
            prop_assert!((best.operations - most).abs() <= 1e-9 * most, "{} {most}", best.operations);
            let served = outlook.served(&best.changes);
            prop_assert_eq!(&served.changes, &best.changes, "each of them is carried out");
            prop_assert!((served.operations - most).abs() <= 1e-9 * most);
            prop_assert!(best.changes.len() <= outlook.changes_max.unwrap_or(usize::MAX));
        }

        #[test]
        fn what_is_served_interval_by_interval_is_all_that_is_served(
            outlook in outlooks(12), changes in prop::collection::vec((0..12_usize, any::<prop::sample::Index>()), 0..6),
        ) {
            let of = |(interval, to): &(usize, prop::sample::Index)| {
                Change { interval: *interval, to: to.index(outlook.configurations()) }
            };
            let mut changes: Vec<Change> = changes.iter().map(of).collect();
            changes.sort();
            let (each, all) = (outlook.served_each(&changes), outlook.served(&changes).operations);
            prop_assert_eq!(each.len(), outlook.intervals());
            prop_assert!((each.iter().sum::<f64>() - all).abs() <= 1e-9 * all, "{each:?} {all}");
        }
    }

    #[test]
    fn of_equal_plans_the_one_that_stays_is_taken() {
        let free = Sliced { capacity_s: vec![(0.0, 30.0)] };
        let rolls = vec![vec![free; 2]; 2];
        let rates_s = vec![vec![41_000.0, 41_000.0]; 20];
        let outlook = Outlook { rates_s, interval_s: 30.0, rolls, start: 0, changes_max: None };
        assert_eq!(outlook.best().changes, []);
    }

    /// Two workloads in turn: each is served best by a configuration of its own, and a third one is nearly as good at
    /// both (§4.4).
    #[test]
    fn a_configuration_that_suits_both_is_not_left() {
        let away = Sliced { capacity_s: vec![(15.0, 10.0)] };
        let rolls = vec![vec![away; 3]; 3];
        let (reads, writes) =
            (vec![50_000.0, 30_000.0, 48_000.0], vec![30_000.0, 50_000.0, 48_000.0]);
        let rates_s =
            (0..12_usize).map(|n| if n.is_multiple_of(2) { reads.clone() } else { writes.clone() });
        let rates_s: Vec<_> = rates_s.collect();
        let outlook = Outlook { rates_s, interval_s: 30.0, rolls, start: 0, changes_max: None };
        assert_eq!(outlook.best().changes, [Change { interval: 0, to: 2 }]);
    }
}
