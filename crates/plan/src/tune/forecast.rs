//! Forecasts of the workload of coming intervals: the mix of operations and, optionally, their rate (SOPHIA, §4.2, Eq.
//! 2).
//!
//! A forecast learns from one interval after the other, and returns for each coming interval the possible mixes with
//! their probabilities. [`backtest`] determines which forecast is the most accurate, and how far ahead: each forecast
//! is evaluated at every interval of the past, and its predictions are compared with the observed mixes.

mod calendar;
mod demand;
mod markov;
mod queue;
mod seasonal;

use super::workload::{Interval, Mix};

pub use calendar::Calendar;
pub use demand::{Demand, WithDemand};
pub use markov::Markov;
pub use queue::Queue;
pub use seasonal::Seasonal;

/// The possible mixes of operations of one interval, each with its probability; the probabilities sum up to 1.
pub type Chances = Vec<(f64, Mix)>;

/// A forecast of a cluster's workload.
pub trait Forecast {
    /// Returns the name of the forecast for reports.
    fn name(&self) -> &'static str;

    /// Learns from the next interval, which follows the last one observed. An interval without operations has no
    /// information on the mix.
    fn observe(&mut self, seen: &Interval);

    /// Returns the possible mixes of each of the next `intervals` intervals after the last observed one; `None` if too
    /// few intervals were observed.
    fn ahead(&self, intervals: usize) -> Option<Vec<Chances>>;

    /// Returns the expected operations per second in each of the next `intervals` intervals; `None` if this forecast
    /// has no rates.
    fn rates_ahead(&self, _intervals: usize) -> Option<Vec<f64>> {
        None
    }
}

/// The forecast that the last observed mix stays for all coming intervals: the baseline for all other forecasts.
#[derive(Clone, Debug, Default)]
pub struct LastValue {
    /// The last observed mix; `None` before the first one.
    last: Option<Mix>,
}

impl Forecast for LastValue {
    fn name(&self) -> &'static str {
        "last value"
    }

    fn observe(&mut self, seen: &Interval) {
        self.last = seen.mix.or(self.last);
    }

    fn ahead(&self, intervals: usize) -> Option<Vec<Chances>> {
        self.last.map(|last| vec![vec![(1.0, last)]; intervals])
    }
}

/// The errors that a forecast had on past intervals.
#[derive(Clone, Debug, PartialEq)]
pub struct Errors {
    /// Name of the forecast that was evaluated.
    pub name: &'static str,
    /// Error by the distance of the predicted interval, from the next one (index 0) on: the root mean square of the
    /// differences between the expected and the observed shares of operations. `None` where there was no prediction.
    pub by_distance: Vec<Option<f64>>,
}

impl Errors {
    /// Returns the root mean square of the errors over the first `intervals` distances; `None` if one of them is
    /// missing.
    #[must_use]
    pub fn over(&self, intervals: usize) -> Option<f64> {
        let of: Option<Vec<f64>> = self.by_distance.iter().take(intervals).copied().collect();
        let of = of.filter(|of| !of.is_empty())?;
        Some((of.iter().map(|error| error * error).sum::<f64>() / of.len() as f64).sqrt())
    }
}

/// Evaluates a forecast at every `every`-th interval of the trace `past`, after the first `learns` intervals, from
/// which it only learns. Each evaluation predicts up to `distance_max` intervals ahead.
///
/// # Panics
/// If `every` is 0.
pub fn backtest(
    forecast: &mut dyn Forecast,
    past: &[Interval],
    (learns, every): (usize, usize),
    distance_max: usize,
) -> Errors {
    let mut sums = vec![(0.0, 0_u64); distance_max];
    for (now, seen) in past.iter().enumerate() {
        forecast.observe(seen);
        let coming = &past[now + 1..];
        let is_asked = now + 1 >= learns && (now + 1 - learns).is_multiple_of(every);
        if !is_asked || coming.is_empty() {
            continue;
        }
        let Some(said) = forecast.ahead(distance_max.min(coming.len())) else { continue };
        for (sum, (chances, came)) in sums.iter_mut().zip(said.into_iter().zip(coming)) {
            if let (Some(expected), Some(mix)) = (Mix::mean(chances), came.mix) {
                *sum = (sum.0 + expected.distance(mix).powi(2), sum.1 + 1);
            }
        }
    }
    let error = |(sum, count): (f64, u64)| (count > 0).then(|| (sum / count as f64).sqrt());
    Errors { name: forecast.name(), by_distance: sums.into_iter().map(error).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUARTER_S: u64 = 900;

    fn seen(n: u64, mix: Mix) -> Interval {
        Interval { start_s: 1_490_000_400 + n * QUARTER_S, mix: Some(mix), rate_s: Some(5_200.0) }
    }

    /// Ten days, in which buses move by day and are looked for by night.
    fn days() -> Vec<Interval> {
        let mix = |n: u64| match n % 96 {
            20..=70 => Mix::of([0.2, 85.0, 4.0, 10.8]),
            _ => Mix::of([0.2, 10.0, 1.0, 88.8]),
        };
        (0..960).map(|n| seen(n, mix(n).unwrap())).collect()
    }

    #[test]
    fn the_error_grows_with_the_distance_where_a_day_repeats_and_the_last_value_is_said() {
        let errors = backtest(&mut LastValue::default(), &days(), (96, 1), 40);
        let (near, far) = (errors.by_distance[0].unwrap(), errors.by_distance[39].unwrap());
        assert!(near < 0.1 && far > 0.4, "{near} {far}");
        assert!(errors.over(40).unwrap() < far);
        assert_eq!(errors.over(0), None);
    }

    #[test]
    fn a_day_that_repeats_is_known_to_who_knows_the_time() {
        let mut by_time = Calendar::of_day(QUARTER_S);
        let errors = backtest(&mut by_time, &days(), (96, 1), 40);
        assert!(errors.over(40).unwrap() < 0.01, "{errors:?}");
        let seldom = backtest(&mut Calendar::of_day(QUARTER_S), &days(), (96, 7), 40);
        assert!(seldom.over(40).unwrap() < 0.01, "{seldom:?}");
    }

    #[test]
    fn a_forecast_that_says_nothing_has_no_error() {
        let idle = Interval { start_s: 1_490_000_400, mix: None, rate_s: Some(0.0) };
        let errors = backtest(&mut LastValue::default(), &[idle; 20], (2, 1), 3);
        assert_eq!(errors.by_distance, [None; 3]);
        assert_eq!(errors.over(3), None);
    }
}
