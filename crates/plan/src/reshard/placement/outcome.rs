//! The effect of a placement: the movement between servers, and their loads before and after.

use super::Shares;
use super::weights::Weights;

/// The server of each chunk, and the effect of that choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Index of the new server of each chunk.
    pub server_of: Vec<usize>,
    /// Total weight that changes its server, in the unit of the weights.
    pub moved: u64,
    /// Lower bound on the weight that any placement within the same caps moves. It equals `moved`,
    /// except for a random placement (which has no caps) and for [`super::fitted`].
    pub moved_least: u64,
    /// Moved weight by ordered pair of servers.
    pub flows: Flows,
    /// Load of each server before the move, in the unit of the weights.
    pub before: Vec<u64>,
    /// Load of each server after the move, in the unit of the weights.
    pub after: Vec<u64>,
    /// Number of chunks on each server after the move.
    pub chunks: Vec<u64>,
}

impl Placement {
    pub(super) fn new(weights: &Weights, server_of: Vec<usize>, moved_least: u64) -> Self {
        let servers = weights.servers();
        let mut flows = Flows { servers, amounts: vec![0; servers * servers] };
        let (mut before, mut after) = (vec![0; servers], vec![0; servers]);
        let mut chunks = vec![0; servers];
        for (chunk, to) in server_of.iter().enumerate() {
            chunks[*to] += 1;
            for (from, weight) in weights.row(chunk) {
                before[from] += weight;
                after[*to] += weight;
                if from != *to {
                    flows.amounts[from * servers + to] += weight;
                }
            }
        }
        let moved = flows.total();
        assert!(moved_least <= moved, "a bound of {moved_least} above the {moved} moved");
        Self { server_of, moved, moved_least, flows, before, after, chunks }
    }

    /// Returns the largest ratio of a server's load to its share of the weight, before and after
    /// the move: 1 is perfect balance; infinite if a server without a share holds anything; 1 if
    /// there is no weight.
    ///
    /// # Panics
    /// If the number of shares is not the number of servers.
    #[must_use]
    pub fn imbalance(&self, shares: &Shares) -> (f64, f64) {
        (shares.imbalance(&self.before), shares.imbalance(&self.after))
    }
}

/// The amount of data that moves between each ordered pair of servers; zero from a server to itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flows {
    servers: usize,
    amounts: Vec<u64>,
}

impl Flows {
    /// Returns the number of servers between which data moves.
    #[must_use]
    pub fn servers(&self) -> usize {
        self.servers
    }

    /// Returns the amount that moves from one server to another, in the unit of the weights.
    ///
    /// # Panics
    /// If there is no such server.
    #[must_use]
    pub fn get(&self, from: usize, to: usize) -> u64 {
        assert!(from < self.servers && to < self.servers, "no servers {from}, {to}");
        self.amounts[from * self.servers + to]
    }

    /// Returns the pairs with a positive amount, as (from, to, amount), ordered by source and
    /// destination.
    pub fn iter(&self) -> impl Iterator<Item = (usize, usize, u64)> + '_ {
        let pairs = self.amounts.iter().enumerate().filter(|(_, amount)| **amount > 0);
        pairs.map(|(pair, amount)| (pair / self.servers, pair % self.servers, *amount))
    }

    /// Returns the total amount that moves between servers, in the unit of the weights.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.amounts.iter().sum()
    }
}
