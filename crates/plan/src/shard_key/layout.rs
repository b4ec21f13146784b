//! The chunks of a collection under a key, and the shard of each.
//!
//! A planned layout is made as the plan of a change of the key makes it (`imago_plan::reshard`): chunks of equal size
//! from a sample, placed with the least movement such that each shard has its share of them.

use crate::copy::split_points::{slice_of, weighted_cuts};
use crate::reshard::placement::{self, PlacementError, Shares, Weights};

use super::{Documents, Key, Point};

/// The chunks of a key, with their shards and sizes.
#[derive(Clone, Debug)]
pub struct Layout {
    pub(super) key: Key,
    /// Lower bounds of the chunks, but for the first.
    cuts: Vec<Point>,
    /// Shard of each chunk.
    shard_of: Vec<u16>,
    /// For each chunk, the first later one that is on another shard.
    next_other: Vec<u32>,
    /// Bytes of each chunk.
    chunk_bytes: Vec<u64>,
    /// Number of the cluster's shards.
    shards: usize,
    /// Bytes that move to another shard when the layout is made.
    moved_bytes: u64,
}

/// A layout cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The sample has no document.
    #[error("the collection has no documents to sample")]
    NoDocuments,
    /// The chunks cannot be placed.
    #[error(transparent)]
    Placement(#[from] PlacementError),
}

impl Layout {
    /// Returns the layout that a change to `key` would make: at most `chunks` chunks, on the shards that have a share.
    ///
    /// # Errors
    /// [`LayoutError`]: there are no documents, or chunks cannot be placed.
    pub fn planned(
        documents: &Documents,
        key: Key,
        chunks: usize,
        shares: &Shares,
    ) -> Result<Self, LayoutError> {
        if documents.is_empty() {
            return Err(LayoutError::NoDocuments);
        }
        let points: Vec<Point> =
            (0..documents.len()).map(|index| documents.point(index, &key)).collect();
        let weighted = points.iter().zip(documents.documents());
        let cuts = weighted_cuts(weighted.map(|(at, of)| (*at, of.bytes.max(1))).collect(), chunks);
        let mut rows = vec![vec![0; shares.servers()]; cuts.len() + 1];
        for (at, document) in points.iter().zip(documents.documents()) {
            rows[slice_of(&cuts, at)][usize::from(document.shard)] += document.bytes;
        }
        let weights = Weights::dense(shares.servers(), &rows)?;
        let placed = placement::balanced(&weights, shares)?;
        let moved_bytes = placed.moved;
        let shard_of = placed.server_of.iter().map(|shard| *shard as u16).collect();
        let chunk_bytes = rows.iter().map(|row| row.iter().sum()).collect();
        Ok(Self::new(key, cuts, shard_of, chunk_bytes, shares.servers(), moved_bytes))
    }

    /// Returns the layout that a collection has: `chunks` are the lower bounds of its chunks with their shards, in
    /// order, that of the first one included. The cluster has `shards` shards.
    ///
    /// # Panics
    /// If there is no chunk.
    #[must_use]
    pub fn present(
        documents: &Documents,
        key: Key,
        chunks: &[(Point, u16)],
        shards: usize,
    ) -> Self {
        assert!(!chunks.is_empty(), "a collection has a chunk");
        let cuts: Vec<Point> = chunks[1..].iter().map(|(min, _)| *min).collect();
        let shard_of: Vec<u16> = chunks.iter().map(|(_, shard)| *shard).collect();
        let mut chunk_bytes = vec![0; chunks.len()];
        for (index, document) in documents.documents().iter().enumerate() {
            chunk_bytes[slice_of(&cuts, &documents.point(index, &key))] += document.bytes;
        }
        Self::new(key, cuts, shard_of, chunk_bytes, shards, 0)
    }

    fn new(
        key: Key,
        cuts: Vec<Point>,
        shard_of: Vec<u16>,
        chunk_bytes: Vec<u64>,
        shards: usize,
        moved_bytes: u64,
    ) -> Self {
        let mut next_other = vec![shard_of.len() as u32; shard_of.len()];
        for chunk in (0..shard_of.len().saturating_sub(1)).rev() {
            let is_same = shard_of[chunk] == shard_of[chunk + 1];
            next_other[chunk] = if is_same { next_other[chunk + 1] } else { chunk as u32 + 1 };
        }
        Self { key, cuts, shard_of, next_other, chunk_bytes, shards, moved_bytes }
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the number of the cluster's shards.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// Returns the number of chunks.
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.shard_of.len()
    }

    /// Returns the shard of `chunk`.
    pub(super) fn shard_of(&self, chunk: usize) -> u16 {
        self.shard_of[chunk]
    }

    /// Returns the first chunk after `chunk` that is on another shard; the number of chunks if there is none.
    pub(super) fn next_other(&self, chunk: usize) -> usize {
        self.next_other[chunk] as usize
    }

    /// Returns the chunk that holds `point`.
    pub(super) fn chunk_of(&self, point: &Point) -> usize {
        slice_of(&self.cuts, point)
    }

    /// Returns the bytes on each shard.
    #[must_use]
    pub fn bytes(&self) -> Vec<u64> {
        let mut bytes = vec![0; self.shards];
        for (chunk, shard) in self.shard_of.iter().enumerate() {
            bytes[usize::from(*shard)] += self.chunk_bytes[chunk];
        }
        bytes
    }

    /// Returns the size of the largest chunk, in bytes.
    #[must_use]
    pub fn largest_chunk_bytes(&self) -> u64 {
        self.chunk_bytes.iter().copied().max().unwrap_or(0)
    }

    /// Returns the bytes that move to another shard when the layout is made.
    #[must_use]
    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }
}
