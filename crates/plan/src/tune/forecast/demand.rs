//! The forecast of the rate of operations, in addition to that of their mix.
//!
//! A rate is represented as a share of a bound; the share and its complement to 1 form a mix. So any forecast of mixes
//! can forecast rates too, and its back-test yields the error.

use super::{Chances, Errors, Forecast, backtest};
use crate::tune::workload::{Interval, KINDS, Mix};

/// A forecast of the rate of operations, which uses a forecast of mixes.
pub struct Demand {
    /// Greatest rate that can be forecast, in operations per second.
    bound_s: f64,
    /// Forecast of the mixes that represent rates as shares of the greatest rate.
    by: Box<dyn Forecast + Send + Sync>,
}

impl Demand {
    /// Creates a forecast of rates up to `bound_s` operations per second by the forecast `by`; a higher observed rate
    /// counts as the bound.
    ///
    /// # Panics
    /// If the bound is not positive.
    #[must_use]
    pub fn new(bound_s: f64, by: Box<dyn Forecast + Send + Sync>) -> Self {
        assert!(bound_s > 0.0, "a bound of {bound_s} operations a second");
        Self { bound_s, by }
    }

    /// Learns the rate of the next interval. A gap in the trace has no rate to learn.
    pub fn observe(&mut self, seen: &Interval) {
        self.by.observe(&as_share(seen, self.bound_s));
    }

    /// Returns the operations per second in each of the next `intervals` intervals; `None` if too few intervals were
    /// observed.
    #[must_use]
    pub fn ahead(&self, intervals: usize) -> Option<Vec<f64>> {
        let of = |chances: Chances| Some(Mix::mean(chances)?.shares()[0] * self.bound_s);
        self.by.ahead(intervals)?.into_iter().map(of).collect()
    }

    /// Returns the errors of a forecast of rates on the trace `past` by [`backtest`]: the root mean square by
    /// distance, in operations per second. `asked` has the number of intervals that are only learned from, and the
    /// step between evaluations.
    pub fn errors(
        by: &mut dyn Forecast,
        past: &[Interval],
        bound_s: f64,
        asked: (usize, usize),
        distance_max: usize,
    ) -> Errors {
        let shares: Vec<Interval> = past.iter().map(|seen| as_share(seen, bound_s)).collect();
        let Errors { name, by_distance } = backtest(by, &shares, asked, distance_max);
        // The distance of two mixes averages over all kinds, of which only two differ.
        let to_rate = bound_s * (KINDS as f64 / 2.0).sqrt();
        let of = |error: Option<f64>| error.map(|error| error * to_rate);
        Errors { name, by_distance: by_distance.into_iter().map(of).collect() }
    }
}

/// Returns the interval with its rate, as a share of the bound, in place of its mix.
fn as_share(seen: &Interval, bound_s: f64) -> Interval {
    let share = |rate_s: f64| Mix::of_reads((rate_s / bound_s).clamp(0.0, 1.0));
    Interval { mix: seen.rate_s.map(share), ..*seen }
}

/// A forecast of mixes combined with a forecast of rates.
pub struct WithDemand {
    /// Forecast of the mix of operations.
    pub mixes: Box<dyn Forecast + Send + Sync>,
    /// Forecast of the rate of operations.
    pub demand: Demand,
}

impl Forecast for WithDemand {
    fn name(&self) -> &'static str {
        self.mixes.name()
    }

    fn observe(&mut self, seen: &Interval) {
        self.mixes.observe(seen);
        self.demand.observe(seen);
    }

    fn ahead(&self, intervals: usize) -> Option<Vec<Chances>> {
        self.mixes.ahead(intervals)
    }

    fn rates_ahead(&self, intervals: usize) -> Option<Vec<f64>> {
        self.demand.ahead(intervals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::forecast::{Calendar, LastValue};

    const QUARTER_S: u64 = 900;

    /// Four times as busy by day as by night, and nothing in the last hour.
    fn rate_s(n: u64) -> f64 {
        match n % 96 {
            32..=75 => 18_400.0,
            92..=95 => 0.0,
            _ => 4_600.0,
        }
    }

    fn seen(n: u64) -> Interval {
        let rate_s = rate_s(n);
        let mix = (rate_s > 0.0).then(|| Mix::of_reads(0.3));
        Interval { start_s: 1_490_054_400 + n * QUARTER_S, mix, rate_s: Some(rate_s) }
    }

    #[test]
    fn a_day_that_repeats_is_forecast_in_operations_a_second() {
        let mut demand = Demand::new(20_000.0, Box::new(Calendar::of_day(QUARTER_S)));
        assert_eq!(demand.ahead(1), None, "nothing was seen");
        (0..3 * 96).for_each(|n| demand.observe(&seen(n)));
        let ahead = demand.ahead(96).unwrap();
        for (n, rate) in (3 * 96..).zip(ahead) {
            assert!((rate - rate_s(n)).abs() < 1e-6, "{n}: {rate}");
        }
    }

    #[test]
    fn errors_are_in_operations_a_second() {
        let past: Vec<Interval> = (0..5 * 96).map(seen).collect();
        let mut by_day = Calendar::of_day(QUARTER_S);
        let errors = Demand::errors(&mut by_day, &past, 20_000.0, (96, 1), 12);
        assert!(errors.over(12).unwrap() < 1e-6, "{errors:?}");
        // A day of 96 quarters has two steps of 13,800 and two of 4,600.
        let errors = Demand::errors(&mut LastValue::default(), &past, 20_000.0, (96, 1), 1);
        let expected = ((2.0 * 13_800.0_f64.powi(2) + 2.0 * 4_600.0_f64.powi(2)) / 96.0).sqrt();
        let error = errors.by_distance[0].unwrap();
        assert!((error / expected - 1.0).abs() < 0.01, "{error} {expected}");
    }

    #[test]
    fn a_gap_in_the_trace_is_not_an_interval_without_operations() {
        let mut demand = Demand::new(20_000.0, Box::new(Calendar::of_day(QUARTER_S)));
        (0..96).for_each(|n| demand.observe(&seen(n)));
        for n in 96..2 * 96 {
            demand.observe(&Interval { mix: None, rate_s: None, ..seen(n) });
        }
        let noon = demand.ahead(96).unwrap()[48];
        assert!((noon - 18_400.0).abs() < 1e-6, "{noon}");
    }

    #[test]
    fn what_is_beyond_the_bound_counts_as_the_bound() {
        let mut demand = Demand::new(10_000.0, Box::<LastValue>::default());
        demand.observe(&seen(40));
        assert_eq!(demand.ahead(2), Some(vec![10_000.0; 2]));
    }

    #[test]
    fn mixes_are_those_of_the_forecast_beside_it() {
        let mixes = Box::<LastValue>::default();
        let demand = Demand::new(20_000.0, Box::<LastValue>::default());
        let mut both = WithDemand { mixes, demand };
        assert_eq!(both.rates_ahead(1), None);
        (90..93).for_each(|n| both.observe(&seen(n)));
        // In the last interval nothing was asked for, which tells nothing of the mix.
        assert_eq!(both.ahead(1), Some(vec![vec![(1.0, Mix::of_reads(0.3))]]));
        assert_eq!(both.rates_ahead(1), Some(vec![0.0]));
    }
}
