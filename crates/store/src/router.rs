//! Routing: a transaction runs at a site that masters all partitions that it writes and has a copy of all
//! that it reads (MorphoSys, §3.2). If there is none, the router decides how to change the design.
//!
//! A pinned partition stays at its site: the other partitions of a transaction are moved there, and a transaction
//! that writes partitions pinned to two sites is refused.
//!
//! The router's design may be stale. A stale router is safe: sites return the transactions that they cannot
//! run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::design::Design;
use crate::key::{Key, KeyRange};
use crate::record::{Change, Operator, Site};
use crate::transaction::Abort;

#[cfg(test)]
mod tests;
mod unused;

pub(crate) use unused::prefer_used_site;

/// The decision where a transaction runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// The transaction can run at this site under the given design.
    Run(Site),
    /// No site can run the transaction until this step of a design change has been executed.
    First(Step),
    /// No site can run the transaction, because it writes partitions that are pinned to different sites, or because a
    /// site that it needs is down. The field is the error for the client.
    Never(Abort),
}

/// One step towards a design under which a transaction can run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// The site installs a replica of the partition whose first key is given.
    InstallReplica(Site, Key),
    /// The site, which masters the partition, writes this change of the design into the log.
    Change(Site, Change),
}

/// A policy that decides how the design changes for a transaction that no site can run.
pub trait DesignPolicy: Send + Sync {
    /// Returns the next step towards a design in which some site can run the transaction that reads and writes these
    /// keys. That site must be `home` if it is given, because a written partition is pinned there. The method is
    /// called again after each step. The steps must come to an end once the design has no other changes for a while.
    fn next_step(
        &self,
        design: &Design,
        reads: &[KeyRange],
        writes: &[Key],
        home: Option<Site>,
    ) -> Step;
}

/// The default policy: it moves a transaction's partitions to the site that masters most of the written ones. That
/// site becomes the master of all written partitions, and gets replicas of the others. If the transaction writes
/// nothing, the site is the one with most of the partitions that the transaction reads, where a mastered one counts
/// twice.
#[derive(Clone, Copy, Debug, Default)]
pub struct MostMastered;

/// Returns the route of a transaction under a design: to the site `near` if that site can run it, else to the site
/// that can run it and has the fewest transactions in progress, as `under_way` returns them.
#[must_use]
pub fn route(
    design: &Design,
    policy: &dyn DesignPolicy,
    reads: &[KeyRange],
    writes: &[Key],
    near: Option<Site>,
    under_way: impl Fn(Site) -> u32,
) -> Route {
    let fits = |site: Site| {
        let read = || reads.iter().flat_map(|range| design.within(range));
        writes.iter().all(|key| design.of(key).master == site)
            && read().all(|partition| partition.is_at(site))
    };
    if let Some(near) = near.filter(|near| !design.is_fenced(*near) && fits(*near)) {
        return Route::Run(near);
    }
    // The site that runs it masters the first key that it writes, or has a copy of the first that it reads.
    let candidates = match (writes.first(), reads.first()) {
        (Some(key), _) => vec![design.of(key).master],
        (None, Some(range)) => {
            let partition = design.of(&range.start);
            let sites = std::iter::once(partition.master).chain(partition.replicas.iter().copied());
            sites.collect()
        }
        (None, None) => design.partitions().map(|partition| partition.master).collect(),
    };
    let fitting = || candidates.iter().copied().filter(|site| fits(*site));
    let live =
        fitting().filter(|site| !design.is_fenced(*site)).min_by_key(|site| under_way(*site));
    if let Some(site) = live.or_else(|| fitting().next()) {
        return Route::Run(site);
    }
    match home_of(design, writes) {
        Ok(home) => Route::First(policy.next_step(design, reads, writes, home)),
        Err(apart) => Route::Never(apart),
    }
}

/// Returns the site that masters all partitions that a transaction reads or writes, or `None` if no live site does.
#[must_use]
pub fn master_of_all(design: &Design, reads: &[KeyRange], writes: &[Key]) -> Option<Site> {
    let written = writes.iter().map(|key| design.of(key).master);
    let read = reads.iter().flat_map(|range| design.within(range)).map(|one| one.master);
    let mut masters = written.chain(read);
    let first = masters.next().filter(|first| !design.is_fenced(*first))?;
    masters.all(|other| other == first).then_some(first)
}

/// Returns the live site to which partitions of the written keys are pinned, or `None` if none is pinned; or the
/// error if they are pinned to different sites.
fn home_of(design: &Design, writes: &[Key]) -> Result<Option<Site>, Abort> {
    let bound = |key| Some((key, design.bound_to(design.of(key))?));
    let mut all = writes.iter().filter_map(bound);
    let Some((key, home)) = all.next() else { return Ok(None) };
    match all.find(|(_, site)| *site != home) {
        Some((other, site)) => Err(Abort::PinnedApart(key.clone(), home, other.clone(), site)),
        None => Ok(Some(home)),
    }
}

/// Returns the live site that masters most of the written partitions, and among those the one that has most of all
/// partitions, where a mastered one counts twice.
pub(crate) fn most_mastered(design: &Design, reads: &[KeyRange], writes: &[Key]) -> Site {
    let written = || writes.iter().map(|key| design.of(key));
    let read = || reads.iter().flat_map(|range| design.within(range));
    let mut merits: BTreeMap<Site, (usize, usize)> = BTreeMap::new();
    for partition in written() {
        merits.entry(partition.master).or_default().0 += 1;
    }
    for partition in written().chain(read()) {
        merits.entry(partition.master).or_default().1 += 2;
        for site in &partition.replicas {
            merits.entry(*site).or_default().1 += 1;
        }
    }
    // Among equals the site with the least number wins, so that all callers choose the same.
    let live = merits.iter().filter(|(site, _)| !design.is_fenced(**site));
    let best = live.max_by_key(|(site, merit)| (**merit, std::cmp::Reverse(**site)));
    let most = best.or_else(|| merits.iter().next()).map(|(site, _)| *site);
    most.expect("every key has a master")
}

impl DesignPolicy for MostMastered {
    fn next_step(
        &self,
        design: &Design,
        reads: &[KeyRange],
        writes: &[Key],
        home: Option<Site>,
    ) -> Step {
        let written = || writes.iter().map(|key| design.of(key));
        let read = || reads.iter().flat_map(|range| design.within(range));
        let home = home.unwrap_or_else(|| most_mastered(design, reads, writes));
        let is_missing = written().chain(read()).find(|partition| !partition.is_at(home));
        if let Some(partition) = is_missing {
            return Step::InstallReplica(home, partition.range.start.clone());
        }
        let foreign = written().find(|partition| partition.master != home);
        let partition = foreign.expect("a site that has and masters all would have been found");
        let (start, operator) = (partition.range.start.clone(), Operator::Remaster(home));
        Step::Change(partition.master, Change { start, operator })
    }
}
