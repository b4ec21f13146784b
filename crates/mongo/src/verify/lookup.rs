//! Comparison of documents by their `_id`s, in any order.
//!
//! For a whole collection this is slower than a merge, but it assumes nothing about the order of `_id`s. Suspects are
//! compared again in this way, and so are samples, given `_id`s, and collections whose `_id`s a collation orders. The
//! source is read first and the destination after it, so that changes have time to arrive if a copy follows closely.
//!
//! With a filter, the source's documents are those that match it. A document that matches at the source is compared
//! with the destination's document of the same `_id`, if any. A document that does not match at the source is extra
//! only if the destination's document matches.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hasher};

use bson::raw::{RawArrayBuf, cstr};
use bson::{Document, RawDocumentBuf, Timestamp, rawdoc};
use futures_util::StreamExt;
use futures_util::future::try_join;
use imago_job::control::Control;
use mongodb::options::SelectionCriteria;
use mongodb::raw_batch_cursor::RawBatchCursor;

use super::Difference;
use super::feed::{Chunk, Scan, encoded, id_of};
use super::read_retry::retry_transient;
use crate::bson::order::Id;
use crate::error::{Error, Result};
use crate::replicate::apply::{ReadAt, read_concern};
use crate::server::collection::Handle;
use crate::server::endpoint::{answer, prefer_secondary, primary};

/// Maximum number and total size (in bytes) of the `_id`s in one `$in`.
const GROUP_IDS_MAX: usize = 500;
const GROUP_BYTES_MAX: usize = 4 << 20;

/// The replica set members that serve a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Members {
    /// A secondary if there is one, else the primary.
    Any,
    /// The primary only.
    Primary,
}

impl Members {
    fn criteria(self) -> SelectionCriteria {
        match self {
            Members::Any => prefer_secondary(),
            Members::Primary => primary(),
        }
    }
}

/// The result for one document that differs between the sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub id: Id,
    pub kind: Difference,
    /// Digest of the source's document, 0 if it was not read; two digests show whether the document changed in
    /// between.
    pub source_digest: u64,
}

/// Result of comparing documents by their `_id`s: those that differ, and the bytes of the source's documents that
/// were read.
#[derive(Debug, Default)]
pub(super) struct Examined {
    pub differing: Vec<Verdict>,
    pub source_bytes: u64,
}

/// Both sides of a comparison, each with the earliest cluster time that a read may reflect.
#[derive(Debug)]
pub(super) struct Lookup {
    pub source: Handle,
    pub destination: Handle,
    pub filter: Option<Document>,
    pub source_since: Timestamp,
    pub destination_since: Timestamp,
    /// True if the source is read as of exactly `source_since`; false if it is read at or after that time.
    pub is_exact: bool,
}

struct Query<'a> {
    handle: &'a Handle,
    at: ReadAt,
    filter: Option<&'a Document>,
    ids_only: bool,
    members: Members,
}

/// Number of documents with one `_id` at the destination, and whether the last of them is equal to the source's.
#[derive(Default)]
struct Found {
    copies: usize,
    is_equal: bool,
}

impl Lookup {
    pub(super) async fn new(
        source: &Handle,
        destination: &Handle,
        filter: Option<&Document>,
    ) -> Result<Self> {
        let (source_since, destination_since) = try_join(since(source), since(destination)).await?;
        Ok(Self {
            source: source.clone(),
            destination: destination.clone(),
            filter: filter.cloned(),
            source_since,
            destination_since,
            is_exact: false,
        })
    }

    /// Returns a lookup that reads the source as of exactly the cluster time `at`, and the destination in its current
    /// state. Within one cluster the destination needs no time of its own, since primaries return all that a majority
    /// has acknowledged.
    pub(super) async fn as_of(
        at: Timestamp,
        source: &Handle,
        destination: &Handle,
        filter: Option<&Document>,
    ) -> Result<Self> {
        let is_one = source.endpoint.identity() == destination.endpoint.identity();
        Ok(Self {
            source: source.clone(),
            destination: destination.clone(),
            filter: filter.cloned(),
            source_since: at,
            destination_since: if is_one { at } else { since(destination).await? },
            is_exact: true,
        })
    }

    fn source_at(&self) -> ReadAt {
        let at = self.source_since;
        if self.is_exact { ReadAt::Exactly(at) } else { ReadAt::After(at) }
    }

    fn destination_at(&self) -> ReadAt {
        ReadAt::After(self.destination_since)
    }

    pub(super) fn source_scan(&self, min: Option<Id>, max: Option<Id>, batch: u32) -> Scan {
        Scan {
            handle: self.source.clone(),
            filter: self.filter.clone(),
            since: self.source_since,
            min,
            max,
            ids_only: false,
            batch_documents: batch,
        }
    }

    pub(super) fn destination_scan(&self, min: Option<Id>, max: Option<Id>, batch: u32) -> Scan {
        Scan {
            handle: self.destination.clone(),
            since: self.destination_since,
            ..self.source_scan(min, max, batch)
        }
    }

    /// Compares the documents with these `ids` on both sides, and returns those that differ.
    pub(super) async fn examine(
        &self,
        ids: &[Id],
        members: Members,
        control: &Control,
    ) -> Result<Examined> {
        let mut all = Examined::default();
        for group in groups(ids, |id| id) {
            let what = format!("compare documents of {}", self.source.ns);
            let examined =
                retry_transient(&what, control, || self.examine_group(group, members)).await?;
            all.differing.extend(examined.differing);
            all.source_bytes += examined.source_bytes;
        }
        Ok(all)
    }

    async fn examine_group(&self, ids: &[Id], members: Members) -> Result<Examined> {
        let wanted: HashSet<&Id> = ids.iter().collect();
        let mut at_source: HashMap<Id, usize> = HashMap::new();
        let mut verdicts: HashMap<Id, Verdict> = HashMap::new();
        let mut source_bytes = 0;
        let query = Query {
            handle: &self.source,
            at: self.source_at(),
            filter: self.filter.as_ref(),
            ids_only: false,
            members,
        };
        let mut cursor = find(&query, ids.iter()).await?;
        while let Some(chunk) = next_chunk(&mut cursor, &query).await? {
            let mut documents = documents(&chunk)?;
            documents.retain(|(id, _)| wanted.contains(id));
            for (id, document) in &documents {
                *at_source.entry(id.clone()).or_default() += 1;
                source_bytes += document.len() as u64;
            }
            let differing = self.against_destination(&documents, members).await?;
            verdicts.extend(differing.into_iter().map(|verdict| (verdict.id.clone(), verdict)));
        }
        for (id, _) in at_source.iter().filter(|(_, copies)| **copies > 1) {
            verdicts.insert(id.clone(), verdict(id, Difference::Duplicate, 0));
        }
        let absent: Vec<&Id> =
            wanted.into_iter().filter(|id| !at_source.contains_key(*id)).collect();
        verdicts.extend(self.extra(&absent, members).await?);
        Ok(Examined { differing: verdicts.into_values().collect(), source_bytes })
    }

    /// Returns a verdict for each of the `_id`s in `absent`, which the source does not have, that the destination
    /// has.
    async fn extra(
        &self,
        absent: &[&Id],
        members: Members,
    ) -> Result<impl Iterator<Item = (Id, Verdict)>> {
        let query = Query {
            handle: &self.destination,
            at: self.destination_at(),
            filter: self.filter.as_ref(),
            ids_only: true,
            members,
        };
        let held = held(&query, absent).await?;
        Ok(held.into_iter().map(|(id, copies)| {
            let kind = if copies > 1 { Difference::Duplicate } else { Difference::Extra };
            (id.clone(), verdict(&id, kind, 0))
        }))
    }

    /// Compares `documents`, which were read from the source, with those of the destination. Returns the documents
    /// that differ.
    pub(super) async fn against_destination(
        &self,
        documents: &[(Id, &[u8])],
        members: Members,
    ) -> Result<Vec<Verdict>> {
        let query = Query {
            handle: &self.destination,
            at: self.destination_at(),
            filter: None,
            ids_only: false,
            members,
        };
        let mut found: HashMap<&Id, (&[u8], Found)> =
            documents.iter().map(|(id, bytes)| (id, (*bytes, Found::default()))).collect();
        for group in groups(documents, |(id, _)| id) {
            let mut cursor = find(&query, group.iter().map(|(id, _)| id)).await?;
            while let Some(chunk) = next_chunk(&mut cursor, &query).await? {
                for copy in chunk.documents() {
                    // With a collation, the reply may contain a document with another `_id`.
                    let Some((original, found)) = found.get_mut(&id_of(copy)?) else { continue };
                    found.copies += 1;
                    found.is_equal = copy == *original;
                }
            }
        }
        let differing = found.into_iter().filter_map(|(id, (bytes, found))| {
            let kind = match found {
                Found { copies: 0, .. } => Difference::Missing,
                Found { copies: 1, is_equal: true } => return None,
                Found { copies: 1, .. } => Difference::Different,
                Found { .. } => Difference::Duplicate,
            };
            Some(verdict(id, kind, digest(bytes)))
        });
        Ok(differing.collect())
    }

    /// Returns a digest of each document among `ids` that the source's primary has; absent documents have no entry.
    pub(super) async fn source_states(
        &self,
        ids: &[Id],
        control: &Control,
    ) -> Result<HashMap<Id, u64>> {
        let query = Query {
            handle: &self.source,
            at: self.source_at(),
            filter: self.filter.as_ref(),
            ids_only: false,
            members: Members::Primary,
        };
        states(&query, ids, control).await
    }

    /// Returns a digest of each document among `ids` that the destination's primary has; absent documents have no
    /// entry.
    pub(super) async fn destination_states(
        &self,
        ids: &[Id],
        control: &Control,
    ) -> Result<HashMap<Id, u64>> {
        let query = Query {
            handle: &self.destination,
            at: self.destination_at(),
            filter: None,
            ids_only: false,
            members: Members::Primary,
        };
        states(&query, ids, control).await
    }

    /// Returns those of `ids`, which the destination has, that the source does not have.
    pub(super) async fn absent_at_source(&self, ids: &[Id], members: Members) -> Result<Vec<Id>> {
        let query = Query {
            handle: &self.source,
            at: self.source_at(),
            filter: self.filter.as_ref(),
            ids_only: true,
            members,
        };
        let mut absent = Vec::new();
        for group in groups(ids, |id| id) {
            let wanted: Vec<&Id> = group.iter().collect();
            let held = held(&query, &wanted).await?;
            absent.extend(group.iter().filter(|id| !held.contains_key(*id)).cloned());
        }
        Ok(absent)
    }
}

/// Returns the present cluster time of `side`, as the earliest time that reads of that side may reflect. A majority
/// that is out of reach is detected here, before any read that may legitimately take long.
async fn since(side: &Handle) -> Result<Timestamp> {
    let now = side.endpoint.cluster_time().await?;
    let command = rawdoc! {
        "find": side.ns.coll.as_str(), "projection": {"_id": 1}, "limit": 1, "singleBatch": true,
        "readConcern": read_concern(ReadAt::After(now)),
    };
    side.endpoint.count_find();
    side.endpoint.run_raw(&side.ns.db, "find", command).await?;
    Ok(now)
}

/// Returns a digest of each document among `ids` that the query finds. If an `_id` has several documents, the digest
/// is that of any of them; the comparison reports the duplicate.
async fn states(query: &Query<'_>, ids: &[Id], control: &Control) -> Result<HashMap<Id, u64>> {
    let what = format!("read documents of {}", query.handle.ns);
    let read = async || {
        let mut states = HashMap::new();
        let mut cursor = find(query, ids.iter()).await?;
        while let Some(chunk) = next_chunk(&mut cursor, query).await? {
            for document in chunk.documents() {
                states.insert(id_of(document)?, digest(document));
            }
        }
        Ok(states)
    };
    retry_transient(&what, control, read).await
}

/// Returns, for each of `ids`, the number of documents that the query finds; an `_id` without a document has no
/// entry.
async fn held(query: &Query<'_>, ids: &[&Id]) -> Result<HashMap<Id, usize>> {
    let mut held: HashMap<Id, usize> = HashMap::new();
    if ids.is_empty() {
        return Ok(held);
    }
    let wanted: HashSet<&Id> = ids.iter().copied().collect();
    let mut cursor = find(query, ids.iter().copied()).await?;
    while let Some(chunk) = next_chunk(&mut cursor, query).await? {
        for document in chunk.documents() {
            let id = id_of(document)?;
            if wanted.contains(&id) {
                *held.entry(id).or_default() += 1;
            }
        }
    }
    Ok(held)
}

fn verdict(id: &Id, kind: Difference, source_digest: u64) -> Verdict {
    Verdict { id: id.clone(), kind, source_digest }
}

fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

pub(super) fn documents(chunk: &Chunk) -> Result<Vec<(Id, &[u8])>> {
    chunk.documents().map(|document| Ok((id_of(document)?, document))).collect()
}

/// Splits `items` into groups, in order, such that the `_id`s of each group fit in one command.
fn groups<T>(items: &[T], id: impl Fn(&T) -> &Id) -> Vec<&[T]> {
    let mut groups = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (index, item) in items.iter().enumerate() {
        let more = id(item).memory_bytes();
        if index > start && (index - start == GROUP_IDS_MAX || bytes + more > GROUP_BYTES_MAX) {
            groups.push(&items[start..index]);
            (start, bytes) = (index, 0);
        }
        bytes += more;
    }
    if start < items.len() {
        groups.push(&items[start..]);
    }
    groups
}

async fn find(query: &Query<'_>, ids: impl Iterator<Item = &Id>) -> Result<RawBatchCursor> {
    let mut array = RawArrayBuf::new();
    for id in ids {
        array.push(id.as_raw());
    }
    let mut filter = rawdoc! {"_id": {"$in": array}};
    if let Some(only) = query.filter {
        filter = both(filter, encoded(only)?);
    }
    let mut command = rawdoc! {
        "find": query.handle.ns.coll.as_str(),
        "filter": filter,
        "batchSize": i32::try_from(GROUP_IDS_MAX).expect("a small number"),
        "readConcern": read_concern(query.at),
    };
    if query.ids_only {
        command.append(cstr!("projection"), rawdoc! {"_id": 1});
    }
    let db = query.handle.endpoint.client().database(&query.handle.ns.db);
    query.handle.endpoint.count_find();
    let opened = db
        .run_raw_cursor_command(command)
        .selection_criteria(query.members.criteria())
        .batch()
        .into_future();
    answer(&doing(query), opened).await?.map_err(|error| failed(query, error))
}

fn both(one: RawDocumentBuf, other: RawDocumentBuf) -> RawDocumentBuf {
    let mut terms = RawArrayBuf::new();
    terms.push(one);
    terms.push(other);
    rawdoc! {"$and": terms}
}

async fn next_chunk(cursor: &mut RawBatchCursor, query: &Query<'_>) -> Result<Option<Chunk>> {
    match answer(&doing(query), cursor.next()).await? {
        None => Ok(None),
        Some(batch) => {
            let batch = batch.map_err(|error| failed(query, error))?;
            Chunk::new(batch, &query.handle.ns).map(Some)
        }
    }
}

fn doing(query: &Query<'_>) -> String {
    format!("find on {}", query.handle.ns)
}

fn failed(query: &Query<'_>, error: mongodb::error::Error) -> Error {
    Error::server(doing(query), error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::RawBsonRef;

    #[test]
    fn groups_are_bounded_by_count_and_by_bytes() {
        let small: Vec<Id> = (0..1_201).map(|n| Id::from_raw(RawBsonRef::Int32(n))).collect();
        let lens: Vec<usize> = groups(&small, |id| id).iter().map(|group| group.len()).collect();
        assert_eq!(lens, [500, 500, 201]);
        let text = "x".repeat(3 << 20);
        let large: Vec<Id> = (0..3).map(|_| Id::from_raw(RawBsonRef::String(&text))).collect();
        assert_eq!(groups(&large, |id| id).len(), 3);
        assert!(groups(&[] as &[Id], |id| id).is_empty());
    }
}
