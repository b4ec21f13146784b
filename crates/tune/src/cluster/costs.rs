//! Costs of changes of a cluster's configuration, estimated from the durations of past rolls.

use imago_plan::statistics::median;
use imago_plan::tune::roll::Costs;
use serde::{Deserialize, Serialize};

/// Maximum number of recent changes of single nodes, by restarts and in running nodes each, that the costs are estimated from.
const LEARNS_FROM: usize = 30;

/// Durations of the change of one node in a roll.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRollTime {
    /// Time until the node accepted clients again, in seconds: for Cassandra from the start of the node's change, for
    /// Redis from the node's stop. Zero if the node was not stopped.
    pub away_s: f64,
    /// Time from the start of the node's change until it had the writes that it missed, in seconds: T_r of SOPHIA,
    /// §4.4.
    pub whole_s: f64,
}

/// Replaces the assumed durations in `costs` by the medians of the most recent changes of nodes; `took` has the
/// latest ones last.
pub(crate) fn learned(mut costs: Costs, took: &[NodeRollTime]) -> Costs {
    let recent = |restarted: bool| {
        let of = took.iter().rev().filter(move |took| (took.away_s > 0.0) == restarted);
        of.take(LEARNS_FROM)
    };
    let (restarts, live) = (|| recent(true), recent(false));
    if let Some(whole_s) = median(restarts().map(|took| took.whole_s)) {
        costs.restart_s = whole_s;
        let caught_up = restarts().map(|took| 1.0 - took.away_s / took.whole_s.max(1e-3));
        costs.catch_up = median(caught_up).unwrap_or(costs.catch_up).clamp(0.0, 1.0);
    }
    costs.live_s = median(live.map(|took| took.whole_s)).unwrap_or(costs.live_s);
    costs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_those_of_the_last_restarts() {
        let guessed = Costs { restart_s: 60.0, ..Costs::guessed(3) };
        assert_eq!(learned(guessed, &[]), guessed);
        let took = [
            NodeRollTime { away_s: 12.0, whole_s: 22.0 },
            NodeRollTime { away_s: 0.0, whole_s: 1.2 },
            NodeRollTime { away_s: 13.0, whole_s: 26.0 },
            NodeRollTime { away_s: 14.0, whole_s: 30.0 },
        ];
        let costs = learned(guessed, &took);
        assert!((costs.restart_s - 26.0).abs() < 1e-9 && (costs.live_s - 1.2).abs() < 1e-9);
        assert!((costs.catch_up - 0.5).abs() < 1e-9, "{costs:?}");
        // Many live changes, as while configurations take turns, do not hide the restarts.
        let turns = [took.to_vec(), vec![NodeRollTime { away_s: 0.0, whole_s: 1.1 }; 40]].concat();
        assert!((learned(guessed, &turns).restart_s - 26.0).abs() < 1e-9);
    }
}
