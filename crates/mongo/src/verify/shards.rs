//! Both sides of a range read on their shards, past the router, and joined here.
//!
//! A router would parse and merge documents that the comparison merges anyway. Each shard is read by
//! a feed of its own, and the feeds are joined in `_id` order.
//!
//! Invariants:
//! - Documents that a shard holds without owning them (orphans) are left out.
//! - A read counts only if the map of the source's chunks was the same before the first read and
//!   after the last ([`Shards::is_still`]); the other side's chunks are not moved.

use std::cmp::Ordering;
use std::sync::Arc;

use bson::RawDocument;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::feed::{Chunk, Feed, Scan};
use super::merge::Block;
use crate::bson::order::id_element;
use crate::error::{Error, Result};
use crate::replicate::route::{Route, Seen};
use crate::server::endpoint::Endpoint;

/// One side of a range, in `_id` order.
pub(super) enum Reader {
    /// As one server sends it.
    One(Feed),
    /// From several shards.
    Joined(Joined),
}

impl Reader {
    /// The next chunk, not empty; nothing at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Chunk>> {
        match self {
            Reader::One(feed) => feed.next().await,
            Reader::Joined(joined) => joined.next().await,
        }
    }
}

/// The shards, and the source's map of a moment.
pub(super) struct Shards {
    route: Arc<Route>,
    seen: Seen,
}

impl Shards {
    pub(super) async fn look(route: &Arc<Route>) -> Result<Self> {
        Ok(Self { route: Arc::clone(route), seen: route.look().await? })
    }

    /// True if the source's chunks are still where they were.
    pub(super) async fn is_still(&self) -> Result<bool> {
        self.route.is_still(&self.seen).await
    }

    pub(super) fn source(&self, scan: &Scan, chunk_bytes: u64) -> Reader {
        let since = scan.since.max(self.seen.at);
        let scan = Scan { since, ..scan.clone() };
        let owners = Some(self.seen.clone());
        Reader::Joined(Joined::start(&self.route.shards, &scan, owners, chunk_bytes))
    }

    pub(super) fn destination(&self, scan: &Scan, chunk_bytes: u64) -> Reader {
        let since = scan.since.max(self.seen.at);
        let scan = Scan { since, ..scan.clone() };
        Reader::Joined(Joined::start(&self.route.shards, &scan, None, chunk_bytes))
    }
}

/// Smaller batches of a shard would be mostly round trips.
const BATCH_DOCUMENTS_MIN: u32 = 32;

/// Joined chunks that wait for the comparison, of each side.
const AHEAD: usize = 1;

/// The feeds of all shards in one order, joined by a task of its own: beside the comparison, which one
/// processor alone does not bear for several ranges.
pub(super) struct Joined {
    chunks: mpsc::Receiver<Result<Option<Chunk>>>,
    has_ended: bool,
    _task: AbortOnDropHandle<()>,
}

impl Joined {
    /// Begins to read the scan's range on each of the shards.
    pub(super) fn start(
        shards: &[Endpoint],
        scan: &Scan,
        owners: Option<Seen>,
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

    /// The next chunk, not empty; nothing at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Chunk>> {
        if self.has_ended {
            return Ok(None);
        }
        // A reader that stopped without its end message has not read everything, and must not pass for compared.
        let joined = self.chunks.recv().await.expect("a join tells its end before it ends");
        self.has_ended = !matches!(joined, Ok(Some(_)));
        joined
    }
}

struct Join {
    sides: Vec<Side>,
    /// The owners of chunks, where orphans are to be left out.
    owners: Option<Seen>,
    /// About how large a chunk becomes, in bytes.
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
    fn new(shards: &[Endpoint], scan: &Scan, owners: Option<Seen>, chunk_bytes: u64) -> Self {
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
        let mut joined = Chunk::roomy(room);
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

    /// The side whose head comes first.
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

fn is_owned(owners: Option<&Seen>, shard: usize, document: &[u8]) -> Result<bool> {
    let Some(owners) = owners else { return Ok(true) };
    let raw = RawDocument::from_bytes(document)
        .map_err(|error| Error::malformed("reading a shard", error))?;
    Ok(owners.is_owned(shard, raw))
}
