//! The data that servers exchange in one run, and the exchange's course with a strategy.
//!
//! The data is that of Fig. 9: a collection whose new keys have nothing to do with the old ones, so
//! that each server has some of each new chunk, from half to one and a half of the mean. New chunks
//! are placed so that least is moved. What a server sends and what it gets may be at two hosts: those
//! of two members of its replica set.
//!
//! Invariant: all strategies of a run move the same slices between the same hosts.

use imago_plan::flow::{self, FlowPlan, Latencies, Sharing, Slice};
use imago_plan::netsim::{self, Connection, Tcp, Topology};
use imago_plan::placement::{Flows, Shares, Weights, balanced};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::outcome::Outcome;
use super::strategy::Strategy;

/// Data of each server at first: a third of the paper's 500 MB, which three servers share.
pub(super) const BYTES_PER_SERVER: u64 = 500_000_000 / 3;
/// New chunks for each server: twelve of some 40 MB in the paper's collection.
const CHUNKS_PER_SERVER: usize = 4;

/// The data that has to move between servers, wherever those are.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Moves {
    chunks: usize,
    slices: Vec<Slice>,
    flows: Flows,
}

impl Moves {
    /// Between so many servers, each of which has so many bytes.
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

    /// The same, by pairs of servers, in bytes.
    pub(super) fn flows(&self) -> &Flows {
        &self.flows
    }
}

/// The data that has to move between some of a network's hosts.
pub(super) struct Exchange<'a> {
    topology: &'a Topology,
    /// The host at which each server sends.
    senders: Vec<usize>,
    /// The host at which each server gets what others send.
    receivers: Vec<usize>,
    moves: Moves,
}

impl<'a> Exchange<'a> {
    /// An exchange between so many of the network's hosts, each of which has so many bytes, drawn
    /// with this seed.
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

    /// These moves, where each server sends at the one host and gets at the other.
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

    /// The hosts between which a slice goes.
    fn ends(&self, from: usize, to: usize) -> (usize, usize) {
        (self.senders[from], self.receivers[to])
    }

    /// The time that the busiest link needs for its traffic, with any strategy.
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

    /// Traffic between racks, in bytes.
    pub(super) fn crossing_bytes(&self) -> u64 {
        let crosses = |slice: &&Slice| {
            let (from, to) = self.ends(slice.from, slice.to);
            self.topology.rack_of(from) != self.topology.rack_of(to)
        };
        self.moves.slices.iter().filter(crosses).map(|slice| slice.amount).sum()
    }

    /// Its sockets, with `k` of them where the strategy has a K.
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

    /// The latencies between its servers, by their numbers in a plan, when those between hosts are
    /// as `latency_us(from, to)` says, in microseconds.
    pub(super) fn latencies(&self, latency_us: impl Fn(usize, usize) -> u32) -> Latencies {
        Latencies::new(self.senders.len(), |from, to| {
            let (from, to) = self.ends(from, to);
            latency_us(from, to)
        })
    }

    /// The sockets as connections between hosts, each slice a part.
    pub(super) fn connections(&self, plan: &FlowPlan) -> Vec<Connection> {
        let connection = |socket: &flow::Socket| {
            let (from, to) = self.ends(socket.from, socket.to);
            let parts_bytes = socket.slices.iter().map(|slice| slice.amount).collect();
            Connection { from, to, parts_bytes }
        };
        plan.sockets.iter().map(connection).collect()
    }

    /// Moves everything in the simulator.
    pub(super) fn simulate(&self, plan: &FlowPlan, tcp: Tcp, resolution_s: f64) -> Outcome {
        let run = netsim::run(self.topology, tcp, &self.connections(plan), resolution_s);
        self.outcome(plan, &run.arrived_s)
    }

    /// The outcome, given the arrival times of each connection's parts.
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
