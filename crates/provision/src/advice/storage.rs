//! The storage caches of shards in a plan: which sizes are compared, and how many pages are read from disk.

use std::collections::BTreeSet;

use imago_plan::provision::reuse::pages::{PageReads, Stored, USED};
use imago_plan::provision::reuse::{Curve, Start};
use imago_plan::provision::{Costs, Grid, Hits, Shape};

use super::{Origin, Settings};
use crate::trace::Trace;

/// Returns the sizes of storage caches that are compared: those that the settings give; else that of the probe, twice and four
/// times as much, if the collection exceeds it on the fewest shards; else as much as the documents and indexes take.
pub(super) fn sizes(costs: &Costs, origin: &Origin, settings: &Settings) -> Vec<Option<u64>> {
    if let Some(given) = &settings.storage_bytes {
        return given.iter().map(|bytes| (*bytes > 0).then_some(*bytes)).collect();
    }
    let data = costs.documents as f64 * (costs.document_bytes + costs.index_bytes);
    let fewest = settings.shards.iter().copied().min().unwrap_or(1).max(1);
    let member = data / f64::from(fewest);
    let exceeded = origin.storage_bytes.filter(|bytes| USED * (*bytes as f64) < member);
    match exceeded {
        Some(bytes) => [1, 2, 4].map(|times| Some(times * bytes)).to_vec(),
        None => vec![None],
    }
}

/// The hits of a cache, and the pages that shards read from disk for the keys that it does not answer.
pub struct Measured<'a> {
    curve: &'a Curve,
    /// Number of keys of each phase.
    keys: Vec<u64>,
    /// `None` if all shapes have their documents in memory.
    pages: Option<PageReads>,
}

impl<'a> Measured<'a> {
    /// Computes the pages for the shapes of a grid: `start` is the state of the cache and that of the storage caches when the job
    /// begins; `page_bytes` is the mean size of a page in a storage cache, in bytes.
    #[must_use]
    pub fn new(
        trace: &Trace,
        curve: &'a Curve,
        grid: &Grid,
        start: (Start, Start),
        (costs, page_bytes): (&Costs, f64),
    ) -> Self {
        let keys = trace.phases.iter().map(|phase| phase.len() as u64).collect();
        let pages = grid.has_storage_caches().then(|| {
            let shapes = grid.shapes();
            // A recorded job is predicted without a cache, too.
            let caches: BTreeSet<u64> =
                shapes.iter().map(|shape| shape.cache_bytes).chain([0]).collect();
            let members: BTreeSet<u32> =
                shapes.iter().map(|shape| shape.read_members()).chain([1]).collect();
            let stored = Stored {
                documents: costs.documents,
                document_bytes: costs.document_bytes,
                index_bytes: costs.index_bytes,
                page_bytes,
            };
            let reads = trace.stored_reads(costs.entry_bytes, costs.documents);
            let (caches, members) = (Vec::from_iter(caches), Vec::from_iter(members));
            PageReads::new(&reads, start, &caches, &members, stored)
        });
        Self { curve, keys, pages }
    }
}

impl Hits for Measured<'_> {
    fn hits(&self, phase: usize, capacity_bytes: u64) -> f64 {
        self.curve.hits(phase, capacity_bytes)
    }

    fn held_bytes(&self, capacity_bytes: u64) -> u64 {
        self.curve.held_bytes(capacity_bytes)
    }

    fn pages(&self, phase: usize, shape: Shape) -> f64 {
        let Some(pages) = &self.pages else { return 0.0 };
        let hits = if shape.cache_bytes > 0 { self.hits(phase, shape.cache_bytes) } else { 0.0 };
        let misses = (self.keys[phase] as f64 - hits).max(0.0);
        misses * pages.ratio(phase, shape)
    }
}
