//! ADR: adaptive data replication (Wolfson, Jajodia and Huang, ACM TODS 22, 1997).
//!
//! Each site that has a copy of a partition counts the reads and writes of the last period. A site without a copy that
//! reads the partition more often than all sites write it gets one (expansion). A replica is removed if its site reads
//! it less often than other sites write it (contraction). Masters do not move: the comparison in MorphoSys (§7.1) gives
//! ADR masters that were placed beforehand. Sites are all neighbours of each other, as in a network with one switch.
//!
//! A transaction reads at the site that coordinates it: the one that masters most of what it writes, or has most of
//! what it reads.

use std::collections::BTreeMap;

use crate::store::layout::{Key, Layout, Operator, Partition, Site};
use crate::store::workload::{Numbered, Sample};

/// Maximum number of replicas that one decision adds or removes.
const CHANGES_MAX: usize = 20;

/// Returns the expansions and contractions, each with the site whose replica is added or removed; those that save most
/// remote accesses first.
pub(super) fn changes<K: Key>(
    layout: &Layout<K>,
    samples: &[(f64, Sample<K>)],
) -> Vec<(Site, Vec<Operator<K>>)> {
    let numbered = Numbered::new(layout);
    let partitions: Vec<&Partition> = layout.partitions().map(|(_, one)| one).collect();
    let mut reads: BTreeMap<(usize, Site), f64> = BTreeMap::new();
    let mut writes = vec![0.0; partitions.len()];
    for (weight, sample) in samples {
        let touched = numbered.touched(sample);
        let at = coordinator(&touched.reads, &touched.writes, &partitions, layout);
        for read in &touched.reads {
            *reads.entry((*read, at)).or_default() += weight;
        }
        for write in &touched.writes {
            writes[*write] += weight;
        }
    }
    let mut changes = Vec::new();
    for (number, partition) in partitions.iter().enumerate() {
        for site in layout.sites().iter().filter(|site| *site != partition.master) {
            let reads = reads.get(&(number, site)).copied().unwrap_or(0.0);
            let gain = reads - writes[number];
            let start = numbered.start(number).clone();
            if !partition.is_at(site) && gain > 0.0 {
                changes.push((gain, site, Operator::AddReplica(start, site)));
            } else if partition.is_at(site) && gain < 0.0 {
                changes.push((-gain, site, Operator::RemoveReplica(start, site)));
            }
        }
    }
    changes.sort_by(|one, other| other.0.total_cmp(&one.0));
    changes.truncate(CHANGES_MAX);
    changes.into_iter().map(|(_, site, operator)| (site, vec![operator])).collect()
}

/// Returns the site that coordinates a transaction.
fn coordinator<K: Key>(
    reads: &[usize],
    writes: &[usize],
    partitions: &[&Partition],
    layout: &Layout<K>,
) -> Site {
    let merit = |site: &Site| {
        let masters = writes.iter().filter(|number| partitions[**number].master == *site).count();
        let copies = |number: &&usize| partitions[**number].is_at(*site);
        let has = reads.iter().chain(writes).filter(copies).count();
        let own = reads.iter().filter(|number| partitions[**number].master == *site).count();
        (masters, has + own, std::cmp::Reverse(*site))
    };
    layout.sites().iter().max_by_key(merit).expect("there is a site")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::site_set::SiteSet;

    fn design() -> Layout<u32> {
        let of = |(start, master, replicas): (u32, Site, &[Site])| {
            let replicas: SiteSet = replicas.iter().copied().collect();
            (start, Partition { master, replicas, rows: 1_000, bytes: 100_000, pin: None })
        };
        let parts = [(0, 0, &[][..]), (10_000, 1, &[]), (20_000, 1, &[0])];
        Layout::new(parts.into_iter().map(of).collect(), [0, 1, 2].into_iter().collect())
    }

    fn sample(read: Option<u32>, write: u32) -> Sample<u32> {
        let reads = read.into_iter().map(|key| (key, Some(key + 1))).collect();
        Sample { reads, writes: vec![write], rows_read: 2, rows_written: 1 }
    }

    #[test]
    fn a_site_that_reads_more_than_others_write_gets_a_replica() {
        // Transactions at site 0 read 10,500 often; it is written now and then.
        let samples = [(30.0, sample(Some(10_500), 500)), (8.0, sample(None, 10_500))];
        let added = vec![(0, vec![Operator::AddReplica(10_000, 0)])];
        assert_eq!(changes(&design(), &samples), added);
        let samples = [(30.0, sample(Some(10_500), 500)), (31.0, sample(None, 10_500))];
        assert_eq!(changes(&design(), &samples), Vec::new());
    }

    #[test]
    fn a_replica_that_is_written_more_than_it_is_read_is_removed() {
        let samples = [(5.0, sample(Some(20_500), 500)), (9.0, sample(None, 20_500))];
        let removed = vec![(0, vec![Operator::RemoveReplica(20_000, 0)])];
        assert_eq!(changes(&design(), &samples), removed);
        let samples = [(9.0, sample(Some(20_500), 500)), (5.0, sample(None, 20_500))];
        assert_eq!(changes(&design(), &samples), Vec::new());
    }
}
