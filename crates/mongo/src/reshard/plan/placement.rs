//! Placement of the new chunks, by the requested rule and by others for comparison, and the connections that carry
//! them.
//!
//! [`imago_plan::reshard::placement`] and [`imago_plan::reshard::flow`] decide; this module supplies the sizes in
//! bytes, and reports the results in documents too.

use imago_plan::reshard::flow::{self, Latencies, Sharing};
use imago_plan::reshard::placement::{self, Flows, Placement, PlacementError, Shares, Weights};
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::error::{Error, Result};
use crate::server::collection::Size;

use crate::reshard::plan::chunk_weights::sum;
use crate::reshard::plan::{Compared, Flow, Flowing, Placing};

/// Seed of the random placement; it is constant, so that a plan is reproducible.
const SEED: u64 = 0x1346_0001;
/// Default number of connections for each pair of shards with documents to move, on average.
const SOCKETS_PER_FLOW: u32 = 2;

/// Inputs of a placement: the sizes of the chunks on each shard, and the shares of the shards.
pub(in crate::reshard) struct Choice<'a> {
    rows: &'a [Vec<Size>],
    bytes: Weights,
    shares: Shares,
}

/// A placement of the chunks (`server_of[chunk]` is the index of its shard), and the movement of documents that it
/// causes.
pub(in crate::reshard) struct Chosen {
    pub(in crate::reshard) server_of: Vec<usize>,
    pub(in crate::reshard) moved: Size,
    /// Ratio of the fullest shard's content to its share: before the change, with equal shares of all shards, and
    /// after it, with equal shares of those that may have chunks.
    pub(in crate::reshard) imbalance: (f64, f64),
    /// Size of the collection's documents on each shard after the change.
    pub(in crate::reshard) after: Vec<Size>,
    /// Size of the documents that move from each shard to each other one, in bytes.
    pub(in crate::reshard) bytes: Flows,
}

impl<'a> Choice<'a> {
    /// Returns the inputs of a placement. `rows[chunk][shard]` are the sizes of the chunks, `open` states for each
    /// shard whether it may get chunks.
    pub(in crate::reshard) fn new(rows: &'a [Vec<Size>], open: &[bool]) -> Result<Self> {
        let mut bytes = Weights::new(open.len()).map_err(|error| refused(&error))?;
        for row in rows {
            let row = row.iter().map(|size| size.bytes).enumerate();
            bytes.push(row).map_err(|error| refused(&error))?;
        }
        let shares = Shares::new(open.iter().map(|open| u64::from(*open)).collect());
        Ok(Self { rows, bytes, shares: shares.map_err(|error| refused(&error))? })
    }

    /// Places the chunks by the rule `placing`.
    pub(in crate::reshard) fn place(&self, placing: Placing) -> Result<Chosen> {
        let placed = match placing {
            Placing::Balanced => placement::balanced(&self.bytes, &self.shares),
            Placing::Greedy => placement::greedy(&self.bytes, &self.shares),
            Placing::Random => {
                placement::random(&self.bytes, &self.shares, &mut StdRng::seed_from_u64(SEED))
            }
        };
        self.chosen(&placed.map_err(|error| refused(&error))?)
    }

    fn chosen(&self, placed: &Placement) -> Result<Chosen> {
        let server_of = placed.server_of.clone();
        let mut after = vec![Size::default(); self.bytes.servers()];
        for (row, to) in self.rows.iter().zip(&server_of) {
            after[*to] = sum([after[*to]].into_iter().chain(row.iter().copied()));
        }
        // A shard that is to be emptied has a share until it is empty.
        let all = Shares::equal(self.shares.servers()).map_err(|error| refused(&error))?;
        let imbalance = (all.imbalance(&placed.before), self.shares.imbalance(&placed.after));
        let (moved, bytes) = (self.moved(&server_of), placed.flows.clone());
        Ok(Chosen { server_of, moved, imbalance, after, bytes })
    }

    /// Returns the size of the documents that move to another shard, if the chunk `c` goes to the shard
    /// `server_of[c]`.
    fn moved(&self, server_of: &[usize]) -> Size {
        let moving = self.rows.iter().zip(server_of).flat_map(|(row, to)| {
            row.iter().enumerate().filter(move |(from, _)| from != to).map(|(_, size)| *size)
        });
        sum(moving)
    }

    /// Returns the mean effect of the server's own `reshardCollection`. The server cuts the key space by a sample
    /// too, and assigns the chunks in turn to shards in a random order, regardless of where their data is. The mean
    /// is over the shard at which the assignment begins.
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    pub(in crate::reshard) fn server(&self) -> Compared {
        let open: Vec<usize> =
            (0..self.shares.servers()).filter(|shard| self.shares.is_open(*shard)).collect();
        let (mut moved, mut imbalance) = (Size::default(), 0.0);
        for first in 0..open.len() {
            let turn = |chunk| open[(first + chunk) % open.len()];
            let server_of: Vec<usize> = (0..self.rows.len()).map(turn).collect();
            let mut held = vec![0; self.shares.servers()];
            for (row, to) in self.rows.iter().zip(&server_of) {
                held[*to] += row.iter().map(|size| size.bytes).sum::<u64>();
            }
            moved = sum([moved, self.moved(&server_of)].into_iter());
            imbalance += self.shares.imbalance(&held);
        }
        let turns = open.len() as u64;
        moved = Size { documents: moved.documents / turns, bytes: moved.bytes / turns };
        Compared { placing: "server".into(), moved, imbalance: imbalance / turns as f64 }
    }

    /// Returns the flows between shards of a placement, with their connections. `sockets` is the total number of
    /// connections, or 0 for the default; `latencies` are between shards, in µs.
    pub(in crate::reshard) fn flows(
        &self,
        server_of: &[usize],
        flowing: Flowing,
        sockets: u32,
        latencies: &Latencies,
    ) -> Vec<Flow> {
        let shards = self.shares.servers();
        let mut sizes = vec![Size::default(); shards * shards];
        for (row, to) in self.rows.iter().zip(server_of) {
            for (from, size) in row.iter().enumerate().filter(|(from, _)| from != to) {
                let pair = &mut sizes[from * shards + to];
                *pair = sum([*pair, *size].into_iter());
            }
        }
        let pairs = sizes.iter().filter(|size| size.bytes > 0).count();
        let default = u32::try_from(pairs).unwrap_or(u32::MAX).saturating_mul(SOCKETS_PER_FLOW);
        let sockets = if sockets == 0 { default } else { sockets };
        let slices = flow::slices(&self.bytes, server_of);
        let sharing = match flowing {
            Flowing::Wfs => Sharing::Wfs { sockets, latencies },
            Flowing::Orchestra => Sharing::Orchestra { sockets },
            Flowing::ChunkBased => Sharing::ChunkBased,
            Flowing::Fixed => Sharing::Fixed,
        };
        let planned = flow::plan(&slices, sharing);
        let mut counts = vec![0_usize; shards * shards];
        for socket in &planned.sockets {
            counts[socket.from * shards + socket.to] += 1;
        }
        let flow = |(pair, size): (usize, &Size)| Flow {
            from: pair / shards,
            to: pair % shards,
            size: *size,
            sockets: counts[pair],
        };
        sizes.iter().enumerate().filter(|(_, size)| size.bytes > 0).map(flow).collect()
    }

    /// Returns the movement and the imbalance of the placement `chosen` by the rule `placing`.
    pub(in crate::reshard) fn compare(placing: Placing, chosen: &Chosen) -> Compared {
        let placing = match placing {
            Placing::Balanced => "balanced",
            Placing::Greedy => "greedy",
            Placing::Random => "random",
        };
        Compared { placing: placing.into(), moved: chosen.moved, imbalance: chosen.imbalance.1 }
    }
}

fn refused(error: &PlacementError) -> Error {
    Error::precondition(
        format!("the new chunks cannot be placed: {error}"),
        "choose fewer and larger chunks (--chunks), and leave a shard for them",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rows(bytes: &[[u64; 3]]) -> Vec<Vec<Size>> {
        let size = |bytes: &u64| Size { documents: bytes / 10, bytes: *bytes };
        bytes.iter().map(|row| row.iter().map(size).collect()).collect()
    }

    #[test]
    fn a_closed_shard_gets_nothing_and_sends_all_it_has() {
        let rows = rows(&[[100, 0, 0], [90, 10, 0], [0, 0, 50]]);
        let choice = Choice::new(&rows, &[false, true, true]).unwrap();
        let chosen = choice.place(Placing::Balanced).unwrap();
        assert!(chosen.server_of.iter().all(|shard| *shard != 0));
        assert_eq!(chosen.after[0], Size::default());
        assert!(chosen.moved.bytes >= 190);
    }

    #[test]
    fn the_servers_turns_move_what_chance_moves() {
        let rows = rows(&[[300, 0, 0], [0, 300, 0], [0, 0, 300]]);
        let server = Choice::new(&rows, &[true; 3]).unwrap().server();
        assert_eq!(server.moved, Size { documents: 60, bytes: 600 });
    }

    /// The least movement with at most ⌈m/N⌉ chunks on each of three shards, by trying all.
    fn least(bytes: &[[u64; 3]]) -> u64 {
        let cap = bytes.len().div_ceil(3);
        let all = 3_usize.pow(u32::try_from(bytes.len()).unwrap());
        let tries = (0..all).filter_map(|number| {
            let (mut number, mut counts, mut moved) = (number, [0; 3], 0);
            for row in bytes {
                counts[number % 3] += 1;
                moved += row.iter().sum::<u64>() - row[number % 3];
                number /= 3;
            }
            counts.iter().all(|count| *count <= cap).then_some(moved)
        });
        tries.min().unwrap()
    }

    proptest! {
        #[test]
        fn balanced_moves_the_least_and_flows_carry_exactly_that(
            bytes in prop::collection::vec([0..1_000_u64, 0..1_000, 0..1_000], 1..7),
        ) {
            let rows = rows(&bytes);
            let choice = Choice::new(&rows, &[true; 3]).unwrap();
            let chosen = choice.place(Placing::Balanced).unwrap();
            prop_assert_eq!(chosen.moved.bytes, least(&bytes));
            let latencies = Latencies::new(3, |_, _| 1);
            let flows = choice.flows(&chosen.server_of, Flowing::Wfs, 0, &latencies);
            let carried = flows.iter().map(|flow| flow.size.bytes).sum::<u64>();
            prop_assert_eq!(carried, chosen.moved.bytes);
            prop_assert!(flows.iter().all(|flow| flow.sockets > 0));
        }
    }
}
