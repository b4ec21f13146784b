//! Drains a site: plans the operators that give its masters and replicas to other sites.
//!
//! Mastership of a partition goes to the site with a replica of it that masters the fewest
//! partitions. If no site has a replica, a new replica is made at the site that holds the fewest
//! bytes, and becomes the master. For each copy that the site gives up, another one is made at a
//! site that has none and has room, so that a drain does not reduce the number of replicas. Large
//! partitions are placed first, because they fit into the fewest sites.
//!
//! Invariants:
//! - The operators can be applied in their order, and after the last one the site holds nothing.
//! - No operator brings a site above the memory limit.

use std::collections::BTreeMap;

use crate::store::layout::{Key, Layout, Operator, Site};

/// The reason why a site cannot be drained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NowhereToGo<K> {
    /// These partitions, given by their start keys, are pinned to the site.
    Pinned(Vec<K>),
    /// No other site is in use.
    NoSite,
    /// No other site has room for the partition with this start key and this size in bytes, whose only copy is at the
    /// site.
    NoRoom(K, u64),
}

/// The operators that drain a site, and the number of copies that are lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drain<K> {
    /// Operators, in the order in which they must be applied.
    pub operators: Vec<Operator<K>>,
    /// Number of copies that the drain removes without replacement, because no other site is left for them or has
    /// room.
    pub dropped: usize,
}

/// Plans the drain of `site` into the sites `to`. `memory_max` is the limit on the bytes that each site may hold;
/// `None` means no limit.
///
/// # Errors
/// If a partition is pinned to the site, or its master has no other site to go to.
pub fn drain<K: Key>(
    layout: &Layout<K>,
    site: Site,
    to: &[Site],
    memory_max: Option<u64>,
) -> Result<Drain<K>, NowhereToGo<K>> {
    let pinned: Vec<K> = layout
        .partitions()
        .filter(|(_, one)| one.pin == Some(site))
        .map(|(start, _)| start.clone())
        .collect();
    if !pinned.is_empty() {
        return Err(NowhereToGo::Pinned(pinned));
    }
    let mut held: Vec<(&K, u64)> = layout
        .partitions()
        .filter(|(_, one)| one.is_at(site))
        .map(|(start, one)| (start, one.bytes))
        .collect();
    held.sort_by_key(|(start, bytes)| (std::cmp::Reverse(*bytes), (*start).clone()));
    let mut giving = DrainBuilder::new(layout, to, memory_max);
    for (start, bytes) in held {
        giving.give(layout, start, bytes, site)?;
    }
    Ok(Drain { operators: giving.operators, dropped: giving.dropped })
}

/// The drain plan under construction, with the bytes and masters of the other sites; these include what the plan has
/// assigned so far.
struct DrainBuilder<K> {
    bytes: BTreeMap<Site, u64>,
    masters: BTreeMap<Site, usize>,
    memory_max: Option<u64>,
    operators: Vec<Operator<K>>,
    dropped: usize,
}

impl<K: Key> DrainBuilder<K> {
    fn new(layout: &Layout<K>, to: &[Site], memory_max: Option<u64>) -> Self {
        let masters =
            |site: &Site| layout.partitions().filter(|(_, one)| one.master == *site).count();
        Self {
            bytes: to.iter().map(|site| (*site, layout.bytes_at(*site))).collect(),
            masters: to.iter().map(|site| (*site, masters(site))).collect(),
            memory_max,
            operators: Vec::new(),
            dropped: 0,
        }
    }

    fn give(
        &mut self,
        layout: &Layout<K>,
        start: &K,
        bytes: u64,
        from: Site,
    ) -> Result<(), NowhereToGo<K>> {
        let partition = layout.at(start).expect("it is of this design");
        if partition.master == from {
            let with_replica =
                partition.replicas.iter().filter(|one| self.masters.contains_key(one));
            let heir = with_replica.min_by_key(|one| (self.masters[one], *one));
            let heir = match heir {
                Some(heir) => heir,
                None if self.masters.is_empty() => return Err(NowhereToGo::NoSite),
                None => {
                    let heir = self.with_room(bytes, |_| true);
                    let heir = heir.ok_or_else(|| NowhereToGo::NoRoom(start.clone(), bytes))?;
                    self.copy(start, heir, bytes);
                    heir
                }
            };
            *self.masters.entry(heir).or_default() += 1;
            self.operators.push(Operator::Remaster(start.clone(), heir));
        }
        let had = partition.replicas.len() + 1;
        let copied = self.operators.iter().rev().take(2);
        let copied =
            copied.filter(|one| matches!(one, Operator::AddReplica(of, _) if of == start)).count();
        if had - 1 + copied < had {
            match self.with_room(bytes, |one| !partition.is_at(one)) {
                Some(other) => self.copy(start, other, bytes),
                None => self.dropped += 1,
            }
        }
        self.operators.push(Operator::RemoveReplica(start.clone(), from));
        Ok(())
    }

    /// Returns the site that holds the fewest bytes among those that `may` allows and that have room for `bytes` more;
    /// `None` if there is none.
    fn with_room(&self, bytes: u64, may: impl Fn(Site) -> bool) -> Option<Site> {
        let fits = |held: u64| self.memory_max.is_none_or(|most| held + bytes <= most);
        let fitting = self.bytes.iter().filter(|(site, held)| may(**site) && fits(**held));
        fitting.min_by_key(|(site, held)| (**held, **site)).map(|(site, _)| *site)
    }

    fn copy(&mut self, start: &K, to: Site, bytes: u64) {
        *self.bytes.entry(to).or_default() += bytes;
        self.operators.push(Operator::AddReplica(start.clone(), to));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::store::layout::Partition;

    fn partition(master: Site, replicas: &[Site], bytes: u64) -> Partition {
        Partition {
            master,
            replicas: replicas.iter().copied().collect(),
            rows: 1,
            bytes,
            pin: None,
        }
    }

    fn layouts() -> impl Strategy<Value = Layout<u8>> {
        let one = (0..4_u16, prop::collection::btree_set(0..4_u16, 0..3), 0..100_u64);
        prop::collection::vec(one, 1..20).prop_map(|partitions| {
            let partition =
                |(n, (master, mut replicas, bytes)): (usize, (Site, BTreeSet<Site>, u64))| {
                    replicas.remove(&master);
                    let replicas = replicas.into_iter().collect();
                    (n as u8, Partition { master, replicas, rows: 1, bytes, pin: None })
                };
            Layout::new(
                partitions.into_iter().enumerate().map(partition).collect(),
                (0..4).collect(),
            )
        })
    }

    proptest! {
        #[test]
        fn a_drained_site_holds_nothing_and_no_partition_has_fewer_copies(layout in layouts(), site in 0..4_u16) {
            let to: Vec<Site> = (0..4).filter(|other| *other != site).collect();
            let drain = drain(&layout, site, &to, None).unwrap();
            let mut after = layout.clone();
            for operator in &drain.operators {
                prop_assert_eq!(after.apply(operator), Ok(()), "{:?}", operator);
            }
            for (start, one) in after.partitions() {
                prop_assert!(!one.is_at(site));
                let copies = |layout: &Layout<u8>| layout.at(start).unwrap().replicas.len() + 1;
                prop_assert_eq!(copies(&after), copies(&layout).min(3));
            }
        }

        #[test]
        fn a_memory_limit_is_kept_or_the_partition_is_named(layout in layouts(), most in 1..1_000_u64) {
            match drain(&layout, 0, &[1, 2], Some(most)) {
                Ok(drain) => {
                    let mut after = layout.clone();
                    drain.operators.iter().for_each(|operator| after.apply(operator).unwrap());
                    for site in 1..3 {
                        let bytes = after.bytes_at(site);
                        prop_assert!(bytes <= most || bytes == layout.bytes_at(site));
                    }
                    prop_assert!(after.partitions().all(|(_, one)| !one.is_at(0) && one.master != 0));
                }
                Err(NowhereToGo::NoRoom(start, bytes)) => {
                    let one = layout.at(&start).unwrap();
                    prop_assert!(one.master == 0 && one.bytes == bytes);
                }
                Err(other) => prop_assert!(false, "{other:?}"),
            }
        }
    }

    #[test]
    fn what_is_pinned_there_stays() {
        let pinned = Partition { pin: Some(1), ..partition(1, &[], 5) };
        let partitions = BTreeMap::from([(0_u8, partition(1, &[], 5)), (5, pinned), (9, pinned)]);
        let layout = Layout::new(partitions, (0..3).collect());
        assert_eq!(drain(&layout, 1, &[0, 2], None), Err(NowhereToGo::Pinned(vec![5, 9])));
        assert_eq!(drain(&layout, 0, &[1, 2], None), Ok(Drain { operators: vec![], dropped: 0 }));
    }

    #[test]
    fn a_replica_becomes_the_master_and_the_copy_is_made_elsewhere() {
        let partitions = BTreeMap::from([(0_u8, partition(0, &[1], 5)), (5, partition(0, &[], 9))]);
        let layout = Layout::new(partitions, (0..3).collect());
        let expected = [
            Operator::AddReplica(5, 2),
            Operator::Remaster(5, 2),
            Operator::RemoveReplica(5, 0),
            Operator::Remaster(0, 1),
            Operator::AddReplica(0, 2),
            Operator::RemoveReplica(0, 0),
        ];
        assert_eq!(
            drain(&layout, 0, &[1, 2], None),
            Ok(Drain { operators: expected.into(), dropped: 0 })
        );
        assert_eq!(drain(&layout, 0, &[1], None).map(|drain| drain.dropped), Ok(1));
        assert_eq!(drain(&layout, 0, &[], None), Err(NowhereToGo::NoSite));
    }
}
