//! Findings about the new shard key from the sampled documents.

use super::{Finding, obstacle, warning};
use crate::error::Result;
use crate::reshard::plan::chunk_weights::ChunkWeights;
use crate::reshard::plan::sample::Sample;
use crate::server::shard_key::{Key, text_of};

/// Minimum number of sampled documents with the same key value from which the value's size is estimated.
const ALIKE_MIN: u64 = 5;

/// The number and size of the chunks that a plan is to have.
#[derive(Clone, Copy, Debug)]
pub(in crate::reshard) struct Wanted {
    /// Number of chunks to make.
    pub(in crate::reshard) chunks: usize,
    /// Number of shards that may have chunks after the change.
    pub(in crate::reshard) open: usize,
    /// Maximum size of a chunk, in bytes.
    pub(in crate::reshard) chunk_bytes: u64,
}

/// Returns the findings about the new shard key `key` from the sample and the chunks' sizes.
pub(in crate::reshard) fn document_findings(
    sample: &Sample,
    weighed: &ChunkWeights,
    key: &Key,
    wanted: Wanted,
) -> Result<Vec<Finding>> {
    let mut found = Vec::new();
    found.extend(arrays(sample, key));
    found.extend(missing(sample, key));
    found.extend(jumbo(sample, weighed, wanted.chunk_bytes)?);
    found.extend(coarse(weighed, key, wanted));
    Ok(found)
}

fn arrays(sample: &Sample, key: &Key) -> Option<Finding> {
    (sample.arrays > 0).then(|| {
        obstacle(
            "array",
            format!(
                "{} of {} documents looked at hold an array in a field of {}, which no shard key \
                 may",
                sample.arrays,
                sample.documents.len(),
                key.text()
            ),
            "choose a field that never holds an array, or change those documents: find them with \
             {field: {$type: \"array\"}}",
        )
    })
}

#[expect(clippy::cast_precision_loss, reason = "a share to read")]
fn missing(sample: &Sample, key: &Key) -> Option<Finding> {
    (sample.missing > 0).then(|| {
        let share = 100.0 * sample.missing as f64 / sample.documents.len().max(1) as f64;
        warning(
            "missing_fields",
            format!(
                "{share:.2} % of the documents lack a field of {}; there they count as null and \
                 lie together",
                key.text()
            ),
            "nothing, if they are few; otherwise give them a value first, or choose another key",
        )
    })
}

fn jumbo(sample: &Sample, weighed: &ChunkWeights, chunk_bytes: u64) -> Result<Option<Finding>> {
    let Some((value, bytes, alike)) = &weighed.heaviest else { return Ok(None) };
    if *bytes <= chunk_bytes || (!sample.is_whole && *alike < ALIKE_MIN) {
        return Ok(None);
    }
    let about = if sample.is_whole { "" } else { "about " };
    Ok(Some(warning(
        "jumbo",
        format!(
            "{about}{bytes} bytes share the key value {}, more than the {chunk_bytes} of a chunk: \
             it can never be split",
            text_of(value)?
        ),
        "add a field to the key that tells them apart, such as _id as the last one",
    )))
}

fn coarse(weighed: &ChunkWeights, key: &Key, wanted: Wanted) -> Option<Finding> {
    let chunks = weighed.rows.len();
    let is_coarse = chunks < wanted.chunks.min(wanted.open) && weighed.total().documents > 0;
    is_coarse.then(|| {
        warning(
            "few_values",
            format!(
                "{} has too few values for a chunk on each of {} shards: number of chunks {chunks}",
                key.text(),
                wanted.open
            ),
            "add a field to the key that has more values, such as _id as the last one",
        )
    })
}
