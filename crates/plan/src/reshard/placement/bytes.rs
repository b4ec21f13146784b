//! Placement of chunks where servers are limited by size, not by the number of chunks.
//!
//! With chunks of different sizes and servers of given capacities, even the question whether all
//! chunks fit is NP-hard (bin packing). If chunks could be split, it would be the transportation
//! problem again, with a price for each unit. This relaxation is solved exactly. Its optimum splits
//! fewer chunks than there are servers (see `rounding`). Each split chunk is then assigned whole to
//! one of the servers that share it, at most one to each server. So:
//!
//! - a server exceeds its capacity by less than one chunk, and [`Fitted::excess`] gives the amount.
//!   A caller with hard limits passes capacities reduced by the largest chunk;
//! - all but at most N - 1 chunks lie as in the optimum of the relaxation;
//! - [`Placement::moved_least`] is a true lower bound: the distance of the moved weight from it
//!   bounds the distance from the optimum.
//!
//! Weights per unit are fractions, stored as integers times a power of two. Rounding makes the
//! solver's prices slightly inexact. The bound is computed from the exact weights with these
//! prices, and holds for any prices.

use super::transport::{Sizes, Solution, solve};
use super::{Open, Placement, PlacementError, Shares, Weights, fullest, unmoved_weight};
use super::{rounding, same_servers, sum};

/// Largest number of fraction bits of a weight per unit.
const FRACTION_BITS: u32 = 32;

/// A placement under limits on the size of each server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fitted {
    /// The server of each chunk, and the movement that this causes.
    pub placement: Placement,
    /// Total size of the chunks on each server after the move, in the unit of the sizes.
    pub held: Vec<u64>,
    /// Excess of each server's size over its capacity, in the unit of the sizes: less than the
    /// largest chunk.
    pub excess: Vec<u64>,
}

/// Places chunks of the given sizes on servers of the given capacities, in the same unit, with
/// little movement; the module's documentation states the guarantees. A server without capacity
/// gets no chunk, not even one of size zero.
///
/// # Errors
/// If the number of sizes or capacities does not match `weights`, the sizes sum up to more than
/// [`Weights::TOTAL_MAX`], or all capacities together are less than all sizes.
pub fn fitted(
    weights: &Weights,
    sizes: &[u64],
    capacities: &[u64],
) -> Result<Fitted, PlacementError> {
    same_servers("capacities", capacities.len(), weights)?;
    let (given, expected) = (sizes.len(), weights.chunks());
    if given != expected {
        return Err(PlacementError::Mismatch { what: "sizes", given, expected });
    }
    summable(sizes)?;
    let (needed, room) = (sum(sizes), sum(capacities));
    if needed > room {
        return Err(PlacementError::NoRoom { needed, room });
    }
    let shares = Shares::new(capacities.to_vec())?;
    if expected == 0 {
        return Ok(outcome(weights, sizes, capacities, Vec::new(), 0));
    }
    let open = Open::new(capacities);
    let (weights_open, caps) = (open.restrict(weights), open.caps(capacities));
    let bits = fraction_bits(&weights_open, sizes);
    let solution = solve(&by_unit(&weights_open, sizes, bits), Sizes::Units(sizes), &caps);
    let mut server_of = open.servers(&rounding::whole(&weights_open, sizes, &solution));
    // Chunks of size zero fit on any open server.
    let anywhere = fullest(weights, &shares);
    for chunk in (0..expected).filter(|chunk| sizes[*chunk] == 0) {
        server_of[chunk] = anywhere[chunk];
    }
    // A placement with capacities keeps no more than one without.
    let unmoved_weight_max = unmoved_weight_max(&weights_open, sizes, &caps, &solution, bits)
        .map_or(u64::MAX, |kept| kept.min(u128::from(u64::MAX)) as u64)
        .min(unmoved_weight(weights, &anywhere));
    Ok(outcome(weights, sizes, capacities, server_of, unmoved_weight_max))
}

fn summable(sizes: &[u64]) -> Result<(), PlacementError> {
    let mut total = 0_u64;
    for (chunk, size) in sizes.iter().enumerate() {
        total = total
            .checked_add(*size)
            .filter(|total| *total <= Weights::TOTAL_MAX)
            .ok_or(PlacementError::TooMuch { what: "sizes", chunk })?;
    }
    Ok(())
}

/// Returns the largest number of fraction bits with which the sum of all weights per unit stays in
/// range.
fn fraction_bits(weights: &Weights, sizes: &[u64]) -> u32 {
    let of_chunk = |chunk| {
        let per_unit = u128::from(weights.chunk_total(chunk)) << FRACTION_BITS;
        per_unit / u128::from(sizes[chunk].max(1))
    };
    let mut total: u128 = (0..weights.chunks()).map(of_chunk).sum();
    let mut bits = FRACTION_BITS;
    while total > u128::from(Weights::TOTAL_MAX) {
        (total, bits) = (total / 2, bits - 1);
    }
    bits
}

fn by_unit(weights: &Weights, sizes: &[u64], bits: u32) -> Weights {
    weights.map(weights.servers(), |chunk, server, weight| {
        let scaled = (u128::from(weight) << bits) / u128::from(sizes[chunk].max(1));
        Some((server, scaled as u64))
    })
}

/// Returns an upper bound on the weight that any placement within the capacities keeps in place: the value of the dual
/// problem at the solution's prices. `None` if the value overflows.
fn unmoved_weight_max(
    weights: &Weights,
    sizes: &[u64],
    caps: &[u64],
    solution: &Solution,
    bits: u32,
) -> Option<u128> {
    let needed = sum(sizes);
    let mut bound = 0_i128;
    for (cap, price) in caps.iter().zip(&solution.prices) {
        let cap = u128::from(*cap).min(needed) as i128;
        bound = bound.checked_add(cap.checked_mul(i128::from(*price))?)?;
    }
    for (chunk, size) in sizes.iter().enumerate() {
        let values = weights.row(chunk).map(|(server, weight)| {
            let price = i128::from(solution.prices[server]) * i128::from(*size);
            (i128::from(weight) << bits) - price
        });
        // Some server has price zero, and a chunk that is kept nowhere contributes nothing.
        bound = bound.checked_add(values.fold(0, i128::max))?;
    }
    u128::try_from(bound >> bits).ok()
}

fn outcome(
    weights: &Weights,
    sizes: &[u64],
    capacities: &[u64],
    server_of: Vec<usize>,
    unmoved_weight_max: u64,
) -> Fitted {
    let mut held = vec![0; capacities.len()];
    for (server, size) in server_of.iter().zip(sizes) {
        held[*server] += size;
    }
    let over = |(held, capacity): (&u64, &u64)| held.saturating_sub(*capacity);
    let excess = held.iter().zip(capacities).map(over).collect();
    // A placement that exceeds a capacity may keep more than any placement within the capacities.
    let least = weights.total().saturating_sub(unmoved_weight_max);
    let kept = unmoved_weight(weights, &server_of);
    let least = least.min(weights.total() - kept);
    Fitted { placement: Placement::new(weights, server_of, least), held, excess }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The least that a placement within the capacities moves, by trying all; none if there is none.
    fn least_moved(weights: &Weights, sizes: &[u64], capacities: &[u64]) -> Option<u64> {
        fn kept(weights: &Weights, sizes: &[u64], left: &mut [u64], chunk: usize) -> Option<u64> {
            if chunk == sizes.len() {
                return Some(0);
            }
            let mut best = None;
            for server in 0..left.len() {
                if left[server] >= sizes[chunk] && left[server] > 0 {
                    left[server] -= sizes[chunk];
                    let rest = kept(weights, sizes, left, chunk + 1);
                    left[server] += sizes[chunk];
                    best = best.max(rest.map(|rest| rest + weights.get(chunk, server)));
                }
            }
            best
        }
        let kept = kept(weights, sizes, &mut capacities.to_vec(), 0)?;
        Some(weights.total() - kept)
    }

    fn cases(
        chunks: std::ops::Range<usize>,
        servers: std::ops::Range<usize>,
        size: u64,
    ) -> impl Strategy<Value = (Weights, Vec<u64>, Vec<u64>)> {
        (chunks, servers).prop_flat_map(move |(chunks, servers)| {
            let row = prop::collection::vec(prop_oneof![Just(0), 0..size], servers);
            let rows = prop::collection::vec((row, 0..size), chunks);
            let slack = prop::collection::vec(prop_oneof![Just(0), 1..10_u64], servers);
            (rows, slack).prop_map(move |(rows, slack)| {
                let (rows, extra): (Vec<Vec<u64>>, Vec<u64>) = rows.into_iter().unzip();
                let weights = Weights::dense(servers, &rows).unwrap();
                // A chunk is what lies of it anywhere, and sometimes more.
                let add = |(row, extra): (&Vec<u64>, u64)| row.iter().sum::<u64>() + extra / 4;
                let sizes: Vec<u64> = rows.iter().zip(extra).map(add).collect();
                let shares = Shares::new(slack.clone());
                let needed = sizes.iter().sum::<u64>();
                let caps = shares.map_or(vec![needed + 1; servers], |shares| shares.caps(needed));
                (weights, sizes, caps)
            })
        })
    }

    proptest! {
        #[test]
        fn a_server_is_over_by_less_than_the_largest_chunk(
            (weights, sizes, caps) in cases(0..60, 1..8, 50)
        ) {
            prop_assume!(caps.iter().any(|cap| *cap > 0));
            let fitted = fitted(&weights, &sizes, &caps).unwrap();
            let largest = sizes.iter().copied().max().unwrap_or(0);
            for (server, cap) in caps.iter().enumerate() {
                prop_assert!(fitted.excess[server] == 0 || fitted.excess[server] < largest);
                prop_assert!(*cap > 0 || fitted.placement.chunks[server] == 0);
                prop_assert!(fitted.held[server] <= cap + fitted.excess[server]);
            }
            prop_assert_eq!(fitted.held.iter().sum::<u64>(), sizes.iter().sum::<u64>());
        }

        #[test]
        fn what_is_moved_is_near_the_bound(
            (weights, sizes, caps) in cases(1..60, 1..8, 50)
        ) {
            prop_assume!(caps.iter().any(|cap| *cap > 0));
            let placement = fitted(&weights, &sizes, &caps).unwrap().placement;
            let mut largest: Vec<u64> = (0..sizes.len()).map(|c| weights.chunk_total(c)).collect();
            largest.sort_unstable();
            let slack: u64 = largest.iter().rev().take(caps.len() - 1).sum();
            // One more for rounded weights a unit.
            prop_assert!(placement.moved <= placement.moved_least + slack + 1, "{placement:?}");
        }

        #[test]
        fn the_bound_is_below_every_placement_within_the_capacities(
            (weights, sizes, caps) in cases(1..7, 1..4, 6)
        ) {
            prop_assume!(caps.iter().any(|cap| *cap > 0));
            let placement = fitted(&weights, &sizes, &caps).unwrap().placement;
            if let Some(least) = least_moved(&weights, &sizes, &caps) {
                prop_assert!(placement.moved_least <= least, "{placement:?}, not {least}");
            }
        }

        #[test]
        fn chunks_of_one_size_are_placed_exactly(
            (weights, _, caps) in cases(1..30, 1..6, 50), size in 1..1_000_u64
        ) {
            let caps: Vec<u64> = caps.iter().map(|cap| cap % 20).collect();
            let sizes = vec![size; weights.chunks()];
            prop_assume!(caps.iter().sum::<u64>() >= sizes.len() as u64);
            let capacities: Vec<u64> = caps.iter().map(|cap| cap * size).collect();
            let fitted = fitted(&weights, &sizes, &capacities).unwrap();
            prop_assert!(fitted.excess.iter().all(|excess| *excess == 0));
            // Rounding a weight a unit errs by far less than a difference of one is worth.
            let exact = super::super::capped(&weights, &caps).unwrap();
            prop_assert_eq!(fitted.placement.moved, exact.moved);
        }
    }

    #[test]
    fn too_little_room_is_refused() {
        let weights = Weights::dense(2, &[[1, 0], [0, 1]]).unwrap();
        let refused = fitted(&weights, &[5, 6], &[10, 0]);
        assert_eq!(refused, Err(PlacementError::NoRoom { needed: 11, room: 10 }));
        assert_eq!(fitted(&weights, &[0, 0], &[0, 0]), Err(PlacementError::NoShares));
    }
}
