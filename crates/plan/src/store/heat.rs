//! Heat map: the use of each key range of the store over time, in a table of bounded size.
//!
//! A row is a key range, a column a time interval. Rows are narrow where keys are used often: a
//! range with more than its share of the recent use is split at the median of its most recently
//! used keys. If that needs room, the two adjacent rows with the least use over all retained
//! columns are merged. The past use of a row that is split is divided in proportion to the sampled
//! keys on either side, since no finer record exists.
//!
//! The caller passes times, in ms with an epoch of its choice. Time does not go backwards: an earlier time counts as
//! the latest one.
//!
//! Invariants:
//! - Rows cover all keys from the least one on. Rows and columns never exceed their bounds.
//! - Splits and merges of rows change no column's sum.

use std::collections::VecDeque;
use std::ops::Range;

mod marks;
#[cfg(test)]
mod tests;

pub use marks::differences;

/// Size limits of a heat map's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Duration of the time interval that one column covers, in ms.
    pub column_ms: u64,
    /// Limit on the number of columns, one for each time interval.
    pub columns_max: usize,
    /// Limit on the number of rows, one for each key range.
    pub rows_max: usize,
}

impl Default for Bounds {
    /// Returns bounds for one hour: 360 columns of 10 s, and 256 rows.
    fn default() -> Self {
        Self { column_ms: 10_000, columns_max: 360, rows_max: 256 }
    }
}

/// The use of one key range during one column's time interval. Counts may be fractions, because the use of a longer
/// range is divided among its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cell {
    /// Number of accesses to keys and key ranges that the transactions read and did not write.
    pub reads: f64,
    /// Number of accesses to keys that the transactions wrote.
    pub writes: f64,
    /// Number of accesses by transactions that conflicted with another transaction or with a design
    /// change.
    pub conflicts: f64,
    /// CPU time of all sites for these accesses, in µs.
    pub cpu_us: f64,
}

impl Cell {
    fn add(&mut self, other: Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.conflicts += other.conflicts;
        self.cpu_us += other.cpu_us;
    }

    /// Returns this use with all fields multiplied by `share`.
    #[must_use]
    pub fn times(self, share: f64) -> Self {
        Self {
            reads: self.reads * share,
            writes: self.writes * share,
            conflicts: self.conflicts * share,
            cpu_us: self.cpu_us * share,
        }
    }

    fn less(self, other: Self) -> Self {
        Self {
            reads: self.reads - other.reads,
            writes: self.writes - other.writes,
            conflicts: self.conflicts - other.conflicts,
            cpu_us: self.cpu_us - other.cpu_us,
        }
    }

    /// Returns the number of accesses, conflicts counted again, by which rows are split and merged.
    fn accesses(&self) -> f64 {
        self.reads + self.writes + self.conflicts
    }
}

/// Largest number of recently used keys that a row samples to find its split point. A row with fewer than [`KEPT_MIN`]
/// keys is not split.
const KEPT_MAX: usize = 48;
const KEPT_MIN: usize = 8;
/// A row is split if its recent use exceeds this multiple of the mean over `rows_max` rows.
const HOT: f64 = 2.0;
/// Factor by which the recent use of a row decays with each new column.
const LEFT_AFTER_COLUMN: f64 = 0.5;

#[derive(Clone, Debug)]
struct Row<K> {
    start: K,
    /// Sample of keys of this row that were used recently, unordered; `next` counts the replacements in it.
    kept: Vec<K>,
    next: usize,
    recent: f64,
}

impl<K> Row<K> {
    fn new(start: K) -> Self {
        Self { start, kept: Vec::new(), next: 0, recent: 0.0 }
    }

    fn keep(&mut self, key: K) {
        if self.kept.len() < KEPT_MAX {
            self.kept.push(key);
        } else {
            self.kept[self.next % KEPT_MAX] = key;
            self.next += 1;
        }
    }
}

#[derive(Clone, Debug)]
struct Column {
    /// Number of the column's time interval: its start time divided by the duration of a column.
    number: u64,
    /// Use of each row's key range during this column's interval, in the order of the rows.
    cells: Vec<Cell>,
}

/// A heat map of the use of keys of type `K` over time: a table of key ranges and time intervals.
#[derive(Clone, Debug)]
pub struct Heat<K> {
    bounds: Bounds,
    rows: Vec<Row<K>>,
    columns: VecDeque<Column>,
}

impl<K: Ord + Clone> Heat<K> {
    /// Creates a table with one row and one column and without use, for keys from `least` on.
    ///
    /// # Panics
    /// If the bounds allow no row or no column, or a column has no duration.
    #[must_use]
    pub fn new(bounds: Bounds, least: K) -> Self {
        let Bounds { column_ms, columns_max, rows_max } = bounds;
        assert!(column_ms > 0 && columns_max > 0 && rows_max > 0, "a table of nothing");
        let first = Column { number: 0, cells: vec![Cell::default()] };
        Self { bounds, rows: vec![Row::new(least)], columns: VecDeque::from([first]) }
    }

    /// Advances the table to the time `now_ms`: appends columns, drops those beyond the bound, and decays the recent
    /// use.
    pub fn pass(&mut self, now_ms: u64) {
        let now = now_ms / self.bounds.column_ms;
        let newest = self.newest();
        if now <= newest {
            return;
        }
        let first = now.saturating_sub(self.bounds.columns_max as u64 - 1).max(newest + 1);
        for number in first..=now {
            self.columns
                .push_back(Column { number, cells: vec![Cell::default(); self.rows.len()] });
        }
        let oldest = (now + 1).saturating_sub(self.bounds.columns_max as u64);
        self.columns.retain(|column| column.number >= oldest);
        let left = LEFT_AFTER_COLUMN.powf((now - newest) as f64);
        self.rows.iter_mut().for_each(|row| row.recent *= left);
    }

    fn newest(&self) -> u64 {
        self.columns.back().map_or(0, |column| column.number)
    }

    /// Returns the indexes of the rows that hold keys from `from` to `end`, exclusive; without an end, to the last
    /// row. The row of `from` is always included.
    #[must_use]
    pub fn rows_of(&self, from: &K, end: Option<&K>) -> Range<usize> {
        let first = self.rows.partition_point(|row| row.start <= *from).saturating_sub(1);
        let behind =
            end.map_or(self.rows.len(), |end| self.rows.partition_point(|row| row.start < *end));
        first..behind.max(first + 1)
    }

    /// Adds the use `cell` of the keys from `from` to `end`, exclusive, to the newest column, divided equally among
    /// the rows of these keys.
    pub fn add(&mut self, from: &K, end: Option<&K>, cell: Cell) {
        let rows = self.rows_of(from, end);
        let part = cell.times(1.0 / rows.len() as f64);
        let column = self.columns.back_mut().expect("there is a column");
        for row in rows.clone() {
            column.cells[row].add(part);
            self.rows[row].recent += part.accesses();
        }
        self.rows[rows.start].keep(from.clone());
    }

    /// Splits each row with much recent use once, those with the most first, and merges rows with little use if that
    /// needs room.
    pub fn reshape(&mut self) {
        let all: f64 = self.rows.iter().map(|row| row.recent).sum();
        let hot = HOT * all / self.bounds.rows_max as f64;
        let mut cuts: Vec<(f64, K)> = Vec::new();
        for row in self.rows.iter().filter(|row| row.recent > hot) {
            cuts.extend(cut(row).map(|at| (row.recent, at)));
        }
        cuts.sort_by(|(one, _), (two, _)| two.total_cmp(one));
        for (recent, at) in cuts {
            if self.rows.len() < self.bounds.rows_max || self.make_room(recent, &at) {
                self.cut(at);
            }
        }
    }

    /// Merges the two adjacent rows with the least use over all columns, if their recent use is below half of `recent`
    /// and neither is the row that holds `at`. Returns false if no two rows qualify.
    fn make_room(&mut self, recent: f64, at: &K) -> bool {
        let hot = self.rows_of(at, None).start;
        let mut used = vec![0.0; self.rows.len()];
        for (row, used) in used.iter_mut().enumerate() {
            *used = self.columns.iter().map(|column| column.cells[row].accesses()).sum::<f64>();
        }
        let pairs = (0..self.rows.len().saturating_sub(1))
            .filter(|&first| first != hot && first + 1 != hot);
        let recent_of = |first: usize| self.rows[first].recent + self.rows[first + 1].recent;
        let cold = pairs.filter(|&first| recent_of(first) < recent / 2.0);
        let coldest = cold.min_by(|one, two| {
            (used[*one] + used[*one + 1]).total_cmp(&(used[*two] + used[*two + 1]))
        });
        let Some(first) = coldest else { return false };
        self.merge(first);
        true
    }

    fn merge(&mut self, first: usize) {
        let second = self.rows.remove(first + 1);
        let row = &mut self.rows[first];
        row.recent += second.recent;
        second.kept.into_iter().for_each(|key| row.keep(key));
        for column in &mut self.columns {
            let cell = column.cells.remove(first + 1);
            column.cells[first].add(cell);
        }
    }

    fn cut(&mut self, at: K) {
        let number = self.rows_of(&at, None).start;
        let row = &mut self.rows[number];
        let (below, from): (Vec<K>, Vec<K>) = row.kept.drain(..).partition(|key| *key < at);
        let share = below.len() as f64 / (below.len() + from.len()).max(1) as f64;
        let recent = row.recent * share;
        let behind = Row { start: at, kept: from, next: 0, recent: row.recent - recent };
        (row.kept, row.next, row.recent) = (below, 0, recent);
        self.rows.insert(number + 1, behind);
        for column in &mut self.columns {
            let whole = column.cells[number];
            let low = whole.times(share);
            column.cells[number] = low;
            column.cells.insert(number + 1, whole.less(low));
        }
    }

    /// Returns the first key of each row's range, in key order.
    pub fn starts(&self) -> impl Iterator<Item = &K> {
        self.rows.iter().map(|row| &row.start)
    }

    /// Returns each column, the oldest first and without gaps: its start time in ms, and the use of each row in it.
    pub fn columns(&self) -> impl ExactSizeIterator<Item = (u64, &[Cell])> {
        self.columns.iter().map(|one| (one.number * self.bounds.column_ms, &one.cells[..]))
    }
}

/// Returns the key at which a row is split: the median of its sampled keys, or the next greater one if the median is
/// the row's start. `None` if the row cannot be split.
fn cut<K: Ord + Clone>(row: &Row<K>) -> Option<K> {
    if row.kept.len() < KEPT_MIN {
        return None;
    }
    let mut keys: Vec<&K> = row.kept.iter().collect();
    keys.sort_unstable();
    let median = keys[keys.len() / 2];
    let at = if *median > row.start {
        Some(median)
    } else {
        keys.into_iter().find(|key| **key > row.start)
    };
    at.cloned()
}

/// Merges adjacent ranges, those with the least combined use first, until at most `most` groups are left, and returns
/// the indexes in `uses` that each group holds. A display with fewer lines than ranges uses this.
#[must_use]
pub fn grouped(uses: &[f64], most: usize) -> Vec<Range<usize>> {
    let mut groups: Vec<(Range<usize>, f64)> =
        uses.iter().enumerate().map(|(n, of)| (n..n + 1, *of)).collect();
    while groups.len() > most.max(1) {
        let joined = |first: &usize| groups[*first].1 + groups[*first + 1].1;
        let least = (0..groups.len() - 1).min_by(|one, two| joined(one).total_cmp(&joined(two)));
        let first = least.expect("there are two");
        let (second, of) = groups.remove(first + 1);
        groups[first] = (groups[first].0.start..second.end, groups[first].1 + of);
    }
    groups.into_iter().map(|(rows, _)| rows).collect()
}
