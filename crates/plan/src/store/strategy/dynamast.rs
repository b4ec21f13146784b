//! DynaMast: dynamic mastering in a fully replicated store (Abebe, Glasbergen and Daudjee, ICDE 2020).
//!
//! Every site has a replica of every partition. A transaction that writes partitions with masters at several sites makes
//! one site the master of all of them, and runs there. The site is the one with the greatest benefit: how much better
//! the load of writes is balanced, and how many more transactions find all that they write at one site. Partitions are
//! not changed otherwise.
//!
//! Two terms of the paper's benefit are left out: the delay until a site has applied the updates that a transaction
//! needs, which is the same for all sites of one log; and co-accesses of consecutive transactions of a client, to which
//! the paper gives no weight for YCSB.

use std::collections::BTreeMap;

use crate::store::layout::Site;

/// Weight of balance, relative to the weight of co-accesses.
const BALANCE_WEIGHT: f64 = 10.0;
/// Number of transactions after which all counts are halved, so that old ones matter less.
const HALF_LIFE: u64 = 20_000;
/// Maximum number of partners of a partition that are counted.
const PARTNERS_MAX: usize = 256;

/// Counts of the partitions that transactions wrote, and of those that were written together.
#[derive(Clone, Debug)]
pub struct WriteCounts<K> {
    writes: BTreeMap<K, f64>,
    together: BTreeMap<K, BTreeMap<K, f64>>,
    counted: u64,
}

impl<K> Default for WriteCounts<K> {
    /// Returns the counts before any transaction.
    fn default() -> Self {
        Self { writes: BTreeMap::new(), together: BTreeMap::new(), counted: 0 }
    }
}

impl<K: Ord + Clone> WriteCounts<K> {
    /// Counts a transaction that writes these partitions, each once.
    pub fn count(&mut self, written: &[K]) {
        for one in written {
            *self.writes.entry(one.clone()).or_default() += 1.0;
            for other in written.iter().filter(|other| *other != one) {
                let partners = self.together.entry(one.clone()).or_default();
                if partners.len() < PARTNERS_MAX || partners.contains_key(other) {
                    *partners.entry(other.clone()).or_default() += 1.0;
                }
            }
        }
        self.counted += 1;
        if self.counted.is_multiple_of(HALF_LIFE) {
            self.writes.values_mut().for_each(|count| *count /= 2.0);
            self.together.values_mut().flat_map(BTreeMap::values_mut).for_each(|one| *one /= 2.0);
        }
    }

    /// Returns the site that becomes the master of the partitions `written`. `sites` are the live sites, and `master`
    /// returns the present master of a partition.
    ///
    /// # Panics
    /// Panics if there is no site.
    pub fn site(&self, sites: &[Site], written: &[K], master: impl Fn(&K) -> Site) -> Site {
        let mut loads: BTreeMap<Site, f64> = sites.iter().map(|site| (*site, 0.0)).collect();
        for (partition, count) in &self.writes {
            *loads.entry(master(partition)).or_default() += count;
        }
        let all: f64 = loads.values().sum::<f64>().max(1.0);
        let benefit = |to: Site| -> f64 {
            let mut after = loads.clone();
            let mut single_site = 0.0;
            for one in written {
                let from = master(one);
                let count = self.writes.get(one).copied().unwrap_or(0.0);
                *after.entry(from).or_default() -= count;
                *after.entry(to).or_default() += count;
                for (other, together) in self.together.get(one).into_iter().flatten() {
                    if !written.contains(other) && count > 0.0 {
                        let at = master(other);
                        let gained =
                            f64::from(u8::from(at == to)) - f64::from(u8::from(at == from));
                        single_site += together / count * gained;
                    }
                }
            }
            let imbalance = |loads: &BTreeMap<Site, f64>| -> f64 {
                let mean = 1.0 / sites.len() as f64;
                loads.values().map(|load| (load / all - mean).powi(2)).sum::<f64>().sqrt()
            };
            BALANCE_WEIGHT * (imbalance(&loads) - imbalance(&after)) + single_site
        };
        let best = sites.iter().map(|site| (benefit(*site), *site));
        let best = best.max_by(|one, other| one.0.total_cmp(&other.0).then(other.1.cmp(&one.1)));
        best.expect("there is a site").1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masters_go_where_the_partners_are_and_where_there_is_room() {
        let masters = BTreeMap::from([("a", 0), ("b", 1), ("c", 1), ("d", 0), ("e", 2)]);
        let master = |key: &&str| masters[key];
        let mut counts = WriteCounts::default();
        // "a" and "b" are written by one transaction; "b" often with "c".
        (0..100).for_each(|_| counts.count(&["b", "c"]));
        (0..20).for_each(|_| counts.count(&["a", "b"]));
        (0..200).for_each(|_| counts.count(&["d"]));
        (0..220).for_each(|_| counts.count(&["e"]));
        assert_eq!(counts.site(&[0, 1, 2], &["a", "b"], master), 1);
        // Without partners, the site with the least load.
        let mut counts = WriteCounts::default();
        (0..50).for_each(|_| counts.count(&["b"]));
        (0..200).for_each(|_| counts.count(&["d"]));
        (0..10).for_each(|_| counts.count(&["a"]));
        (0..40).for_each(|_| counts.count(&["c"]));
        assert_eq!(counts.site(&[0, 1, 2], &["a", "b"], master), 2);
    }
}
