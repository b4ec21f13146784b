//! Figs. 5, 6 and 7: the batch queue with one, five and ten concurrent jobs; with five jobs on clusters with more
//! nodes and with other replication factors; and the duration of a restart above which a change does not pay (SOPHIA,
//! §6.3 and §6.4).
//!
//! Data and requests of each node stay the same (weak scaling): the throughput of a larger cluster is proportional to
//! its nodes, so only the steps of its rolls differ, as its token ranges allow. Throughputs with other replication
//! factors were not measured. They are assumed to be the same, so only ratios within a row are meaningful.

use imago_plan::tune::forecast::Queue;
use imago_plan::tune::replay::{real, replay};
use imago_plan::tune::roll::{Costs, Rule, Sliced};
use imago_plan::tune::workload::{Interval, Mix};
use serde::Serialize;

use super::methods::{MethodResult, PerMethod, replay_methods};
use super::ranges::{self, Layout, NODES, VIRTUAL};
use super::{Basis, Size};
use crate::sophia::{self, traces};

/// Number of concurrent jobs, except in Fig. 5.
const JOBS_AT_ONCE: usize = 5;
/// Numbers of concurrent jobs in Fig. 5.
const CONCURRENT: [usize; 3] = [1, 5, 10];
/// The paper's RF and CL, for eight nodes: CL 1 with one replica, CL 1 with several, and a majority of them.
const REPLICAS: [(usize, usize); 5] = [(1, 1), (3, 1), (3, 2), (5, 1), (5, 3)];
/// Durations of a restart, as multiples of the basis's T_r.
pub(crate) const FACTORS: [f64; 6] = [0.1, 0.25, 0.5, 1.0, 2.0, 4.0];
/// Number of nodes in each step of a roll on the paper's smallest cluster: four nodes, RF 3, CL 1.
pub(crate) const TWO_STEPS: [usize; 2] = [2, 2];

/// The trace of the queue, which is known one hour in advance.
pub(crate) struct Jobs {
    pub(crate) intervals: Vec<Interval>,
    interval_s: u64,
    look_ahead: usize,
}

impl Jobs {
    pub(crate) fn drawn(size: Size) -> Self {
        Self::at_once(size, JOBS_AT_ONCE)
    }

    fn at_once(size: Size, at_once: usize) -> Self {
        let Size { days, jobs, seed, .. } = size;
        let drawn = traces::jobs(sophia::Size { days, jobs, seed }, at_once);
        let (interval_s, intervals) = (drawn.interval_s, drawn.intervals);
        let look_ahead = ((3_600 / interval_s) as usize).min(intervals.len() / 2).max(1);
        Self { intervals, interval_s, look_ahead }
    }

    /// Replays all methods. A change restarts `steps[i]` nodes in step i, and plans are made by `predicted`.
    pub(crate) fn replay(
        &self,
        basis: &Basis,
        costs: &Costs,
        steps: &[usize],
        predicted: &[Interval],
    ) -> PerMethod<MethodResult> {
        let configurations = basis.measurements.names.len();
        let rolls = |steps: &[usize]| {
            let phases = costs.restarts_in(steps);
            let interval_s = self.interval_s as f64;
            let roll = Sliced::new(&phases, interval_s, Rule::Phases, costs.restart_s);
            vec![vec![roll; configurations]; configurations]
        };
        let planning = basis.planning(self.interval_s);
        let planner_inputs = basis.planner_inputs(&planning);
        let [mut setting, mut at_once] =
            [false, true].map(|is_at_once| planner_inputs.setting(self.look_ahead, is_at_once));
        setting.rolls = rolls(steps);
        at_once.rolls = rolls(&[steps.iter().sum::<usize>()]);
        let rates = |mix: Mix| basis.measurements.throughputs.of(mix);
        // At the end of the schedule, no plan can look ahead for an hour. One training interval suffices for the
        // forecast to find its position in the queue.
        let (learns, seen) = (1, &self.intervals[..self.intervals.len() - self.look_ahead]);
        let planned = |setting: &_| {
            let mut queue = Queue::new(predicted.to_vec());
            replay(seen, learns, &mut queue, &rates, setting).schedule.changes
        };
        let really = real(&seen[learns..], &rates, &setting);
        replay_methods(&really, &at_once.rolls, &planned(&setting), &planned(&at_once))
    }
}

/// Results for one kind of roll.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rolled {
    /// Number of steps in a roll.
    pub steps: usize,
    /// Maximum number of nodes in a step.
    pub at_once: usize,
    /// T_R: duration of a roll, in seconds.
    pub roll_s: f64,
    /// Operations that each method serves, divided by those of the best fixed configuration.
    pub ratios: PerMethod<f64>,
    /// Operations of the tuner, as a share of the theoretical best.
    pub of_theoretical_best: f64,
    /// Number of changes that each method makes.
    pub changes: PerMethod<usize>,
}

impl Rolled {
    fn of(steps: &[usize], costs: &Costs, lived: &PerMethod<MethodResult>) -> Self {
        let ratios = lived.ratios(|_| 1.0);
        Self {
            steps: steps.len(),
            at_once: steps.iter().copied().max().unwrap_or(0),
            roll_s: costs.restart_s * steps.len() as f64,
            of_theoretical_best: ratios.tuned / ratios.theoretical_best,
            ratios,
            changes: lived.changes(|_| true),
        }
    }
}

/// Fig. 5: results for a number of concurrent jobs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobsRow {
    /// Name of the basis; see [`super::BasisRow`].
    pub basis: &'static str,
    /// Number of concurrent jobs.
    pub at_once: usize,
    /// Results for a roll of four nodes.
    pub rolled: Rolled,
}

/// Returns the rows of Fig. 5, for four nodes of which two restart together.
pub(super) fn concurrent(bases: &[Basis], size: Size) -> Vec<JobsRow> {
    let row = |basis: &Basis, at_once: usize| {
        let jobs = Jobs::at_once(size, at_once);
        let lived = jobs.replay(basis, &basis.costs, &TWO_STEPS, &jobs.intervals);
        let rolled = Rolled::of(&TWO_STEPS, &basis.costs, &lived);
        JobsRow { basis: basis.name, at_once, rolled }
    };
    bases.iter().flat_map(|basis| CONCURRENT.map(|at_once| row(basis, at_once))).collect()
}

/// Fig. 6: results for a cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScaleRow {
    /// Name of the basis; see [`super::BasisRow`].
    pub basis: &'static str,
    /// The cluster.
    #[serde(flatten)]
    pub layout: Layout,
    /// Results for its rolls.
    #[serde(flatten)]
    pub rolled: Rolled,
}

/// Returns the rows of Fig. 6: RF 3 and CL 1 with one token per node, as in the paper; and QUORUM with virtual nodes
/// in three racks, as in most present clusters.
pub(super) fn scale(bases: &[Basis], size: Size) -> Vec<ScaleRow> {
    let jobs = Jobs::drawn(size);
    let mut rows = Vec::new();
    for basis in bases {
        for (tokens, racks, needed) in [(1, 1, 1), (VIRTUAL, 3, 2)] {
            for nodes in NODES {
                let layout = Layout { nodes, tokens, racks, replicas: 3, needed };
                let steps = ranges::steps(layout, size.seed).expect("a replica to spare");
                let lived = jobs.replay(basis, &basis.costs, &steps, &jobs.intervals);
                let rolled = Rolled::of(&steps, &basis.costs, &lived);
                rows.push(ScaleRow { basis: basis.name, layout, rolled });
            }
        }
    }
    rows
}

/// Fig. 7: results for a replication factor and consistency level.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplicasRow {
    /// Name of the basis; see [`super::BasisRow`].
    pub basis: &'static str,
    /// The cluster, with the steps of a roll by the paper's formula and by its token ranges.
    #[serde(flatten)]
    pub ranges: ranges::Row,
    /// True if no node may restart without a loss of availability. Then the tuner restarts all nodes at once (the
    /// paper's aggressive variant), and no client is served during a roll.
    pub is_aggressive: bool,
    /// Results for its rolls.
    pub rolled: Rolled,
}

/// Returns the rows of Fig. 7, for eight nodes with one token each.
pub(super) fn replicas(bases: &[Basis], size: Size) -> Vec<ReplicasRow> {
    const EIGHT: usize = 8;
    let jobs = Jobs::drawn(size);
    let row = |basis: &Basis, (replicas, needed): (usize, usize)| {
        let layout = Layout { nodes: EIGHT, tokens: 1, racks: 1, replicas, needed };
        let allowed = ranges::steps(layout, size.seed);
        let is_aggressive = allowed.is_err();
        let steps = allowed.unwrap_or_else(|_| vec![EIGHT]);
        let lived = jobs.replay(basis, &basis.costs, &steps, &jobs.intervals);
        ReplicasRow {
            basis: basis.name,
            ranges: ranges::row(layout, size.seed),
            is_aggressive,
            rolled: Rolled::of(&steps, &basis.costs, &lived),
        }
    };
    bases.iter().flat_map(|basis| REPLICAS.map(|of| row(basis, of))).collect()
}

/// Results for a duration of a restart.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RestartRow {
    /// Name of the basis; see [`super::BasisRow`].
    pub basis: &'static str,
    /// T_r divided by that of the basis.
    pub factor: f64,
    /// T_r: time of a node's restart until it has the writes that it missed, in seconds.
    pub restart_s: f64,
    /// Results for these rolls.
    #[serde(flatten)]
    pub rolled: Rolled,
}

/// Returns one row for each basis and duration of a restart, on four nodes.
pub(super) fn restarts(bases: &[Basis], size: Size) -> Vec<RestartRow> {
    let jobs = Jobs::drawn(size);
    let row = |basis: &Basis, factor: f64| {
        let costs = Costs { restart_s: basis.costs.restart_s * factor, ..basis.costs };
        let lived = jobs.replay(basis, &costs, &TWO_STEPS, &jobs.intervals);
        let rolled = Rolled::of(&TWO_STEPS, &costs, &lived);
        RestartRow { basis: basis.name, factor, restart_s: costs.restart_s, rolled }
    };
    bases.iter().flat_map(|basis| FACTORS.map(|factor| row(basis, factor))).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::methods::tests::assert_bounds;
    use super::super::tests::telling;
    use super::*;

    pub(crate) const SIZE: Size = Size { days: 36, choosing_days: 2, jobs: 160, draws: 2, seed: 3 };

    #[test]
    fn a_queue_that_is_known_is_followed_within_the_bounds_of_what_can_be_served() {
        let (basis, jobs) = (telling(), Jobs::drawn(SIZE));
        for steps in [&TWO_STEPS[..], &[1, 1, 1, 1], &[4]] {
            let lived = jobs.replay(&basis, &basis.costs, steps, &jobs.intervals);
            assert_bounds(&lived);
            let ratios = lived.ratios(|_| 1.0);
            assert!(ratios.tuned > 1.0 && lived.changes(|_| true).tuned > 4, "{ratios:?}");
            assert!(ratios.tuned > ratios.naive, "{ratios:?}");
        }
    }

    #[test]
    fn the_fewer_jobs_at_a_time_the_longer_each_of_their_phases_is_one_of_all() {
        let rows = concurrent(&[telling()], SIZE);
        assert_eq!(rows.iter().map(|row| row.at_once).collect::<Vec<_>>(), [1, 5, 10]);
        // Ten concurrent jobs have a nearly constant mix, so there is hardly any gain.
        let best = |at: usize| rows[at].rolled.ratios.theoretical_best;
        assert!(best(0) > best(1) && best(1) > best(2), "{rows:?}");
    }

    #[test]
    fn the_shorter_a_restart_the_nearer_the_oracle_is_to_the_theoretical_best() {
        let rows = restarts(&[telling()], SIZE);
        let oracle = rows.iter().map(|row| row.rolled.ratios.oracle).collect::<Vec<_>>();
        assert!(oracle.windows(2).all(|pair| pair[0] >= pair[1] - 1e-9), "{oracle:?}");
        let best = rows[0].rolled.ratios.theoretical_best;
        assert!(oracle[0] > 0.95 * best, "{oracle:?} {best}");
    }

    #[test]
    fn in_racks_a_roll_has_as_many_steps_on_four_nodes_as_on_thirty_two() {
        let rows = scale(&[telling()], SIZE);
        let of = |racks: usize| -> Vec<&ScaleRow> {
            rows.iter().filter(|row| row.layout.racks == racks).collect()
        };
        assert!(of(3).iter().all(|row| row.rolled.steps == 3));
        let (four, last) = (of(3)[0], of(3)[3]);
        assert_eq!((four.layout.nodes, last.layout.nodes), (4, 32));
        let differ = (four.rolled.ratios.tuned - last.rolled.ratios.tuned).abs();
        assert!(differ < 0.02, "the gain does not depend on the scale: {rows:?}");
    }

    #[test]
    fn one_replica_is_changed_aggressively_and_it_is_said_and_more_to_spare_never_take_longer() {
        let rows = replicas(&[telling()], SIZE);
        let of = |replicas: usize, needed: usize| {
            let is = |row: &&ReplicasRow| {
                (row.ranges.layout.replicas, row.ranges.layout.needed) == (replicas, needed)
            };
            rows.iter().find(is).unwrap()
        };
        let is_aggressive: Vec<bool> = rows.iter().map(|row| row.is_aggressive).collect();
        assert_eq!(is_aggressive, [true, false, false, false, false]);
        assert!(of(1, 1).ranges.refused.is_some());
        for (few, many) in [((3, 2), (3, 1)), ((5, 3), (5, 1))] {
            let (few, many) = (of(few.0, few.1), of(many.0, many.1));
            assert!(many.rolled.at_once > few.rolled.at_once, "{few:?} {many:?}");
            assert!(many.rolled.roll_s < few.rolled.roll_s, "{few:?} {many:?}");
        }
    }
}
