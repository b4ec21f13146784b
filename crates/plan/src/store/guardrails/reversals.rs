//! Reversals: a change that undoes an earlier one has to save more, so that the store does not alternate between two
//! designs for a small gain.
//!
//! For each change, the operation that would reverse it is recorded: a merge of a split partition, wherever it was
//! split; a master that returns to a site that it left; the removal of an added copy. Such an operation has to save the
//! least gain times two to the power of the number of mutual reversals, itself included, up to [`TIMES_MAX`], and that
//! for a time that doubles as well.
//!
//! Invariant: with each reversal of a partition, the next one has to save more, or comes later.

use std::collections::BTreeMap;

use crate::store::considered::Hold;
use crate::store::layout::{Key, Layout, Operator, Site};

/// Largest factor on the least gain that a reversal has to save.
const TIMES_MAX: f64 = 8.0;
/// Longest time after a change for which its reversal has to save more, and for which the change is remembered, in ms.
const REVERSAL_MS_MAX: u64 = 3_600_000;
/// Limit on the number of changes that are remembered.
const REMEMBERED_MAX: usize = 10_000;

/// Effect of an operator on the partition that begins at a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Effect {
    Split,
    Merge,
    Copy(Site),
    Uncopy(Site),
    Master(Site),
}

/// An earlier change that an operator would reverse.
#[derive(Clone, Copy, Debug)]
struct ReversibleChange {
    /// Time of the earlier change, in ms of the planner's clock.
    at_ms: u64,
    /// How often this change and its reversal have reversed each other so far.
    times: u32,
}

/// The changes that can be reversed: each by the start of its partition and the effect of an operator that would
/// reverse it.
#[derive(Clone, Debug)]
pub(super) struct Reversals<K>(BTreeMap<(K, Effect), ReversibleChange>);

impl<K> Default for Reversals<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

/// Returns the start of the partition that an operator changes, the operator's effect, and the effect that reverses it.
fn effects<K: Key>(layout: &Layout<K>, operator: &Operator<K>) -> (K, Effect, Effect) {
    let (start, partition) = layout.of(operator.key());
    let (effect, back) = match operator {
        Operator::Split(_) => (Effect::Split, Effect::Merge),
        Operator::Merge(_) => (Effect::Merge, Effect::Split),
        Operator::AddReplica(_, site) => (Effect::Copy(*site), Effect::Uncopy(*site)),
        Operator::RemoveReplica(_, site) => (Effect::Uncopy(*site), Effect::Copy(*site)),
        Operator::Remaster(_, site) => (Effect::Master(*site), Effect::Master(partition.master)),
    };
    (start.clone(), effect, back)
}

impl<K: Key> Reversals<K> {
    fn reversed_change(
        &self,
        layout: &Layout<K>,
        operator: &Operator<K>,
    ) -> Option<&ReversibleChange> {
        let (start, effect, _) = effects(layout, operator);
        self.0.get(&(start, effect))
    }

    /// Returns the age of the change that an operator would reverse on the design `layout`, in ms; `None` if it would
    /// reverse none.
    pub fn age_ms(&self, layout: &Layout<K>, operator: &Operator<K>, now_ms: u64) -> Option<u64> {
        self.reversed_change(layout, operator).map(|note| now_ms.saturating_sub(note.at_ms))
    }

    /// Returns how much an operator has to save because it reverses an earlier change; `None` if it reverses none.
    /// `reversal_ms` is the time in ms that is doubled for each mutual reversal.
    pub fn holds(
        &self,
        layout: &Layout<K>,
        operator: &Operator<K>,
        now_ms: u64,
        reversal_ms: u64,
    ) -> Option<Hold> {
        let note = self.reversed_change(layout, operator)?;
        let age_ms = now_ms.saturating_sub(note.at_ms);
        let doubled = note.times.saturating_add(1).min(16);
        let held_ms = reversal_ms.saturating_mul(1 << doubled).min(REVERSAL_MS_MAX);
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

    /// Records operators that were executed on the design `before`, in their order, as changes that can be reversed.
    pub fn done(&mut self, before: &Layout<K>, operators: &[Operator<K>], now_ms: u64) {
        let mut layout = before.clone();
        for operator in operators {
            let (start, effect, back) = effects(&layout, operator);
            let taken_back = self.0.remove(&(start.clone(), effect));
            let times = taken_back.map_or(0, |note| note.times + 1);
            self.0.insert((start, back), ReversibleChange { at_ms: now_ms, times });
            _ = layout.apply(operator);
        }
        self.0.retain(|_, note| now_ms.saturating_sub(note.at_ms) < REVERSAL_MS_MAX);
        while self.0.len() > REMEMBERED_MAX {
            self.0.pop_first();
        }
    }
}
