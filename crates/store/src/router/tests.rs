//! For every design, a route names a site that can run the transaction, and the steps lead to such a site.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::record::{Author, Body, Epoch, LogEntry};

const SITES: u16 = 4;

fn key(n: u8) -> Key {
    if n == 0 { Key::least() } else { Key::from_bytes(&[n]) }
}

fn do_step(design: &mut Design, step: &Step) {
    let change = match step {
        Step::InstallReplica(site, start) => {
            let epoch = design.epoch(*site);
            Change { start: start.clone(), operator: Operator::AddReplica(*site, epoch) }
        }
        Step::Change(master, change) => {
            assert_eq!(design.of(&change.start).master, *master);
            change.clone()
        }
    };
    design.change(&change).expect("a step can be done");
}

fn designs() -> impl Strategy<Value = Design> {
    let changes = prop::collection::vec((0..7_u8, 0..12_u8, 0..SITES), 0..40);
    changes.prop_map(|changes| {
        let mut design = Design::new(Site(0));
        let join =
            |site| LogEntry { by: Author { site, epoch: Epoch(1), number: 1 }, body: Body::Join };
        (0..SITES).for_each(|site| _ = design.follow(&join(Site(site))));
        for (what, at, site) in changes {
            let start = design.of(&key(at)).range.start.clone();
            let operator = match what {
                0 => Operator::Split(key(at)),
                1 => Operator::AddReplica(Site(site), design.epoch(Site(site))),
                2 => Operator::Remaster(Site(site)),
                3 => Operator::RemoveReplica(Site(site)),
                4 => Operator::Pin(Site(site)),
                5 => Operator::Unpin,
                // A death, after which others have what it had, and one more epoch.
                _ => {
                    let (site, epoch) = (Site(site), design.epoch(Site(site)));
                    let by = |epoch, number| Author { site, epoch, number };
                    design.follow(&LogEntry { by: by(epoch, 0), body: Body::Fence });
                    // Without an heir it has to come back: it is waited for.
                    let has_any = design.partitions().any(|one| one.master == site);
                    if has_any || at % 2 == 0 {
                        design
                            .follow(&LogEntry { by: by(Epoch(epoch.0 + 1), 1), body: Body::Join });
                    }
                    continue;
                }
            };
            // A change that cannot be made leaves the design as it was.
            _ = design.change(&Change { start, operator });
        }
        design
    })
}

proptest! {
    #[test]
    fn the_master_of_all_masters_what_is_read_and_written(
        design in designs(), read in 0..12_u8, written in 0..12_u8,
    ) {
        let (reads, writes) = ([KeyRange::only(&key(read))], [key(written)]);
        let masters = [design.of(&key(read)).master, design.of(&key(written)).master];
        let is_one = masters[0] == masters[1] && !design.is_fenced(masters[0]);
        let found = master_of_all(&design, &reads, &writes);
        prop_assert_eq!(found, is_one.then_some(masters[0]));
    }

    #[test]
    fn steps_lead_to_a_site_that_can(
        mut design in designs(),
        reads in prop::collection::vec(0..12_u8, 0..4),
        writes in prop::collection::vec(0..12_u8, 0..4),
        near in prop::option::of(0..SITES),
    ) {
        let reads: Vec<_> = reads.into_iter().map(|n| KeyRange::only(&key(n))).collect();
        let writes: Vec<_> = writes.into_iter().map(key).collect();
        // A partition needs at most a replica and a new master.
        let most = 2 * design.partitions().count();
        let mut steps = 0;
        let site = loop {
            match route(&design, &MostMastered, &reads, &writes, near.map(Site), |_| 0) {
                Route::Run(site) => break site,
                Route::First(step) => do_step(&mut design, &step),
                Route::Never(Abort::PinnedApart(one, site, other, another)) => {
                    prop_assert!(site != another && writes.contains(&one) && writes.contains(&other));
                    for (key, site) in [(one, site), (other, another)] {
                        let partition = design.of(&key);
                        prop_assert!(partition.pin == Some(site) && !design.is_fenced(site));
                    }
                    return Ok(());
                }
                Route::Never(_) => unreachable!("of pins alone"),
            }
            steps += 1;
            prop_assert!(steps <= most, "{steps} steps");
        };
        prop_assert!(writes.iter().all(|key| design.of(key).master == site));
        let pinned: BTreeSet<Site> = writes.iter().filter_map(|key| design.of(key).pin).collect();
        prop_assert!(steps == 0 || pinned.iter().all(|pin| *pin == site || design.is_fenced(*pin)));
        let mut read = reads.iter().flat_map(|range| design.within(range));
        prop_assert!(read.all(|partition| partition.is_at(site)));
    }

    #[test]
    fn a_near_site_with_a_replica_runs_the_read(design in designs(), at in 0..12_u8) {
        let read = [KeyRange::only(&key(at))];
        for replica in &design.of(&key(at)).replicas {
            let route = route(&design, &MostMastered, &read, &[], Some(*replica), |_| 0);
            prop_assert_eq!(route, Route::Run(*replica));
        }
    }
}
