//! Makes documents at the destination equal to the source's present state.
//!
//! Applying a change means reading the present document and writing it. So every application is idempotent, many
//! changes of one document cost one write, and the order of changes matters only within one `_id`: callers never run
//! two applications of one `_id` at once.
//!
//! Invariants:
//! - The read includes the change that caused it ([`ReadAt`]).
//! - A document arrives byte for byte, field order included, or it is an error. That requires three forms of write: a
//!   plain one; an update by a literal pipeline, for zero timestamps, which servers replace by the present time, and
//!   for `$` and dots in top-level names, which they interpret as operators; and a delete with an insert, if the `_id`
//!   stays equal but changes its type, or the shard key changes.
//! - A unique index at the destination orders documents of *different* `_id`s. If A cannot be written because B has
//!   its value, then at the source, where A has it now, B no longer does: the B at the destination is stale. It is
//!   deleted, provided that it still has the value, and its `_id` is added to `stale` before: the caller must mark it
//!   dirty again in any case.
//! - An `_id` that two documents of the source share is an error ([`duplicate_ids`]).

use std::collections::{HashMap, HashSet};

use bson::raw::{CStr, RawArrayBuf, RawBsonRef, cstr};
use bson::{Document, RawDocument, RawDocumentBuf, Timestamp, doc, rawdoc};
use futures_util::StreamExt;
use imago_plan::copy::pending_changes::Change;
use mongodb::raw_batch_cursor::RawBatchCursor;

use crate::bson::order::Id;
use crate::error::{Error, Result};
use crate::replicate::duplicate_ids;
use crate::replicate::pair::Pair;
use crate::server::collection::Handle;
use crate::server::endpoint::{answer, prefer_secondary};
use crate::server::write::{self, DUPLICATE_KEY, IMMUTABLE_FIELD, WriteError};

mod form;

use form::{form, needs_room, replacement};
pub(crate) use form::{has_array, inserts, key_of};

/// The state of the source that a read returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadAt {
    /// The newest state that a majority has, but none older than this cluster time of the source.
    After(Timestamp),
    /// The state at exactly this cluster time of the source.
    Exactly(Timestamp),
}

/// A document that may differ at the destination, and its known changes.
#[derive(Clone, Debug)]
pub struct Want {
    /// The `_id` of the document.
    pub id: Id,
    /// The combined kind of the document's changes, which decides the form of write; [`Change::Any`] if it is
    /// unknown.
    pub change: Change,
}

/// The number and size of the writes at the destination.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Number of documents that were written.
    pub written: u64,
    /// Number of documents that were deleted, or found absent already.
    pub deleted: u64,
    /// Size of the documents that were written, in bytes.
    pub bytes: u64,
}

/// Most `_id`s in the `$in` of one query or delete.
const IDS_MAX: usize = 500;
/// Most attempts to resolve one document's conflicts in a unique index.
const DISPLACE_ATTEMPTS_MAX: usize = 16;

/// Reads the documents that `wants` names from the source as of `at`, makes them equal at the destination, and
/// returns the number of writes. Appends to `stale` the `_id`s of documents that were removed because they conflicted
/// in a unique index.
///
/// # Errors
/// A transient error of either server may leave any part of `wants` applied; the call can be repeated safely.
/// [`Error::Document`] names a document that the destination refuses.
#[crate::boxed]
pub async fn apply(pair: &Pair, wants: &[Want], at: ReadAt, stale: &mut Vec<Id>) -> Result<Tally> {
    let mut tally = Tally::default();
    // Under a collation, a lookup of one `_id` may find another `_id`'s document, so each is looked up alone.
    let chunk = if pair.is_collated { 1 } else { IDS_MAX };
    for wants in wants.chunks(chunk) {
        let known: HashMap<&Id, Change> =
            wants.iter().map(|want| (&want.id, want.change)).collect();
        let mut absent: HashSet<&Id> = wants.iter().map(|want| &want.id).collect();
        let mut cursor = find(pair, wants.iter().map(|want| &want.id), at).await?;
        let mut has_found = false;
        while let Some(batch) = answer("reading changed documents", cursor.next()).await? {
            let batch = batch.map_err(|e| reading(pair, e))?;
            let found = documents(pair, &batch)?;
            let mut twice = Vec::new();
            for found in &found {
                let is_first = if pair.is_collated { !has_found } else { absent.remove(&found.id) };
                if !is_first {
                    twice.push(found.id.clone());
                }
                has_found = true;
            }
            if pair.is_collated && has_found {
                absent.clear();
            }
            duplicate_ids::refuse(pair, &twice).await?;
            let known = |id: &Id| known.get(id).copied().unwrap_or(Change::Any);
            put(pair, &found, known, stale).await?;
            tally.written += found.len() as u64;
            tally.bytes += found.iter().map(|found| found.raw.as_bytes().len() as u64).sum::<u64>();
        }
        if !absent.is_empty() {
            tally.deleted += absent.len() as u64;
            // A document that the filter excludes at the source may be a foreign one at the destination.
            let only = pair.filter.as_ref().filter(|_| pair.has_foreign);
            remove(&pair.destination, absent.into_iter(), only).await?;
        }
    }
    Ok(tally)
}

/// A document as a server returned it, with its `_id`.
#[derive(Debug)]
pub(crate) struct Found<'a> {
    pub id: Id,
    pub raw: &'a RawDocument,
}

fn documents<'a>(
    pair: &Pair,
    batch: &'a mongodb::raw_batch_cursor::RawBatch,
) -> Result<Vec<Found<'a>>> {
    let array = batch.doc_slices().map_err(|e| reading(pair, e))?;
    found_in(array, &pair.source)
}

/// Returns the documents of the batch `array`, with their `_id`s. Errors name the collection `from`.
pub(crate) fn found_in<'a>(array: &'a bson::RawArray, from: &Handle) -> Result<Vec<Found<'a>>> {
    let malformed = |cause: String| Error::malformed(format!("find on {}", from.ns), cause);
    let parse = |value: bson::error::Result<RawBsonRef<'a>>| {
        let value = value.map_err(|e| malformed(e.to_string()))?;
        let raw = value.as_document().ok_or_else(|| malformed("not a document".into()))?;
        let id = raw.get("_id").map_err(|e| malformed(e.to_string()))?;
        let id = id.ok_or_else(|| malformed("a document without _id".into()))?;
        Ok(Found { id: Id::from_raw(id), raw })
    };
    array.into_iter().map(parse).collect()
}

fn reading(pair: &Pair, error: mongodb::error::Error) -> Error {
    Error::server(format!("find on {}", pair.source.ns), error)
}

/// Returns the read concern of a command that reads the state `at`.
#[must_use]
pub fn read_concern(at: ReadAt) -> RawDocumentBuf {
    match at {
        ReadAt::After(Timestamp { time: 0, .. }) => rawdoc! {"level": "majority"},
        ReadAt::After(time) => rawdoc! {"level": "majority", "afterClusterTime": time},
        ReadAt::Exactly(time) => rawdoc! {"level": "snapshot", "atClusterTime": time},
    }
}

fn named<'a>(ids: impl Iterator<Item = &'a Id>) -> RawDocumentBuf {
    let mut array = RawArrayBuf::new();
    for id in ids {
        array.push(id.as_raw());
    }
    rawdoc! {"_id": {"$in": array}}
}

/// Returns the filter for documents that match `filter` and, if it is given, `only`.
fn narrowed(filter: RawDocumentBuf, only: Option<&Document>) -> Result<RawDocumentBuf> {
    let Some(only) = only else { return Ok(filter) };
    let only = RawDocumentBuf::try_from(only)
        .map_err(|e| Error::usage(format!("the filter cannot be encoded: {e}"), "simplify it"))?;
    let mut both = RawArrayBuf::new();
    both.push(filter);
    both.push(only);
    Ok(rawdoc! {"$and": both})
}

async fn find(pair: &Pair, ids: impl Iterator<Item = &Id>, at: ReadAt) -> Result<RawBatchCursor> {
    let filter = narrowed(named(ids), pair.filter.as_ref())?;
    let command = rawdoc! {
        "find": pair.source.ns.coll.as_str(),
        "filter": filter,
        "batchSize": i32::try_from(IDS_MAX).expect("a small number"),
        "readConcern": read_concern(at),
    };
    let db = pair.source.endpoint.client().database(&pair.source.ns.db);
    pair.source.endpoint.count_find();
    let found = db.run_raw_cursor_command(command).selection_criteria(prefer_secondary()).batch();
    answer("reading changed documents", found).await?.map_err(|error| reading(pair, error))
}

/// Writes the documents in `found` to the destination, over any versions of them that it has. `known` returns the
/// kind of an `_id`'s changes. Appends to `stale` as [`apply`] does.
pub(crate) async fn put(
    pair: &Pair,
    found: &[Found<'_>],
    known: impl Fn(&Id) -> Change,
    stale: &mut Vec<Id>,
) -> Result<()> {
    let to = &pair.destination;
    // A change describes only its own document, and not another document under an equal `_id`.
    let may_be_another = pair.has_foreign || pair.is_collated;
    let change_of = |found: &Found<'_>| match known(&found.id) {
        _ if may_be_another && !pair.shard_key.is_empty() => Change::Any,
        change => change,
    };
    let lost = found.iter().filter(|found| change_of(found) == Change::Any);
    let placed = placed(pair, lost).await?;
    // A document whose `_id` equals one of these only by the collation may be on another shard, where no insert of
    // these conflicts with it.
    let is_of_another = |id: &Id| !found.iter().any(|found| found.id == *id);
    let has_twins = placed.as_ref().is_some_and(|placed| placed.keys().any(is_of_another));
    let (mut inserts, mut replaces, mut moves) = (Vec::new(), Vec::new(), Vec::new());
    for found in found {
        if has_twins || needs_room(found.raw) {
            moves.push(found);
            continue;
        }
        let is_new = match (change_of(found), &placed) {
            (Change::Inserted, _) => true,
            (Change::Kept, _) | (Change::Any, None) => false,
            (Change::Any, Some(placed)) => match placed.get(&found.id) {
                None => true,
                Some(Place::At(key)) if *key == key_of(found.raw, &pair.shard_key) => false,
                Some(_) => {
                    moves.push(found);
                    continue;
                }
            },
        };
        if is_new { inserts.push(found) } else { replaces.push(found) }
    }
    if !moves.is_empty() {
        remove(to, moves.iter().map(|found| &found.id), None).await?;
        for found in moves {
            if form(found.raw).inserts { inserts.push(found) } else { replaces.push(found) }
        }
    }
    let mut refused: Vec<(&Found<'_>, WriteError)> = Vec::new();
    if !inserts.is_empty() {
        let raws: Vec<&RawDocument> = inserts.iter().map(|found| found.raw).collect();
        for error in write::insert(to, &raws).await?.errors {
            let found = inserts[error.index];
            if error.is_duplicate_id() {
                replaces.push(found)
            } else {
                refused.push((found, error))
            }
        }
    }
    if !replaces.is_empty() {
        let statements: Vec<_> = replaces.iter().map(|f| replacement(f, pair)).collect();
        for error in write::update(to, &statements).await?.errors {
            refused.push((replaces[error.index], error));
        }
    }
    for (found, error) in refused {
        resolve_refusal(pair, found, error, stale).await?;
    }
    Ok(())
}

/// Writes one document that the destination refused with `error`: because its `_id` changed its type, or because it
/// conflicts in a unique index.
async fn resolve_refusal(
    pair: &Pair,
    found: &Found<'_>,
    mut error: WriteError,
    stale: &mut Vec<Id>,
) -> Result<()> {
    let to = &pair.destination;
    for _ in 0..DISPLACE_ATTEMPTS_MAX {
        match error.code {
            IMMUTABLE_FIELD => remove(to, std::iter::once(&found.id), None).await?,
            DUPLICATE_KEY if error.is_duplicate_id() => {
                // Another shard holds the document: the statement was routed by the new key.
                remove(to, std::iter::once(&found.id), None).await?;
            }
            DUPLICATE_KEY => displace(pair, found, &error, stale).await?,
            _ => return Err(refusal(pair, found, &error)),
        }
        let statement = [replacement(found, pair)];
        match write::update(to, &statement).await?.errors.pop() {
            None => return Ok(()),
            Some(again) => error = again,
        }
    }
    Err(refusal(pair, found, &error))
}

/// Removes the documents at the destination that have the values of `found` in a unique index, and appends their
/// `_id`s to `stale`. `error` is the destination's refusal of `found`, which names the values.
async fn displace(
    pair: &Pair,
    found: &Found<'_>,
    error: &WriteError,
    stale: &mut Vec<Id>,
) -> Result<()> {
    let to = &pair.destination;
    let Some(values) = &error.key_value else { return Err(refusal(pair, found, error)) };
    let holds: Document = values
        .iter()
        .map(|(field, value)| (field.clone(), doc! {"$eq": value.clone()}.into()))
        .collect();
    let db = to.endpoint.client().database(&to.ns.db);
    let mut cursor = db
        .collection::<RawDocumentBuf>(&to.ns.coll)
        .find(holds.clone())
        .projection(doc! {"_id": 1})
        .await
        .map_err(|e| Error::server(format!("find on {}", to.ns), e))?;
    while let Some(holder) = cursor.next().await {
        let holder = holder.map_err(|e| Error::server(format!("find on {}", to.ns), e))?;
        let id = holder.get("_id").ok().flatten().map(Id::from_raw);
        let Some(id) = id.filter(|id| *id != found.id) else { continue };
        if pair.has_foreign && !exists(pair, &id).await? {
            return Err(refusal(pair, found, error));
        }
        let mut q = RawDocumentBuf::try_from(&holds)
            .map_err(|e| Error::malformed("a duplicate key's value", e))?;
        q.append(cstr!("_id"), rawdoc! {"$eq": id.as_raw()});
        stale.push(id);
        write::delete(to, &[rawdoc! {"q": q, "limit": 0}]).await?;
    }
    Ok(())
}

async fn exists(pair: &Pair, id: &Id) -> Result<bool> {
    let at = ReadAt::After(Timestamp { time: 0, increment: 0 });
    let mut cursor = find(pair, std::iter::once(id), at).await?;
    match cursor.next().await {
        Some(batch) => Ok(!documents(pair, &batch.map_err(|e| reading(pair, e))?)?.is_empty()),
        None => Ok(false),
    }
}

impl Pair {
    /// Returns the error for a document that the destination refused with `error`, with the remedy.
    pub(crate) fn refusal(&self, found: &Found<'_>, error: &WriteError) -> Error {
        refusal(self, found, error)
    }

    /// Returns the update statement that makes the destination hold exactly this document.
    pub(crate) fn replacement(&self, found: &Found<'_>) -> RawDocumentBuf {
        replacement(found, self)
    }
}

fn refusal(pair: &Pair, found: &Found<'_>, error: &WriteError) -> Error {
    let help = match error.code {
        DUPLICATE_KEY if pair.has_foreign => {
            "a document that was at the destination before holds this value of a unique index: \
             remove it or the index, then `imago job resume`"
        }
        DUPLICATE_KEY => {
            "the destination has a unique index that the source's documents do not satisfy: drop \
             it, then `imago job resume`"
        }
        121 => {
            "the destination's validator refuses it: give the user the privilege \
             bypassDocumentValidation, or relax the validator, then `imago job resume`"
        }
        _ => "mend the cause at the destination, then `imago job resume`",
    };
    Error::Document {
        ns: pair.destination.ns.to_string(),
        id: found.id.to_string(),
        cause: format!("{} (code {})", error.message, error.code),
        help: help.into(),
    }
}

/// Deletes at the destination the older versions of those documents in `found` that only an insert can write
/// unchanged.
pub(crate) async fn make_room(to: &Handle, found: &[&Found<'_>]) -> Result<()> {
    let only_new: Vec<&Id> =
        found.iter().filter(|found| needs_room(found.raw)).map(|found| &found.id).collect();
    if only_new.is_empty() { Ok(()) } else { remove(to, only_new.into_iter(), None).await }
}

/// Deletes the documents of these `_id`s on all shards; with `only`, just those that match that filter.
pub(crate) async fn remove(
    to: &Handle,
    ids: impl Iterator<Item = &Id>,
    only: Option<&Document>,
) -> Result<()> {
    let ids: Vec<&Id> = ids.collect();
    let mut statements = Vec::new();
    for group in ids.chunks(IDS_MAX) {
        let q = narrowed(named(group.iter().copied()), only)?;
        statements.push(rawdoc! {"q": q, "limit": 0});
    }
    let written = write::delete(to, &statements).await?;
    match written.errors.into_iter().next() {
        None => Ok(()),
        Some(error) => {
            let cause = format!("{} (code {})", error.message, error.code);
            Err(Error::malformed(format!("delete on {}", to.ns), cause))
        }
    }
}

/// The location of the documents of one `_id` at the destination.
enum Place {
    /// There is one document of this `_id`, with these shard key values.
    At(RawDocumentBuf),
    /// There are several documents of this `_id`.
    Many,
}

/// Returns the present shard key values of these documents at the destination, by `_id`; documents that it lacks are
/// left out. Returns `None` if the documents' `_id`s determine their shards.
async fn placed<'a>(
    pair: &Pair,
    found: impl Iterator<Item = &'a Found<'a>>,
) -> Result<Option<HashMap<Id, Place>>> {
    if pair.shard_key.is_empty() {
        return Ok(None);
    }
    let to = &pair.destination;
    let mut ids = RawArrayBuf::new();
    for found in found {
        ids.push(found.id.as_raw());
    }
    if ids.is_empty() {
        return Ok(Some(HashMap::new()));
    }
    let mut projection = rawdoc! {"_id": 1};
    for field in &pair.shard_key {
        let name: &CStr = field.as_str().try_into().expect("a field's name has no NUL");
        projection.append(name, 1);
    }
    let command = rawdoc! {
        "find": to.ns.coll.as_str(),
        "filter": {"_id": {"$in": ids}},
        "projection": projection,
    };
    let db = to.endpoint.client().database(&to.ns.db);
    let failed = |error| Error::server(format!("find on {}", to.ns), error);
    let mut cursor = db.run_raw_cursor_command(command).batch().await.map_err(failed)?;
    let mut places = HashMap::new();
    while let Some(batch) = cursor.next().await {
        let batch = batch.map_err(failed)?;
        for found in found_in(batch.doc_slices().map_err(failed)?, to)? {
            let key = key_of(found.raw, &pair.shard_key);
            let place = if places.contains_key(&found.id) { Place::Many } else { Place::At(key) };
            places.insert(found.id, place);
        }
    }
    Ok(Some(places))
}
