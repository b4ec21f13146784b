//! The calculated means beside mean-value analysis as it is printed, beside the simulator, and by what must hold.

use proptest::prelude::*;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::simulator::{Run, Step, simulate};
use super::*;

/// Time that follows an exponential distribution.
fn exponential(rng: &mut StdRng, mean_s: f64) -> f64 {
    -mean_s * (1.0 - rng.random::<f64>()).ln()
}

/// The network, played through: each service and each delay exponential or constant.
fn played(stations: &[Station], customers: u32, rounds: u64, random: Option<&mut StdRng>) -> Run {
    let mut random = random;
    let servers: Vec<f64> = stations
        .iter()
        .map(|station| match station {
            Station::Delay { .. } => 1.0,
            Station::Queue { servers, .. } => *servers,
        })
        .collect();
    simulate(&servers, customers, rounds, |_| {
        let mut time = |mean_s| match &mut random {
            Some(rng) => exponential(rng, mean_s),
            None => mean_s,
        };
        let step = |(at, station): (usize, &Station)| match station {
            Station::Delay { demand_s } => Step::Delay(time(*demand_s)),
            Station::Queue { demand_s, .. } => Step::Visit(at, time(*demand_s)),
        };
        stations.iter().enumerate().map(step).collect()
    })
}

/// Rounds a second, once as many rounds as customers have ended.
fn steady_s(run: &Run, customers: u32) -> f64 {
    let first = customers as usize;
    let rounds = (run.ended_s.len() - first) as f64;
    rounds / (run.elapsed_s - run.ended_s[first - 1])
}

/// The recursion of Reiser and Lavenberg for stations of one server, as it is printed: no station has marginals.
fn recursion(stations: &[Station], customers: u32) -> (f64, Vec<f64>) {
    let mut waiting = vec![0.0; stations.len()];
    let mut throughput = 0.0;
    for present in 1..=customers {
        let responses: Vec<f64> = stations
            .iter()
            .zip(&waiting)
            .map(|(station, waiting)| match station {
                Station::Delay { demand_s } => *demand_s,
                Station::Queue { demand_s, servers } => demand_s / servers * (1.0 + waiting),
            })
            .collect();
        throughput = f64::from(present) / responses.iter().sum::<f64>();
        waiting = responses.iter().map(|response| response * throughput).collect();
    }
    (throughput, waiting)
}

fn one_server() -> impl Strategy<Value = Station> {
    prop_oneof![
        (0.0..0.01).prop_map(|demand_s| Station::Delay { demand_s }),
        (0.000_001..0.01, 0.05..=1.0)
            .prop_map(|(demand_s, servers)| Station::Queue { demand_s, servers }),
    ]
}

fn any_station() -> impl Strategy<Value = Station> {
    prop_oneof![
        1 => (0.0..0.01).prop_map(|demand_s| Station::Delay { demand_s }),
        3 => (0.000_1..0.01, prop_oneof![Just(0.3), Just(1.0), Just(1.5), Just(2.0), Just(8.0)])
            .prop_map(|(demand_s, servers)| Station::Queue { demand_s, servers }),
    ]
}

fn queue(demand_s: f64, servers: f64) -> Station {
    Station::Queue { demand_s, servers }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn single_servers_are_as_the_recursion_says(
        mut stations in prop::collection::vec(one_server(), 0..7),
        customers in 1_u32..=512,
    ) {
        stations.push(queue(0.002, 1.0));
        let (throughput, waiting) = recursion(&stations, customers);
        let solution = solve(&stations, customers);
        prop_assert!((solution.throughput_s / throughput - 1.0).abs() < 1e-9);
        for (station, waiting) in solution.stations.iter().zip(waiting) {
            prop_assert!((station.customers - waiting).abs() < 1e-6 * f64::from(customers));
        }
    }

    #[test]
    fn customers_are_conserved_and_bounds_kept_up_to_saturation(
        mut stations in prop::collection::vec(any_station(), 0..9),
        customers in 1_u32..=512,
    ) {
        stations.push(queue(0.001, 2.0));
        let solution = solve(&stations, customers);
        let bounds = bounds(&stations, customers);
        let present: f64 = solution.stations.iter().map(|station| station.customers).sum();
        prop_assert!((present / f64::from(customers) - 1.0).abs() < 1e-9, "{present} of {customers}");
        prop_assert!(solution.throughput_s <= bounds.throughput_s * (1.0 + 1e-9));
        for (station, its) in solution.stations.iter().zip(&stations) {
            prop_assert!(station.utilisation <= 1.0 + 1e-9);
            prop_assert!(station.response_s >= its.alone_s() * (1.0 - 1e-9));
        }
        // More customers never get less.
        let more = solve(&stations, customers + 1).throughput_s;
        prop_assert!(more >= solution.throughput_s * (1.0 - 1e-9));
    }
}

#[test]
fn exponential_networks_are_played_through_as_calculated() {
    let mut rng = StdRng::seed_from_u64(28);
    let mut errors = Vec::new();
    for _ in 0..24 {
        let kinds = rng.random_range(1..5_usize);
        let mut stations = vec![Station::Delay { demand_s: rng.random::<f64>() * 0.01 }];
        for _ in 0..kinds {
            let servers = [0.3, 1.0, 1.0, 1.5, 2.0, 4.0][rng.random_range(0..6_usize)];
            stations.push(queue(0.000_2 + rng.random::<f64>() * 0.005, servers));
        }
        let customers = rng.random_range(1..25_u32);
        let run = played(&stations, customers, 40_000, Some(&mut rng));
        let solution = solve(&stations, customers);
        errors.push((steady_s(&run, customers) / solution.throughput_s - 1.0).abs());
        for (at, station) in solution.stations.iter().enumerate().skip(1) {
            let present = run.customers_s[at] / run.elapsed_s;
            let off = (present - station.customers).abs();
            assert!(off < 0.08 * f64::from(customers), "{station:?} has {present} of {customers}");
        }
    }
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    let worst = errors.iter().copied().fold(0.0, f64::max);
    assert!(mean < 0.006 && worst < 0.03, "mean {mean}, worst {worst}");
}

#[test]
fn two_servers_are_less_than_one_twice_as_fast_until_both_are_busy() {
    let of = |stations: &[Station], customers| solve(stations, customers).throughput_s;
    // One customer uses one of two servers.
    assert!((of(&[queue(0.01, 2.0)], 1) - 100.0).abs() < 1e-9);
    assert!((of(&[queue(0.01, 2.0)], 2) - 200.0).abs() < 1e-9);
    assert!((of(&[queue(0.01, 0.3)], 5) - 30.0).abs() < 1e-9);
}

#[test]
fn constant_service_attains_the_asymptotic_bounds() {
    let stations = [Station::Delay { demand_s: 0.004 }, queue(0.001, 1.0), queue(0.0005, 1.0)];
    for customers in [1, 3, 5, 6, 12, 64] {
        let run = played(&stations, customers, 5_000, None);
        let bound = bounds(&stations, customers).throughput_s;
        let of_bound = steady_s(&run, customers) / bound;
        assert!((of_bound - 1.0).abs() < 0.01, "{customers} customers: {of_bound}");
    }
}

#[test]
fn the_bottleneck_is_the_station_that_saturates_first() {
    let stations = [queue(0.004, 2.0), queue(0.001, 0.3), Station::Delay { demand_s: 1.0 }];
    let bounds = bounds(&stations, 8);
    assert_eq!(bounds.bottleneck, Some(1));
    assert!((bounds.knee - (0.004 + 0.001 / 0.3 + 1.0) / (0.001 / 0.3)).abs() < 1e-9);
}

#[test]
fn a_delay_alone_holds_all_customers() {
    let solution = solve(&[Station::Delay { demand_s: 0.5 }], 512);
    assert!((solution.throughput_s - 1024.0).abs() < 1e-6);
    assert_eq!(super::bounds(&[Station::Delay { demand_s: 0.5 }], 512).bottleneck, None);
}

#[test]
fn a_fork_ends_with_its_slowest_part() {
    let mut rng = StdRng::seed_from_u64(7);
    let run = simulate(&[1.0, 1.0], 1, 20_000, |_| {
        vec![Step::Fork(vec![
            (0, exponential(&mut rng, 1.0), 0.0),
            (1, exponential(&mut rng, 1.0), 0.0),
        ])]
    });
    // The mean of the greater of two exponential times is 1 + 1/2.
    assert!((run.elapsed_s / 20_000.0 - 1.5).abs() < 0.03, "{}", run.elapsed_s);
}

#[test]
fn a_small_demand_beside_a_long_delay_waits_little() {
    // 512 customers that think for a second, and a server that is busy for half of the time.
    let stations = [Station::Delay { demand_s: 1.0 }, queue(0.001, 1.0)];
    let solution = solve(&stations, 512);
    let busy = solution.stations[1].utilisation;
    assert!((busy - 0.511).abs() < 0.001, "{busy}");
    // Nearly an open queue: 1 / (1 - busy) services.
    assert!((solution.stations[1].response_s * (1.0 - busy) / 0.001 - 1.0).abs() < 0.01);
}
