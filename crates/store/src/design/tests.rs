//! Changes of a design against §3.1's conditions, and a site's end.

use proptest::prelude::*;

use super::*;
use crate::record::Author;

const SITES: u16 = 3;

fn key(n: u8) -> Key {
    if n == 0 { Key::least() } else { Key::from_bytes(&[n]) }
}

fn change() -> impl Strategy<Value = Change> {
    let site = || (0..SITES).prop_map(Site);
    let operator = prop_oneof![
        3 => (0..8_u8).prop_map(|at| Operator::Split(key(at))),
        2 => Just(Operator::Merge),
        2 => site().prop_map(|site| Operator::AddReplica(site, Epoch(0))),
        1 => site().prop_map(Operator::RemoveReplica),
        2 => site().prop_map(Operator::Remaster),
        1 => site().prop_map(Operator::Pin),
        1 => Just(Operator::Unpin),
    ];
    (0..8_u8, operator).prop_map(|(start, operator)| Change { start: key(start), operator })
}

#[track_caller]
fn check(design: &Design) {
    let mut end = Some(Key::least());
    for partition in design.partitions() {
        assert_eq!(Some(&partition.range.start), end.as_ref(), "no gap, no overlap");
        assert!(!partition.range.is_empty());
        assert!(!partition.replicas.contains(&partition.master));
        end.clone_from(&partition.range.end);
    }
    assert_eq!(end, None, "they reach to the end");
}

/// §3.1, in its words: what has to hold before, and what holds then.
fn expected(before: &Design, change: &Change) -> bool {
    let Some(p) = before.beginning_at(&change.start) else { return false };
    match &change.operator {
        Operator::Split(k) => p.range.start < *k && p.range.contains(k),
        Operator::Merge => p.range.end.as_ref().is_some_and(|end| {
            let high = before.beginning_at(end).unwrap();
            high.master == p.master && high.replicas == p.replicas && high.pin == p.pin
        }),
        Operator::AddReplica(s, _) => p.master != *s && !p.replicas.contains(s),
        Operator::RemoveReplica(s) => p.replicas.contains(s),
        Operator::Remaster(s) => p.replicas.contains(s) && p.pin.is_none_or(|pin| pin == *s),
        Operator::Pin(s) => p.master == *s || p.replicas.contains(s),
        Operator::Unpin => p.pin.is_some(),
    }
}

/// Checks the pins after a change, and that a pinned partition is mastered only by its pin's site.
fn check_pins(before: &Design, after: &Design, change: &Change) {
    for n in 0..9 {
        let (old, new) = (before.of(&key(n)), after.of(&key(n)));
        let expected = match change.operator {
            Operator::Pin(site) if old.range.start == change.start => Some(site),
            Operator::Unpin if old.range.start == change.start => None,
            _ => old.pin,
        };
        assert_eq!(new.pin, expected);
        assert!(new.pin.is_none_or(|pin| pin == new.master));
        let had: BTreeSet<Site> = old.sites().collect();
        let is_handed_over = matches!(change.operator, Operator::Pin(_) | Operator::Remaster(_));
        assert!(!is_handed_over || new.sites().collect::<BTreeSet<_>>() == had);
    }
}

proptest! {
    #[test]
    fn changes_keep_the_invariants_and_versions_only_grow(
        changes in prop::collection::vec(change(), 1..60),
    ) {
        let mut design = Design::new(Site(0));
        for change in changes {
            let before = design.clone();
            let made = design.change(&change);
            prop_assert_eq!(made.is_ok(), expected(&before, &change), "{:?}", made);
            if made.is_err() {
                prop_assert_eq!(&design, &before);
            }
            check(&design);
            if made.is_ok() {
                check_pins(&before, &design, &change);
            }
            for n in 0..9 {
                let (old, new) = (before.of(&key(n)), design.of(&key(n)));
                let (start, p) = (&change.start, &old.range.start);
                let is_merged = change.operator == Operator::Merge
                    && before.beginning_at(start).is_some_and(|first| first.range.end.as_ref() == Some(p));
                if made.is_ok() && (start == p || is_merged) {
                    prop_assert!(new.version > old.version);
                } else {
                    prop_assert_eq!(new, old);
                }
            }
        }
    }
}

fn entry(site: u16, epoch: u64, number: u64, body: Body) -> LogEntry {
    LogEntry { by: Author { site: Site(site), epoch: Epoch(epoch), number }, body }
}

#[test]
fn what_is_pinned_to_a_dead_site_goes_anywhere_and_then_only_back() {
    let mut design = Design::new(Site(0));
    let join = |site, epoch| entry(site, epoch, 1, Body::Join);
    for site in 0..3 {
        assert_eq!(design.follow(&join(site, 1)), Verdict::Counts);
    }
    let change =
        |design: &mut Design, operator| design.change(&Change { start: Key::least(), operator });
    for operator in [
        Operator::AddReplica(Site(1), Epoch(1)),
        Operator::AddReplica(Site(2), Epoch(1)),
        Operator::Pin(Site(1)),
        Operator::RemoveReplica(Site(0)),
    ] {
        assert_eq!(change(&mut design, operator), Ok(()));
    }
    assert_eq!(design.follow(&entry(1, 1, 0, Body::Fence)), Verdict::Counts);
    let partition = design.of(&Key::least());
    assert_eq!((partition.master, partition.pin), (Site(2), Some(Site(1))));
    assert_eq!(change(&mut design, Operator::AddReplica(Site(0), Epoch(1))), Ok(()));
    assert_eq!(change(&mut design, Operator::Remaster(Site(0))), Ok(()));
    assert_eq!(design.follow(&join(1, 2)), Verdict::Counts);
    let refused = change(&mut design, Operator::Remaster(Site(2)));
    assert_eq!(refused, Err(Impossible::Pinned(Site(1))));
    assert_eq!(change(&mut design, Operator::AddReplica(Site(1), Epoch(2))), Ok(()));
    assert_eq!(change(&mut design, Operator::Remaster(Site(1))), Ok(()));
    assert_eq!(design.of(&Key::least()).master, Site(1));
}

#[test]
fn a_fenced_site_writes_in_vain_and_its_heirs_write_on() {
    let mut design = Design::new(Site(0));
    let change = |operator| Body::Change(Change { start: Key::least(), operator });
    let write =
        |version| Body::Commit(vec![Write { start: Key::least(), version, rows: Vec::new() }]);
    let mut follow = |entry: &LogEntry| design.follow(entry);
    let (counts, void) = (Verdict::Counts, Verdict::Void);
    assert_eq!(follow(&entry(0, 1, 1, Body::Join)), counts);
    assert_eq!(follow(&entry(1, 1, 1, Body::Join)), counts);
    assert_eq!(follow(&entry(0, 1, 2, change(Operator::AddReplica(Site(1), Epoch(1))))), counts);
    assert_eq!(follow(&entry(0, 1, 3, write(2))), counts);
    assert_eq!(follow(&entry(0, 1, 3, write(2))), void, "it was there before");
    assert_eq!(follow(&entry(0, 1, 5, write(4))), void, "one is missing before it");
    assert_eq!(follow(&entry(0, 1, 0, Body::Fence)), counts);
    assert_eq!(follow(&entry(0, 1, 4, write(3))), void);
    assert_eq!(follow(&entry(1, 1, 2, write(4))), counts);
    assert_eq!(follow(&entry(0, 1, 1, Body::Join)), void);
    assert_eq!(follow(&entry(0, 2, 1, Body::Join)), counts);
    assert_eq!(follow(&entry(0, 1, 4, write(5))), void);
    let partition = design.of(&Key::least());
    assert_eq!((partition.master, partition.version), (Site(1), 4));
    assert!(partition.replicas.is_empty() && !design.is_fenced(Site(0)));
}
