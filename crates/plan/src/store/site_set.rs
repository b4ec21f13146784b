//! Sets of sites, as the bits of one word: a decision asks millions of times which sites have a copy.

use std::fmt;

/// Number that identifies a site of the store.
pub type Site = u16;

/// Limit on the number of sites of a design: the numbers of sites are below it.
pub const SITES_MAX: Site = 64;

/// A set of sites, with one bit for each site's number.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SiteSet(u64);

impl SiteSet {
    /// Returns the set of this site alone.
    ///
    /// # Panics
    /// If the site's number is not below [`SITES_MAX`].
    #[must_use]
    pub fn only(site: Site) -> Self {
        assert!(site < SITES_MAX, "site {site}: a design has at most {SITES_MAX}");
        Self(1 << site)
    }

    /// True if the site is in the set.
    #[must_use]
    pub fn contains(self, site: Site) -> bool {
        site < SITES_MAX && self.0 & 1 << site != 0
    }

    /// Adds a site; returns true if it was not in the set.
    ///
    /// # Panics
    /// If the site's number is not below [`SITES_MAX`].
    pub fn insert(&mut self, site: Site) -> bool {
        let is_new = !self.contains(site);
        *self = self.union(Self::only(site));
        is_new
    }

    /// Removes a site; returns true if it was in the set.
    pub fn remove(&mut self, site: Site) -> bool {
        let was_there = self.contains(site);
        if was_there {
            self.0 &= !(1 << site);
        }
        was_there
    }

    /// Returns the sites of either set.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the sites of both sets.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the sites of this set that are not in the other.
    #[must_use]
    pub fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the index of this site in the ascending order of the set: the number of sites in the set with a smaller
    /// number.
    #[must_use]
    pub fn place_of(self, site: Site) -> usize {
        debug_assert!(self.contains(site), "site {site} is not among {self:?}");
        (self.0 & ((1 << site) - 1)).count_ones() as usize
    }

    /// Returns the number of sites in the set.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// True if the set has no site.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the sites of the set in ascending order.
    pub fn iter(self) -> impl Iterator<Item = Site> + Clone {
        let without_first = |left: &u64| Some(left & left.wrapping_sub(1));
        let left = std::iter::successors(Some(self.0), without_first);
        left.take_while(|left| *left != 0).map(|left| left.trailing_zeros() as Site)
    }
}

impl FromIterator<Site> for SiteSet {
    fn from_iter<I: IntoIterator<Item = Site>>(sites: I) -> Self {
        sites.into_iter().map(Self::only).fold(Self::default(), Self::union)
    }
}

impl fmt::Debug for SiteSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set(
            one in prop::collection::btree_set(0..SITES_MAX, 0..20),
            two in prop::collection::btree_set(0..SITES_MAX, 0..20),
            site in 0..SITES_MAX + 2,
        ) {
            let set = |of: &BTreeSet<Site>| of.iter().copied().collect::<SiteSet>();
            let same = |of: SiteSet, as_sites: Vec<Site>| of.iter().eq(as_sites);
            let (first, second) = (set(&one), set(&two));
            prop_assert!(same(first, one.iter().copied().collect()));
            prop_assert!(same(first.union(second), one.union(&two).copied().collect()));
            prop_assert!(same(first.intersection(second), one.intersection(&two).copied().collect()));
            prop_assert!(same(first.difference(second), one.difference(&two).copied().collect()));
            prop_assert_eq!((first.len(), first.is_empty()), (one.len(), one.is_empty()));
            prop_assert_eq!(first.contains(site), one.contains(&site));
            for (place, site) in one.iter().enumerate() {
                prop_assert_eq!(first.place_of(*site), place);
            }
            let (mut without, mut less) = (first, one.clone());
            prop_assert_eq!(without.remove(site), less.remove(&site));
            prop_assert_eq!(without, set(&less));
            if site < SITES_MAX {
                let (mut with, mut more) = (first, one.clone());
                prop_assert_eq!(with.insert(site), more.insert(site));
                prop_assert_eq!(with, set(&more));
            }
        }
    }
}
