//! Operators of a plan that can be executed concurrently (MorphoSys, §6).
//!
//! Operators of different partitions are independent. So a plan is executed in *waves*: the operators of one wave
//! concern different partitions, and each operator is in the first wave after all earlier operators that concern its
//! partitions.
//!
//! Invariants:
//! - The operators of a wave lead to the same design in any order.
//! - The waves, in order, lead to the same design as the plan.

use std::collections::BTreeMap;

use super::layout::{Key, Layout, Operator};

/// Returns the waves of a plan for the design `before`: sets of operators that can be executed concurrently, in order.
/// An operator that is impossible at its place is in a wave after all so far.
#[must_use]
pub fn waves<K: Key>(before: &Layout<K>, operators: &[Operator<K>]) -> Vec<Vec<Operator<K>>> {
    let mut layout = before.clone();
    // The first wave in which a partition may be changed next, by its start.
    let mut free: BTreeMap<K, usize> = BTreeMap::new();
    let mut waves: Vec<Vec<Operator<K>>> = Vec::new();
    for operator in operators {
        let start = layout.of(operator.key()).0.clone();
        let other = match operator {
            Operator::Split(key) => Some(key.clone()),
            Operator::Merge(_) => layout.next(&start).map(|(next, _)| next.clone()),
            _ => None,
        };
        let starts: Vec<K> = std::iter::once(start).chain(other).collect();
        let is_possible = layout.apply(operator).is_ok();
        let earliest = starts.iter().filter_map(|start| free.get(start)).max().copied();
        let wave = if is_possible { earliest.unwrap_or(0) } else { waves.len() };
        if wave == waves.len() {
            waves.push(Vec::new());
        }
        waves[wave].push(operator.clone());
        free.extend(starts.into_iter().map(|start| (start, wave + 1)));
    }
    waves
}
