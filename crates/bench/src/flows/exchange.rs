//! The data that servers exchange in one run, and the progress of the exchange with a strategy.
//!
//! The data is that of Fig. 9: a collection whose new keys are independent of the old ones. So each server has a part
//! of each new chunk, between half and one and a half times the mean. New chunks are placed so that as little data as
//! possible moves. A server may send from one host and receive at another: the hosts of two members of its replica
//! set.
//!
//! Invariant: all strategies of a run move the same slices between the same hosts.

use super::netsim::{self, Connection, Tcp, Topology};
use imago_plan::reshard::flow::{self, FlowPlan, Latencies, Sharing, Slice};
use imago_plan::reshard::placement::{Flows, Shares, Weights, balanced};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::outcome::Outcome;
use super::strategy::Strategy;

/// Amount of data that each server has at first, in bytes: a third of the paper's 500 MB, which three servers share.
pub(super) const BYTES_PER_SERVER: u64 = 500_000_000 / 3;
/// Number of new chunks for each server: the paper's collection has twelve, of about 40 MB each.
const CHUNKS_PER_SERVER: usize = 4;

/// Data that moves between servers, independent of their hosts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Moves {
    chunks: usize,
    slices: Vec<Slice>,
    flows: Flows,
}

impl Moves {
    /// Draws the parts of new chunks for `servers` servers with `bytes_per_server` bytes each, and places the chunks.
    pub(super) fn draw(servers: usize, bytes_per_server: u64, rng: &mut StdRng) -> Self {
        let chunks = CHUNKS_PER_SERVER * servers;
        let mean_bytes = bytes_per_server / chunks as u64;
        let mut weights = Weights::new(servers).expect("a network has few servers");
        for _ in 0..chunks {
            let bytes = (0..servers).map(|_| rng.random_range(mean_bytes / 2..mean_bytes * 3 / 2));
            weights.push(bytes.enumerate()).expect("a few gigabytes are not too much");
        }
        let shares = Shares::equal(servers).expect("there are servers");
        let placement = balanced(&weights, &shares).expect("shares of the same servers");
        let slices = flow::slices(&weights, &placement.server_of);
        Self { chunks, slices, flows: placement.flows }
    }

    /// Returns the amount that moves between each pair of servers, in bytes.
    pub(super) fn flows(&self) -> &Flows {
        &self.flows
    }
}

/// Data that moves between hosts of a network.
pub(super) struct Exchange<'a> {
    topology: &'a Topology,
    /// Host from which each server sends.
    senders: Vec<usize>,
    /// Host at which each server receives.
    receivers: Vec<usize>,
    moves: Moves,
}

impl<'a> Exchange<'a> {
    /// Draws an exchange with this seed, between `servers` random hosts of the network with `bytes_per_server` bytes
    /// each.
    pub(super) fn draw(
        topology: &'a Topology,
        servers: usize,
        bytes_per_server: u64,
        seed: u64,
    ) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let hosts = rand::seq::index::sample(&mut rng, topology.hosts(), servers).into_vec();
        let moves = Moves::draw(servers, bytes_per_server, &mut rng);
        Self::between(topology, hosts.clone(), hosts, moves)
    }

    /// Creates an exchange of these moves. Each server sends from its host in `senders` and receives at its host in
    /// `receivers`.
    pub(super) fn between(
        topology: &'a Topology,
        senders: Vec<usize>,
        receivers: Vec<usize>,
        moves: Moves,
    ) -> Self {
        let servers = moves.flows.servers();
        assert_eq!((senders.len(), receivers.len()), (servers, servers), "hosts of other servers");
        Self { topology, senders, receivers, moves }
    }

    /// Returns the sending and the receiving host of a slice.
    fn ends(&self, from: usize, to: usize) -> (usize, usize) {
        (self.senders[from], self.receivers[to])
    }

    /// Returns the time that the busiest link needs for its traffic, in seconds. It is the same for all strategies.
    pub(super) fn floor_s(&self) -> f64 {
        let capacities = self.topology.capacities();
        let mut bytes = vec![0.0; capacities.len()];
        for slice in &self.moves.slices {
            let (from, to) = self.ends(slice.from, slice.to);
            for link in self.topology.path(from, to) {
                bytes[link] += slice.amount as f64;
            }
        }
        bytes.iter().zip(capacities).map(|(bytes, capacity)| bytes / capacity).fold(0.0, f64::max)
    }

    /// Returns the traffic between racks, in bytes.
    pub(super) fn crossing_bytes(&self) -> u64 {
        let crosses = |slice: &&Slice| {
            let (from, to) = self.ends(slice.from, slice.to);
            self.topology.rack_of(from) != self.topology.rack_of(to)
        };
        self.moves.slices.iter().filter(crosses).map(|slice| slice.amount).sum()
    }

    /// Assigns sockets by a strategy. `k` is the number of sockets for strategies that have a K.
    pub(super) fn plan(&self, strategy: Strategy, k: usize, latencies: &Latencies) -> FlowPlan {
        let sockets = k as u32;
        let sharing = match strategy {
            Strategy::Fixed => Sharing::Fixed,
            Strategy::ChunkBased => Sharing::ChunkBased,
            Strategy::Orchestra => Sharing::Orchestra { sockets },
            Strategy::Wfs => Sharing::Wfs { sockets, latencies },
        };
        flow::plan(&self.moves.slices, sharing)
    }

    /// Returns the latencies between the servers, by their numbers in a plan, from those between hosts,
    /// `latency_us(from, to)` in µs.
    pub(super) fn latencies(&self, latency_us: impl Fn(usize, usize) -> u32) -> Latencies {
        Latencies::new(self.senders.len(), |from, to| {
            let (from, to) = self.ends(from, to);
            latency_us(from, to)
        })
    }

    /// Returns the sockets of a plan as connections between hosts, with one part for each slice.
    pub(super) fn connections(&self, plan: &FlowPlan) -> Vec<Connection> {
        let connection = |socket: &flow::Socket| {
            let (from, to) = self.ends(socket.from, socket.to);
            let parts_bytes = socket.slices.iter().map(|slice| slice.amount).collect();
            Connection { from, to, parts_bytes }
        };
        plan.sockets.iter().map(connection).collect()
    }

    /// Simulates the exchange.
    pub(super) fn simulate(&self, plan: &FlowPlan, tcp: Tcp, resolution_s: f64) -> Outcome {
        let run = netsim::run(self.topology, tcp, &self.connections(plan), resolution_s);
        self.outcome(plan, &run.arrived_s)
    }

    /// Returns the outcome for these arrival times of each connection's parts, in seconds.
    pub(super) fn outcome(&self, plan: &FlowPlan, arrived_s: &[Vec<f64>]) -> Outcome {
        let mut chunk_s = vec![0.0_f64; self.moves.chunks];
        for (socket, arrived_s) in plan.sockets.iter().zip(arrived_s) {
            for (slice, at_s) in socket.slices.iter().zip(arrived_s) {
                chunk_s[slice.chunk] = chunk_s[slice.chunk].max(*at_s);
            }
        }
        chunk_s.sort_by(f64::total_cmp);
        let makespan_s = chunk_s.last().copied().unwrap_or(0.0);
        Outcome { sockets: plan.sockets.len(), makespan_s, floor_s: self.floor_s(), chunk_s }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_is_complete_when_so_many_chunks_are() {
        let chunk_s = (1..=12).map(f64::from).collect();
        let outcome = Outcome { sockets: 1, makespan_s: 12.0, floor_s: 1.0, chunk_s };
        let at = |tenths| outcome.complete_s(tenths) as u32;
        assert_eq!([at(0), at(1), at(5), at(9), at(10)], [1, 2, 6, 11, 12]);
    }

    #[test]
    fn the_same_seed_draws_the_same_exchange() {
        let topology = Topology::papers(&[3, 3, 3]);
        let drawn = |seed| {
            let exchange = Exchange::draw(&topology, 3, BYTES_PER_SERVER, seed);
            (exchange.senders, exchange.moves)
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
    }

    #[test]
    fn what_is_sent_from_another_rack_than_it_is_got_in_crosses() {
        let topology = Topology::papers(&[2, 2]);
        let moves = Moves::draw(2, 1_000_000, &mut StdRng::seed_from_u64(1));
        let crossing = |senders: [usize; 2], receivers: [usize; 2]| {
            let (senders, receivers) = (senders.to_vec(), receivers.to_vec());
            Exchange::between(&topology, senders, receivers, moves.clone()).crossing_bytes()
        };
        let flows = moves.flows();
        assert_eq!(crossing([0, 1], [0, 1]), 0);
        assert_eq!(crossing([0, 2], [0, 1]), flows.get(1, 0));
        assert_eq!(crossing([2, 3], [0, 1]), flows.total());
    }
}
