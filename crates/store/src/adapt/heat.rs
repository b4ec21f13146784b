//! Heat: reads, writes, conflicts and CPU time of key ranges over the last hour, estimated from the samples.
//!
//! Where one of n transactions is sampled, a sample stands for n. For each of these, every key and range of the
//! sample counts as one read or write, and as one conflict if the transaction met another one. The CPU time that a
//! site's thread used since the last round is divided among the samples of that site in proportion to the run times
//! of their procedures, and each sample's part equally among its keys and ranges. CPU time of a site without a sample
//! in the round is attributed to no range.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use imago_plan::store::heat::{Bounds, Cell, Heat, differences};
use imago_plan::store::layout::{Layout, Operator};
use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

use crate::key::Key;
use crate::record::Site;
use crate::sampler::{Sampled, Sampler};

/// Number of keys and ranges of one round above which only a part of its samples is recorded: the planner's time is bounded,
/// and transactions of hundreds of keys would use it up.
const ACCESSES_MAX: usize = 5_000;
/// Maximum number of design changes that the recorder retains.
const MARKS_MAX: usize = 1_000;

/// The heat of key ranges over time, as a table: rows are ranges of keys, columns are spans of time, the oldest
/// first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HeatReport {
    /// Start of each column, in ms since 1970 (UTC), converted with the wall clock at the time of the report.
    pub begins_ms: Vec<u64>,
    /// Time for which each column has counted, in seconds; the last column is still counting.
    pub seconds: Vec<f64>,
    /// The heat of each range, in key order; together the ranges cover all keys.
    pub ranges: Vec<HeatRange>,
    /// Design changes within the time that the columns cover, the oldest first.
    pub marks: Vec<HeatMark>,
    /// CPU time of the sites since recording began that is attributed to no range of keys, in ms.
    pub cpu_unattributed_ms: f64,
}

/// The heat of one range of keys. Each list has one value for each column of the report.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HeatRange {
    /// First key of the range; empty for the least key of all.
    pub start: String,
    /// First key after the range; `None` for the last range.
    pub end: Option<String>,
    /// Estimated number of keys and key ranges in the range that transactions read and did not write, for each
    /// column.
    pub reads: Vec<f64>,
    /// Estimated number of keys in the range that transactions wrote, for each column.
    pub writes: Vec<f64>,
    /// Estimated number of accesses to the range, for each column, by transactions that met another one: they waited
    /// for a lock, a row that they watched was changed, or they were returned because their partitions had moved.
    pub conflicts: Vec<f64>,
    /// Estimated CPU time that the sites used for the range, in ms, for each column.
    pub cpu_ms: Vec<f64>,
}

/// One change of the design, made by adaptation, by a command or for a transaction.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HeatMark {
    /// Time at which the planner observed the change, in ms since 1970 (UTC), converted with the wall clock at the
    /// time of the report.
    pub at_ms: u64,
    /// Kind of the change: `split`, `merge`, `add-replica`, `remove-replica` or `remaster`.
    pub operator: String,
    /// First key of the changed partition; for a split or a merge, the key between the two parts.
    pub key: String,
    /// Number of the site that got or lost a replica, or became the master; `None` for a split or a merge.
    pub site: Option<u16>,
}

/// Returns the number of keys and ranges that a sampled transaction declared.
fn accesses_of(sampled: &Sampled) -> usize {
    sampled.reads.len() + sampled.writes.len()
}

/// Adds the samples of each of the planner's rounds to the heat of key ranges.
pub(super) struct HeatRecorder {
    heat: Heat<Key>,
    column_ms: u64,
    /// Time of the last record, in ms since this process began to adapt.
    now_ms: u64,
    /// Time of the first record, in ms since this process began to adapt; `None` before it.
    began_ms: Option<u64>,
    /// Total CPU time of each site's thread as of the last record.
    cpu: HashMap<Site, Duration>,
    unattributed_us: f64,
    design: Option<Layout<Key>>,
    marks: VecDeque<(u64, Operator<Key>)>,
}

impl HeatRecorder {
    pub fn new() -> Self {
        Self::with_columns(Bounds::default().column_ms)
    }

    /// Creates a recorder whose columns cover `column_ms` each, with the default number of columns.
    pub fn with_columns(column_ms: u64) -> Self {
        let bounds = Bounds { column_ms: column_ms.max(1), ..Bounds::default() };
        Self {
            heat: Heat::new(bounds, Key::least()),
            column_ms: bounds.column_ms,
            now_ms: 0,
            began_ms: None,
            cpu: HashMap::new(),
            unattributed_us: 0.0,
            design: None,
            marks: VecDeque::new(),
        }
    }

    /// Adds the samples in `fetched`, the sites' CPU time since the last round, and the changes of the design since
    /// then. `now_ms` is the time since this process began to adapt.
    pub fn record(
        &mut self,
        now_ms: u64,
        sampler: &Sampler,
        fetched: &[Sampled],
        layout: &Layout<Key>,
    ) {
        self.heat.pass(now_ms);
        self.now_ms = self.now_ms.max(now_ms);
        self.began_ms.get_or_insert(now_ms);
        let mut run_us: HashMap<Site, f64> = HashMap::new();
        let accesses: usize = fetched.iter().map(accesses_of).sum();
        let one_of = accesses.div_ceil(ACCESSES_MAX).max(1);
        let recorded = || fetched.iter().step_by(one_of);
        for sampled in recorded() {
            *run_us.entry(sampled.site).or_default() += weight_us(sampled);
        }
        let mut used_us: HashMap<Site, f64> = HashMap::new();
        for site in (0..sampler.sites()).map(Site) {
            let cpu = sampler.work(site).0;
            // CPU time before the first round belongs to no sample.
            let before = self.cpu.insert(site, cpu).unwrap_or(cpu);
            let us = cpu.saturating_sub(before).as_secs_f64() * 1e6;
            if run_us.contains_key(&site) {
                used_us.insert(site, us);
            } else {
                self.unattributed_us += us;
            }
        }
        for sampled in recorded() {
            let share = weight_us(sampled) / run_us[&sampled.site].max(f64::MIN_POSITIVE);
            let cpu_us = used_us.get(&sampled.site).map_or(0.0, |us| us * share);
            self.add(sampled, true, cpu_us, one_of);
        }
        for sampled in sampler.fetch_returned() {
            self.add(&sampled, false, 0.0, 1);
        }
        self.heat.reshape();
        self.mark(layout);
    }

    /// Adds a sample to the cells of the keys that its transaction declared, for `one_of` samples of the round. A
    /// transaction that a site returned (`has_run` is false) counts only as conflicts: its accesses count where it runs.
    fn add(&mut self, sampled: &Sampled, has_run: bool, cpu_us: f64, one_of: usize) {
        let every = f64::from(sampled.every) * one_of as f64;
        let accesses = accesses_of(sampled).max(1) as f64;
        let counted = if has_run { every } else { 0.0 };
        let conflicts = if sampled.met_conflict { every } else { 0.0 };
        let cell = Cell { conflicts, cpu_us: cpu_us / accesses, ..Cell::default() };
        for read in &sampled.reads {
            self.heat.add(&read.start, read.end.as_ref(), Cell { reads: counted, ..cell });
        }
        for key in &sampled.writes {
            let end = key.successor();
            self.heat.add(key, Some(&end), Cell { writes: counted, ..cell });
        }
    }

    fn mark(&mut self, layout: &Layout<Key>) {
        if let Some(before) = &self.design {
            let found = differences(before, layout);
            self.marks.extend(found.into_iter().map(|operator| (self.now_ms, operator)));
        }
        if self.design.as_ref() != Some(layout) {
            self.design = Some(layout.clone());
        }
        let oldest_ms = self.heat.columns().next().map_or(0, |(begin_ms, _)| begin_ms);
        while self.marks.len() > MARKS_MAX
            || self.marks.front().is_some_and(|(at_ms, _)| *at_ms < oldest_ms)
        {
            self.marks.pop_front();
        }
    }

    /// Returns the recorded heat. `now_ms` is the time since this process began to adapt, at the wall-clock time
    /// `wall`.
    pub fn report(&self, now_ms: u64, wall: SystemTime) -> HeatReport {
        let wall_ms = wall.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let wall_of = |at_ms: u64| wall_ms.saturating_sub(now_ms.saturating_sub(at_ms));
        let began_ms = self.began_ms.unwrap_or(now_ms);
        let columns: Vec<(u64, &[Cell])> = self.heat.columns().collect();
        let seconds = columns.iter().map(|(begin_ms, _)| {
            let end_ms = (begin_ms + self.column_ms).min(self.now_ms);
            end_ms.saturating_sub(began_ms.max(*begin_ms)) as f64 / 1_000.0
        });
        let starts: Vec<&Key> = self.heat.starts().collect();
        let range = |(n, start): (usize, &&Key)| {
            let of = |value: fn(&Cell) -> f64| -> Vec<f64> {
                columns
                    .iter()
                    .map(|(_, cells)| (value(&cells[n]).max(0.0) * 10.0).round() / 10.0)
                    .collect()
            };
            HeatRange {
                start: start.to_string(),
                end: starts.get(n + 1).map(|end| end.to_string()),
                reads: of(|cell| cell.reads),
                writes: of(|cell| cell.writes),
                conflicts: of(|cell| cell.conflicts),
                cpu_ms: of(|cell| cell.cpu_us / 1_000.0),
            }
        };
        HeatReport {
            begins_ms: columns.iter().map(|(begin_ms, _)| wall_of(*begin_ms)).collect(),
            seconds: seconds.collect(),
            ranges: starts.iter().enumerate().map(range).collect(),
            marks: self
                .marks
                .iter()
                .map(|(at_ms, operator)| mark(wall_of(*at_ms), operator))
                .collect(),
            cpu_unattributed_ms: self.unattributed_us / 1_000.0,
        }
    }
}

/// Returns the weight by which a site's CPU time is divided among samples: the run time of all transactions that the
/// sample stands for, in µs.
fn weight_us(sampled: &Sampled) -> f64 {
    f64::from(sampled.every) * sampled.run_us.max(0.1)
}

fn mark(at_ms: u64, operator: &Operator<Key>) -> HeatMark {
    let (name, site) = match operator {
        Operator::Split(_) => ("split", None),
        Operator::Merge(_) => ("merge", None),
        Operator::AddReplica(_, site) => ("add-replica", Some(*site)),
        Operator::RemoveReplica(_, site) => ("remove-replica", Some(*site)),
        Operator::Remaster(_, site) => ("remaster", Some(*site)),
    };
    HeatMark { at_ms, operator: name.to_owned(), key: operator.key().to_string(), site }
}
