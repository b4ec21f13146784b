//! A linear function of a few inputs, learned online by stochastic gradient descent (MorphoSys, §5.2).
//!
//! Inputs are divided by their scale, which follows twice their mean, and clamped. So one extreme input moves no weight
//! further than a large one, and a function of small inputs is learned as fast as one of large inputs. Where inputs
//! stay beyond the clamp, the scale grows fourfold with each sample until they are within it. The error that a
//! sample may claim is bounded by a multiple of the usual error, so that an outlier, for example a pause of the
//! machine, counts as a bad sample and no more. Every fifth sample is held out: it is predicted and never learned from.
//! The coefficient of determination (R²) is that of the last held-out samples.
//!
//! Invariants:
//! - Weights and predictions are finite after any finite samples.
//! - A held-out sample changes no weight.

use std::collections::VecDeque;

mod held_out;
mod parts;

pub use held_out::HeldOut;
pub use parts::Parts;

/// Step size of the gradient descent.
const RATE: f64 = 0.01;
/// Momentum of the gradient descent: the share of the last step that the next one continues.
const MOMENTUM: f64 = 0.8;
/// Pull of weights towards zero at each step, where there is no prior.
const DECAY: f64 = 1e-5;
/// Pull of weights towards the prior at each step, where there is one.
const PRIOR_PULL: f64 = 0.01;
/// Largest value of a scaled input.
const INPUT_MAX: f64 = 4.0;
/// Largest scale of an input.
const SCALE_MAX: f64 = 1e12;
/// Largest error that a sample may claim, as a multiple of the usual error.
const OUTLIER: f64 = 4.0;
/// One of this many samples is held out.
const HELD_OUT_EVERY: u64 = 5;

/// A linear function of `N` inputs and a constant, which is learned online.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear<const N: usize> {
    /// Divisors by which the inputs are scaled.
    scales: [f64; N],
    /// Lower bounds of the divisors.
    scales_min: [f64; N],
    /// The prior: relative weights of the inputs, used as long as nothing else is known.
    prior: Option<[f64; N]>,
    /// Output per unit of the inputs' sum weighted by the prior, from the means of both.
    prior_unit: f64,
    /// Moving means of the inputs' sum weighted by the prior, and of the output.
    means: (f64, f64),
    /// True if no weight may be negative.
    is_rising: bool,
    /// True if the function has no constant.
    is_proportional: bool,
    /// The last samples (inputs and output), which are learned from again with each new one.
    recent: VecDeque<([f64; N], f64)>,
    /// Limit on the number of samples in `recent`; 0 if none is learned from again.
    recent_max: usize,
    /// Divisor by which the output is scaled: the first output above zero; 0 before.
    unit: f64,
    weights: [f64; N],
    constant: f64,
    /// Last step of the descent, for each weight.
    steps: [f64; N],
    /// Last step of the descent, for the constant.
    constant_step: f64,
    usual_error: f64,
    samples: u64,
    held_out: HeldOut,
}

impl<const N: usize> Linear<N> {
    /// Creates a function that is zero everywhere. `scales_min` are the lower bounds of the inputs' divisors:
    /// differences of inputs below them hardly change the output.
    ///
    /// # Panics
    /// If a scale is not above zero.
    #[must_use]
    pub fn new(scales_min: [f64; N]) -> Self {
        assert!(scales_min.iter().all(|scale| *scale > 0.0), "scales are divided by");
        Self {
            scales: scales_min,
            scales_min,
            prior: None,
            prior_unit: 0.0,
            means: (0.0, 0.0),
            is_rising: false,
            is_proportional: false,
            recent: VecDeque::new(),
            recent_max: 0,
            unit: 0.0,
            weights: [0.0; N],
            constant: 0.0,
            steps: [0.0; N],
            constant_step: 0.0,
            usual_error: 0.0,
            samples: 0,
            held_out: HeldOut::default(),
        }
    }

    /// Gives the function a prior: the relative weights of its inputs. The first sample is then taken as proportional
    /// to the inputs, and not as constant: an idle site delays no transaction, even if none was observed yet. Where
    /// inputs rise and fall together, samples do not show their relative weights, and weights are pulled towards the
    /// prior.
    #[must_use]
    pub fn with_prior(mut self, worth: [f64; N]) -> Self {
        self.prior = Some(worth);
        self
    }

    /// Forbids negative weights: more work never takes less time.
    #[must_use]
    pub fn rising(mut self) -> Self {
        self.is_rising = true;
        self
    }

    /// Removes the constant, which could explain everything where the output hardly varies: inputs of zero give zero.
    /// The function needs [`Linear::with_prior`] to begin with.
    #[must_use]
    pub fn proportional(mut self) -> Self {
        self.is_proportional = true;
        self
    }

    /// Makes the function learn again from the last `samples` samples with each new one: where samples are few,
    /// learning with one step for each would take minutes.
    #[must_use]
    pub fn with_replay(mut self, samples: usize) -> Self {
        self.recent_max = samples;
        self
    }

    fn scaled(&self, inputs: [f64; N]) -> [f64; N] {
        let mut scaled = inputs;
        for (input, scale) in scaled.iter_mut().zip(self.scales) {
            *input = (*input / scale).clamp(0.0, INPUT_MAX);
        }
        scaled
    }

    fn raw(&self, scaled: [f64; N]) -> f64 {
        let products = scaled.iter().zip(self.weights).map(|(input, weight)| input * weight);
        self.constant + products.sum::<f64>()
    }

    /// Returns the predicted output for these inputs, which is never negative: every output is a time or a share.
    #[must_use]
    pub fn predict(&self, inputs: [f64; N]) -> f64 {
        (self.raw(self.scaled(inputs)) * self.unit).max(0.0)
    }

    /// Learns from an output that was observed for these inputs. A sample with an infinite or undefined number is
    /// ignored.
    pub fn observe(&mut self, inputs: [f64; N], observed: f64) {
        if !observed.is_finite() || inputs.iter().any(|input| !input.is_finite()) {
            return;
        }
        let observed = observed.max(0.0);
        self.samples += 1;
        if self.samples.is_multiple_of(HELD_OUT_EVERY) {
            self.held_out.push(observed, self.predict(inputs));
            return;
        }
        self.rescale(inputs);
        self.follow_prior(inputs, observed);
        self.step(inputs, observed);
        let recent = std::mem::take(&mut self.recent);
        recent.iter().for_each(|(inputs, observed)| self.step(*inputs, *observed));
        self.recent = recent;
        if self.recent_max > 0 {
            if self.recent.len() == self.recent_max {
                self.recent.pop_front();
            }
            self.recent.push_back((inputs, observed));
        }
    }

    fn follow_prior(&mut self, inputs: [f64; N], observed: f64) {
        let Some(prior) = self.prior else { return };
        let worth: f64 = prior.iter().zip(inputs).map(|(of, input)| of * input.max(0.0)).sum();
        let rate = (2.0 / (self.samples as f64 + 1.0)).max(0.005);
        self.means.0 += rate * (worth - self.means.0);
        self.means.1 += rate * (observed - self.means.1);
        // Inputs below their least scales are too small to show the output per unit.
        let least: f64 = prior.iter().zip(self.scales_min).map(|(of, scale)| of * scale).sum();
        self.prior_unit = self.means.1 / self.means.0.max(least);
    }

    /// Makes one step of the gradient descent towards the output `observed`.
    fn step(&mut self, inputs: [f64; N], observed: f64) {
        let scaled = self.scaled(inputs);
        if self.unit == 0.0 {
            // While all outputs were zero, the function is zero everywhere already.
            if observed <= 0.0 {
                return;
            }
            self.unit = observed.max(f64::MIN_POSITIVE.sqrt());
            self.usual_error = 1.0;
            // Outputs of zero that were observed before count as samples, too.
            let share = 1.0 / self.samples.max(1) as f64;
            let worth = self
                .prior
                .map(|prior| prior.iter().zip(inputs).map(|(of, input)| of * input).sum::<f64>());
            match (self.prior, worth) {
                (Some(prior), Some(worth)) if worth > 0.0 => {
                    for ((weight, scale), of) in self.weights.iter_mut().zip(self.scales).zip(prior)
                    {
                        *weight = share * of * scale / worth;
                    }
                }
                _ if self.is_proportional => {}
                _ => self.constant = share,
            }
        }
        let wrong = observed / self.unit - self.raw(scaled);
        let bound = OUTLIER * self.usual_error.max(1e-3);
        let claimed = wrong.clamp(-bound, bound);
        self.usual_error += 0.02 * (wrong.abs().min(2.0 * bound) - self.usual_error);
        // A sample of n inputs as large as INPUT_MAX must not overshoot.
        let length = 1.0 + scaled.iter().map(|input| input * input).sum::<f64>();
        let rate = RATE.min(0.2 / length)
            * if self.samples < 200 { 5.0_f64.min(20.0 / length) } else { 1.0 };
        for (n, input) in scaled.into_iter().enumerate() {
            let pull = match self.prior {
                Some(prior) => {
                    let prior = prior[n] * self.scales[n] * self.prior_unit / self.unit;
                    PRIOR_PULL * (self.weights[n] - prior)
                }
                None => DECAY * self.weights[n],
            };
            self.steps[n] = MOMENTUM * self.steps[n] + rate * (claimed * input - pull);
            self.weights[n] += self.steps[n];
        }
        let pull = self.prior.map_or(0.0, |_| PRIOR_PULL * self.constant);
        self.constant_step = MOMENTUM * self.constant_step + rate * (claimed - pull);
        self.constant += self.constant_step;
        if self.is_proportional {
            (self.constant, self.constant_step) = (0.0, 0.0);
        }
        if self.is_rising {
            self.weights.iter_mut().for_each(|weight| *weight = weight.max(0.0));
            self.constant = self.constant.max(0.0);
        }
    }

    /// Lets the divisors of the inputs follow the inputs' size; the function stays the same for inputs that are not
    /// clamped.
    fn rescale(&mut self, inputs: [f64; N]) {
        let first = self.unit == 0.0;
        let rate = (2.0 / (self.samples as f64 + 1.0)).max(0.005);
        for (n, input) in inputs.into_iter().enumerate() {
            let before = self.scales[n];
            let is_clamped = !first && input > INPUT_MAX * before;
            let follows = before + rate * (2.0 * input.max(0.0) - before);
            let scale = match (first, is_clamped) {
                (true, _) => 2.0 * input,
                // A workload that has just begun: at the usual rate its scale would take hundreds of samples.
                (_, true) => (2.0 * input).min(INPUT_MAX * before),
                _ => follows,
            };
            self.scales[n] = scale.clamp(self.scales_min[n], SCALE_MAX);
            let factor = match is_clamped {
                // The weight was learned for the clamped input, and keeps its effect.
                true => INPUT_MAX / (input / self.scales[n]).min(INPUT_MAX),
                false => self.scales[n] / before,
            };
            self.weights[n] *= factor;
            self.steps[n] *= factor;
        }
    }

    /// Returns the share of the variance of the last held-out samples that was predicted: see [`HeldOut::r_squared`].
    #[must_use]
    pub fn r_squared(&self) -> Option<f64> {
        self.held_out.r_squared()
    }

    /// Returns the mean error of the last few held-out samples, as a share of their mean; `None` while there are too
    /// few. Errors from before much was learned are not among them.
    #[must_use]
    pub fn recent_error_share(&self) -> Option<f64> {
        self.held_out.recent_error_share()
    }

    /// Returns the constant of the function, and the increase of the output per unit of each input.
    #[must_use]
    pub fn weights(&self) -> (f64, [f64; N]) {
        let mut weights = self.weights;
        for (weight, scale) in weights.iter_mut().zip(self.scales) {
            *weight = *weight * self.unit / scale;
        }
        (self.constant * self.unit, weights)
    }

    /// Returns the number of samples that the function has observed, held-out ones included.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }
}
