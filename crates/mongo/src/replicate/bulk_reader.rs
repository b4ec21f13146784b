//! Copies slices: the bulk of a collection is read once and written as it was read.
//!
//! The bytes of a batch go unchanged from the source's reply into the destination's insert. A slice alternates between
//! reads and writes; several slices at once keep both clusters busy without a queue between them.
//!
//! Invariants:
//! - A slice is read from a state that includes the horizon, which was read after the slice was leased.
//! - A document that the destination already has is left unchanged: an earlier attempt wrote it, and each change since
//!   then is among the dirty keys that wait for this slice (the model in `plan` checks this). If the destination held
//!   documents before the job (`has_foreign`), the document is replaced instead.
//! - A document that a unique index refuses is left to the applier (a "leftover"): only a reader of all changes can
//!   determine which of the two documents is stale.
//! - A slice is read in the order of its `_id`s, across all shards if a router reads them. After an error, reading
//!   resumes after the last document that was written, and everything before that is written too.
//! - An `_id` that two documents of the source share is an error ([`duplicate_ids`]): in `_id` order, the two are
//!   adjacent.
//! - No write is sent later than `timing::LEASED_WRITE_WITHIN` after the lease was last renewed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bson::raw::{RawBsonRef, cstr};
use bson::{RawArray, RawDocument, RawDocumentBuf, Timestamp, rawdoc};
use futures_util::StreamExt;
use imago_job::control::Control;
use imago_job::retry::retry;
use mongodb::raw_batch_cursor::RawBatchCursor;
use tokio::sync::Notify;

use crate::bson::order::Id;
use crate::error::{Error, Result};
use crate::replicate::apply::{Found, ReadAt, found_in, inserts, make_room, read_concern};
use crate::replicate::duplicate_ids;
use crate::replicate::pair::Pair;
use crate::replicate::route::{ChunkMapSnapshot, Route};
use crate::server::collection::{Definition, number};
use crate::server::endpoint::{Endpoint, answer, prefer_secondary};
use crate::server::timing::PATIENCE;
use crate::server::write::{self, WriteError};
use crate::state::leases::{self, Lease, Leases, Slice};

mod batch;
mod lease_renewal;
mod past_router;
mod shape;
mod slice_slot;

use lease_renewal::LeaseGuard;
use shape::Shape;

/// Counters of one job that all workers of this process share.
#[derive(Debug, Default)]
pub struct Counters {
    /// Number of documents that this process has copied, in slices that are in progress or done.
    pub documents: AtomicU64,
    /// Size, in bytes, of the documents that this process has copied.
    pub bytes: AtomicU64,
    /// Notified when a worker of this process has copied a slice.
    pub slice_done: Notify,
    /// Number of slices that this process is copying now.
    at_work: AtomicUsize,
}

impl Counters {
    /// Returns the number of documents that this process has copied so far, and their size in bytes.
    #[must_use]
    pub fn copied(&self) -> (u64, u64) {
        (self.documents.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// A worker, which copies slices of the bulk; cloned for each slice that a process copies at a time.
#[derive(Clone)]
pub struct Worker {
    /// The source and destination of each collection, by its number in the job.
    pub pairs: Arc<Vec<Pair>>,
    /// The definition of each collection at the source, by its number in the job.
    pub definitions: Arc<Vec<Definition>>,
    /// The leases of the job's slices.
    pub leases: Leases,
    /// The control by which the job is paused, cancelled and throttled.
    pub control: Control,
    /// The counters, shared with the other workers of this process.
    pub counters: Arc<Counters>,
    /// The route by which documents are copied from shard to shard without the router; `None` unless a job reshards.
    pub route: Option<Arc<Route>>,
}

/// Interval at which a worker without a slice checks for one whose lease has expired.
const EXPIRED_CHECK_EVERY: Duration = Duration::from_secs(1);

impl Worker {
    /// Copies slices until all slices of the job are copied.
    ///
    /// # Errors
    /// Fails if a cluster stays unavailable for longer than [`PATIENCE`], a document cannot be written, or the job is
    /// stopped.
    #[crate::boxed]
    pub async fn run(&self) -> Result<()> {
        let mut last = None;
        loop {
            self.control.checkpoint().await?;
            let _slot = self.wait_for_slot().await?;
            let leased =
                retry("lease a slice", &PATIENCE, &self.control, Error::is_transient, |_| {
                    self.leases.lease(last.as_ref(), self.pairs.len())
                });
            match leased.await? {
                Some(lease) => {
                    last = Some(lease.slice.clone());
                    self.copy(lease).await?;
                }
                None if self.all_copied().await? => return Ok(()),
                None => self.control.sleep(EXPIRED_CHECK_EVERY).await?,
            }
        }
    }

    async fn all_copied(&self) -> Result<bool> {
        let states =
            retry("look at the slices", &PATIENCE, &self.control, Error::is_transient, |_| {
                self.leases.states_after(None)
            });
        let copied = imago_plan::copy::pending_changes::SliceState::Copied;
        let mut mine = states.await?.into_iter().filter(|seen| seen.ns < self.pairs.len());
        Ok(mine.all(|seen| seen.state == copied))
    }

    async fn copy(&self, lease: Lease) -> Result<()> {
        let lease_guard = LeaseGuard::new(self.leases.clone(), lease.clone());
        let horizon =
            retry("read the horizon", &PATIENCE, &self.control, Error::is_transient, |_| {
                self.leases.horizon()
            });
        let mut copy = SliceCopy {
            worker: self,
            pair: &self.pairs[lease.slice.ns],
            definition: &self.definitions[lease.slice.ns],
            slice: &lease.slice,
            lease_guard: &lease_guard,
            horizon: horizon.await?,
            last_written: None,
            shard_cursors: Vec::new(),
            chunk_map: None,
            documents: 0,
            bytes: 0,
            leftovers: Vec::new(),
        };
        if let Err(error) = copy.run().await {
            return if lease_guard.is_lost() { Ok(()) } else { Err(error) };
        }
        let (documents, bytes, leftovers) = (copy.documents, copy.bytes, copy.leftovers);
        retry("mark a slice as copied", &PATIENCE, &self.control, Error::is_transient, |_| {
            self.leases.copied(&lease, documents, bytes, &leftovers)
        })
        .await?;
        self.counters.slice_done.notify_one();
        Ok(())
    }
}

/// The copy of one slice by one worker.
struct SliceCopy<'a> {
    worker: &'a Worker,
    pair: &'a Pair,
    definition: &'a Definition,
    slice: &'a Slice,
    lease_guard: &'a LeaseGuard,
    /// The source's cluster time that every read of the slice includes.
    horizon: Timestamp,
    /// The last `_id` that was written, after which reading resumes when a server was lost; `None` before the first
    /// write, and for a collection without an order.
    last_written: Option<Id>,
    /// For each shard that is read past the router, by its index in the route: the last `_id` that was written
    /// (`None` before the first write), and true once the shard is read to its end.
    shard_cursors: Vec<(Option<Id>, bool)>,
    /// The chunk map of the source by which the last pass read the shards; `None` before the first pass.
    chunk_map: Option<ChunkMapSnapshot>,
    /// Number of documents of the slice that were copied so far.
    documents: u64,
    /// Size, in bytes, of the documents of the slice that were copied so far.
    bytes: u64,
    /// The `_id`s of documents that a unique index refused, which are left to the applier.
    leftovers: Vec<Id>,
}

impl SliceCopy<'_> {
    async fn run(&mut self) -> Result<()> {
        let control = self.worker.control.clone();
        let mut attempts = 0;
        let began = Instant::now();
        loop {
            let before = self.documents;
            let passed = match self.worker.route.clone() {
                Some(route) => self.pass_shards(&route).await,
                None => self.pass().await,
            };
            let Err(error) = passed else {
                // Without an upper bound, a server's range ends before `MaxKey`, which may be an `_id` too.
                if self.slice.max.is_none() {
                    self.leftovers.push(Id::from_raw(RawBsonRef::MaxKey));
                }
                return Ok(());
            };
            attempts = if self.documents > before { 1 } else { attempts + 1 };
            let tired = attempts >= PATIENCE.attempts_max
                || (self.documents == before && began.elapsed() > PATIENCE.elapsed_max);
            if !error.is_transient() || tired || self.lease_guard.is_lost() {
                return Err(error);
            }
            tracing::debug!(%error, attempts, "a slice is read again from where it stopped");
            let pause_ms = PATIENCE.backoff.pause_ms(attempts, rand::random());
            control.sleep(Duration::from_millis(pause_ms)).await?;
        }
    }

    /// Copies from the position where the last pass stopped to the end of the slice.
    async fn pass(&mut self) -> Result<()> {
        let reading = |error| Error::server(format!("find on {}", self.pair.source.ns), error);
        let from = self.pair.source.endpoint.clone();
        let mut size = self.batch_size();
        let mut cursor = self.open(&from, self.last_written.as_ref(), self.horizon, size).await?;
        while let Some(batch) = answer("reading a slice", cursor.next()).await? {
            let batch = batch.map_err(reading)?;
            let documents = batch.doc_slices().map_err(reading)?;
            if documents.is_empty() {
                continue;
            }
            self.write(documents).await?;
            // A cursor keeps the batch size that it was opened with, which may date from a pause.
            if self.last_written.is_some() && batch::is_another(size, self.batch_size()) {
                size = self.batch_size();
                cursor = self.open(&from, self.last_written.as_ref(), self.horizon, size).await?;
            }
        }
        Ok(())
    }

    async fn open(
        &self,
        from: &Endpoint,
        last_written: Option<&Id>,
        after: Timestamp,
        batch_size: i32,
    ) -> Result<RawBatchCursor> {
        let source = &self.pair.source;
        let mut command = rawdoc! {"find": source.ns.coll.as_str()};
        if let Some(filter) = &self.pair.filter {
            let filter =
                RawDocumentBuf::try_from(filter).map_err(|e| Error::malformed("the filter", e))?;
            command.append(cstr!("filter"), filter);
        }
        if self.definition.is_capped() {
            command.append(cstr!("hint"), rawdoc! {"$natural": 1});
        } else {
            command.append(cstr!("hint"), rawdoc! {"_id": 1});
            // Without a sort, a router returns its shards' documents in the order of their arrival.
            command.append(cstr!("sort"), rawdoc! {"_id": 1});
            if let Some(min) = last_written.or(self.slice.min.as_ref()) {
                command.append(cstr!("min"), rawdoc! {"_id": min.as_raw()});
            }
            if let Some(max) = &self.slice.max {
                command.append(cstr!("max"), rawdoc! {"_id": max.as_raw()});
            }
        }
        command.append(cstr!("batchSize"), batch_size);
        command.append(cstr!("readConcern"), read_concern(ReadAt::After(after)));
        let db = from.client().database(&source.ns.db);
        from.count_find();
        let cursor = db
            .run_raw_cursor_command(command)
            .selection_criteria(prefer_secondary())
            .batch_size(u32::try_from(batch_size).expect("positive"))
            .batch();
        let opened = answer("opening a slice", cursor).await?;
        opened.map_err(|error| Error::server(format!("find on {}", source.ns), error))
    }

    fn batch_size(&self) -> i32 {
        let shards = self.worker.route.as_ref().map_or(1, |route| route.shards.len());
        batch::size(self.worker.control.throttle(), shards, (self.documents, self.bytes))
    }

    async fn write(&mut self, batch: &RawArray) -> Result<()> {
        let to = &self.pair.destination;
        let shape = Shape::of(batch)?;
        let bytes = batch.as_bytes().len() as u64;
        let control = self.worker.control.clone();
        control.take_paced(shape.documents, bytes).await?;
        // Checked after the wait, in which the lease may have been lost.
        self.lease_guard.check()?;
        let mut skip = None;
        if let Some(last_written) = &self.last_written {
            skip = shape.first.as_ref().filter(|first| *first == last_written).map(|_| ());
        }
        let mut twice = shape.twice;
        // A reopened cursor starts with the document that was written last.
        twice.extend(shape.first.filter(|_| skip.is_some()));
        let errors = if shape.is_plain {
            write::insert_batch(to, batch).await?.errors
        } else {
            self.write_odd(batch).await?
        };
        if !errors.is_empty() {
            self.resolve_errors(batch, errors, &mut twice).await?;
        }
        duplicate_ids::refuse(self.pair, &twice).await?;
        // The first document was counted before the server was lost.
        let again = u64::from(skip.is_some());
        self.documents += shape.documents - again;
        self.bytes += bytes;
        self.worker.counters.documents.fetch_add(shape.documents - again, Ordering::Relaxed);
        self.worker.counters.bytes.fetch_add(bytes, Ordering::Relaxed);
        // Under a collation, an `_id`'s bytes do not determine its position; a capped collection has no order.
        if !self.pair.is_collated && !self.definition.is_capped() {
            self.last_written = shape.last;
        }
        Ok(())
    }

    /// Writes a batch in which some documents need another form of write than a plain insert. Returns the errors,
    /// whose indexes are positions in `batch`.
    async fn write_odd(&self, batch: &RawArray) -> Result<Vec<WriteError>> {
        let found = found_in(batch, &self.pair.source)?;
        let (mut plain, mut odd) = (Vec::new(), Vec::new());
        for (index, found) in found.iter().enumerate() {
            let list = if inserts(found.raw) { &mut plain } else { &mut odd };
            list.push((index, found));
        }
        let raws: Vec<&RawDocument> = plain.iter().map(|(_, found)| found.raw).collect();
        let mut errors = write::insert(&self.pair.destination, &raws).await?.errors;
        for error in &mut errors {
            error.index = plain[error.index].0;
        }
        let statements: Vec<RawDocumentBuf> =
            odd.iter().map(|(_, found)| self.pair.replacement(found)).collect();
        let refused = write::update(&self.pair.destination, &statements).await?.errors;
        errors.extend(
            refused.into_iter().map(|error| WriteError { index: odd[error.index].0, ..error }),
        );
        Ok(errors)
    }

    async fn resolve_errors(
        &mut self,
        batch: &RawArray,
        errors: Vec<WriteError>,
        twice: &mut Vec<Id>,
    ) -> Result<()> {
        let found = found_in(batch, &self.pair.source)?;
        let mut foreign = Vec::new();
        for error in errors {
            let found = &found[error.index];
            if error.is_duplicate_id() {
                if self.pair.has_foreign {
                    foreign.push(found);
                }
                // The two `_id`s have different bytes, so nothing else shows that they are equal.
                if self.pair.is_collated {
                    twice.push(found.id.clone());
                }
            } else if error.code == write::DUPLICATE_KEY {
                self.leave(found)?;
            } else {
                return Err(self.pair.refusal(found, &error));
            }
        }
        make_room(&self.pair.destination, &foreign).await?;
        let statements: Vec<RawDocumentBuf> =
            foreign.iter().map(|found| self.pair.replacement(found)).collect();
        for error in write::update(&self.pair.destination, &statements).await?.errors {
            self.leave(foreign[error.index])?;
        }
        Ok(())
    }

    fn leave(&mut self, found: &Found<'_>) -> Result<()> {
        if self.leftovers.len() == leases::LEFTOVERS_MAX {
            return Err(Error::Document {
                ns: self.pair.destination.ns.to_string(),
                id: found.id.to_string(),
                cause: format!("so are {} others of its slice", leases::LEFTOVERS_MAX),
                help: "a unique index at the destination refuses them: drop it, `imago job \
                       resume`, and create it again when the job follows"
                    .into(),
            });
        }
        self.leftovers.push(found.id.clone());
        Ok(())
    }
}

/// Returns the number of the source's documents that match the collection's filter.
///
/// # Errors
/// Fails if the source does not reply.
pub async fn count_filtered(pair: &Pair) -> Result<u64> {
    let filter = pair.filter.clone().unwrap_or_default();
    let command = bson::doc! {"count": &pair.source.ns.coll, "query": filter};
    let reply = pair.source.endpoint.run_at_length(&pair.source.ns.db, command).await?;
    Ok(number(&reply, "n"))
}
