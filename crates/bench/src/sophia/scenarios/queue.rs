//! Figs. 5, 6 and 7: the batch queue with one, five and ten jobs at a time; with five on clusters of more nodes and with other
//! replicas; and how long a restart may take before a change does not pay (SOPHIA, §6.3 and §6.4).
//!
//! Data and requests of each node stay the same (weak scaling): a larger cluster serves as many times more as it has more
//! nodes, so that only its rolls differ, by the steps that its ranges allow. What a configuration serves with other
//! replicas was not measured: it is taken to be the same, and only ratios within a row say something.

use imago_plan::tune::forecast::Queue;
use imago_plan::tune::replay::{real, replay};
use imago_plan::tune::roll::{Costs, Rule, Sliced};
use imago_plan::tune::workload::{Interval, Mix};
use serde::Serialize;

use super::ranges::{self, Layout, NODES, VIRTUAL};
use super::ways::{Lived, Ways, lived};
use super::{Basis, Size};
use crate::sophia::{self, traces};

/// Jobs at a time, where nothing else is said.
const JOBS_AT_ONCE: usize = 5;
/// Jobs at a time of Fig. 5.
const CONCURRENT: [usize; 3] = [1, 5, 10];
/// The paper's RF and CL, for eight nodes: one of each, one of several, and a majority.
const REPLICAS: [(usize, usize); 5] = [(1, 1), (3, 1), (3, 2), (5, 1), (5, 3)];
/// How many times as long as it was measured a restart may take.
pub(crate) const FACTORS: [f64; 6] = [0.1, 0.25, 0.5, 1.0, 2.0, 4.0];
/// The steps of the paper's smallest cluster: four nodes, RF 3, CL 1.
pub(crate) const TWO_STEPS: [usize; 2] = [2, 2];

/// The queue, which is known for an hour.
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

    /// What ways serve, where a change restarts so many nodes in each step, and planning goes by what is predicted.
    pub(crate) fn lived(
        &self,
        basis: &Basis,
        costs: &Costs,
        steps: &[usize],
        predicted: &[Interval],
    ) -> Ways<Lived> {
        let configurations = basis.measurements.names.len();
        let rolls = |steps: &[usize]| {
            let phases = costs.restarts_in(steps);
            let interval_s = self.interval_s as f64;
            let roll = Sliced::new(&phases, interval_s, Rule::Phases, costs.restart_s);
            vec![vec![roll; configurations]; configurations]
        };
        let ways = basis.ways();
        let deciding = basis.deciding(self.interval_s, &ways);
        let [mut setting, mut at_once] =
            [false, true].map(|is_at_once| deciding.setting(self.look_ahead, is_at_once));
        setting.rolls = rolls(steps);
        at_once.rolls = rolls(&[steps.iter().sum::<usize>()]);
        let rates = |mix: Mix| basis.measurements.throughputs.of(mix);
        // At the end of the schedule no plan can look an hour ahead. One interval is enough to know where in the
        // queue it is.
        let (learns, seen) = (1, &self.intervals[..self.intervals.len() - self.look_ahead]);
        let planned = |setting: &_| {
            let mut queue = Queue::new(predicted.to_vec());
            replay(seen, learns, &mut queue, &rates, setting).schedule.changes
        };
        let really = real(&seen[learns..], &rates, &setting);
        lived(&really, &at_once.rolls, &planned(&setting), &planned(&at_once))
    }
}

/// A roll of a cluster, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rolled {
    /// The steps of a roll.
    pub steps: usize,
    /// The most nodes of a step.
    pub at_once: usize,
    /// T_R, in seconds.
    pub roll_s: f64,
    /// What each way served, as a ratio to the best fixed configuration.
    pub ratios: Ways<f64>,
    /// What the tuner served, as a share of the theoretical best.
    pub of_theoretical_best: f64,
    /// Changes of each way.
    pub changes: Ways<usize>,
}

impl Rolled {
    fn of(steps: &[usize], costs: &Costs, lived: &Ways<Lived>) -> Self {
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

/// Fig. 5: so many jobs at a time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobsRow {
    /// See [`super::BasisRow`].
    pub basis: &'static str,
    /// Jobs at a time.
    pub at_once: usize,
    /// The roll of four nodes.
    pub rolled: Rolled,
}

/// Fig. 5: four nodes, two of which restart at a time.
pub(super) fn concurrent(bases: &[Basis], size: Size) -> Vec<JobsRow> {
    let row = |basis: &Basis, at_once: usize| {
        let jobs = Jobs::at_once(size, at_once);
        let lived = jobs.lived(basis, &basis.costs, &TWO_STEPS, &jobs.intervals);
        let rolled = Rolled::of(&TWO_STEPS, &basis.costs, &lived);
        JobsRow { basis: basis.name, at_once, rolled }
    };
    bases.iter().flat_map(|basis| CONCURRENT.map(|at_once| row(basis, at_once))).collect()
}

/// Fig. 6: a cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScaleRow {
    /// See [`super::BasisRow`].
    pub basis: &'static str,
    /// The cluster.
    #[serde(flatten)]
    pub layout: Layout,
    /// Its roll.
    #[serde(flatten)]
    pub rolled: Rolled,
}

/// Fig. 6: RF 3 and CL 1 with one token a node, as in the paper; and QUORUM with virtual nodes in three racks, as most
/// clusters of today have it.
pub(super) fn scale(bases: &[Basis], size: Size) -> Vec<ScaleRow> {
    let jobs = Jobs::drawn(size);
    let mut rows = Vec::new();
    for basis in bases {
        for (tokens, racks, needed) in [(1, 1, 1), (VIRTUAL, 3, 2)] {
            for nodes in NODES {
                let layout = Layout { nodes, tokens, racks, replicas: 3, needed };
                let steps = ranges::steps(layout, size.seed).expect("a replica to spare");
                let lived = jobs.lived(basis, &basis.costs, &steps, &jobs.intervals);
                let rolled = Rolled::of(&steps, &basis.costs, &lived);
                rows.push(ScaleRow { basis: basis.name, layout, rolled });
            }
        }
    }
    rows
}

/// Fig. 7: replicas.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplicasRow {
    /// See [`super::BasisRow`].
    pub basis: &'static str,
    /// The cluster, with what the paper's formula and what its ranges allow.
    #[serde(flatten)]
    pub ranges: ranges::Row,
    /// True if no node may restart without a loss of availability: then the tuner restarts all at once (the paper's
    /// aggressive variant), and no client is served meanwhile.
    pub is_aggressive: bool,
    /// Its roll.
    pub rolled: Rolled,
}

/// Fig. 7: eight nodes with one token each.
pub(super) fn replicas(bases: &[Basis], size: Size) -> Vec<ReplicasRow> {
    const EIGHT: usize = 8;
    let jobs = Jobs::drawn(size);
    let row = |basis: &Basis, (replicas, needed): (usize, usize)| {
        let layout = Layout { nodes: EIGHT, tokens: 1, racks: 1, replicas, needed };
        let allowed = ranges::steps(layout, size.seed);
        let is_aggressive = allowed.is_err();
        let steps = allowed.unwrap_or_else(|_| vec![EIGHT]);
        let lived = jobs.lived(basis, &basis.costs, &steps, &jobs.intervals);
        ReplicasRow {
            basis: basis.name,
            ranges: ranges::row(layout, size.seed),
            is_aggressive,
            rolled: Rolled::of(&steps, &basis.costs, &lived),
        }
    };
    bases.iter().flat_map(|basis| REPLICAS.map(|of| row(basis, of))).collect()
}

/// A restart of another length.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RestartRow {
    /// See [`super::BasisRow`].
    pub basis: &'static str,
    /// How many times as long as the basis has it.
    pub factor: f64,
    /// T_r, in seconds.
    pub restart_s: f64,
    /// The roll.
    #[serde(flatten)]
    pub rolled: Rolled,
}

/// Four nodes: what a restart of another length brings or costs.
pub(super) fn restarts(bases: &[Basis], size: Size) -> Vec<RestartRow> {
    let jobs = Jobs::drawn(size);
    let row = |basis: &Basis, factor: f64| {
        let costs = Costs { restart_s: basis.costs.restart_s * factor, ..basis.costs };
        let lived = jobs.lived(basis, &costs, &TWO_STEPS, &jobs.intervals);
        let rolled = Rolled::of(&TWO_STEPS, &costs, &lived);
        RestartRow { basis: basis.name, factor, restart_s: costs.restart_s, rolled }
    };
    bases.iter().flat_map(|basis| FACTORS.map(|factor| row(basis, factor))).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::tests::telling;
    use super::super::ways::tests::assert_bounds;
    use super::*;

    pub(crate) const SIZE: Size = Size { days: 36, choosing_days: 2, jobs: 160, draws: 2, seed: 3 };

    #[test]
    fn a_queue_that_is_known_is_followed_within_the_bounds_of_what_can_be_served() {
        let (basis, jobs) = (telling(), Jobs::drawn(SIZE));
        for steps in [&TWO_STEPS[..], &[1, 1, 1, 1], &[4]] {
            let lived = jobs.lived(&basis, &basis.costs, steps, &jobs.intervals);
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
        // Ten jobs mix what they ask for, so that hardly anything is left to gain.
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
