//! The number of documents that observed hits imply.
//!
//! Expected hits fall as documents become more, so the number at which the expectation is what was observed is found by
//! bisection; so are those at which the observed lies two standard deviations off.

use super::{Chain, Estimate, Mapping};

/// The number of documents that explains what was observed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Implied {
    /// The number at which as many hits are expected as were observed.
    pub documents: f64,
    /// The number at which the hits observed are two standard deviations fewer than expected.
    pub documents_min: f64,
    /// The number at which they are two standard deviations more.
    pub documents_max: f64,
}

/// More documents than that are as good as without end.
const DOCUMENTS_MAX: f64 = 1e18;
/// Steps of a bisection, and of finding the first phase's keys.
const STEPS: usize = 100;

/// The number of documents that these hits and misses imply, counted over a whole chain with a cache that keeps
/// everything. Nothing if there are no hits, fewer than two phases, or more hits than any number of documents lets
/// expect.
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

/// The hits of a chain that reads so many keys in all. Nothing if so few documents cannot be read so often.
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

/// Where a function that falls is zero; where it has no value it counts as above zero. Nothing if it is nowhere, or not
/// below zero at the end.
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
    // Just above the root, unless the value leaps there from none.
    of(high).filter(|value| value.abs() <= 0.5).map(|_| high)
}
