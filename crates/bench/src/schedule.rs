//! Benchmark of the decision when a configuration changes: the exact plan, compared with the paper's genetic search
//! (SOPHIA, §4.4).
//!
//! No server takes part: only the decision is measured, from throughputs in memory to the finished plan. The workload
//! is drawn: for some intervals in succession, one configuration serves more than the others.

use std::time::Instant;

use imago_plan::tune::genetic::Search;
use imago_plan::tune::roll::{CostClass, Costs, Rule, Sliced};
use imago_plan::tune::schedule::{Outlook, Schedule};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::Serialize;

use crate::Header;
use crate::statistics::Figure;

/// The length of an interval, in seconds.
const INTERVAL_S: f64 = 30.0;

/// Size of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Number of intervals of the look-ahead.
    pub intervals: u32,
    /// Number of configurations to choose from.
    pub configurations: u32,
    /// Number of workloads, each with its own draw; figures are medians.
    pub runs: u32,
}

/// The measurements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// Time to compute the exact plan, in milliseconds.
    pub exact_ms: f64,
    /// Time of the genetic search as published, in milliseconds.
    pub genetic_ms: f64,
    /// Operations that the plan of the genetic search serves, divided by those of the exact plan: the largest ratio
    /// of all runs.
    pub genetic_ratio_max: f64,
    /// The median of this ratio.
    pub genetic_ratio: f64,
    /// Operations that a plan without changes serves, divided by those of the exact plan.
    pub static_ratio: f64,
    /// Number of changes in the exact plan.
    pub changes: f64,
    /// The figures with their extremes over the runs.
    pub spread: Spread,
}

/// The figures with their extremes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// See [`Report::exact_ms`].
    pub exact_ms: Figure,
    /// See [`Report::genetic_ms`].
    pub genetic_ms: Figure,
}

/// Runs the benchmark and returns its report.
#[must_use]
pub fn run(size: Size) -> Report {
    let runs: Vec<Run> = (0..size.runs.max(1)).map(|seed| once(size, seed.into())).collect();
    let figure = |of: fn(&Run) -> f64| Figure::of(runs.iter().map(of));
    let (exact_ms, genetic_ms) = (figure(|run| run.exact_ms), figure(|run| run.genetic_ms));
    Report {
        header: Header::of("tune-schedule", size),
        exact_ms: exact_ms.median,
        genetic_ms: genetic_ms.median,
        genetic_ratio_max: figure(|run| run.genetic_ratio).max,
        genetic_ratio: figure(|run| run.genetic_ratio).median,
        static_ratio: figure(|run| run.static_ratio).median,
        changes: figure(|run| run.changes).median,
        spread: Spread { exact_ms, genetic_ms },
    }
}

struct Run {
    exact_ms: f64,
    genetic_ms: f64,
    genetic_ratio: f64,
    static_ratio: f64,
    changes: f64,
}

fn once(size: Size, seed: u64) -> Run {
    let mut dice = StdRng::seed_from_u64(seed);
    let outlook = drawn(size, &mut dice);
    let began = Instant::now();
    let exact: Schedule = outlook.best();
    let exact_ms = began.elapsed().as_secs_f64() * 1e3;
    let began = Instant::now();
    let genetic = Search::default().run(&outlook, &mut dice);
    let genetic_ms = began.elapsed().as_secs_f64() * 1e3;
    Run {
        exact_ms,
        genetic_ms,
        genetic_ratio: genetic.operations / exact.operations,
        static_ratio: outlook.served(&[]).operations / exact.operations,
        changes: exact.changes.len() as f64,
    }
}

/// Draws a look-ahead in which each configuration is the best one at times.
fn drawn(size: Size, dice: &mut StdRng) -> Outlook {
    let configurations = size.configurations.max(2) as usize;
    let mut rates_s = Vec::new();
    let mut favours = 0;
    for _ in 0..size.intervals {
        // The favoured configuration is drawn anew every ten intervals on average.
        if dice.random::<f64>() < 0.1 {
            favours = dice.random_range(0..configurations);
        }
        let rate = |number: usize, dice: &mut StdRng| {
            let gain = if number == favours { 1.35 } else { 1.0 };
            gain * dice.random_range(38_000.0..42_000.0)
        };
        rates_s.push((0..configurations).map(|number| rate(number, dice)).collect());
    }
    let costs = Costs {
        nodes: 6,
        at_once: 2,
        restart_s: 20.0,
        catch_up: 0.65,
        catch_up_capacity: 0.5,
        live_s: 1.0,
        alter_s: 1.0,
        rewrite_s: 600.0,
        rewrite_takes: 0.3,
    };
    let phases = costs.phases(CostClass::Restart);
    let roll = || Sliced::new(&phases, INTERVAL_S, Rule::Phases, costs.restart_s);
    let rolls =
        (0..configurations).map(|_| (0..configurations).map(|_| roll()).collect()).collect();
    Outlook { rates_s, interval_s: INTERVAL_S, rolls, start: 0, changes_max: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_search_finds_more_than_the_exact_plan() {
        let report = run(Size { intervals: 24, configurations: 3, runs: 3 });
        assert!(report.genetic_ratio_max <= 1.0 + 1e-9, "{report:?}");
        assert!(report.static_ratio < 1.0 && report.changes > 0.0, "{report:?}");
    }
}
