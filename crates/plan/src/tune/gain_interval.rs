//! The interval of a predicted gain in throughput, from how earlier predictions came true.
//!
//! A gain is predicted from measurements of both configurations, made at other times and under another load than the one that
//! the change meets. How far that leads astray is only shown by changes that were made: for each, the error is the logarithm of
//! the ratio of realised and predicted throughput. The interval of the next one is around their mean, with their deviation, as
//! if one without bias had been seen at a distance of [`SPREAD`] before.

/// A gain that was predicted, and the one that was realised; both as shares of the throughput before.
pub type Gain = (f64, f64);

/// Standard deviation of the error without evidence: a third or half more or less than was predicted is no surprise.
const SPREAD: f64 = 0.35;
/// Largest error that counts: beyond it the load has become another one.
const ERROR_MAX: f64 = 1.5;
/// Quantile of the standard normal distribution for a 90 % interval.
const NORMAL_90: f64 = 1.645;

/// Returns the 90 % interval of the realised gain where `predicted` is predicted, as shares of the throughput before: lower and
/// upper end. `past` has the earlier changes.
#[must_use]
pub fn gain_interval(predicted: f64, past: &[Gain]) -> [f64; 2] {
    let ratio = |gain: f64| (1.0 + gain).max(1e-3);
    let error = |(predicted, realised): &Gain| {
        (ratio(*realised) / ratio(*predicted)).ln().clamp(-ERROR_MAX, ERROR_MAX)
    };
    let weight = past.len() as f64 + 1.0;
    let mean = past.iter().map(error).sum::<f64>() / weight;
    let squares = past.iter().map(|gain| (error(gain) - mean).powi(2)).sum::<f64>();
    let half = NORMAL_90 * ((squares + mean.powi(2) + SPREAD.powi(2)) / weight).sqrt();
    [mean - half, mean + half].map(|error| ratio(predicted) * error.exp() - 1.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_interval_is_wide_and_those_of_good_predictions_are_not() {
        let [low, high] = gain_interval(0.61, &[]);
        assert!(low < 0.0 && high > 1.8, "{low} to {high}");
        let good: Vec<Gain> = (0..20).map(|n| (0.3, 0.3 + 0.02 * f64::from(n % 3 - 1))).collect();
        let [low, high] = gain_interval(0.5, &good);
        assert!(low > 0.25 && high < 0.8 && low < 0.5 && high > 0.5, "{low} to {high}");
    }

    #[test]
    fn a_bias_moves_the_interval() {
        // Half of what was promised came.
        let less: Vec<Gain> = (0..20).map(|n| (0.8, 0.4 + 0.01 * f64::from(n % 3 - 1))).collect();
        let [low, high] = gain_interval(0.8, &less);
        assert!(low < 0.4 && high < 0.8 && high > 0.4, "{low} to {high}");
    }

    proptest! {
        #[test]
        fn intervals_are_ordered_and_finite(
            predicted in -0.9..5.0_f64,
            past in prop::collection::vec((-0.9..5.0_f64, -1.0..10.0_f64), 0..30),
        ) {
            let [low, high] = gain_interval(predicted, &past);
            prop_assert!(low > -1.0 && low < high && high.is_finite(), "{} to {}", low, high);
        }
    }
}
