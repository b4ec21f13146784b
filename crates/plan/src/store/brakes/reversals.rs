//! Reversals: a change that undoes an earlier one has to save more, so that no two designs alternate for a small gain.
//!
//! Each change leaves a note of the operation that would reverse it: a merge of a split partition, wherever it was
//! split; a master that returns to a site that it left; the removal of an added copy. Such an operation has to save the
//! least gain times two to the power of the number of mutual reversals, itself included, up to [`TIMES_MAX`], and that
//! for a time that doubles as well.
//!
//! Invariant: with each reversal of a partition, the next one has to save more, or comes later.

use std::collections::BTreeMap;

use crate::store::decide::Hold;
use crate::store::layout::{Key, Layout, Operator, Site};

/// Largest saving that a reversal needs, in multiples of the least gain.
const TIMES_MAX: f64 = 8.0;
/// Longest time for which a reversal has to save more, and for which a change is remembered, in ms.
const HELD_MS_MAX: u64 = 3_600_000;
/// Most changes that are remembered.
const REMEMBERED_MAX: usize = 10_000;

/// Effect of an operator on the partition that begins at a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    Split,
    Merge,
    Copy(Site),
    Uncopy(Site),
    Master(Site),
}

/// A change that an operator would reverse.
#[derive(Clone, Copy, Debug)]
struct Note {
    /// Time of the change that would be reversed, in ms.
    at_ms: u64,
    /// How often this change and its reversal have reversed each other so far.
    times: u32,
}

/// For each reversal of a change, by partition start and effect, a note of that change. See the module's documentation.
#[derive(Clone, Debug)]
pub(super) struct Reversals<K>(BTreeMap<(K, Turn), Note>);

impl<K> Default for Reversals<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

/// Returns the start of the partition that an operator changes, the operator's effect, and the effect that reverses it.
fn turns<K: Key>(layout: &Layout<K>, operator: &Operator<K>) -> (K, Turn, Turn) {
    let (start, partition) = layout.of(operator.key());
    let (turn, back) = match operator {
        Operator::Split(_) => (Turn::Split, Turn::Merge),
        Operator::Merge(_) => (Turn::Merge, Turn::Split),
        Operator::AddReplica(_, site) => (Turn::Copy(*site), Turn::Uncopy(*site)),
        Operator::RemoveReplica(_, site) => (Turn::Uncopy(*site), Turn::Copy(*site)),
        Operator::Remaster(_, site) => (Turn::Master(*site), Turn::Master(partition.master)),
    };
    (start.clone(), turn, back)
}

impl<K: Key> Reversals<K> {
    fn note(&self, layout: &Layout<K>, operator: &Operator<K>) -> Option<&Note> {
        let (start, turn, _) = turns(layout, operator);
        self.0.get(&(start, turn))
    }

    /// Returns the age of the change that an operator would reverse, in ms; `None` if it would reverse none.
    pub fn age_ms(&self, layout: &Layout<K>, operator: &Operator<K>, now_ms: u64) -> Option<u64> {
        self.note(layout, operator).map(|note| now_ms.saturating_sub(note.at_ms))
    }

    /// Returns how much an operator has to save because it reverses a change; `None` if it reverses none.
    pub fn holds(
        &self,
        layout: &Layout<K>,
        operator: &Operator<K>,
        now_ms: u64,
        reversal_ms: u64,
    ) -> Option<Hold> {
        let note = self.note(layout, operator)?;
        let age_ms = now_ms.saturating_sub(note.at_ms);
        let doubled = note.times.saturating_add(1).min(16);
        let held_ms = reversal_ms.saturating_mul(1 << doubled).min(HELD_MS_MAX);
        let times = if age_ms < held_ms { f64::from(1_u32 << doubled).min(TIMES_MAX) } else { 1.0 };
        let before = match note.times {
            0 => String::new(),
            1 => ", which had taken back another".to_owned(),
            more => format!(", the last of {more} that took each other back"),
        };
        let why =
            format!("it takes back what was done {:.1} s ago{before}", age_ms as f64 / 1_000.0);
        Some(Hold::Reversal(times, why))
    }

    /// Records operators that were executed on a design, in their order.
    pub fn done(&mut self, before: &Layout<K>, operators: &[Operator<K>], now_ms: u64) {
        let mut layout = before.clone();
        for operator in operators {
            let (start, turn, back) = turns(&layout, operator);
            let taken_back = self.0.remove(&(start.clone(), turn));
            let times = taken_back.map_or(0, |note| note.times + 1);
            self.0.insert((start, back), Note { at_ms: now_ms, times });
            _ = layout.apply(operator);
        }
        self.0.retain(|_, note| now_ms.saturating_sub(note.at_ms) < HELD_MS_MAX);
        while self.0.len() > REMEMBERED_MAX {
            self.0.pop_first();
        }
    }
}
