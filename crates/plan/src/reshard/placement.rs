//! Places each new chunk on a server, with the least data movement (Morphus, §3).
//!
//! A chunk placed on server `s` moves all of its documents that are not on `s` already. Three
//! placements are the paper's: *random*; *greedy*, each chunk on the server that holds most of it,
//! which moves the least possible (Lemma 1) but may overload a server; and *balanced*, the least
//! movement with at most ⌈m/N⌉ of m chunks on each of N servers (Lemma 2). The paper computes the
//! balanced placement with the Hungarian algorithm in O(m³). Here it is solved exactly as a
//! transportation problem, in time roughly proportional to m·N.
//!
//! Scaling out, scaling in and changing the chunk size are the same problem with other [`Shares`]
//! or other chunks: an added server has a share and no weights, a drained one has no share. The
//! limit of a server is a share, a number of chunks ([`capped`]), or a size ([`fitted`], where an
//! exact solution is NP-hard and a bound gives the distance from the optimum).
//!
//! Invariants: every chunk is placed on exactly one server, which has a share or a capacity; the
//! same input gives the same placement.

mod bytes;
mod offers;
mod outcome;
mod rounding;
mod shares;
mod transport;
mod weights;

use rand::Rng;

pub use bytes::{Fitted, fitted};
pub use outcome::{Flows, Placement};
pub use shares::Shares;
pub use weights::Weights;

use transport::{Sizes, solve};

/// The reason why a placement of chunks on servers cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// There are no servers, or more than the maximum.
    #[error("{servers} servers: a placement needs 1 to {}", Weights::SERVERS_MAX)]
    Servers {
        /// Number of servers that were given.
        servers: usize,
    },
    /// A weight names a server that does not exist.
    #[error("there is a weight on server {server}, but servers are 0 to {}", servers - 1)]
    NoSuchServer {
        /// Index of the server that the weight names.
        server: usize,
        /// Number of servers that exist.
        servers: usize,
    },
    /// A sum exceeds the range in which the solver is exact.
    #[error(
        "the {what} up to chunk {chunk} sum up to more than {}: use a larger unit",
        Weights::TOTAL_MAX
    )]
    TooMuch {
        /// The quantity that was summed: weights or sizes.
        what: &'static str,
        /// Index of the chunk at which the sum of weights or sizes exceeded the range.
        chunk: usize,
    },
    /// There are more chunks than [`Weights::CHUNKS_MAX`].
    #[error("a placement has at most {} chunks: make them larger", Weights::CHUNKS_MAX)]
    Chunks,
    /// No server has a share or a capacity.
    #[error("no server may hold anything: give at least one a share or a capacity")]
    NoShares,
    /// Two inputs disagree on the number of chunks or servers.
    #[error("{given} {what}, but there are {expected}")]
    Mismatch {
        /// The quantity whose number is wrong.
        what: &'static str,
        /// Number of elements that were passed.
        given: usize,
        /// Number of elements that were expected.
        expected: usize,
    },
    /// The total capacity of all servers is too small.
    #[error("{needed} are to be placed, but the servers have room for {room}: add capacity")]
    NoRoom {
        /// Amount to place: a number of chunks, or units of size.
        needed: u128,
        /// Total capacity of the servers, in the same unit.
        room: u128,
    },
}

/// Places each chunk on a server drawn at random, with probability proportional to the server's
/// share.
///
/// # Errors
/// If the number of shares is not the number of servers in `weights`.
pub fn random<R: Rng + ?Sized>(
    weights: &Weights,
    shares: &Shares,
    rng: &mut R,
) -> Result<Placement, PlacementError> {
    same_servers("shares", shares.servers(), weights)?;
    let server_of = (0..weights.chunks()).map(|_| shares.pick(rng.next_u64())).collect();
    let least = weights.total() - unmoved_weight(weights, &fullest(weights, shares));
    Ok(Placement::new(weights, server_of, least))
}

/// Places each chunk on the server that holds most of it, among those with a share; ties go to the
/// first server. No placement moves less (Lemma 1).
///
/// # Errors
/// If the number of shares is not the number of servers in `weights`.
pub fn greedy(weights: &Weights, shares: &Shares) -> Result<Placement, PlacementError> {
    same_servers("shares", shares.servers(), weights)?;
    let server_of = fullest(weights, shares);
    let least = weights.total() - unmoved_weight(weights, &server_of);
    Ok(Placement::new(weights, server_of, least))
}

/// Places the chunks with the least movement such that no server gets more than its share of them,
/// rounded up (Lemma 2).
///
/// # Errors
/// If the number of shares is not the number of servers in `weights`.
pub fn balanced(weights: &Weights, shares: &Shares) -> Result<Placement, PlacementError> {
    same_servers("shares", shares.servers(), weights)?;
    capped(weights, &shares.caps(weights.chunks() as u64))
}

/// Places the chunks with the least movement such that the server with index `server` gets at most `caps[server]` of
/// them.
///
/// # Errors
/// If the number of caps is not the number of servers in `weights`, or the caps sum up to less than
/// the number of chunks.
pub fn capped(weights: &Weights, caps: &[u64]) -> Result<Placement, PlacementError> {
    same_servers("caps", caps.len(), weights)?;
    let (needed, room) = (weights.chunks() as u128, sum(caps));
    if needed > room {
        return Err(PlacementError::NoRoom { needed, room });
    }
    if needed == 0 {
        return Ok(Placement::new(weights, Vec::new(), 0));
    }
    let open = Open::new(caps);
    let solution = solve(&open.restrict(weights), Sizes::One, &open.caps(caps));
    let server_of = open.servers(&solution.server_of);
    let least = weights.total() - unmoved_weight(weights, &server_of);
    Ok(Placement::new(weights, server_of, least))
}

/// The servers with a positive cap. Only these are passed to the solver.
struct Open {
    servers: Vec<usize>,
    of: usize,
}

impl Open {
    fn new(caps: &[u64]) -> Self {
        let servers = (0..caps.len()).filter(|server| caps[*server] > 0).collect();
        Self { servers, of: caps.len() }
    }

    fn restrict<'a>(&self, weights: &'a Weights) -> std::borrow::Cow<'a, Weights> {
        if self.servers.len() == self.of {
            return std::borrow::Cow::Borrowed(weights);
        }
        std::borrow::Cow::Owned(weights.restrict(&self.servers))
    }

    fn caps(&self, caps: &[u64]) -> Vec<u64> {
        self.servers.iter().map(|server| caps[*server]).collect()
    }

    /// Maps the solver's server numbers back to those of the caller.
    fn servers(&self, chosen: &[u32]) -> Vec<usize> {
        chosen.iter().map(|server| self.servers[*server as usize]).collect()
    }
}

fn same_servers(what: &'static str, given: usize, weights: &Weights) -> Result<(), PlacementError> {
    let expected = weights.servers();
    if given == expected { Ok(()) } else { Err(PlacementError::Mismatch { what, given, expected }) }
}

fn sum(parts: &[u64]) -> u128 {
    parts.iter().map(|part| u128::from(*part)).sum()
}

/// Returns for each chunk the server that holds most of it, among those with a share.
fn fullest(weights: &Weights, shares: &Shares) -> Vec<usize> {
    let first = (0..shares.servers()).find(|server| shares.is_open(*server)).unwrap_or(0);
    let server_of = |chunk| {
        let held = weights.row(chunk).filter(|(server, _)| shares.is_open(*server));
        let most = held.max_by_key(|(server, weight)| (*weight, std::cmp::Reverse(*server)));
        most.map_or(first, |(server, _)| server)
    };
    (0..weights.chunks()).map(server_of).collect()
}

/// Returns the total weight that stays on its server if each chunk goes to its server in `server_of`.
fn unmoved_weight(weights: &Weights, server_of: &[usize]) -> u64 {
    server_of.iter().enumerate().map(|(chunk, server)| weights.get(chunk, *server)).sum()
}

#[cfg(test)]
mod tests;
