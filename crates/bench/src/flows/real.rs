//! The exchanges on real processes: Fig. 9's five strategies and Fig. 3's stragglers over the kernel's TCP, in a tree
//! of network namespaces (Morphus, §4.1 and §5.6).
//!
//! Each host is a process in its own network namespace ([`tree`]). Token buckets limit the links to the paper's rate.
//! Queues are as short as a switch's, and packets that arrive at a full queue are lost. Latency is added in user
//! space ([`wire`]), packet by packet, so that the kernel's TCP has the slow start, windows and recovery of the long
//! path. Weighted fair sharing uses latencies that are measured between the hosts beforehand. The simulator's time
//! for the same sockets is reported with each bar, and shows how accurate the simulation is.

pub mod host;
mod tasks;
mod tree;
mod wire;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::{Duration, Instant};

use super::netsim::{Connection, Topology};
use imago_plan::reshard::flow::Latencies;
use serde::Serialize;

use crate::Header;
use crate::error::{Error, Result};
use crate::statistics::Figure;

use super::exchange::Exchange;
use super::outcome::Outcome;
use super::strategy::{BARS, Outcomes, Ratios, ks};
use super::{Bar, NETWORKS, Network, SEED, tcp};

use tasks::{Task, Transfer, now_ns};
use tree::Tree;

/// Largest window of TCP without scaling, in KiB.
pub const WINDOW_KIB_MAX: u32 = 64;
/// Number of measured networks: those with nine hosts. Larger networks would measure the CPUs of this machine.
const SMALL_NETWORKS: usize = 2;
/// Deadline for setting up the connections.
const PREPARE_MAX: Duration = Duration::from_secs(60);
/// Deadline of an exchange: this many times the time that its busiest link needs, plus [`EXCHANGE_MIN`].
const FLOORS_MAX: f64 = 50.0;
const EXCHANGE_MIN: Duration = Duration::from_secs(30);
/// Delay between the task to begin and the start, so that all hosts have received the task.
const NOTICE: Duration = Duration::from_millis(50);
/// Deadline for measuring the latencies from one host.
const MEASURE_MAX: Duration = Duration::from_secs(60);

/// Size of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Number of runs, each with its own draw of members and data. Figures are medians.
    pub runs: u32,
    /// Data of the collection on each server that exchanges, in MB (1,000,000 bytes).
    pub data_mb_per_server: u32,
}

/// Results of the benchmark. Ratios and times are medians of the runs. The ratios at this level are those of the
/// homogeneous network with the first window; less is better.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// Rate of each link in each direction, in Mb/s.
    pub link_mbit_s: f64,
    /// Size of the queue of a link, in kB. Packets that arrive at a full queue are lost.
    pub queue_kb: f64,
    /// Latency within a rack, one way, measured between idle hosts, in ms.
    pub within_ms: f64,
    /// Latency between racks, one way, measured between idle hosts, in ms.
    pub between_ms: f64,
    /// Window of the ratios at this level, in KiB.
    pub window_kib: u32,
    /// The ratios of the paper.
    #[serde(flatten)]
    pub ratios: Ratios,
    /// The same ratios in the simulator, for the same exchanges.
    pub simulated: Ratios,
    /// Duration of the benchmark, in seconds.
    pub seconds: f64,
    /// Outcome of every network, window and strategy.
    pub strategies: Vec<Measured>,
}

/// A measured bar, compared with the simulation of the same sockets.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Measured outcome.
    #[serde(flatten)]
    pub bar: Bar,
    /// Makespan in the simulator, in simulated seconds.
    pub simulated_s: f64,
    /// Ratio of the measured makespan to that in the simulator.
    pub ratio_to_simulated: f64,
    /// Number of packets that the switches dropped because a queue was full.
    pub lost_packets: f64,
    /// Extremes of `ratio_to_simulated` and `lost_packets` over the runs.
    pub spread_beside: SpreadBeside,
}

/// Figures that only a measured bar has, with their extremes over the runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SpreadBeside {
    /// See [`Measured::ratio_to_simulated`].
    pub ratio_to_simulated: Figure,
    /// See [`Measured::lost_packets`].
    pub lost_packets: Figure,
}

/// Runs all exchanges with every strategy in both networks with nine hosts, with each of these windows. `host` is a
/// command that runs [`host::serve`] on its standard input and output.
///
/// Dropping the future ends all processes, and with them the network.
///
/// # Errors
/// Fails if the size is invalid, if this machine or user cannot have network namespaces, or if a host fails.
#[crate::boxed]
pub async fn run(size: Size, windows_kib: &[u32], host: &[OsString]) -> Result<Report> {
    let is_sized = size.runs > 0 && size.data_mb_per_server > 0;
    let is_window = |kib: &u32| (1..=WINDOW_KIB_MAX).contains(kib);
    if !is_sized || windows_kib.is_empty() || !windows_kib.iter().all(is_window) {
        return Err(Error::Size(format!(
            "flows need at least 1 run, 1 MB of data and 1 window of 1 to {WINDOW_KIB_MAX} KiB"
        )));
    }
    let began = Instant::now();
    let (mut within_ms, mut between_ms) = (Vec::new(), Vec::new());
    let mut strategies = Vec::new();
    let mut ratios = None;
    for (name, racks) in NETWORKS.into_iter().take(SMALL_NETWORKS) {
        let topology = Topology::papers(racks);
        let tree = Tree::build(&topology, racks, host).await?;
        let mut real = RealNetwork { topology: &topology, tree };
        let measured_us = real.measure_latencies().await?;
        for (from, to, us) in measured_us.pairs() {
            let is_within = topology.latency_us(from, to) == topology.latency_us(0, 1);
            let to = if is_within { &mut within_ms } else { &mut between_ms };
            to.push(f64::from(us) / 1e3);
        }
        for window_kib in windows_kib {
            let network = Network { name, racks, topology: &topology, window_kib: *window_kib };
            let came = real.run(&network, size, &measured_us).await?;
            strategies.extend((0..BARS.len()).map(|bar| came.measured(&network, bar)));
            ratios
                .get_or_insert_with(|| (came.real.papers_ratios(), came.simulated.papers_ratios()));
        }
    }
    let (ratios, simulated) = ratios.expect("there are networks and windows");
    Ok(Report {
        header: Header::of("flows-real", size),
        link_mbit_s: Topology::papers(NETWORKS[0].1).capacities()[0] * 8.0 / 1e6,
        queue_kb: tree::QUEUE_KB,
        within_ms: Figure::of(within_ms).median,
        between_ms: Figure::of(between_ms).median,
        window_kib: windows_kib[0],
        ratios,
        simulated,
        seconds: began.elapsed().as_secs_f64(),
        strategies,
    })
}

/// Measured latencies between all hosts of a network, one way, in µs.
struct MeasuredLatencies {
    hosts: usize,
    us: Vec<u32>,
}

impl MeasuredLatencies {
    fn pairs(&self) -> impl Iterator<Item = (usize, usize, u32)> {
        let pairs = self.us.iter().enumerate();
        pairs
            .map(|(pair, us)| (pair / self.hosts, pair % self.hosts, *us))
            .filter(|(from, to, _)| from != to)
    }

    /// Returns the latencies between the servers of an exchange.
    fn of(&self, exchange: &Exchange<'_>) -> Latencies {
        exchange.latencies(|from, to| self.us[from * self.hosts + to])
    }
}

/// Outcomes in a network, by bar and run.
#[derive(Default)]
struct NetworkOutcomes {
    real: Outcomes,
    simulated: Outcomes,
    lost_packets: [Vec<f64>; BARS.len()],
}

impl NetworkOutcomes {
    fn measured(&self, network: &Network<'_>, bar: usize) -> Measured {
        let (real, simulated) = (self.real.of_bar(bar), self.simulated.of_bar(bar));
        let makespan_s = |outcome: &Outcome| outcome.makespan_s;
        let pairs = real.iter().zip(simulated);
        let ratios = pairs.map(|(real, simulated)| real.makespan_s / simulated.makespan_s);
        let spread_beside = SpreadBeside {
            ratio_to_simulated: Figure::of(ratios),
            lost_packets: Figure::of(self.lost_packets[bar].iter().copied()),
        };
        Measured {
            bar: network.bar(&self.real, bar),
            simulated_s: Figure::of(simulated.iter().map(makespan_s)).median,
            ratio_to_simulated: spread_beside.ratio_to_simulated.median,
            lost_packets: spread_beside.lost_packets.median,
            spread_beside,
        }
    }
}

/// A network of running hosts.
struct RealNetwork<'a> {
    topology: &'a Topology,
    tree: Tree,
}

impl RealNetwork<'_> {
    async fn run(
        &mut self,
        network: &Network<'_>,
        size: Size,
        measured: &MeasuredLatencies,
    ) -> Result<NetworkOutcomes> {
        let bytes = u64::from(size.data_mb_per_server) * 1_000_000;
        let tcp = tcp(network.window_kib);
        // A packet can offer at most 65,535 bytes, one less than 64 KiB.
        let window_bytes = u16::try_from(network.window_kib * 1_024).unwrap_or(u16::MAX);
        let ks = ks(network.flows());
        let mut came = NetworkOutcomes::default();
        for run in 0..size.runs {
            let seed = SEED + u64::from(run);
            let exchange = Exchange::draw(self.topology, network.exchanging(), bytes, seed);
            let latencies = measured.of(&exchange);
            let within = EXCHANGE_MIN + Duration::from_secs_f64(exchange.floor_s() * FLOORS_MAX);
            for (bar, (strategy, _)) in BARS.iter().enumerate() {
                let plan = exchange.plan(*strategy, ks[bar].unwrap_or(0), &latencies);
                let connections = exchange.connections(&plan);
                let lost_before = self.tree.lost_packets().await?;
                let moved = self.exchange(&connections, window_bytes, within);
                let arrived_s = moved.await?;
                let lost = self.tree.lost_packets().await? - lost_before;
                came.lost_packets[bar].push(lost as f64);
                came.real.push(bar, exchange.outcome(&plan, &arrived_s));
                came.simulated.push(bar, exchange.simulate(&plan, tcp, 0.0));
            }
        }
        tracing::info!(network = network.name, window_kib = network.window_kib, "measured");
        Ok(came)
    }

    /// Runs an exchange. Returns the arrival times of each connection's parts, in seconds since the start.
    async fn exchange(
        &mut self,
        connections: &[Connection],
        window_bytes: u16,
        within: Duration,
    ) -> Result<Vec<Vec<f64>>> {
        let transfer = |connection: &Connection| Transfer {
            from: connection.from,
            to: connection.to,
            parts_bytes: connection.parts_bytes.clone(),
        };
        let transfers: Vec<(u32, Transfer)> = (0..).zip(connections.iter().map(transfer)).collect();
        let ends = |transfer: &Transfer| [transfer.from, transfer.to];
        let hosts: BTreeSet<usize> =
            transfers.iter().flat_map(|(_, transfer)| ends(transfer)).collect();
        for host in &hosts {
            let own = |(_, transfer): &&(u32, Transfer)| ends(transfer).contains(host);
            let transfers = transfers.iter().filter(own).cloned().collect();
            let order = Task::Prepare { host: *host, window_bytes, transfers };
            self.tree.hosts[*host].order(&order).await?;
        }
        for host in &hosts {
            self.tree.hosts[*host].prepared(PREPARE_MAX).await?;
        }
        let at_ns = now_ns() + NOTICE.as_nanos() as u64;
        for host in &hosts {
            self.tree.hosts[*host].order(&Task::Begin { at_ns }).await?;
        }
        let mut arrived_s = vec![Vec::new(); connections.len()];
        for host in &hosts {
            for (number, at_s) in self.tree.hosts[*host].arrived(within).await? {
                arrived_s[number as usize] = at_s;
            }
        }
        let parts = |connection: &Connection| connection.parts_bytes.len();
        let is_all = connections.iter().zip(&arrived_s).all(|(of, at_s)| parts(of) == at_s.len());
        if !is_all {
            return Err(Error::Wrong("parts of a connection did not arrive".into()));
        }
        Ok(arrived_s)
    }

    /// Measures the latency from each host to each other host, one pair after the other.
    async fn measure_latencies(&mut self) -> Result<MeasuredLatencies> {
        let count = self.topology.hosts();
        let mut us = vec![0; count * count];
        for from in 0..count {
            let hosts: Vec<usize> = (0..count).filter(|to| *to != from).collect();
            let host = &mut self.tree.hosts[from];
            host.order(&Task::Measure { hosts: hosts.clone() }).await?;
            let round_trips_us = host.measured(MEASURE_MAX).await?;
            for (to, round_trip_us) in hosts.iter().zip(round_trips_us) {
                us[from * count + to] = (round_trip_us / 2.0) as u32;
            }
        }
        Ok(MeasuredLatencies { hosts: count, us })
    }
}
