//! Recorded jobs on other shapes, beside jobs that are played through.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::{InMemory, costs, machine, shape};
use crate::provision::queueing::simulator::{Step, simulate};
use crate::provision::{Costs, Errors, Recorded, RecordedPhase, Servers, Shares};

/// A job that reads its orders by `requests` requests of `keys` keys, over `at_once` connections, and works for `own_s` after each
/// reply: played through against costs that are `factor` times those of the probe. Returns the phase as a proxy records it.
fn played(
    (requests, keys): (u64, u32),
    at_once: u32,
    own_s: f64,
    shards: usize,
    factor: f64,
) -> RecordedPhase {
    let costs = costs();
    let servers = vec![1.0; 1 + shards];
    let mut rng = StdRng::seed_from_u64(11);
    let router_s = factor * costs.router.of(1.0, keys.into());
    let trips_s = factor * (costs.round_trip_router_s + costs.round_trip_shard_s);
    let run = simulate(&servers, at_once, requests, |number| {
        let mut parts = vec![0.0; shards];
        (0..keys).for_each(|_| parts[rng.random_range(0..shards)] += 1.0);
        let asked = parts.iter().enumerate().filter(|(_, keys)| **keys > 0.0);
        let fork = asked.map(|(shard, keys)| (1 + shard, factor * costs.shard.of(1.0, *keys), 0.0));
        let fork = Step::Fork(fork.collect());
        let mut steps = vec![Step::Delay(trips_s), Step::Visit(0, router_s), fork];
        if number + u64::from(at_once) < requests {
            steps.push(Step::Delay(own_s));
        }
        steps
    });
    let own_all_s = own_s * requests.saturating_sub(at_once.into()) as f64;
    RecordedPhase {
        keys: requests * u64::from(keys),
        requests,
        at_once,
        waited_s: run.elapsed_s * f64::from(at_once) - own_all_s,
        time_s: run.elapsed_s,
    }
}

fn recorded(phases: Vec<RecordedPhase>, pauses_s: f64) -> Recorded {
    Recorded { phases, pauses_s, variation: 0.0 }
}

fn predicted_s(of: &Recorded, costs: &Costs, factor: f64, shards: u32) -> f64 {
    let (errors, shares) = (Errors::default(), Shares::even());
    let (machine, shape) = (machine(1.0), shape(shards, 0));
    let servers = Servers { shape, machine: &machine, shares: &shares, hits: &InMemory };
    let told = of.predict(costs, (Some(factor), &errors), servers);
    assert!((told.interval_s[0]..=told.interval_s[1]).contains(&told.job_s), "{told:?}");
    told.job_s
}

#[test]
fn one_read_after_the_other_takes_as_long_on_any_number_of_shards() {
    // 2,000 single reads, one after the other, with 0.4 ms of work between them, and pauses of 1.6 s.
    let job = recorded(vec![played((2_000, 1), 1, 0.4e-3, 1, 1.0)], 1.6);
    assert!((job.own_s() - (1.6 + 1_999.0 * 0.4e-3)).abs() < 1e-6, "{}", job.own_s());
    for shards in [1, 2, 8] {
        let told_s = predicted_s(&job, &costs(), 1.0, shards);
        assert!((told_s - job.job_s()).abs() < 0.02 * job.job_s(), "{told_s} of {}", job.job_s());
    }
}

#[test]
fn many_at_once_are_as_fast_on_more_shards_as_when_they_are_played_there() {
    // Requests of 40 keys over 24 connections, which saturate one shard, on servers that are 1.7 times as slow as the probe's.
    let of = |shards| played((6_000, 40), 24, 0.5e-3, shards, 1.7);
    let job = recorded(vec![of(1)], 0.3);
    let (shares, machine) = (Shares::even(), machine(1.0));
    let servers =
        Servers { shape: shape(1, 0), machine: &machine, shares: &shares, hits: &InMemory };
    let factor = job.cost_factor(&costs(), servers);
    assert!((1.5..1.9).contains(&factor), "{factor}");
    let again_s = predicted_s(&job, &costs(), factor, 1);
    assert!((again_s - job.job_s()).abs() < 0.01 * job.job_s(), "{again_s} of {}", job.job_s());
    // Two shards have half of the keys each, and a request of their own.
    let (told_s, played_s) = (predicted_s(&job, &costs(), factor, 2), of(2).time_s + 0.3);
    assert!((told_s - played_s).abs() < 0.2 * played_s, "{told_s} and {played_s}");
    assert!(told_s < 0.9 * job.job_s(), "{told_s} of {}", job.job_s());
}

#[test]
fn a_phase_without_requests_keeps_its_time() {
    let none = RecordedPhase { keys: 12, requests: 0, at_once: 0, waited_s: 0.0, time_s: 0.25 };
    let job = recorded(vec![none], 0.5);
    assert_eq!(predicted_s(&job, &costs(), 1.0, 4), 0.75);
}

#[test]
fn the_interval_is_that_of_the_servers_part() {
    let job = recorded(vec![played((500, 1), 1, 1e-3, 1, 1.0)], 0.0);
    let (shares, machine) = (Shares::even(), machine(1.0));
    let servers =
        Servers { shape: shape(1, 0), machine: &machine, shares: &shares, hits: &InMemory };
    let width = |errors: Errors| {
        let told = job.predict(&costs(), (None, &errors), servers);
        assert!(told.interval_s[0] >= job.own_s());
        told.interval_s[1] / told.interval_s[0]
    };
    let other = Errors { all: 0.5, ..Errors::default() };
    assert!(width(other) > 1.3 * width(Errors::default()), "{}", width(other));
}
