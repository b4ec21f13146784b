//! What some servers have to exchange in one run, and how that goes with a strategy.
//!
//! The data is that of Fig. 9: a collection whose new keys have nothing to do with the old ones, so
//! that each server has some of each new chunk, from half to one and a half of the mean. New chunks
//! are placed so that least is moved.
//!
//! Invariant: all strategies of a run move the same slices between the same hosts.

use imago_plan::flow::{self, FlowPlan, Latencies, Sharing, Slice};
use imago_plan::netsim::{self, Connection, Tcp, Topology};
use imago_plan::placement::{Shares, Weights, balanced};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::strategy::Strategy;

/// What each server has at first: a third of the paper's 500 MB, which three servers share.
pub(super) const BYTES_PER_SERVER: u64 = 500_000_000 / 3;
/// New chunks for each server: twelve of some 40 MB in the paper's collection.
const CHUNKS_PER_SERVER: usize = 4;

/// What has to move between some of a network's hosts.
pub(super) struct Exchange<'a> {
    topology: &'a Topology,
    /// The hosts of the servers.
    hosts: Vec<usize>,
    chunks: usize,
    slices: Vec<Slice>,
}

/// How that went.
pub(super) struct Outcome {
    pub sockets: usize,
    pub makespan_s: f64,
    /// What the busiest link needs for all that goes over it.
    pub floor_s: f64,
    /// When each chunk was complete, the first one first.
    pub chunk_s: Vec<f64>,
}

impl Outcome {
    /// When so many tenths of the chunks were complete; with none, when the first one was.
    pub(super) fn complete_s(&self, tenths: usize) -> f64 {
        self.chunk_s[(tenths * self.chunk_s.len()).div_ceil(10).saturating_sub(1)]
    }
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
        Self { topology, hosts, chunks, slices }
    }

    /// What the busiest link needs for all that goes over it, whatever the strategy.
    pub(super) fn floor_s(&self) -> f64 {
        let capacities = self.topology.capacities();
        let mut bytes = vec![0.0; capacities.len()];
        for slice in &self.slices {
            for link in self.topology.path(self.hosts[slice.from], self.hosts[slice.to]) {
                bytes[link] += slice.amount as f64;
            }
        }
        bytes.iter().zip(capacities).map(|(bytes, capacity)| bytes / capacity).fold(0.0, f64::max)
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
        flow::plan(&self.slices, sharing)
    }

    /// The hosts of its servers, by the servers' numbers in a plan.
    pub(super) fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    /// The sockets as connections between hosts, each slice a part.
    pub(super) fn connections(&self, plan: &FlowPlan) -> Vec<Connection> {
        let connection = |socket: &flow::Socket| Connection {
            from: self.hosts[socket.from],
            to: self.hosts[socket.to],
            parts_bytes: socket.slices.iter().map(|slice| slice.amount).collect(),
        };
        plan.sockets.iter().map(connection).collect()
    }

    /// Moves everything in the simulator.
    pub(super) fn simulate(&self, plan: &FlowPlan, tcp: Tcp, resolution_s: f64) -> Outcome {
        let run = netsim::run(self.topology, tcp, &self.connections(plan), resolution_s);
        self.outcome(plan, &run.arrived_s)
    }

    /// What came of it, when each connection's parts arrived at these times.
    pub(super) fn outcome(&self, plan: &FlowPlan, arrived_s: &[Vec<f64>]) -> Outcome {
        let mut chunk_s = vec![0.0_f64; self.chunks];
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
            (exchange.hosts, exchange.slices)
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
    }
}
