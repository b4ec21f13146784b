//! One side's documents in `_id` order, read ahead by a separate task.
//!
//! A range has bounds on the `_id` index (`min`, `max`), which span BSON types, as comparisons in a filter do not.
//! Sorting by the hinted index adds no cost at the server, and lets a router merge its shards. A reader that loses
//! its server opens a new cursor at the last `_id` that it delivered.
//!
//! The document whose `_id` is `MaxKey` is in no range: upper bounds are exclusive, and the server gives a range
//! without an upper bound the bound `MaxKey`. Every range therefore ends there, and that document is looked up
//! separately.

use std::ops::Range;
use std::time::Duration;

use bson::raw::cstr;
use bson::{Document, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp, rawdoc};
use futures_util::StreamExt;
use mongodb::raw_batch_cursor::{RawBatch, RawBatchCursor};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::read_retry::ReadRetry;
use crate::bson::order::{Id, id_element};
use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::replicate::apply::{ReadAt, read_concern};
use crate::server::collection::{Handle, Size};
use crate::server::endpoint::{ANSWER_MAX, answer_within, prefer_secondary};
use crate::server::timing::SEARCH_MAX;

/// Number of batches of each side that are read ahead of the comparison; a batch is at most 16 MB.
const AHEAD: usize = 1;
/// Target size of a batch, in bytes: large enough that round trips are rare, small enough that two workers that read
/// both sides ahead stay far below 300 MB.
pub(super) const BATCH_BYTES: u64 = 4 << 20;
const BATCH_DOCUMENTS_MAX: u64 = 20_000;

/// A range of `_id`s of one collection, and the way in which its documents are read.
#[derive(Clone, Debug)]
pub(super) struct Scan {
    pub handle: Handle,
    pub filter: Option<Document>,
    /// Earliest cluster time that the read may reflect.
    pub since: Timestamp,
    /// Lower bound of the `_id`s, inclusive; `None` if the range has no lower bound.
    pub min: Option<Id>,
    /// Upper bound of the `_id`s, exclusive; `None` stands for `MaxKey`.
    pub max: Option<Id>,
    /// True if only `_id`s are read, not whole documents.
    pub ids_only: bool,
    /// Maximum number of documents in a batch.
    pub batch_documents: u32,
}

/// Returns the number of documents that make a batch of about `batch_bytes` bytes, for a collection of the size `of`.
pub(super) fn batch_documents(of: Size, batch_bytes: u64) -> u32 {
    let mean = (of.bytes / of.documents.max(1)).max(1);
    let fitting = (batch_bytes / mean).clamp(16, BATCH_DOCUMENTS_MAX);
    u32::try_from(fitting).expect("clamped")
}

impl Scan {
    fn error(&self, error: mongodb::error::Error) -> Error {
        Error::server(self.doing(), error)
    }

    fn doing(&self) -> String {
        format!("find on {}", self.handle.ns)
    }

    /// Returns the longest time for which the server may search the documents of a batch before it replies.
    fn silence_max(&self) -> Duration {
        if self.filter.is_some() { SEARCH_MAX } else { ANSWER_MAX }
    }

    async fn open(&self, from: Option<&Id>) -> Result<RawBatchCursor> {
        let size = i32::try_from(self.batch_documents).expect("a small number");
        let mut command = rawdoc! {
            "find": self.handle.ns.coll.as_str(),
            "hint": {"_id": 1},
            "sort": {"_id": 1},
            "batchSize": size,
            "readConcern": read_concern(ReadAt::After(self.since)),
        };
        if let Some(filter) = &self.filter {
            command.append(cstr!("filter"), encoded(filter)?);
        }
        if let Some(min) = from.or(self.min.as_ref()) {
            command.append(cstr!("min"), rawdoc! {"_id": min.as_raw()});
        }
        let max = self.max.as_ref().map_or(RawBsonRef::MaxKey, Id::as_raw);
        command.append(cstr!("max"), rawdoc! {"_id": max});
        if self.ids_only {
            command.append(cstr!("projection"), rawdoc! {"_id": 1});
        }
        let db = self.handle.endpoint.client().database(&self.handle.ns.db);
        self.handle.endpoint.count_find();
        let opened = db
            .run_raw_cursor_command(command)
            .selection_criteria(prefer_secondary())
            .batch_size(self.batch_documents)
            .batch()
            .into_future();
        let opened = answer_within(self.silence_max(), &self.doing(), opened).await?;
        opened.map_err(|error| self.error(error))
    }
}

pub(super) fn encoded(filter: &Document) -> Result<RawDocumentBuf> {
    RawDocumentBuf::try_from(filter)
        .map_err(|e| Error::usage(format!("the filter cannot be encoded: {e}"), "simplify it"))
}

/// Documents in `_id` order, as ranges of the buffer that contains their bytes.
#[derive(Debug)]
pub(super) struct Chunk {
    buffer: ChunkBuffer,
    documents: Vec<Range<usize>>,
}

#[derive(Debug)]
enum ChunkBuffer {
    /// A batch of documents, as the server sent it.
    Batch(RawBatch),
    /// The bytes of documents that were copied from several batches.
    Joined(Vec<u8>),
}

impl Chunk {
    /// Returns an empty chunk with room for documents of `bytes` bytes in total.
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self { buffer: ChunkBuffer::Joined(Vec::with_capacity(bytes)), documents: Vec::new() }
    }

    /// Appends the document to a chunk that was created by [`Chunk::with_capacity`].
    pub(super) fn push(&mut self, document: &[u8]) {
        let ChunkBuffer::Joined(bytes) = &mut self.buffer else {
            panic!("a server's batch is as it is")
        };
        let start = bytes.len();
        bytes.extend_from_slice(document);
        self.documents.push(start..bytes.len());
    }

    pub(super) fn bytes(&self) -> usize {
        self.documents.last().map_or(0, |last| last.end)
    }

    pub(super) fn new(batch: RawBatch, ns: &Namespace) -> Result<Self> {
        let doing = || format!("find on {ns}");
        let malformed = |cause: String| Error::malformed(doing(), cause);
        let whole = batch.as_raw_document().as_bytes().as_ptr().addr();
        let mut documents = Vec::new();
        for value in batch.doc_slices().map_err(|error| Error::server(doing(), error))? {
            let value = value.map_err(|error| malformed(error.to_string()))?;
            let document =
                value.as_document().ok_or_else(|| malformed("not a document".into()))?.as_bytes();
            let start = document.as_ptr().addr() - whole;
            documents.push(start..start + document.len());
        }
        Ok(Self { buffer: ChunkBuffer::Batch(batch), documents })
    }

    pub(super) fn documents(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.documents.len()).map(|index| super::merge::Block::document(self, index))
    }

    /// Removes up to `count` documents from the front while their `_id` is `id`, and returns the number of removed
    /// documents.
    fn skip(&mut self, id: &Id, count: usize) -> usize {
        let is_same = |document: &[u8]| {
            id_element(document).is_some_and(|found| found.cmp_value(&id.as_element()).is_eq())
        };
        let skipped = self.documents().take(count).take_while(|document| is_same(document)).count();
        self.documents.drain(..skipped);
        skipped
    }

    fn last_id(&self) -> Result<Option<Id>> {
        self.documents().last().map(id_of).transpose()
    }
}

impl super::merge::Block for Chunk {
    fn len(&self) -> usize {
        self.documents.len()
    }

    fn document(&self, index: usize) -> &[u8] {
        let bytes = match &self.buffer {
            ChunkBuffer::Batch(batch) => batch.as_raw_document().as_bytes(),
            ChunkBuffer::Joined(bytes) => bytes,
        };
        &bytes[self.documents[index].clone()]
    }
}

/// Returns the `_id` of `document`, the bytes of a document that a server sent.
pub(super) fn id_of(document: &[u8]) -> Result<Id> {
    let malformed = |cause: String| Error::malformed("a document", cause);
    let raw = RawDocument::from_bytes(document).map_err(|error| malformed(error.to_string()))?;
    Id::of_document(raw).map_err(|error| malformed(error.to_string()))
}

/// The documents of one range, as chunks in `_id` order that a separate task reads.
pub(super) struct Feed {
    chunks: mpsc::Receiver<Result<Chunk>>,
    _reader: AbortOnDropHandle<()>,
}

impl Feed {
    pub(super) fn start(scan: Scan) -> Self {
        let (sender, chunks) = mpsc::channel(AHEAD);
        let reader = tokio::spawn(Box::pin(async move {
            if let Err(error) = pump(&scan, &sender).await {
                // If the receiver has ended, the error is of no interest to it.
                drop(sender.send(Err(error)).await);
            }
        }));
        Self { chunks, _reader: AbortOnDropHandle::new(reader) }
    }

    /// Returns the next chunk of the range, which is not empty, or `None` at the end of the range.
    pub(super) async fn next(&mut self) -> Result<Option<Chunk>> {
        self.chunks.recv().await.transpose()
    }
}

/// The `_id` of the last delivered document, and the number of delivered documents with that `_id`: a sharded
/// collection may have several.
struct Delivered {
    id: Id,
    times: usize,
}

async fn pump(scan: &Scan, sender: &mpsc::Sender<Result<Chunk>>) -> Result<()> {
    let mut delivered: Option<Delivered> = None;
    let mut read_retry = ReadRetry::default();
    let what = format!("read {}", scan.handle.ns);
    while let Err(error) = resume_read(scan, sender, &mut delivered, &mut read_retry).await {
        tokio::time::sleep(read_retry.after(&what, error)?).await;
    }
    Ok(())
}

async fn resume_read(
    scan: &Scan,
    sender: &mpsc::Sender<Result<Chunk>>,
    delivered: &mut Option<Delivered>,
    read_retry: &mut ReadRetry,
) -> Result<()> {
    let mut cursor = scan.open(delivered.as_ref().map(|last| &last.id)).await?;
    let mut to_skip = delivered.as_ref().map_or(0, |last| last.times);
    while let Some(batch) = answer_within(scan.silence_max(), &scan.doing(), cursor.next()).await? {
        let mut chunk = Chunk::new(batch.map_err(|error| scan.error(error))?, &scan.handle.ns)?;
        read_retry.renew();
        if let Some(last) = delivered.as_ref().filter(|_| to_skip > 0) {
            to_skip -= chunk.skip(&last.id, to_skip);
        }
        let Some(id) = chunk.last_id()? else { continue };
        // All further documents are after the `_id` at which the cursor was opened again.
        to_skip = 0;
        *delivered = Some(counted(id, &chunk, delivered.take()));
        if sender.send(Ok(chunk)).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

fn counted(id: Id, chunk: &Chunk, before: Option<Delivered>) -> Delivered {
    let is_last = |document: &&[u8]| {
        id_element(document).is_some_and(|found| found.cmp_value(&id.as_element()).is_eq())
    };
    let all: Vec<&[u8]> = chunk.documents().collect();
    let in_chunk = all.iter().rev().take_while(|document| is_last(document)).count();
    let in_earlier = match before {
        Some(last) if in_chunk == all.len() && last.id == id => last.times,
        _ => 0,
    };
    Delivered { id, times: in_chunk + in_earlier }
}
