//! Redesigns: plans that change the masters and replicas of all partitions at once, to one of the designs that people
//! choose by hand.
//!
//! The plans of the paper start from one transaction and change the few partitions that it touches (MorphoSys, §5.3.3).
//! Between two good designs there may be many such steps of which none pays: with replicas of half of the partitions
//! everywhere, most transactions that scan still need a change of the design. So whole designs are candidates, too: each
//! way to choose masters with each way to choose replicas, with the present bounds of partitions. They are the designs
//! of single-master, multi-master and partitioned stores that MorphoSys is compared with in §7.1. The price decides, as
//! for all plans.
//!
//! Invariants:
//! - A redesign can be applied, in order, to the design that it was made for, and keeps to the limits of replicas.
//! - It moves no partition away from its pin, changes no bound, and removes no copy from a site that is not live.

use std::fmt;

use super::layout::{Key, Layout, Operator, Partition, Site};
use super::plans::Thresholds;
use super::site_set::SiteSet;
use super::workload::{Numbered, Statistics};

/// How a redesign chooses the masters of partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Masters {
    /// All partitions keep their masters.
    Kept,
    /// This site becomes the master of all partitions.
    One(Site),
    /// Each site becomes the master of partitions with neighbouring keys, with an equal share of the accesses.
    Neighbours,
    /// Partitions that are accessed together get the same master, as far as no site has much more than its share of the
    /// accesses.
    Together,
}

/// How a redesign chooses the replicas of partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replicas {
    /// All sites get replicas of all partitions.
    Everywhere,
    /// All sites get replicas of the partitions that are read more often than written, and of no others.
    WhereRead,
    /// No partition has more replicas than the least number.
    Nowhere,
}

/// A way to choose the masters and replicas of all partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redesign {
    /// How masters are chosen.
    pub masters: Masters,
    /// How replicas are chosen.
    pub replicas: Replicas,
}

impl fmt::Display for Redesign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.masters {
            Masters::Kept => f.write_str("masters as they are")?,
            Masters::One(site) => write!(f, "all masters at site {site}")?,
            Masters::Neighbours => f.write_str("masters by neighbouring keys")?,
            Masters::Together => f.write_str("masters by what is accessed together")?,
        }
        f.write_str(match self.replicas {
            Replicas::Everywhere => ", replicas everywhere",
            Replicas::WhereRead => ", replicas of what is mostly read",
            Replicas::Nowhere => ", no replicas",
        })
    }
}

/// Share of its accesses by which a site may exceed the mean of all sites with [`Masters::Together`].
const ABOVE_MEAN_MAX: f64 = 0.1;

impl Redesign {
    /// Number of ways to choose masters and replicas that are considered.
    pub const COUNT: usize = 12;

    /// Returns the redesigns that are considered for a design: `statistics` are the accesses of its partitions.
    pub fn all<K: Key>(numbered: &Numbered<'_, K>, statistics: &Statistics) -> Vec<Self> {
        let most = most_mastered(numbered.layout, statistics);
        let masters = [Masters::Kept, Masters::One(most), Masters::Neighbours, Masters::Together];
        let replicas = [Replicas::Everywhere, Replicas::WhereRead, Replicas::Nowhere];
        let with = |masters| replicas.map(|replicas| Self { masters, replicas });
        masters.into_iter().flat_map(with).collect()
    }

    /// Returns the operators that lead from a design to this one; none if it is this one already.
    pub fn operators<K: Key>(
        self,
        numbered: &Numbered<'_, K>,
        statistics: &Statistics,
        thresholds: &Thresholds,
    ) -> Vec<Operator<K>> {
        let layout = numbered.layout;
        let masters = match self.masters {
            Masters::Kept => layout.partitions().map(|(_, one)| one.master).collect(),
            Masters::One(site) => vec![site; layout.len()],
            Masters::Neighbours => neighbours(layout, statistics),
            Masters::Together => together(layout, statistics),
        };
        let mut operators = Vec::new();
        for (number, (start, partition)) in layout.partitions().enumerate() {
            let master = partition.pin.unwrap_or(masters[number]);
            // The new master's copy would be the second one too many.
            let is_full = partition.replicas.len() > thresholds.replicas_max;
            let is_kept = is_full && !partition.is_at(master);
            let master = if is_kept { partition.master } else { master };
            let has_replicas = match self.replicas {
                Replicas::Everywhere => true,
                Replicas::WhereRead => statistics.reads(number) > statistics.writes(number),
                Replicas::Nowhere => false,
            };
            let others = layout.sites().iter().filter(|site| *site != master);
            // Copies that are there already come first where not all sites may have one.
            let (there, missing): (Vec<Site>, Vec<Site>) =
                others.partition(|site| partition.is_at(*site));
            let (least, most) = (thresholds.replicas_min, thresholds.replicas_max);
            let many = if has_replicas { most } else { least.min(most) };
            // A site that is not there now may come back with its copies.
            let elsewhere = partition.replicas.difference(layout.sites());
            let many = many.saturating_sub(elsewhere.len());
            let replicas: SiteSet = there.into_iter().chain(missing).take(many).collect();
            let replicas = replicas.union(elsewhere);
            operators.extend(change(start, partition, (master, replicas), most));
        }
        operators
    }
}

/// Returns the operators that give a partition a master and replicas. On the way it has at most one replica more than
/// `replicas_max`, and no fewer than before or afterwards.
fn change<K: Key>(
    start: &K,
    partition: &Partition,
    (master, replicas): (Site, SiteSet),
    replicas_max: usize,
) -> Vec<Operator<K>> {
    let mut operators = Vec::new();
    let mut copies = partition.replicas;
    if !partition.is_at(master) {
        operators.push(Operator::AddReplica(start.clone(), master));
        copies.insert(master);
    }
    if partition.master != master {
        operators.push(Operator::Remaster(start.clone(), master));
        copies.remove(master);
        copies.insert(partition.master);
    }
    let mut added = replicas.difference(copies).iter();
    let mut removed = copies.difference(replicas).iter();
    let mut many = copies.len();
    loop {
        // A replica comes before another goes, if there is room for both.
        let next = if many <= replicas_max { added.next() } else { None };
        if let Some(site) = next {
            operators.push(Operator::AddReplica(start.clone(), site));
            many += 1;
        }
        let gone = removed.next();
        if let Some(site) = gone {
            operators.push(Operator::RemoveReplica(start.clone(), site));
            many -= 1;
        }
        if next.is_none() && gone.is_none() {
            return operators;
        }
    }
}

/// Returns the site that masters the partitions with most of the accesses.
fn most_mastered<K: Key>(layout: &Layout<K>, statistics: &Statistics) -> Site {
    let accesses = |site: Site| -> f64 {
        let here = layout.partitions().enumerate().filter(|(_, (_, one))| one.master == site);
        here.map(|(number, _)| statistics.accesses(number)).sum()
    };
    // The first of several that are alike.
    let sites: Vec<Site> = layout.sites().iter().collect();
    let most = sites.iter().rev().max_by(|one, two| accesses(**one).total_cmp(&accesses(**two)));
    *most.expect("a design has a site")
}

/// Returns the master of each partition with [`Masters::Neighbours`].
fn neighbours<K: Key>(layout: &Layout<K>, statistics: &Statistics) -> Vec<Site> {
    let sites: Vec<Site> = layout.sites().iter().collect();
    let accesses = |number| statistics.accesses(number);
    let all: f64 = (0..layout.len()).map(accesses).sum();
    let mut before = 0.0;
    let master = |number| {
        let middle = before + accesses(number) / 2.0;
        before += accesses(number);
        let at = (middle / all.max(f64::MIN_POSITIVE) * sites.len() as f64) as usize;
        sites[at.min(sites.len() - 1)]
    };
    (0..layout.len()).map(master).collect()
}

/// Returns the master of each partition with [`Masters::Together`]: the partitions, in the order of their accesses, go
/// to the site that has most of what they are accessed together with, less where a site is nearly full. That is linear
/// deterministic greedy partitioning (Stanton and Kliot, KDD 2012).
fn together<K: Key>(layout: &Layout<K>, statistics: &Statistics) -> Vec<Site> {
    let sites: Vec<Site> = layout.sites().iter().collect();
    let accesses = |number: usize| statistics.accesses(number);
    let all: f64 = (0..layout.len()).map(accesses).sum();
    let full = (1.0 + ABOVE_MEAN_MAX) * all.max(f64::MIN_POSITIVE) / sites.len() as f64;
    let mut order: Vec<usize> = (0..layout.len()).collect();
    order.sort_by(|one, two| accesses(*two).total_cmp(&accesses(*one)));
    let mut masters: Vec<Option<usize>> = vec![None; layout.len()];
    let mut loads = vec![0.0; sites.len()];
    for number in order {
        let mut affinity = vec![0.0; sites.len()];
        for other in statistics.partners(number) {
            if let Some(site) = masters[*other] {
                affinity[site] += statistics.together(number, *other);
            }
        }
        let worth = |site: usize| affinity[site] * (1.0 - loads[site] / full).max(0.0);
        let best = (0..sites.len()).max_by(|one, two| {
            worth(*one).total_cmp(&worth(*two)).then(loads[*two].total_cmp(&loads[*one]))
        });
        let best = best.expect("a design has a site");
        masters[number] = Some(best);
        loads[best] += accesses(number);
    }
    masters.into_iter().map(|site| sites[site.expect("each partition has a master")]).collect()
}
