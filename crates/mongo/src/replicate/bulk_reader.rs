//! Copying slices: the bulk of a collection, read once and written as it was read.
//!
//! A batch of documents goes from the source's answer into the destination's insert as the bytes it
//! came in. Each slice reads and writes in turn; several slices at once keep both clusters busy
//! without any queue between them.
//!
//! Invariants:
//! - A slice is read from a state that includes the horizon which was read after it was leased.
//! - A document that the destination holds already is left as it is: it was written by an earlier
//!   attempt, and each change since then is among the dirty keys that wait for this slice (the
//!   model in `plan` checks this). Where the destination held documents before the job
//!   (`has_foreign`), it is replaced instead.
//! - A document that a unique index refuses is left to the applier ("leftover"): only the reader of
//!   all changes can tell which of the two documents is stale.
//! - A slice is read in the order of its `_id`s, of all shards together where a router reads them: after an
//!   error reading goes on behind the last document that was written, and everything before that is
//!   written too.
//! - No write is sent later than [`timing::LEASED_WRITE_WITHIN`] after the lease was last renewed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bson::raw::{RawBsonRef, cstr};
use bson::{RawArray, RawDocument, RawDocumentBuf, Timestamp, rawdoc};
use futures_util::{StreamExt, TryStreamExt};
use imago_job::control::Control;
use imago_job::retry::retry;
use mongodb::raw_batch_cursor::RawBatchCursor;
use tokio::sync::Notify;

use crate::bson::order::Id;
use crate::error::{Error, Result};
use crate::replicate::apply::{Found, Pair, ReadAt, found_in, inserts, make_room, read_concern};
use crate::replicate::route::{Route, Seen};
use crate::server::collection::{Definition, number};
use crate::server::endpoint::{Endpoint, answer, prefer_secondary};
use crate::server::timing::PATIENCE;
use crate::server::write::{self, WriteError};
use crate::state::leases::{self, Lease, Leases, Slice};

mod batch;
mod lease_renewal;
mod shape;
mod turn;

use lease_renewal::Hold;
use shape::Shape;

/// State shared by all workers at one job in this process.
#[derive(Debug, Default)]
pub struct Counters {
    /// Documents copied by slices that are in progress or done.
    pub documents: AtomicU64,
    /// Their bytes.
    pub bytes: AtomicU64,
    /// Woken when a slice is done.
    pub slice_done: Notify,
    /// Slices that are being copied.
    at_work: AtomicUsize,
}

impl Counters {
    /// Documents copied so far, and their bytes.
    #[must_use]
    pub fn copied(&self) -> (u64, u64) {
        (self.documents.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// One process's part in copying the bulk.
#[derive(Clone)]
pub struct Worker {
    /// The collections, in the job's order.
    pub pairs: Arc<Vec<Pair>>,
    /// The collections' definitions at the source.
    pub definitions: Arc<Vec<Definition>>,
    /// The leases of the slices.
    pub leases: Leases,
    /// Pause, cancel, throttle.
    pub control: Control,
    /// The work done.
    pub counters: Arc<Counters>,
    /// The way past the router, of a job that changes one collection's shape.
    pub route: Option<Arc<Route>>,
}

/// Between looks for a slice whose lease ran out.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Worker {
    /// Copies slices until all are copied.
    ///
    /// # Errors
    /// Fails if a cluster stays away for longer than [`PATIENCE`], a document cannot be written, or
    /// the job is stopped.
    pub async fn run(&self) -> Result<()> {
        let mut last = None;
        loop {
            self.control.checkpoint().await?;
            let _turn = self.turn().await?;
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
                None => self.control.sleep(LOOK_AGAIN).await?,
            }
        }
    }

    async fn all_copied(&self) -> Result<bool> {
        let states =
            retry("look at the slices", &PATIENCE, &self.control, Error::is_transient, |_| {
                self.leases.states_after(None)
            });
        let copied = imago_plan::pending_changes::SliceState::Copied;
        let mut mine = states.await?.into_iter().filter(|seen| seen.ns < self.pairs.len());
        Ok(mine.all(|seen| seen.state == copied))
    }

    async fn copy(&self, lease: Lease) -> Result<()> {
        let hold = Hold::new(self.leases.clone(), lease.clone());
        let horizon =
            retry("read the horizon", &PATIENCE, &self.control, Error::is_transient, |_| {
                self.leases.horizon()
            });
        let mut copy = SliceCopy {
            worker: self,
            pair: &self.pairs[lease.slice.ns],
            definition: &self.definitions[lease.slice.ns],
            slice: &lease.slice,
            hold: &hold,
            horizon: horizon.await?,
            behind: None,
            behind_on: Vec::new(),
            seen: None,
            documents: 0,
            bytes: 0,
            leftovers: Vec::new(),
        };
        if let Err(error) = copy.run().await {
            return if hold.is_lost() { Ok(()) } else { Err(error) };
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

struct SliceCopy<'a> {
    worker: &'a Worker,
    pair: &'a Pair,
    definition: &'a Definition,
    slice: &'a Slice,
    hold: &'a Hold,
    horizon: Timestamp,
    /// The last `_id` that is written: reading goes on behind it after a server was lost.
    behind: Option<Id>,
    /// The same for each shard that is read past the router; whether it is read to its end.
    behind_on: Vec<(Option<Id>, bool)>,
    /// The map by which they were read.
    seen: Option<Seen>,
    documents: u64,
    bytes: u64,
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
                // A server ends an open range before `MaxKey`, which may be an `_id` too.
                if self.slice.max.is_none() {
                    self.leftovers.push(Id::from_raw(RawBsonRef::MaxKey));
                }
                return Ok(());
            };
            attempts = if self.documents > before { 1 } else { attempts + 1 };
            let tired = attempts >= PATIENCE.attempts_max
                || (self.documents == before && began.elapsed() > PATIENCE.elapsed_max);
            if !error.is_transient() || tired || self.hold.is_lost() {
                return Err(error);
            }
            tracing::debug!(%error, attempts, "a slice is read again from where it stopped");
            let pause_ms = PATIENCE.backoff.pause_ms(attempts, rand::random());
            control.sleep(Duration::from_millis(pause_ms)).await?;
        }
    }

    /// As [`SliceCopy::pass`], from each shard to each shard.
    async fn pass_shards(&mut self, route: &Route) -> Result<()> {
        let reading = |error| Error::server(format!("find on {}", self.pair.source.ns), error);
        let seen = route.look().await?;
        // A chunk that moved since the earlier pass may lie on a shard that the pass completed.
        if self.seen.as_ref().is_some_and(|before| !before.is_same(&seen)) {
            self.behind_on.clear();
        }
        self.seen = Some(seen.clone());
        self.behind_on.resize(route.shards.len(), (None, false));
        for from in 0..route.shards.len() {
            if self.behind_on[from].1 {
                continue;
            }
            let behind = self.behind_on[from].0.clone();
            let after = self.horizon.max(seen.at);
            let mut size = self.batch_size();
            let reader = &route.readers[from];
            let failed = |error| reader.failed(error);
            let opened = self.open(reader.now(), behind.as_ref(), after, size).await;
            let mut cursor = opened.map_err(failed)?;
            while let Some(batch) =
                answer("reading a slice", cursor.next()).await.map_err(failed)?
            {
                let batch = batch.map_err(reading).map_err(failed)?;
                let found = batch.doc_slices().map_err(reading)?;
                if !found.is_empty() {
                    self.write_shards(route, &seen, from, found).await?;
                }
                let behind = self.behind_on[from].0.clone();
                if behind.is_some() && batch::is_another(size, self.batch_size()) {
                    size = self.batch_size();
                    let opened = self.open(reader.now(), behind.as_ref(), after, size).await;
                    cursor = opened.map_err(failed)?;
                }
            }
            self.behind_on[from].1 = true;
        }
        if route.is_still(&seen).await? {
            return Ok(());
        }
        // Documents that are written stay: the next pass finds them, and leaves them as they are.
        self.behind_on.clear();
        let cause = "chunks of the collection were moved meanwhile".into();
        Err(Error::Passing { doing: format!("reading {}", self.pair.source.ns), cause })
    }

    async fn write_shards(
        &mut self,
        route: &Route,
        seen: &Seen,
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
        // After the wait: the lease may have been lost meanwhile.
        self.hold.check()?;
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
        // While clients are spared, servers that share a machine are not kept busy all at once.
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
            self.behind_on[from].0 = found.into_iter().next_back().map(|found| found.id);
        }
        Ok(())
    }

    fn found<'b>(&self, raw: &'b RawDocument) -> Result<Found<'b>> {
        let id = Id::of_document(raw)
            .map_err(|e| Error::malformed(format!("find on {}", self.pair.source.ns), e))?;
        Ok(Found { id, raw })
    }

    /// A document that the shadow did not take: one that exists already is left, one that a unique
    /// index refuses is left to the coordinator.
    fn resolve_error(&mut self, raw: &RawDocument, error: &WriteError) -> Result<()> {
        let found = self.found(raw)?;
        match error.code {
            write::DUPLICATE_KEY if error.is_duplicate_id() => Ok(()),
            write::DUPLICATE_KEY => self.leave(&found),
            _ => Err(self.pair.refusal(&found, error)),
        }
    }

    /// Reads from where the last pass stopped to the end of the slice.
    async fn pass(&mut self) -> Result<()> {
        let reading = |error| Error::server(format!("find on {}", self.pair.source.ns), error);
        let from = &self.pair.source.endpoint;
        let size = self.batch_size();
        let mut cursor = self.open(from, self.behind.as_ref(), self.horizon, size).await?;
        while let Some(batch) = answer("reading a slice", cursor.next()).await? {
            let batch = batch.map_err(reading)?;
            let documents = batch.doc_slices().map_err(reading)?;
            if documents.is_empty() {
                continue;
            }
            self.write(documents).await?;
        }
        Ok(())
    }

    async fn open(
        &self,
        from: &Endpoint,
        behind: Option<&Id>,
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
            // A router hands out its shards' documents as they come, unless a command names an
            // order.
            command.append(cstr!("sort"), rawdoc! {"_id": 1});
            if let Some(min) = behind.or(self.slice.min.as_ref()) {
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
        // After the wait: the lease may have been lost meanwhile.
        self.hold.check()?;
        let mut skip = None;
        if let Some(behind) = &self.behind {
            skip = shape.first.as_ref().filter(|first| *first == behind).map(|_| ());
        }
        let errors = if shape.is_plain {
            write::insert_batch(to, batch).await?.errors
        } else {
            self.write_odd(batch).await?
        };
        if !errors.is_empty() {
            self.resolve_errors(batch, errors).await?;
        }
        // The first one was counted before the server was lost.
        let again = u64::from(skip.is_some());
        self.documents += shape.documents - again;
        self.bytes += bytes;
        self.worker.counters.documents.fetch_add(shape.documents - again, Ordering::Relaxed);
        self.worker.counters.bytes.fetch_add(bytes, Ordering::Relaxed);
        // An `_id` under a collation is not where its bytes say; a capped collection has no order.
        if !self.pair.is_collated && !self.definition.is_capped() {
            self.behind = shape.last;
        }
        Ok(())
    }

    /// Documents among which some need another form of write than a plain insert.
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

    async fn resolve_errors(&mut self, batch: &RawArray, errors: Vec<WriteError>) -> Result<()> {
        let found = found_in(batch, &self.pair.source)?;
        let mut foreign = Vec::new();
        for error in errors {
            let found = &found[error.index];
            if error.is_duplicate_id() {
                if self.pair.has_foreign {
                    foreign.push(found);
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

/// The collection's number of documents that match its filter, by counting.
///
/// # Errors
/// Fails if the source does not answer.
pub async fn count_filtered(pair: &Pair) -> Result<u64> {
    let filter = pair.filter.clone().unwrap_or_default();
    let command = bson::doc! {"count": &pair.source.ns.coll, "query": filter};
    let reply = pair.source.endpoint.run_at_length(&pair.source.ns.db, command).await?;
    Ok(number(&reply, "n"))
}
