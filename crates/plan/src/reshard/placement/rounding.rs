//! Assigns the split chunks of an optimal placement to single servers.
//!
//! Consider the graph of split chunks and the servers that share them. Around a cycle, units can be
//! shifted at no cost, because every part of a chunk has the same value, prices included. So units
//! are shifted until a part is used up, and this is repeated until no cycle is left. In a forest in
//! which each chunk has at least two servers, every chunk can get a server of its own: root each
//! tree at a server, and give each chunk one of the servers below it. So there are fewer split
//! chunks than servers, and one per server suffices (Lenstra, Shmoys and Tardos, 1990). Among such
//! assignments the one that keeps the most weight is chosen.

use std::collections::{BTreeMap, BTreeSet};

use super::transport::{Sizes, Solution, solve};
use super::weights::Weights;

/// Returns one server for each chunk of a solution. A split chunk goes to one of its servers, and no two split chunks
/// go to the same one.
pub(super) fn whole(weights: &Weights, sizes: &[u64], solution: &Solution) -> Vec<u32> {
    let mut server_of = solution.server_of.clone();
    let mut split = Vec::new();
    for (chunk, parts) in Forest::new(&solution.split).into_parts() {
        let units: u64 = parts.values().sum();
        assert_eq!(units, sizes[chunk as usize], "units of chunk {chunk} got lost: {parts:?}");
        server_of[chunk as usize] = *parts.keys().next().expect("a chunk has a part");
        if parts.len() > 1 {
            split.push((chunk, parts));
        }
    }
    for (chunk, server) in one_each(weights, &split) {
        server_of[chunk as usize] = server;
    }
    server_of
}

/// Returns a distinct server for each chunk, among those with a part of it, such that the most
/// weight stays.
fn one_each(weights: &Weights, split: &[(u32, BTreeMap<u32, u64>)]) -> Vec<(u32, u32)> {
    if split.is_empty() {
        return Vec::new();
    }
    // A bonus makes any server with a part worth more than all weight that could stay elsewhere.
    // Weights too large for that lose their lowest bits: this choice need not be exact.
    let total = split.iter().map(|(chunk, _)| weights.chunk_total(*chunk as usize)).sum::<u64>();
    let shift = (64 - total.leading_zeros()).saturating_sub(44);
    let bonus = (total >> shift) + 1;
    let mut worth = Weights::new(weights.servers()).expect("as many servers as there are");
    for (chunk, parts) in split {
        let weight = |server: &u32| weights.get(*chunk as usize, *server as usize) >> shift;
        let row = parts.keys().map(|server| (*server as usize, bonus + weight(server)));
        worth.push(row).expect("a bonus of 44 bits for two servers of each server's chunk fits");
    }
    let chosen = solve(&worth, Sizes::One, &vec![1; weights.servers()]).server_of;
    let own = |((chunk, parts), server): (&(u32, BTreeMap<u32, u64>), u32)| {
        assert!(parts.contains_key(&server), "chunk {chunk} has no server of its own: {parts:?}");
        (*chunk, server)
    };
    split.iter().zip(chosen).map(own).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Chunk(u32),
    Server(u32),
}

/// Parts of chunks as the edges of an acyclic graph of chunks and servers.
#[derive(Debug, Default)]
struct Forest {
    parts: BTreeMap<u32, BTreeMap<u32, u64>>,
    chunks_at: BTreeMap<u32, BTreeSet<u32>>,
}

impl Forest {
    fn new(split: &BTreeMap<u32, Vec<(u32, u64)>>) -> Self {
        let mut forest = Self::default();
        for (chunk, parts) in split {
            for (server, units) in parts {
                forest.add(*chunk, *server, *units);
            }
        }
        forest
    }

    fn into_parts(self) -> BTreeMap<u32, BTreeMap<u32, u64>> {
        self.parts
    }

    /// Adds a part of a chunk at a server. If the part closes a cycle, shifts units around the cycle until a part is
    /// used up.
    fn add(&mut self, chunk: u32, server: u32, units: u64) {
        let path = self.path(chunk, server);
        self.set(chunk, server, units);
        let Some(path) = path else {
            return;
        };
        // The new part and every second one of the path lose units, the others gain them.
        let mut less = vec![(chunk, server)];
        let mut more = Vec::new();
        for (index, part) in path.into_iter().enumerate() {
            if index % 2 == 0 { more.push(part) } else { less.push(part) }
        }
        let units = |(chunk, server): &(u32, u32)| self.parts[chunk][server];
        let shifted = less.iter().map(units).min().unwrap_or(0);
        for (chunk, server) in less {
            self.set(chunk, server, self.parts[&chunk][&server] - shifted);
        }
        for (chunk, server) in more {
            self.set(chunk, server, self.parts[&chunk][&server] + shifted);
        }
    }

    fn set(&mut self, chunk: u32, server: u32, units: u64) {
        let parts = self.parts.entry(chunk).or_default();
        let chunks = self.chunks_at.entry(server).or_default();
        if units > 0 {
            parts.insert(server, units);
            chunks.insert(chunk);
        } else {
            parts.remove(&server);
            chunks.remove(&chunk);
        }
    }

    fn neighbours(&self, node: Node) -> Vec<Node> {
        match node {
            Node::Chunk(chunk) => self.parts.get(&chunk).map_or(Vec::new(), |parts| {
                parts.keys().map(|server| Node::Server(*server)).collect()
            }),
            Node::Server(server) => self.chunks_at.get(&server).map_or(Vec::new(), |chunks| {
                chunks.iter().map(|chunk| Node::Chunk(*chunk)).collect()
            }),
        }
    }

    /// Returns the parts on the path from a chunk to a server, the first one at the chunk; `None` if chunk and server
    /// are in different trees.
    fn path(&self, chunk: u32, server: u32) -> Option<Vec<(u32, u32)>> {
        let (from, to) = (Node::Chunk(chunk), Node::Server(server));
        let mut before = BTreeMap::from([(to, to)]);
        let mut open = vec![to];
        while let Some(node) = open.pop() {
            for next in self.neighbours(node) {
                before.entry(next).or_insert_with(|| {
                    open.push(next);
                    node
                });
            }
        }
        let mut node = from;
        let mut path = Vec::new();
        while node != to {
            let next = *before.get(&node)?;
            path.push(match (node, next) {
                (Node::Chunk(chunk), Node::Server(server))
                | (Node::Server(server), Node::Chunk(chunk)) => (chunk, server),
                _ => unreachable!("a part joins a chunk and a server"),
            });
            node = next;
        }
        Some(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shifting_keeps_what_each_chunk_and_each_server_has_and_leaves_a_forest(
            parts in prop::collection::btree_map((0_u32..12, 0_u32..6), 1_u64..20, 1..40)
        ) {
            let mut split: BTreeMap<u32, Vec<(u32, u64)>> = BTreeMap::new();
            let (mut of_chunk, mut of_server) = (BTreeMap::new(), BTreeMap::new());
            for ((chunk, server), units) in parts {
                split.entry(chunk).or_default().push((server, units));
                *of_chunk.entry(chunk).or_insert(0) += units;
                *of_server.entry(server).or_insert(0) += units;
            }
            let parts = Forest::new(&split).into_parts();
            let (mut chunks, mut servers) = (BTreeMap::new(), BTreeMap::new());
            for (chunk, parts) in &parts {
                for (server, units) in parts {
                    prop_assert!(*units > 0);
                    *chunks.entry(*chunk).or_insert(0) += units;
                    *servers.entry(*server).or_insert(0) += units;
                }
            }
            prop_assert!(is_forest(&parts), "a cycle in {parts:?}");
            prop_assert_eq!((chunks, servers), (of_chunk, of_server));
        }
    }

    /// True if no edge joins two nodes of one component.
    fn is_forest(parts: &BTreeMap<u32, BTreeMap<u32, u64>>) -> bool {
        let mut component: BTreeMap<(bool, u32), usize> = BTreeMap::new();
        let edges = parts.iter().flat_map(|(chunk, parts)| parts.keys().map(|of| (*chunk, *of)));
        for (chunk, server) in edges {
            let ends = [(true, chunk), (false, server)].map(|node| {
                let fresh = component.len();
                *component.entry(node).or_insert(fresh)
            });
            if ends[0] == ends[1] {
                return false;
            }
            component.values_mut().filter(|of| **of == ends[1]).for_each(|of| *of = ends[0]);
        }
        true
    }

    #[test]
    fn a_cycle_beside_another_tree_is_seen() {
        // Four edges on two chunks and two servers, and a tree: fewer edges than nodes in all.
        let both: BTreeMap<u32, u64> = [(0, 1), (1, 1)].into();
        let mut parts: BTreeMap<_, _> = [(0, both.clone()), (1, both), (7, [(5, 3)].into())].into();
        assert!(!is_forest(&parts));
        parts.remove(&0);
        assert!(is_forest(&parts));
    }
}
