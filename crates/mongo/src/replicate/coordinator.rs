//! The coordinator of a job: reads the source's changes, applies them through lanes, and persists the checkpoint and
//! the horizon (a low watermark, see [`imago_plan::copy::pending_changes`]).
//!
//! [`imago_plan::copy::pending_changes`] decides which dirty keys may be applied, and when. One task owns the pending
//! changes of all collections; a few rounds of dirty keys run concurrently.
//!
//! Invariants:
//! - A batch of the stream counts as read once all of it is among the pending changes. Only then may its token become
//!   the checkpoint.
//! - A round is finished, or the coordinator ends: no dirty key of a round is returned.
//! - After [`Coordinator::settle`] the destination equals the source at exactly the returned time, document for
//!   document, although both may be written: the last rounds read the source as of that time, and all earlier reads
//!   were of earlier states.
//! - The number of dirty keys in memory is bounded: above [`DIRTY_KEYS_MAX`], the stream is not read.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{RawDocumentBuf, Timestamp};
use imago_job::control::Control;
use imago_job::retry::retry;
use imago_plan::copy::pending_changes::{Change, DirtyKey, PendingChanges, Position, SliceState};
use imago_plan::copy::split_points::slice_of;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use crate::bson::order::Id;
use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::replicate::bulk_reader::Counters;
use crate::replicate::changes::{Batch, ChangeReader, Event, Start};
use crate::replicate::pair::Pair;
use crate::server::endpoint::Endpoint;
use crate::server::timing::PATIENCE;
use crate::state::leases::{Leases, Slice};

mod progress;
mod reading;
mod rounds;
mod settle;

pub use progress::Progress;
use reading::{read_ahead, received};
use rounds::RoundDone;

/// Number of dirty keys in memory, over all collections of a job, above which the stream is not read.
pub const DIRTY_KEYS_MAX: usize = 500_000;
/// Number of lanes of a collection. All changes of one `_id` go through the same lane.
const LANES: usize = 8;
/// Most batches of the stream that are read before their changes are recorded.
const BATCHES_AHEAD: usize = 4;
const TICK: Duration = Duration::from_millis(50);
const SLICE_CHECK_EVERY: Duration = Duration::from_millis(500);
/// Number of the last changes, over all collections, that are kept for the last comparison before a cut-over.
pub const RECENT_MAX: usize = 10_000;

/// The resume token and the times of the position after one batch of the stream.
#[derive(Clone, Debug)]
struct Mark {
    token: RawDocumentBuf,
    time: Timestamp,
    /// The source's wall clock at the first change of the batch, in ms since 1970; `None` if the batch has no change.
    wall_ms: Option<i64>,
}

/// A position of the change stream: a process that resumes there misses no change.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The resume token after which the stream resumes.
    pub token: RawDocumentBuf,
    /// The source's cluster time at the token.
    pub time: Timestamp,
}

/// The coordinator of one job; see the module's documentation.
pub struct Coordinator {
    source: Endpoint,
    pairs: Arc<Vec<Pair>>,
    cuts: Vec<Vec<Id>>,
    pending: Vec<PendingChanges<Id>>,
    marks: BTreeMap<Position, Mark>,
    position: Position,
    batches: mpsc::Receiver<Result<Batch>>,
    /// True while a caller waits for the stream to catch up.
    is_awaited: watch::Sender<bool>,
    _reader: AbortOnDropHandle<()>,
    rounds: JoinSet<RoundDone>,
    /// The lane, counted over all collections, that is served next. Lanes are served in turn, so that none starves
    /// when changes arrive faster than they are applied.
    next_lane: usize,
    /// While clients are spared, no round starts before this time.
    next_round_at: Instant,
    /// Duration of the last round while clients were spared.
    round_took: Duration,
    leases: Leases,
    control: Control,
    counters: Arc<Counters>,
    /// Changes of indexes and options that the job has not followed yet: the collection's number and the event.
    structure: Vec<(usize, String)>,
    /// The further properties of each collection, by its number; see [`Parts::members`].
    members: Vec<Member>,
    is_open: bool,
    /// Ends of collections that the caller has not taken yet: the collection's number and the event.
    ended: Vec<(usize, String)>,
    /// The first batch that passed the settled point, and that point. It is recorded when the point is left.
    late: Option<(Batch, Timestamp)>,
    slices_read_at: Instant,
    last_batch_at: Instant,
    /// Time by which this machine's clock is ahead of the source's, in ms; negative if it is slow.
    clock_ahead_ms: i64,
    changes_read: u64,
    changes_applied: u64,
    recent: VecDeque<(usize, Id)>,
    leftovers_seen: Vec<Vec<bool>>,
}

/// The properties of a collection that its [`Pair`] does not have.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// An event up to this source time ended an earlier collection of this name, which this job no longer copies.
    pub since: Timestamp,
    /// True once the collection was dropped or renamed: its changes are skipped.
    pub is_gone: bool,
}

/// The parameters of [`Coordinator::begin`].
pub struct Parts {
    /// The cluster from which the changes are read.
    pub source: Endpoint,
    /// The source and destination of each collection, by its number.
    pub pairs: Arc<Vec<Pair>>,
    /// The further properties of each collection, by its number.
    pub members: Vec<Member>,
    /// A database of the source whose stream is read if there are no collections.
    pub db: String,
    /// True if the job continues when one of its collections ends at the source.
    pub is_open: bool,
    /// The slices of all collections.
    pub slices: Vec<Slice>,
    /// The leases of the slices.
    pub leases: Leases,
    /// The control by which the job is paused, cancelled and throttled.
    pub control: Control,
    /// The counters, which the workers of this process share.
    pub counters: Arc<Counters>,
    /// The position at which the change stream begins.
    pub start: Start,
    /// Longest time that the server waits for a change before it sends an empty batch.
    pub await_max: Duration,
}

impl Coordinator {
    /// Opens the stream, inspects the slices, and returns the coordinator.
    ///
    /// # Errors
    /// Fails if the stream cannot be opened at `start`, or the destination does not reply.
    #[crate::boxed]
    pub async fn begin(parts: Parts) -> Result<Self> {
        let namespaces: Vec<Namespace> =
            parts.pairs.iter().map(|pair| pair.source.ns.clone()).collect();
        let (start_token, start_time) = match &parts.start {
            Start::At(time) => (None, *time),
            Start::After(token) => {
                let time = crate::replicate::changes::token_time(token);
                (Some(token.clone()), time.unwrap_or(Timestamp { time: 0, increment: 0 }))
            }
        };
        let ask = |_| parts.source.clock_ahead_ms();
        let what = "ask for the source's time of day";
        let clock_ahead_ms =
            retry(what, &PATIENCE, &parts.control, Error::is_transient, ask).await?;
        let placing = parts.pairs.iter().map(|pair| pair.shard_key.clone()).collect();
        let mut reader =
            ChangeReader::new(parts.source.clone(), namespaces, parts.start, parts.await_max)
                .placing_by(placing)
                .within(&parts.db)
                .open_ended(parts.is_open);
        parts.control.or_stop(reader.open()).await??;
        let (send, batches) = mpsc::channel(BATCHES_AHEAD);
        let (is_awaited, awaited) = watch::channel(false);
        let reader =
            tokio::spawn(read_ahead(reader, send, parts.control.clone(), awaited, clock_ahead_ms));
        assert_eq!(parts.members.len(), parts.pairs.len(), "one for each collection");
        let mut cuts: Vec<Vec<Id>> = vec![Vec::new(); parts.pairs.len()];
        let mut counts = vec![0_usize; parts.pairs.len()];
        for slice in &parts.slices {
            counts[slice.ns] += 1;
            if let Some(min) = &slice.min {
                cuts[slice.ns].push(min.clone());
            }
        }
        for (cuts, count) in cuts.iter().zip(&counts) {
            assert_eq!(cuts.len() + 1, *count, "slices cover the key space without a gap");
        }
        let pending = counts.iter().map(|&count| PendingChanges::new(count, LANES, 0)).collect();
        let mut marks = BTreeMap::new();
        if let Some(token) = start_token {
            marks.insert(0, Mark { token, time: start_time, wall_ms: None });
        }
        let mut coordinator = Self {
            leftovers_seen: counts.iter().map(|&count| vec![false; count]).collect(),
            source: parts.source,
            pairs: parts.pairs,
            cuts,
            pending,
            marks,
            position: 0,
            batches,
            is_awaited,
            _reader: AbortOnDropHandle::new(reader),
            rounds: JoinSet::new(),
            next_lane: 0,
            next_round_at: Instant::now(),
            round_took: Duration::ZERO,
            leases: parts.leases,
            control: parts.control,
            counters: parts.counters,
            structure: Vec::new(),
            members: parts.members,
            is_open: parts.is_open,
            ended: Vec::new(),
            late: None,
            slices_read_at: Instant::now(),
            last_batch_at: Instant::now(),
            clock_ahead_ms,
            changes_read: 0,
            changes_applied: 0,
            recent: VecDeque::new(),
        };
        coordinator.refresh_slices().await?;
        Ok(coordinator)
    }

    /// Waits for a finished round, a batch of changes, a copied slice or a tick; handles it, and starts rounds.
    ///
    /// # Errors
    /// Returns an error that ends the job: see [`Error`].
    #[crate::boxed]
    pub async fn step(&mut self) -> Result<()> {
        if let Some(stop) = self.control.stopped() {
            return Err(stop.into());
        }
        let counters = Arc::clone(&self.counters);
        let reads = self.dirty_keys() < DIRTY_KEYS_MAX && !self.control.is_paused();
        let mut slice_done = false;
        let rest = self.next_round_at.saturating_duration_since(Instant::now());
        let tick = if rest.is_zero() { TICK } else { rest.min(TICK) };
        tokio::select! {
            biased;
            Some(done) = self.rounds.join_next() => {
                self.finish(done.expect("a round neither panics nor is aborted"))?;
            }
            batch = self.batches.recv(), if reads => self.record(received(batch)?)?,
            () = counters.slice_done.notified() => slice_done = true,
            () = tokio::time::sleep(tick) => {}
        }
        if !self.control.is_paused() {
            self.dispatch(None);
        }
        let is_copied = self.is_copied();
        if slice_done || (!is_copied && self.slices_read_at.elapsed() > SLICE_CHECK_EVERY) {
            self.move_horizon().await?;
        }
        Ok(())
    }

    /// Returns the split points of each collection, by its number: the lower bounds of its slices but the first.
    #[must_use]
    pub fn cuts(&self) -> &[Vec<Id>] {
        &self.cuts
    }

    /// Returns true once the bulk of every collection is at the destination.
    #[must_use]
    pub fn is_copied(&self) -> bool {
        self.pending.iter().all(PendingChanges::is_copied)
    }

    /// Returns the checkpoint at which a successor would start, or `None` if there is no position to resume from yet.
    #[must_use]
    pub fn checkpoint(&self) -> Option<Checkpoint> {
        let position = self.checkpoint_position();
        let (_, mark) = self.marks.range(..=position).next_back()?;
        Some(Checkpoint { token: mark.token.clone(), time: mark.time })
    }

    /// Returns the source's time up to which all changes are durable at the destination; 0 if nothing was read yet.
    #[must_use]
    pub fn applied_to(&self) -> Timestamp {
        self.checkpoint().map_or(Timestamp { time: 0, increment: 0 }, |checkpoint| checkpoint.time)
    }

    /// Returns the collection and `_id` of the last changes, at most [`RECENT_MAX`], newest last; with repetitions.
    pub fn recent(&self) -> impl DoubleEndedIterator<Item = &(usize, Id)> {
        self.recent.iter()
    }

    /// Takes the changes of indexes and options since the last call, as the collection's number and the event.
    pub fn take_structure(&mut self) -> Vec<(usize, String)> {
        std::mem::take(&mut self.structure)
    }

    /// Takes the events that ended collections since the last call. Later changes of these collections are skipped.
    pub fn take_ended(&mut self) -> Vec<(usize, String)> {
        std::mem::take(&mut self.ended)
    }

    /// Returns true once the source no longer has the collection number `ns`.
    #[must_use]
    pub fn is_gone(&self, ns: usize) -> bool {
        self.members[ns].is_gone
    }

    /// Sets whether a caller waits for the coordinator to catch up. If so, clients are not spared.
    pub fn set_awaited(&mut self, is_awaited: bool) {
        self.is_awaited.send_replace(is_awaited);
    }

    /// Makes all later writes to the collection number `ns` bypass its validator, and waits for those in progress.
    /// The source's documents are copied even if they violate the validator, which the collection has now. Returns
    /// all collections in the form in which they are written from now on.
    ///
    /// # Errors
    /// Fails if a round in progress failed.
    pub async fn bypass_validation(&mut self, ns: usize) -> Result<Arc<Vec<Pair>>> {
        let mut pairs = (*self.pairs).clone();
        pairs[ns].destination.bypass_validation = true;
        self.pairs = Arc::new(pairs);
        while let Some(done) = self.rounds.join_next().await {
            self.finish(done.expect("a round neither panics nor is aborted"))?;
        }
        Ok(Arc::clone(&self.pairs))
    }

    /// Waits for the rounds in progress, and discards their results and errors.
    pub async fn quiesce(&mut self) {
        while self.rounds.join_next().await.is_some() {}
    }

    /// Waits for the rounds in progress, and returns the last checkpoint.
    ///
    /// # Errors
    /// Fails if a round failed.
    #[crate::boxed]
    pub async fn end(mut self) -> Result<Option<Checkpoint>> {
        while let Some(done) = self.rounds.join_next().await {
            self.finish(done.expect("a round neither panics nor is aborted"))?;
        }
        Ok(self.checkpoint())
    }

    fn record(&mut self, batch: Batch) -> Result<()> {
        self.record_events(&batch, |_| true)?;
        self.mark(batch);
        Ok(())
    }

    fn record_events(&mut self, batch: &Batch, wanted: impl Fn(Timestamp) -> bool) -> Result<()> {
        self.last_batch_at = Instant::now();
        let age_ms = batch.first_wall_ms.map(|wall_ms| self.age_ms(wall_ms));
        tracing::trace!(events = batch.events.len(), age_ms, "changes were read");
        for event in &batch.events {
            match event {
                Event::Structure { ns, .. } if self.is_gone(*ns) => {}
                Event::DirtyKey { ns, id, change, time, .. } if wanted(*time) => {
                    self.changes_read += 1;
                    if self.recent.len() == RECENT_MAX {
                        self.recent.pop_front();
                    }
                    self.recent.push_back((*ns, id.clone()));
                    self.mark_dirty(*ns, id.clone(), *change);
                }
                Event::DirtyKey { .. } => {}
                Event::Structure { ns, what } => self.structure.push((*ns, what.clone())),
                Event::Disruption { ns, what, time } => self.end_collection(*ns, what, *time)?,
            }
        }
        Ok(())
    }

    fn end_collection(&mut self, ns: usize, what: &str, time: Timestamp) -> Result<()> {
        if time <= self.members[ns].since || self.members[ns].is_gone {
            return Ok(());
        }
        if !self.is_open {
            let ns = self.pairs[ns].source.ns.to_string();
            return Err(Error::Disrupted { ns, what: what.to_owned() });
        }
        self.members[ns].is_gone = true;
        self.ended.push((ns, what.to_owned()));
        Ok(())
    }

    fn mark_dirty(&mut self, ns: usize, id: Id, change: Change) {
        // The leftovers of its slices are skipped as well: at either side the name may belong to another kind.
        if self.is_gone(ns) {
            return;
        }
        let slice = slice_of(&self.cuts[ns], &id);
        let lane = lane_of(&self.pairs[ns], &id);
        self.pending[ns].mark_dirty(id, slice, lane, DirtyKey::at(self.position + 1, change));
    }

    fn mark(&mut self, batch: Batch) {
        self.position += 1;
        for pending in &mut self.pending {
            pending.read_to(self.position);
        }
        let mark = Mark { token: batch.token, time: batch.time, wall_ms: batch.first_wall_ms };
        self.marks.insert(self.position, mark);
        let keep = self.checkpoint_position();
        while let Some((&second, _)) = self.marks.iter().nth(1)
            && second <= keep
        {
            self.marks.pop_first();
        }
    }

    /// Moves the horizon to the stream's position, and drops pending changes that it makes unnecessary.
    async fn move_horizon(&mut self) -> Result<()> {
        let Some(time) = self.marks.get(&self.position).map(|mark| mark.time) else {
            return self.refresh_slices().await;
        };
        let control = self.control.clone();
        let written = retry("keep the horizon", &PATIENCE, &control, Error::is_transient, |_| {
            self.leases.set_horizon(time)
        });
        let written = written.await?;
        let untouched = self.refresh_slices_after(Some(written)).await?;
        for (pending, untouched) in self.pending.iter_mut().zip(&untouched) {
            pending.horizon(self.position, untouched);
        }
        Ok(())
    }

    async fn refresh_slices(&mut self) -> Result<()> {
        self.refresh_slices_after(None).await.map(|_| ())
    }

    async fn refresh_slices_after(&mut self, after: Option<Timestamp>) -> Result<Vec<Vec<usize>>> {
        let control = self.control.clone();
        let seen = retry("look at the slices", &PATIENCE, &control, Error::is_transient, |_| {
            self.leases.states_with_leftovers_after(after, &self.leftovers_seen)
        });
        let mut untouched = vec![Vec::new(); self.pending.len()];
        for slice in seen.await? {
            let pair = self.pairs[slice.ns].clone();
            self.pending[slice.ns].see(slice.n, slice.state, |id| lane_of(&pair, id));
            if slice.state == SliceState::Untouched {
                untouched[slice.ns].push(slice.n);
            }
            let is_new = !std::mem::replace(
                &mut self.leftovers_seen[slice.ns][slice.n],
                slice.state == SliceState::Copied,
            );
            if is_new && slice.state == SliceState::Copied {
                for id in slice.leftovers {
                    self.mark_dirty(slice.ns, id, Change::Any);
                }
            }
        }
        self.slices_read_at = Instant::now();
        Ok(untouched)
    }

    fn dirty_keys(&self) -> usize {
        self.pending.iter().map(PendingChanges::held).sum()
    }

    fn checkpoint_position(&self) -> Position {
        self.pending.iter().map(PendingChanges::checkpoint).min().unwrap_or(self.position)
    }

    fn time_of(&self, position: Position) -> Timestamp {
        let newest = self.marks.values().next_back().map(|mark| mark.time);
        let at = self.marks.get(&position).map(|mark| mark.time);
        at.or(newest).unwrap_or(Timestamp { time: 0, increment: 0 })
    }

    /// Returns true if a change of indexes or options waits for [`Coordinator::take_structure`].
    #[must_use]
    pub fn has_structure(&self) -> bool {
        !self.structure.is_empty()
    }

    /// Returns true if the end of a collection waits for [`Coordinator::take_ended`].
    #[must_use]
    pub fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }
}

fn lane_of(pair: &Pair, id: &Id) -> usize {
    if pair.is_collated {
        return 0;
    }
    usize::try_from(id.stable_hash() % LANES as u64).expect("fewer lanes than memory")
}
