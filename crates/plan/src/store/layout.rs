//! The store's physical design as the planner models it: the bounds of all partitions, and the master site and the
//! replica sites of each.
//!
//! The planner applies operators (§3.1) to copies of the design. An operator that is impossible here would also be
//! refused by the store.

use std::collections::BTreeMap;
use std::fmt::Debug;

pub use super::site_set::Site;
use super::site_set::SiteSet;

/// The requirements on the type of the keys by which partitions are bounded.
pub trait Key: Ord + Clone + Debug {}

impl<T: Ord + Clone + Debug> Key for T {}

/// A partition of the store: the site and replicas of a key range. Its start key is its key in the [`Layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The site that masters the partition: all writes to the partition run there.
    pub master: Site,
    /// The sites that have replicas of the partition; the master is not among them.
    pub replicas: SiteSet,
    /// Approximate number of rows in the partition.
    pub rows: u64,
    /// Approximate size of the partition's keys and values, in bytes; one copy is counted.
    pub bytes: u64,
    /// The site to which the partition is pinned as its master; `None` if it is not pinned.
    pub pin: Option<Site>,
}

impl Partition {
    /// True if a site has a copy of the partition, as the master or as a replica.
    #[must_use]
    pub fn is_at(&self, site: Site) -> bool {
        self.master == site || self.replicas.contains(site)
    }

    /// Returns the sites that have a copy of the partition, including the master.
    #[must_use]
    pub fn copies(&self) -> SiteSet {
        self.replicas.union(SiteSet::only(self.master))
    }

    fn is_like(&self, other: &Self) -> bool {
        (self.master, self.replicas, self.pin) == (other.master, other.replicas, other.pin)
    }
}

/// One change of the store's design (§3.1).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operator<K> {
    /// Splits the partition that holds this key in two; the second part begins at the key.
    Split(K),
    /// Merges the partition that begins at this key with the next one.
    Merge(K),
    /// Gives a site a replica of the partition that begins at this key.
    AddReplica(K, Site),
    /// Removes a site's replica of the partition that begins at this key.
    RemoveReplica(K, Site),
    /// Makes a site that has a replica of the partition that begins at this key the partition's master; the old master
    /// keeps a replica.
    Remaster(K, Site),
}

impl<K: Key> Operator<K> {
    /// Returns the start of the partition that the operator changes; for a split, the key at which the partition is
    /// split.
    #[must_use]
    pub fn key(&self) -> &K {
        match self {
            Self::Split(key)
            | Self::Merge(key)
            | Self::AddReplica(key, _)
            | Self::RemoveReplica(key, _)
            | Self::Remaster(key, _) => key,
        }
    }
}

/// The reason for which an operator cannot be applied to a design.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Impossible {
    /// No partition begins at the operator's key.
    #[error("no partition begins there")]
    NoPartition,
    /// A split at a partition's first key, or a merge of the last partition, which has no next one.
    #[error("there is nothing on one side of it")]
    NothingThere,
    /// Two partitions to be merged have different masters, replicas or pins.
    #[error("the two partitions have different masters, replicas or pins")]
    NotAlike,
    /// The site already has the copy that is to be added, or does not have the replica that is to be removed or made
    /// the master.
    #[error("the site has a copy already, or has none")]
    WrongSite,
    /// The partition is pinned to another site, so its master cannot move.
    #[error("the partition is pinned to another site")]
    Pinned,
}

/// A design of the store: partitions that cover all keys from the least one on, and the live sites.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout<K> {
    partitions: BTreeMap<K, Partition>,
    sites: SiteSet,
}

impl<K: Key> Layout<K> {
    /// Creates a design from partitions by their start keys, the first at the least key, and from the live sites.
    ///
    /// # Panics
    /// If there is no partition or no site.
    #[must_use]
    pub fn new(partitions: BTreeMap<K, Partition>, sites: SiteSet) -> Self {
        assert!(!partitions.is_empty() && !sites.is_empty(), "a design of nothing");
        Self { partitions, sites }
    }

    /// Returns the partitions with their start keys, in key order.
    pub fn partitions(&self) -> impl DoubleEndedIterator<Item = (&K, &Partition)> {
        self.partitions.iter()
    }

    /// Returns the number of partitions of the design.
    #[must_use]
    pub fn len(&self) -> usize {
        self.partitions.len()
    }

    /// Returns false: a design has at least one partition.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.partitions.is_empty()
    }

    /// Returns the live sites of the design.
    #[must_use]
    pub fn sites(&self) -> SiteSet {
        self.sites
    }

    /// Returns the partition that a key belongs to, with the partition's start key before it.
    #[must_use]
    pub fn of(&self, key: &K) -> (&K, &Partition) {
        let found = self.partitions.range(..=key).next_back();
        found.or_else(|| self.partitions.iter().next()).expect("there is a partition")
    }

    /// Returns the partition that begins at a key; `None` if none does.
    #[must_use]
    pub fn at(&self, start: &K) -> Option<&Partition> {
        self.partitions.get(start)
    }

    /// Returns the partitions that have keys from `start` up to `end`, exclusive, with their start keys; without an
    /// end, up to the last key.
    pub fn within<'a>(
        &'a self,
        start: &K,
        end: Option<&'a K>,
    ) -> impl Iterator<Item = (&'a K, &'a Partition)> {
        let first = self.of(start).0.clone();
        self.partitions
            .range(first..)
            .enumerate()
            .take_while(move |(n, (begin, _))| *n == 0 || end.is_none_or(|end| *begin < end))
            .map(|(_, found)| found)
    }

    /// Returns the first partition that begins after the key `start`, with its own start key; `None` if there is none.
    #[must_use]
    pub fn next(&self, start: &K) -> Option<(&K, &Partition)> {
        let bounds = (std::ops::Bound::Excluded(start), std::ops::Bound::Unbounded);
        self.partitions.range::<K, _>(bounds).next()
    }

    /// Returns the number of bytes of the partitions of which a site has a copy, as the master or as a replica.
    #[must_use]
    pub fn bytes_at(&self, site: Site) -> u64 {
        self.partitions.values().filter(|one| one.is_at(site)).map(|one| one.bytes).sum()
    }

    /// True if the partition that begins at `start` and the next one have the same master, replicas and pin, so that
    /// they can be merged.
    #[must_use]
    pub fn are_alike(&self, start: &K) -> bool {
        match (self.partitions.get(start), self.next(start)) {
            (Some(one), Some((_, next))) => one.is_like(next),
            _ => false,
        }
    }

    /// Returns the operators that are possible on this design, in their order, each after those before it: a part of a
    /// plan may have been executed for a transaction meanwhile.
    #[must_use]
    pub fn possible(&self, operators: &[Operator<K>]) -> Vec<Operator<K>> {
        let mut design = self.clone();
        operators.iter().filter(|operator| design.apply(operator).is_ok()).cloned().collect()
    }

    /// Applies an operator to this design. A split gives each part half of the rows and bytes.
    ///
    /// # Errors
    /// Fails, and changes nothing, if the operator is impossible on this design.
    pub fn apply(&mut self, operator: &Operator<K>) -> Result<(), Impossible> {
        match operator {
            Operator::Split(key) => {
                let (start, whole) = self.of(key);
                if start >= key {
                    return Err(Impossible::NothingThere);
                }
                let (start, whole) = (start.clone(), *whole);
                // The rows on either side of the key are not known here: each gets half, until they are counted
                // again.
                let half = |of: u64| (of - of / 2, of / 2);
                let (rows, bytes) = (half(whole.rows), half(whole.bytes));
                let part = |rows, bytes| Partition { rows, bytes, ..whole };
                self.partitions.insert(start, part(rows.0, bytes.0));
                self.partitions.insert(key.clone(), part(rows.1, bytes.1));
            }
            Operator::Merge(start) => {
                let one = self.partitions.get(start).ok_or(Impossible::NoPartition)?;
                let (next, other) = self.next(start).ok_or(Impossible::NothingThere)?;
                if !one.is_like(other) {
                    return Err(Impossible::NotAlike);
                }
                let (next, rows, bytes) = (next.clone(), other.rows, other.bytes);
                self.partitions.remove(&next);
                let one = self.partitions.get_mut(start).expect("seen above");
                (one.rows, one.bytes) = (one.rows + rows, one.bytes + bytes);
            }
            Operator::AddReplica(start, site) => {
                let one = self.partitions.get_mut(start).ok_or(Impossible::NoPartition)?;
                if one.is_at(*site) {
                    return Err(Impossible::WrongSite);
                }
                one.replicas.insert(*site);
            }
            Operator::RemoveReplica(start, site) => {
                let one = self.partitions.get_mut(start).ok_or(Impossible::NoPartition)?;
                if !one.replicas.remove(*site) {
                    return Err(Impossible::WrongSite);
                }
            }
            Operator::Remaster(start, site) => {
                let one = self.partitions.get_mut(start).ok_or(Impossible::NoPartition)?;
                if one.pin.is_some_and(|pin| pin != *site) {
                    return Err(Impossible::Pinned);
                }
                if !one.replicas.remove(*site) {
                    return Err(Impossible::WrongSite);
                }
                one.replicas.insert(one.master);
                one.master = *site;
            }
        }
        Ok(())
    }
}
