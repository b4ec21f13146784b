//! The paper's baseline forecasts: the mean mix of the last ten intervals at the same time of day, or of the week
//! (SOPHIA, §6.2). A workload with another period is forecast by the time within that period.

use std::collections::{BTreeMap, VecDeque};

use super::{Chances, Forecast};
use crate::tune::workload::{Interval, Mix};

/// Limit on the number of intervals that are stored for each time of the period.
const REMEMBERED: usize = 10;
/// Length of a day, in seconds.
const DAY_S: u64 = 86_400;
/// Length of a week, in seconds.
const WEEK_S: u64 = 7 * DAY_S;

/// A forecast by the time within a period, such as the time of day: the mean mix of past intervals at the same time.
#[derive(Clone, Debug)]
pub struct Calendar {
    /// Length of the period, in seconds.
    period_s: u64,
    /// Length of an interval, in seconds.
    interval_s: u64,
    /// Mixes of the last observed intervals, by the interval's number within the period.
    seen: BTreeMap<u64, VecDeque<Mix>>,
    /// Start of the first observed interval, in seconds since 1970.
    first_s: Option<u64>,
    /// Start of the last observed interval, in seconds since 1970.
    last_s: Option<u64>,
    /// The last observed mix.
    last: Option<Mix>,
}

impl Calendar {
    /// Creates a forecast by the time of day, for intervals of `interval_s` seconds.
    ///
    /// # Panics
    /// If an interval has no length.
    #[must_use]
    pub fn of_day(interval_s: u64) -> Self {
        Self::new(DAY_S, interval_s)
    }

    /// Creates a forecast by the time within a season of `season_s` seconds, for intervals of `interval_s` seconds.
    ///
    /// # Panics
    /// If an interval has no length, or is longer than the season.
    #[must_use]
    pub fn of_season(season_s: u64, interval_s: u64) -> Self {
        assert!(season_s >= interval_s, "a season of {season_s} s is shorter than an interval");
        Self::new(season_s, interval_s)
    }

    /// Creates a forecast by the time of day and the day of the week, for intervals of `interval_s` seconds.
    ///
    /// # Panics
    /// If an interval has no length.
    #[must_use]
    pub fn of_week(interval_s: u64) -> Self {
        Self::new(WEEK_S, interval_s)
    }

    fn new(period_s: u64, interval_s: u64) -> Self {
        assert!(interval_s > 0, "an interval of no length");
        Self {
            period_s,
            interval_s,
            seen: BTreeMap::new(),
            first_s: None,
            last_s: None,
            last: None,
        }
    }

    /// Returns the number, from 0, within the period of the interval that starts at `start_s` seconds since 1970.
    fn number(&self, start_s: u64) -> u64 {
        start_s % self.period_s / self.interval_s
    }
}

impl Forecast for Calendar {
    fn name(&self) -> &'static str {
        match self.period_s {
            DAY_S => "time of day",
            WEEK_S => "time of week",
            _ => "time of season",
        }
    }

    fn observe(&mut self, seen: &Interval) {
        self.first_s.get_or_insert(seen.start_s);
        self.last_s = Some(seen.start_s);
        let Some(mix) = seen.mix else { return };
        self.last = Some(mix);
        let of = self.seen.entry(self.number(seen.start_s)).or_default();
        of.push_back(mix);
        if of.len() > REMEMBERED {
            of.pop_front();
        }
    }

    fn ahead(&self, intervals: usize) -> Option<Vec<Chances>> {
        let (first_s, last_s) = (self.first_s?, self.last_s?);
        // A time without any observed operation gets the last mix, once a whole period was observed.
        let unseen = self.last.filter(|_| last_s + self.interval_s >= first_s + self.period_s);
        let of = |n: usize| {
            let seen = self.seen.get(&self.number(last_s + n as u64 * self.interval_s));
            let mean = seen.and_then(|seen| Mix::mean(seen.iter().map(|mix| (1.0, *mix))));
            mean.or(unseen).map(|mix| vec![(1.0, mix)])
        };
        (1..=intervals).map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_hours_in_which_nothing_is_ever_asked_for_the_last_mix_is_told() {
        const HOUR_S: u64 = 3_600;
        let mut calendar = Calendar::of_day(HOUR_S);
        let mix = |n: u64| (n % 24 < 22).then(|| Mix::of_reads((n % 24) as f64 / 24.0));
        let interval = |n: u64| {
            let rate_s = Some(mix(n).map_or(0.0, |_| 700.0));
            Interval { start_s: 1_489_968_000 + n * HOUR_S, mix: mix(n), rate_s }
        };
        (0..20).for_each(|n| calendar.observe(&interval(n)));
        assert_eq!(calendar.ahead(6), None, "no whole day was seen");
        (20..44).for_each(|n| calendar.observe(&interval(n)));
        let ahead = calendar.ahead(6).unwrap();
        assert_eq!(ahead[1], [(1.0, mix(21).unwrap())]);
        assert_eq!(ahead[2], [(1.0, mix(19).unwrap())], "ten in the evening");
        assert_eq!(ahead[5], [(1.0, mix(1).unwrap())]);
    }

    #[test]
    fn a_shift_of_eight_hours_is_known_from_the_last_ones() {
        const SHIFT_S: u64 = 8 * 3_600;
        let reads = |n: u64| if n % 96 < 10 { 0.1 } else { 0.9 };
        let interval = |n: u64| Interval {
            start_s: 1_489_968_000 + n * 300,
            mix: Some(Mix::of_reads(reads(n))),
            rate_s: Some(900.0),
        };
        let (mut shift, mut day) = (Calendar::of_season(SHIFT_S, 300), Calendar::of_day(300));
        for n in 0..200 {
            shift.observe(&interval(n));
            day.observe(&interval(n));
        }
        assert_eq!(day.ahead(96), None, "no day was seen whole");
        for (n, chances) in (200..).zip(shift.ahead(96).unwrap()) {
            assert!((chances[0].1.shares()[0] - reads(n)).abs() < 1e-9, "{n}");
        }
    }

    #[test]
    fn a_week_knows_its_weekend() {
        let interval = |n: u64| {
            let is_weekend = n / 24 % 7 >= 5;
            let mix = Some(Mix::of_reads(if is_weekend { 0.95 } else { 0.2 }));
            Interval { start_s: 1_489_968_000 + n * 3_600, mix, rate_s: Some(900.0) }
        };
        let (mut day, mut week) = (Calendar::of_day(3_600), Calendar::of_week(3_600));
        assert_eq!(week.ahead(1), None);
        for n in 0..4 * 7 * 24 {
            day.observe(&interval(n));
            week.observe(&interval(n));
        }
        let reads = |chances: &Chances| chances[0].1.shares()[0];
        let said: Vec<f64> = week.ahead(7 * 24).unwrap().iter().map(reads).collect();
        assert!(said[..5 * 24].iter().all(|share| (share - 0.2).abs() < 1e-9));
        assert!(said[5 * 24..].iter().all(|share| (share - 0.95).abs() < 1e-9));
        let of_day = reads(&day.ahead(1).unwrap()[0]);
        assert!(of_day > 0.3 && of_day < 0.6, "the mean of ten days: {of_day}");
    }
}
