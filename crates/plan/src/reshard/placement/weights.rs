//! The amount of each new chunk's data on each server before the move: Morphus' `W[chunk][server]`
//! (§3.1).
//!
//! Rows are sparse, because chunks of correlated keys lie on few servers. They are stored in two
//! flat arrays, because a hundred thousand rows of a hundred servers are ten million weights. The
//! weight is the quantity whose movement is minimised: documents, bytes, or operations.
//!
//! Invariant: within a row servers increase and weights are positive; the sum of all weights is at
//! most [`Weights::TOTAL_MAX`], so that no sum and no difference in the solver can overflow.

use super::PlacementError;

/// The weights of all new chunks on all servers, as a sparse matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights {
    servers: usize,
    /// Row `c` is `starts[c]..starts[c + 1]` of the two arrays below.
    starts: Vec<usize>,
    server: Vec<u32>,
    weight: Vec<u64>,
    total: u64,
}

impl Weights {
    /// Largest sum of all weights: 2⁵⁶, that is 64 PiB if the weight is bytes. The solver's prices
    /// differ by at most twice this for each doubling of the number of chunks, and so stay below
    /// 2⁶³.
    pub const TOTAL_MAX: u64 = 1 << 56;

    /// Largest number of servers that is supported. The solver stores a few words for each pair of them.
    pub const SERVERS_MAX: usize = 1024;

    /// Largest number of chunks that is supported.
    pub const CHUNKS_MAX: usize = 1 << 26;

    /// Creates an empty matrix of weights, without chunks, on `servers` servers.
    ///
    /// # Errors
    /// If there is no server, or more than [`Weights::SERVERS_MAX`].
    pub fn new(servers: usize) -> Result<Self, PlacementError> {
        if servers == 0 || servers > Self::SERVERS_MAX {
            return Err(PlacementError::Servers { servers });
        }
        Ok(Self { servers, starts: vec![0], server: Vec::new(), weight: Vec::new(), total: 0 })
    }

    /// Creates weights from one row per chunk, each with one weight per server.
    ///
    /// # Errors
    /// As [`Weights::new`] and [`Weights::push`].
    pub fn dense<R: AsRef<[u64]>>(servers: usize, rows: &[R]) -> Result<Self, PlacementError> {
        let mut weights = Self::new(servers)?;
        for row in rows {
            weights.push(row.as_ref().iter().copied().enumerate())?;
        }
        Ok(weights)
    }

    /// Adds the next chunk, given by its weights as (server, weight) pairs. Weights of a server that occurs twice are
    /// added; a server that does not occur has weight zero.
    ///
    /// # Errors
    /// If there are too many chunks, a server does not exist, or the sum of all weights becomes too
    /// large; then no chunk is added.
    pub fn push(
        &mut self,
        row: impl IntoIterator<Item = (usize, u64)>,
    ) -> Result<(), PlacementError> {
        let start = self.server.len();
        let added = self.append(row, start);
        if added.is_err() {
            self.server.truncate(start);
            self.weight.truncate(start);
        }
        self.total = added?;
        self.starts.push(self.server.len());
        Ok(())
    }

    /// Appends a row to the flat arrays, and returns the sum of all weights including the row.
    fn append(
        &mut self,
        row: impl IntoIterator<Item = (usize, u64)>,
        start: usize,
    ) -> Result<u64, PlacementError> {
        if self.chunks() == Self::CHUNKS_MAX {
            return Err(PlacementError::Chunks);
        }
        let mut total = self.total;
        for (server, weight) in row.into_iter().filter(|(_, weight)| *weight > 0) {
            if server >= self.servers {
                return Err(PlacementError::NoSuchServer { server, servers: self.servers });
            }
            total = total
                .checked_add(weight)
                .filter(|sum| *sum <= Self::TOTAL_MAX)
                .ok_or(PlacementError::TooMuch { what: "weights", chunk: self.chunks() })?;
            self.server.push(server as u32);
            self.weight.push(weight);
        }
        if !self.server[start..].is_sorted_by(|a, b| a < b) {
            self.sort_and_sum(start);
        }
        Ok(total)
    }

    fn sort_and_sum(&mut self, start: usize) {
        let mut row: Vec<(u32, u64)> =
            self.server.drain(start..).zip(self.weight.drain(start..)).collect();
        row.sort_unstable();
        for (server, weight) in row {
            match self.server[start..].last() {
                Some(last) if *last == server => *self.weight.last_mut().expect("a pair") += weight,
                _ => {
                    self.server.push(server);
                    self.weight.push(weight);
                }
            }
        }
    }

    /// Returns the number of chunks (rows).
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the number of servers (columns).
    #[must_use]
    pub fn servers(&self) -> usize {
        self.servers
    }

    /// Returns the sum of the weights of all chunks on all servers.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the servers that hold part of the chunk with index `chunk`, in increasing order, with its weight on
    /// each.
    ///
    /// # Panics
    /// If there is no such chunk.
    pub fn row(&self, chunk: usize) -> impl ExactSizeIterator<Item = (usize, u64)> + Clone + '_ {
        let range = self.starts[chunk]..self.starts[chunk + 1];
        let servers = self.server[range.clone()].iter();
        servers.zip(&self.weight[range]).map(|(server, weight)| (*server as usize, *weight))
    }

    /// Returns the weight of the chunk with index `chunk` on the server with index `server`; 0 if the server holds
    /// none of it.
    ///
    /// # Panics
    /// If there is no such chunk.
    #[must_use]
    pub fn get(&self, chunk: usize, server: usize) -> u64 {
        let range = self.starts[chunk]..self.starts[chunk + 1];
        let weights = &self.weight[range.clone()];
        if weights.len() == self.servers {
            // A row with all servers needs no search.
            return weights.get(server).copied().unwrap_or(0);
        }
        self.server[range].binary_search(&(server as u32)).map_or(0, |at| weights[at])
    }

    /// Returns the weights on the given servers only, which must be in increasing order and are
    /// renumbered from 0.
    pub(super) fn restrict(&self, servers: &[usize]) -> Self {
        let mut number = vec![None; self.servers];
        for (new, old) in servers.iter().enumerate() {
            number[*old] = Some(new);
        }
        self.map(servers.len(), |_, server, weight| Some((number[server]?, weight)))
    }

    /// Returns weights with the same number of chunks, each entry replaced by `change(chunk,
    /// server, weight)` or dropped if that is None. The change must preserve the order of servers
    /// and keep the sum in range.
    pub(super) fn map(
        &self,
        servers: usize,
        change: impl Fn(usize, usize, u64) -> Option<(usize, u64)>,
    ) -> Self {
        let mut mapped = Self::new(servers).expect("fewer servers than there were");
        for chunk in 0..self.chunks() {
            let row = self.row(chunk).filter_map(|(server, weight)| change(chunk, server, weight));
            mapped.push(row).expect("the caller knows that it fits");
        }
        mapped
    }

    /// Returns the total weight of the chunk with index `chunk` on all servers.
    ///
    /// # Panics
    /// If there is no such chunk.
    #[must_use]
    pub fn chunk_total(&self, chunk: usize) -> u64 {
        self.row(chunk).map(|(_, weight)| weight).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_row_is_summed_by_server_and_sorted() {
        let mut weights = Weights::new(4).unwrap();
        weights.push([(2, 5), (0, 1), (2, 7), (1, 0)]).unwrap();
        assert_eq!(weights.row(0).collect::<Vec<_>>(), [(0, 1), (2, 12)]);
        assert_eq!((weights.total(), weights.chunk_total(0)), (13, 13));
    }

    #[test]
    fn a_refused_row_leaves_nothing_behind() {
        let mut weights = Weights::new(2).unwrap();
        weights.push([(0, 1)]).unwrap();
        let before = weights.clone();
        let refused = weights.push([(1, 5), (2, 1)]);
        assert_eq!(refused, Err(PlacementError::NoSuchServer { server: 2, servers: 2 }));
        let refused = weights.push([(1, 5), (0, Weights::TOTAL_MAX)]);
        assert_eq!(refused, Err(PlacementError::TooMuch { what: "weights", chunk: 1 }));
        assert_eq!(weights, before);
    }

    #[test]
    fn the_number_of_servers_is_bounded() {
        assert_eq!(Weights::new(0), Err(PlacementError::Servers { servers: 0 }));
        assert!(Weights::new(Weights::SERVERS_MAX).is_ok());
        assert!(Weights::new(Weights::SERVERS_MAX + 1).is_err());
    }

    proptest! {
        #[test]
        fn what_was_put_in_comes_out(
            rows in prop::collection::vec(prop::collection::vec(0_u64..4, 5), 0..20)
        ) {
            let weights = Weights::dense(5, &rows).unwrap();
            prop_assert_eq!(weights.chunks(), rows.len());
            for (chunk, row) in rows.iter().enumerate() {
                for (server, weight) in row.iter().enumerate() {
                    prop_assert_eq!(weights.get(chunk, server), *weight);
                }
                prop_assert_eq!(weights.chunk_total(chunk), row.iter().sum::<u64>());
            }
        }
    }
}
