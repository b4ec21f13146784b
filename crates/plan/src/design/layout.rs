//! A physical design as the planner sees it: partitions by where they begin, their masters and replicas.
//!
//! The planner tries operators (§3.1) on copies of it: what an operator cannot do here, the store would
//! refuse.

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::site_set::SiteSet;

/// A site, by number.
pub type Site = u16;

/// The requirements on a key.
pub trait Key: Ord + Clone + Debug {}

impl<T: Ord + Clone + Debug> Key for T {}

/// A partition; where it begins is its key in the [`Layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The site that writes it.
    pub master: Site,
    /// The sites that have copies, besides.
    pub replicas: SiteSet,
    /// Its rows, about.
    pub rows: u64,
    /// Their bytes, about.
    pub bytes: u64,
    /// The site that has to be its master.
    pub pin: Option<Site>,
}

impl Partition {
    /// True if a site has a copy.
    #[must_use]
    pub fn is_at(&self, site: Site) -> bool {
        self.master == site || self.replicas.contains(site)
    }

    /// The sites that have a copy.
    #[must_use]
    pub fn copies(&self) -> SiteSet {
        self.replicas.union(SiteSet::only(self.master))
    }

    fn is_like(&self, other: &Self) -> bool {
        (self.master, self.replicas, self.pin) == (other.master, other.replicas, other.pin)
    }
}

/// One change of a design (§3.1).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operator<K> {
    /// The partition of this key becomes two, the second of which begins there.
    Split(K),
    /// The partition that begins here and the next one become one.
    Merge(K),
    /// A site gets a copy of the partition that begins here.
    AddReplica(K, Site),
    /// It loses it.
    RemoveReplica(K, Site),
    /// A site that has a copy becomes the master; the master keeps a copy.
    Remaster(K, Site),
}

impl<K: Key> Operator<K> {
    /// Returns the start of the partition that it changes; of a split, the key that it splits at.
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

/// Why an operator cannot be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Impossible {
    /// No partition begins there.
    #[error("no partition begins there")]
    NoPartition,
    /// A split at the first key, or a merge of the last partition.
    #[error("there is nothing on one side of it")]
    NothingThere,
    /// Two partitions to be merged have other masters, replicas or pins.
    #[error("the two partitions have different masters, replicas or pins")]
    NotAlike,
    /// The site has a copy already, or none.
    #[error("the site has a copy already, or has none")]
    WrongSite,
    /// It is pinned to another site.
    #[error("the partition is pinned to another site")]
    Pinned,
}

/// A design: partitions cover all keys, from the least on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout<K> {
    partitions: BTreeMap<K, Partition>,
    sites: SiteSet,
}

impl<K: Key> Layout<K> {
    /// Partitions by where they begin, the first at the least key, and the sites that are alive.
    ///
    /// # Panics
    /// If there is no partition or no site.
    #[must_use]
    pub fn new(partitions: BTreeMap<K, Partition>, sites: SiteSet) -> Self {
        assert!(!partitions.is_empty() && !sites.is_empty(), "a design of nothing");
        Self { partitions, sites }
    }

    /// The partitions, in the order of their keys.
    pub fn partitions(&self) -> impl DoubleEndedIterator<Item = (&K, &Partition)> {
        self.partitions.iter()
    }

    /// Returns the number of partitions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.partitions.len()
    }

    /// Never: a design has a partition.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.partitions.is_empty()
    }

    /// The sites that are alive.
    #[must_use]
    pub fn sites(&self) -> SiteSet {
        self.sites
    }

    /// The partition that a key belongs to, and where it begins.
    #[must_use]
    pub fn of(&self, key: &K) -> (&K, &Partition) {
        let found = self.partitions.range(..=key).next_back();
        found.or_else(|| self.partitions.iter().next()).expect("there is a partition")
    }

    /// The partition that begins at a key.
    #[must_use]
    pub fn at(&self, start: &K) -> Option<&Partition> {
        self.partitions.get(start)
    }

    /// The partitions that have keys from `start` on, up to `end`, exclusive.
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

    /// Returns the partition behind one, with its start.
    #[must_use]
    pub fn next(&self, start: &K) -> Option<(&K, &Partition)> {
        let bounds = (std::ops::Bound::Excluded(start), std::ops::Bound::Unbounded);
        self.partitions.range::<K, _>(bounds).next()
    }

    /// Bytes that a site holds, replicas included.
    #[must_use]
    pub fn bytes_at(&self, site: Site) -> u64 {
        self.partitions.values().filter(|one| one.is_at(site)).map(|one| one.bytes).sum()
    }

    /// True if two partitions, the second right behind the first, can be merged.
    #[must_use]
    pub fn are_alike(&self, start: &K) -> bool {
        match (self.partitions.get(start), self.next(start)) {
            (Some(one), Some((_, next))) => one.is_like(next),
            _ => false,
        }
    }

    /// Applies an operator.
    ///
    /// # Errors
    /// Fails, and changes nothing, if the operator is impossible.
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
