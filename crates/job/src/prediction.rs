//! Predictions of jobs and what came of them: each job keeps the quantities that it predicted, with 90 % intervals, beside
//! those that it measured, and many of them show how good the predictions are.
//!
//! The quality of the predictions of one name is told by
//! - the *coverage*: the share of realized values inside their intervals, which should be about 0.9;
//! - the *median error*, relative to the realized value;
//! - the *bias*: the median of realized ÷ predicted value; above 1 if predictions are too low.
//!
//! If the coverage of at least [`WIDENED_FROM`] predictions is below [`COVERAGE_MIN`], later intervals are widened: by the
//! factor with which nine of ten of those intervals would have contained the realized values (split conformal prediction, on
//! a logarithmic scale).
//!
//! A time is predicted for a job that runs: a pause, or the claim of another process, withdraws it.
//!
//! Invariant: an interval is positive, and `low` ≤ `expected` ≤ `high`.

use serde::{Deserialize, Serialize};

/// Coverage (0..1) below which later intervals are widened.
pub const COVERAGE_MIN: f64 = 0.8;
/// Share (0..1) of realized values that an interval is meant to contain.
pub const COVERAGE_MEANT: f64 = 0.9;
/// Number of realized predictions from which on a coverage says something.
pub const WIDENED_FROM: usize = 10;
/// Largest factor by which intervals are widened, on a logarithmic scale.
const WIDENING_MAX: f64 = 5.0;
/// Limit on the predictions that one job keeps; further ones are not recorded.
pub const PREDICTIONS_MAX: usize = 64;
/// Number of earlier outcomes, the last ones, by which a model is corrected.
const EARLIER_MAX: usize = 12;
/// Quantile of the standard normal distribution for a 90 % interval.
const NORMAL_90: f64 = 1.645;
/// Least expected value of an interval: smaller ones have no meaningful ratio.
const EXPECTED_MIN: f64 = 1e-6;

/// A predicted value with its 90 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The value falls below this in 5 of 100 cases.
    pub low: f64,
    /// The expected value.
    pub expected: f64,
    /// The value exceeds this in 5 of 100 cases.
    pub high: f64,
}

impl Interval {
    /// Returns the interval with these bounds. Bounds that lie on the wrong side of `expected` are replaced by it.
    #[must_use]
    pub fn new(low: f64, expected: f64, high: f64) -> Self {
        let expected = expected.max(EXPECTED_MIN);
        Self { low: low.clamp(0.0, expected), expected, high: high.max(expected) }
    }

    /// Returns the interval from `expected` ÷ `factor` to `expected` × `factor`.
    #[must_use]
    pub fn within(expected: f64, factor: f64) -> Self {
        let factor = factor.max(1.0);
        Self::new(expected / factor, expected, expected * factor)
    }

    /// Returns the interval of a value that a model expects to be `expected`, corrected by what came of the model before:
    /// `earlier` are realized ÷ expected values, the last one last. Without any it is within `factor`. Each has the same weight as
    /// the assumption that the model is right within `factor`, on a logarithmic scale.
    #[must_use]
    pub fn corrected(expected: f64, earlier: &[f64], factor: f64) -> Self {
        let logs = earlier.iter().filter(|ratio| ratio.is_finite() && **ratio > 0.0);
        let logs: Vec<f64> = logs.rev().take(EARLIER_MAX).map(|ratio| ratio.ln()).collect();
        let weights = logs.len() as f64 + 1.0;
        let mean = logs.iter().sum::<f64>() / weights;
        let assumed = (factor.max(1.0).ln() / NORMAL_90).powi(2);
        let squares = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() + mean.powi(2);
        // The mean is as uncertain as so many values let it be.
        let next = if logs.is_empty() { 1.0 } else { 1.0 + 1.0 / weights };
        let deviation = ((assumed + squares) / weights * next).sqrt();
        Self::within(expected * mean.exp(), (NORMAL_90 * deviation).exp())
    }

    /// Returns the interval of the sum of two values that are high or low together, as times of the same servers are.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            low: self.low + other.low,
            expected: self.expected + other.expected,
            high: self.high + other.high,
        }
    }

    /// Returns the interval with bounds that are `factor` times as far from the expected value, on a logarithmic scale.
    #[must_use]
    pub fn widened(self, factor: f64) -> Self {
        let bound = |bound: f64| {
            self.expected * (bound.max(EXPECTED_MIN) / self.expected).powf(factor.max(1.0))
        };
        Self::new(bound(self.low), self.expected, bound(self.high))
    }

    /// True if the value is inside the interval.
    #[must_use]
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// A quantity that a job predicted, and the value that it measured later.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The name of the quantity, with the unit last, for example `copy_s`.
    pub name: String,
    /// The predicted value and its interval.
    #[serde(flatten)]
    pub predicted: Interval,
    /// Time of the prediction, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The measured value; `None` as long as there is none.
    pub realized: Option<f64>,
}

impl Prediction {
    /// True if the predicted quantity is a time: its name ends with the unit.
    #[must_use]
    pub fn is_time(&self) -> bool {
        self.name.ends_with("_s")
    }

    /// Returns the realized value beside the predicted one; `None` without a meaningful one.
    fn outcome(&self) -> Option<(Interval, f64)> {
        let realized = self.realized.filter(|value| value.is_finite() && *value > 0.0)?;
        Some((self.predicted, realized))
    }
}

/// The quality of all predictions of one name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Quality {
    /// The name of the predicted quantity.
    pub name: String,
    /// Number of predictions.
    pub predicted: usize,
    /// Number of predictions whose quantity was measured later.
    pub realized: usize,
    /// Number of measured values inside their intervals.
    pub inside: usize,
    /// Median of |realized − expected| ÷ realized; `None` if nothing was measured.
    pub median_error: Option<f64>,
    /// Median of realized ÷ expected; `None` if nothing was measured.
    pub bias: Option<f64>,
    /// Factor by which the intervals of the next predictions are widened, on a logarithmic scale; 1 if they are not.
    pub widening: f64,
}

impl Quality {
    /// Returns the quality of the predictions of each name, in the order of the names.
    #[must_use]
    pub fn by_name<'p>(all: impl IntoIterator<Item = &'p Prediction>) -> Vec<Self> {
        let mut named: std::collections::BTreeMap<&str, Vec<&Prediction>> = Default::default();
        all.into_iter().for_each(|one| named.entry(&one.name).or_default().push(one));
        named.into_iter().map(|(name, of)| Self::of(name, &of)).collect()
    }

    fn of(name: &str, predictions: &[&Prediction]) -> Self {
        let outcomes: Vec<(Interval, f64)> =
            predictions.iter().filter_map(|one| one.outcome()).collect();
        let median_of = |value: fn(Interval, f64) -> f64| {
            quantile(outcomes.iter().map(|(predicted, realized)| value(*predicted, *realized)), 0.5)
        };
        Self {
            name: name.to_owned(),
            predicted: predictions.len(),
            realized: outcomes.len(),
            inside: outcomes.iter().filter(|(predicted, is)| predicted.contains(*is)).count(),
            median_error: median_of(|predicted, is| (is - predicted.expected).abs() / is),
            bias: median_of(|predicted, is| is / predicted.expected),
            widening: widening(&outcomes),
        }
    }

    /// Returns the share (0..1) of measured values inside their intervals; `None` if nothing was measured.
    #[must_use]
    pub fn coverage(&self) -> Option<f64> {
        (self.realized > 0).then(|| self.inside as f64 / self.realized as f64)
    }
}

/// Returns the factor by which intervals have to be widened so that nine of ten contain the realized values, or 1 if enough
/// do.
fn widening(outcomes: &[(Interval, f64)]) -> f64 {
    let inside = outcomes.iter().filter(|(predicted, is)| predicted.contains(*is)).count();
    if outcomes.len() < WIDENED_FROM || inside as f64 >= COVERAGE_MIN * outcomes.len() as f64 {
        return 1.0;
    }
    let far = |(predicted, is): &(Interval, f64)| {
        let bound = if *is > predicted.expected { predicted.high } else { predicted.low };
        let distance = |value: f64| (value.max(EXPECTED_MIN) / predicted.expected).ln().abs();
        distance(*is) / distance(bound).max(0.01)
    };
    quantile(outcomes.iter().map(far), COVERAGE_MEANT).unwrap_or(1.0).clamp(1.0, WIDENING_MAX)
}

/// Returns the smallest value that is at least as large as `share` (0..1) of all; `None` if there are none.
fn quantile(values: impl Iterator<Item = f64>, share: f64) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * share).ceil() as usize;
    values.get(at.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prediction(predicted: Interval, realized: Option<f64>) -> Prediction {
        Prediction { name: "copy_s".to_owned(), predicted, at_ms: 1_764_460_800_000, realized }
    }

    #[test]
    fn a_model_that_was_wrong_before_is_corrected() {
        let first = Interval::corrected(20.0, &[], 2.0);
        assert!((first.low - 10.0).abs() < 1e-9 && (first.high - 40.0).abs() < 1e-9, "{first:?}");
        let later = Interval::corrected(20.0, &[0.6, 0.62, 0.58, f64::NAN, 0.61], 2.0);
        assert!((12.5..14.0).contains(&later.expected) && later.contains(12.0), "{later:?}");
        assert!(later.high / later.low < first.high / first.low, "{later:?}");
        let varied = Interval::corrected(20.0, &[0.4, 2.5, 0.5, 2.0], 2.0);
        assert!(varied.high / varied.low > later.high / later.low, "{varied:?}");
        // What was long ago does not count.
        let changed: Vec<f64> = [[0.2; 12], [1.0; 12]].concat();
        let changed = Interval::corrected(20.0, &changed, 2.0);
        assert!((changed.expected - 20.0).abs() < 1e-9, "{changed:?}");
    }

    proptest! {
        #[test]
        fn intervals_stay_ordered(
            expected in 1e-3..1e9_f64, low in 0.0..1e9_f64, high in 0.0..1e9_f64, factor in 0.0..9.0_f64,
        ) {
            let interval = Interval::new(low, expected, high);
            for one in [interval, interval.widened(factor), interval.plus(interval)] {
                prop_assert!(0.0 <= one.low && one.low <= one.expected && one.expected <= one.high);
            }
            prop_assert!(interval.widened(factor).low <= interval.low * (1.0 + 1e-9));
            prop_assert!(interval.widened(factor).high >= interval.high * (1.0 - 1e-9));
        }

        /// The oracle: with the widened intervals nine of ten of the same values are inside.
        #[test]
        fn widened_intervals_would_have_contained_what_came(
            ratios in prop::collection::vec(0.3..3.0_f64, 10..60), factor in 1.05..1.5_f64,
        ) {
            let of = |ratio: &f64| prediction(Interval::within(86.0, factor), Some(86.0 * ratio));
            let all: Vec<Prediction> = ratios.iter().map(of).collect();
            let quality = &Quality::by_name(&all)[0];
            if quality.widening > 1.0 && quality.widening < WIDENING_MAX {
                let inside = all.iter().filter(|one| {
                    let wide = one.predicted.widened(quality.widening * 1.000_001);
                    wide.contains(one.realized.unwrap())
                });
                prop_assert!(inside.count() as f64 >= COVERAGE_MEANT * all.len() as f64);
            } else if quality.widening == 1.0 {
                prop_assert!(quality.coverage().unwrap() >= COVERAGE_MIN);
            }
        }
    }

    #[test]
    fn the_quality_of_a_few_predictions() {
        let predicted = Interval::within(24.0, 1.5);
        let mut all: Vec<Prediction> =
            [34.0, 31.8, 86.5, 20.0].iter().map(|is| prediction(predicted, Some(*is))).collect();
        all.push(prediction(predicted, None));
        let quality = &Quality::by_name(&all)[..];
        let [of] = quality else { panic!("one name: {quality:?}") };
        assert_eq!((of.predicted, of.realized, of.inside), (5, 4, 3));
        assert!((of.bias.unwrap() - 31.8 / 24.0).abs() < 1e-9, "{of:?}");
        assert!((of.median_error.unwrap() - 7.8 / 31.8).abs() < 0.1, "{of:?}");
        assert_eq!(of.widening, 1.0, "too few to judge by");
        assert!(Quality::by_name(&[]).is_empty());
    }
}
