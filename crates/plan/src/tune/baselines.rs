//! Baselines: other methods to choose a configuration, with which a planner is compared (SOPHIA, §6).

use super::roll::Sliced;
use super::schedule::{Change, Outlook, Schedule};

/// A method to choose configurations over time, with which a planner is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Baseline {
    /// The cluster keeps the default configuration throughout.
    Default,
    /// The cluster keeps the single configuration that serves most operations over the whole time, chosen in
    /// hindsight.
    StaticOptimal,
    /// The cluster always has the best configuration for the current workload; each change restarts all nodes at once.
    Naive,
    /// The cluster follows the best plan for the real future workload.
    Oracle,
    /// The cluster has the best configuration in each interval, and changes cost nothing: an upper bound.
    TheoreticalBest,
}

impl Baseline {
    /// All baselines, in the order of reports.
    pub const ALL: [Self; 5] =
        [Self::Default, Self::StaticOptimal, Self::Naive, Self::Oracle, Self::TheoreticalBest];

    /// Returns the name of the baseline for reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::StaticOptimal => "static optimal",
            Self::Naive => "naive",
            Self::Oracle => "oracle",
            Self::TheoreticalBest => "theoretical best",
        }
    }
}

/// The inputs from which all baselines are computed.
#[derive(Clone, Copy, Debug)]
pub struct Comparison<'c> {
    /// The throughputs of all configurations under the real future workload, and the rolls between them.
    pub real: &'c Outlook,
    /// For each configuration, the change to each other one if all nodes restart at once.
    pub at_once: &'c [Vec<Sliced>],
    /// Index of the default configuration.
    pub default: usize,
}

impl Comparison<'_> {
    /// Returns the changes that a baseline makes, and the operations that it serves.
    #[must_use]
    pub fn of(&self, baseline: Baseline) -> Schedule {
        let real = self.real;
        match baseline {
            Baseline::Default => self.stays(self.default),
            Baseline::StaticOptimal => {
                let all = (0..real.configurations()).map(|one| self.stays(one));
                all.max_by(by_operations).expect("a configuration")
            }
            Baseline::Naive => self.naive(),
            Baseline::Oracle => real.best(),
            Baseline::TheoreticalBest => {
                let best = |rates: &Vec<f64>| rates.iter().copied().fold(0.0, f64::max);
                let operations = real.rates_s.iter().map(best).sum::<f64>() * real.interval_s;
                Schedule { changes: Vec::new(), operations }
            }
        }
    }

    /// Returns the schedule without a change that serves with one configuration throughout, from the start on.
    fn stays(&self, configuration: usize) -> Schedule {
        let real = self.real;
        let rates = real.rates_s.iter().map(|rates| rates[configuration]);
        Schedule { changes: Vec::new(), operations: rates.sum::<f64>() * real.interval_s }
    }

    /// Returns the changes of the naive baseline, and the operations that it serves.
    fn naive(&self) -> Schedule {
        let real = Outlook { rolls: self.at_once.to_vec(), ..self.real.clone() };
        let best = |rates: &Vec<f64>| {
            let all = (0..rates.len()).max_by(|one, two| rates[*one].total_cmp(&rates[*two]));
            all.expect("a configuration")
        };
        let changes = real.rates_s.iter().map(best).enumerate();
        let changes = changes.map(|(interval, to)| Change { interval, to }).collect::<Vec<_>>();
        real.served(&changes)
    }
}

/// Orders schedules by the operations that they serve.
fn by_operations(one: &Schedule, two: &Schedule) -> std::cmp::Ordering {
    one.operations.total_cmp(&two.operations)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::schedule::tests::outlooks;
    use super::*;

    #[test]
    fn on_a_workload_that_flips_the_naive_way_serves_less_than_any_fixed_configuration() {
        let away = Sliced { capacity_s: vec![(20.0, 5.0)] };
        let gone = Sliced { capacity_s: vec![(0.0, 4.0)] };
        let table = |roll: &Sliced| vec![vec![roll.clone(); 2]; 2];
        let flips = |n: usize| {
            if n.is_multiple_of(2) { vec![50_000.0, 40_000.0] } else { vec![40_000.0, 50_000.0] }
        };
        let rates_s: Vec<_> = (0..40).map(flips).collect();
        let real =
            Outlook { rates_s, interval_s: 30.0, rolls: table(&away), start: 0, changes_max: None };
        let by = Comparison { real: &real, at_once: &table(&gone), default: 0 };
        let operations = Baseline::ALL.map(|baseline| by.of(baseline).operations);
        let [default, fixed, naive, oracle, best] = operations;
        assert!(naive < 0.2 * default, "{naive} {default}");
        assert_eq!((default, fixed, oracle), (54_000_000.0, 54_000_000.0, 54_000_000.0));
        assert_eq!(best, 60_000_000.0);
    }

    proptest! {
        #[test]
        fn nothing_beats_the_oracle_that_has_to_pay_for_its_changes(outlook in outlooks(12)) {
            let outlook = Outlook { changes_max: None, ..outlook };
            let by = Comparison { real: &outlook, at_once: &outlook.rolls, default: outlook.start };
            let oracle = by.of(Baseline::Oracle).operations;
            for baseline in [Baseline::Default, Baseline::Naive] {
                prop_assert!(by.of(baseline).operations <= oracle * (1.0 + 1e-9), "{baseline:?}");
            }
            prop_assert!(by.of(Baseline::StaticOptimal).operations >= by.of(Baseline::Default).operations);
        }
    }
}
