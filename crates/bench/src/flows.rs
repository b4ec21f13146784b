//! Flows: Fig. 9's five strategies of sockets, and Fig. 3's stragglers (Morphus, §4.1 and §5.6).
//!
//! The network is simulated ([`imago_plan::netsim`]): two levels of switches, links of 100 Mb/s, 1 ms
//! within a rack and 2 ms between racks. As in the paper, replica sets of three share the hosts, and
//! one member of each exchanges data; which one is drawn anew for each run, as is the data. The
//! floor is what the busiest link alone needs for what has to go over it: where a strategy comes
//! near to it, no other can be better.
//!
//! What a simulation of rates cannot show: slow start, loss, and what a further connection costs.
//! The window decides by how much one socket is too few, so figures are given for several.

mod exchange;

use std::time::Instant;

use imago_plan::netsim::{Tcp, Topology};
use serde::Serialize;

use crate::Machine;
use crate::error::{Error, Result};
use crate::statistics::Figure;

use exchange::{Exchange, Outcome};

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
/// Into how many steps those are cut, of the time that the busiest link needs.
const STEPS_OF_MANY: f64 = 1_000.0;

/// How sockets are given to flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// One for each flow.
    Fixed,
    /// One for each new chunk and source.
    ChunkBased,
    /// By amount.
    Orchestra,
    /// By amount × latency.
    Wfs,
}

/// The bars of Fig. 9a: a strategy, and K for the six flows between three servers. With more flows,
/// K grows as they do.
const BARS: [(Strategy, Option<usize>); 5] = [
    (Strategy::Fixed, None),
    (Strategy::ChunkBased, None),
    (Strategy::Orchestra, Some(21)),
    (Strategy::Wfs, Some(21)),
    (Strategy::Wfs, Some(28)),
];
const FIXED: usize = 0;
const CHUNK_BASED: usize = 1;
const ORCHESTRA_21: usize = 2;
const WFS_21: usize = 3;
const WFS_28: usize = 4;
const PAPERS_FLOWS: usize = 6;

/// How large the benchmark is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// How often members and data are drawn; figures are medians.
    pub runs: u32,
    /// Networks with more servers are left out.
    pub servers_max: u32,
}

/// What was simulated; ratios and times are medians of the runs. The ratios at this level are those
/// of the homogeneous network with the first window; less is better.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// `flows`.
    pub benchmark: &'static str,
    /// How large it was.
    #[serde(flatten)]
    pub size: Size,
    /// Where it ran.
    #[serde(flatten)]
    pub machine: Machine,
    /// The capacity of each simulated link.
    pub link_mbit_s: f64,
    /// Latency within a rack, one way.
    pub within_ms: f64,
    /// Latency between racks, one way.
    pub between_ms: f64,
    /// What each server that exchanges has of the collection, in MB (1,000,000 bytes).
    pub data_mb_per_server: f64,
    /// The window of the ratios at this level.
    pub window_kib: u32,
    /// Weighted fair sharing with K = 28, of one socket for each flow.
    pub ratio_to_fixed: f64,
    /// Weighted fair sharing with K = 28, of the chunk-based strategy.
    pub ratio_to_chunk_based: f64,
    /// Weighted fair sharing with K = 21, of Orchestra with as many sockets.
    pub ratio_to_orchestra: f64,
    /// What the simulations took of real time.
    pub seconds: f64,
    /// Every network, window and strategy.
    pub strategies: Vec<Simulated>,
}

/// A strategy in a network.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Simulated {
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
    /// How sockets are given to flows.
    pub strategy: Strategy,
    /// K, how many in all; nothing for strategies that have no K.
    pub k: Option<usize>,
    /// How many there are.
    pub sockets: usize,
    /// How often it was simulated.
    pub runs: u32,
    /// Connections that end within so long a time of each other may count as ending together; 0 is
    /// exact.
    pub resolution_s: f64,
    /// Until everything has arrived, in simulated seconds.
    pub makespan_s: f64,
    /// That, of what one socket for each flow needs.
    pub ratio_to_fixed: f64,
    /// That, of what the busiest link needs for what goes over it.
    pub ratio_to_floor: f64,
    /// Until half of the new chunks are complete, in simulated seconds.
    pub chunk_median_s: f64,
    /// The makespan, of that: 1 if all chunks end together, more the longer the tail is.
    pub last_to_median: f64,
    /// Until the first chunk is complete, then a tenth of them, two tenths, until all: Fig. 3 and
    /// Fig. 9b, in simulated seconds.
    pub chunk_tenths_s: Vec<f64>,
    /// How far the runs lie apart.
    pub spread: Spread,
}

/// The figures with their extremes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// See [`Simulated::makespan_s`].
    pub makespan_s: Figure,
    /// See [`Simulated::ratio_to_fixed`].
    pub ratio_to_fixed: Figure,
    /// See [`Simulated::ratio_to_floor`].
    pub ratio_to_floor: Figure,
    /// See [`Simulated::chunk_median_s`].
    pub chunk_median_s: Figure,
    /// See [`Simulated::last_to_median`].
    pub last_to_median: Figure,
}

/// Simulates every strategy in every network of at most `size.servers_max` servers, with each of
/// these windows.
///
/// It computes without a pause, but lets go between simulations, so that it can be dropped there.
///
/// # Errors
/// When the size makes no sense.
pub async fn run(size: Size, windows_kib: &[u32]) -> Result<Report> {
    let servers_min = NETWORKS[0].1.iter().sum::<usize>();
    if size.runs == 0 || windows_kib.is_empty() || windows_kib.contains(&0) {
        return Err(Error::Size("flows need at least 1 run and 1 window of 1 KiB or more".into()));
    }
    if (size.servers_max as usize) < servers_min {
        return Err(Error::Size(format!("the smallest network has {servers_min} servers")));
    }
    let began = Instant::now();
    let mut strategies = Vec::new();
    let mut first = None;
    for (name, racks) in NETWORKS {
        let topology = Topology::papers(racks);
        if topology.hosts() > size.servers_max as usize {
            continue;
        }
        for window_kib in windows_kib {
            let network = Network { name, racks, topology: &topology, window_kib: *window_kib };
            let simulated = Box::pin(network.simulate(size.runs)).await;
            strategies.extend(network.reports(&simulated));
            first.get_or_insert(simulated);
        }
    }
    let first = first.expect("the smallest network is always simulated");
    let median = |bar, of| Figure::of(first.ratios(bar, of)).median;
    let topology = Topology::papers(NETWORKS[0].1);
    Ok(Report {
        benchmark: "flows",
        size,
        machine: Machine::here(),
        link_mbit_s: topology.capacities()[0] * 8.0 / 1e6,
        within_ms: f64::from(topology.latency_us(0, 1)) / 1e3,
        between_ms: f64::from(topology.latency_us(0, servers_min - 1)) / 1e3,
        data_mb_per_server: exchange::BYTES_PER_SERVER as f64 / 1e6,
        window_kib: windows_kib[0],
        ratio_to_fixed: median(WFS_28, FIXED),
        ratio_to_chunk_based: median(WFS_28, CHUNK_BASED),
        ratio_to_orchestra: median(WFS_21, ORCHESTRA_21),
        seconds: began.elapsed().as_secs_f64(),
        strategies,
    })
}

/// A network with one of the windows.
struct Network<'a> {
    name: &'static str,
    racks: &'a [usize],
    topology: &'a Topology,
    window_kib: u32,
}

/// What came of a network, by bar and run.
struct Outcomes {
    of_bar: [Vec<Outcome>; BARS.len()],
    ks: [Option<usize>; BARS.len()],
}

impl Outcomes {
    /// The makespans of one bar, of those of another, by run.
    fn ratios(&self, bar: usize, of: usize) -> impl Iterator<Item = f64> {
        let pairs = self.of_bar[bar].iter().zip(&self.of_bar[of]);
        pairs.map(|(bar, of)| bar.makespan_s / of.makespan_s)
    }
}

impl Network<'_> {
    fn exchanging(&self) -> usize {
        self.topology.hosts() / MEMBERS
    }

    async fn simulate(&self, runs: u32) -> Outcomes {
        let flows = self.exchanging() * (self.exchanging() - 1);
        let is_many = flows > FLOWS_MANY;
        let ks = BARS.map(|(_, k)| k.map(|k| k * flows / PAPERS_FLOWS));
        let tcp = Tcp { window_bytes: f64::from(self.window_kib) * 1_024.0, ..Tcp::default() };
        let mut outcomes = Outcomes { of_bar: Default::default(), ks };
        let runs = if is_many { runs.min(RUNS_OF_MANY) } else { runs };
        for run in 0..runs {
            let seed = SEED + u64::from(run);
            let exchange = Exchange::draw(self.topology, self.exchanging(), seed);
            let resolution_s = if is_many { exchange.floor_s() / STEPS_OF_MANY } else { 0.0 };
            for (at, (strategy, _)) in BARS.iter().enumerate() {
                tokio::task::yield_now().await;
                let outcome = exchange.run(*strategy, ks[at].unwrap_or(0), tcp, resolution_s);
                outcomes.of_bar[at].push(outcome);
            }
        }
        tracing::info!(network = self.name, window_kib = self.window_kib, "simulated");
        outcomes
    }

    fn reports(&self, outcomes: &Outcomes) -> Vec<Simulated> {
        (0..BARS.len()).map(|bar| self.report(outcomes, bar)).collect()
    }

    fn report(&self, outcomes: &Outcomes, bar: usize) -> Simulated {
        let runs = &outcomes.of_bar[bar];
        let of = |part: fn(&Outcome) -> f64| Figure::of(runs.iter().map(part));
        let spread = Spread {
            makespan_s: of(|run| run.makespan_s),
            ratio_to_fixed: Figure::of(outcomes.ratios(bar, FIXED)),
            ratio_to_floor: of(|run| run.makespan_s / run.floor_s),
            chunk_median_s: of(|run| run.complete_s(5)),
            last_to_median: of(|run| run.makespan_s / run.complete_s(5)),
        };
        let tenth = |tenth| Figure::of(runs.iter().map(|run| run.complete_s(tenth))).median;
        Simulated {
            topology: self.name,
            racks: self.racks.to_vec(),
            servers: self.topology.hosts(),
            exchanging: self.exchanging(),
            chunks: runs[0].chunk_s.len(),
            window_kib: self.window_kib,
            strategy: BARS[bar].0,
            k: outcomes.ks[bar],
            sockets: runs[0].sockets,
            runs: runs.len() as u32,
            resolution_s: runs[0].resolution_s,
            makespan_s: spread.makespan_s.median,
            ratio_to_fixed: spread.ratio_to_fixed.median,
            ratio_to_floor: spread.ratio_to_floor.median,
            chunk_median_s: spread.chunk_median_s.median,
            last_to_median: spread.last_to_median.median,
            chunk_tenths_s: (0..=10).map(tenth).collect(),
            spread,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn simulated() -> Report {
        run(Size { runs: 6, servers_max: 9 }, &[16]).await.unwrap()
    }

    #[tokio::test]
    async fn where_a_window_holds_one_socket_back_strategies_are_ordered_as_in_figure_9() {
        let report = simulated().await;
        let ratios =
            [report.ratio_to_fixed, report.ratio_to_chunk_based, report.ratio_to_orchestra];
        assert!(ratios.iter().all(|ratio| *ratio < 1.0), "{ratios:?}");
    }

    #[tokio::test]
    async fn every_strategy_needs_at_least_what_the_busiest_link_needs() {
        for one in simulated().await.strategies {
            assert!(one.spread.ratio_to_floor.min > 0.999_999, "{one:?}");
        }
    }

    #[tokio::test]
    async fn chunks_are_complete_one_after_another_and_the_last_one_is_the_end() {
        for one in simulated().await.strategies {
            let tenths = &one.chunk_tenths_s;
            assert!(tenths.is_sorted() && tenths.len() == 11, "{one:?}");
            assert!((tenths[10] - one.makespan_s).abs() < 1e-9 * one.makespan_s, "{one:?}");
        }
    }

    #[tokio::test]
    async fn a_network_that_is_too_large_is_left_out() {
        let report = simulated().await;
        let found: std::collections::BTreeSet<_> =
            report.strategies.iter().map(|one| one.topology).collect();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["heterogeneous", "homogeneous"]);
    }
}
