//! The slowest of the shards that serve a batch of keys: the mean of the maximum of their times.
//!
//! The shards' times are taken as independent. With probability 1 − a a shard's time is zero, since the shard has no
//! key of the batch; else it follows a gamma distribution with the given mean and variance. This is exact for one shard
//! and for exponential times, and a good approximation for sums over many keys. The mean is the integral of the
//! probability that the maximum is greater.
//!
//! Invariants: the result is at least the greatest mean, and at most the sum of the means.

use statrs::function::erf::erfc;
use statrs::function::gamma::gamma_lr;

/// The time of one shard's part of a batch of keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Part {
    /// Probability that the shard has a key of the batch, from 0 to 1.
    pub request_probability: f64,
    /// Mean time of the part, where a missing part counts as 0, in seconds.
    pub mean_s: f64,
    /// Variance of the part's time, where a missing part counts as 0, in square seconds.
    pub variance: f64,
}

/// Squared coefficient of variation below which a time counts as constant.
const CONSTANT: f64 = 1e-9;

/// Shape of a gamma distribution above which the cube root of a value counts as normally distributed (Wilson and
/// Hilferty, 1931).
const CUBE_ROOT: f64 = 25.0;

/// Number of points of the integral by Simpson's rule; must be even.
const POINTS: u32 = 192;

/// Returns the mean of the maximum of the parts' times, in seconds; 0 without parts.
pub(super) fn slowest_s(parts: &[Part]) -> f64 {
    let parts: Vec<ConditionalPart> =
        parts.iter().filter(|part| part.mean_s > 0.0).map(ConditionalPart::new).collect();
    let [first, others @ ..] = parts.as_slice() else { return 0.0 };
    if others.is_empty() {
        return first.request_probability * first.mean_s;
    }
    // Below `low_s` the maximum is almost surely greater, above `high_s` almost surely not.
    let certain = parts.iter().filter(|part| part.request_probability > 1.0 - 1e-9);
    let low_s = certain.map(|part| part.mean_s - 6.0 * part.deviation_s).fold(0.0, f64::max);
    let high_s = parts.iter().map(ConditionalPart::end_s).fold(0.0, f64::max);
    let step_s = (high_s - low_s) / f64::from(POINTS);
    let weight = |point: u32| match point {
        0 | POINTS => 1.0,
        odd if odd % 2 == 1 => 4.0,
        _ => 2.0,
    };
    let greater = |point: u32| {
        let at_s = low_s + f64::from(point) * step_s;
        1.0 - parts.iter().map(|part| part.at_most(at_s)).product::<f64>()
    };
    let sum: f64 = (0..=POINTS).map(|point| weight(point) * greater(point)).sum();
    let integral_s = low_s + sum * step_s / 3.0;
    let mean_s = |part: &ConditionalPart| part.request_probability * part.mean_s;
    let least = parts.iter().map(mean_s).fold(0.0, f64::max);
    integral_s.clamp(least, parts.iter().map(mean_s).sum())
}

/// The distribution of the time of a shard's part of a batch, given that the shard has a part.
struct ConditionalPart {
    /// Probability that the shard has a part, from 0 to 1.
    request_probability: f64,
    /// Mean time of an existing part, in seconds.
    mean_s: f64,
    /// Standard deviation of the time of an existing part, in seconds.
    deviation_s: f64,
    /// Shape of the gamma distribution of the time; `None` if the time is constant.
    shape: Option<f64>,
}

impl ConditionalPart {
    fn new(part: &Part) -> Self {
        let request_probability = part.request_probability.clamp(f64::MIN_POSITIVE, 1.0);
        let mean_s = part.mean_s / request_probability;
        let square = (part.variance + part.mean_s.powi(2)) / request_probability;
        let variance = (square - mean_s.powi(2)).max(0.0);
        let variation = variance / mean_s.powi(2);
        let shape = (variation > CONSTANT).then(|| 1.0 / variation);
        Self { request_probability, mean_s, deviation_s: variance.sqrt(), shape }
    }

    /// Returns a time that the part practically never exceeds, in seconds.
    fn end_s(&self) -> f64 {
        // Less than 1e-5 of an exponential distribution is beyond that, and practically nothing of a normal one.
        self.mean_s + 12.0 * self.deviation_s
    }

    /// Returns the probability that the part takes at most `at_s` seconds; a missing part takes 0.
    fn at_most(&self, at_s: f64) -> f64 {
        let given = match self.shape {
            None if at_s < self.mean_s => 0.0,
            None => 1.0,
            Some(_) if at_s <= 0.0 => 0.0,
            Some(shape) if shape > CUBE_ROOT => {
                let root = (at_s / self.mean_s).cbrt();
                let deviations = (root - 1.0 + 1.0 / (9.0 * shape)) * 3.0 * shape.sqrt();
                0.5 * erfc(-deviations / std::f64::consts::SQRT_2)
            }
            Some(shape) => gamma_lr(shape, shape * at_s / self.mean_s),
        };
        (1.0 - self.request_probability) + self.request_probability * given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(number: usize, request_probability: f64, mean_s: f64, variance: f64) -> Vec<Part> {
        vec![Part { request_probability, mean_s, variance }; number]
    }

    #[test]
    fn the_greatest_of_exponential_times_is_a_harmonic_number() {
        for (number, harmonic) in [(1, 1.0), (2, 1.5), (4, 25.0 / 12.0), (8, 761.0 / 280.0)] {
            let slowest = slowest_s(&parts(number, 1.0, 0.5, 0.25));
            assert!((slowest / 0.5 - harmonic).abs() < 0.01, "{number}: {slowest}");
        }
    }

    #[test]
    fn the_greatest_of_many_keys_parts_is_that_of_normal_numbers() {
        // 25 ± 5: the mean of the greatest of four normal numbers is 1.0294 deviations above their mean.
        let slowest = slowest_s(&parts(4, 1.0, 25.0, 25.0));
        assert!((slowest - 30.147).abs() < 0.3, "{slowest}");
    }

    #[test]
    fn constant_parts_take_as_long_as_the_longest() {
        let parts =
            [0.2, 0.5, 0.3].map(|mean_s| Part { request_probability: 1.0, mean_s, variance: 0.0 });
        assert!((slowest_s(&parts) - 0.5).abs() < 0.005, "{}", slowest_s(&parts));
        assert_eq!(slowest_s(&[]), 0.0);
        assert_eq!(
            slowest_s(&[Part { request_probability: 0.0, mean_s: 0.0, variance: 0.0 }]),
            0.0
        );
    }

    #[test]
    fn parts_that_are_seldom_there_hardly_meet() {
        // Each in a tenth of all batches, for a second: 0 with 0.9², else 1.
        let parts = parts(2, 0.1, 0.1, 0.09);
        assert!((slowest_s(&parts) - 0.19).abs() < 0.005, "{}", slowest_s(&parts));
    }
}
