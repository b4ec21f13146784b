//! Protects sites that are not in use: the router moves nothing to them, under any policy.
//!
//! Invariant: no step of the router makes a site the master or gives it a replica if it is not in use, as long as
//! another live site is.

use std::collections::BTreeSet;

use super::{DesignPolicy, Step};
use crate::design::Design;
use crate::key::{Key, KeyRange};
use crate::record::{Change, Operator, Site};

/// Returns the site that a step makes a replica or the master of a partition, or `None` if the step does neither.
fn receiver(step: &Step) -> Option<Site> {
    match step {
        Step::InstallReplica(site, _)
        | Step::Change(
            _,
            Change { operator: Operator::Remaster(site) | Operator::Pin(site), .. },
        ) => Some(*site),
        Step::Change(..) => None,
    }
}

/// Returns the given step, unless it makes a site in `unused` a replica or a master; then returns the policy's step
/// towards the site in use that has most of the transaction's partitions. The last parameter contains the ranges that
/// the transaction reads and the keys that it writes.
pub(crate) fn prefer_used_site(
    step: Step,
    unused: &BTreeSet<Site>,
    design: &Design,
    policy: &dyn DesignPolicy,
    (reads, writes): (&[KeyRange], &[Key]),
) -> Step {
    if !receiver(&step).is_some_and(|site| unused.contains(&site)) {
        return step;
    }
    match home(design, unused, reads, writes) {
        Some(home) => policy.next_step(design, reads, writes, Some(home)),
        None => step,
    }
}

/// Returns the live site not in `unused` that masters most of the written partitions, and among equals has most
/// copies of all the transaction's partitions; `None` if there is no such site. Among remaining equals the site with
/// the least number wins, so that the choice stays the same from step to step.
fn home(
    design: &Design,
    unused: &BTreeSet<Site>,
    reads: &[KeyRange],
    writes: &[Key],
) -> Option<Site> {
    let written = || writes.iter().map(|key| design.of(key));
    let all = || written().chain(reads.iter().flat_map(|range| design.within(range)));
    let live = design.live_sites().filter(|site| !unused.contains(site));
    live.max_by_key(|site| {
        let masters = written().filter(|one| one.master == *site).count();
        let copies = all().filter(|one| one.is_at(*site)).count();
        (masters, copies, std::cmp::Reverse(*site))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Table;
    use crate::record::{Author, Body, Epoch, LogEntry};
    use crate::router::MostMastered;

    fn key(row: &str) -> Key {
        Key::new(Table(0), row.as_bytes())
    }

    /// Three live sites; the first partition is mastered by site 0, the one from `m` on by site 1.
    fn design() -> Design {
        let mut design = Design::new(Site(0));
        for site in 0..3 {
            let by = Author { site: Site(site), epoch: Epoch(1), number: 1 };
            design.follow(&LogEntry { by, body: Body::Join });
        }
        let mut change = |start: &Key, operator| {
            design.change(&Change { start: start.clone(), operator }).unwrap();
        };
        change(&Key::least(), Operator::Split(key("m")));
        change(&key("m"), Operator::AddReplica(Site(1), Epoch(1)));
        change(&key("m"), Operator::Remaster(Site(1)));
        change(&key("m"), Operator::RemoveReplica(Site(0)));
        design
    }

    fn step(unused: &[u16]) -> Step {
        let (design, unused) = (design(), unused.iter().copied().map(Site).collect());
        let writes = [key("a"), key("z")];
        let chosen = MostMastered.next_step(&design, &[], &writes, None);
        prefer_used_site(chosen, &unused, &design, &MostMastered, (&[], &writes))
    }

    #[test]
    fn what_the_router_brings_together_goes_to_a_site_in_use() {
        assert_eq!(step(&[]), Step::InstallReplica(Site(0), key("m")));
        assert_eq!(step(&[0]), Step::InstallReplica(Site(1), Key::least()));
        // Neither of the masters: the only site that is left gets both.
        assert_eq!(step(&[0, 1]), Step::InstallReplica(Site(2), Key::least()));
        // Transactions do not wait for an operator.
        assert_eq!(step(&[0, 1, 2]), Step::InstallReplica(Site(0), key("m")));
    }
}
