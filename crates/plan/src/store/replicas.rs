//! Maintains a minimum number of replicas: plans which replicas are made, and where.
//!
//! A copy counts if its site is alive, even if the site is no longer in use: a drain makes the copy
//! elsewhere before it removes it. A new copy goes to a site in use in a rack that has no copy of
//! the partition, if there is one; among several sites, to the one that holds the fewest bytes. A
//! site without a rack counts as a rack of its own. If the copies are in fewer racks than possible,
//! one is made in another rack, and one of those that share a rack is removed.
//!
//! Invariants:
//! - The operators can be applied in their order. Before and after each of them a partition has at
//!   least as many copies as it had, or as many as are required.
//! - After the last one each partition has the required replicas, or a copy at every site in use,
//!   and no additional rack could hold a copy of it.
//! - If no replica is missing, there are no operators.

use std::collections::BTreeMap;

use crate::store::layout::{Key, Layout, Operator, Partition, Site};
use crate::store::site_set::SiteSet;

/// The replicas that each partition must have, and the sites and racks where they may be.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// Minimum number of replicas of each partition, in addition to its master.
    pub replicas: usize,
    /// Sites that are alive, whether or not they are in use.
    pub alive: SiteSet,
    /// Rack name of each site; sites without a rack are absent.
    pub racks: &'a BTreeMap<Site, String>,
}

impl Wanted<'_> {
    /// Returns the number of replicas of a partition that are at live sites; the master is not counted.
    #[must_use]
    pub fn replicas_of(&self, partition: &Partition) -> usize {
        partition.replicas.intersection(self.alive).len()
    }

    /// Returns the rack of a site: the rack's name, or the site's number if it has no rack.
    fn rack(&self, site: Site) -> Result<&str, Site> {
        self.racks.get(&site).map(String::as_str).ok_or(site)
    }

    fn shares_rack(&self, site: Site, copies: SiteSet) -> bool {
        copies.iter().any(|other| other != site && self.rack(other) == self.rack(site))
    }

    /// Returns the number of different racks in which these sites are.
    fn racks_of(&self, copies: SiteSet) -> usize {
        let first = |site: &Site| {
            !copies.iter().any(|other| other < *site && self.rack(other) == self.rack(*site))
        };
        copies.iter().filter(first).count()
    }
}

/// Returns the operators that give each partition the required replicas, as far as there are sites in use (those of
/// the layout). A partition whose master is not alive is left out: it cannot be copied. Large partitions come first.
#[must_use]
pub fn missing<K: Key>(layout: &Layout<K>, wanted: &Wanted<'_>) -> Vec<Operator<K>> {
    let mut placing = Placing {
        wanted,
        bytes: layout.sites().iter().map(|site| (site, layout.bytes_at(site))).collect(),
        operators: Vec::new(),
    };
    let mut partitions: Vec<(&K, &Partition)> =
        layout.partitions().filter(|(_, one)| wanted.alive.contains(one.master)).collect();
    partitions.sort_by_key(|(start, one)| (std::cmp::Reverse(one.bytes), *start));
    for (start, partition) in partitions {
        placing.place(start, partition);
    }
    placing.operators
}

struct Placing<'a, K> {
    wanted: &'a Wanted<'a>,
    /// Bytes held by each site in use.
    bytes: BTreeMap<Site, u64>,
    operators: Vec<Operator<K>>,
}

impl<K: Key> Placing<'_, K> {
    fn place(&mut self, start: &K, partition: &Partition) {
        let wanted = self.wanted;
        let mut copies = partition.copies().intersection(wanted.alive);
        while copies.len() <= wanted.replicas
            && let Some(site) = self.site_for(partition, copies, false)
        {
            self.add(start, site, partition.bytes);
            copies.insert(site);
        }
        while wanted.racks_of(copies) <= wanted.replicas
            && let Some(surplus) = self.surplus(partition, copies)
            && let Some(site) = self.site_for(partition, copies, true)
        {
            self.add(start, site, partition.bytes);
            self.operators.push(Operator::RemoveReplica(start.clone(), surplus));
            copies.insert(site);
            copies.remove(surplus);
            if let Some(bytes) = self.bytes.get_mut(&surplus) {
                *bytes = bytes.saturating_sub(partition.bytes);
            }
        }
    }

    fn add(&mut self, start: &K, site: Site, bytes: u64) {
        *self.bytes.entry(site).or_default() += bytes;
        self.operators.push(Operator::AddReplica(start.clone(), site));
    }

    /// Returns the site for one more copy of a partition that has copies at `copies`: a site in a rack without a copy
    /// first, then the one that holds the fewest bytes. `None` if no site is allowed.
    fn site_for(
        &self,
        partition: &Partition,
        copies: SiteSet,
        only_new_racks: bool,
    ) -> Option<Site> {
        let may = |site: Site| {
            let is_in_new_rack = !self.wanted.shares_rack(site, copies);
            !copies.contains(site) && !partition.is_at(site) && (is_in_new_rack || !only_new_racks)
        };
        let sites = self.bytes.iter().filter(|(site, _)| may(**site));
        let best = sites
            .min_by_key(|(site, held)| (self.wanted.shares_rack(**site, copies), **held, **site));
        best.map(|(site, _)| *site)
    }

    /// Returns the site of a replica that shares a rack with another copy; of several, the one that holds the most
    /// bytes. `None` if no replica shares a rack.
    fn surplus(&self, partition: &Partition, copies: SiteSet) -> Option<Site> {
        let sharing = copies
            .iter()
            .filter(|site| *site != partition.master && self.wanted.shares_rack(*site, copies));
        sharing.max_by_key(|site| (self.bytes.get(site).copied().unwrap_or(u64::MAX), *site))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const SITES: Site = 6;

    /// A design, the sites in use, those alive, and their racks.
    type Case = (Layout<u8>, SiteSet, BTreeMap<Site, String>, usize);

    fn cases() -> impl Strategy<Value = Case> {
        let one = (0..SITES, prop::collection::btree_set(0..SITES, 0..4), 0..100_u64);
        let partitions = prop::collection::vec(one, 1..12);
        let sites = (1..1_u64 << SITES, 0..1_u64 << SITES);
        let racks = prop::collection::vec(prop::option::of(0..3_u8), SITES as usize);
        (partitions, sites, racks, 0..4_usize).prop_map(
            |(partitions, (used, idle), racks, wanted)| {
                let of_bits = |bits: u64| (0..SITES).filter(move |site| bits >> site & 1 == 1);
                let used: SiteSet = of_bits(used).collect();
                let alive = used.union(of_bits(idle).collect());
                let partition =
                    |(n, (master, replicas, bytes)): (usize, (Site, BTreeSet<Site>, u64))| {
                        let mut replicas: SiteSet = replicas.into_iter().collect();
                        replicas.remove(master);
                        (n as u8, Partition { master, replicas, rows: 1, bytes, pin: None })
                    };
                let partitions = partitions.into_iter().enumerate().map(partition).collect();
                let racks = (0..SITES).zip(racks);
                let racks =
                    racks.filter_map(|(site, rack)| Some((site, format!("rack-{}", rack?))));
                (Layout::new(partitions, used), alive, racks.collect(), wanted)
            },
        )
    }

    /// The most racks of any set of so many copies that the master is in and that could be made, by trying all.
    fn racks_max(wanted: &Wanted<'_>, one: &Partition, used: SiteSet, copies: usize) -> usize {
        let had = one.copies().intersection(wanted.alive);
        let possible = |set: &SiteSet| {
            set.contains(one.master)
                && set.len() == copies
                && set.difference(had).difference(used).is_empty()
                && set.difference(had).intersection(one.copies()).is_empty()
        };
        let sets = (0..1_u64 << SITES)
            .map(|bits| (0..SITES).filter(|site| bits >> site & 1 == 1).collect::<SiteSet>());
        sets.filter(possible).map(|set| wanted.racks_of(set)).max().unwrap_or(0)
    }

    proptest! {
        #[test]
        fn each_partition_has_the_copies_that_are_wanted_in_as_many_racks_as_there_are(
            (layout, alive, racks, replicas) in cases(),
        ) {
            let wanted = Wanted { replicas, alive, racks: &racks };
            let mut after = layout.clone();
            for operator in missing(&layout, &wanted) {
                prop_assert_eq!(after.apply(&operator), Ok(()), "{:?}", operator);
                let (had, has) = (layout.at(operator.key()).unwrap(), after.at(operator.key()).unwrap());
                let (had, has) = (wanted.replicas_of(had), wanted.replicas_of(has));
                prop_assert!(has >= had.min(replicas), "{operator:?} leaves {has} of {had}");
                if let Operator::AddReplica(_, site) = operator {
                    prop_assert!(layout.sites().contains(site), "{site} is not in use");
                }
            }
            for (start, one) in layout.partitions() {
                let now = after.at(start).unwrap();
                if !alive.contains(one.master) {
                    prop_assert_eq!(one, now);
                    continue;
                }
                let had = one.copies().intersection(alive).len();
                let free = layout.sites().difference(one.copies()).len();
                let expected = had.max((replicas + 1).min(had + free));
                prop_assert_eq!(wanted.replicas_of(now) + 1, expected);
                let racks = wanted.racks_of(now.copies().intersection(alive));
                let most = racks_max(&wanted, one, layout.sites(), expected);
                prop_assert!(racks >= most.min(replicas + 1), "{racks} of {most} racks: {now:?}");
            }
            prop_assert_eq!(missing(&after, &wanted), vec![], "it comes to an end");
        }
    }

    fn partition(master: Site, replicas: &[Site], bytes: u64) -> Partition {
        let replicas = replicas.iter().copied().collect();
        Partition { master, replicas, rows: 1, bytes, pin: None }
    }

    #[test]
    fn copies_go_to_the_emptiest_sites_the_largest_partition_first() {
        let partitions = BTreeMap::from([(0_u8, partition(0, &[], 5)), (7, partition(0, &[], 9))]);
        let layout = Layout::new(partitions, (0..3).collect());
        let racks = BTreeMap::new();
        let wanted = Wanted { replicas: 1, alive: layout.sites(), racks: &racks };
        let expected = [Operator::AddReplica(7, 1), Operator::AddReplica(0, 2)];
        assert_eq!(missing(&layout, &wanted), expected);
    }

    #[test]
    fn a_copy_moves_to_another_rack_when_one_joins() {
        let layout = Layout::new(BTreeMap::from([(0_u8, partition(0, &[1], 5))]), (0..3).collect());
        let racks =
            [(0, "east"), (1, "east"), (2, "west")].map(|(site, rack)| (site, rack.to_owned()));
        let racks = BTreeMap::from(racks);
        let wanted = Wanted { replicas: 1, alive: layout.sites(), racks: &racks };
        let expected = [Operator::AddReplica(0, 2), Operator::RemoveReplica(0, 1)];
        assert_eq!(missing(&layout, &wanted), expected);
    }
}
