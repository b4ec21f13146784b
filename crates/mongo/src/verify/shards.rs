//! Both sides of a range of `_id`s, read on their shards past the router, and merged here.
//!
//! A router would parse and merge documents that the comparison merges anyway. Each shard has its own feed, and the
//! feeds are merged in `_id` order.
//!
//! Invariants:
//! - Documents that a shard has without owning them (orphans) are left out.
//! - A read counts only if the chunk map of the source was the same before the first read and after the last
//!   ([`Shards::is_current`]); the chunks of the other side are not moved.

use std::cmp::Ordering;
use std::sync::Arc;

use bson::RawDocument;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::feed::{Chunk, Feed, Scan};
use super::merge::Block;
use crate::bson::order::id_element;
use crate::error::{Error, Result};
use crate::replicate::route::{ChunkMapSnapshot, Route};
use crate::server::endpoint::Endpoint;

/// Reader of one side's documents in a range of `_id`s, in `_id` order.
pub(super) enum Reader {
    /// Reads the documents from one server or router.
    One(Feed),
    /// Reads the documents from several shards, and merges them.
    Joined(Joined),
}

impl Reader {
    /// Returns the next chunk of documents, which is not empty, or `None` at the end of the range.
    pub(super) async fn next(&mut self) -> Result<Option<Chunk>> {
        match self {
            Reader::One(feed) => feed.next().await,
            Reader::Joined(joined) => joined.next().await,
        }
    }
}

/// The shards of a comparison, and the source's chunk map (the owner of each chunk) as it was read once.
pub(super) struct Shards {
    route: Arc<Route>,
    chunk_map: ChunkMapSnapshot,
}

impl Shards {
    pub(super) async fn read(route: &Arc<Route>) -> Result<Self> {
        Ok(Self { route: Arc::clone(route), chunk_map: route.read_chunk_map().await? })
    }

    /// Returns true if the source's chunk map is the same as when it was read.
    pub(super) async fn is_current(&self) -> Result<bool> {
        self.route.is_current(&self.chunk_map).await
    }

    pub(super) fn source(&self, scan: &Scan, chunk_bytes: u64) -> Reader {
        let since = scan.since.max(self.chunk_map.at);
        let scan = Scan { since, ..scan.clone() };
        let owners = Some(self.chunk_map.clone());
        Reader::Joined(Joined::start(&self.route.shards, &scan, owners, chunk_bytes))
    }

    pub(super) fn destination(&self, scan: &Scan, chunk_bytes: u64) -> Reader {
        let since = scan.since.max(self.chunk_map.at);
        let scan = Scan { since, ..scan.clone() };
        Reader::Joined(Joined::start(&self.route.shards, &scan, None, chunk_bytes))
    }
}

/// Minimum number of documents in a batch of one shard; smaller batches would be mostly round trips.
const BATCH_DOCUMENTS_MIN: u32 = 32;

/// Number of merged chunks of each side that are read ahead of the comparison.
const AHEAD: usize = 1;

/// The documents of all shards in a range of `_id`s, merged in `_id` order by a separate task. Merging and comparing
/// several ranges is more than one processor can do.
pub(super) struct Joined {
    chunks: mpsc::Receiver<Result<Option<Chunk>>>,
    has_ended: bool,
    _task: AbortOnDropHandle<()>,
}

impl Joined {
    /// Starts to read the range of `scan` on each of the shards. With `owners`, orphans are left out. A merged chunk
    /// has about `chunk_bytes` bytes.
    pub(super) fn start(
        shards: &[Endpoint],
        scan: &Scan,
        owners: Option<ChunkMapSnapshot>,
        chunk_bytes: u64,
    ) -> Self {
        let mut join = Join::new(shards, scan, owners, chunk_bytes);
        let (send, chunks) = mpsc::channel(AHEAD);
        let task = tokio::spawn(async move {
            loop {
                let joined = join.next().await;
                let is_last = !matches!(joined, Ok(Some(_)));
                if send.send(joined).await.is_err() || is_last {
                    return;
                }
            }
        });
        Self { chunks, has_ended: false, _task: AbortOnDropHandle::new(task) }
    }

    /// Returns the next chunk of merged documents, which is not empty, or `None` at the end of the range.
    pub(super) async fn next(&mut self) -> Result<Option<Chunk>> {
        if self.has_ended {
            return Ok(None);
        }
        // A task that stopped without an end message has not read everything, so its range must not count as
        // compared.
        let joined = self.chunks.recv().await.expect("a join tells its end before it ends");
        self.has_ended = !matches!(joined, Ok(Some(_)));
        joined
    }
}

struct Join {
    sides: Vec<Side>,
    /// Owners of the chunks if orphans are to be left out; `None` if all documents are returned.
    owners: Option<ChunkMapSnapshot>,
    /// Target size of a merged chunk of documents, in bytes.
    chunk_bytes: usize,
}

struct Side {
    feed: Feed,
    chunk: Option<Chunk>,
    at: usize,
    has_ended: bool,
}

impl Side {
    fn head(&self) -> Option<&[u8]> {
        let chunk = self.chunk.as_ref()?;
        (self.at < chunk.len()).then(|| chunk.document(self.at))
    }

    async fn fill(&mut self) -> Result<()> {
        while self.head().is_none() && !self.has_ended {
            self.chunk = self.feed.next().await?;
            self.at = 0;
            self.has_ended = self.chunk.is_none();
        }
        Ok(())
    }
}

impl Join {
    fn new(
        shards: &[Endpoint],
        scan: &Scan,
        owners: Option<ChunkMapSnapshot>,
        chunk_bytes: u64,
    ) -> Self {
        let count = u32::try_from(shards.len()).unwrap_or(u32::MAX);
        let sides = shards.iter().map(|shard| {
            let batch_documents = (scan.batch_documents / count).max(BATCH_DOCUMENTS_MIN);
            let mut scan = Scan { batch_documents, ..scan.clone() };
            scan.handle.endpoint = shard.clone();
            Side { feed: Feed::start(scan), chunk: None, at: 0, has_ended: false }
        });
        let chunk_bytes = usize::try_from(chunk_bytes).expect("a few megabytes");
        Self { sides: sides.collect(), owners, chunk_bytes }
    }

    async fn next(&mut self) -> Result<Option<Chunk>> {
        let room = self.chunk_bytes;
        let mut joined = Chunk::with_capacity(room);
        while joined.bytes() < room {
            for side in &mut self.sides {
                side.fill().await?;
            }
            let Some(first) = self.first()? else { break };
            let side = &mut self.sides[first];
            let document = side.head().expect("the first one has a head");
            if is_owned(self.owners.as_ref(), first, document)? {
                joined.push(document);
            }
            side.at += 1;
        }
        Ok((joined.len() > 0).then_some(joined))
    }

    /// Returns the index of the side (shard) whose next document sorts first, or `None` if all sides have ended.
    fn first(&self) -> Result<Option<usize>> {
        let malformed = || Error::malformed("reading a shard", "a document without _id");
        let mut first = None;
        for (index, side) in self.sides.iter().enumerate() {
            let Some(head) = side.head() else { continue };
            let id = id_element(head).ok_or_else(malformed)?;
            let is_before = |(_, least): &(usize, _)| id.cmp_value(least) == Ordering::Less;
            if first.as_ref().is_none_or(is_before) {
                first = Some((index, id));
            }
        }
        Ok(first.map(|(index, _)| index))
    }
}

fn is_owned(owners: Option<&ChunkMapSnapshot>, shard: usize, document: &[u8]) -> Result<bool> {
    let Some(owners) = owners else { return Ok(true) };
    let raw = RawDocument::from_bytes(document)
        .map_err(|error| Error::malformed("reading a shard", error))?;
    Ok(owners.is_owned(shard, raw))
}
