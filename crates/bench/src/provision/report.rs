//! The benchmark `chained-mr`: the evaluation of the paper, with predictions (Wong and others, §5; Figs. 3 and 4 in
//! form).

use std::path::{Path, PathBuf};

use imago_plan::provision::reuse::uniform::{Chain, Mapping};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::advised::{Advised, advised};
use super::cell::Cell;
use super::compare::{Accuracy, Compared, Predictor, compare};
use super::drawing;
use super::file::Common;
use super::findings::{Finding, findings};
use super::grid::{UNEVEN, cells, even};
use super::summary::Summary;
use super::{CACHE_MB, Setup, measure};
use crate::Header;
use crate::error::Result;

/// Size of a message with its `_id`, as BSON, in bytes: the unit in which cache sizes are computed.
const DOCUMENT_BYTES: u64 = 131;

/// Size of the benchmark.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Size {
    /// Number of documents, of 100 characters each.
    pub documents: u64,
    /// Number of keys with which a chain starts.
    pub keys: u64,
    /// Number of phases of the chain. The results of shorter chains are taken from its first phases.
    pub length: u32,
    /// Number of runs of each cell.
    pub runs: u32,
    /// Numbers of shards to measure.
    pub shards: Vec<u32>,
    /// Numbers of members of a shard to measure.
    pub members: Vec<u32>,
    /// Cache sizes to measure, in eighths of the size of all documents.
    pub cache_eighths: Vec<u32>,
    /// If true, the paper's uneven shards are measured too, with one member each.
    pub has_uneven: bool,
    /// Number of batches in flight.
    pub workers: u32,
    /// Number of keys in a batch.
    pub batch: u32,
    /// CPU limit of each member, in percent of one processor.
    pub cpu_percent: u16,
    /// Duration of the probe's measurement, in seconds.
    pub probe_s: u32,
    /// Seed of the first keys.
    pub seed: u64,
}

impl Size {
    /// Returns the cells of this size.
    #[must_use]
    pub fn cells(&self) -> Vec<Cell> {
        let data = self.documents * DOCUMENT_BYTES;
        let caches: Vec<u64> =
            self.cache_eighths.iter().map(|eighths| data * u64::from(*eighths) / 8).collect();
        let shards: Vec<Vec<u32>> = self.shards.iter().map(|shards| even(*shards)).collect();
        let mut all = cells(&shards, &self.members, &caches);
        if self.has_uneven {
            let uneven: Vec<Vec<u32>> = UNEVEN
                .iter()
                .filter(|shares| self.shards.iter().any(|shards| *shards as usize == shares.len()))
                .map(|shares| shares.to_vec())
                .collect();
            all.extend(cells(&uneven, &[1], &caches[..caches.len().min(1)]));
        }
        all
    }

    /// Returns the settings that all runs share.
    #[must_use]
    pub fn common(&self) -> Common {
        Common {
            documents: self.documents,
            keys: self.keys,
            length: self.length,
            batch: self.batch,
            workers: self.workers,
            job: "hash".into(),
            cpu_percent: Some(self.cpu_percent),
            cache_mb: Some(CACHE_MB),
            seed: self.seed,
        }
    }

    /// Returns the chain lengths to report: those of the paper that are less than [`Self::length`], and that length.
    fn lengths(&self) -> Vec<usize> {
        let all = [1, 2, 4, 8].into_iter().filter(|length| *length < self.length as usize);
        all.chain([self.length as usize]).collect()
    }
}

/// Result of the benchmark.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// Accuracy of the predictions, over shapes on which the probe was not made; null if there are none.
    pub accuracy: Option<Accuracy>,
    /// Advice for several deadlines, compared with the cheapest measured shape.
    pub advised: Vec<Advised>,
    /// Conclusions of the paper, checked against the measurements.
    pub findings: Vec<Finding>,
    /// Measured hits of chains whose cache has room for all documents, with the hits expected for uniform keys.
    pub uniform: Vec<Uniform>,
    /// Reason why CPU limits of the members were unavailable; null if the limits were in force.
    pub unshared: Option<String>,
    /// Measurements and predictions of all cells, for each reported length.
    pub cells: Vec<Compared>,
    /// Files of the pictures.
    pub pictures: Vec<PathBuf>,
}

/// Measured hits of a chain with a cache that keeps all entries, compared with a closed formula.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Uniform {
    /// The cell, in words.
    pub cell: String,
    /// Number of phases of the chain.
    pub length: usize,
    /// Measured number of hits, mean over the runs.
    pub hits: f64,
    /// Expected number of hits.
    pub expected: f64,
    /// Standard deviation of [`Self::expected`] over all possible contents of the documents.
    pub deviation: f64,
    /// True if the measured and the expected hits differ by at most three standard deviations.
    pub is_within: bool,
}

/// Returns the hits of cells whose cache has room for all documents.
fn uniform(size: &Size, compared: &[Compared]) -> Vec<Uniform> {
    let data = size.documents * DOCUMENT_BYTES;
    // A cache entry takes nearly twice the size of its document.
    let is_large = |cell: &&Compared| cell.measured.cell.cache_bytes >= 2 * data;
    let of = |cell: &Compared| {
        let (length, hits) = (cell.measured.length, cell.measured.hits);
        let chain = Chain {
            documents: size.documents as f64,
            first_keys: size.keys as f64,
            phases: length,
            mapping: Mapping::Function,
        };
        let expected = chain.expected().hits;
        let deviation = expected.deviation();
        Uniform {
            cell: cell.measured.cell.to_string(),
            length,
            hits,
            expected: expected.mean,
            deviation,
            is_within: (hits - expected.mean).abs() <= 3.0 * deviation,
        }
    };
    compared.iter().filter(is_large).map(of).collect()
}

/// Measures the runs that the file does not have yet, and compares all runs with their predictions.
///
/// # Errors
/// Fails as [`measure`] does; or if the trace or the probe cannot be read, or a picture cannot be drawn.
#[crate::boxed]
pub async fn run(
    size: Size,
    program: &Path,
    out: &Path,
    pictures: Option<&Path>,
    cancel: &CancellationToken,
    say: &(dyn Fn(String) + Sync),
) -> Result<Report> {
    let common = size.common();
    let (runs, probe_s) = (size.runs, size.probe_s);
    let setup = Setup { program, out, common: common.clone(), runs, probe_s, cancel, say };
    let measured = measure(&size.cells(), &setup).await?;
    let predictor = Predictor::read(&measured.trace, &measured.probe, &common)?;
    let (compared, accuracy) = compare(&measured, &predictor, &size.lengths())?;
    let summaries: Vec<Summary> = compared.iter().map(|cell| cell.measured.clone()).collect();
    let uniform = uniform(&size, &compared);
    Ok(Report {
        uniform,
        header: Header::with_servers("chained-mr", size, CACHE_MB),
        accuracy,
        advised: advised(&compared, &predictor),
        findings: findings(&summaries),
        unshared: measured.unshared,
        pictures: drawing::draw(&compared, pictures)?,
        cells: compared,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size() -> Size {
        Size {
            documents: 1_000_000,
            keys: 20_000,
            length: 8,
            runs: 3,
            shards: vec![1, 2, 4],
            members: vec![1, 2],
            cache_eighths: vec![0, 1, 2, 8, 16],
            has_uneven: true,
            workers: 4,
            batch: 512,
            cpu_percent: 15,
            probe_s: 60,
            seed: 1,
        }
    }

    #[test]
    fn the_cells_are_the_papers() {
        let cells = size().cells();
        assert_eq!(cells.len(), 30 + 2);
        assert_eq!(cells.iter().filter(|cell| !cell.is_even()).count(), 2);
        assert_eq!(cells[1].cache_bytes, 1_000_000 * DOCUMENT_BYTES / 8);
        assert_eq!(size().lengths(), [1, 2, 4, 8]);
        assert_eq!(Size { length: 3, ..size() }.lengths(), [1, 2, 3]);
    }
}
