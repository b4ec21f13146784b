//! Fig. 3: days of a metagenomics portal, by how often its workload shifts between reading and writing (SOPHIA,
//! §6.1).
//!
//! The paper has slow days (three of four), medium and fast ones, and days with long phases of writing. It prints
//! neither the shifts nor the share of reads of each kind, but a mean of 443 shifts a day. Here a slow day has 150
//! shifts and mostly reads, a medium day 1,000, a fast one 2,600, and a day of writing 360; the mean is 442.5. The
//! kind of a day is determined from its observed workload, not from the kind by which it was drawn.

use imago_plan::tune::replay::{real, replay};
use imago_plan::tune::workload::{Interval, Mix};
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use serde::Serialize;

use super::methods::{PerMethod, replay_methods};
use super::{Basis, Size};
use crate::sophia::traces::{DAY_S, START_S};

const INTERVAL_S: u64 = 300;
const A_DAY: usize = (DAY_S / INTERVAL_S) as usize;
/// Length of a step, in seconds; the workload may shift at the start of each step.
const STEP_S: u64 = 15;
const STEPS_A_DAY: f64 = (DAY_S / STEP_S) as f64;

/// A kind of day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Slow,
    Medium,
    Fast,
    Write,
}

/// Number of days of each kind in twelve days.
const TWELVE: [(Kind, usize); 4] =
    [(Kind::Slow, 9), (Kind::Medium, 1), (Kind::Fast, 1), (Kind::Write, 1)];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Slow => "slow",
            Self::Medium => "medium",
            Self::Fast => "fast",
            Self::Write => "write",
        }
    }

    /// Returns the mean number of shifts in a day of this kind, and the share of time in which clients mostly read.
    fn drawn(self) -> (f64, f64) {
        match self {
            Self::Slow => (150.0, 0.75),
            Self::Medium => (1_000.0, 0.5),
            Self::Fast => (2_600.0, 0.5),
            Self::Write => (360.0, 0.2),
        }
    }

    /// Returns the kind of a day with this observed number of shifts and share of reads.
    fn seen(shifts: u32, reads: f64) -> Self {
        match shifts {
            1_800.. => Self::Fast,
            600.. => Self::Medium,
            _ if reads < 0.4 => Self::Write,
            _ => Self::Slow,
        }
    }
}

/// The trace of the portal.
struct Days {
    intervals: Vec<Interval>,
    /// Number of shifts in each day.
    shifts: Vec<u32>,
}

impl Days {
    fn drawn(days: usize, seed: u64) -> (Self, Vec<Kind>) {
        let mut dice = StdRng::seed_from_u64(seed ^ 0xdac5);
        let mut kinds = Vec::new();
        while kinds.len() < days {
            let twelve = TWELVE.iter().flat_map(|(kind, times)| std::iter::repeat_n(*kind, *times));
            let mut twelve: Vec<Kind> = twelve.collect();
            twelve.shuffle(&mut dice);
            kinds.extend(twelve);
        }
        kinds.truncate(days);
        let mut all = Self { intervals: Vec::new(), shifts: Vec::new() };
        let mut reads = 1.0;
        kinds.iter().for_each(|kind| all.add(*kind, &mut reads, &mut dice));
        (all, kinds)
    }

    fn add(&mut self, kind: Kind, reads: &mut f64, dice: &mut StdRng) {
        let (shifts_a_day, reading) = kind.drawn();
        let mut shifts = 0;
        for _ in 0..A_DAY {
            let mut counts = [0.0; 4];
            for _ in 0..INTERVAL_S / STEP_S {
                // Shifts to reading are as frequent as shifts to writing: the more time a state takes, the less
                // likely it ends in a step.
                let of_time = if *reads >= 0.5 { reading } else { 1.0 - reading };
                let chance = shifts_a_day / STEPS_A_DAY / (2.0 * of_time);
                if dice.random_bool(chance.min(1.0)) {
                    let is_sharp = dice.random_bool(0.8);
                    *reads =
                        if is_sharp { 1.0 - reads.round() } else { dice.random_range(0.0..1.0) };
                    shifts += 1;
                }
                // Writes arrive in batches, so the rate varies and is higher with fewer reads.
                let operations = (2.0 - 1.4 * *reads) * dice.random_range(500.0..1_500.0);
                counts[0] += operations * *reads;
                counts[1] += operations * (1.0 - *reads);
            }
            let start_s = START_S + self.intervals.len() as u64 * INTERVAL_S;
            let rate_s = counts.iter().sum::<f64>() / INTERVAL_S as f64;
            self.intervals.push(Interval { start_s, mix: Mix::of(counts), rate_s: Some(rate_s) });
        }
        self.shifts.push(shifts);
    }

    fn of(&self, day: usize) -> &[Interval] {
        &self.intervals[day * A_DAY..(day + 1) * A_DAY]
    }

    fn kind(&self, day: usize) -> Kind {
        Kind::seen(self.shifts[day], reads(self.of(day)))
    }
}

/// Returns the mean share of reads.
fn reads(intervals: &[Interval]) -> f64 {
    let mean = Mix::mean(intervals.iter().filter_map(|one| one.mix).map(|mix| (1.0, mix)));
    mean.map_or(0.0, |mix| mix.shares()[0])
}

/// Results for the days of one kind, or for all days.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Name of the basis; see [`super::BasisRow`].
    pub basis: &'static str,
    /// Name of the kind of day, or `all`.
    pub scenario: &'static str,
    /// Number of replayed days.
    pub days: usize,
    /// Mean number of shifts in a day.
    pub shifts_per_day: f64,
    /// Mean share of reads, from 0 to 1.
    pub reads: f64,
    /// Name of the selected forecast: the one that serves most on the last days of the training data.
    pub forecast: &'static str,
    /// Look-ahead, selected in the same way, in intervals.
    pub look_ahead: usize,
    /// Operations that each method serves, divided by those of the best fixed configuration; the latter is the best
    /// over all days.
    pub ratios: PerMethod<f64>,
    /// Reads that the tuner serves, divided by those of the best fixed configuration.
    pub tuned_reads: f64,
    /// Writes that the tuner serves, divided by those of the best fixed configuration.
    pub tuned_writes: f64,
    /// Number of changes that each method makes.
    pub changes: PerMethod<usize>,
}

/// Returns the rows of Fig. 3: for each basis, one for each kind of day, and one for all days.
pub(super) fn rows(bases: &[Basis], size: Size) -> Vec<Row> {
    let (days, _) = Days::drawn(size.days as usize, size.seed);
    bases.iter().flat_map(|basis| of_basis(basis, &days, size.choosing_days as usize)).collect()
}

fn of_basis(basis: &Basis, days: &Days, choosing_days: usize) -> Vec<Row> {
    let learned = days.shifts.len() * 2 / 3;
    let (all, behind) = (&days.intervals[..], learned * A_DAY);
    let planning = basis.planning(INTERVAL_S);
    let planner_inputs = basis.planner_inputs(&planning);
    // The last days suffice for the selection, which replays them with each forecast and look-ahead.
    let chosen_by = &all[learned.saturating_sub(choosing_days.max(1)) * A_DAY..behind];
    let chosen = planner_inputs.choose(chosen_by);
    let look_ahead = chosen.look_ahead;
    let rates = |mix: Mix| basis.measurements.throughputs.of(mix);
    let (setting, at_once) =
        (planner_inputs.setting(look_ahead, false), planner_inputs.setting(look_ahead, true));
    let planned = |setting: &_| {
        let mut forecast = planner_inputs.forecast(&chosen);
        replay(all, behind, &mut *forecast, &rates, setting).schedule.changes
    };
    let lived = replay_methods(
        &real(&all[behind..], &rates, &setting),
        &at_once.rolls,
        &planned(&setting),
        &planned(&at_once),
    );
    let row = |scenario, is_of: &dyn Fn(usize) -> bool| {
        let numbers: Vec<usize> = (learned..days.shifts.len()).filter(|day| is_of(*day)).collect();
        let mean = |sum: f64| sum / numbers.len().max(1) as f64;
        let is_in = |interval: usize| is_of(learned + interval / A_DAY);
        let of_kind = |kind: fn(f64) -> f64| {
            let share = |at: usize| all[behind + at].mix.map_or(0.0, |mix| kind(mix.shares()[0]));
            lived.ratios(|at| if is_in(at) { share(at) } else { 0.0 }).tuned
        };
        Row {
            basis: basis.name,
            scenario,
            days: numbers.len(),
            shifts_per_day: mean(numbers.iter().map(|day| f64::from(days.shifts[*day])).sum()),
            reads: mean(numbers.iter().map(|day| reads(days.of(*day))).sum()),
            forecast: chosen.forecast,
            look_ahead,
            ratios: lived.ratios(|at| f64::from(u8::from(is_in(at)))),
            tuned_reads: of_kind(|reads| reads),
            tuned_writes: of_kind(|reads| 1.0 - reads),
            changes: lived.changes(is_in),
        }
    };
    let of_kinds = TWELVE.map(|(kind, _)| row(kind.name(), &|day| days.kind(day) == kind));
    let of_kinds = of_kinds.into_iter().filter(|row| row.days > 0);
    of_kinds.chain([row("all", &|_| true)]).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::telling;
    use super::*;

    #[test]
    fn days_are_told_apart_by_what_is_seen_of_them_and_have_the_published_shifts_in_the_mean() {
        for seed in 0..3 {
            let (days, kinds) = Days::drawn(24, seed);
            assert_eq!(days.intervals.len(), 24 * A_DAY);
            let seen: Vec<Kind> = (0..24).map(|day| days.kind(day)).collect();
            assert_eq!(seen, kinds, "{:?}", days.shifts);
            let mean = f64::from(days.shifts.iter().sum::<u32>()) / 24.0;
            assert!((mean - 443.0).abs() < 45.0, "{mean}");
        }
    }

    #[test]
    fn slow_days_are_followed_so_that_writes_gain_and_nothing_beats_what_is_free() {
        let basis = telling();
        let (days, _) = Days::drawn(15, 5);
        let rows = of_basis(&basis, &days, 2);
        let [kinds @ .., all] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((all.scenario, all.days), ("all", 5), "a third");
        assert_eq!(kinds.iter().map(|row| row.days).sum::<usize>(), all.days);
        assert_eq!(kinds.iter().map(|row| row.changes.naive).sum::<usize>(), all.changes.naive);
        let slow = kinds.iter().find(|row| row.scenario == "slow").expect("most days are slow");
        let per_day = slow.changes.tuned as f64 / slow.days as f64;
        assert!(per_day > 5.0 && slow.ratios.tuned > slow.ratios.default, "{slow:?}");
        assert!(slow.tuned_writes > 1.0, "{slow:?}");
        for row in &rows {
            let best = row.ratios.theoretical_best * (1.0 + 1e-9);
            row.ratios.map(|ratio| assert!(*ratio <= best, "{row:?}"));
        }
        assert!(all.ratios.oracle >= all.ratios.tuned, "{all:?}");
    }
}
