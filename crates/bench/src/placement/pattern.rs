//! Distributions of the data of new chunks over the servers, before the chunks are placed.
//!
//! Two patterns are the paper's (§5.4): new keys that are independent of the old ones, and new keys that are the old
//! ones in reverse order. The third pattern is the case in which greedy placement fails there: one server has so much
//! data that most chunks belong to it. It is the hardest pattern for a solver, because nearly every chunk has to
//! leave its best server.

use imago_plan::reshard::placement::{PlacementError, Weights};
use rand::{Rng, RngExt};
use serde::Serialize;

/// Number of documents of each new chunk.
const DOCUMENTS: u64 = 1_000;
/// Length of the table from which servers are drawn.
const TABLE: usize = 1 << 16;

/// Distribution of the data over the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Each document lies on a server that was drawn for it, with equal probabilities.
    Uncorrelated,
    /// New keys are the old keys in reverse order: a chunk lies on one server, or on two neighbours. Servers hold
    /// from half of the mean to one and a half of it.
    Correlated,
    /// Like `Uncorrelated`, but the n-th server holds 1/n of the amount on the first one.
    Skewed,
}

impl Pattern {
    /// All patterns.
    pub const ALL: [Self; 3] = [Self::Uncorrelated, Self::Correlated, Self::Skewed];

    /// Returns the number of documents of each chunk on each server.
    pub(super) fn weights<R: Rng>(
        self,
        chunks: usize,
        servers: usize,
        rng: &mut R,
    ) -> Result<Weights, PlacementError> {
        match self {
            Self::Uncorrelated => drawn(chunks, &vec![1.0; servers], rng),
            Self::Skewed => {
                let shares: Vec<f64> = (1..=servers).map(|server| 1.0 / server as f64).collect();
                drawn(chunks, &shares, rng)
            }
            Self::Correlated => reversed(chunks, servers, rng),
        }
    }
}

/// Draws chunks: each document lies on a server that is drawn in proportion to its share.
fn drawn<R: Rng>(chunks: usize, shares: &[f64], rng: &mut R) -> Result<Weights, PlacementError> {
    let table = table(shares);
    let mut weights = Weights::new(shares.len())?;
    let mut row = vec![0; shares.len()];
    for _ in 0..chunks {
        row.fill(0);
        for _ in 0..DOCUMENTS {
            row[table[rng.random_range(0..TABLE)]] += 1;
        }
        weights.push(row.iter().copied().enumerate())?;
    }
    Ok(weights)
}

/// Returns a table in which each server occurs in proportion to its share.
fn table(shares: &[f64]) -> Vec<usize> {
    let total: f64 = shares.iter().sum();
    let mut table = Vec::with_capacity(TABLE);
    let mut until = 0.0;
    for (server, share) in shares.iter().enumerate() {
        until += share / total * TABLE as f64;
        table.resize(TABLE.min(until.round() as usize).max(table.len()), server);
    }
    table.resize(TABLE, shares.len() - 1);
    table
}

/// Draws chunks of reversed keys, where each server holds a range of the old keys.
fn reversed<R: Rng>(chunks: usize, servers: usize, rng: &mut R) -> Result<Weights, PlacementError> {
    let parts: Vec<u64> = (0..servers).map(|_| rng.random_range(500..1_500)).collect();
    let documents = chunks as u64 * DOCUMENTS;
    let total: u64 = parts.iter().sum();
    let mut below = 0;
    // For each server, the first old key after its range.
    let ends: Vec<u64> = parts
        .iter()
        .map(|part| {
            below += part;
            documents * below / total
        })
        .collect();
    let mut weights = Weights::new(servers)?;
    for chunk in (0..chunks as u64).rev() {
        let (mut at, end) = (chunk * DOCUMENTS, (chunk + 1) * DOCUMENTS);
        let mut row = Vec::new();
        while at < end {
            let server = ends.partition_point(|end| *end <= at);
            let next = ends[server].min(end);
            row.push((server, next - at));
            at = next;
        }
        weights.push(row)?;
    }
    Ok(weights)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    fn weights(pattern: Pattern) -> Weights {
        pattern.weights(40, 7, &mut StdRng::seed_from_u64(1)).unwrap()
    }

    #[test]
    fn every_chunk_has_its_documents() {
        for pattern in Pattern::ALL {
            let weights = weights(pattern);
            let totals = (0..40).map(|chunk| weights.chunk_total(chunk));
            assert!(totals.clone().all(|total| total == DOCUMENTS), "{pattern:?}");
        }
    }

    #[test]
    fn reversed_chunks_lie_on_neighbours_from_the_last_server_down() {
        let weights = weights(Pattern::Correlated);
        let servers: Vec<usize> = (0..40)
            .flat_map(|chunk| {
                let mut row: Vec<usize> = weights.row(chunk).map(|(server, _)| server).collect();
                row.reverse();
                row
            })
            .collect();
        assert!(servers.is_sorted_by(|a, b| a >= b), "{servers:?}");
        assert_eq!((servers[0], servers[servers.len() - 1]), (6, 0));
    }

    #[test]
    fn shares_say_how_much_lies_where() {
        let weights = weights(Pattern::Skewed);
        let held = |server| (0..40).map(|chunk| weights.get(chunk, server)).sum::<u64>() as f64;
        assert!((held(0) / held(3) - 4.0).abs() < 0.4, "{} and {}", held(0), held(3));
    }
}
