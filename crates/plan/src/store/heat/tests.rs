//! The table beside a plain sum of what was added, over random uses; and where it cuts and merges.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::store::layout::{Layout, Operator, Partition};
use crate::store::site_set::SiteSet;

const SMALL: Bounds = Bounds { column_ms: 100, columns_max: 6, rows_max: 8 };

/// A use: how much time passes before it, from which key on, of how many keys, and how much.
fn uses() -> impl Strategy<Value = Vec<(u64, u16, u16, u8)>> {
    prop::collection::vec((0..60_u64, 0..200_u16, 0..40_u16, 1..20_u8), 1..300)
}

proptest! {
    #[test]
    fn a_columns_sum_is_what_was_added_however_rows_were_cut(uses in uses()) {
        let mut heat = Heat::new(SMALL, 0_u16);
        let (mut now_ms, mut sums) = (0, BTreeMap::<u64, f64>::new());
        for (pause_ms, from, keys, much) in uses {
            now_ms += pause_ms;
            heat.pass(now_ms);
            let much = f64::from(much);
            let cell = Cell { reads: much, writes: 2.0 * much, conflicts: 0.5, cpu_us: 100.0 * much };
            heat.add(&from, Some(&(from + keys)), cell);
            heat.reshape();
            *sums.entry(now_ms / 100 * 100).or_default() += much;
            prop_assert!(heat.rows.len() <= 8 && heat.columns.len() <= 6);
            let starts: Vec<u16> = heat.starts().copied().collect();
            prop_assert_eq!(starts[0], 0);
            prop_assert!(starts.windows(2).all(|two| two[0] < two[1]));
            for (begin_ms, cells) in heat.columns() {
                prop_assert_eq!(cells.len(), starts.len());
                let sum = |of: fn(&Cell) -> f64| cells.iter().map(of).sum::<f64>();
                let expected = sums.get(&begin_ms).copied().unwrap_or(0.0);
                prop_assert!((sum(|cell| cell.reads) - expected).abs() < 1e-6);
                prop_assert!((sum(|cell| cell.writes) - 2.0 * expected).abs() < 1e-6);
                prop_assert!((sum(|cell| cell.cpu_us) - 100.0 * expected).abs() < 1e-3);
                prop_assert!(cells.iter().all(|cell| cell.reads >= -1e-9));
            }
            let begins: Vec<u64> = heat.columns().map(|(begin_ms, _)| begin_ms).collect();
            prop_assert!(begins.windows(2).all(|two| two[0] + 100 == two[1]));
        }
    }

    #[test]
    fn what_happened_to_a_design_is_seen(steps in prop::collection::vec((0..5_u8, 0..100_u16, 0..3_u16), 1..40)) {
        let all = Partition { master: 0, replicas: SiteSet::default(), rows: 0, bytes: 0, pin: None };
        let mut layout = Layout::new(BTreeMap::from([(0, all)]), (0..3).collect());
        for (kind, key, site) in steps {
            let before = layout.clone();
            let start = *before.of(&key).0;
            let operator = match kind {
                0 => Operator::Split(key),
                1 => Operator::Merge(start),
                2 => Operator::AddReplica(start, site),
                3 => Operator::RemoveReplica(start, site),
                _ => Operator::Remaster(start, site),
            };
            prop_assert_eq!(differences(&before, &before), []);
            if layout.apply(&operator).is_ok() {
                let seen = match operator {
                    Operator::Merge(first) => Operator::Merge(*before.next(&first).unwrap().0),
                    other => other,
                };
                prop_assert_eq!(differences(&before, &layout), [seen]);
            }
        }
    }

    #[test]
    fn groups_cover_all_rows_in_their_order(uses in prop::collection::vec(0.0..9.0_f64, 1..60), most in 1..20_usize) {
        let groups = grouped(&uses, most);
        prop_assert!(groups.len() <= most || groups.len() == uses.len());
        let all: Vec<usize> = groups.into_iter().flatten().collect();
        prop_assert_eq!(all, (0..uses.len()).collect::<Vec<_>>());
    }
}

fn read(heat: &mut Heat<u32>, key: u32) {
    heat.add(&key, Some(&(key + 1)), Cell { reads: 1.0, ..Cell::default() });
}

#[test]
fn rows_are_narrow_where_keys_are_hot() {
    let mut heat = Heat::new(Bounds { rows_max: 32, ..Bounds::default() }, 0);
    for n in 0..40_000_u32 {
        // Nine of ten are of a hundred keys among a million.
        let key = n.wrapping_mul(2_654_435_761) % 1_000_000;
        read(&mut heat, if n % 10 == 0 { key } else { 500_000 + key % 100 });
        if n % 200 == 0 {
            heat.pass(u64::from(n) * 10);
            heat.reshape();
        }
    }
    let within = heat.starts().filter(|start| (500_000..500_100).contains(*start)).count();
    assert!(within >= 10, "{within} of {}", heat.starts().count());
}

#[test]
fn rows_follow_the_heat_when_it_moves() {
    let mut heat = Heat::new(Bounds { rows_max: 16, column_ms: 100, columns_max: 10 }, 0);
    for (phase, hot) in [10_000_u32, 900_000].into_iter().enumerate() {
        for n in 0..10_000_u32 {
            read(&mut heat, hot + n.wrapping_mul(2_654_435_761) % 1_000);
            if n % 100 == 0 {
                heat.pass(phase as u64 * 10_000 + u64::from(n));
                heat.reshape();
            }
        }
        let within = heat.starts().filter(|start| (hot..hot + 1_000).contains(*start)).count();
        assert!(within >= 6, "{within} rows at {hot}: {:?}", heat.starts().collect::<Vec<_>>());
    }
}

#[test]
fn one_hot_key_gets_a_row_that_begins_with_it() {
    let mut heat = Heat::new(SMALL, 0);
    for n in 0..100 {
        read(&mut heat, 7);
        heat.pass(n);
        heat.reshape();
    }
    assert_eq!(heat.starts().copied().collect::<Vec<_>>(), [0, 7]);
}

#[test]
fn a_long_silence_leaves_columns_without_heat_and_no_more_than_there_may_be() {
    let mut heat = Heat::new(SMALL, 0);
    read(&mut heat, 3);
    heat.pass(1_000_000_000);
    let begins: Vec<u64> = heat.columns().map(|(begin_ms, _)| begin_ms).collect();
    assert_eq!((begins.len(), begins[5]), (6, 1_000_000_000));
    assert!(heat.columns().all(|(_, cells)| cells[0] == Cell::default()));
    // A clock that goes back adds to the newest column.
    heat.pass(5);
    read(&mut heat, 3);
    assert_eq!(heat.columns().last().unwrap().1[0].reads, 1.0);
}
