//! The tree against an ordered map, and what a snapshot costs.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn key(n: u16) -> Key {
    Key::from_bytes(&n.to_be_bytes())
}

fn row(version: u64) -> Row {
    Row { version, value: version.to_string().into_bytes().into() }
}

fn filled(keys: impl IntoIterator<Item = u16>) -> (Rows, BTreeMap<Key, Row>) {
    let (mut rows, mut oracle) = (Rows::default(), BTreeMap::new());
    for n in keys {
        rows.insert(key(n), row(u64::from(n)));
        oracle.insert(key(n), row(u64::from(n)));
    }
    (rows, oracle)
}

/// Checks the module's invariants, and returns the height.
fn check_node(child: &Child, is_root: bool, before: Option<&Key>) -> usize {
    assert!(child.len() <= FANOUT, "{} entries", child.len());
    assert!(is_root || child.len() >= FILL_MIN, "{} entries", child.len());
    assert!(before.is_none_or(|before| *before < child.from));
    match &*child.node {
        Node::Leaf(rows) => {
            assert!(rows.is_sorted_by(|one, other| one.0 < other.0) && child.from <= rows[0].0);
            assert_eq!(child.size, Child::of(Node::Leaf(rows.clone())).size);
            0
        }
        Node::Inner(children) => {
            assert!(children.len() >= 2 && child.from <= children[0].from);
            assert_eq!(child.size, sum(children));
            let mut before = None;
            let mut heights = Vec::new();
            for child in &**children {
                heights.push(check_node(child, false, before));
                before = Some(child.last());
            }
            assert!(heights.iter().all(|height| *height == heights[0]), "{heights:?}");
            heights[0] + 1
        }
    }
}

#[track_caller]
fn check(rows: &Rows, oracle: &BTreeMap<Key, Row>) {
    if let Some(tree) = &rows.0 {
        assert_eq!(check_node(&tree.root, true, None), tree.height);
    }
    let size = oracle.iter().fold(Size::default(), |sum, (key, row)| sum.plus(Size::of(key, row)));
    assert_eq!(rows.size(), size);
    assert!(rows.iter().eq(oracle.iter()));
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u16),
    Remove(u16),
    InsertMany(u16, u16),
    RemoveMany(u16, u16),
    /// Cuts, and goes on with one of the two.
    Cut(u16, bool),
    /// Cuts, and joins again.
    CutAndJoin(u16),
    Snapshot,
}

fn step() -> impl Strategy<Value = Step> {
    let n = || 0..3_000_u16;
    prop_oneof![
        4 => n().prop_map(Step::Insert),
        4 => n().prop_map(Step::Remove),
        2 => (n(), 1..800_u16).prop_map(|(from, many)| Step::InsertMany(from, many)),
        1 => (n(), 1..800_u16).prop_map(|(from, many)| Step::RemoveMany(from, many)),
        1 => (n(), any::<bool>()).prop_map(|(at, first)| Step::Cut(at, first)),
        2 => n().prop_map(Step::CutAndJoin),
        1 => Just(Step::Snapshot),
    ]
}

proptest! {
    #[test]
    fn it_is_an_ordered_map_and_snapshots_stay_as_they_are(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let (mut rows, mut oracle) = (Rows::default(), BTreeMap::new());
        let mut snapshots = Vec::new();
        for (version, step) in (1_000_000..).zip(steps) {
            match step {
                Step::Insert(n) => {
                    let old = rows.insert(key(n), row(version));
                    prop_assert_eq!(old, oracle.insert(key(n), row(version)));
                }
                Step::Remove(n) => prop_assert_eq!(rows.remove(&key(n)), oracle.remove(&key(n))),
                Step::InsertMany(from, many) => {
                    for n in from..from + many {
                        rows.insert(key(n), row(version));
                        oracle.insert(key(n), row(version));
                    }
                }
                Step::RemoveMany(from, many) => {
                    for n in from..from + many {
                        prop_assert_eq!(rows.remove(&key(n)), oracle.remove(&key(n)));
                    }
                }
                Step::Cut(at, first) => {
                    let behind = rows.split_off(&key(at));
                    let oracle_behind = oracle.split_off(&key(at));
                    check(&behind, &oracle_behind);
                    check(&rows, &oracle);
                    if !first {
                        (rows, oracle) = (behind, oracle_behind);
                    }
                }
                Step::CutAndJoin(at) => {
                    let behind = rows.split_off(&key(at));
                    rows.append(behind);
                }
                Step::Snapshot => snapshots.push((rows.clone(), oracle.clone())),
            }
            check(&rows, &oracle);
        }
        for (rows, oracle) in &snapshots {
            check(rows, oracle);
        }
    }

    #[test]
    fn trees_of_any_heights_are_joined(first in 0..3_000_u16, second in 0..3_000_u16) {
        let (mut rows, mut oracle) = filled(0..first);
        let (behind, oracle_behind) = filled(first..first + second);
        rows.append(behind);
        oracle.extend(oracle_behind);
        check(&rows, &oracle);
    }

    #[test]
    fn ranges_are_those_of_an_ordered_map(
        keys in prop::collection::btree_set(0..600_u16, 0..300), from in 0..700_u16,
        to in prop::option::of(0..700_u16), probe in 0..600_u16,
    ) {
        let (rows, oracle) = filled(keys);
        let range = KeyRange { start: key(from), end: to.map(key) };
        let expected = oracle.iter().filter(|(key, _)| range.contains(key));
        prop_assert!(rows.range(&range).eq(expected));
        prop_assert_eq!(rows.get(&key(probe)), oracle.get(&key(probe)));
        let probes = [probe, from, to.unwrap_or(probe), probe].map(key);
        let found = probes.iter().map(|probe| oracle.get(probe)).collect::<Vec<_>>();
        prop_assert_eq!(rows.get_each(&probes), found);
    }

    #[test]
    fn the_middle_is_in_the_middle(keys in prop::collection::btree_set(0..9_000_u16, 0..900)) {
        let (rows, oracle) = filled(keys);
        let expected = oracle.keys().nth(oracle.len() / 2).filter(|_| oracle.len() > 1);
        prop_assert_eq!(rows.middle(), expected);
    }
}

#[test]
fn only_the_path_to_a_change_is_copied() {
    let (mut rows, _) = filled(0..10_000);
    let snapshot = rows.clone();
    rows.insert(key(5_000), row(1));
    let mut nodes = std::collections::HashSet::new();
    fn walk(child: &Child, see: &mut impl FnMut(*const Node)) {
        see(Arc::as_ptr(&child.node));
        if let Node::Inner(children) = &*child.node {
            children.iter().for_each(|child| walk(child, see));
        }
    }
    walk(&snapshot.0.as_ref().unwrap().root, &mut |node| _ = nodes.insert(node));
    let (mut copied, tree) = (0, rows.0.as_ref().unwrap());
    walk(&tree.root, &mut |node| copied += usize::from(!nodes.contains(&node)));
    assert_eq!(copied, tree.height + 1);
    assert!(nodes.len() > 300, "{}", nodes.len());
}

#[test]
#[should_panic(expected = "lies behind")]
fn what_is_appended_lies_behind() {
    let (mut rows, _) = filled(0..10);
    rows.append(filled(9..20).0);
}

proptest! {
    #[test]
    fn rows_in_their_order_are_a_tree_like_any_other(many in 0..3_000_u16, at in 0..3_000_u16) {
        let (rows, mut oracle) = filled(0..many);
        let sorted = rows.iter().map(|(key, row)| (key.clone(), row.clone())).collect();
        let mut built = Rows::from_sorted(sorted);
        check(&built, &oracle);
        prop_assert_eq!(built.insert(key(at), row(1)), oracle.insert(key(at), row(1)));
        check(&built, &oracle);
    }
}
