//! A division of a site's load: half of the transactions that a site runs, with all that they write, moves to another
//! site in one plan.
//!
//! A split at one key separates pairs of distant keys: each transaction then needs both partitions, and neither can
//! move alone. So the transactions of a site are halved by their first keys, and each written key belongs to the half
//! that writes it more. Where the keys of each half lie in a few runs, the design is split at the starts of the runs,
//! and the partitions of one half move together.
//!
//! Invariants:
//! - A division has at least three runs: two are an ordinary split, which [`super::plans`] makes.
//! - At most a tenth of the writes are to keys of the other half.

use std::collections::BTreeMap;

use super::layout::{Key, Layout, Site};
use super::workload::Sample;

/// Limit on the number of runs in a division: with more, the operators of a plan cost more than they can save.
const RUNS_MAX: usize = 6;
/// Largest share (0..1) of the weighted writes that may be to keys of the other half.
const ACROSS_MAX: f64 = 0.1;
/// A site is divided if it runs more than this multiple of the mean number of writing transactions of a site.
const DIVIDED_ABOVE: f64 = 1.5;

/// A division of the transactions that a site runs into a half that stays and a half that moves to another site.
#[derive(Clone, Debug, PartialEq)]
pub struct Division<K> {
    /// The site whose transactions are divided.
    pub site: Site,
    /// Starts of all runs of keys but the first, in key order. They alternate: the first begins a run of the half that
    /// moves, the second a run of the half that stays.
    pub starts: Vec<K>,
}

impl<K: Key> Division<K> {
    /// True if a key belongs to the half that moves.
    #[must_use]
    pub fn moves(&self, key: &K) -> bool {
        self.starts.partition_point(|start| start <= key) % 2 == 1
    }
}

/// A writing transaction: its least written key, its weight, and its sample.
type Writing<'s, K> = (&'s K, f64, &'s Sample<K>);

/// Returns the divisions of the sites that run more than their share of the writing transactions; a site whose halves
/// cannot be separated by a few runs has none.
#[must_use]
pub fn divisions<K: Key>(layout: &Layout<K>, samples: &[(f64, Sample<K>)]) -> Vec<Division<K>> {
    let mut by_site: BTreeMap<Site, Vec<Writing<'_, K>>> = BTreeMap::new();
    let mut all = 0.0;
    for (weight, sample) in samples {
        let Some(first) = sample.writes.iter().min() else { continue };
        all += weight;
        let site = layout.of(first).1.master;
        if sample.writes.iter().all(|key| layout.of(key).1.master == site) {
            by_site.entry(site).or_default().push((first, *weight, sample));
        }
    }
    let least = DIVIDED_ABOVE * all / layout.sites().len().max(1) as f64;
    let weight = |of: &[Writing<'_, K>]| of.iter().map(|(_, weight, _)| weight).sum::<f64>();
    let busy = by_site.into_iter().filter(|(_, of)| weight(of) > least);
    busy.filter_map(|(site, of)| division(site, of)).collect()
}

fn division<K: Key>(site: Site, mut of: Vec<Writing<'_, K>>) -> Option<Division<K>> {
    of.sort_by(|one, two| one.0.cmp(two.0));
    let all: f64 = of.iter().map(|(_, weight, _)| weight).sum();
    let mut before = 0.0;
    let first = of[0].0;
    let cut = of.iter().find_map(|(key, weight, _)| {
        let is_cut = before >= all / 2.0 && *key > first;
        before += weight;
        is_cut.then_some(*key)
    })?;
    // By key, the weights with which the staying and the moving half write it.
    let mut written: BTreeMap<&K, [f64; 2]> = BTreeMap::new();
    for (key, weight, sample) in &of {
        for one in &sample.writes {
            written.entry(one).or_default()[usize::from(*key >= cut)] += weight;
        }
    }
    let across: f64 = written.values().map(|[stays, moves]| stays.min(*moves)).sum();
    let total: f64 = written.values().flatten().sum();
    if across > ACROSS_MAX * total {
        return None;
    }
    let mut starts = Vec::new();
    for (key, [stays, moves]) in written {
        if (moves > stays) != (starts.len() % 2 == 1) {
            starts.push(key.clone());
        }
    }
    (2..RUNS_MAX).contains(&starts.len()).then_some(Division { site, starts })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::layout::Partition;
    use crate::store::site_set::SiteSet;

    fn writes(keys: &[u64]) -> (f64, Sample<u64>) {
        let writes = keys.to_vec();
        (1.0, Sample { reads: Vec::new(), writes, rows_read: 0, rows_written: keys.len() as u32 })
    }

    fn alone() -> Layout<u64> {
        let replicas = SiteSet::default();
        let all = Partition { master: 0, replicas, rows: 40_000, bytes: 4_800_000, pin: None };
        Layout::new(BTreeMap::from([(0, all)]), (0..4).collect())
    }

    #[test]
    fn distant_pairs_are_halved_at_both_ends() {
        let samples: Vec<_> = (0..100).map(|n| writes(&[1_000 + n, 20_000 + n])).collect();
        let found = divisions(&alone(), &samples);
        assert_eq!(found, [Division { site: 0, starts: vec![1_050, 20_000, 20_050] }]);
        assert!(found[0].moves(&1_060) && !found[0].moves(&20_049) && found[0].moves(&20_050));
        // Also where the far ends lie in reverse.
        let samples: Vec<_> = (0..100).map(|n| writes(&[1_000 + n, 20_099 - n])).collect();
        assert_eq!(divisions(&alone(), &samples)[0].starts, [1_050, 20_050]);
    }

    #[test]
    fn single_keys_and_pairs_of_chance_are_not() {
        let single: Vec<_> = (0..100).map(|n| writes(&[n])).collect();
        assert_eq!(divisions(&alone(), &single), []);
        let chance: Vec<_> = (0..100).map(|n| writes(&[n, 1_000 + n * 37 % 100])).collect();
        assert_eq!(divisions(&alone(), &chance), []);
        let shared: Vec<_> = (0..100).map(|n| writes(&[n, 5_000])).collect();
        assert_eq!(divisions(&alone(), &shared), [], "a row that all write");
    }

    proptest! {
        #[test]
        fn few_writes_are_torn_from_their_transaction(
            pairs in prop::collection::vec((0_u64..300, 10_000_u64..10_300), 1..120),
        ) {
            let samples: Vec<_> = pairs.iter().map(|(one, two)| writes(&[*one, *two])).collect();
            for division in divisions(&alone(), &samples) {
                prop_assert!(division.starts.is_sorted() && division.starts.len() >= 2);
                let torn = pairs.iter().filter(|(one, two)| division.moves(one) != division.moves(two));
                prop_assert!(torn.count() as f64 <= 2.0 * ACROSS_MAX * pairs.len() as f64 + 1e-9);
            }
        }
    }
}
