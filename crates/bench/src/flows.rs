//! Benchmark of flows: the five socket strategies of Fig. 9, the stragglers of Fig. 3, and the two data centres of
//! Table 2 (Morphus, §4 and §5.6).
//!
//! The network is simulated ([`netsim`]): two levels of switches, links of 100 Mb/s, and a latency of 1
//! ms within a rack and of 2 ms between racks. As in the paper, replica sets of three share the hosts, and one member
//! of each exchanges data. These members and the data are drawn anew for each run. The floor is the time that the
//! busiest link alone needs for its traffic: where a strategy comes close to it, no other one can be better. The data
//! centres are a separate network ([`geo`]).
//!
//! A simulation of rates cannot show slow start, loss, or the cost of an additional connection. The window determines
//! by how much one socket is too few, so figures are given for several windows.

mod drawing;
mod exchange;
pub mod geo;
mod netsim;
mod outcome;
pub mod real;
mod strategy;

use std::path::{Path, PathBuf};
use std::time::Instant;

use netsim::{Tcp, Topology};
use serde::Serialize;

use crate::Header;
use crate::error::{Error, Result};
use imago_chart::save;

use exchange::Exchange;
use strategy::{BARS, Outcomes, ks};
pub use strategy::{Ratios, Spread, Strategy, Times};

/// Number of servers of the largest network.
pub const SERVERS_MAX: u32 = 300;

/// Seed of the drawn members and data; the n-th run adds n.
const SEED: u64 = 9;

/// The simulated networks: the name, and the number of hosts of each rack.
const NETWORKS: [(&str, &[usize]); 4] = [
    ("homogeneous", &[3, 3, 3]),
    ("heterogeneous", &[6, 2, 1]),
    ("30-servers", &[10; 3]),
    ("300-servers", &[30; 10]),
];

/// Number of members of a replica set.
const MEMBERS: usize = 3;

/// Number of flows above which an exchange is simulated in fewer runs and in coarser steps, because the time of a
/// simulation grows with the square of this number.
const FLOWS_MANY: usize = 1_000;
/// Maximum number of runs of such an exchange.
const RUNS_OF_MANY: u32 = 3;
/// Number of steps of such an exchange within the time that the busiest link needs.
const STEPS_OF_MANY: f64 = 1_000.0;

/// Size of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Number of runs, each with its own draw of members and data; figures are medians.
    pub runs: u32,
    /// Maximum number of servers; larger networks are left out.
    pub servers_max: u32,
}

/// The simulated figures; ratios and times are medians of the runs. The ratios at this level are
/// those of the homogeneous network with the first window; less is better.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// Capacity of each simulated link, in Mb/s.
    pub link_mbit_s: f64,
    /// Latency within a rack, one way, in ms.
    pub within_ms: f64,
    /// Latency between racks, one way, in ms.
    pub between_ms: f64,
    /// Data of the collection on each server that exchanges, in MB (1,000,000 bytes).
    pub data_mb_per_server: f64,
    /// Window of the ratios at this level, in KiB.
    pub window_kib: u32,
    /// The comparisons that the paper makes.
    #[serde(flatten)]
    pub ratios: Ratios,
    /// Real time of the simulations, in seconds.
    pub seconds: f64,
    /// Results of each network, window and strategy.
    pub strategies: Vec<Simulated>,
    /// Table 2: a row for each window, each choice of receivers and each choice of members.
    pub geo: Vec<geo::Row>,
    /// Files with Figs. 3 and 9 and Table 2, for the first window.
    pub pictures: Vec<PathBuf>,
}

/// A bar of Fig. 9a: a strategy in a network.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bar {
    /// Name of the network.
    pub topology: &'static str,
    /// Number of hosts of each rack.
    pub racks: Vec<usize>,
    /// Number of hosts in total.
    pub servers: usize,
    /// Number of hosts that exchange data: one member of each replica set.
    pub exchanging: usize,
    /// Number of new chunks.
    pub chunks: usize,
    /// Largest window of a connection, in KiB.
    pub window_kib: u32,
    /// Assignment of sockets to flows.
    pub strategy: Strategy,
    /// K, the parameter for the total number of sockets; absent for strategies without K.
    pub k: Option<usize>,
    /// Number of sockets in total.
    pub sockets: usize,
    /// Number of runs.
    pub runs: u32,
    /// Times of the strategy.
    #[serde(flatten)]
    pub times: Times,
}

/// A simulated bar; its times are simulated ones.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Simulated {
    /// The results of the bar.
    #[serde(flatten)]
    pub bar: Bar,
    /// Time within which connections that end after each other may count as ending together, in seconds; 0 is exact.
    pub resolution_s: f64,
}

/// Simulates every strategy in every network of at most `size.servers_max` servers, and the two data centres of Table
/// 2, with each of these windows (in KiB). Draws pictures into `folder` if one is given.
///
/// The function computes without a pause, but yields between simulations, so that it can be cancelled there.
///
/// # Errors
/// Returns an error if the size is invalid, or the pictures cannot be written.
#[crate::boxed]
pub async fn run(size: Size, windows_kib: &[u32], folder: Option<&Path>) -> Result<Report> {
    let servers_min = NETWORKS[0].1.iter().sum::<usize>();
    if size.runs == 0 || windows_kib.is_empty() || windows_kib.contains(&0) {
        return Err(Error::Size("flows need at least 1 run and 1 window of 1 KiB or more".into()));
    }
    if (size.servers_max as usize) < servers_min {
        return Err(Error::Size(format!("the smallest network has {servers_min} servers")));
    }
    let began = Instant::now();
    let mut strategies = Vec::new();
    let mut ratios = None;
    for (name, racks) in NETWORKS {
        let topology = Topology::papers(racks);
        if topology.hosts() > size.servers_max as usize {
            continue;
        }
        for window_kib in windows_kib {
            let network = Network { name, racks, topology: &topology, window_kib: *window_kib };
            let (outcomes, resolution_s) = network.simulate(size.runs).await;
            let simulated = |bar| Simulated { bar: network.bar(&outcomes, bar), resolution_s };
            strategies.extend((0..BARS.len()).map(simulated));
            ratios.get_or_insert_with(|| outcomes.papers_ratios());
        }
    }
    let mut geo = Vec::new();
    for window_kib in windows_kib {
        geo.extend(geo::run(size.runs, *window_kib).await);
    }
    let pictures = save(&drawing::pictures(&strategies, &geo, windows_kib[0]), folder)?;
    let topology = Topology::papers(NETWORKS[0].1);
    Ok(Report {
        header: Header::of("flows", size),
        link_mbit_s: topology.capacities()[0] * 8.0 / 1e6,
        within_ms: f64::from(topology.latency_us(0, 1)) / 1e3,
        between_ms: f64::from(topology.latency_us(0, servers_min - 1)) / 1e3,
        data_mb_per_server: exchange::BYTES_PER_SERVER as f64 / 1e6,
        window_kib: windows_kib[0],
        ratios: ratios.expect("the smallest network is always simulated"),
        seconds: began.elapsed().as_secs_f64(),
        strategies,
        geo,
        pictures,
    })
}

/// A network with one of the windows.
struct Network<'a> {
    name: &'static str,
    racks: &'a [usize],
    topology: &'a Topology,
    window_kib: u32,
}

impl Network<'_> {
    fn exchanging(&self) -> usize {
        self.topology.hosts() / MEMBERS
    }

    fn flows(&self) -> usize {
        self.exchanging() * (self.exchanging() - 1)
    }

    /// Simulates all strategies. Returns the outcomes, and the resolution in seconds.
    async fn simulate(&self, runs: u32) -> (Outcomes, f64) {
        let ks = ks(self.flows());
        let is_many = self.flows() > FLOWS_MANY;
        let tcp = tcp(self.window_kib);
        let (mut outcomes, mut resolution_s) = (Outcomes::default(), 0.0);
        let runs = if is_many { runs.min(RUNS_OF_MANY) } else { runs };
        for run in 0..runs {
            let (bytes, seed) = (exchange::BYTES_PER_SERVER, SEED + u64::from(run));
            let exchange = Exchange::draw(self.topology, self.exchanging(), bytes, seed);
            let latencies = exchange.latencies(|from, to| self.topology.latency_us(from, to));
            if is_many {
                resolution_s = exchange.floor_s() / STEPS_OF_MANY;
            }
            for (bar, (strategy, _)) in BARS.iter().enumerate() {
                tokio::task::yield_now().await;
                let plan = exchange.plan(*strategy, ks[bar].unwrap_or(0), &latencies);
                outcomes.push(bar, exchange.simulate(&plan, tcp, resolution_s));
            }
        }
        tracing::info!(network = self.name, window_kib = self.window_kib, "simulated");
        (outcomes, resolution_s)
    }

    fn bar(&self, outcomes: &Outcomes, bar: usize) -> Bar {
        let runs = outcomes.of_bar(bar);
        Bar {
            topology: self.name,
            racks: self.racks.to_vec(),
            servers: self.topology.hosts(),
            exchanging: self.exchanging(),
            chunks: runs[0].chunk_s.len(),
            window_kib: self.window_kib,
            strategy: BARS[bar].0,
            k: ks(self.flows())[bar],
            sockets: runs[0].sockets,
            runs: runs.len() as u32,
            times: outcomes.times(bar),
        }
    }
}

/// Returns the parameters of TCP with a largest window of this size.
fn tcp(window_kib: u32) -> Tcp {
    Tcp { window_bytes: f64::from(window_kib) * 1_024.0, ..Tcp::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn simulated() -> Report {
        run(Size { runs: 6, servers_max: 9 }, &[16], None).await.unwrap()
    }

    #[tokio::test]
    async fn where_a_window_holds_one_socket_back_strategies_are_ordered_as_in_figure_9() {
        let report = simulated().await;
        let Ratios { ratio_to_fixed, ratio_to_chunk_based, ratio_to_orchestra } = report.ratios;
        let ratios = [ratio_to_fixed, ratio_to_chunk_based, ratio_to_orchestra];
        assert!(ratios.iter().all(|ratio| *ratio < 1.0), "{ratios:?}");
    }

    #[tokio::test]
    async fn every_strategy_needs_at_least_what_the_busiest_link_needs() {
        for one in simulated().await.strategies {
            assert!(one.bar.times.spread.ratio_to_floor.min > 0.999_999, "{one:?}");
        }
    }

    #[tokio::test]
    async fn chunks_are_complete_one_after_another_and_the_last_one_is_the_end() {
        for one in simulated().await.strategies {
            let tenths = &one.bar.times.chunk_tenths_s;
            assert!(tenths.is_sorted() && tenths.len() == 11, "{one:?}");
            assert!(
                (tenths[10] - one.bar.times.makespan_s).abs() < 1e-9 * one.bar.times.makespan_s,
                "{one:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_network_that_is_too_large_is_left_out() {
        let report = simulated().await;
        let found: std::collections::BTreeSet<_> =
            report.strategies.iter().map(|one| one.bar.topology).collect();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["heterogeneous", "homogeneous"]);
    }
}
