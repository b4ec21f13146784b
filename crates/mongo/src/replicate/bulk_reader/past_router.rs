//! Copies a slice past the router, directly between shards.
//!
//! Invariant: a shard is read from a state at or after the chunk map's, documents that the map assigns to another
//! shard are skipped, and a slice is read again if chunks of the collection moved meanwhile.

use std::sync::atomic::Ordering;

use bson::{RawArray, RawDocument};
use futures_util::{StreamExt, TryStreamExt};

use super::{SliceCopy, batch};
use crate::bson::order::Id;
use crate::error::{Error, Result};
use crate::replicate::apply::{Found, found_in, inserts};
use crate::replicate::route::{ChunkMapSnapshot, Route};
use crate::server::endpoint::answer;
use crate::server::write::{self, WriteError};

impl SliceCopy<'_> {
    /// Copies the rest of the slice as [`SliceCopy::pass`] does, but reads from each shard, and writes to each shard.
    pub(super) async fn pass_shards(&mut self, route: &Route) -> Result<()> {
        let reading = |error| Error::server(format!("find on {}", self.pair.source.ns), error);
        let seen = route.read_chunk_map().await?;
        // A chunk that moved since the earlier pass may now be on a shard that the pass completed.
        if self.chunk_map.as_ref().is_some_and(|before| !before.is_same(&seen)) {
            self.shard_cursors.clear();
        }
        self.chunk_map = Some(seen.clone());
        self.shard_cursors.resize(route.shards.len(), (None, false));
        for from in 0..route.shards.len() {
            if self.shard_cursors[from].1 {
                continue;
            }
            let last_written = self.shard_cursors[from].0.clone();
            let after = self.horizon.max(seen.at);
            let mut size = self.batch_size();
            let reader = &route.readers[from];
            let failed = |error| reader.failed(error);
            let opened = self.open(reader.now(), last_written.as_ref(), after, size).await;
            let mut cursor = opened.map_err(failed)?;
            while let Some(batch) =
                answer("reading a slice", cursor.next()).await.map_err(failed)?
            {
                let batch = batch.map_err(reading).map_err(failed)?;
                let found = batch.doc_slices().map_err(reading)?;
                if !found.is_empty() {
                    self.write_shards(route, &seen, from, found).await?;
                }
                let last_written = self.shard_cursors[from].0.clone();
                if last_written.is_some() && batch::is_another(size, self.batch_size()) {
                    size = self.batch_size();
                    let opened = self.open(reader.now(), last_written.as_ref(), after, size).await;
                    cursor = opened.map_err(failed)?;
                }
            }
            self.shard_cursors[from].1 = true;
        }
        if route.is_current(&seen).await? {
            return Ok(());
        }
        // Documents that were written stay: the next pass finds them, and leaves them unchanged.
        self.shard_cursors.clear();
        let cause = "chunks of the collection were moved meanwhile".into();
        Err(Error::Transient { doing: format!("reading {}", self.pair.source.ns), cause })
    }

    async fn write_shards(
        &mut self,
        route: &Route,
        seen: &ChunkMapSnapshot,
        from: usize,
        batch: &RawArray,
    ) -> Result<()> {
        let found = found_in(batch, &self.pair.source)?;
        let parts = route.parts(seen, from, found.iter().map(|found| found.raw));
        let documents: usize = parts.iter().map(Vec::len).sum();
        let bytes =
            |part: &[&RawDocument]| part.iter().map(|raw| raw.as_bytes().len() as u64).sum();
        let total: u64 = parts.iter().map(|part| bytes(part)).sum();
        self.worker.control.take_paced(documents as u64, total).await?;
        // Checked after the wait, in which the lease may have been lost.
        self.lease_guard.check()?;
        let to_router = &self.pair.destination;
        let sends = parts.iter().enumerate().filter(|(_, part)| !part.is_empty());
        let sends = sends.map(|(to, part)| async move {
            let Some(shard) = route.shards.get(to) else {
                return Ok((Vec::new(), Vec::new(), part.clone()));
            };
            let _socket = route.send(from, to, bytes(part)).await;
            let (plain, odd): (Vec<&RawDocument>, Vec<&RawDocument>) =
                part.iter().partition(|raw| inserts(raw));
            let mut handle = to_router.clone();
            handle.endpoint = shard.clone();
            let refused = write::insert(&handle, &plain).await?.errors;
            Ok::<_, Error>((plain, refused, odd))
        });
        // While clients are spared, servers that may share a machine are written to one after another.
        let paced = self.worker.control.throttle().is_paced();
        let at_once = if paced { 1 } else { parts.len() };
        let sent = futures_util::stream::iter(sends.collect::<Vec<_>>()).buffered(at_once);
        for (plain, refused, odd) in sent.try_collect::<Vec<_>>().await? {
            for error in refused {
                self.resolve_error(plain[error.index], &error)?;
            }
            for raw in odd {
                let statement = [self.pair.replacement(&self.found(raw)?)];
                for error in write::update(&self.pair.destination, &statement).await?.errors {
                    self.resolve_error(raw, &error)?;
                }
            }
        }
        self.documents += documents as u64;
        self.bytes += total;
        self.worker.counters.documents.fetch_add(documents as u64, Ordering::Relaxed);
        self.worker.counters.bytes.fetch_add(total, Ordering::Relaxed);
        if !self.pair.is_collated && !self.definition.is_capped() {
            self.shard_cursors[from].0 = found.into_iter().next_back().map(|found| found.id);
        }
        Ok(())
    }

    fn found<'b>(&self, raw: &'b RawDocument) -> Result<Found<'b>> {
        let id = Id::of_document(raw)
            .map_err(|e| Error::malformed(format!("find on {}", self.pair.source.ns), e))?;
        Ok(Found { id, raw })
    }

    /// Handles the document `raw`, which the shadow collection refused with `error`: one that already exists is left
    /// unchanged, and one that a unique index refuses is left to the coordinator.
    fn resolve_error(&mut self, raw: &RawDocument, error: &WriteError) -> Result<()> {
        let found = self.found(raw)?;
        match error.code {
            write::DUPLICATE_KEY if error.is_duplicate_id() => Ok(()),
            write::DUPLICATE_KEY => self.leave(&found),
            _ => Err(self.pair.refusal(&found, error)),
        }
    }
}
