//! The time of a phase: a number of batches, of which at most a number is in flight.
//!
//! Constant service attains the network's asymptotic bounds, round by round: the first batch ends after the time R of a
//! batch alone; each further one ends a bottleneck's service D later, and one that has to wait for a worker ends max(R, W D)
//! behind the one whose worker it takes. Exponential service attains exact mean-value analysis, where the fork to the shards
//! is the critical shard and behind it a delay, the wait for its siblings. That wait is the same share of the shard's
//! response whether requests queue or not: Nelson and Tantawi (*Approximate analysis of fork/join synchronization in parallel
//! queues*, 1988) found it to change by no more than a tenth from idle to saturated.
//!
//! What is between is interpolated by the squared coefficient of variation of the service, as waiting is in proportion to
//! it where arrivals are as regular as service (Kingman's heavy traffic).
//!
//! The last batches count: a phase of K batches over W workers has ⌈K / W⌉ rounds, and with fewer batches than workers, K
//! workers. It ends with the slowest of those in flight at its end: the greatest of W times, as far as these are the
//! batches' own and not the queue's.
//!
//! Invariant: a phase takes at least its longest batch, and at least its batches' service at any one station.

use super::batch::{Batch, Load};
use super::fork::{Part, slowest_s};
use super::shape::Station;
use crate::queueing::{self, Solution, solve};
use statrs::distribution::{ContinuousCDF as _, Normal};

/// The time of a phase and its parts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Timed {
    /// From the phase's begin to the end of its last batch, in seconds.
    pub time_s: f64,
    /// Time of a batch at each of [`Batch::loads`], waiting included, in seconds.
    pub responses_s: Vec<f64>,
    /// The station that bounds the phase.
    pub bottleneck: Station,
}

/// Iterations in which the wait for siblings is found, and the relative change at which it counts as found.
const ITERATIONS_MAX: u32 = 60;
const FOUND: f64 = 1e-3;

/// The time of a phase.
pub(super) fn timed(batch: &Batch, workers: u32) -> Timed {
    let loads: Vec<&Load> = batch.loads().collect();
    let fork_s = slowest_s(&batch.shards.iter().map(part).collect::<Vec<_>>());
    let single_s: f64 = batch.single.iter().map(Load::alone_s).sum();
    let alone_s = single_s + batch.delay_s + fork_s;
    // Of equal ones the first: the last greatest from behind.
    let slowest =
        loads.iter().rev().max_by(|one, other| one.saturated_s().total_cmp(&other.saturated_s()));
    let slowest = *slowest.expect("a batch has a client");
    if alone_s <= 0.0 {
        let responses_s = vec![0.0; loads.len()];
        return Timed { time_s: 0.0, responses_s, bottleneck: Station::Workers };
    }
    let in_flight = u64::from(workers).min(batch.batches);
    let saturated_s = slowest.saturated_s();
    let round_s = alone_s.max(in_flight as f64 * saturated_s);
    let (rounds, rest) = ((batch.batches - 1) / in_flight, (batch.batches - 1) % in_flight);
    let regular_s = alone_s + rounds as f64 * round_s + rest as f64 * saturated_s;

    let population = u32::try_from(in_flight).expect("at most as many as workers");
    let exponential = exponential(batch, fork_s, population);
    let irregular_s = (batch.batches as f64 / exponential.throughput_s).max(regular_s);
    let last_s = deviation_s(batch) * expected_maximum(in_flight) * alone_s / round_s;

    let waits_s = waits_s(&exponential, batch, &loads);
    let irregularity = irregularity(&loads, &waits_s);
    let queued_s = round_s - alone_s;
    let response = |(load, wait_s): (&&Load, &f64)| {
        let regular_s = if load.station == slowest.station { queued_s } else { 0.0 };
        load.alone_s() + (1.0 - irregularity) * regular_s + irregularity * wait_s
    };
    Timed {
        time_s: regular_s + irregularity * (irregular_s - regular_s) + last_s,
        responses_s: loads.iter().zip(&waits_s).map(response).collect(),
        bottleneck: if round_s > alone_s { slowest.station } else { Station::Workers },
    }
}

fn part(load: &Load) -> Part {
    let slower = load.servers.min(1.0);
    Part {
        asked: load.asked,
        mean_s: load.mean_s / slower,
        variance: load.variance / slower.powi(2),
    }
}

/// The standard deviation of the time of a batch that is alone, in seconds.
fn deviation_s(batch: &Batch) -> f64 {
    let parts = batch.single.iter().chain([critical(batch)]).map(part);
    parts.map(|part| part.variance).sum::<f64>().sqrt()
}

/// The mean of the greatest of so many standard normal numbers (Blom's approximation).
fn expected_maximum(number: u64) -> f64 {
    let number = number as f64;
    Normal::standard().inverse_cdf((number - 0.375) / (number + 0.25)).max(0.0)
}

/// The critical shard: the one with the greatest demand.
fn critical(batch: &Batch) -> &Load {
    let critical = batch.shards.iter().max_by(|one, other| one.mean_s.total_cmp(&other.mean_s));
    critical.expect("there are shards")
}

/// The network under exponential service. Its stations are the delay, the single ones, and the critical shard's members.
fn exponential(batch: &Batch, fork_s: f64, population: u32) -> Solution {
    let critical = critical(batch);
    let queue = |load: &Load| {
        let demand_s = load.mean_s / f64::from(load.members);
        queueing::Station::Queue { demand_s, servers: load.servers }
    };
    let members = critical.members as usize;
    let mut stations = vec![queueing::Station::Delay { demand_s: batch.delay_s }];
    stations.extend(batch.single.iter().map(queue));
    stations.extend(vec![queue(critical); members]);
    let alone_s = critical.alone_s();
    let siblings = if alone_s > 0.0 { (fork_s / alone_s - 1.0).max(0.0) } else { 0.0 };
    let mut wait_s = fork_s - alone_s;
    let mut solution;
    let mut iterations = 0;
    loop {
        stations[0] = queueing::Station::Delay { demand_s: batch.delay_s + wait_s.max(0.0) };
        solution = solve(&stations, population);
        let shard_s: f64 =
            solution.stations.iter().rev().take(members).map(|member| member.response_s).sum();
        // The longer the wait, the shorter the queue: half way to the new one never swings up.
        let next_s = 0.5 * (wait_s + siblings * shard_s);
        iterations += 1;
        let found = (next_s - wait_s).abs() <= FOUND * (shard_s + wait_s);
        wait_s = next_s;
        if found || iterations == ITERATIONS_MAX {
            return solution;
        }
    }
}

/// Waiting at each load under exponential service, in seconds; that of the other shards in proportion to the critical one's.
fn waits_s(solution: &Solution, batch: &Batch, loads: &[&Load]) -> Vec<f64> {
    let critical = critical(batch);
    let single = batch.single.len();
    let at_critical: f64 =
        solution.stations[single + 1..].iter().map(|member| member.response_s).sum();
    let wait = |(number, load): (usize, &&Load)| {
        let response_s = if number < single {
            solution.stations[number + 1].response_s
        } else if critical.mean_s > 0.0 {
            at_critical * load.mean_s / critical.mean_s
        } else {
            0.0
        };
        (response_s - load.alone_s()).max(0.0)
    };
    loads.iter().enumerate().map(wait).collect()
}

/// The mean irregularity of the loads, each counted by the time that batches wait there.
fn irregularity(loads: &[&Load], waits_s: &[f64]) -> f64 {
    let all_s: f64 = waits_s.iter().sum();
    if all_s <= 0.0 {
        return 0.0;
    }
    loads.iter().zip(waits_s).map(|(load, wait_s)| load.irregularity() * wait_s / all_s).sum()
}
