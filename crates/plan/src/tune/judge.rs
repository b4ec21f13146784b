//! The judgement of a change of a cluster's configuration: its measured gain with the noise, compared with the
//! predicted gain.
//!
//! The workload after a change differs from that before, so throughputs cannot be compared directly. Each window is
//! compared with the measured throughput of the *old* configuration with the window's mix. The ratio before the change
//! shows how this cluster differs from the measurements; the rise of the ratio after the change is the gain.
//!
//! A cluster also serves less when clients request less, but then it does not reply more slowly. So a change is judged
//! worse only if its clients are served less *and* wait longer; or if the slowest replies take too many times as long,
//! or memory runs short ([`Bounds`]).
//!
//! The noise is twice the standard error of the gain. Consecutive windows are not independent, so the noise is rather
//! underestimated; therefore the loss must exceed [`Bounds::loss`] as well.

use statrs::distribution::{ContinuousCDF as _, StudentsT};

use super::planner::Rates;
use super::workload::{KINDS, Mix};

/// Minimum number of windows before a change, and after it, for a judgement.
pub const WINDOWS_MIN: usize = 3;

/// Distance below which two mixes count as similar; see [`Mix::distance`].
const SIMILAR_DISTANCE: f64 = 0.1;

/// The observation of a cluster over a window of some seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Mix of the operations that were served.
    pub mix: Mix,
    /// Operations served per second.
    pub rate_s: f64,
    /// Median reply time of each kind of operation, in any unit, the same in all windows; `None` if it is not known.
    pub median: [Option<f64>; KINDS],
    /// 99th percentile of the reply time of each kind of operation, in the same unit; `None` if it is not known.
    pub slowest: [Option<f64>; KINDS],
    /// Share of the memory in use, from 0 to 1, on the node with the least free memory; `None` if it is not known.
    pub memory: Option<f64>,
}

/// A mean of measured values with its noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean, in the unit of the values.
    pub mean: f64,
    /// Twice the standard error of the mean, or the half width of its 95 % interval, in the unit of the values.
    pub noise: f64,
}

impl Estimate {
    /// Returns the mean of `values`, with twice its standard error as the noise; `None` for fewer than two values.
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

    /// Returns the mean of a few values, with its noise by Student's t distribution: the half width of the 95 %
    /// confidence interval. Returns `None` for fewer than two values.
    #[must_use]
    pub fn of_few(values: &[f64]) -> Option<Self> {
        let Self { mean, noise } = Self::of(values)?;
        let wide = StudentsT::new(0.0, 1.0, values.len() as f64 - 1.0).ok()?.inverse_cdf(0.975);
        Some(Self { mean, noise: noise / 2.0 * wide })
    }

    /// Returns the gain of this estimate over `other`, as a share of the other mean; `None` if the other mean is not
    /// above zero.
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

    /// Returns true if the mean is below zero by more than the noise.
    #[must_use]
    pub fn is_negative(self) -> bool {
        self.mean < -self.noise
    }
}

/// Bounds on the effects of a configuration change, beyond which the change is undone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Maximum loss of throughput, as a share of the old configuration's throughput.
    pub loss: f64,
    /// Maximum 99th percentile of the reply time, as a multiple of that before the change.
    pub slowest: f64,
    /// Maximum share of the memory in use after the change, from 0 to 1, on the node with the least free memory.
    pub memory: f64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { loss: 0.05, slowest: 2.0, memory: 0.9 }
    }
}

/// The reason why a configuration change has to be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UndoReason {
    /// Clients are served fewer operations than the bound allows, and wait longer.
    Throughput,
    /// The slowest replies take longer than the bound allows.
    TailLatency,
    /// Memory runs short: its use exceeds the bound, and did not before the change.
    Memory,
}

/// The judgement of a configuration change by its effects.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judgement {
    /// Gain in throughput that the measurements predict for the present workload, as a share of the old throughput.
    pub predicted: f64,
    /// Observed gain in throughput, as a share of the old throughput.
    pub realised: Estimate,
    /// Median reply time after the change, as a multiple of that before; `None` if it is not known.
    pub median: Option<f64>,
    /// 99th percentile of the reply time after the change, as a multiple of that before; `None` if it is not known.
    pub slowest: Option<f64>,
    /// Share of the memory in use after the change, from 0 to 1, the maximum over all windows; `None` if it is not
    /// known.
    pub memory: Option<f64>,
    /// The reason why the change has to be undone; `None` if it may stay.
    pub undo_reason: Option<UndoReason>,
}

/// Judges a change from one configuration to another, given by their indexes in the result of `rates`, by the windows
/// before and after the change. Returns `None` if there are fewer than [`WINDOWS_MIN`] windows on either side.
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
    let predicted = predicted.sum::<f64>() / after.len() as f64;
    let times = (waits(before, after), multiple(before, after, |window| &window.slowest));
    Some(Judgement::new((predicted, realised), times, memory(before, after), bounds))
}

/// Returns the largest share of the memory in use before and after a change, from 0 to 1.
pub(super) fn memory(before: &[Window], after: &[Window]) -> [Option<f64>; 2] {
    [before, after].map(|windows| windows.iter().filter_map(|one| one.memory).reduce(f64::max))
}

impl Judgement {
    /// Decides whether a change has to be undone by these effects: the predicted and the realised gain in throughput, the median
    /// and the 99th percentile of the reply time as multiples of those before, and the memory in use before and after.
    pub(super) fn new(
        (predicted, realised): (f64, Estimate),
        (median, slowest): (Option<f64>, Option<f64>),
        [before, memory]: [Option<f64>; 2],
        bounds: &Bounds,
    ) -> Self {
        let was_short = before.is_some_and(|share| share > bounds.memory);
        let serves_less = realised.is_negative() && realised.mean < -bounds.loss;
        // If reply times are not known, throughput alone decides.
        let waits_longer = median.is_none_or(|multiple| multiple > 1.0);
        let undo_reason = match () {
            () if memory.is_some_and(|share| share > bounds.memory) && !was_short => {
                Some(UndoReason::Memory)
            }
            () if serves_less && waits_longer => Some(UndoReason::Throughput),
            () if slowest.is_some_and(|multiple| multiple > bounds.slowest) => {
                Some(UndoReason::TailLatency)
            }
            () => None,
        };
        Self { predicted, realised, median, slowest, memory, undo_reason }
    }
}

/// Returns the median reply time after a change, as a multiple of that before; `None` if it is not known.
#[must_use]
pub fn waits(before: &[Window], after: &[Window]) -> Option<f64> {
    multiple(before, after, |window| &window.median)
}

/// Returns the windows before a change whose mix is similar to the mean mix after it. If there are enough of them,
/// measurements of other mixes are not needed.
fn near(before: &[Window], after: &[Window]) -> Vec<Window> {
    let Some(mix) = Mix::mean(after.iter().map(|window| (1.0, window.mix))) else {
        return Vec::new();
    };
    before.iter().filter(|window| window.mix.distance(mix) < SIMILAR_DISTANCE).copied().collect()
}

/// Returns a reply time (selected by `times`) after a change as a multiple of that before: the mean over the kinds of
/// operations that occurred on both sides, weighted by their shares after the change. So a change of the mix alone
/// does not affect it.
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
        assert!(judged.realised.noise < 0.02, "{judged:?}");
        assert_eq!(judged.undo_reason, None);
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
        assert_eq!(judged(&before, &slower).undo_reason, Some(UndoReason::Throughput));
        assert_eq!(judged(&before, &fewer).undo_reason, None, "clients ask for less");
        assert_eq!(judged(&before, &slowest).undo_reason, Some(UndoReason::TailLatency));
        assert_eq!(judged(&before, &short).undo_reason, Some(UndoReason::Memory));
        assert_eq!(judged(&short, &short).undo_reason, None, "it was so before");
        assert_eq!(judge(&before[..2], &slower, &rates, (0, 1), &Bounds::default()), None);
    }

    #[test]
    fn a_loss_within_the_noise_stays() {
        let before = [30_000.0, 18_000.0, 41_000.0].map(|rate| window(1.0, rate, 1.0));
        let after = [27_000.0, 15_000.0, 38_000.0].map(|rate| window(1.0, rate, 1.1));
        let judged = judged(&before, &after);
        assert!(judged.realised.mean < -0.05 && !judged.realised.is_negative(), "{judged:?}");
        assert_eq!(judged.undo_reason, None);
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
