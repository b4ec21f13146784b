//! Whatever the design: a route is to a site that can, and the steps lead to one.

use proptest::prelude::*;

use super::*;

const SITES: u16 = 4;

fn key(n: u8) -> Key {
    if n == 0 { Key::least() } else { Key::from_bytes(&[n]) }
}

fn do_step(design: &mut Design, step: &Step) {
    let change = match step {
        Step::Adopt(site, start) => {
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
    let changes = prop::collection::vec((0..4_u8, 0..12_u8, 0..SITES), 0..40);
    changes.prop_map(|changes| {
        let mut design = Design::new(Site(0));
        for (what, at, site) in changes {
            let start = design.of(&key(at)).range.start.clone();
            let operator = match what {
                0 => Operator::Split(key(at)),
                1 => Operator::AddReplica(Site(site), 0),
                2 => Operator::Remaster(Site(site)),
                _ => Operator::RemoveReplica(Site(site)),
            };
            // What cannot be done leaves it as it was.
            _ = design.change(&Change { start, operator });
        }
        design
    })
}

proptest! {
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
            match route(&design, &MostMastered, &reads, &writes, near.map(Site)) {
                Route::Run(site) => break site,
                Route::First(step) => do_step(&mut design, &step),
            }
            steps += 1;
            prop_assert!(steps <= most, "{steps} steps");
        };
        prop_assert!(writes.iter().all(|key| design.of(key).master == site));
        let mut read = reads.iter().flat_map(|range| design.within(range));
        prop_assert!(read.all(|partition| partition.is_at(site)));
    }

    #[test]
    fn whoever_is_near_runs_what_it_can(design in designs(), at in 0..12_u8) {
        let read = [KeyRange::only(&key(at))];
        for replica in &design.of(&key(at)).replicas {
            let route = route(&design, &MostMastered, &read, &[], Some(*replica));
            prop_assert_eq!(route, Route::Run(*replica));
        }
    }
}
