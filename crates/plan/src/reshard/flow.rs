//! Assigns sockets to each pair of servers, and data to each socket (Morphus, §4.1).
//!
//! A *flow* is all data that one server sends to another. It consists of slices, one for each new
//! chunk of which the sender has a part. The strategies are those of the paper's Fig. 9:
//!
//! - *fixed*: one socket for each flow, since a socket joins two hosts;
//! - *chunk-based*: one socket for each slice, the paper's first approach;
//! - *Orchestra*: K sockets in total, in proportion to the amount of each flow;
//! - *WFS*, weighted fair sharing: K sockets in proportion to amount × latency, because TCP gives a
//!   connection less bandwidth the longer its round trip is.
//!
//! As in the paper, the sockets are divided among the destinations first, and the sockets of each
//! destination among its sources. The paper does not specify rounding: here largest remainders are
//! used, and every flow gets at least one socket. So K is exceeded if there are more flows than K,
//! and [`FlowPlan::beyond_k`] reports by how many. Then the slices of each flow are split or merged
//! until there is one share for each socket.
//!
//! Invariants: each unit of each slice goes through exactly one socket; every socket carries data;
//! the number of sockets is K, unless there are more flows or fewer units than that.

mod slicing;

use std::collections::BTreeMap;

use crate::reshard::apportion::apportion;
use crate::reshard::placement::Weights;

use slicing::shares;

/// A part of a new chunk that one server sends to the chunk's new server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slice {
    /// Index of the sending server.
    pub from: usize,
    /// Index of the receiving server.
    pub to: usize,
    /// Index of the new chunk.
    pub chunk: usize,
    /// Amount of the sender's data of the chunk that precedes this slice, in the order of the chunk
    /// and in the unit of the weights.
    pub offset: u64,
    /// Amount of data in the slice, in the unit of the weights.
    pub amount: u64,
}

/// Returns the slices that a placement moves: one for each chunk and each server that holds a part
/// of it and is not its new server.
///
/// # Panics
/// If the length of `server_of` is not the number of chunks.
#[must_use]
pub fn slices(weights: &Weights, server_of: &[usize]) -> Vec<Slice> {
    assert_eq!(server_of.len(), weights.chunks(), "servers of other chunks");
    let of_chunk = |(chunk, to): (usize, &usize)| {
        let to = *to;
        let moving = weights.row(chunk).filter(move |(from, _)| *from != to);
        moving.map(move |(from, amount)| Slice { from, to, chunk, offset: 0, amount })
    };
    server_of.iter().enumerate().flat_map(of_chunk).collect()
}

/// Latencies between all ordered pairs of servers, in microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies {
    servers: usize,
    us: Vec<u32>,
}

impl Latencies {
    /// Builds the table from `latency_us(from, to)`, in microseconds, for each pair of `servers`
    /// servers. Any measure proportional to latency serves, such as the round-trip time.
    pub fn new(servers: usize, latency_us: impl Fn(usize, usize) -> u32) -> Self {
        let us = (0..servers * servers).map(|pair| latency_us(pair / servers, pair % servers));
        Self { servers, us: us.collect() }
    }

    /// Returns the latency from one server to another in microseconds, at least 1, so that a pair whose measured
    /// latency rounds to 0 still has a weight.
    ///
    /// # Panics
    /// If there is no such server.
    #[must_use]
    pub fn get_us(&self, from: usize, to: usize) -> u32 {
        assert!(from < self.servers && to < self.servers, "no latency of {from} to {to}");
        self.us[from * self.servers + to].max(1)
    }
}

/// The strategy that assigns sockets (connections) to flows.
#[derive(Clone, Copy, Debug)]
pub enum Sharing<'a> {
    /// Each flow gets one socket.
    Fixed,
    /// Each slice gets one socket.
    ChunkBased,
    /// The flows get sockets in proportion to their amounts of data.
    Orchestra {
        /// K, the total number of sockets.
        sockets: u32,
    },
    /// The flows get sockets in proportion to amount × latency of each.
    Wfs {
        /// K, the total number of sockets.
        sockets: u32,
        /// Latencies between all servers that send or receive data.
        latencies: &'a Latencies,
    },
}

/// A connection between two servers, and the slices that it carries, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Index of the sending server.
    pub from: usize,
    /// Index of the receiving server.
    pub to: usize,
    /// Slices that the socket sends, in order; at least one.
    pub slices: Vec<Slice>,
}

impl Socket {
    /// Returns the amount of data that the socket carries, in the unit of the weights.
    #[must_use]
    pub fn amount(&self) -> u64 {
        self.slices.iter().map(|slice| slice.amount).sum()
    }
}

/// The sockets of a bulk transfer (Morphus' Execute phase), with the slices that each carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowPlan {
    /// Sockets, ordered by source, then by destination.
    pub sockets: Vec<Socket>,
    /// Number of sockets in excess of K, the requested total, because every flow needs at least one; 0 for strategies
    /// without K.
    pub beyond_k: usize,
}

impl FlowPlan {
    /// Returns the number of sockets from one server to another, given by their indexes.
    #[must_use]
    pub fn sockets_of(&self, from: usize, to: usize) -> usize {
        self.sockets.iter().filter(|socket| (socket.from, socket.to) == (from, to)).count()
    }
}

/// Assigns sockets to the flows that consist of `slices` by a strategy, and slices to the sockets. Slices with amount
/// zero are left out.
///
/// # Panics
/// If a slice goes from a server to itself, or `latencies` has too few servers.
#[must_use]
pub fn plan(slices: &[Slice], strategy: Sharing<'_>) -> FlowPlan {
    let mut flows: BTreeMap<(usize, usize), Vec<Slice>> = BTreeMap::new();
    for slice in slices.iter().filter(|slice| slice.amount > 0) {
        assert!(slice.from != slice.to, "{slice:?} stays where it is");
        flows.entry((slice.from, slice.to)).or_default().push(*slice);
    }
    let one = |_: (usize, usize)| 1;
    let counts = match strategy {
        Sharing::Fixed => flows.keys().map(|_| 1).collect(),
        Sharing::ChunkBased => flows.values().map(Vec::len).collect(),
        Sharing::Orchestra { sockets } => divide(&flows, sockets, one),
        Sharing::Wfs { sockets, latencies } => {
            divide(&flows, sockets, |(from, to)| latencies.get_us(from, to))
        }
    };
    let k = match strategy {
        Sharing::Fixed | Sharing::ChunkBased => usize::MAX,
        Sharing::Orchestra { sockets } | Sharing::Wfs { sockets, .. } => sockets as usize,
    };
    let mut sockets = Vec::new();
    for (((from, to), slices), count) in flows.into_iter().zip(counts) {
        let socket = |slices| Socket { from, to, slices };
        sockets.extend(shares(slices, count).into_iter().map(socket));
    }
    let beyond_k = sockets.len().saturating_sub(k);
    FlowPlan { sockets, beyond_k }
}

/// Returns the number of sockets of each flow, in the order of `flows`. Sockets are divided among
/// destinations first, then among the sources of each destination.
fn divide(
    flows: &BTreeMap<(usize, usize), Vec<Slice>>,
    sockets: u32,
    latency_us: impl Fn((usize, usize)) -> u32,
) -> Vec<usize> {
    let mut into: BTreeMap<usize, Vec<(usize, u128)>> = BTreeMap::new();
    for (index, (pair, slices)) in flows.iter().enumerate() {
        let amount: u128 = slices.iter().map(|slice| u128::from(slice.amount)).sum();
        let weight = amount.saturating_mul(u128::from(latency_us(*pair)));
        // Capped at a millionth of the range, so that no sum of weights overflows.
        into.entry(pair.1).or_default().push((index, weight.min(u128::MAX >> 20)));
    }
    let sum = |flows: &Vec<(usize, u128)>| flows.iter().map(|(_, weight)| weight).sum();
    let weights: Vec<u128> = into.values().map(sum).collect();
    let least: Vec<u64> = into.values().map(|flows| flows.len() as u64).collect();
    let per_destination = apportion(u64::from(sockets), &weights, &least);
    let mut counts = vec![0; flows.len()];
    for (flows, sockets) in into.values().zip(per_destination) {
        let weights: Vec<u128> = flows.iter().map(|(_, weight)| *weight).collect();
        let per_source = apportion(sockets, &weights, &vec![1; flows.len()]);
        for ((index, _), sockets) in flows.iter().zip(per_source) {
            counts[*index] = sockets as usize;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slice(from: usize, to: usize, chunk: usize, amount: u64) -> Slice {
        Slice { from, to, chunk, offset: 0, amount }
    }

    fn some_slices() -> impl Strategy<Value = Vec<Slice>> {
        let one = (0..5_usize, 0..4_usize, 0..2_000_u64);
        prop::collection::vec(one, 0..60).prop_map(|slices| {
            let make = |(chunk, (from, to, amount)): (usize, (usize, usize, u64))| {
                slice(from, if to >= from { to + 1 } else { to }, chunk, amount)
            };
            slices.into_iter().enumerate().map(make).collect()
        })
    }

    fn amounts(slices: &[Slice]) -> BTreeMap<(usize, usize), u64> {
        let mut amounts = BTreeMap::new();
        for slice in slices.iter().filter(|slice| slice.amount > 0) {
            *amounts.entry((slice.from, slice.to)).or_insert(0) += slice.amount;
        }
        amounts
    }

    #[test]
    fn what_moves_is_all_that_lies_elsewhere() {
        let weights = Weights::dense(3, &[[5, 6, 0], [0, 0, 7]]).unwrap();
        assert_eq!(slices(&weights, &[1, 0]), [slice(0, 1, 0, 5), slice(2, 0, 1, 7)]);
        assert_eq!(slices(&weights, &[0, 2]), [slice(1, 0, 0, 6)]);
    }

    #[test]
    fn wfs_gives_a_distant_flow_more_sockets_than_orchestra() {
        let slices = [slice(0, 2, 0, 1_000), slice(1, 2, 0, 1_000)];
        let latencies = Latencies::new(3, |from, _| if from == 0 { 1_000 } else { 2_000 });
        let orchestra = plan(&slices, Sharing::Orchestra { sockets: 6 });
        assert_eq!((orchestra.sockets_of(0, 2), orchestra.sockets_of(1, 2)), (3, 3));
        let wfs = plan(&slices, Sharing::Wfs { sockets: 6, latencies: &latencies });
        assert_eq!((wfs.sockets_of(0, 2), wfs.sockets_of(1, 2)), (2, 4));
    }

    #[test]
    fn sockets_are_divided_among_destinations_first() {
        // 300 of 400 go to server 1, so it gets 6 of 8; from servers 0 and 2 by 2 to 1.
        let slices = [slice(0, 1, 0, 200), slice(2, 1, 1, 100), slice(0, 2, 2, 100)];
        let plan = plan(&slices, Sharing::Orchestra { sockets: 8 });
        let count = |from, to| plan.sockets_of(from, to);
        assert_eq!((count(0, 1), count(2, 1), count(0, 2)), (4, 2, 2));
        assert!(plan.sockets.iter().all(|socket| socket.amount() == 50), "{plan:?}");
    }

    #[test]
    fn fewer_sockets_than_flows_are_too_few_and_that_is_said() {
        let slices = [slice(0, 1, 0, 200), slice(2, 1, 1, 1), slice(0, 2, 2, 100)];
        let plan = plan(&slices, Sharing::Orchestra { sockets: 2 });
        assert_eq!((plan.sockets.len(), plan.beyond_k), (3, 1));
    }

    proptest! {
        #[test]
        fn every_flow_has_a_socket_and_every_socket_has_work(
            slices in some_slices(), sockets in 0..80_u32
        ) {
            let latencies = Latencies::new(5, |from, to| (from * to) as u32 * 100);
            let strategies = [
                Sharing::Fixed,
                Sharing::ChunkBased,
                Sharing::Orchestra { sockets },
                Sharing::Wfs { sockets, latencies: &latencies },
            ];
            let flows = amounts(&slices);
            for strategy in strategies {
                let plan = plan(&slices, strategy);
                let mut carried = BTreeMap::new();
                for socket in &plan.sockets {
                    prop_assert!(socket.amount() > 0);
                    *carried.entry((socket.from, socket.to)).or_insert(0) += socket.amount();
                }
                prop_assert_eq!(&carried, &flows);
                let count = plan.sockets.len();
                match strategy {
                    Sharing::Fixed => prop_assert_eq!(count, flows.len()),
                    Sharing::ChunkBased => {
                        prop_assert_eq!(count, slices.iter().filter(|s| s.amount > 0).count());
                    }
                    _ => {
                        prop_assert!(count <= flows.len().max(sockets as usize));
                        prop_assert_eq!(plan.beyond_k, count.saturating_sub(sockets as usize));
                        if flows.values().all(|amount| *amount >= u64::from(sockets)) && count > 0 {
                            prop_assert_eq!(count, flows.len().max(sockets as usize));
                        }
                    }
                }
            }
        }

        #[test]
        fn orchestra_is_wfs_where_all_latencies_are_equal(
            slices in some_slices(), sockets in 0..80_u32, latency_us in 0..10_000_u32
        ) {
            let latencies = Latencies::new(5, |_, _| latency_us);
            let wfs = plan(&slices, Sharing::Wfs { sockets, latencies: &latencies });
            prop_assert_eq!(wfs, plan(&slices, Sharing::Orchestra { sockets }));
        }
    }
}
