//! Predictions beside the simulator: random shapes, shares, costs, workers and lengths of phases.

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::super::simulator::{SimulatedPhase, simulate_job};
use super::super::{
    CacheAt, Cost, Costs, Job, Machine, Prediction, Reads, Shape, Shares, Workload, predict,
};
use super::{Constant, costs, job, machine};

/// One case.
#[derive(Clone, Debug)]
struct Case {
    keys: u64,
    ratio: f64,
    page_ratio: f64,
    percent: Vec<f64>,
    costs: Costs,
    machine: Machine,
    job: Job,
    shape: Shape,
    seed: u64,
}

impl Case {
    fn run(&self) -> (Prediction, Vec<SimulatedPhase>) {
        let hits = Constant { keys: self.keys, ratio: self.ratio, page_ratio: self.page_ratio };
        let phases = [self.keys; 2];
        let workload = Workload { phases: &phases, hits: &hits };
        let shares = Shares::even().with_percent(&self.percent).expect("shares");
        let of = shares.of(self.shape.shards);
        let prediction =
            predict(workload, &self.costs, &self.machine, &self.job, self.shape, &shares);
        let mut rng = StdRng::seed_from_u64(self.seed);
        let played = simulate_job(
            workload,
            &self.costs,
            &self.machine,
            &self.job,
            self.shape,
            &of,
            &mut rng,
        );
        (prediction, played)
    }

    /// Predicted time over the played one.
    fn ratio(&self) -> f64 {
        let (prediction, played) = self.run();
        prediction.job_s / played.iter().map(|phase| phase.time_s).sum::<f64>()
    }
}

/// No pages are read from disk, since a storage cache has all.
const IN_MEMORY: std::ops::Range<f64> = 0.0..f64::MIN_POSITIVE;

/// The shares of the paper's clusters, and even ones.
fn percent() -> impl Strategy<Value = Vec<f64>> {
    prop_oneof![
        Just(vec![100.0]),
        Just(vec![50.0, 50.0]),
        Just(vec![44.0, 56.0]),
        Just(vec![25.0; 4]),
        Just(vec![14.0, 14.0, 39.0, 33.0]),
        Just(vec![12.5; 8]),
    ]
}

fn cost(request_us: f64, key_us: f64) -> impl Strategy<Value = Cost> {
    let scaled = move |(request, key): (f64, f64)| Cost {
        request_s: request * request_us * 1e-6,
        key_s: key * key_us * 1e-6,
    };
    (0.3..2.0, 0.3..2.0).prop_map(scaled)
}

fn any_costs() -> impl Strategy<Value = Costs> {
    let requests =
        (cost(30.0, 1.2), cost(150.0, 2.5), cost(15.0, 0.8), cost(180.0, 3.0), cost(120.0, 9.0));
    (requests, 20e-6..2e-3).prop_map(|((client, find, cache, router, shard), trip_s)| Costs {
        client,
        client_find: find,
        cache_get: cache,
        cache_set: cache,
        router,
        shard,
        round_trip_cache_s: trip_s * 0.5,
        round_trip_router_s: trip_s,
        round_trip_shard_s: trip_s,
        ..costs()
    })
}

/// Cases with this variation of the service; `pages` is the share of the keys for which a page is read from disk.
fn cases(variation: f64, pages: std::ops::Range<f64>) -> impl Strategy<Value = Case> {
    let cluster = (percent(), 1_u32..=3, prop_oneof![Just(0.3), Just(0.5), Just(1.0), Just(2.0)]);
    let cache = prop_oneof![
        Just((0, 0.0, CacheAt::Worker)),
        (0.0..0.98).prop_map(|ratio| (1_u64 << 27, ratio, CacheAt::Worker)),
        (0.0..0.98).prop_map(|ratio| (1_u64 << 27, ratio, CacheAt::Router)),
    ];
    let reads = prop_oneof![Just(Reads::Primary), Just(Reads::Nearest)];
    let load = (1_u32..=64, prop_oneof![Just(20_u32), Just(100), Just(500)], 1_u64..400, 1_u64..20);
    (cluster, cache, (reads, pages), load, any_costs(), any::<u64>()).prop_map(
        move |(cluster, cache, of, (workers, batch, batches, less), costs, seed)| {
            let (reads, page_ratio) = of;
            let (percent, replicas, cores) = cluster;
            let (cache_bytes, ratio, cache_at) = cache;
            let shards = percent.len() as u32;
            Case {
                keys: batches * u64::from(batch) - less.min(u64::from(batch) - 1),
                ratio,
                page_ratio,
                percent,
                costs,
                machine: machine(cores),
                job: Job { workers, batch, variation },
                shape: Shape {
                    shards,
                    replicas,
                    storage_bytes: None,
                    cache_bytes,
                    cache_at,
                    reads,
                },
                seed,
            }
        },
    )
}

fn sampled(cases: impl Strategy<Value = Case>, number: usize) -> Vec<Case> {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut draw = || cases.new_tree(&mut runner).expect("a case").current();
    (0..number).map(|_| draw()).collect()
}

/// Errors of many cases: median, the least that nine of ten stay within, worst with its case.
fn errors(cases: &[Case]) -> (f64, f64, f64, String) {
    let mut all: Vec<(f64, &Case)> =
        cases.iter().map(|case| ((case.ratio() - 1.0).abs(), case)).collect();
    all.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (worst, case) = all[all.len() - 1];
    (all[all.len() / 2].0, all[all.len() * 9 / 10].0, worst, format!("{case:?}"))
}

#[test]
fn times_of_constant_service_are_as_played() {
    let (median, ninth, worst, case) = errors(&sampled(cases(0.0, IN_MEMORY), 400));
    assert!(median < 0.01 && ninth < 0.06 && worst < 0.2, "{median} {ninth} {worst}: {case}");
}

#[test]
fn times_of_irregular_service_are_as_played() {
    let (median, ninth, worst, case) = errors(&sampled(cases(0.2, IN_MEMORY), 300));
    assert!(median < 0.025 && ninth < 0.08 && worst < 0.25, "{median} {ninth} {worst}: {case}");
}

#[test]
fn times_of_exponential_service_are_as_played() {
    let (median, ninth, worst, case) = errors(&sampled(cases(1.0, IN_MEMORY), 300));
    assert!(median < 0.04 && ninth < 0.13 && worst < 0.45, "{median} {ninth} {worst}: {case}");
}

#[test]
fn times_with_pages_from_disk_are_as_played() {
    let (median, ninth, worst, case) = errors(&sampled(cases(0.2, 0.01..1.0), 300));
    assert!(median < 0.035 && ninth < 0.11 && worst < 0.35, "{median} {ninth} {worst}: {case}");
}

#[test]
fn processor_time_is_as_played() {
    for case in sampled(prop_oneof![cases(0.0, IN_MEMORY), cases(0.0, 0.01..1.0)], 60) {
        let (prediction, played) = case.run();
        let played: f64 = played.iter().flat_map(|phase| &phase.members_s).flatten().sum();
        let shards =
            |at: &&super::super::AtStation| matches!(at.station, super::super::Station::Shard(_));
        let predicted: f64 = prediction
            .phases
            .iter()
            .flat_map(|phase| phase.stations.iter().filter(shards))
            .map(|at| at.processor_s)
            .sum();
        let off = (predicted - played).abs();
        assert!(off <= 0.06 * played + 0.002, "{predicted} beside {played}: {case:?}");
    }
}

#[test]
fn a_batch_waits_for_the_largest_of_its_parts() {
    // One worker, and nothing but shards: a hundred keys over four of them, of which the largest part counts.
    let zero = Cost::default();
    let costs = Costs {
        client: zero,
        client_find: zero,
        router: zero,
        shard: Cost { request_s: 0.0, key_s: 1e-3 },
        round_trip_router_s: 0.0,
        round_trip_shard_s: 0.0,
        ..costs()
    };
    let case = Case {
        keys: 100_000,
        ratio: 0.0,
        page_ratio: 0.0,
        percent: vec![25.0; 4],
        costs,
        machine: machine(1.0),
        job: Job { workers: 1, ..job() },
        shape: super::shape(4, 0),
        seed: 3,
    };
    let (prediction, _) = case.run();
    let a_batch_ms = prediction.job_s / 2_000.0 * 1e3;
    // 25 + 1.03 × √25 keys, the mean of the greatest of four normal numbers.
    assert!((a_batch_ms - 30.1).abs() < 0.3, "{a_batch_ms}");
    assert!((case.ratio() - 1.0).abs() < 0.01, "{}", case.ratio());
}
