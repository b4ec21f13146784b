//! A forecast of a seasonal component by the time of day, plus a level: each operation's share is decomposed by STL
//! (Cleveland and others, *STL: A Seasonal-Trend Decomposition Procedure Based on Loess*, 1990), and the share without
//! the season is smoothed exponentially (Hyndman and Athanasopoulos, *Forecasting: Principles and Practice*, ch. 6.8:
//! STL and simple exponential smoothing).
//!
//! The mean of past days at one time ([`super::Calendar`]) needs days to adapt to a level that differs today. This
//! forecast takes the season from the last days, and the level from the last intervals. The decomposition is repeated
//! twice per period, so that learning is cheap; the smoothing continues with each interval.

use std::collections::VecDeque;

use stlrs::Stl;

use super::{Chances, Forecast};
use crate::tune::workload::{Interval, KINDS, Mix};

/// Length of a day, in seconds.
const DAY_S: u64 = 86_400;
/// Limit on the number of periods whose mixes are stored.
const PERIODS: usize = 10;
/// Minimum number of observed periods for a decomposition.
const PERIODS_MIN: usize = 2;
/// Maximum number of intervals in a period: the time of a decomposition grows with this number.
const INTERVALS_MAX: u64 = 1_440;
/// Candidate weights of the last interval in the smoothing, from 0 to 1; the one with the least error of one-step
/// predictions is taken.
const WEIGHTS: [f64; 6] = [0.02, 0.05, 0.1, 0.25, 0.5, 0.9];

/// A forecast of the mix of operations by a seasonal component and a level.
#[derive(Clone, Debug)]
pub struct Seasonal {
    /// Number of intervals in a period.
    period: usize,
    /// The last observed mixes, the oldest first.
    seen: VecDeque<Mix>,
    /// Number of intervals observed in all, stored or not.
    count: usize,
    /// Value of `count` at which the next decomposition is due.
    due: usize,
    /// The forecast of the share of each kind of operation; `None` before the first decomposition.
    parts: Option<[Part; KINDS]>,
}

/// The forecast of the share of one kind of operation.
#[derive(Clone, Debug, Default)]
struct Part {
    /// Seasonal component of each interval of a period, from the interval after the decomposed ones on.
    season: Vec<f64>,
    /// Value of `count` for the first entry of `season`.
    begins: usize,
    /// Smoothed share without the season.
    level: f64,
    /// Weight of the last interval in the smoothing, from 0 to 1.
    weight: f64,
}

impl Part {
    /// Decomposes a series of shares of one kind of operation; `begins` is the number of intervals observed in all.
    fn decomposed(shares: &[f64], period: usize, begins: usize) -> Self {
        let first = shares[0];
        if shares.iter().all(|share| (share - first).abs() < 1e-12) {
            return Self { season: vec![0.0; period], begins, level: first, weight: WEIGHTS[0] };
        }
        let fit =
            Stl::fit(shares, period).expect("two periods at least, of two intervals at least");
        let season = fit.seasonal();
        let rest: Vec<f64> =
            shares.iter().zip(season).map(|(share, season)| share - season).collect();
        let (error, (weight, level)) = WEIGHTS
            .map(|weight| {
                let (error, level) = smoothed(&rest, weight);
                (error, (weight, level))
            })
            .into_iter()
            .min_by(|(one, _), (two, _)| one.total_cmp(two))
            .expect("weights");
        debug_assert!(error.is_finite());
        Self { season: season[season.len() - period..].to_vec(), begins, level, weight }
    }

    /// Returns the seasonal component of the interval before which `at` intervals were observed.
    fn season(&self, at: usize) -> f64 {
        self.season[(at - self.begins) % self.season.len()]
    }

    /// Updates the level by the observed share of the interval before which `at` intervals were observed.
    fn observe(&mut self, at: usize, share: f64) {
        self.level += self.weight * (share - self.season(at) - self.level);
    }
}

/// Smooths a series exponentially. Returns the mean square error of its one-step predictions, and the level at its
/// end.
fn smoothed(all: &[f64], weight: f64) -> (f64, f64) {
    let (mut level, mut squares) = (all[0], 0.0);
    for one in &all[1..] {
        let error = one - level;
        squares += error * error;
        level += weight * error;
    }
    (squares / all.len() as f64, level)
}

impl Seasonal {
    /// Creates a forecast by the time of day, for intervals of `interval_s` seconds. Returns `None` if a day has fewer
    /// than two intervals, or more than 1,440.
    #[must_use]
    pub fn of_day(interval_s: u64) -> Option<Self> {
        Self::of_season(DAY_S, interval_s)
    }

    /// Creates a forecast by the time within a season of `season_s` seconds. Returns `None` if a season has fewer than
    /// two intervals of `interval_s` seconds, or more than 1,440.
    #[must_use]
    pub fn of_season(season_s: u64, interval_s: u64) -> Option<Self> {
        let period = season_s.checked_div(interval_s)?;
        (2..=INTERVALS_MAX).contains(&period).then(|| {
            let period = period as usize;
            let seen = VecDeque::with_capacity(PERIODS * period);
            Self { period, seen, count: 0, due: PERIODS_MIN * period, parts: None }
        })
    }

    /// Decomposes the stored mixes into season and level, for each kind of operation.
    fn decompose(&mut self) {
        let part = |kind: usize| {
            let shares: Vec<f64> = self.seen.iter().map(|mix| mix.shares()[kind]).collect();
            Part::decomposed(&shares, self.period, self.count)
        };
        self.parts = Some(std::array::from_fn(part));
        self.due = self.count + (self.period / 2).max(1);
    }
}

impl Forecast for Seasonal {
    fn name(&self) -> &'static str {
        "season and level"
    }

    /// Learns from the next interval. An interval without operations counts as the one a season before, or as the last
    /// one: the season needs a value for every interval.
    fn observe(&mut self, seen: &Interval) {
        let season_before = self.seen.len().checked_sub(self.period).map(|at| self.seen[at]);
        let last = || season_before.or_else(|| self.seen.back().copied());
        let Some(mix) = seen.mix.or_else(last) else { return };
        if self.seen.len() == PERIODS * self.period {
            self.seen.pop_front();
        }
        self.seen.push_back(mix);
        if let Some(parts) = &mut self.parts {
            let at = self.count;
            parts.iter_mut().zip(mix.shares()).for_each(|(part, share)| part.observe(at, share));
        }
        self.count += 1;
        if self.count >= self.due {
            self.decompose();
        }
    }

    fn ahead(&self, intervals: usize) -> Option<Vec<Chances>> {
        let parts = self.parts.as_ref()?;
        let last = *self.seen.back()?;
        let of = |n: usize| {
            let at = self.count + n;
            // Negative shares count as zero.
            let shares =
                std::array::from_fn(|kind| (parts[kind].level + parts[kind].season(at)).max(0.0));
            vec![(1.0, Mix::of(shares).unwrap_or(last))]
        };
        Some((0..intervals).map(of).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Calendar, LastValue, backtest};
    use super::*;

    const HALF_HOUR_S: u64 = 1_800;
    const DAY: u64 = 48;

    fn interval(n: u64, reads: f64) -> Interval {
        let mix = Some(Mix::of_reads(reads.clamp(0.0, 1.0)));
        Interval { start_s: 1_489_968_000 + n * HALF_HOUR_S, mix, rate_s: Some(900.0) }
    }

    fn of_day(n: u64) -> f64 {
        0.25 * (std::f64::consts::TAU * (n % DAY) as f64 / DAY as f64).sin()
    }

    fn seasonal() -> Seasonal {
        Seasonal::of_day(HALF_HOUR_S).unwrap()
    }

    #[test]
    fn a_day_that_repeats_is_known_after_two_of_them() {
        let days: Vec<Interval> = (0..6 * DAY).map(|n| interval(n, 0.5 + of_day(n))).collect();
        let mut forecast = seasonal();
        days[..2 * DAY as usize - 1].iter().for_each(|seen| forecast.observe(seen));
        assert_eq!(forecast.ahead(1), None, "two days at least");
        let errors = backtest(&mut seasonal(), &days, (2 * DAY as usize, 1), 40);
        assert!(errors.over(40).unwrap() < 0.005, "{errors:?}");
    }

    /// Each second day reads are more frequent by a quarter, from morning to night.
    #[test]
    fn a_level_that_changes_is_followed_where_a_mean_of_days_is_not() {
        let level = |n: u64| 0.4 + 0.25 * f64::from(u8::from(n / (2 * DAY) % 2 == 1));
        let days: Vec<Interval> =
            (0..20 * DAY).map(|n| interval(n, level(n) + of_day(n))).collect();
        let error = |forecast: &mut dyn Forecast| {
            backtest(forecast, &days, (10 * DAY as usize, 1), 6).over(6).unwrap()
        };
        let own = error(&mut seasonal());
        let others = [error(&mut Calendar::of_day(HALF_HOUR_S)), error(&mut LastValue::default())];
        assert!(others.iter().all(|other| own < 0.8 * other), "{own} {others:?}");
    }

    #[test]
    fn days_of_unfit_intervals_have_no_season() {
        for (interval_s, is_fit) in
            [(60, true), (59, false), (43_200, true), (43_201, false), (0, false)]
        {
            assert_eq!(Seasonal::of_day(interval_s).is_some(), is_fit, "{interval_s}");
        }
    }

    #[test]
    fn smoothing_is_that_of_the_textbook() {
        // Levels by hand: 10, 10 + 0.5 · 4, 12 + 0.5 · (-4).
        let (error, level) = smoothed(&[10.0, 14.0, 8.0], 0.5);
        assert!(
            (level - 10.0).abs() < 1e-12 && (error - 32.0 / 3.0).abs() < 1e-12,
            "{error} {level}"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn it_tells_mixes_of_anything_and_its_season_is_the_same_at_the_same_time(
            shares in prop::collection::vec(prop::option::of(0.0..1.0_f64), 8..120),
            ahead in 1..30_usize,
        ) {
            // A day of four intervals.
            let mut forecast = Seasonal::of_day(DAY_S / 4).unwrap();
            for (n, share) in shares.iter().enumerate() {
                let seen = Interval { mix: share.map(Mix::of_reads), ..interval(n as u64, 0.0) };
                forecast.observe(&seen);
            }
            if let Some(told) = forecast.ahead(ahead) {
                prop_assert_eq!(told.len(), ahead);
                for (n, chances) in told.iter().enumerate() {
                    let sum: f64 = chances[0].1.shares().iter().sum();
                    prop_assert!((sum - 1.0).abs() < 1e-9 && chances.len() == 1);
                    if n >= 4 {
                        prop_assert_eq!(chances, &told[n - 4], "nothing is known of a trend");
                    }
                }
            }
        }
    }
}
