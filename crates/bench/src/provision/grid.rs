//! The cells to measure, and their order.
//!
//! Servers are started and filled once for all cells that need the same servers. Within these cells, rounds alternate
//! their direction, so that no cell is always measured first.

use imago_plan::tune::sampling::order;
use imago_provision::probe::Probe;

use super::cell::{CacheAt, Cell, Reads};

/// Document shares of the paper's uneven shards, in percent (§3.2.2).
pub const UNEVEN: [&[u32]; 2] = [&[44, 56], &[14, 14, 39, 33]];

/// Returns the document shares of `shards` even shards, in percent. The first shards get the remainder, 1 % each.
#[must_use]
pub fn even(shards: u32) -> Vec<u32> {
    (0..shards).map(|shard| 100 / shards + u32::from(shard < 100 % shards)).collect()
}

/// Returns the shape of a cluster from its probe: the document shares of its shards, in whole percent, and the
/// largest number of members of a shard.
pub(super) fn shape_of(probe: &Probe) -> (Vec<u32>, u32) {
    let shares: Vec<f64> = probe.shards.iter().map(|shard| shard.documents).collect();
    (percent(&shares), probe.shards.iter().map(|shard| shard.members).max().unwrap_or(1))
}

/// Rounds shares to whole percent with a sum of 100: the shares with the largest remainders are rounded up.
fn percent(shares: &[f64]) -> Vec<u32> {
    let all: f64 = shares.iter().sum();
    if shares.is_empty() || all <= 0.0 {
        return vec![100];
    }
    let exact: Vec<f64> = shares.iter().map(|share| 100.0 * share / all).collect();
    let mut whole: Vec<u32> = exact.iter().map(|share| *share as u32).collect();
    let mut order: Vec<usize> = (0..exact.len()).collect();
    order.sort_by(|one, other| exact[*other].fract().total_cmp(&exact[*one].fract()));
    let missing = 100 - whole.iter().sum::<u32>().min(100);
    for shard in order.into_iter().take(missing as usize) {
        whole[shard] += 1;
    }
    whole
}

/// Returns the cells for all combinations of these shards, members and caches, with reads from primaries and the
/// cache at the worker. Cells with the same servers are adjacent.
#[must_use]
pub fn cells(shards: &[Vec<u32>], members: &[u32], caches_bytes: &[u64]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for shares in shards {
        for members in members {
            for cache_bytes in caches_bytes {
                cells.push(Cell {
                    shares: shares.clone(),
                    members: *members,
                    cache_bytes: *cache_bytes,
                    cache_at: CacheAt::Worker,
                    reads: Reads::Primary,
                });
            }
        }
    }
    cells
}

/// Groups the cells by the servers that they need: by shards and members.
pub(super) fn by_servers(cells: &[Cell]) -> Vec<Vec<Cell>> {
    let mut all: Vec<Vec<Cell>> = Vec::new();
    for cell in cells {
        let needs = |other: &Cell| other.shares == cell.shares && other.members == cell.members;
        match all.iter_mut().find(|some| needs(&some[0])) {
            Some(some) => some.push(cell.clone()),
            None => all.push(vec![cell.clone()]),
        }
    }
    all
}

/// Returns pairs of a round and a cell in the order of the runs: each round has each cell once, and odd rounds are in
/// reverse order.
pub(super) fn runs(cells: &[Cell], rounds: u32) -> Vec<(u32, Cell)> {
    let all = order(cells.len(), rounds as usize).into_iter();
    all.map(|(round, number)| (u32::try_from(round).unwrap_or(u32::MAX), cells[number].clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_shares_sum_up_to_a_hundred() {
        assert_eq!(even(1), [100]);
        assert_eq!(even(3), [34, 33, 33]);
        assert_eq!(even(4), [25; 4]);
    }

    #[test]
    fn servers_are_started_once_for_all_cells_that_need_them() {
        let shards = [even(1), even(2), UNEVEN[0].to_vec()];
        let all = cells(&shards, &[1, 2], &[0, 17_500_000]);
        assert_eq!(all.len(), 12);
        let by_servers = by_servers(&all);
        assert_eq!(by_servers.len(), 6);
        assert!(by_servers.iter().all(|some| some.len() == 2));
        let order = runs(&by_servers[0], 2);
        let caches: Vec<u64> = order.iter().map(|(_, cell)| cell.cache_bytes).collect();
        assert_eq!(caches, [0, 17_500_000, 17_500_000, 0]);
        assert_eq!(order.iter().map(|(round, _)| *round).collect::<Vec<_>>(), [0, 0, 1, 1]);
    }

    #[test]
    fn percents_sum_up_to_a_hundred() {
        assert_eq!(percent(&[0.4401, 0.5599]), [44, 56]);
        assert_eq!(percent(&[1.0, 1.0, 1.0]), [34, 33, 33]);
        assert_eq!(percent(&[0.996, 0.004]), [100, 0]);
        assert_eq!(percent(&[]), [100]);
    }
}
