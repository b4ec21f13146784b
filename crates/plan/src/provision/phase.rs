//! The time of a phase of a chained job: a number of batches, with a limited number in flight.
//!
//! Constant service attains the network's asymptotic bounds, round by round. The first batch ends after the time R of a
//! single batch. Each further batch ends one service time D of the bottleneck later; a batch that has to wait for a
//! worker ends max(R, W D) after the batch whose worker it takes. Exponential service attains exact mean-value
//! analysis, where the fork to the shards is the critical shard followed by a delay, the wait for its siblings. That
//! wait is the same share of the shard's response time whether requests queue or not: Nelson and Tantawi (*Approximate
//! analysis of fork/join synchronization in parallel queues*, 1988) found it to change by no more than a tenth from
//! idle to saturated.
//!
//! Between the two, the time is interpolated by the squared coefficient of variation of the service, since queueing is
//! proportional to it if arrivals are as regular as service (Kingman's heavy traffic).
//!
//! The last batches count: a phase of K batches over W workers has ⌈K / W⌉ rounds; with fewer batches than workers, W
//! is K. The phase ends with the slowest of the batches in flight at its end: the maximum of W times, as far as these
//! times are the batches' own and not the queue's.
//!
//! Invariant: a phase takes at least its longest batch, and at least its batches' service at any one station.

use super::batch::{Batch, Load};
use super::fork::{Part, slowest_s};
use super::shape::Station;
use crate::provision::queueing::{self, Solution, solve};
use statrs::distribution::{ContinuousCDF as _, Normal};

/// The predicted time of a phase and its parts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PhaseTiming {
    /// Time from the start of the phase to the end of its last batch, in seconds.
    pub time_s: f64,
    /// Response time of a batch at each of [`Batch::loads`], queueing included, in seconds.
    pub responses_s: Vec<f64>,
    /// The station whose service bounds the time of the phase.
    pub bottleneck: Station,
}

/// Limit on the number of iterations to find a batch's wait for the other shards.
const ITERATIONS_MAX: u32 = 60;
/// Relative change of this wait at which the iteration ends.
const FOUND: f64 = 1e-3;

/// Computes the time of a phase of batches like `batch`, with at most `workers` batches in flight.
pub(super) fn phase_timing(batch: &Batch, workers: u32) -> PhaseTiming {
    let loads: Vec<&Load> = batch.loads().collect();
    let fork_s = fork_s(batch);
    let single_s: f64 = batch.single.iter().map(Load::alone_s).sum();
    let alone_s = single_s + batch.delay_s + fork_s;
    // Of equally slow stations the first: `max_by` returns the last, so the order is reversed.
    let slowest =
        loads.iter().rev().max_by(|one, other| one.saturated_s().total_cmp(&other.saturated_s()));
    let slowest = *slowest.expect("a batch has a client");
    if alone_s <= 0.0 {
        let responses_s = vec![0.0; loads.len()];
        return PhaseTiming { time_s: 0.0, responses_s, bottleneck: Station::Workers };
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
    PhaseTiming {
        time_s: regular_s + irregularity * (irregular_s - regular_s) + last_s,
        responses_s: loads.iter().zip(&waits_s).map(response).collect(),
        bottleneck: if round_s > alone_s { slowest.station } else { Station::Workers },
    }
}

/// Returns the mean time of a batch at the slowest of its shards without queueing, in seconds. The parts of a fork are taken to
/// be independent, by which a batch of one key would sometimes ask no shard; but one with misses always asks some.
fn fork_s(batch: &Batch) -> f64 {
    let parts: Vec<Part> = batch.shards.iter().map(part).collect();
    let none: f64 = parts.iter().map(|part| 1.0 - part.request_probability).product();
    let some = 1.0 - none;
    if some > 0.0 { slowest_s(&parts) * batch.find_probability / some } else { 0.0 }
}

/// Converts the service of a batch at a shard into a part of a fork.
fn part(load: &Load) -> Part {
    let slower = load.servers.min(1.0);
    Part {
        request_probability: load.request_probability,
        mean_s: load.mean_s / slower + load.wait_s,
        variance: load.variance / slower.powi(2) + load.wait_variance,
    }
}

/// Returns the standard deviation of the time of a batch that does not queue anywhere, in seconds.
fn deviation_s(batch: &Batch) -> f64 {
    let parts = batch.single.iter().chain([critical(batch)]).map(part);
    parts.map(|part| part.variance).sum::<f64>().sqrt()
}

/// Returns the mean of the maximum of `number` standard normal numbers (Blom's approximation).
fn expected_maximum(number: u64) -> f64 {
    let number = number as f64;
    Normal::standard().inverse_cdf((number - 0.375) / (number + 0.25)).max(0.0)
}

/// Returns the critical shard of a batch: the one with the greatest mean service time.
fn critical(batch: &Batch) -> &Load {
    let critical = batch.shards.iter().max_by(|one, other| one.mean_s.total_cmp(&other.mean_s));
    critical.expect("there are shards")
}

/// Solves the queueing network of a phase under exponential service. Its stations are the delay, the single stations,
/// and the members of the critical shard.
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
        let delay_s = batch.delay_s + critical.wait_s + wait_s.max(0.0);
        stations[0] = queueing::Station::Delay { demand_s: delay_s };
        solution = solve(&stations, population);
        let shard_s: f64 =
            solution.stations.iter().rev().take(members).map(|member| member.response_s).sum();
        let shard_s = shard_s + critical.wait_s;
        // A longer wait means a shorter queue: moving half way to the new wait avoids oscillation.
        let next_s = 0.5 * (wait_s + siblings * shard_s);
        iterations += 1;
        let found = (next_s - wait_s).abs() <= FOUND * (shard_s + wait_s);
        wait_s = next_s;
        if found || iterations == ITERATIONS_MAX {
            return solution;
        }
    }
}

/// Returns the queueing time of a batch at each load under exponential service, in seconds; for the other shards, it
/// is proportional to that of the critical one.
fn waits_s(solution: &Solution, batch: &Batch, loads: &[&Load]) -> Vec<f64> {
    let critical = critical(batch);
    let single = batch.single.len();
    let at_critical: f64 =
        solution.stations[single + 1..].iter().map(|member| member.response_s).sum();
    let wait = |(number, load): (usize, &&Load)| {
        let response_s = if number < single {
            solution.stations[number + 1].response_s
        } else if critical.mean_s > 0.0 {
            at_critical * load.mean_s / critical.mean_s + load.wait_s
        } else {
            0.0
        };
        (response_s - load.alone_s()).max(0.0)
    };
    loads.iter().enumerate().map(wait).collect()
}

/// Returns the mean irregularity of the loads, weighted by the queueing time at each.
fn irregularity(loads: &[&Load], waits_s: &[f64]) -> f64 {
    let all_s: f64 = waits_s.iter().sum();
    if all_s <= 0.0 {
        return 0.0;
    }
    loads.iter().zip(waits_s).map(|(load, wait_s)| load.irregularity() * wait_s / all_s).sum()
}
