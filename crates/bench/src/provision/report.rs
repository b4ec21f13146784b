//! The benchmark `chained-mr`: the paper's evaluation, with predictions (Wong and others, §5; Figs. 3 and 4 in form).

use std::path::{Path, PathBuf};

use imago_plan::reuse::uniform::{Chain, Mapping};
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

/// Bytes of a message with its `_id`, as BSON: what caches are sized by.
const DOCUMENT_BYTES: u64 = 131;

/// Size of the benchmark.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Size {
    /// Documents of a hundred characters.
    pub documents: u64,
    /// Keys with which a chain begins.
    pub keys: u64,
    /// Phases of the chain; shorter ones are its beginnings.
    pub length: u32,
    /// Runs of each cell.
    pub runs: u32,
    /// Numbers of shards.
    pub shards: Vec<u32>,
    /// Numbers of members of each shard.
    pub members: Vec<u32>,
    /// Sizes of the cache, in eighths of the documents' bytes.
    pub cache_eighths: Vec<u32>,
    /// Also the paper's uneven shards, with one member each.
    pub has_uneven: bool,
    /// Batches in flight.
    pub workers: u32,
    /// Keys of a batch.
    pub batch: u32,
    /// Processors of each member, in percent of one.
    pub cpu_percent: u16,
    /// Seconds that the probe measures.
    pub probe_s: u32,
    /// The seed of the first keys.
    pub seed: u64,
}

impl Size {
    /// The cells of this size.
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

    /// What all runs have in common.
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

    /// The lengths of chains that are told: those of the paper, up to this one.
    fn lengths(&self) -> Vec<usize> {
        let all = [1, 2, 4, 8].into_iter().filter(|length| *length < self.length as usize);
        all.chain([self.length as usize]).collect()
    }
}

/// The measurements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// How good predictions are, of shapes that the probe did not look at.
    pub accuracy: Option<Accuracy>,
    /// The advice for some deadlines, beside the cheapest measured shape.
    pub advised: Vec<Advised>,
    /// What the paper concluded, beside what was measured.
    pub findings: Vec<Finding>,
    /// Hits of chains with a cache for all documents, beside what is expected of uniform keys.
    pub uniform: Vec<Uniform>,
    /// Why members were not held to their shares of the processors, if they were not.
    pub unshared: Option<String>,
    /// All cells.
    pub cells: Vec<Compared>,
    /// The files of the pictures.
    pub pictures: Vec<PathBuf>,
}

/// Hits with a cache that keeps everything, beside the closed form.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Uniform {
    /// The cell.
    pub cell: String,
    /// Phases of the chain.
    pub length: usize,
    /// Measured hits.
    pub hits: f64,
    /// Expected hits.
    pub expected: f64,
    /// Their standard deviation over all possible documents.
    pub deviation: f64,
    /// True if they are at most three standard deviations apart.
    pub is_within: bool,
}

/// The hits of cells whose cache has room for all documents.
fn uniform(size: &Size, compared: &[Compared]) -> Vec<Uniform> {
    let data = size.documents * DOCUMENT_BYTES;
    // An entry takes nearly twice its document.
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

/// Measures what the file does not have yet, and compares.
///
/// # Errors
/// As [`measure`].
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
