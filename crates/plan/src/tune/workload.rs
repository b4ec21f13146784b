//! The workload of a cluster: the operations that clients request in an interval (SOPHIA, §4.1, Eq. 1).

/// Number of kinds of operations: reads, updates, inserts and scans.
pub const KINDS: usize = 4;

/// A mix of operations: the shares of reads, updates, inserts and scans, which sum up to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix([f64; KINDS]);

impl Mix {
    /// Creates the mix from counts of reads, updates, inserts and scans. Returns `None` if all counts are 0.
    ///
    /// # Panics
    /// If a count is negative or not finite.
    #[must_use]
    pub fn of(counts: [f64; KINDS]) -> Option<Self> {
        assert!(counts.iter().all(|count| *count >= 0.0 && count.is_finite()), "{counts:?}");
        let all: f64 = counts.iter().sum();
        if all.is_infinite() {
            // Each count is finite, and so is the sum of their quarters.
            return Self::of(counts.map(|count| count / KINDS as f64));
        }
        (all > 0.0).then(|| Self(counts.map(|count| count / all)))
    }

    /// Creates a mix of reads and updates alone, with this share of reads.
    ///
    /// # Panics
    /// If the share is not from 0 to 1.
    #[must_use]
    pub fn of_reads(share: f64) -> Self {
        assert!((0.0..=1.0).contains(&share), "{share} is no share");
        Self([share, 1.0 - share, 0.0, 0.0])
    }

    /// Returns the shares of reads, updates, inserts and scans, in this order; they sum up to 1.
    #[must_use]
    pub fn shares(self) -> [f64; KINDS] {
        self.0
    }

    /// Returns the mix as a database reports it that counts inserts as updates.
    #[must_use]
    pub fn with_inserts_as_updates(self) -> Self {
        let [reads, updates, inserts, scans] = self.0;
        Self([reads, updates + inserts, 0.0, scans])
    }

    /// Returns the root mean square of the differences between the shares of two mixes.
    #[must_use]
    pub fn distance(self, other: Self) -> f64 {
        let squares = self.0.iter().zip(other.0).map(|(one, two)| (one - two).powi(2));
        (squares.sum::<f64>() / KINDS as f64).sqrt()
    }

    /// Returns the weighted mean of mixes, given as pairs of weight and mix; `None` if all weights are 0.
    pub fn mean(weighted: impl IntoIterator<Item = (f64, Self)>) -> Option<Self> {
        let mut sums = [0.0; KINDS];
        for (weight, mix) in weighted {
            sums.iter_mut().zip(mix.0).for_each(|(sum, share)| *sum += weight * share);
        }
        Self::of(sums)
    }
}

/// A mix of operations in tenths, which sum up to ten: the state of a Markov chain (§6.1, a quantisation level of 10
/// %).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenths([u8; KINDS]);

impl Tenths {
    /// Rounds a mix to tenths, by the largest remainders; of equal remainders, the first kind is rounded up.
    #[must_use]
    pub fn of(mix: Mix) -> Self {
        let exact = mix.0.map(|share| share * 10.0);
        let mut tenths = exact.map(|of| of.floor() as u8);
        let left = 10 - tenths.iter().sum::<u8>().min(10);
        let mut by_remainder: Vec<usize> = (0..KINDS).collect();
        let remainder = |kind: &usize| exact[*kind] - exact[*kind].floor();
        by_remainder.sort_by(|one, two| remainder(two).total_cmp(&remainder(one)));
        by_remainder.into_iter().cycle().take(left.into()).for_each(|kind| tenths[kind] += 1);
        Self(tenths)
    }

    /// Returns the mix that the state represents.
    #[must_use]
    pub fn mix(self) -> Mix {
        Mix(self.0.map(|tenths| f64::from(tenths) / 10.0))
    }
}

/// The workload of a cluster that was observed in one interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Start of the interval, in seconds since 1970 (UTC).
    pub start_s: u64,
    /// Mix of the operations in the interval; `None` if there were no operations.
    pub mix: Option<Mix>,
    /// Operations per second in the interval; `None` for a gap in the trace, whose mix is unknown too.
    pub rate_s: Option<f64>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn tenths_are_ten_and_no_share_is_off_by_a_tenth(counts in prop::array::uniform4(0.0..5_000.0_f64)) {
            prop_assume!(counts.iter().sum::<f64>() > 0.0);
            let mix = Mix::of(counts).unwrap();
            let state = Tenths::of(mix);
            prop_assert_eq!(state.0.iter().sum::<u8>(), 10);
            for (share, near) in mix.shares().iter().zip(state.mix().shares()) {
                prop_assert!((share - near).abs() < 0.1 + 1e-9, "{mix:?} {state:?}");
            }
            prop_assert_eq!(Tenths::of(state.mix()), state);
        }
    }

    #[test]
    fn distances_are_those_between_shares() {
        assert_eq!(Mix::of([0.0; KINDS]), None);
        let shares = Mix::of([f64::MAX; KINDS]).unwrap().shares();
        assert!(shares.iter().all(|share| (share - 0.25).abs() < 1e-12), "{shares:?}");
        let (reads, writes) = (Mix::of_reads(1.0), Mix::of_reads(0.0));
        assert!((reads.distance(writes) - 0.5_f64.sqrt()).abs() < 1e-12);
        assert_eq!(Mix::mean([(1.0, reads), (3.0, writes)]), Some(Mix::of_reads(0.25)));
        assert_eq!(Mix::mean([]), None);
    }
}
