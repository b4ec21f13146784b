//! What came of a change: the gain that was measured, beside the one that was predicted, with its noise.
//!
//! Clients ask for something else after a change than before, so what is served cannot be compared as such. Each window
//! is compared with what the *old* configuration is known to serve of the window's mix; that ratio before the change says
//! how far this cluster is from the measurements, and how much it has risen behind the change is the gain.
//!
//! A cluster also serves less when clients ask for less. It answers no slower then, so a change is held to be worse only
//! if its clients are served less *and* wait longer; or if the slowest answers take twice as long, or memory runs short.
//!
//! Noise is twice the standard error of the gain. Windows that follow one another are not independent, so that it is
//! rather too small: [`Bounds::loss`] has to be exceeded beside it.

use statrs::distribution::{ContinuousCDF as _, StudentsT};

use super::planner::Rates;
use super::workload::{KINDS, Mix};

/// Windows on each side that a judgement needs.
pub const WINDOWS_MIN: usize = 3;

/// Mixes nearer than this are much the same.
const NEAR: f64 = 0.1;

/// What was seen within some seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// The mix of operations.
    pub mix: Mix,
    /// Operations a second.
    pub rate_s: f64,
    /// The median time of an answer to each kind of operation, in any unit; none if it is not known.
    pub median: [Option<f64>; KINDS],
    /// The time that one answer of a hundred exceeds, likewise.
    pub slowest: [Option<f64>; KINDS],
    /// The share of the memory that is in use on the node that has least left.
    pub memory: Option<f64>,
}

/// A mean with its noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Twice its standard error.
    pub noise: f64,
}

impl Estimate {
    /// Of values; none of fewer than two.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let count = values.len() as f64;
        if values.len() < 2 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count;
        let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        Some(Self { mean, noise: 2.0 * (squares / (count - 1.0) / count).sqrt() })
    }

    /// The same of few values, with the noise by Student's t distribution: the half width of the interval that has the mean
    /// with 95 %. None of fewer than two.
    #[must_use]
    pub fn of_few(values: &[f64]) -> Option<Self> {
        let Self { mean, noise } = Self::of(values)?;
        let wide = StudentsT::new(0.0, 1.0, values.len() as f64 - 1.0).ok()?.inverse_cdf(0.975);
        Some(Self { mean, noise: noise / 2.0 * wide })
    }

    /// How much greater this is than another one, as a share of that; none if that is not above zero.
    #[must_use]
    pub fn gain_over(self, other: Self) -> Option<Self> {
        if other.mean <= 0.0 {
            return None;
        }
        let ratio = self.mean / other.mean;
        // The ratio's variance, to first order.
        let noise = (self.noise / other.mean).hypot(ratio * other.noise / other.mean);
        Some(Self { mean: ratio - 1.0, noise })
    }

    /// True if it is above zero beyond its noise.
    #[must_use]
    pub fn is_positive(self) -> bool {
        self.mean > self.noise
    }

    /// True if it is below zero beyond its noise.
    #[must_use]
    pub fn is_negative(self) -> bool {
        self.mean < -self.noise
    }
}

/// Bounds beyond which a change is undone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// The loss, as a share of what the old configuration serves.
    pub loss: f64,
    /// How many times as long the slowest answers may take.
    pub slowest: f64,
    /// The share of the memory that may be in use.
    pub memory: f64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { loss: 0.05, slowest: 2.0, memory: 0.9 }
    }
}

/// What a change has to be undone for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worse {
    /// Clients are served less, and wait longer.
    Less,
    /// The slowest answers take too long.
    Slowest,
    /// Memory runs short.
    Memory,
}

/// What came of a change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judgement {
    /// The gain by the measurements, for what clients ask for now.
    pub predicted: f64,
    /// The gain that was seen.
    pub realised: Estimate,
    /// The median time of an answer, as a multiple of that before.
    pub median: Option<f64>,
    /// The time that one of a hundred exceeds, likewise.
    pub slowest: Option<f64>,
    /// The share of the memory that is in use now.
    pub memory: Option<f64>,
    /// Why it has to be undone; none if it may stay.
    pub worse: Option<Worse>,
}

/// Judges a change from one configuration to another by the windows before and behind it. None if there are fewer than
/// [`WINDOWS_MIN`] of either.
pub fn judge(
    before: &[Window],
    after: &[Window],
    rates: &Rates<'_>,
    (from, to): (usize, usize),
    bounds: &Bounds,
) -> Option<Judgement> {
    if before.len().min(after.len()) < WINDOWS_MIN {
        return None;
    }
    let near = near(before, after);
    let before = if near.len() < WINDOWS_MIN { before } else { &near };
    let ratios = |windows: &[Window]| {
        let of = |window: &Window| window.rate_s / rates(window.mix)[from].max(f64::MIN_POSITIVE);
        Estimate::of(&windows.iter().map(of).collect::<Vec<_>>())
    };
    let realised = ratios(after)?.gain_over(ratios(before)?)?;
    let predicted = after.iter().map(|window| {
        let rates = rates(window.mix);
        rates[to] / rates[from].max(f64::MIN_POSITIVE) - 1.0
    });
    let median = waits(before, after);
    let slowest = multiple(before, after, |window| &window.slowest);
    let most = |windows: &[Window]| windows.iter().filter_map(|one| one.memory).reduce(f64::max);
    let memory = most(after);
    let was_short = most(before).is_some_and(|share| share > bounds.memory);
    let serves_less = realised.is_negative() && realised.mean < -bounds.loss;
    // Where nothing is known of the answers, what is served has to do.
    let waits_longer = median.is_none_or(|multiple| multiple > 1.0);
    let worse = match () {
        () if memory.is_some_and(|share| share > bounds.memory) && !was_short => {
            Some(Worse::Memory)
        }
        () if serves_less && waits_longer => Some(Worse::Less),
        () if slowest.is_some_and(|multiple| multiple > bounds.slowest) => Some(Worse::Slowest),
        () => None,
    };
    Some(Judgement {
        predicted: predicted.sum::<f64>() / after.len() as f64,
        realised,
        median,
        slowest,
        memory,
        worse,
    })
}

/// The median time of an answer behind a change, as a multiple of that before; none if it is not known.
#[must_use]
pub fn waits(before: &[Window], after: &[Window]) -> Option<f64> {
    multiple(before, after, |window| &window.median)
}

/// The windows before a change in which clients asked for much the same as behind it: where there are enough, nothing has
/// to be known of other mixes.
fn near(before: &[Window], after: &[Window]) -> Vec<Window> {
    let Some(mix) = Mix::mean(after.iter().map(|window| (1.0, window.mix))) else {
        return Vec::new();
    };
    before.iter().filter(|window| window.mix.distance(mix) < NEAR).copied().collect()
}

/// How many times as long something takes as before: the mean over the kinds of operations that were there on both
/// sides, weighted by their shares behind the change. So a change of the mix alone is no change of it.
fn multiple(
    before: &[Window],
    after: &[Window],
    times: fn(&Window) -> &[Option<f64>; KINDS],
) -> Option<f64> {
    let mean = |windows: &[Window], kind: usize| {
        let known: Vec<f64> = windows.iter().filter_map(|one| times(one)[kind]).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    };
    let (mut sum, mut weights) = (0.0, 0.0);
    for kind in 0..KINDS {
        let (Some(was), Some(is)) = (mean(before, kind), mean(after, kind)) else { continue };
        let weight: f64 = after.iter().map(|window| window.mix.shares()[kind]).sum();
        if was > 0.0 {
            (sum, weights) = (sum + weight * is / was, weights + weight);
        }
    }
    (weights > 0.0).then(|| sum / weights)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    use super::*;

    /// One configuration for writes, one for reads.
    fn rates(mix: Mix) -> Vec<f64> {
        let reads = mix.shares()[0];
        vec![52_000.0 - 22_000.0 * reads, 37_000.0 + 9_000.0 * reads]
    }

    fn window(reads: f64, rate_s: f64, median: f64) -> Window {
        // Writes are answered sooner than reads.
        let of = |times: f64| [Some(times), Some(0.4 * times), None, None];
        let (median, slowest) = (of(median), of(8.0 * median));
        Window { mix: Mix::of_reads(reads), rate_s, median, slowest, memory: Some(0.6) }
    }

    fn judged(before: &[Window], after: &[Window]) -> Judgement {
        judge(before, after, &rates, (0, 1), &Bounds::default()).unwrap()
    }

    #[test]
    fn of_few_values_the_interval_is_wider() {
        // Student's t for two degrees of freedom is 4.303.
        let found = Estimate::of_few(&[9.0, 10.0, 11.0]).unwrap();
        assert!((found.mean - 10.0).abs() < 1e-12, "{found:?}");
        assert!((found.noise - 4.303 / 3.0_f64.sqrt()).abs() < 1e-3, "{found:?}");
        assert_eq!(Estimate::of_few(&[9.0]), None);
    }

    #[test]
    fn a_change_of_what_clients_ask_for_is_no_gain_and_no_loss() {
        // This cluster serves a tenth of what the measured one did.
        let before = [5_210.0, 5_180.0, 5_200.0].map(|rate| window(0.0, rate, 1.1));
        let after = [4_580.0, 4_610.0, 4_620.0].map(|rate| window(1.0, rate, 1.3));
        let judged = judged(&before, &after);
        assert!((judged.predicted - 16.0 / 30.0).abs() < 1e-9, "{judged:?}");
        assert!((judged.realised.mean - 0.535).abs() < 0.01, "{judged:?}");
        assert!(judged.realised.is_positive() && judged.realised.noise < 0.02, "{judged:?}");
        assert_eq!(judged.worse, None);
    }

    #[test]
    fn less_is_worse_only_if_clients_wait_longer() {
        let before = [30_100.0, 29_900.0, 30_000.0].map(|rate| window(1.0, rate, 1.0));
        let slower = [24_100.0, 24_000.0, 23_900.0].map(|rate| window(1.0, rate, 1.25));
        let fewer = [24_100.0, 24_000.0, 23_900.0].map(|rate| window(1.0, rate, 0.9));
        let slowest = [30_000.0, 30_100.0, 30_200.0].map(|rate| Window {
            slowest: [Some(17.0), None, None, None],
            ..window(1.0, rate, 1.0)
        });
        let short = [30_000.0, 30_100.0, 30_200.0]
            .map(|rate| Window { memory: Some(0.95), ..window(1.0, rate, 1.0) });
        assert_eq!(judged(&before, &slower).worse, Some(Worse::Less));
        assert_eq!(judged(&before, &fewer).worse, None, "clients ask for less");
        assert_eq!(judged(&before, &slowest).worse, Some(Worse::Slowest));
        assert_eq!(judged(&before, &short).worse, Some(Worse::Memory));
        assert_eq!(judged(&short, &short).worse, None, "it was so before");
        assert_eq!(judge(&before[..2], &slower, &rates, (0, 1), &Bounds::default()), None);
    }

    #[test]
    fn a_loss_within_the_noise_stays() {
        let before = [30_000.0, 18_000.0, 41_000.0].map(|rate| window(1.0, rate, 1.0));
        let after = [27_000.0, 15_000.0, 38_000.0].map(|rate| window(1.0, rate, 1.1));
        let judged = judged(&before, &after);
        assert!(judged.realised.mean < -0.05 && !judged.realised.is_negative(), "{judged:?}");
        assert_eq!(judged.worse, None);
    }

    proptest! {
        /// Of a true gain hidden in independent noise the estimate is off by more than its noise only seldom.
        #[test]
        fn noise_is_what_it_says(seed in any::<u64>(), gain in -0.3..0.5_f64, spread in 0.01..0.2_f64) {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut values = |mean: f64| -> Vec<f64> {
                (0..12).map(|_| mean * (1.0 + spread * rng.random_range(-1.0..1.0))).collect()
            };
            let (mut off, all) = (0, 200);
            for _ in 0..all {
                let before = Estimate::of(&values(20_000.0)).unwrap();
                let after = Estimate::of(&values(20_000.0 * (1.0 + gain))).unwrap();
                let told = after.gain_over(before).unwrap();
                off += usize::from((told.mean - gain).abs() > told.noise);
            }
            // 5 % by a normal distribution, a little more of so few values.
            prop_assert!(off < all / 6, "{off} of {all}");
        }
    }
}
