//! Updates that a site applies for other masters, and the share of a partition in them: u of Eq. 2 (MorphoSys, §5.2).
//!
//! The paper estimates the lag of a replica from this share. Here a site follows one log, so that all its replicas lag
//! as much as the site. A transaction that reads no replica waits for no update.

use super::layout::{Partition, Site};
use super::site_set::SiteSet;
use super::workload::Statistics;

/// The updates that each site applies for partitions that other sites master.
#[derive(Clone, Debug)]
pub struct Updates<'u> {
    sites: SiteSet,
    partitions: &'u [&'u Partition],
    statistics: &'u Statistics,
    /// For each site, in ascending order: the sum of W(p), the share of writes of partition p in all accesses, over
    /// the partitions of which the site has a replica.
    at: Vec<f64>,
}

impl<'u> Updates<'u> {
    /// Computes the updates at each site from a design's partitions and the access statistics of these partitions.
    #[must_use]
    pub fn new(
        sites: SiteSet,
        partitions: &'u [&'u Partition],
        statistics: &'u Statistics,
    ) -> Self {
        let mut at = vec![0.0; sites.len()];
        for (n, partition) in partitions.iter().enumerate() {
            for site in partition.replicas.intersection(sites).iter() {
                at[sites.place_of(site)] += statistics.writes(n);
            }
        }
        Self { sites, partitions, statistics, at }
    }

    /// Returns u for a transaction that reads the partitions numbered `reads` at a site: the largest share of one of
    /// them, of which the site has a replica, in the updates that the site applies. `None` if the site masters all of
    /// them.
    #[must_use]
    pub fn share(&self, site: Site, reads: &[usize]) -> Option<f64> {
        let at = self.at[self.sites.place_of(site)].max(1e-9);
        let of = |read: &usize| self.statistics.writes(*read) / at;
        let replicas = reads.iter().filter(|read| self.partitions[**read].master != site);
        replicas.map(of).reduce(f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::super::workload::Touched;
    use super::*;

    #[test]
    fn a_replica_has_the_share_of_its_writes_among_those_that_the_site_applies() {
        let partition = |master, replicas: &[Site]| Partition {
            master,
            replicas: replicas.iter().copied().collect(),
            rows: 5_000,
            bytes: 600_000,
            pin: None,
        };
        let all = [partition(0, &[1]), partition(0, &[1]), partition(1, &[]), partition(0, &[])];
        let all: Vec<&Partition> = all.iter().collect();
        let wrote = |n| Touched { reads: vec![], writes: vec![n] };
        let touched = [(3.0, wrote(0)), (1.0, wrote(1)), (4.0, wrote(2)), (2.0, wrote(3))];
        let touched = touched.iter().map(|(weight, touched)| (*weight, touched));
        let statistics = Statistics::of(all.len(), touched);
        let updates = Updates::new([0, 1].into_iter().collect(), &all, &statistics);
        let is = |share: Option<f64>, expected: f64| (share.unwrap() - expected).abs() < 1e-9;
        assert!(is(updates.share(1, &[1]), 0.25));
        assert!(is(updates.share(1, &[1, 0, 2]), 0.75), "the one with most");
        assert_eq!(updates.share(1, &[2]), None, "it masters that");
        assert_eq!(updates.share(0, &[0, 1, 3]), None);
    }
}
