//! Divides a whole number of units by weights, with a minimum for each share.
//!
//! The method is that of largest remainders (Hamilton): each share gets the integer part of its
//! quota, and the remaining units go to the largest fractions. A share that would get less than its
//! minimum gets exactly the minimum, and the others divide the rest; this is repeated as often as
//! needed. So each of the others differs from its quota of that rest by less than one unit.

/// Divides `total` units by `weights`, with the minimum `least[i]` for share `i`. Returns the units
/// of each share. They sum up to `total`, unless the minimums exceed it; then the minimums are
/// returned. Of equal fractions the earlier share gets the unit. If all weights are zero, they
/// count as equal.
///
/// # Panics
/// If `weights` and `least` differ in length, or the sum of the weights overflows.
#[must_use]
pub fn apportion(total: u64, weights: &[u128], least: &[u64]) -> Vec<u64> {
    assert_eq!(weights.len(), least.len(), "weights and least numbers of different things");
    let mut given = least.to_vec();
    let least_sum: u128 = least.iter().map(|least| u128::from(*least)).sum();
    if weights.is_empty() || least_sum >= u128::from(total) {
        return given;
    }
    let weights = scaled(weights);
    let mut rest = u128::from(total);
    let mut dividing: Vec<usize> = (0..weights.len()).collect();
    let weight_of = |these: &[usize]| these.iter().map(|i| weights[*i]).sum::<u128>();
    loop {
        let sum = weight_of(&dividing);
        let (enough, too_little): (Vec<usize>, Vec<usize>) =
            dividing.iter().partition(|i| rest * weights[**i] >= u128::from(least[**i]) * sum);
        if too_little.is_empty() {
            break;
        }
        rest -= too_little.iter().map(|i| u128::from(least[*i])).sum::<u128>();
        dividing = enough;
    }
    let sum = weight_of(&dividing);
    let mut fractions = Vec::new();
    let mut left = rest;
    for i in dividing {
        let quota = rest * weights[i] / sum;
        given[i] = quota as u64;
        left -= quota;
        fractions.push((std::cmp::Reverse(rest * weights[i] % sum), i));
    }
    fractions.sort_unstable();
    for (_, i) in fractions.into_iter().take(left as usize) {
        given[i] += 1;
    }
    given
}

/// Returns the weights shifted right such that their sum times any 64-bit number fits into 128
/// bits. If all are zero, returns equal weights.
fn scaled(weights: &[u128]) -> Vec<u128> {
    let sum = weights.iter().try_fold(0_u128, |sum, weight| sum.checked_add(*weight));
    let sum = sum.expect("weights whose sum fits");
    if sum == 0 {
        return vec![1; weights.len()];
    }
    let shift = (128 - sum.leading_zeros()).saturating_sub(63);
    weights.iter().map(|weight| weight >> shift).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_largest_fractions_get_what_is_left() {
        // Quotas 2.5, 1.75, 0.75: two are left over.
        assert_eq!(apportion(5, &[50, 35, 15], &[0, 0, 0]), [2, 2, 1]);
        assert_eq!(apportion(3, &[1, 1], &[0, 0]), [2, 1]);
    }

    #[test]
    fn who_would_get_too_little_gets_the_least_number() {
        assert_eq!(apportion(10, &[1_000, 1, 1], &[1, 1, 1]), [8, 1, 1]);
        assert_eq!(apportion(2, &[1_000, 1, 1], &[1, 1, 1]), [1, 1, 1]);
        assert_eq!(apportion(4, &[0, 0], &[0, 0]), [2, 2]);
    }

    #[test]
    fn the_largest_weights_fit() {
        assert_eq!(apportion(u64::MAX, &[u128::MAX / 2, u128::MAX / 2], &[0, 0])[1], u64::MAX / 2);
    }

    /// True if there is a set that got their least numbers, because the quota of the rest would be
    /// no more, and all others are less than one away from their quota of the rest: the definition,
    /// by trying all sets.
    fn is_apportioned(total: u64, weights: &[u128], least: &[u64], given: &[u64]) -> bool {
        let mut sets = 0..1_u32 << weights.len();
        sets.any(|set| {
            let (fixed, free): (Vec<usize>, Vec<usize>) =
                (0..weights.len()).partition(|i| set & (1 << i) != 0);
            let least_of = |i: &usize| i128::from(least[*i]);
            let rest = i128::from(total) - fixed.iter().map(least_of).sum::<i128>();
            let sum = free.iter().map(|i| weights[*i] as i128).sum::<i128>();
            let quota = |i: &usize| rest * weights[*i] as i128;
            let fixed_is_right =
                |i: &usize| given[*i] == least[*i] && quota(i) <= least_of(i) * sum;
            let free_is_right = |i: &usize| {
                let off = i128::from(given[*i]) * sum - quota(i);
                off.abs() < sum && given[*i] >= least[*i]
            };
            sum > 0 && fixed.iter().all(fixed_is_right) && free.iter().all(free_is_right)
        })
    }

    proptest! {
        #[test]
        fn all_is_given_and_everyone_is_near_their_quota(
            total in 0..60_u64,
            of in prop::collection::vec((0..50_u128, 0..4_u64), 1..7),
        ) {
            let (weights, least): (Vec<u128>, Vec<u64>) = of.into_iter().unzip();
            let given = apportion(total, &weights, &least);
            let least_sum: u64 = least.iter().sum();
            prop_assert_eq!(given.iter().sum::<u64>(), total.max(least_sum));
            prop_assert!(given.iter().zip(&least).all(|(given, least)| given >= least));
            if total > least_sum && weights.iter().sum::<u128>() > 0 {
                prop_assert!(is_apportioned(total, &weights, &least, &given), "{given:?}");
            }
        }

        #[test]
        fn without_least_numbers_each_share_is_within_one_of_its_quota(
            total in 0..10_000_u64, weights in prop::collection::vec(1..1_000_u128, 1..30)
        ) {
            let given = apportion(total, &weights, &vec![0; weights.len()]);
            let sum: u128 = weights.iter().sum();
            for (given, weight) in given.iter().zip(&weights) {
                let off = (u128::from(*given) * sum).abs_diff(u128::from(total) * weight);
                prop_assert!(off < sum);
            }
        }
    }
}
