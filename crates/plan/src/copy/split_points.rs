//! Split points that cut a collection's key space into slices, computed from a sample of its keys.

/// Returns strictly increasing keys (cuts) that divide the key space into at most `slices` parts with about equal
/// numbers of sampled keys. `n` cuts make `n + 1` slices; the first and the last slice are open-ended.
///
/// The sample need not be sorted. Fewer cuts are returned if the sample has too few distinct keys.
/// With a sample of `s` keys per slice, the relative error of a slice's share is about `1/√s`.
#[must_use]
pub fn cuts<K: Ord>(mut sample: Vec<K>, slices: usize) -> Vec<K> {
    sample.sort_unstable();
    let len = sample.len();
    let mut cuts: Vec<K> = Vec::with_capacity(slices.saturating_sub(1));
    let mut wanted = 1;
    for (at, key) in sample.into_iter().enumerate() {
        // Cut k lies after k/slices of the sample.
        if wanted < slices && at > 0 && at * slices >= wanted * len {
            while wanted < slices && at * slices >= wanted * len {
                wanted += 1;
            }
            if cuts.last().is_none_or(|last| *last < key) {
                cuts.push(key);
            }
        }
    }
    cuts
}

/// Returns split points as [`cuts`] does, for keys with weights, such as the bytes of their
/// documents: parts of about equal weight, each cut where the weight before it is nearest to its
/// share.
///
/// Equal keys stay together. If the heaviest key weighs `h`, no part weighs more than its share
/// plus `h`.
#[must_use]
pub fn weighted_cuts<K: Ord>(mut sample: Vec<(K, u64)>, slices: usize) -> Vec<K> {
    sample.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    let total: u128 = sample.iter().map(|(_, weight)| u128::from(*weight)).sum();
    // Distinct keys with their total weights.
    let mut keys: Vec<(K, u64)> = Vec::new();
    for (key, weight) in sample {
        match keys.last_mut() {
            Some((last, sum)) if *last == key => *sum = sum.saturating_add(weight),
            _ => keys.push((key, weight)),
        }
    }
    let mut cuts: Vec<K> = Vec::with_capacity(slices.saturating_sub(1).min(keys.len()));
    let (mut before, mut wanted) = (0_u128, 1);
    let parts = slices as u128;
    for (key, weight) in keys {
        // Cut k lies before this key if that is nearer to k/slices of the weight than after it.
        let is_due =
            |wanted: u128| 2 * before * parts + u128::from(weight) * parts >= 2 * wanted * total;
        if before > 0 && wanted < parts && is_due(wanted) {
            while wanted < parts && is_due(wanted) {
                wanted += 1;
            }
            cuts.push(key);
        }
        before += u128::from(weight);
    }
    cuts
}

/// Returns the index of the slice that holds `key`: the number of `cuts` at or before the key.
#[must_use]
pub fn slice_of<K: Ord>(cuts: &[K], key: &K) -> usize {
    cuts.partition_point(|cut| cut <= key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_uniform_sample_is_cut_evenly() {
        assert_eq!(cuts((0..100).collect(), 4), [25, 50, 75]);
        assert_eq!(cuts((0..100).collect(), 1), [0; 0]);
        assert_eq!(cuts(Vec::<u8>::new(), 4), [0; 0]);
        assert_eq!(cuts(vec![7, 7, 7], 3), [7]);
    }

    proptest! {
        #[test]
        fn cuts_increase_and_no_slice_is_far_from_its_share(
            sample in prop::collection::btree_set(0_u32..10_000, 0..300),
            slices in 1_usize..20,
        ) {
            let sample: Vec<u32> = sample.into_iter().collect();
            let cuts = cuts(sample.clone(), slices);
            prop_assert!(cuts.len() < slices);
            prop_assert!(cuts.windows(2).all(|pair| pair[0] < pair[1]));
            let mut counts = vec![0_usize; cuts.len() + 1];
            for key in &sample {
                counts[slice_of(&cuts, key)] += 1;
            }
            let share = sample.len() / slices;
            for count in counts {
                prop_assert!(count <= share + 2, "{count} of a share of {share}");
            }
        }

        #[test]
        fn no_part_weighs_more_than_its_share_and_the_heaviest_key(
            sample in prop::collection::vec((0_u32..200, 1_u64..50), 0..300),
            slices in 1_usize..20,
        ) {
            let cuts = weighted_cuts(sample.clone(), slices);
            prop_assert!(cuts.len() < slices);
            prop_assert!(cuts.windows(2).all(|pair| pair[0] < pair[1]));
            let mut parts = vec![0_u64; cuts.len() + 1];
            let mut keys = std::collections::BTreeMap::new();
            for (key, weight) in &sample {
                parts[slice_of(&cuts, key)] += weight;
                *keys.entry(key).or_insert(0_u64) += weight;
            }
            let share = parts.iter().sum::<u64>().div_ceil(slices as u64);
            let heaviest = keys.values().max().copied().unwrap_or(0);
            for part in &parts {
                prop_assert!(*part <= share + heaviest, "{parts:?} of {share} with {heaviest}");
            }
            prop_assert!(sample.is_empty() || parts.iter().all(|part| *part > 0));
        }

        #[test]
        fn a_key_lies_in_the_slice_whose_bounds_hold_it(
            cuts in prop::collection::btree_set(0_u32..100, 0..10), key in 0_u32..100,
        ) {
            let cuts: Vec<u32> = cuts.into_iter().collect();
            let slice = slice_of(&cuts, &key);
            prop_assert!(slice == 0 || cuts[slice - 1] <= key);
            prop_assert!(slice == cuts.len() || key < cuts[slice]);
        }
    }
}
