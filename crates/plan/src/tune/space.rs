//! The space of configurations: each varied setting is a coordinate.
//!
//! A setting is an axis: numbers between two bounds, or words. A configuration is a point: its value on each axis; a
//! number is its own coordinate, a word has its index in the list of words. Numbers with distant bounds are compared by
//! ratio, since a database treats 16, 32 and 64 as evenly spaced.

/// Ratio of the upper to the lower bound of a numeric setting from which its values are compared by ratio.
const GEOMETRIC: f64 = 4.0;

/// A configuration: its value on the axis of each setting.
pub type Point = Vec<f64>;

/// The axis of a setting that is varied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Axis {
    /// A numeric setting, with values between two bounds.
    Number {
        /// Least value of the setting.
        least: f64,
        /// Greatest value of the setting.
        most: f64,
        /// True if values are compared by their ratio, false if by their difference.
        is_geometric: bool,
    },
    /// A setting whose values are words; the field is their number. A word is represented by its index.
    Words(usize),
}

impl Axis {
    /// Creates the axis of a numeric setting between two bounds. Values are compared by ratio if the bounds are far
    /// apart.
    ///
    /// # Panics
    /// If the bounds are not finite or not in order.
    #[must_use]
    pub fn number(least: f64, most: f64) -> Self {
        assert!(least.is_finite() && most.is_finite() && least <= most, "{least} to {most}");
        Self::Number { least, most, is_geometric: least > 0.0 && most >= GEOMETRIC * least }
    }

    /// Scales a number so that the axis's least value becomes 0 and its greatest 1. The index of a word is unchanged.
    #[must_use]
    pub fn unit(self, value: f64) -> f64 {
        match self {
            Self::Number { least, most, .. } if most <= least => value - least,
            Self::Number { least, most, is_geometric: true } => {
                (value / least).ln() / (most / least).ln()
            }
            Self::Number { least, most, .. } => (value - least) / (most - least),
            Self::Words(_) => value,
        }
    }

    /// Returns the number at a position between the bounds of the axis, from 0 to 1: the inverse of [`Self::unit`].
    #[must_use]
    pub fn value(self, unit: f64) -> f64 {
        match self {
            Self::Number { least, most, is_geometric: true } => least * (most / least).powf(unit),
            Self::Number { least, most, .. } => least + unit * (most - least),
            Self::Words(_) => unit,
        }
    }

    /// Returns the distance of two values on this axis: 1 from bound to bound, and between any two different words.
    #[must_use]
    pub fn distance(self, one: f64, two: f64) -> f64 {
        match self {
            Self::Number { .. } => (self.unit(one) - self.unit(two)).abs(),
            Self::Words(_) => f64::from(u8::from(one != two)),
        }
    }

    /// Returns the terms of a value in a regression: a number and its square, or one indicator for each word but the
    /// first.
    #[must_use]
    pub fn terms(self, value: f64) -> Vec<f64> {
        match self {
            Self::Number { .. } => {
                let centred = 2.0 * self.unit(value) - 1.0;
                vec![centred, centred * centred]
            }
            Self::Words(words) => {
                (1..words).map(|word| f64::from(u8::from(value == word as f64))).collect()
            }
        }
    }
}

/// Returns the Euclidean distance of two configurations over all axes.
#[must_use]
pub fn distance(axes: &[Axis], one: &[f64], two: &[f64]) -> f64 {
    let squares = axes.iter().zip(one.iter().zip(two));
    squares.map(|(axis, (one, two))| axis.distance(*one, *two).powi(2)).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn far_bounds_are_compared_by_ratio_and_near_ones_by_difference() {
        let readers = Axis::number(16.0, 64.0);
        assert!((readers.unit(32.0) - 0.5).abs() < 1e-12);
        assert!((readers.distance(16.0, 32.0) - readers.distance(32.0, 64.0)).abs() < 1e-12);
        let memory = Axis::number(32.0, 64.0);
        assert!((memory.unit(48.0) - 0.5).abs() < 1e-12);
        assert!((Axis::number(0.0, 64.0).unit(16.0) - 0.25).abs() < 1e-12, "zero has no ratio");
        assert_eq!(Axis::Words(3).distance(0.0, 2.0), 1.0);
        assert_eq!(Axis::Words(3).terms(2.0), [0.0, 1.0]);
        let axes = [readers, Axis::Words(2)];
        assert!((distance(&axes, &[16.0, 0.0], &[64.0, 1.0]) - 2.0_f64.sqrt()).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn a_place_and_its_value_are_one(least in 0.0..9_000.0_f64, more in 0.001..9_000.0_f64, unit in 0.0..=1.0_f64) {
            let axis = Axis::number(least, least + more);
            let value = axis.value(unit);
            prop_assert!(value >= least - 1e-6 && value <= least + more + 1e-6);
            prop_assert!((axis.unit(value) - unit).abs() < 1e-6, "{axis:?} {value}");
        }
    }
}
