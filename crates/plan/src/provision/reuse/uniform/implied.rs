//! Estimates the number of documents from observed hits.
//!
//! Expected hits decrease with the number of documents, so bisection finds the number at which the expectation equals
//! the observation, and those at which the observation is two standard deviations off.

use super::{Chain, Estimate, Mapping};

/// The number of documents that observed hits imply, with an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Implied {
    /// Number of documents at which the expected hits equal the observed ones.
    pub documents: f64,
    /// Number of documents at which the observed hits are two standard deviations fewer than expected.
    pub documents_min: f64,
    /// Number of documents at which the observed hits are two standard deviations more than expected.
    pub documents_max: f64,
}

/// Largest number of documents that is considered; a larger one is indistinguishable from infinity.
const DOCUMENTS_MAX: f64 = 1e18;
/// Limit on the number of steps of a bisection, and of the iteration for the first phase's keys.
const STEPS: usize = 100;

/// Estimates the number of documents from the hits and misses of a whole chain with an unlimited cache. Returns `None`
/// if there are no hits, fewer than two phases, or more hits than expected with any number of documents.
#[must_use]
pub fn implied(hits: u64, misses: u64, phases: usize, mapping: Mapping) -> Option<Implied> {
    if hits == 0 || phases < 2 {
        return None;
    }
    let (observed, keys) = (hits as f64, (hits + misses) as f64);
    let expected = |documents| hits_of(documents, keys, phases, mapping);
    let off = |documents, deviations: f64| {
        expected(documents).map(|hits| hits.mean + deviations * hits.deviation() - observed)
    };
    Some(Implied {
        documents: root(|documents| off(documents, 0.0))?,
        documents_min: root(|documents| off(documents, -2.0))?,
        documents_max: root(|documents| off(documents, 2.0))?,
    })
}

/// Returns the expected hits of a chain that reads `keys` keys in total from `documents` documents; `None` if that is
/// impossible with so few documents.
fn hits_of(documents: f64, keys: f64, phases: usize, mapping: Mapping) -> Option<Estimate> {
    let mut first_keys = keys / phases as f64;
    for _ in 0..STEPS {
        if first_keys > documents {
            return None;
        }
        let expected = Chain { documents, first_keys, phases, mapping }.expected();
        let ratio = keys / expected.keys.mean;
        if (ratio - 1.0).abs() < 1e-9 {
            return Some(expected.hits);
        }
        first_keys *= ratio;
    }
    None
}

/// Returns the number of documents at which a decreasing function is zero; an undefined value (`None`) counts as
/// positive. Returns `None` if there is no zero, or if the function is above zero at the upper end.
fn root(of: impl Fn(f64) -> Option<f64>) -> Option<f64> {
    let (mut low, mut high) = (3.0f64, DOCUMENTS_MAX);
    if of(high)? > 0.0 {
        return None;
    }
    for _ in 0..STEPS {
        let middle = (low * high).sqrt();
        match of(middle) {
            Some(value) if value <= 0.0 => high = middle,
            _ => low = middle,
        }
    }
    // Just above the zero, unless the value jumps there from undefined.
    of(high).filter(|value| value.abs() <= 0.5).map(|_| high)
}
