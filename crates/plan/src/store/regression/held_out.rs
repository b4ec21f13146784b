//! Predictions compared with observations, for samples that were predicted before anything was learned from them.

use std::collections::VecDeque;

/// Limit on the number of samples that are remembered, from which R² is computed.
const HELD_OUT: usize = 200;
/// Least number of samples for any result; also the number of samples that count as recent.
const HELD_OUT_MIN: usize = 20;

/// The last held-out samples of a learned function: the observed and the predicted value of each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeldOut(VecDeque<(f64, f64)>);

impl HeldOut {
    /// Restores persisted samples; if there are more than are remembered, the last ones.
    pub(super) fn of(samples: &[(f64, f64)]) -> Self {
        let surplus = samples.len().saturating_sub(HELD_OUT);
        Self(samples[surplus..].iter().copied().collect())
    }

    /// Returns the observed and the predicted value of each sample, the oldest first.
    pub(super) fn samples(&self) -> impl Iterator<Item = (f64, f64)> {
        self.0.iter().copied()
    }

    /// Adds a sample: its observed value, and the value that was predicted before anything was learned from it.
    pub fn push(&mut self, observed: f64, predicted: f64) {
        if self.0.len() == HELD_OUT {
            self.0.pop_front();
        }
        self.0.push_back((observed, predicted));
    }

    /// Returns the share of the variance of the samples that was predicted (R²): 1 is all of it, and 0 is as good as
    /// predicting their mean. Returns `None` while there are too few samples, or if their mean is zero. Predictions of
    /// samples that hardly vary are judged by their error: within a tenth of the mean they count as right.
    #[must_use]
    pub fn r_squared(&self) -> Option<f64> {
        if self.0.len() < HELD_OUT_MIN {
            return None;
        }
        let count = self.0.len() as f64;
        let mean = self.0.iter().map(|(observed, _)| observed).sum::<f64>() / count;
        let squares = |of: &dyn Fn(&(f64, f64)) -> f64| {
            self.0.iter().map(|held| of(held).powi(2)).sum::<f64>()
        };
        let around_mean = squares(&|(observed, _)| observed - mean);
        let around_prediction = squares(&|(observed, predicted)| observed - predicted);
        if mean == 0.0 {
            return None;
        }
        let slight = count * (0.1 * mean).powi(2);
        if around_prediction <= slight {
            return Some(1.0 - around_prediction / (around_mean + slight).max(f64::MIN_POSITIVE));
        }
        Some(1.0 - around_prediction / around_mean.max(slight))
    }

    /// Returns the mean absolute error of the last few samples, as a share of their mean observed value; `None` while
    /// there are too few.
    #[must_use]
    pub fn recent_error_share(&self) -> Option<f64> {
        if self.0.len() < HELD_OUT_MIN {
            return None;
        }
        let last = || self.0.iter().rev().take(HELD_OUT_MIN);
        let sum = last().map(|(observed, _)| observed).sum::<f64>();
        let wrong = last().map(|(observed, predicted)| (observed - predicted).abs());
        Some(wrong.sum::<f64>() / sum.max(f64::MIN_POSITIVE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held_out(samples: impl IntoIterator<Item = (f64, f64)>) -> HeldOut {
        let mut held_out = HeldOut::default();
        samples.into_iter().for_each(|(observed, predicted)| held_out.push(observed, predicted));
        held_out
    }

    #[test]
    fn predictions_are_right_wrong_or_as_good_as_the_mean() {
        let observed = |n: i32| f64::from(1_000 + 100 * n);
        let right = held_out((0..20).map(|n| (observed(n), observed(n))));
        assert_eq!((right.r_squared(), right.recent_error_share()), (Some(1.0), Some(0.0)));
        let mean = held_out((0..20).map(|n| (observed(n), 1_950.0)));
        assert!(mean.r_squared().unwrap().abs() < 1e-9);
        let wrong = held_out((0..20).map(|n| (observed(n), observed(19 - n))));
        assert!(wrong.r_squared().unwrap() < -1.0);
        assert_eq!(held_out((0..19).map(|n| (observed(n), 0.0))).r_squared(), None);
        assert_eq!(held_out((0..20).map(|_| (0.0, 1e-9))).r_squared(), None);
    }

    #[test]
    fn only_the_last_samples_count() {
        let wrong = (0..200).map(|n| (f64::from(n), 1e6));
        let right = (0..200).map(|n| (f64::from(n), f64::from(n)));
        assert_eq!(held_out(wrong.chain(right)).r_squared(), Some(1.0));
        let wrong_at_first = (0..100).map(|n| (1.0, if n < 80 { 3.0 } else { 1.0 }));
        assert_eq!(held_out(wrong_at_first).recent_error_share(), Some(0.0));
        let wrong_at_last = (0..100).map(|n| (1.0, if n < 80 { 1.0 } else { 3.0 }));
        assert_eq!(held_out(wrong_at_last).recent_error_share(), Some(2.0));
    }
}
