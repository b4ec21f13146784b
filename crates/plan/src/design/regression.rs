//! A linear function of a few inputs, learned on line by stochastic gradient descent (MorphoSys, §5.2).
//!
//! Inputs are divided by their scale, which follows twice their mean, and clamped: one wild input moves no
//! weight further than a large one does, and a function of small inputs is learned as fast as one of large.
//! The error that a sample may claim is bounded by a multiple of the usual error, so that an outlier, a pause
//! of the machine say, is worth as much as a bad sample and no more.
//! Every fifth sample is held out: it is predicted and never learned from, and the coefficient of
//! determination (R²) is that of the last held-out samples.
//!
//! Invariants:
//! - Weights and predictions are finite after any finite samples.
//! - A held-out sample changes no weight.

use std::collections::VecDeque;

mod held_out;
mod parts;

pub use held_out::HeldOut;
pub use parts::Parts;

/// Step of the descent, its momentum, and the pull of weights towards zero.
const RATE: f64 = 0.01;
const MOMENTUM: f64 = 0.8;
const DECAY: f64 = 1e-5;
/// The pull of weights towards what inputs are worth against each other, where that is known.
const PRIOR_PULL: f64 = 0.01;
/// A scaled input counts as no more than this.
const INPUT_MAX: f64 = 4.0;
/// The largest scale.
const SCALE_MAX: f64 = 1e12;
/// An error counts as no more than so many usual ones.
const OUTLIER: f64 = 4.0;
/// One sample of so many is held out.
const HELD_OUT_EVERY: u64 = 5;

/// A linear function of `N` inputs with a constant.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear<const N: usize> {
    /// Divisors of the inputs, and their lower bounds.
    scales: [f64; N],
    scales_min: [f64; N],
    /// The relative worth of the inputs, used as long as nothing else is known; and the output for one unit of
    /// worth, told from the means of both.
    prior: Option<[f64; N]>,
    prior_unit: f64,
    means: (f64, f64),
    /// True if no weight may be below zero.
    is_rising: bool,
    /// True if there is no constant.
    is_proportional: bool,
    /// The last samples, which are learned from again with each new one, and how many are kept.
    recent: VecDeque<([f64; N], f64)>,
    recent_max: usize,
    /// The divisor of the output: it follows the mean of the observed outputs.
    unit: f64,
    weights: [f64; N],
    constant: f64,
    /// The last steps.
    steps: [f64; N],
    constant_step: f64,
    usual_error: f64,
    samples: u64,
    held_out: HeldOut,
}

impl<const N: usize> Linear<N> {
    /// A function that knows nothing: zero everywhere. `scales_min` are values of the inputs that make no
    /// difference any more.
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

    /// The same, but the first sample is taken for proportional to the inputs, which are worth so much against each
    /// other, where others are taken for constant: an idle site lets no transaction wait, also if none was seen
    /// yet. Where inputs rise and fall together, samples say nothing of their worth against each other, and weights
    /// are pulled to that.
    #[must_use]
    pub fn led_by(mut self, worth: [f64; N]) -> Self {
        self.prior = Some(worth);
        self
    }

    /// The same, but no input lowers the output: more work never takes less.
    #[must_use]
    pub fn rising(mut self) -> Self {
        self.is_rising = true;
        self
    }

    /// The same, but nothing comes of nothing: it has no constant, which could explain everything where the output
    /// hardly varies. It needs [`Linear::led_by`] to begin with.
    #[must_use]
    pub fn proportional(mut self) -> Self {
        self.is_proportional = true;
        self
    }

    /// The same, but with each new sample it learns again from so many of the last ones: where samples are few,
    /// one step for each would take minutes.
    #[must_use]
    pub fn rehearsing(mut self, samples: usize) -> Self {
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

    /// The prediction, never below zero: all that is predicted is a time or a share.
    #[must_use]
    pub fn predict(&self, inputs: [f64; N]) -> f64 {
        (self.raw(self.scaled(inputs)) * self.unit).max(0.0)
    }

    /// Takes note of what was observed for these inputs. What is not a finite number is passed over.
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
        // Inputs that make no difference any more are worth nothing that could be told.
        let least: f64 = prior.iter().zip(self.scales_min).map(|(of, scale)| of * scale).sum();
        self.prior_unit = self.means.1 / self.means.0.max(least);
    }

    /// One step of the descent.
    fn step(&mut self, inputs: [f64; N], observed: f64) {
        let scaled = self.scaled(inputs);
        if self.unit == 0.0 {
            // As long as nothing but zeros were seen, it is zero everywhere already.
            if observed <= 0.0 {
                return;
            }
            self.unit = observed.max(f64::MIN_POSITIVE.sqrt());
            self.usual_error = 1.0;
            // Zeros that were seen before count, too.
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

    /// Has the scales follow the inputs; the function stays what it is.
    fn rescale(&mut self, inputs: [f64; N]) {
        let first = self.unit == 0.0;
        let rate = (2.0 / (self.samples as f64 + 1.0)).max(0.005);
        for (n, input) in inputs.into_iter().enumerate() {
            let before = self.scales[n];
            let input = if first { input } else { input.min(INPUT_MAX * before) };
            let follows = before + rate * (2.0 * input.max(0.0) - before);
            let scale = if first { 2.0 * input } else { follows };
            self.scales[n] = scale.clamp(self.scales_min[n], SCALE_MAX);
            let factor = self.scales[n] / before;
            self.weights[n] *= factor;
            self.steps[n] *= factor;
        }
    }

    /// Returns the share of the variance of the last held-out samples that was predicted: see [`HeldOut::r_squared`].
    #[must_use]
    pub fn r_squared(&self) -> Option<f64> {
        self.held_out.r_squared()
    }

    /// The mean error of the last held-out samples, as a share of their mean.
    #[must_use]
    pub fn error_share(&self) -> Option<f64> {
        self.held_out.error_share()
    }

    /// The constant, and what each input adds by unit, in units of the output.
    #[must_use]
    pub fn weights(&self) -> (f64, [f64; N]) {
        let mut weights = self.weights;
        for (weight, scale) in weights.iter_mut().zip(self.scales) {
            *weight = *weight * self.unit / scale;
        }
        (self.constant * self.unit, weights)
    }

    /// Samples seen so far, with those that were held out.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }
}
