//! The learned state of a linear function, to be persisted and restored.

use super::{HeldOut, Linear};

/// The learned state of a [`Linear`] function.
#[derive(Clone, Debug, PartialEq)]
pub struct Parts {
    /// Scales, weights and last steps of the inputs; then the unit, the constant, its last step, and the usual error.
    pub numbers: Vec<f64>,
    /// Number of samples that the function has observed, held-out ones included.
    pub samples: u64,
    /// The last held-out samples: the observed and the predicted value of each.
    pub held_out: Vec<(f64, f64)>,
}

impl<const N: usize> Linear<N> {
    /// Returns the learned state of the function, to be persisted.
    #[must_use]
    pub fn parts(&self) -> Parts {
        let of_inputs = [&self.scales, &self.weights, &self.steps].into_iter().flatten();
        let others = [self.unit, self.constant, self.constant_step, self.usual_error];
        Parts {
            numbers: of_inputs.copied().chain(others).collect(),
            samples: self.samples,
            held_out: self.held_out.samples().collect(),
        }
    }

    /// Returns this new function with the learned state `parts` of an earlier one; `None` if that state has another
    /// number of inputs, numbers that are not finite, or scales below their bounds.
    #[must_use]
    pub fn restored(self, parts: &Parts) -> Option<Self> {
        let Parts { numbers, samples, held_out } = parts;
        let is_finite = |number: &f64| number.is_finite();
        let held = held_out.iter().flat_map(|(observed, predicted)| [observed, predicted]);
        if numbers.len() != 3 * N + 4 || !numbers.iter().chain(held).all(is_finite) {
            return None;
        }
        let inputs = |n: usize| <[f64; N]>::try_from(&numbers[n * N..(n + 1) * N]).ok();
        let (scales, weights, steps) = (inputs(0)?, inputs(1)?, inputs(2)?);
        if scales.iter().zip(self.scales_min).any(|(scale, least)| *scale < least) {
            return None;
        }
        let [unit, constant, constant_step, usual_error] = numbers[3 * N..] else { return None };
        let (held_out, samples) = (HeldOut::of(held_out), *samples);
        Some(Self {
            scales,
            unit,
            weights,
            constant,
            steps,
            constant_step,
            usual_error,
            samples,
            held_out,
            ..self
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restored_function_goes_on_as_the_one_that_was_kept() {
        let new = || Linear::new([1.0, 0.5]);
        let mut learned = new();
        for n in 0..300_u32 {
            let (one, two) = (f64::from(n % 17), f64::from(n % 5));
            learned.observe([one, two], 3.0 * one + 40.0 * two + 7.0);
        }
        let mut restored = new().restored(&learned.parts()).unwrap();
        assert_eq!(restored, learned);
        learned.observe([3.0, 4.0], 5.0);
        restored.observe([3.0, 4.0], 5.0);
        assert_eq!(restored, learned);
    }

    #[test]
    fn parts_that_fit_no_function_are_refused() {
        let parts = Linear::new([1.0, 0.5]).parts();
        assert_eq!(Linear::new([1.0]).restored(&parts), None);
        for wrong in [f64::NAN, f64::INFINITY, 0.0] {
            let mut parts = parts.clone();
            parts.numbers[0] = wrong;
            assert_eq!(Linear::new([1.0, 0.5]).restored(&parts), None);
        }
    }
}
