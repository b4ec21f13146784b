//! Flows: Fig. 9's five strategies of sockets, Fig. 3's stragglers, and Table 2's two data centres
//! (Morphus, §4 and §5.6).
//!
//! The network is simulated ([`imago_plan::netsim`]): two levels of switches, links of 100 Mb/s, 1 ms
//! within a rack and 2 ms between racks. As in the paper, replica sets of three share the hosts, and
//! one member of each exchanges data; which one is drawn anew for each run, as is the data. The
//! floor is what the busiest link alone needs for what has to go over it: where a strategy comes
//! near to it, no other can be better. The data centres are a network of their own ([`geo`]).
//!
//! A simulation of rates cannot show slow start, loss, or the cost of a further connection. The window
//! decides by how much one socket is too few, so figures are given for several.

mod drawing;
mod exchange;
pub mod geo;
mod outcome;
pub mod real;
mod strategy;

use std::path::{Path, PathBuf};
use std::time::Instant;

use imago_plan::netsim::{Tcp, Topology};
use serde::Serialize;

use crate::Header;
use crate::error::{Error, Result};
use crate::picture::save;

use exchange::Exchange;
use strategy::{BARS, Outcomes, ks};
pub use strategy::{Ratios, Spread, Strategy, Times};

/// The most servers of all networks.
pub const SERVERS_MAX: u32 = 300;

/// Of the drawn members and data; the n-th run adds n.
const SEED: u64 = 9;

/// The simulated networks: hosts by rack.
const NETWORKS: [(&str, &[usize]); 4] = [
    ("homogeneous", &[3, 3, 3]),
    ("heterogeneous", &[6, 2, 1]),
    ("30-servers", &[10; 3]),
    ("300-servers", &[30; 10]),
];

/// Members of a replica set.
const MEMBERS: usize = 3;

/// Exchanges of so many flows are simulated in fewer runs and in coarser steps, since the time for
/// it grows with the square of them.
const FLOWS_MANY: usize = 1_000;
/// The runs of those.
const RUNS_OF_MANY: u32 = 3;
/// Number of steps into which those are cut, of the time that the busiest link needs.
const STEPS_OF_MANY: f64 = 1_000.0;

/// Size of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Runs, each with its own draw of members and data; figures are medians.
    pub runs: u32,
    /// Networks with more servers are left out.
    pub servers_max: u32,
}

/// The simulated figures; ratios and times are medians of the runs. The ratios at this level are
/// those of the homogeneous network with the first window; less is better.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// The capacity of each simulated link.
    pub link_mbit_s: f64,
    /// Latency within a rack, one way.
    pub within_ms: f64,
    /// Latency between racks, one way.
    pub between_ms: f64,
    /// Data of the collection on each server that exchanges, in MB (1,000,000 bytes).
    pub data_mb_per_server: f64,
    /// The window of the ratios at this level.
    pub window_kib: u32,
    /// Those of the paper.
    #[serde(flatten)]
    pub ratios: Ratios,
    /// Real time of the simulations.
    pub seconds: f64,
    /// Every network, window and strategy.
    pub strategies: Vec<Simulated>,
    /// Table 2: every window, way of receiving and way of choosing members.
    pub geo: Vec<geo::Row>,
    /// The files with Figs. 3 and 9 and Table 2, with the first window.
    pub pictures: Vec<PathBuf>,
}

/// A bar of Fig. 9a: a strategy in a network.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bar {
    /// The network's name.
    pub topology: &'static str,
    /// Hosts by rack.
    pub racks: Vec<usize>,
    /// Hosts in all.
    pub servers: usize,
    /// Those that exchange data: a member of each replica set.
    pub exchanging: usize,
    /// New chunks.
    pub chunks: usize,
    /// The largest window of a connection.
    pub window_kib: u32,
    /// Assignment of sockets to flows.
    pub strategy: Strategy,
    /// K, the number of sockets in all; nothing for strategies that have no K.
    pub k: Option<usize>,
    /// Sockets in all.
    pub sockets: usize,
    /// Runs.
    pub runs: u32,
    /// Times of the strategy.
    #[serde(flatten)]
    pub times: Times,
}

/// A simulated bar; its seconds are simulated ones.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Simulated {
    /// Its outcome.
    #[serde(flatten)]
    pub bar: Bar,
    /// Connections that end within so long a time of each other may count as ending together; 0 is
    /// exact.
    pub resolution_s: f64,
}

/// Simulates every strategy in every network of at most `size.servers_max` servers, and Table 2's two
/// data centres, with each of these windows; and draws into a folder if one is given.
///
/// It computes without a pause, but lets go between simulations, so that it can be dropped there.
///
/// # Errors
/// Returns an error if the size makes no sense, or the pictures cannot be written.
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

    /// The outcome, and the resolution.
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

/// TCP with such a window.
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
