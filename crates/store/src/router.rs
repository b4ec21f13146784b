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

pub(crate) use unused::kept_off;

/// The route of a transaction: its site, or a step that comes first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// At this site.
    Run(Site),
    /// Nowhere until this is done.
    First(Step),
    /// Nowhere, by what the design's pins say.
    Never(Abort),
}

/// One change of the design.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// A site makes itself a replica of the partition that begins at a key.
    InstallReplica(Site, Key),
    /// The partition's master changes it.
    Change(Site, Change),
}

/// Decides what the design becomes where no site can run a transaction as it is.
pub trait DesignPolicy: Send + Sync {
    /// The next step towards a design in which some site can: that one, if it is given, for something
    /// is pinned there. It is asked again after each, and has to come to an end whichever changes others make
    /// meanwhile, if they change nothing for a while.
    fn next_step(
        &self,
        design: &Design,
        reads: &[KeyRange],
        writes: &[Key],
        home: Option<Site>,
    ) -> Step;
}

/// The site that masters most of what is written comes to master all of it, and gets replicas of the
/// rest; where nothing is written, the one that has most of what is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct MostMastered;

/// Routes a transaction by a design: to `near` if that can run it, else to the site among those that can
/// with the fewest transactions under way.
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

/// The site that masters all that a transaction reads and writes, if there is one that is alive.
#[must_use]
pub fn master_of_all(design: &Design, reads: &[KeyRange], writes: &[Key]) -> Option<Site> {
    let written = writes.iter().map(|key| design.of(key).master);
    let read = reads.iter().flat_map(|range| design.within(range)).map(|one| one.master);
    let mut masters = written.chain(read);
    let first = masters.next().filter(|first| !design.is_fenced(*first))?;
    masters.all(|other| other == first).then_some(first)
}

/// Returns the site that the written keys are pinned to, if one of them is pinned.
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
        // For each site: the written partitions that it masters; then all that it has, a mastered one counted
        // twice.
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
        // Of equals the one with the least number, so that all callers get the same.
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
