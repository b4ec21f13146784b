//! Rounds: batches of dirty keys that are applied to the destination.
//!
//! A round reads the present states of its documents and writes them ([`crate::replicate::apply`]), concurrently with
//! the coordinator. [`imago_plan::copy::pending_changes`] selects its keys. At full speed several rounds run at a
//! time, each as large as possible. While clients are spared, one small round runs at a time, and a pause follows it.

use std::time::{Duration, Instant};

use bson::Timestamp;
use imago_job::control::Control;
use imago_job::retry::retry;
use imago_plan::copy::pending_changes::{Change, PendingChanges, Round};
use imago_plan::pacing::rounds::{Sizes, pause_after, piece_size};

use super::{Coordinator, LANES};
use crate::bson::order::Id;
use crate::error::{Error, Result, code};
use crate::replicate::apply::{self, ReadAt, Tally, Want};
use crate::replicate::pair::Pair;
use crate::server::timing::PATIENCE;

/// Most rounds that one coordinator runs at the same time.
const ROUNDS_MAX: usize = 4;
/// Size of the smallest round, in dirty keys, while clients are spared: used while servers reply so quickly that one
/// such round at a time suffices. Clients hardly notice it.
const PACED_TOUCHES: usize = 32;
/// Time within which all ready dirty keys (those that wait only for a round) are to be applied while clients are
/// spared. Dirty keys that waited for a slice become ready together when the slice is copied; a round is only as
/// large as this time requires.
const PACED_DRAIN: Duration = Duration::from_secs(10);
/// Number of ready dirty keys above which clients are no longer spared: changes then arrive faster than small rounds
/// apply them, and keeping up with the source takes precedence.
const PACED_READY_MAX: usize = 10_000;
/// Most dirty keys that one round of all lanes applies at a settled point: one read finds them, and one write of each
/// kind applies them.
const JOINT_KEYS_MAX: usize = 500;
/// Most dirty keys of one round, be it of one lane or of all lanes of a collection.
const ROUND_KEYS_MAX: usize = 2_000;

/// A finished round.
pub(super) struct RoundDone {
    /// The number of the collection to which the round was applied.
    pub ns: usize,
    /// The dirty keys that were to be applied, in one [`Round`] for each lane.
    pub rounds: Vec<Round<Id>>,
    /// Duration of the round's reads and writes.
    pub took: Duration,
    /// The writes done, and the `_id`s of documents that were displaced from a unique index, to be marked dirty
    /// again.
    pub outcome: Result<(Tally, Vec<Id>)>,
}

impl Coordinator {
    /// Starts the rounds that may run now. With `exactly`, they read the source as of exactly that cluster time.
    pub(super) fn dispatch(&mut self, exactly: Option<Timestamp>) {
        // A round passes the throttle as a whole: a round of several seconds would be a burst.
        let limit = self.control.throttle().limits().documents_s.unwrap_or(u64::MAX);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let ready = self.ready();
        if exactly.is_none() && self.is_sparing() && ready <= PACED_READY_MAX {
            return self.dispatch_jointly(self.paced_keys(ready).min(limit), None);
        }
        // Clients wait for a settled point, and fewer commands reach it sooner.
        if exactly.is_some() && ready <= JOINT_KEYS_MAX {
            return self.dispatch_jointly(JOINT_KEYS_MAX, exactly);
        }
        let keys_max = if exactly.is_none() { ROUND_KEYS_MAX.min(limit) } else { ROUND_KEYS_MAX };
        let lanes = self.pending.len() * LANES;
        let first = self.next_lane;
        for step in 0..lanes {
            if self.rounds.len() >= ROUNDS_MAX {
                return;
            }
            let turn = (first + step) % lanes;
            let (ns, lane) = (turn / LANES, turn % LANES);
            let Some(round) = self.pending[ns].round(lane, keys_max) else { continue };
            self.next_lane = turn + 1;
            self.spawn(ns, vec![round], exactly);
        }
    }

    /// Starts a round of up to `keys_max` dirty keys from all lanes of one collection, unless a round is running:
    /// that takes a few commands for each server. If clients are spared, a pause follows.
    fn dispatch_jointly(&mut self, keys_max: usize, exactly: Option<Timestamp>) {
        let rests = self.is_sparing() && Instant::now() < self.next_round_at;
        if !self.rounds.is_empty() || rests {
            return;
        }
        let lanes = self.pending.len() * LANES;
        let (mut joint, mut room, mut of) = (Vec::new(), keys_max, None);
        for turn in (self.next_lane..self.next_lane + lanes).map(|turn| turn % lanes) {
            let (ns, lane) = (turn / LANES, turn % LANES);
            if room == 0 || of.is_some_and(|of| of != ns) {
                break;
            }
            if let Some(round) = self.pending[ns].round(lane, room) {
                (self.next_lane, of) = (turn + 1, Some(ns));
                room -= round.dirty_keys.len();
                joint.push(round);
            }
        }
        if let Some(ns) = of {
            self.spawn(ns, joint, exactly);
        }
    }

    fn spawn(&mut self, ns: usize, rounds: Vec<Round<Id>>, exactly: Option<Timestamp>) {
        let last = rounds.iter().map(Round::last).max().unwrap_or(0);
        let at = exactly.map_or_else(|| ReadAt::After(self.time_of(last)), ReadAt::Exactly);
        let (pair, control) = (self.pairs[ns].clone(), self.control.clone());
        self.rounds.spawn(async move {
            let began = Instant::now();
            let outcome = apply(&pair, &wants_of(&rounds), at, &control).await;
            RoundDone { ns, rounds, took: began.elapsed(), outcome }
        });
    }

    /// Returns true if clients are spared, and no caller waits for the coordinator to catch up.
    fn is_sparing(&self) -> bool {
        self.control.throttle().is_paced() && !*self.is_awaited.borrow()
    }

    /// Returns the number of dirty keys that wait only for a round, or are in one.
    fn ready(&self) -> usize {
        self.dirty_keys() - self.pending.iter().map(PendingChanges::aside).sum::<usize>()
    }

    /// Returns the number of dirty keys in one round while clients are spared, if `ready` dirty keys wait only for a
    /// round.
    fn paced_keys(&self, ready: usize) -> usize {
        let sizes = Sizes { least: PACED_TOUCHES, most: ROUND_KEYS_MAX };
        piece_size(self.round_took, ready, PACED_DRAIN, sizes)
    }

    /// Records the result of a round: its dirty keys are applied, and displaced documents become dirty.
    pub(super) fn finish(&mut self, done: RoundDone) -> Result<()> {
        let dirty_keys = done.rounds.iter().map(|round| round.dirty_keys.len()).sum::<usize>();
        tracing::trace!(dirty_keys, ready = self.ready(), took = ?done.took, "a round has ended");
        let (tally, stale) = done.outcome?;
        self.changes_applied += tally.written + tally.deleted;
        for id in stale {
            self.mark_dirty(done.ns, id, Change::Any);
        }
        for round in done.rounds {
            self.pending[done.ns].finish(round);
        }
        if self.is_sparing() {
            self.round_took = done.took;
            let rounds = self.ready().div_ceil(self.paced_keys(self.ready()));
            let rounds = u32::try_from(rounds).unwrap_or(u32::MAX);
            self.next_round_at = Instant::now() + pause_after(done.took, rounds, PACED_DRAIN);
        }
        Ok(())
    }
}

pub(super) fn wants_of(rounds: &[Round<Id>]) -> Vec<Want> {
    let wants = rounds.iter().flat_map(|round| &round.dirty_keys);
    wants.map(|(id, dirty_key)| Want { id: id.clone(), change: dirty_key.change }).collect()
}

pub(super) async fn apply(
    pair: &Pair,
    wants: &[Want],
    at: ReadAt,
    control: &Control,
) -> Result<(Tally, Vec<Id>)> {
    let stale = std::sync::Mutex::new(Vec::new());
    let is_exact = matches!(at, ReadAt::Exactly(_));
    let tally = retry(
        &format!("apply changes to {}", pair.destination.ns),
        &PATIENCE,
        // An attempt is not dropped when the job is stopped: the server would continue its write, whose end would be
        // unknown.
        &Control::default(),
        |error: &Error| {
            let too_old = is_exact && is_too_old(error);
            error.is_transient() && !too_old && control.stopped().is_none()
        },
        |_| async {
            // A settled point has few documents, and clients may wait for it.
            if !is_exact {
                control.take(wants.len() as u64, 0).await?;
            }
            let mut found = Vec::new();
            let done = apply::apply(pair, wants, at, &mut found).await;
            stale.lock().expect("no holder panics").append(&mut found);
            if let (Ok(tally), false) = (&done, is_exact) {
                // The size of the documents is known only now, so later rounds wait for it.
                control.or_stop(control.throttle().take(0, tally.bytes)).await?;
            }
            done
        },
    )
    .await?;
    Ok((tally, stale.into_inner().expect("no holder panics")))
}

fn is_too_old(error: &Error) -> bool {
    matches!(error, Error::Server { cause, .. } if matches!(code(cause), Some(239 | 246)))
}
