//! Documents drawn from the whole collection: their new key, their shard, their size.
//!
//! The sample is read through the router, so it contains no orphans. Only keys and sizes are transferred. A
//! collection with no more documents than requested is read as a whole; then nothing is estimated.

use std::time::{Duration, Instant};

use bson::raw::{RawBsonRef, RawDocument};
use bson::{Document, RawDocumentBuf, doc};
use futures_util::TryStreamExt;
use imago_job::control::Control;

use crate::bson::order::Id;
use crate::error::{Error, Result};
use crate::server::collection::Handle;
use crate::server::endpoint::{answer_within, prefer_secondary};
use crate::server::shard::uniform;
use crate::server::timing::SEARCH_MAX;

use crate::reshard::plan::survey::{Owners, Survey};
use crate::server::shard_key::Key;

/// The properties of a sampled document that a plan uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::reshard) struct SampledDocument {
    /// Value of the new shard key for the document.
    pub(in crate::reshard) at: Id,
    /// Index of the shard that owns the document.
    pub(in crate::reshard) shard: usize,
    /// Size of the document as BSON, in bytes.
    pub(in crate::reshard) bytes: u64,
}

/// The documents drawn from a collection, and facts about the draw.
#[derive(Clone, Debug, Default)]
pub(in crate::reshard) struct Sample {
    pub(in crate::reshard) documents: Vec<SampledDocument>,
    /// True if the sample contains all documents of the collection.
    pub(in crate::reshard) is_whole: bool,
    /// Probability (between 0 and 1) with which each document was drawn; `None` if it is unknown.
    pub(in crate::reshard) rate: Option<f64>,
    /// Time in which the servers read every document. `None` if they did not, or if the batches were small: then most
    /// of the time was spent in round trips.
    pub(in crate::reshard) read_in: Option<Duration>,
    /// Number of sampled documents that lack a field of the new shard key.
    pub(in crate::reshard) missing: u64,
    /// Number of sampled documents with an array in a field of the new shard key.
    pub(in crate::reshard) arrays: u64,
}

/// Draws about `wanted` documents of the collection `of`, or all if it has no more. `old` and `new` are the shard
/// keys before and after the change.
///
/// # Errors
/// Fails if the cluster does not reply, or if the collection's chunks do not cover the key space.
pub(in crate::reshard) async fn draw(
    of: &Handle,
    survey: &Survey,
    (old, new): (&Key, &Key),
    wanted: u64,
    control: &Control,
) -> Result<Sample> {
    let projection = doc! {
        "n": new.expression(), "o": old.expression(), "s": {"$bsonSize": "$$ROOT"},
    };
    let mut sample = Sample::default();
    let drawn = draw_each(of, survey, projection, wanted, control, |document| {
        add(&mut sample, document, &survey.owners, old, new)
    });
    let drawn = drawn.await?;
    (sample.is_whole, sample.rate, sample.read_in) = (drawn.is_whole, drawn.rate, drawn.read_in);
    Ok(sample)
}

/// Facts about a draw; see [`Sample`].
pub(in crate::reshard) struct Drawn {
    pub(in crate::reshard) is_whole: bool,
    pub(in crate::reshard) rate: Option<f64>,
    pub(in crate::reshard) read_in: Option<Duration>,
}

/// Draws about `wanted` documents, or all if the collection has no more, and calls `each` with the `projection` of each.
///
/// # Errors
/// Fails if the cluster does not reply, or with the error of `each`.
pub(in crate::reshard) async fn draw_each(
    of: &Handle,
    survey: &Survey,
    projection: Document,
    wanted: u64,
    control: &Control,
    mut each: impl FnMut(&RawDocument) -> Result<()> + Send,
) -> Result<Drawn> {
    let stored = survey.stored.documents;
    let is_whole = stored <= wanted;
    let stage = uniform(stored, wanted);
    let rate = rate(&stage);
    let mut pipeline = if is_whole { Vec::new() } else { vec![stage] };
    pipeline.push(doc! {"$replaceWith": projection});
    let doing = format!("sampling {}", of.ns);
    let failed = |error| Error::server(doing.clone(), error);
    let documents = of.endpoint.client().database(&of.ns.db);
    let documents = documents.collection::<RawDocumentBuf>(&of.ns.coll);
    // The cost of a drawn document includes that of the documents skipped on the way to it.
    let mean = survey.stored.bytes / stored.max(1);
    let passed = rate.map_or(1, |rate| (1.0 / rate).ceil() as u64) * mean / PASSED_FASTER;
    let batch = control.throttle().batch_bytes(u64::MAX) / passed.max(1);
    let batch = u32::try_from(batch.clamp(1, BATCH_MAX)).expect("small");
    let open = async {
        let cursor = documents.aggregate(pipeline).selection_criteria(prefer_secondary());
        cursor.batch_size(batch).with_type::<RawDocumentBuf>().await.map_err(failed)
    };
    let asked = Instant::now();
    let mut cursor = answer_within(SEARCH_MAX, &doing, open).await??;
    let mut waited = asked.elapsed();
    let mut count: u64 = 0;
    loop {
        let asked = Instant::now();
        let next = async { cursor.try_next().await.map_err(failed) };
        let next = answer_within(SEARCH_MAX, &doing, next).await??;
        waited += asked.elapsed();
        let Some(document) = next else { break };
        each(&document)?;
        count += 1;
        if count.is_multiple_of(u64::from(batch)) {
            control.take_paced(0, u64::from(batch) * passed).await?;
        }
    }
    let read_in = (rate.is_some() && u64::from(batch) == BATCH_MAX).then_some(waited);
    Ok(Drawn { is_whole, rate, read_in })
}

/// Maximum number of documents in a batch; batches have this size without a pace.
const BATCH_MAX: u64 = 10_000;
/// Cost of copying a document, relative to the cost of inspecting or skipping it.
const PASSED_FASTER: u64 = 8;

/// Returns the probability with which the servers draw each document by this pipeline stage, or `None` if the stage
/// does not set one.
fn rate(stage: &Document) -> Option<f64> {
    stage.get_document("$match").and_then(|found| found.get_f64("$sampleRate")).ok()
}

fn add(
    sample: &mut Sample,
    document: &RawDocument,
    owners: &Owners,
    old: &Key,
    new: &Key,
) -> Result<()> {
    let at = new.value(part(document, "n")?)?;
    let (shard, bytes) = owner_and_size(document, owners, old)?;
    sample.missing += u64::from(at.is_missing);
    sample.arrays += u64::from(at.is_array);
    sample.documents.push(SampledDocument { at: at.at, shard, bytes });
    Ok(())
}

/// Returns the part `name` of the projection of a sampled document.
pub(in crate::reshard) fn part<'a>(
    document: &'a RawDocument,
    name: &str,
) -> Result<&'a RawDocument> {
    document.get_document(name).map_err(|cause| Error::malformed("a sampled document", cause))
}

/// Returns the index of the shard that owns a document, and its size in bytes, from its projection: `o`, the extract of
/// the present key, and `s`, the size.
pub(in crate::reshard) fn owner_and_size(
    document: &RawDocument,
    owners: &Owners,
    old: &Key,
) -> Result<(usize, u64)> {
    let malformed = |cause: String| Error::malformed("a sampled document", cause);
    let was = old.value(part(document, "o")?)?.at;
    let shard = owners.of(&was).ok_or_else(|| malformed(format!("no chunk holds {was}")))?;
    let bytes = match document.get("s").map_err(|cause| malformed(cause.to_string()))? {
        Some(RawBsonRef::Int32(bytes)) => u64::try_from(bytes).unwrap_or(0),
        Some(RawBsonRef::Int64(bytes)) => u64::try_from(bytes).unwrap_or(0),
        _ => return Err(malformed("it has no size".into())),
    };
    Ok((shard, bytes))
}
