//! Clay: elastic load balancing by moving partitions between sites (Serafini et al., PVLDB 10, 2016).
//!
//! Clay decides once a period. While a site has more load than the mean by more than a small share, Clay takes the
//! hottest partition of that site, adds partitions that are accessed together with it to a *clump*, and moves the clump
//! to the site with which it has most in common and that is not overloaded by it. Clay does not replicate: a clump's
//! partitions get another master, and no copy stays behind. A partition that no site can take as a whole is split at
//! the hottest keys in it, so that these can move alone.
//!
//! The parameters of the comparison in MorphoSys (§7.1) are a period of 10 s; the load that is balanced is the number of
//! rows that transactions read and write.

use std::collections::{BTreeMap, BTreeSet};

use crate::store::layout::{Key, Layout, Operator, Site};
use crate::store::workload::{Numbered, Sample};

/// Share by which the load of a site may exceed the mean before Clay moves partitions.
pub const IMBALANCE: f64 = 0.025;
/// Share of the accessed keys that count as hot: only these are split off.
pub const HOTTEST: f64 = 0.01;
/// Maximum number of partitions in a clump.
const CLUMP_MAX: usize = 20;
/// Maximum number of clumps that one decision moves.
const CLUMPS_MAX: usize = 20;

/// The load of each partition of a design, and how often two partitions are accessed by one transaction.
struct Loads<K> {
    /// Start of each partition, in key order.
    starts: Vec<K>,
    /// Load of each partition, by its number in key order.
    of: Vec<f64>,
    /// Weight of the transactions that access both partitions.
    together: BTreeMap<usize, BTreeMap<usize, f64>>,
}

impl<K: Key> Loads<K> {
    fn new(layout: &Layout<K>, samples: &[(f64, Sample<K>)]) -> Self {
        let numbered = Numbered::new(layout);
        let starts = layout.partitions().map(|(start, _)| start.clone()).collect();
        let mut of = vec![0.0; layout.len()];
        let mut together: BTreeMap<usize, BTreeMap<usize, f64>> = BTreeMap::new();
        for (weight, sample) in samples {
            let touched = numbered.touched(sample);
            let all: Vec<usize> = touched.reads.iter().chain(&touched.writes).copied().collect();
            let rows = weight * f64::from(sample.rows_read + sample.rows_written);
            for one in &all {
                of[*one] += rows / all.len() as f64;
                let partners = together.entry(*one).or_default();
                for other in all.iter().filter(|other| *other != one) {
                    *partners.entry(*other).or_default() += weight;
                }
            }
        }
        Self { starts, of, together }
    }

    /// Returns the load of each site.
    fn sites(&self, sites: &BTreeSet<Site>, masters: &[Site]) -> BTreeMap<Site, f64> {
        let mut loads: BTreeMap<Site, f64> = sites.iter().map(|site| (*site, 0.0)).collect();
        for (load, master) in self.of.iter().zip(masters) {
            *loads.entry(*master).or_default() += load;
        }
        loads
    }
}

/// Returns the plans that balance the load of the sites, one for each clump that is moved and each partition that is
/// split: the site that gets the clump, and the operators.
pub(super) fn moves<K: Key>(
    layout: &Layout<K>,
    samples: &[(f64, Sample<K>)],
) -> Vec<(Site, Vec<Operator<K>>)> {
    let mut layout = layout.clone();
    let mut plans = Vec::new();
    let mut done: BTreeSet<K> = BTreeSet::new();
    for _ in 0..CLUMPS_MAX {
        let loads = Loads::new(&layout, samples);
        let masters: Vec<Site> = layout.partitions().map(|(_, one)| one.master).collect();
        let sites: BTreeSet<Site> = layout.sites().iter().collect();
        let by_site = loads.sites(&sites, &masters);
        let mean = by_site.values().sum::<f64>() / by_site.len() as f64;
        let most = mean * (1.0 + IMBALANCE);
        let Some((from, load)) =
            by_site.iter().max_by(|one, other| one.1.total_cmp(other.1)).map(|(s, l)| (*s, *l))
        else {
            break;
        };
        if load <= most || mean <= 0.0 {
            break;
        }
        let at =
            |number: &usize| masters[*number] == from && !done.contains(&loads.starts[*number]);
        let hottest = (0..masters.len())
            .filter(at)
            .max_by(|one, other| loads.of[*one].total_cmp(&loads.of[*other]));
        let Some(hottest) = hottest.filter(|hottest| loads.of[*hottest] > 0.0) else { break };
        let plan = match clump(hottest, (from, most), &loads, &masters, &by_site) {
            Some((to, clump)) => {
                let starts = clump.into_iter().map(|number| loads.starts[number].clone());
                (to, starts.flat_map(|start| moved(&layout, start, to)).collect())
            }
            None => {
                let splits = split(&layout, &loads.starts[hottest], samples);
                if splits.is_empty() {
                    // A single hot key that is more than a site's share stays where it is.
                    done.insert(loads.starts[hottest].clone());
                    continue;
                }
                (from, splits)
            }
        };
        for operator in &plan.1 {
            if layout.apply(operator).is_err() {
                return plans;
            }
        }
        plans.push(plan);
    }
    plans
}

/// Returns the clump that begins with the partition `hottest` of the overloaded site `from`, and the site that gets
/// it: the one that has most of its partners, of those whose load stays at `most`. `None` if there is no such site.
fn clump<K: Key>(
    hottest: usize,
    (from, most): (Site, f64),
    loads: &Loads<K>,
    masters: &[Site],
    by_site: &BTreeMap<Site, f64>,
) -> Option<(Site, Vec<usize>)> {
    let mut clump = vec![hottest];
    let mut found = None;
    loop {
        let load: f64 = clump.iter().map(|one| loads.of[*one]).sum();
        let mut partners: BTreeMap<usize, f64> = BTreeMap::new();
        for one in &clump {
            for (other, weight) in loads.together.get(one).into_iter().flatten() {
                if !clump.contains(other) {
                    *partners.entry(*other).or_default() += weight;
                }
            }
        }
        let affinity = |site: Site| -> f64 {
            partners.iter().filter(|(other, _)| masters[**other] == site).map(|(_, one)| one).sum()
        };
        let fits = by_site.iter().filter(|(site, has)| **site != from && *has + load <= most);
        let best = fits.max_by(|(one, one_has), (other, other_has)| {
            let by_affinity = affinity(**one).total_cmp(&affinity(**other));
            by_affinity.then(other_has.total_cmp(one_has))
        });
        let Some((to, _)) = best else { return found };
        found = Some((*to, clump.clone()));
        // More partners of the same site follow, as long as the receiver bears them and the source is overloaded.
        let is_relieved = by_site[&from] - load <= most;
        let partner = partners
            .iter()
            .filter(|(other, _)| masters[**other] == from)
            .max_by(|one, other| one.1.total_cmp(other.1));
        match partner {
            Some((partner, _)) if !is_relieved && clump.len() < CLUMP_MAX => clump.push(*partner),
            _ => return found,
        }
    }
}

/// Returns the operators that move the partition that begins at `start` to the site `to`, without a copy left behind.
fn moved<K: Key>(layout: &Layout<K>, start: K, to: Site) -> Vec<Operator<K>> {
    let Some(one) = layout.at(&start).filter(|one| one.master != to) else { return Vec::new() };
    let copy = (!one.is_at(to)).then(|| Operator::AddReplica(start.clone(), to));
    let others = one.replicas.iter().filter(|site| *site != to).chain([one.master]);
    let removed = others.map(|site| Operator::RemoveReplica(start.clone(), site));
    copy.into_iter().chain([Operator::Remaster(start.clone(), to)]).chain(removed).collect()
}

/// Returns the splits that separate the hottest keys of the partition that begins at `start` from each other and from
/// its other keys.
fn split<K: Key>(layout: &Layout<K>, start: &K, samples: &[(f64, Sample<K>)]) -> Vec<Operator<K>> {
    let end = layout.next(start).map(|(end, _)| end.clone());
    let is_within = |key: &&K| *key >= start && end.as_ref().is_none_or(|end| *key < end);
    let mut heat: BTreeMap<&K, f64> = BTreeMap::new();
    for (weight, sample) in samples {
        let read = sample.reads.iter().map(|(from, _)| from);
        for key in read.chain(&sample.writes).filter(is_within) {
            *heat.entry(key).or_default() += weight;
        }
    }
    let mut hottest: Vec<(&K, f64)> = heat.iter().map(|(key, heat)| (*key, *heat)).collect();
    hottest.sort_by(|one, other| other.1.total_cmp(&one.1).then(one.0.cmp(other.0)));
    hottest.truncate(((heat.len() as f64 * HOTTEST).ceil() as usize).clamp(1, CLUMP_MAX));
    let mut at: BTreeSet<K> = BTreeSet::new();
    for (key, _) in hottest {
        let next = heat.range::<K, _>((std::ops::Bound::Excluded(key), std::ops::Bound::Unbounded));
        at.extend([key.clone()].into_iter().chain(next.map(|(next, _)| (*next).clone()).take(1)));
    }
    at.into_iter().filter(|key| key > start).map(Operator::Split).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::layout::Partition;
    use crate::store::site_set::SiteSet;

    fn layout(masters: &[(u32, Site)], sites: &[Site]) -> Layout<u32> {
        let of = |(start, master): &(u32, Site)| {
            let replicas = SiteSet::default();
            (*start, Partition { master: *master, replicas, rows: 100, bytes: 10_000, pin: None })
        };
        Layout::new(masters.iter().map(of).collect(), sites.iter().copied().collect())
    }

    fn writes(keys: &[u32]) -> Sample<u32> {
        let rows = keys.len() as u32;
        Sample { reads: Vec::new(), writes: keys.to_vec(), rows_read: rows, rows_written: rows }
    }

    fn loads_after(
        mut layout: Layout<u32>,
        samples: &[(f64, Sample<u32>)],
    ) -> (Layout<u32>, BTreeMap<Site, f64>) {
        for (_, operators) in moves(&layout.clone(), samples) {
            operators.iter().for_each(|operator| layout.apply(operator).expect("it is possible"));
        }
        let loads = Loads::new(&layout, samples);
        let masters: Vec<Site> = layout.partitions().map(|(_, one)| one.master).collect();
        let by_site = loads.sites(&layout.sites().iter().collect(), &masters);
        (layout, by_site)
    }

    #[test]
    fn an_overloaded_site_gives_away_what_belongs_together() {
        // Site 0 has all that is hot; 100 and 300 are accessed together, and so are 200 and 700 (at site 1).
        let design = layout(&[(0, 0), (100, 0), (200, 0), (300, 0), (700, 1)], &[0, 1]);
        let samples = [
            (50.0, writes(&[150, 350])),
            (30.0, writes(&[250, 750])),
            (25.0, writes(&[50])),
            (10.0, writes(&[770])),
        ];
        let (after, loads) = loads_after(design.clone(), &samples);
        let mean = loads.values().sum::<f64>() / 2.0;
        let before = Loads::new(&design, &samples).sites(&[0, 1].into(), &[0, 0, 0, 0, 1]);
        assert!(loads[&0].max(loads[&1]) < before[&0] * 0.75, "{before:?} to {loads:?}");
        assert!(loads[&0].max(loads[&1]) <= mean * 1.35, "{loads:?} of {mean}");
        assert!(
            after.partitions().all(|(_, one)| one.replicas.is_empty()),
            "Clay does not replicate"
        );
    }

    #[test]
    fn a_partition_that_is_too_hot_is_split_at_its_hottest_keys() {
        let design = layout(&[(0, 0), (500, 1)], &[0, 1, 2, 3]);
        let samples: Vec<_> =
            (0..200_u32).map(|key| (if key < 3 { 200.0 } else { 1.0 }, writes(&[key]))).collect();
        let (after, loads) = loads_after(design, &samples);
        assert!(after.len() > 4, "{after:?}");
        let most = loads.values().copied().fold(0.0, f64::max);
        // Three keys have three quarters of the load: no design is better than one of them at a site.
        assert!(most <= 2.0 * 210.0 * 1.1, "{loads:?}");
    }

    #[test]
    fn a_balanced_design_stays() {
        let design = layout(&[(0, 0), (100, 1), (200, 2)], &[0, 1, 2]);
        let samples: Vec<_> =
            (0..3).map(|at| (10.0, writes(&[at * 100 + 7, at * 100 + 8]))).collect();
        assert_eq!(moves(&design, &samples), Vec::new());
        assert_eq!(moves(&design, &[]), Vec::new());
    }
}
