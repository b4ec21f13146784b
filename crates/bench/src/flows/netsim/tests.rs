//! Runs that can be computed by hand, what every run conserves, and the strategies of Fig. 9.

use super::*;
use imago_plan::reshard::flow::{self, FlowPlan, Latencies, Sharing};
use imago_plan::reshard::placement::{Shares, Weights, balanced};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const PLAIN: Tcp = Tcp { window_bytes: f64::INFINITY, rtt_bias: 0.0 };

fn connection(from: usize, to: usize, parts_bytes: &[u64]) -> Connection {
    Connection { from, to, parts_bytes: parts_bytes.to_vec() }
}

/// Two racks of two hosts, links of 100 bytes a second.
fn small() -> Topology {
    Topology::tree(&[2, 2], 100.0, 1_000, 2_000)
}

fn near(value: f64, expected: f64) {
    assert!((value - expected).abs() < 1e-9 * expected.max(1.0), "{value}, not {expected}");
}

#[test]
fn two_on_one_link_share_it_until_one_is_done() {
    let connections = [connection(0, 1, &[100]), connection(0, 1, &[300])];
    let run = run(&small(), PLAIN, &connections, 0.0);
    near(run.arrived_s[0][0], 2.0);
    near(run.arrived_s[1][0], 4.0);
    near(run.makespan_s, 4.0);
}

#[test]
fn the_link_between_racks_is_shared_by_all_that_cross() {
    // Hosts 0 and 1 both send to the other rack: 50 bytes a second each. The one within the rack
    // gets what host 0 has left.
    let connections =
        [connection(0, 2, &[100]), connection(1, 3, &[100]), connection(0, 1, &[100])];
    let run = run(&small(), PLAIN, &connections, 0.0);
    near(run.arrived_s[0][0], 2.0);
    near(run.arrived_s[1][0], 2.0);
    near(run.arrived_s[2][0], 2.0);
}

#[test]
fn parts_arrive_one_after_another_also_while_the_rate_changes() {
    let connections = [connection(0, 1, &[50, 0, 100, 50]), connection(0, 1, &[100])];
    let run = run(&small(), PLAIN, &connections, 0.0);
    for (arrived, expected) in run.arrived_s[0].iter().zip([1.0, 1.0, 2.5, 3.0]) {
        near(*arrived, expected);
    }
}

#[test]
fn a_window_bounds_a_connection_on_an_idle_link() {
    let tcp = Tcp { window_bytes: 0.1, ..PLAIN };
    // A tenth of a byte each 2 ms within the rack, each 4 ms between racks.
    let connections = [connection(0, 1, &[50]), connection(3, 1, &[50])];
    let run = run(&small(), tcp, &connections, 0.0);
    near(run.arrived_s[0][0], 1.0);
    near(run.arrived_s[1][0], 2.0);
}

#[test]
fn the_longer_round_trip_gets_the_smaller_share() {
    let tcp = Tcp { rtt_bias: 1.0, ..PLAIN };
    // Both end at host 1, which gets 2 to 1 by their round trips.
    let connections = [connection(0, 1, &[200]), connection(2, 1, &[200])];
    let run = run(&small(), tcp, &connections, 0.0);
    near(run.arrived_s[0][0], 3.0);
    near(run.arrived_s[1][0], 4.0);
}

#[test]
fn nothing_to_send_takes_no_time() {
    near(run(&small(), PLAIN, &[], 0.0).makespan_s, 0.0);
    let run = run(&small(), PLAIN, &[connection(0, 1, &[0, 0]), connection(0, 1, &[])], 0.0);
    assert_eq!(run.arrived_s, [vec![0.0, 0.0], vec![]]);
}

fn some_connections() -> impl Strategy<Value = Vec<Connection>> {
    let one = (0..9_usize, 1..9_usize, prop::collection::vec(0..5_000_000_u64, 0..4));
    let make = |(from, hop, parts_bytes): (usize, usize, Vec<u64>)| Connection {
        from,
        to: (from + hop) % 9,
        parts_bytes,
    };
    prop::collection::vec(one.prop_map(make), 0..25)
}

proptest! {
    #[test]
    fn no_link_is_faster_than_it_is_and_some_link_or_window_is_busy(
        connections in some_connections(), heterogeneous: bool
    ) {
        let topology = Topology::papers(if heterogeneous { &[6, 2, 1] } else { &[3, 3, 3] });
        let run = run(&topology, Tcp::default(), &connections, 0.0);
        let bytes = |c: &Connection| c.parts_bytes.iter().sum::<u64>() as f64;
        let mut carried = vec![0.0; topology.capacities().len()];
        for connection in &connections {
            for link in topology.path(connection.from, connection.to) {
                carried[link] += bytes(connection);
            }
        }
        for ((carried, said), capacity) in
            carried.iter().zip(&run.carried_bytes).zip(topology.capacities())
        {
            prop_assert!((carried - said).abs() < 1.0);
            prop_assert!(run.makespan_s * capacity > carried - 1.0);
        }
        // At any time the connection that ends last is bounded by something.
        let slowest = topology.capacities()[0].min(Tcp::default().window_bytes / 0.004);
        prop_assert!(run.makespan_s <= connections.iter().map(bytes).sum::<f64>() / slowest + 1e-6);
        for (arrived, connection) in run.arrived_s.iter().zip(&connections) {
            prop_assert_eq!(arrived.len(), connection.parts_bytes.len());
            prop_assert!(arrived.is_sorted());
            prop_assert!(arrived.iter().all(|at| *at <= run.makespan_s + 1e-9));
        }
    }

    #[test]
    fn a_resolution_changes_times_by_little(connections in some_connections()) {
        let topology = Topology::papers(&[3, 3, 3]);
        let exact = run(&topology, Tcp::default(), &connections, 0.0);
        let coarse = run(&topology, Tcp::default(), &connections, 0.001);
        // At most a resolution is lost for each connection that ends.
        let lost_s = 0.001 * connections.len() as f64;
        prop_assert!((exact.makespan_s - coarse.makespan_s).abs() <= lost_s + 1e-9);
    }

    #[test]
    fn a_run_is_repeatable(connections in some_connections()) {
        let topology = Topology::papers(&[3, 3, 3]);
        let once = run(&topology, Tcp::default(), &connections, 0.0);
        prop_assert_eq!(once, run(&topology, Tcp::default(), &connections, 0.0));
    }
}

const KIB: f64 = 1_024.0;

/// The mean makespan of fixed, chunk-based, Orchestra and WFS, over some collections of 500 MB whose
/// new keys do not follow the old ones, moved between `hosts`.
fn makespans_s(racks: &[usize], hosts: &[usize], k: u32, window_bytes: f64) -> [f64; 4] {
    const RUNS: u64 = 10;
    let topology = Topology::papers(racks);
    let latencies =
        Latencies::new(hosts.len(), |from, to| topology.latency_us(hosts[from], hosts[to]));
    let sharings = [
        Sharing::Fixed,
        Sharing::ChunkBased,
        Sharing::Orchestra { sockets: k },
        Sharing::Wfs { sockets: k, latencies: &latencies },
    ];
    let tcp = Tcp { window_bytes, ..Tcp::default() };
    let plans: Vec<_> = (0..RUNS).map(|seed| uncorrelated(hosts.len(), seed)).collect();
    sharings.map(|sharing| {
        let plans = plans.iter().map(|slices| flow::plan(slices, sharing));
        plans.map(|plan| makespan_s(&topology, hosts, &plan, tcp)).sum::<f64>() / RUNS as f64
    })
}

fn uncorrelated(servers: usize, seed: u64) -> Vec<flow::Slice> {
    let chunks = 4 * servers as u64;
    let mean_bytes = 500_000_000 / chunks / servers as u64;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut weights = Weights::new(servers).unwrap();
    for _ in 0..chunks {
        let bytes = (0..servers).map(|_| rng.random_range(mean_bytes / 2..mean_bytes * 3 / 2));
        weights.push(bytes.enumerate()).unwrap();
    }
    let placement = balanced(&weights, &Shares::equal(servers).unwrap()).unwrap();
    flow::slices(&weights, &placement.server_of)
}

fn makespan_s(topology: &Topology, hosts: &[usize], plan: &FlowPlan, tcp: Tcp) -> f64 {
    let connection = |socket: &flow::Socket| Connection {
        from: hosts[socket.from],
        to: hosts[socket.to],
        parts_bytes: socket.slices.iter().map(|slice| slice.amount).collect(),
    };
    let connections: Vec<Connection> = plan.sockets.iter().map(connection).collect();
    run(topology, tcp, &connections, 0.0).makespan_s
}

/// One secondary of each of three replica sets, two of them in one rack: the setting in which the
/// four strategies come out in the order of Fig. 9, homogeneous or not.
#[test]
fn strategies_are_ordered_as_in_figure_9_where_latencies_differ() {
    for racks in [&[3, 3, 3][..], &[6, 2, 1]] {
        for window_kib in [16.0, 32.0] {
            let hosts = [0, 1, if racks[0] == 3 { 3 } else { 6 }];
            let of_21 = makespans_s(racks, &hosts, 21, window_kib * KIB);
            let of_28 = makespans_s(racks, &hosts, 28, window_kib * KIB);
            let [fixed, chunk_based, orchestra, wfs] = of_21;
            assert!(fixed > chunk_based && chunk_based > orchestra, "{of_21:?}");
            assert!(orchestra > 1.05 * wfs, "{of_21:?}");
            assert!(wfs > of_28[3], "{of_21:?}, {of_28:?}");
        }
    }
}

/// If a link is full by every allocation of sockets, no allocation changes the time at which all
/// data has passed it.
#[test]
fn no_strategy_helps_where_the_links_of_racks_are_full() {
    for racks in [&[3, 3, 3][..], &[6, 2, 1]] {
        let hosts: Vec<usize> = (0..9).collect();
        let makespans = makespans_s(racks, &hosts, 216, 64.0 * KIB);
        let (least, most) =
            makespans.iter().fold((f64::MAX, 0.0_f64), |(least, most), makespan| {
                (least.min(*makespan), most.max(*makespan))
            });
        assert!(most < 1.01 * least, "{makespans:?}");
    }
}
