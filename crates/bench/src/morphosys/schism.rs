//! Schism: the placement of partitions by partitioning a graph of their co-accesses (Curino et al., PVLDB 3, 2010).
//!
//! A partition is a vertex, weighted by its accesses; two partitions that one transaction accesses are joined by an edge,
//! weighted by the number of such transactions. METIS cuts the graph into parts of about equal weight with few cut
//! edges: one part for each site. Schism's graph has a vertex for each row; here rows are grouped as the designs group
//! them.

use std::collections::BTreeMap;

use metis::Graph;

use crate::error::{Error, Result};

/// Largest difference of the parts' weights from equal ones, in thousandths.
const IMBALANCE: i32 = 50;

/// Returns the site of each of `partitions` partitions. Each of the `transactions` lists the numbers of the partitions
/// that it accesses, each once.
///
/// # Errors
/// Fails if METIS refuses the graph.
pub fn place(transactions: &[Vec<usize>], partitions: usize, sites: u16) -> Result<Vec<u16>> {
    if sites < 2 || partitions < 2 {
        return Ok(vec![0; partitions]);
    }
    let mut weights = vec![1; partitions];
    let mut edges: Vec<BTreeMap<i32, i32>> = vec![BTreeMap::new(); partitions];
    for accessed in transactions {
        for one in accessed {
            weights[*one] += 1;
            for other in accessed.iter().filter(|other| *other != one) {
                *edges[*one].entry(*other as i32).or_default() += 1;
            }
        }
    }
    let mut offsets = vec![0];
    let (mut adjacent, mut edge_weights) = (Vec::new(), Vec::new());
    for partners in &edges {
        adjacent.extend(partners.keys());
        edge_weights.extend(partners.values());
        offsets.push(adjacent.len() as i32);
    }
    let failed = |error: String| Error::Wrong(format!("METIS cannot cut the graph: {error}"));
    let mut parts = vec![0; partitions];
    Graph::new(1, i32::from(sites), &offsets, &adjacent)
        .map_err(|error| failed(error.to_string()))?
        .set_vwgt(&weights)
        .set_adjwgt(&edge_weights)
        .set_option(metis::option::UFactor(IMBALANCE))
        .set_option(metis::option::Seed(1))
        .part_kway(&mut parts)
        .map_err(|error| failed(error.to_string()))?;
    Ok(parts.into_iter().map(|part| part as u16).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_accessed_together_is_placed_together() {
        // Four groups of five partitions; one transaction in ten accesses two groups.
        let transaction = |n: usize| {
            let group = n % 4;
            let other = if n.is_multiple_of(10) { (group + 1) % 4 } else { group };
            let mut accessed = vec![group + 4 * (n / 4 % 5), other + 4 * ((n / 4 + 1) % 5)];
            accessed.sort_unstable();
            accessed.dedup();
            accessed
        };
        let transactions: Vec<Vec<usize>> = (0..4_000).map(transaction).collect();
        let sites = place(&transactions, 20, 4).unwrap();
        let single =
            |accessed: &&Vec<usize>| accessed.iter().all(|one| sites[*one] == sites[accessed[0]]);
        let at_one_site = transactions.iter().filter(single).count();
        assert!(at_one_site >= 3_500, "{at_one_site} of 4000: {sites:?}");
        for site in 0..4 {
            assert_eq!(sites.iter().filter(|one| **one == site).count(), 5, "{sites:?}");
        }
    }

    #[test]
    fn one_site_has_everything() {
        assert_eq!(place(&[vec![0, 1]], 3, 1).unwrap(), [0; 3]);
    }
}
