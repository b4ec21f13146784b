//! Turns the slices of a flow into as many shares as it has sockets: the largest slice is split, or
//! the smallest shares are merged, until the numbers agree (Morphus, §4.1).
//!
//! Slicing decides which socket carries the data, not the destination of the data. A split halves a
//! slice; a slice of a single unit cannot be split, so there may be fewer shares than sockets.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::Slice;

/// Divides a flow's slices with positive amounts into `sockets` shares, or fewer if there are fewer units of data.
pub(super) fn shares(slices: Vec<Slice>, sockets: usize) -> Vec<Vec<Slice>> {
    if slices.len() < sockets {
        split(slices, sockets).into_iter().map(|slice| vec![slice]).collect()
    } else {
        merge(slices, sockets)
    }
}

/// Halves the largest slice until there are `wanted` slices or none can be split; returns all slices, sorted.
fn split(slices: Vec<Slice>, wanted: usize) -> Vec<Slice> {
    let ranked = |slice: Slice| (slice.amount, Reverse((slice.chunk, slice.offset)), slice);
    let mut largest: BinaryHeap<_> = slices.into_iter().map(ranked).collect();
    while largest.len() < wanted && largest.peek().is_some_and(|(amount, _, _)| *amount > 1) {
        let (_, _, slice) = largest.pop().expect("it was there to look at");
        let half = slice.amount.div_ceil(2);
        let second = Slice { offset: slice.offset + half, amount: slice.amount - half, ..slice };
        largest.push(ranked(Slice { amount: half, ..slice }));
        largest.push(ranked(second));
    }
    let mut slices: Vec<Slice> = largest.into_iter().map(|(_, _, slice)| slice).collect();
    slices.sort_unstable();
    slices
}

/// Joins the two smallest shares until `wanted` shares are left.
fn merge(slices: Vec<Slice>, wanted: usize) -> Vec<Vec<Slice>> {
    let mut smallest = BinaryHeap::new();
    let mut shares: BTreeMap<usize, Vec<Slice>> = BTreeMap::new();
    for (number, slice) in slices.into_iter().enumerate() {
        smallest.push(Reverse((slice.amount, number)));
        shares.insert(number, vec![slice]);
    }
    while shares.len() > wanted.max(1) {
        let mut pop = || smallest.pop().expect("two shares are left").0;
        let ((first, kept), (second, gone)) = (pop(), pop());
        let joining = shares.remove(&gone).expect("a share has one rank");
        shares.get_mut(&kept).expect("a share has one rank").extend(joining);
        smallest.push(Reverse((first + second, kept)));
    }
    shares.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slices(amounts: &[u64]) -> Vec<Slice> {
        let slice = |(chunk, amount): (usize, &u64)| Slice {
            from: 0,
            to: 1,
            chunk,
            offset: 0,
            amount: *amount,
        };
        amounts.iter().enumerate().map(slice).collect()
    }

    /// The paper's words, one step after another, on amounts alone.
    fn naive(mut amounts: Vec<u64>, sockets: usize) -> Vec<u64> {
        amounts.sort_unstable();
        while amounts.len() < sockets && amounts.last().is_some_and(|largest| *largest > 1) {
            let largest = amounts.pop().unwrap();
            amounts.extend([largest / 2, largest.div_ceil(2)]);
            amounts.sort_unstable();
        }
        while amounts.len() > sockets.max(1) {
            let joined = amounts[0] + amounts[1];
            amounts.splice(..2, [joined]);
            amounts.sort_unstable();
        }
        amounts
    }

    proptest! {
        #[test]
        fn shares_are_those_of_the_papers_steps(
            amounts in prop::collection::vec(1..500_u64, 1..30), sockets in 1..60_usize
        ) {
            let shares = shares(slices(&amounts), sockets);
            let of_share = |share: &Vec<Slice>| share.iter().map(|slice| slice.amount).sum();
            let mut sums: Vec<u64> = shares.iter().map(of_share).collect();
            sums.sort_unstable();
            prop_assert_eq!(sums, naive(amounts, sockets));
        }

        #[test]
        fn every_unit_of_every_slice_is_in_one_share(
            amounts in prop::collection::vec(1..40_u64, 1..20), sockets in 1..200_usize
        ) {
            let mut parts: Vec<Slice> = shares(slices(&amounts), sockets).concat();
            parts.sort_unstable_by_key(|part| (part.chunk, part.offset));
            let mut ends = vec![0; amounts.len()];
            for part in parts {
                prop_assert!(part.amount > 0);
                prop_assert_eq!(part.offset, ends[part.chunk], "a gap or an overlap");
                ends[part.chunk] += part.amount;
            }
            prop_assert_eq!(ends, amounts);
        }
    }
}
