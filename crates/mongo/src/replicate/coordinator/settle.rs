//! Settling: the destination becomes the source as of one time, and stays so.
//!
//! The source is asked for its time, the stream is read until it has passed it, and every dirty key up to it
//! is applied by reads of the source as of exactly that time. A change behind it waits until the point
//! is left.

use bson::Timestamp;
use imago_job::retry::retry;
use imago_plan::pending_changes::PendingChanges;

use super::rounds::{RoundDone, apply, wants_of};
use super::{Coordinator, received};
use crate::error::{Error, Result, code};
use crate::replicate::apply::ReadAt;
use crate::server::timing::PATIENCE;

/// Attempts to settle; a new one begins when the source no longer keeps the state it asks for.
const SETTLE_ATTEMPTS_MAX: usize = 8;

impl Coordinator {
    /// Makes the destination the source at exactly one time, and returns that time. Until
    /// [`Coordinator::go_on`] nothing more is applied.
    ///
    /// # Errors
    /// An error that ends the job, and a source that keeps too little history to be read as of one
    /// time.
    ///
    /// # Panics
    /// If not every slice is copied.
    pub async fn settle(&mut self) -> Result<Timestamp> {
        assert!(self.is_copied(), "only a complete copy can be settled");
        self.hurry(true);
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
            // Without it the stream gets there too, only later.
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

    async fn settle_at(&mut self, at: Timestamp) -> Result<bool> {
        let mut exact = true;
        let is_sharded = self.source.is_sharded();
        while self.late.is_none() {
            let batch = self.control.or_stop(self.batches.recv()).await?;
            let batch = received(batch)?;
            // Shards give out the same times: where one has told what it did at this one, another may
            // not have. Of a replica set nothing later may come.
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

    /// Leaves the settled point: the changes behind it are applied again as they come.
    ///
    /// # Errors
    /// Fails if a change behind it ends the job.
    pub fn go_on(&mut self) -> Result<()> {
        self.hurry(false);
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
