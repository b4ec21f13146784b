//! Settling: the destination becomes equal to the source as of one time, and stays so.
//!
//! The coordinator asks the source for its time, reads the stream until it has passed that time, and applies every
//! dirty key up to it by reads of the source as of exactly that time. A later change waits until the settled point is
//! left.

use bson::Timestamp;
use imago_job::retry::retry;
use imago_plan::copy::pending_changes::PendingChanges;

use super::rounds::{RoundDone, apply, wants_of};
use super::{Coordinator, received};
use crate::error::{Error, Result, code};
use crate::replicate::apply::ReadAt;
use crate::server::timing::PATIENCE;

/// Most attempts to settle. A new attempt, at a later time, starts if the source no longer has the state of the
/// requested time.
const SETTLE_ATTEMPTS_MAX: usize = 8;

impl Coordinator {
    /// Makes the destination equal to the source as of exactly one cluster time, and returns that time. Nothing more
    /// is applied until [`Coordinator::leave_settled`].
    ///
    /// # Errors
    /// Returns an error that ends the job; fails if the source's history is too short to be read as of one time.
    ///
    /// # Panics
    /// If not every slice is copied.
    #[crate::boxed]
    pub async fn settle(&mut self) -> Result<Timestamp> {
        assert!(self.is_copied(), "only a complete copy can be settled");
        self.set_awaited(true);
        for _ in 0..SETTLE_ATTEMPTS_MAX {
            self.record_late()?;
            while !self.rounds.is_empty() {
                let done = self.rounds.join_next().await.expect("a round is running");
                self.finish(done.expect("a round neither panics nor is aborted"))?;
            }
            let ask = |_| self.source.cluster_time();
            let what = "ask for the source's time";
            let at = retry(what, &PATIENCE, &self.control, Error::is_transient, ask).await?;
            let source = self.source.clone();
            let (nudged, settled) = tokio::join!(source.heartbeat(), self.settle_at(at));
            // Without the heartbeat the stream still reaches that time, only later.
            if let Err(error) = nudged {
                tracing::debug!(%error, "the source's shards were not nudged");
            }
            if settled? {
                return Ok(at);
            }
        }
        Err(Error::precondition(
            "the source does not keep its history long enough to be read as of one time",
            "raise minSnapshotHistoryWindowInSeconds at the source, then `imago job resume`",
        ))
    }

    /// Applies all changes up to `at` by reads as of exactly that time. Returns false if the source no longer has
    /// that state, so that some documents were read in a later one.
    async fn settle_at(&mut self, at: Timestamp) -> Result<bool> {
        let mut exact = true;
        let is_sharded = self.source.is_sharded();
        while self.late.is_none() {
            let batch = self.control.or_stop(self.batches.recv()).await?;
            let batch = received(batch)?;
            // Shards issue equal times: when one shard has reported its changes of this time, another may not have.
            // For a replica set, the batch that reaches this time has all of its changes.
            let is_behind = if is_sharded { batch.time <= at } else { batch.time < at };
            if is_behind {
                self.record(batch)?;
                continue;
            }
            self.record_events(&batch, |time| time <= at)?;
            self.late = Some((batch, at));
        }
        loop {
            self.dispatch(Some(at));
            let Some(done) = self.rounds.join_next().await else { break };
            let done = done.expect("a round neither panics nor is aborted");
            if let Err(Error::Server { cause, .. }) = &done.outcome
                && matches!(code(cause), Some(239 | 246))
            {
                exact = false;
                let wants = wants_of(&done.rounds);
                let pair = self.pairs[done.ns].clone();
                let (tally, stale) = apply(&pair, &wants, ReadAt::After(at), &self.control).await?;
                self.finish(RoundDone { outcome: Ok((tally, stale)), ..done })?;
                continue;
            }
            self.finish(done)?;
        }
        assert!(self.pending.iter().all(PendingChanges::is_drained), "all dirty keys were applied");
        Ok(exact)
    }

    /// Leaves the settled point: later changes are applied again.
    ///
    /// # Errors
    /// Fails if a later change ends the job.
    pub fn leave_settled(&mut self) -> Result<()> {
        self.set_awaited(false);
        self.record_late()
    }

    fn record_late(&mut self) -> Result<()> {
        if let Some((batch, at)) = self.late.take() {
            self.record_events(&batch, |time| time > at)?;
            self.mark(batch);
        }
        Ok(())
    }
}
