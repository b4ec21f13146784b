//! The records that clients request: their size, and how soon a record is requested again (SOPHIA, §4.1; its key reuse
//! distance).
//!
//! The mix of operations determines which configuration serves more. Sizes and reuse determine whether the measurements
//! apply at all: a cache that holds all records of 1 KB does not hold them at 64 KB. So they are not forecast, but
//! compared with those of the measurements.

use crate::statistics::median;

/// Factor between two record sizes or reuse distances above which the workload differs from the measured one.
pub const FACTOR: f64 = 2.0;

/// Properties of the records that clients request in an interval or a measurement; `None` where they are not known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Records {
    /// Mean size of a record, in bytes.
    pub bytes: Option<f64>,
    /// Mean number of other records that are requested between two requests of the same record.
    pub reuse_distance: Option<f64>,
}

impl Records {
    /// Returns the median of each property over those elements of `of` for which it is known.
    #[must_use]
    pub fn median(of: &[Self]) -> Self {
        let median = |told: fn(&Self) -> Option<f64>| median(of.iter().filter_map(told));
        Self { bytes: median(|one| one.bytes), reuse_distance: median(|one| one.reuse_distance) }
    }

    /// Returns the ratio of each property to that of `other`; `None` unless both values are known and above zero.
    #[must_use]
    pub fn ratio_to(self, other: Self) -> Self {
        let ratio = |one: Option<f64>, other: Option<f64>| {
            let (one, other) = one.zip(other)?;
            (one > 0.0 && other > 0.0).then(|| one / other)
        };
        Self {
            bytes: ratio(self.bytes, other.bytes),
            reuse_distance: ratio(self.reuse_distance, other.reuse_distance),
        }
    }
}

/// Returns true if a ratio of [`Records::ratio_to`] indicates another workload than the measured one; false if it is
/// `None`.
#[must_use]
pub fn is_another(ratio: Option<f64>) -> bool {
    ratio.is_some_and(|ratio| !(1.0 / FACTOR..=FACTOR).contains(&ratio))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: Option<f64>, reuse_distance: Option<f64>) -> Records {
        Records { bytes, reuse_distance }
    }

    #[test]
    fn the_median_is_of_those_that_tell() {
        let all = [
            of(Some(1_024.0), None),
            of(None, Some(40_000.0)),
            of(Some(9_000.0), None),
            of(Some(1_100.0), None),
        ];
        assert_eq!(Records::median(&all), of(Some(1_100.0), Some(40_000.0)));
        assert_eq!(Records::median(&[]), Records::default());
    }

    #[test]
    fn another_workload_is_one_that_is_far_off_either_way() {
        let measured = of(Some(1_000.0), Some(50_000.0));
        let ratio = of(Some(8_200.0), Some(20_000.0)).ratio_to(measured);
        assert_eq!(ratio, of(Some(8.2), Some(0.4)));
        assert!(is_another(ratio.bytes) && is_another(ratio.reuse_distance));
        let near = of(Some(1_900.0), None).ratio_to(measured);
        assert!(!is_another(near.bytes) && !is_another(near.reuse_distance));
        assert_eq!(of(Some(0.0), None).ratio_to(measured), Records::default());
    }
}
