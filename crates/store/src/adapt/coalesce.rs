//! Fewer read ranges for samples of transactions that read hundreds of single keys.
//!
//! A client of Redis that scans declares each key. Each key of each sample costs the planner time, which has a budget:
//! with 300 keys a scan, a decision took a third of a second and so came twice a minute. Neighbouring ranges of one
//! sample are joined until it has few, across the smallest gaps between them.
//!
//! Invariants:
//! - The joined ranges contain all keys of the ranges that they replace.
//! - A sample with no more than [`RANGES_MAX`] ranges keeps them all as they are.
//!
//! What is lost: a partition that lies within a joined gap counts as read by the transaction.

use std::cmp::Reverse;

use crate::key::{Key, KeyRange};

/// Limit on the number of ranges that a sample has afterwards.
const RANGES_MAX: usize = 16;

/// Returns ranges that contain all keys of `reads`: at most [`RANGES_MAX`], with the widest gaps between them kept.
pub(super) fn coalesced(mut reads: Vec<KeyRange>) -> Vec<KeyRange> {
    if reads.len() <= RANGES_MAX {
        return reads;
    }
    reads.sort_by(|one, two| one.start.cmp(&two.start));
    let mut gaps: Vec<(Gap, usize)> =
        (1..reads.len()).map(|at| (gap(&reads[at - 1].start, &reads[at].start), at)).collect();
    gaps.select_nth_unstable_by(RANGES_MAX - 2, |one, two| two.cmp(one));
    let mut breaks: Vec<usize> = gaps[..RANGES_MAX - 1].iter().map(|(_, at)| *at).collect();
    breaks.sort_unstable();
    let ends = breaks.iter().copied().chain([reads.len()]);
    let begins = [0].into_iter().chain(breaks.iter().copied());
    begins.zip(ends).map(|(from, to)| spanned(&reads[from..to])).collect()
}

/// Returns the range from the start of the first range up to the greatest end of all of them.
fn spanned(ranges: &[KeyRange]) -> KeyRange {
    let start = ranges[0].start.clone();
    let is_open = ranges.iter().any(|range| range.end.is_none());
    let greatest = ranges.iter().filter_map(|range| range.end.as_ref()).max();
    KeyRange { start, end: greatest.filter(|_| !is_open).cloned() }
}

/// The width of the gap between two keys: it is wider the fewer bytes they share at their beginnings, and with as many,
/// the more the next byte differs. Within a scan the gap is as wide where a digit before the last one changes, which
/// costs a range more; the gap to another table or another owner is wider still.
type Gap = (Reverse<usize>, u8);

fn gap(one: &Key, two: &Key) -> Gap {
    let (one, two) = (one.as_bytes(), two.as_bytes());
    let shared = one.iter().zip(two).take_while(|(one, two)| one == two).count();
    let next = |key: &[u8]| key.get(shared).copied().unwrap_or(0);
    (Reverse(shared), next(two).saturating_sub(next(one)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::key::Table;

    fn key(row: &str) -> Key {
        Key::new(Table(0), row.as_bytes())
    }

    fn contains(ranges: &[KeyRange], key: &Key) -> bool {
        ranges.iter().any(|range| range.contains(key))
    }

    #[test]
    fn a_scan_and_the_distant_rows_beside_it_stay_apart() {
        // An order with its customer, and the stock of 120 items in two warehouses.
        let items = |warehouse: &str| -> Vec<Key> {
            (100..220).map(|item| key(&format!("stock:{warehouse}:{item:06}"))).collect()
        };
        let mut keys = [items("w0007"), items("w0041")].concat();
        keys.push(key("customer:w0007:d03:c0002914"));
        let joined = coalesced(keys.iter().map(KeyRange::only).collect());
        assert!(joined.len() <= RANGES_MAX, "{joined:?}");
        assert!(keys.iter().all(|key| contains(&joined, key)));
        for between in ["district:w0007:d03", "stock:w0012:000150", "stock:w0040:000219"] {
            assert!(!contains(&joined, &key(between)), "{between} was not read: {joined:?}");
        }
    }

    #[test]
    fn few_ranges_and_open_ones_are_kept() {
        let few: Vec<KeyRange> = (0..RANGES_MAX)
            .rev()
            .map(|n| KeyRange::only(&key(&format!("user{n:08}:profile"))))
            .collect();
        assert_eq!(coalesced(few.clone()), few);
        let mut open = few;
        open.push(KeyRange { start: key("user00000003"), end: None });
        assert!(contains(&coalesced(open), &key("zone:eu-west-1")), "up to the last key");
    }

    proptest! {
        #[test]
        fn no_key_is_lost(
            rows in prop::collection::vec("[a-c]{0,3}:[0-9]{1,9}", 1..80),
            lengths in prop::collection::vec(0_usize..3, 80),
        ) {
            let range = |(row, length): (&String, &usize)| {
                let end = format!("{row}{}", "~".repeat(length + 1));
                KeyRange { start: key(row), end: Some(key(&end)) }
            };
            let reads: Vec<KeyRange> = rows.iter().zip(&lengths).map(range).collect();
            let joined = coalesced(reads.clone());
            prop_assert!(joined.len() <= RANGES_MAX);
            for read in &reads {
                prop_assert!(joined.iter().any(|range| range.covers(read)), "{read:?} in {joined:?}");
            }
            // Brute force: no gap that was kept is narrower than one that was joined.
            if reads.len() > RANGES_MAX {
                let mut starts: Vec<&Key> = reads.iter().map(|read| &read.start).collect();
                starts.sort();
                starts.dedup();
                let (mut kept, mut crossed) = (Vec::new(), Vec::new());
                for pair in starts.windows(2) {
                    let is_kept = joined.iter().any(|range| range.start == *pair[1]);
                    if is_kept { &mut kept } else { &mut crossed }.push(gap(pair[0], pair[1]));
                }
                let (kept, crossed) = (kept.iter().min(), crossed.iter().max());
                prop_assert!(crossed.is_none() || kept >= crossed, "{kept:?} is kept, {crossed:?} joined");
            }
        }
    }
}
