//! Routing: a transaction runs at a site that masters all partitions that it writes and has a copy of all
//! that it reads (MorphoSys, §3.2). If there is none, the router decides how to change the design.
//!
//! A pinned partition stays where it is pinned: the other partitions of a transaction are moved there, and a
//! transaction that writes partitions pinned to two sites is refused.
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

/// The route of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// The transaction can run at this site.
    Run(Site),
    /// No site can run the transaction until this step is done.
    First(Step),
    /// No site can run the transaction, because of pins or because a site that it needs is down.
    Never(Abort),
}

/// One step of a change of the design.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// The site installs a replica of the partition that begins at the key.
    InstallReplica(Site, Key),
    /// The site, which is the partition's master, changes the design.
    Change(Site, Change),
}

/// Decides how the design changes for a transaction that no site can run.
pub trait DesignPolicy: Send + Sync {
    /// Returns the next step towards a design in which some site can run the transaction; `home`, if it is given,
    /// because a written partition is pinned there. The method is called again after each step. The steps must come
    /// to an end once the design has no other changes for a while.
    fn next_step(
        &self,
        design: &Design,
        reads: &[KeyRange],
        writes: &[Key],
        home: Option<Site>,
    ) -> Step;
}

/// Moves a transaction's partitions to the site that masters most of the written ones. That site becomes the master
/// of all written partitions, and gets replicas of the others. If none are written, it is the site with most of the
/// read ones.
#[derive(Clone, Copy, Debug, Default)]
pub struct MostMastered;

/// Routes a transaction by a design: to `near` if that site can run it, else to the site that can and has
/// the fewest transactions under way.
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

/// Returns the site that masters all that a transaction reads and writes, or `None` if no live site does.
#[must_use]
pub fn master_of_all(design: &Design, reads: &[KeyRange], writes: &[Key]) -> Option<Site> {
    let written = writes.iter().map(|key| design.of(key).master);
    let read = reads.iter().flat_map(|range| design.within(range)).map(|one| one.master);
    let mut masters = written.chain(read);
    let first = masters.next().filter(|first| !design.is_fenced(*first))?;
    masters.all(|other| other == first).then_some(first)
}

/// Returns the site that the written keys are pinned to, or `None` if none is pinned.
fn home_of(design: &Design, writes: &[Key]) -> Result<Option<Site>, Abort> {
    let bound = |key| Some((key, design.bound_to(design.of(key))?));
    let mut all = writes.iter().filter_map(bound);
    let Some((key, home)) = all.next() else { return Ok(None) };
    match all.find(|(_, site)| *site != home) {
        Some((other, site)) => Err(Abort::PinnedApart(key.clone(), home, other.clone(), site)),
        None => Ok(Some(home)),
    }
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
        // For each site: the number of written partitions that it masters; then the number of all partitions that it
        // has, where a mastered one counts twice.
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
        let most = || best.or_else(|| merits.iter().next()).map(|(site, _)| *site);
        let home = home.or_else(most).expect("every key has a master");
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
