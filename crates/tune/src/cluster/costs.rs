//! What changes take in a cluster: learned from the last rolls.

use imago_plan::tune::roll::Costs;
use serde::{Deserialize, Serialize};

/// Nodes' changes that costs are learned from, at most.
const LEARNS_FROM: usize = 30;

/// How long a change of one node took, in seconds from its beginning on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Took {
    /// Until it took clients again; zero if it was not stopped.
    pub away_s: f64,
    /// Until it had what it missed: T_r of SOPHIA, §4.4.
    pub whole_s: f64,
}

/// What changes take by the last of those that were made, in place of what was taken for granted.
pub(crate) fn learned(mut costs: Costs, took: &[Took]) -> Costs {
    let recent = took.iter().rev().take(LEARNS_FROM);
    let (restarts, live): (Vec<&Took>, Vec<&Took>) = recent.partition(|took| took.away_s > 0.0);
    if let Some(whole_s) = median(restarts.iter().map(|took| took.whole_s)) {
        costs.restart_s = whole_s;
        let caught_up = restarts.iter().map(|took| 1.0 - took.away_s / took.whole_s.max(1e-3));
        costs.catch_up = median(caught_up).unwrap_or(costs.catch_up).clamp(0.0, 1.0);
    }
    costs.live_s = median(live.iter().map(|took| took.whole_s)).unwrap_or(costs.live_s);
    costs
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut all: Vec<f64> = values.collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_those_of_the_last_restarts() {
        let guessed = Costs { restart_s: 60.0, ..Costs::guessed(3) };
        assert_eq!(learned(guessed, &[]), guessed);
        let took = [
            Took { away_s: 12.0, whole_s: 22.0 },
            Took { away_s: 0.0, whole_s: 1.2 },
            Took { away_s: 13.0, whole_s: 26.0 },
            Took { away_s: 14.0, whole_s: 30.0 },
        ];
        let costs = learned(guessed, &took);
        assert!((costs.restart_s - 26.0).abs() < 1e-9 && (costs.live_s - 1.2).abs() < 1e-9);
        assert!((costs.catch_up - 0.5).abs() < 1e-9, "{costs:?}");
    }
}
