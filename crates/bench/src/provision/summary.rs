//! Summary of all runs of a cell: means with their confidence intervals.

use imago_plan::tune::judge::Estimate;
use serde::Serialize;

use super::cell::{Cell, Run};
use super::usage::Usage;

/// A mean, with its 95 % confidence interval if there are at least two runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Mean {
    /// The mean, in the unit of the values.
    pub mean: f64,
    /// Half width of the 95 % confidence interval, by Student's t distribution; null for a single run.
    pub interval: Option<f64>,
}

impl Mean {
    /// Returns the mean of these values.
    ///
    /// # Panics
    /// Panics if there are no values.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        assert!(!values.is_empty(), "a mean has at least one value");
        match Estimate::of_few(values) {
            Some(found) => Self { mean: found.mean, interval: Some(found.noise) },
            None => Self { mean: values[0], interval: None },
        }
    }

    /// Returns true if this mean is less than `other` and their confidence intervals do not overlap. Returns false if
    /// one of them has no interval.
    #[must_use]
    pub fn is_less_than(self, other: Self) -> bool {
        let (Some(own), Some(others)) = (self.interval, other.interval) else { return false };
        self.mean + own < other.mean - others
    }
}

/// Summary of the runs of a cell, for one length of the chain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The cell.
    #[serde(flatten)]
    pub cell: Cell,
    /// Number of phases of the chain.
    pub length: usize,
    /// Number of runs.
    pub runs: usize,
    /// Time of the job, in seconds.
    pub job_s: Mean,
    /// Hits as a share of the keys, mean over the runs.
    pub hit_ratio: f64,
    /// Number of hits in all phases, mean over the runs.
    pub hits: f64,
    /// Size of the cache's entries at the end, in bytes, mean over the runs; null if the runs have more phases than
    /// this chain.
    pub cached_bytes: Option<f64>,
    /// Number of busy processors of a member with data over the whole run: mean over members and runs. Null if the
    /// members were not observed; the same holds for the fields below.
    pub cpu_mean: Option<Mean>,
    /// Number of busy processors in the busiest half second of each member: mean over members and runs.
    pub cpu_max: Option<Mean>,
    /// Resident memory of a member with data, in bytes: mean over time, members and runs.
    pub memory_mean: Option<Mean>,
    /// Maximum resident memory of a member with data, in bytes: mean over members and runs.
    pub memory_max: Option<Mean>,
    /// Sum of the maximum resident memory of all members with data, in bytes: mean over the runs.
    pub memory_all: Option<Mean>,
}

/// Groups runs by cell, in the order in which the cells first occur.
pub(crate) fn by_cell(runs: &[Run]) -> Vec<(&Cell, Vec<&Run>)> {
    let mut cells: Vec<(&Cell, Vec<&Run>)> = Vec::new();
    for run in runs {
        match cells.iter_mut().find(|(cell, _)| **cell == run.cell) {
            Some((_, of)) => of.push(run),
            None => cells.push((&run.cell, vec![run])),
        }
    }
    cells
}

impl Summary {
    /// Summarizes runs of one cell for a chain of `length` phases. There must be at least one run.
    pub(crate) fn of(cell: &Cell, runs: &[&Run], length: usize) -> Self {
        let each =
            |of: &dyn Fn(&Run) -> f64| -> Vec<f64> { runs.iter().map(|run| of(run)).collect() };
        let mean = |of: &dyn Fn(&Run) -> f64| Mean::of(&each(of));
        let is_watched = runs.iter().all(|run| !run.members.is_empty());
        let members = |of: fn(&Usage) -> f64| {
            is_watched.then(|| {
                mean(&|run| run.members.iter().map(of).sum::<f64>() / run.members.len() as f64)
            })
        };
        let is_whole = runs.iter().all(|run| run.phases.len() == length);
        Self {
            cell: cell.clone(),
            length,
            runs: runs.len(),
            job_s: mean(&|run| run.job_s(length)),
            hit_ratio: mean(&|run| run.hit_ratio(length)).mean,
            hits: mean(&|run| {
                run.phases.iter().take(length).map(|one| one.hits).sum::<u64>() as f64
            })
            .mean,
            cached_bytes: is_whole.then(|| mean(&|run| run.cache_bytes as f64).mean),
            cpu_mean: members(|used| used.cpu_mean),
            cpu_max: members(|used| used.cpu_max),
            memory_mean: members(|used| used.memory_mean),
            memory_max: members(|used| used.memory_max),
            memory_all: is_watched
                .then(|| mean(&|run| run.members.iter().map(|used| used.memory_max).sum())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cell::{CacheAt, Phase, Reads};
    use super::*;

    #[test]
    fn means_differ_only_if_their_intervals_do_not_meet() {
        let of = |values: &[f64]| Mean::of(values);
        assert!(of(&[9.9, 10.0, 10.1]).is_less_than(of(&[10.9, 11.0, 11.1])));
        assert!(!of(&[9.0, 10.0, 11.0]).is_less_than(of(&[10.0, 11.0, 12.0])));
        assert!(!of(&[9.0]).is_less_than(of(&[99.0])), "one run tells no interval");
    }

    #[test]
    fn runs_are_summed_up_by_cell() {
        let cell = |members: u32| Cell {
            shares: vec![100],
            members,
            cache_bytes: 0,
            cache_at: CacheAt::Worker,
            reads: Reads::Primary,
        };
        let run = |members: u32, number: u32, seconds: f64| Run {
            cell: cell(members),
            run: number,
            phases: vec![Phase { seconds, keys: 1_000, hits: 10 }; 2],
            cache_bytes: 4_000,
            members: vec![
                Usage {
                    node: "s1-0".into(),
                    cpu_mean: 0.2,
                    cpu_max: 0.3,
                    memory_mean: 2e8,
                    memory_max: 3e8,
                };
                2
            ],
            result_sha256: "443607cc".into(),
            unshared: None,
        };
        let runs = [run(1, 0, 1.0), run(2, 0, 5.0), run(1, 1, 2.0)];
        let cells = by_cell(&runs);
        assert_eq!(cells.len(), 2);
        let summary = Summary::of(cells[0].0, &cells[0].1, 2);
        assert_eq!((summary.runs, summary.job_s.mean, summary.hit_ratio), (2, 3.0, 0.01));
        assert!(
            (summary.hits - 20.0).abs() < 1e-9
                && (summary.memory_all.unwrap().mean - 6e8).abs() < 1.0
        );
        assert!(
            summary.job_s.interval.is_some()
                && (summary.cpu_mean.unwrap().mean - 0.2).abs() < 1e-12
        );
        assert_eq!(Summary::of(cells[0].0, &cells[0].1, 1).job_s.mean.to_bits(), 1.5_f64.to_bits());
    }
}
