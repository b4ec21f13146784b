//! The server of each new chunk, with the least movement (Morphus, §3).
//!
//! A chunk that goes to server `s` moves all of its documents that are not on `s` already. Three
//! placements are the paper's: *random*; *greedy*, each chunk to the server that has most of it,
//! which moves the least possible (Lemma 1) but may heap chunks up; and *balanced*, the least
//! movement with at most ⌈m/N⌉ of m chunks on each of N servers (Lemma 2). The paper finds the last
//! one with the Hungarian algorithm in O(m³); here it is solved exactly as a transportation problem,
//! in a time that grows about as m·N.
//!
//! Scaling out, scaling in and changing the chunk size are the same question with other [`Shares`] or
//! other chunks: an added server has a share and no weights, a drained one has no share. The limit of
//! a server is a share, a number of chunks ([`capped`]), or bytes ([`fitted`], where exactness would
//! be NP-hard and a bound says how far away it is).
//!
//! Invariants: every chunk is placed on one server, and never on a closed one; the same input gives
//! the same placement.

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

/// The reason why there is no placement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// No servers, or too many.
    #[error("{servers} servers: a placement needs 1 to {}", Weights::SERVERS_MAX)]
    Servers {
        /// Number of servers.
        servers: usize,
    },
    /// A weight on a server that is not there.
    #[error("there is a weight on server {server}, but servers are 0 to {}", servers - 1)]
    NoSuchServer {
        /// The server.
        server: usize,
        /// Number of servers.
        servers: usize,
    },
    /// A sum would leave the range in which the solver is exact.
    #[error(
        "the {what} up to chunk {chunk} sum up to more than {}: use a larger unit",
        Weights::TOTAL_MAX
    )]
    TooMuch {
        /// The quantity that was summed up.
        what: &'static str,
        /// The first chunk that is too much.
        chunk: usize,
    },
    /// More chunks than are supported.
    #[error("a placement has at most {} chunks: make them larger", Weights::CHUNKS_MAX)]
    Chunks,
    /// All servers are closed.
    #[error("no server may hold anything: give at least one a share or a capacity")]
    NoShares,
    /// Two inputs that should be about the same chunks or servers.
    #[error("{given} {what}, but there are {expected}")]
    Mismatch {
        /// The given value.
        what: &'static str,
        /// The number that they are for.
        given: usize,
        /// The number that they should be for.
        expected: usize,
    },
    /// All servers together are too small.
    #[error("{needed} are to be placed, but the servers have room for {room}: add capacity")]
    NoRoom {
        /// Chunks, or units of size.
        needed: u128,
        /// The same.
        room: u128,
    },
}

/// Each chunk on a server drawn at random, with the probability of the server's share.
///
/// # Errors
/// If the shares are not about the weights' servers.
pub fn random<R: Rng + ?Sized>(
    weights: &Weights,
    shares: &Shares,
    rng: &mut R,
) -> Result<Placement, PlacementError> {
    same_servers("shares", shares.servers(), weights)?;
    let server_of = (0..weights.chunks()).map(|_| shares.pick(rng.next_u64())).collect();
    let least = weights.total() - kept_by(weights, &fullest(weights, shares));
    Ok(Placement::new(weights, server_of, least))
}

/// Each chunk on the open server that holds most of it, the first of them if several do: no
/// placement moves less (Lemma 1).
///
/// # Errors
/// If the shares are not about the weights' servers.
pub fn greedy(weights: &Weights, shares: &Shares) -> Result<Placement, PlacementError> {
    same_servers("shares", shares.servers(), weights)?;
    let server_of = fullest(weights, shares);
    let least = weights.total() - kept_by(weights, &server_of);
    Ok(Placement::new(weights, server_of, least))
}

/// At most its share of the chunks, rounded up, on each server, and no such placement moves less
/// (Lemma 2).
///
/// # Errors
/// If the shares are not about the weights' servers.
pub fn balanced(weights: &Weights, shares: &Shares) -> Result<Placement, PlacementError> {
    same_servers("shares", shares.servers(), weights)?;
    capped(weights, &shares.caps(weights.chunks() as u64))
}

/// At most `caps[server]` chunks on each server, and no such placement moves less.
///
/// # Errors
/// If the caps are not about the weights' servers, or have no room for all chunks.
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
    let least = weights.total() - kept_by(weights, &server_of);
    Ok(Placement::new(weights, server_of, least))
}

/// The servers with a cap, which are all that the solver hears of.
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

    /// The numbers of the servers that the solver chose.
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

/// For each chunk the open server that holds most of it.
fn fullest(weights: &Weights, shares: &Shares) -> Vec<usize> {
    let first = (0..shares.servers()).find(|server| shares.is_open(*server)).unwrap_or(0);
    let server_of = |chunk| {
        let held = weights.row(chunk).filter(|(server, _)| shares.is_open(*server));
        let most = held.max_by_key(|(server, weight)| (*weight, std::cmp::Reverse(*server)));
        most.map_or(first, |(server, _)| server)
    };
    (0..weights.chunks()).map(server_of).collect()
}

/// The weight that stays where it is.
fn kept_by(weights: &Weights, server_of: &[usize]) -> u64 {
    server_of.iter().enumerate().map(|(chunk, server)| weights.get(chunk, *server)).sum()
}

#[cfg(test)]
mod tests;
