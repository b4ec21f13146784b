//! The textbook Hungarian algorithm, an oracle for [`crate::reshard::placement`].
//!
//! This is the method of Morphus (§3.2): a complete bipartite graph of new chunks and of ⌈m/N⌉
//! places on each server, and its cheapest matching, by Kuhn's method with potentials in O(rows² ×
//! columns). Tests and benchmarks compare the placement with it; no other code should use it, since
//! the transportation solver finds the same optimum without the places.

use crate::reshard::placement::Weights;

/// Matches each of `rows` with a distinct one of `columns` such that the sum of `cost(row, column)`
/// is minimal. Returns the column of each row.
///
/// # Panics
/// If there are fewer columns than rows. Costs must be small enough that sums of `rows` of them do
/// not overflow.
#[must_use]
pub fn assign(rows: usize, columns: usize, cost: impl Fn(usize, usize) -> i64) -> Vec<usize> {
    assert!(rows <= columns, "{rows} rows have no partners among {columns} columns");
    // Row and column 0 are the start of each search; real ones are numbered from 1.
    let mut row_potential = vec![0_i64; rows + 1];
    let mut column_potential = vec![0_i64; columns + 1];
    let mut row_of = vec![0_usize; columns + 1];
    let mut before = vec![0_usize; columns + 1];
    for row in 1..=rows {
        row_of[0] = row;
        let mut column = 0;
        let mut slack = vec![i64::MAX; columns + 1];
        let mut done = vec![false; columns + 1];
        // Dijkstra's search for the nearest free column.
        while row_of[column] != 0 {
            done[column] = true;
            let from = row_of[column];
            let (mut least, mut next) = (i64::MAX, 0);
            for to in (1..=columns).filter(|to| !done[*to]) {
                let reduced = cost(from - 1, to - 1) - row_potential[from] - column_potential[to];
                if reduced < slack[to] {
                    (slack[to], before[to]) = (reduced, column);
                }
                if slack[to] < least {
                    (least, next) = (slack[to], to);
                }
            }
            for to in 0..=columns {
                if done[to] {
                    row_potential[row_of[to]] += least;
                    column_potential[to] -= least;
                } else if slack[to] < i64::MAX {
                    slack[to] -= least;
                }
            }
            column = next;
        }
        while column != 0 {
            row_of[column] = row_of[before[column]];
            column = before[column];
        }
    }
    let mut column_of = vec![0; rows];
    for column in 1..=columns {
        if row_of[column] > 0 {
            column_of[row_of[column] - 1] = column - 1;
        }
    }
    column_of
}

/// Returns the paper's balanced placement: the server of each chunk, with at most ⌈m/N⌉ chunks on
/// each server.
#[must_use]
pub fn balanced(weights: &Weights) -> Vec<usize> {
    let (chunks, servers) = (weights.chunks(), weights.servers());
    let places = chunks.div_ceil(servers);
    // The cost is the moved weight minus the chunk's total, which does not affect the optimum.
    let cost = |chunk, place| -(weights.get(chunk, place / places) as i64);
    assign(chunks, servers * places, cost).into_iter().map(|place| place / places).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn least(cost: &[Vec<i64>], used: &mut Vec<bool>, row: usize) -> i64 {
        if row == cost.len() {
            return 0;
        }
        let mut best = i64::MAX;
        for column in 0..used.len() {
            if !used[column] {
                used[column] = true;
                best = best.min(cost[row][column] + least(cost, used, row + 1));
                used[column] = false;
            }
        }
        best
    }

    proptest! {
        #[test]
        fn the_matching_is_the_cheapest_of_all(
            cost in (1_usize..6, 0_usize..2).prop_flat_map(|(rows, more)| {
                prop::collection::vec(prop::collection::vec(-50_i64..50, rows + more), rows)
            })
        ) {
            let columns = cost[0].len();
            let column_of = assign(cost.len(), columns, |row, column| cost[row][column]);
            let sum: i64 = column_of.iter().enumerate().map(|(row, column)| cost[row][*column]).sum();
            let mut used = vec![false; columns];
            for column in column_of {
                prop_assert!(!std::mem::replace(&mut used[column], true), "a column is used twice");
            }
            prop_assert_eq!(sum, least(&cost, &mut vec![false; columns], 0));
        }
    }
}
