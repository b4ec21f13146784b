//! Builds the intervals of a trace, which have a fixed length, from the rows of its file, in bounded memory.
//!
//! The length is determined from the first rows. Whenever the number of intervals reaches [`INTERVALS_MAX`], each two
//! of them are combined to one of twice the length, so that a trace may have any number of rows.

use std::collections::BTreeMap;

use imago_plan::tune::records::Records;
use imago_plan::tune::workload::{Interval, Mix};

use super::Trace;
use crate::error::{Error, Result};

/// Maximum number of intervals of a trace in memory, gaps included: ten years of five minutes.
const INTERVALS_MAX: usize = 1_100_000;
/// Maximum length of a gap in a trace, in intervals: a row after a longer gap has a wrong start time.
const GAP_MAX: u64 = 20_000_000;
/// Number of rows at a trace's start from which the length of an interval is determined.
const SAMPLE_ROWS: usize = 10_000;
/// Number of distances between start times below which they do not determine the length of an interval.
const DISTANCES_MIN: usize = 10;
/// Divisor of the interval's length that gives the tolerance of a start time: collectors are late.
const TOLERANCE_DIVISOR: u64 = 10;

/// A row of a trace file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Number of the row's line in the file.
    pub(super) line: u64,
    /// Start of the row's interval, in seconds since 1970.
    pub(super) start_s: u64,
    /// Numbers of reads, updates, inserts and scans in the interval.
    pub(super) counts: [f64; 4],
    /// Mean size and reuse distance of the interval's records, as far as the file has them.
    pub(super) records: Records,
}

/// A trace while its rows are read.
pub(super) struct Reading<'f> {
    file: &'f str,
    /// Required length of an interval, in seconds; None: the most common distance between start times.
    asked_s: Option<u64>,
    /// First rows of the file, buffered until the length of an interval is known.
    first: Vec<Seen>,
    /// Start of the last row, in seconds since 1970; None before the first row.
    last_s: Option<u64>,
    /// Intervals of the rows so far; None until the length of an interval is known.
    cells: Option<MergedIntervals>,
}

/// Intervals of a trace, each of which combines one or more intervals of the file.
struct MergedIntervals {
    /// Start of the first interval, in seconds since 1970.
    first_s: u64,
    /// Length of an interval of the file, in seconds.
    length_s: u64,
    /// Number of the file's intervals that are combined into one.
    together: u64,
    /// Counts of operations of each kind and number of the file's rows, by the index of the combined interval; None
    /// for an interval without rows.
    all: Vec<Option<([f64; 4], u32)>>,
    records: Vec<Records>,
    /// Number of the file's intervals from the first row to the last one; None before the first row.
    last: Option<u64>,
    /// Maximum number of combined intervals.
    most: usize,
}

impl<'f> Reading<'f> {
    pub(super) fn new(file: &'f str, asked_s: Option<u64>) -> Self {
        Self { file, asked_s, first: Vec::new(), last_s: None, cells: None }
    }

    pub(super) fn add(&mut self, seen: Seen) -> Result<()> {
        if let Some(before_s) = self.last_s.filter(|before_s| seen.start_s <= *before_s) {
            let problem = match before_s - seen.start_s {
                0 => "it begins when the one before does".to_owned(),
                back_s => format!("it begins {back_s} s before the one before it"),
            };
            let order = "intervals have to be in their order, each once";
            return Err(self.wrong(seen.line, format!("{problem}: {order}")));
        }
        self.last_s = Some(seen.start_s);
        if let Some(cells) = &mut self.cells {
            return cells.add(&seen).map_err(|problem| self.wrong(seen.line, problem));
        }
        self.first.push(seen);
        if self.first.len() >= SAMPLE_ROWS { self.infer_interval() } else { Ok(()) }
    }

    /// Determines the length of an interval from the buffered rows, and adds these rows.
    fn infer_interval(&mut self) -> Result<()> {
        let first = std::mem::take(&mut self.first);
        if first.len() < 2 && self.asked_s.is_none() {
            return Err(Error::TooLittle {
                file: self.file.to_owned(),
                found: format!("{} intervals", first.len()),
                needed: "the length of an interval is told from two at least".to_owned(),
            });
        }
        let distances = || first.windows(2).map(|pair| pair[1].start_s - pair[0].start_s);
        let own_s = most_common(distances());
        if let (Some(asked_s), Some(own_s)) = (self.asked_s, own_s)
            && !can_append(distances(), asked_s)
        {
            return Err(Error::TooLittle {
                file: self.file.to_owned(),
                found: format!("its intervals are {own_s} s long"),
                needed: format!("intervals of {asked_s} s are to be added: name another file"),
            });
        }
        let length_s =
            self.asked_s.or(own_s).expect("one row beside another, or a length that is asked for");
        let first_s = first.first().map_or(0, |row| row.start_s);
        let mut cells = MergedIntervals::new(first_s, length_s, INTERVALS_MAX);
        for seen in first {
            cells.add(&seen).map_err(|problem| self.wrong(seen.line, problem))?;
        }
        self.cells = Some(cells);
        Ok(())
    }

    fn wrong(&self, line: u64, problem: String) -> Error {
        Error::Order { file: self.file.to_owned(), line, problem }
    }

    pub(super) fn end(mut self) -> Result<Trace> {
        if self.cells.is_none() {
            self.infer_interval()?;
        }
        let cells = self.cells.expect("inferred");
        if self.asked_s.is_some() && cells.together > 1 {
            return Err(Error::TooLittle {
                file: self.file.to_owned(),
                found: format!("it has more than {INTERVALS_MAX} intervals"),
                needed: "others are to be added: name another file".to_owned(),
            });
        }
        Ok(cells.trace())
    }
}

impl MergedIntervals {
    fn new(first_s: u64, length_s: u64, most: usize) -> Self {
        let (all, records) = (Vec::new(), Vec::new());
        Self { first_s, length_s, together: 1, all, records, last: None, most }
    }

    fn add(&mut self, seen: &Seen) -> std::result::Result<(), String> {
        let (since_s, length_s) = (seen.start_s - self.first_s, self.length_s);
        let place = (since_s + length_s / 2) / length_s;
        let off_s = since_s.abs_diff(place * length_s);
        let is_taken = self.last.is_some_and(|last| place <= last);
        if off_s > length_s / TOLERANCE_DIVISOR || is_taken {
            return Err(format!(
                "it begins {since_s} s behind the first one, and most intervals are {length_s} s long"
            ));
        }
        if place - self.last.unwrap_or(place) > GAP_MAX {
            return Err(format!("a trace may have a gap of {GAP_MAX} intervals at most"));
        }
        self.last = Some(place);
        while place / self.together >= self.most as u64 {
            self.halve();
        }
        let cell = usize::try_from(place / self.together).expect("it is below the most");
        if self.all.len() <= cell {
            self.all.resize(cell + 1, None);
        }
        let (counts, rows) = self.all[cell].get_or_insert(([0.0; 4], 0));
        counts.iter_mut().zip(seen.counts).for_each(|(sum, count)| *sum += count);
        *rows += 1;
        // A median of that many values is precise enough.
        if self.records.len() < self.most {
            self.records.push(seen.records);
        }
        Ok(())
    }

    /// Combines each two intervals into one of twice the length.
    fn halve(&mut self) {
        self.together *= 2;
        let pair = |pair: &[Option<([f64; 4], u32)>]| {
            let mut both = None::<([f64; 4], u32)>;
            for (counts, rows) in pair.iter().flatten() {
                let (sums, all) = both.get_or_insert(([0.0; 4], 0));
                sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
                *all += rows;
            }
            both
        };
        self.all = self.all.chunks(2).map(pair).collect();
    }

    fn trace(self) -> Trace {
        let interval_s = self.length_s * self.together;
        let interval = |(number, cell): (usize, &Option<([f64; 4], u32)>)| {
            let start_s = self.first_s + number as u64 * interval_s;
            match cell {
                None => Interval { start_s, mix: None, rate_s: None },
                Some((counts, rows)) => {
                    // Missing intervals among the combined ones do not count.
                    let known_s = f64::from(*rows) * self.length_s as f64;
                    let rate_s = Some(counts.iter().sum::<f64>() / known_s);
                    Interval { start_s, mix: Mix::of(*counts), rate_s }
                }
            }
        };
        let intervals: Vec<Interval> = self.all.iter().enumerate().map(interval).collect();
        let missing = self.all.iter().filter(|cell| cell.is_none()).count();
        Trace { interval_s, intervals, missing, records: self.records, together: self.together }
    }
}

/// Returns true if intervals of `interval_s` seconds may be appended to a trace whose start times have these
/// distances: one distance has this length, or the distances are so few that each may be a gap, as after repeated
/// restarts of a controller.
fn can_append(distances: impl Iterator<Item = u64>, interval_s: u64) -> bool {
    let all: Vec<u64> = distances.collect();
    all.contains(&interval_s)
        || (all.len() < DISTANCES_MIN
            && all.iter().all(|distance| distance.is_multiple_of(interval_s)))
}

/// Returns the most frequent of the values, the least one if there are several; None without values.
pub(crate) fn most_common(values: impl Iterator<Item = u64>) -> Option<u64> {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    values.for_each(|value| *counts.entry(value).or_default() += 1);
    let most = counts.iter().max_by_key(|(value, count)| (**count, std::cmp::Reverse(**value)));
    most.map(|(value, _)| *value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seen(start_s: u64, reads: f64) -> Seen {
        let records = Records { bytes: None, reuse_distance: None };
        Seen { line: 0, start_s, counts: [reads, 1.0, 0.0, 0.0], records }
    }

    proptest! {
        #[test]
        fn a_long_trace_loses_no_operation_and_keeps_its_bound(
            gaps in prop::collection::vec(1..6_u64, 1..400),
            most in 2..40_usize,
        ) {
            let mut cells = MergedIntervals::new(0, 60, most);
            let (mut place, mut reads) = (0, 0.0);
            for (number, gap) in gaps.iter().enumerate() {
                cells.add(&seen(place * 60, number as f64)).unwrap();
                reads += number as f64;
                place += gap;
            }
            let trace = cells.trace();
            prop_assert!(trace.intervals.len() <= most);
            prop_assert_eq!(trace.interval_s, 60 * trace.together);
            prop_assert!(trace.together.is_power_of_two());
            prop_assert!(trace.intervals.windows(2).all(|two| two[1].start_s - two[0].start_s == trace.interval_s));
            if trace.together == 1 {
                let told: f64 = trace.intervals.iter()
                    .filter_map(|one| Some(one.rate_s? * 60.0 * one.mix?.shares()[0]))
                    .sum();
                prop_assert!((told - reads).abs() < 1e-6 * reads.max(1.0), "{} {}", told, reads);
            }
        }
    }

    #[test]
    fn a_start_that_is_a_little_late_is_in_its_place() {
        let mut cells = MergedIntervals::new(1_000, 60, 100);
        for at in [1_000, 1_063, 1_118, 1_240] {
            cells.add(&seen(at, 6.0)).unwrap();
        }
        assert!(cells.add(&seen(1_270, 6.0)).is_err(), "between two");
        assert!(cells.add(&seen(1_243, 6.0)).is_err(), "its place is taken");
        let trace = cells.trace();
        assert_eq!((trace.intervals.len(), trace.missing), (5, 1));
    }
}
