//! Distributed transactions: those that no site can run alone, executed by two-phase commit over the partitions'
//! masters.
//!
//! The store itself does not use them: it changes its design until one site can run a transaction. They are there so
//! that designs without that ability can be compared with it in the same engine (MorphoSys, §7.1).
//!
//! The site that receives the transaction coordinates it. First phase: it asks the masters of the partitions that it
//! lacks, and itself as one of them, for locks: exclusive ones where the transaction writes, shared ones where it only
//! reads. The masters are asked one after the other, in the order of their numbers, so that no two transactions wait
//! for each other. A master grants its locks when the log has all its entries from before, and sends the
//! rows with the grant. From then on it has prepared the transaction: it does nothing to these partitions until it
//! learns the outcome. Second phase: the coordinator runs the procedure, and writes one log entry with all writes. Its
//! position in the log is the decision, for all sites at once; each participant applies the writes to its partitions
//! when the entry comes, and releases its locks.
//!
//! A participant may be declared dead after it has granted its locks. Another site then masters its
//! partitions and may write them, so the transaction must abort: a commit names the epochs of its participants, and has
//! no effect if one of them is over at its position. If the coordinator is declared dead, a later entry of it is
//! void, and the participants release the locks of its epoch.
//!
//! Invariants:
//! 1. From a grant until the outcome, no log entry changes a locked partition, or its epoch is over at that entry.
//! 2. The coordinator runs the procedure when its prefix of the log contains all that the grants show, and all
//!    participants' epochs are live in that prefix. With 1, the granted rows, and rows of its replicas, are those of
//!    that prefix: one snapshot.
//! 3. A lock is released early only for a transaction that has not written an entry, and never will.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use super::waiting::Want;
use super::{Core, Message, Output, Ticket};
use crate::key::{Key, KeyRange};
use crate::record::{DistributedCommit, Epoch, Position, Site};
use crate::reply::Reply;
use crate::transaction::{Abort, Done, Transaction};

mod coordinator;
pub(super) mod message;
mod participant;

use message::{Grant, LockRequest, TransactionId, TwoPhaseMessage};

/// Time in ms after which a site repeats a message whose answer has not come.
const REPEAT_MS: u64 = if cfg!(test) { 10 } else { 100 };

/// The locks of a distributed transaction at this site, which masters the locked partitions.
struct Locks {
    /// The request that the locks answer.
    request: LockRequest,
    /// The first key of each locked partition, and whether its lock is exclusive.
    partitions: Vec<(Key, bool)>,
    /// The number of this site's log entry that the log must have before the locks are granted. A transaction that ran
    /// here before saw the locked partition and this site's entries up to there: the commit must come after these.
    after: u64,
    /// True once the coordinator was sent the grant.
    is_granted: bool,
    /// Time of the site's clock, in ms, at which the locks were taken or the coordinator was last asked.
    asked_ms: u64,
}

/// The part of a distributed transaction at one site.
#[derive(Default)]
struct Share {
    reads: Vec<KeyRange>,
    writes: Vec<Key>,
}

/// A distributed transaction that this site coordinates.
struct Coordinated {
    /// The request that is answered with the outcome; `None` once it was answered.
    ticket: Option<Ticket>,
    /// Time until which the procedure must run, in ms of the site's clock.
    until_ms: u64,
    /// The transaction; its procedure has run once `decided` is set.
    transaction: Transaction,
    /// Ranges that are read from replicas at this site.
    local: Vec<KeyRange>,
    /// The sites whose locks are needed, each with the keys to lock there, in the order in which they are asked.
    shares: Vec<(Site, Share)>,
    /// The grants of the first of these sites.
    grants: Vec<Grant>,
    /// Time of the site's clock, in ms, at which a site was last asked.
    asked_ms: u64,
    /// The reply, once the log entry with the decision is written; `None` before.
    decided: Option<Reply>,
}

/// The state of distributed transactions at one site.
#[derive(Default)]
pub(super) struct TwoPhase {
    /// The locks at this site, by transaction.
    locks: BTreeMap<TransactionId, Locks>,
    /// First keys of the partitions with exclusive locks.
    exclusive: BTreeSet<Key>,
    /// Number of shared locks of each partition that has any, by its first key.
    shared: BTreeMap<Key, usize>,
    /// Number of locks whose grant is not sent yet.
    ungranted: usize,
    /// True if locks were released by a message, so that waiting requests are to be tried again.
    is_retry_due: bool,
    /// Transactions that this site coordinates, by number.
    coordinated: BTreeMap<u64, Coordinated>,
    /// The number of the last transaction that this site began to coordinate.
    last: u64,
}

impl TwoPhase {
    /// Returns true once after locks were released by a message.
    pub fn take_retry(&mut self) -> bool {
        mem::take(&mut self.is_retry_due)
    }

    /// Returns true if a distributed transaction holds locks at this site.
    pub fn has_locks(&self) -> bool {
        !self.locks.is_empty()
    }

    /// Returns true if a distributed transaction holds an exclusive lock of the partition that begins at `start`.
    pub fn is_exclusive(&self, start: &Key) -> bool {
        self.exclusive.contains(start)
    }

    /// Returns true if a distributed transaction holds a lock of the partition that begins at `start`.
    pub fn is_locked(&self, start: &Key) -> bool {
        self.exclusive.contains(start) || self.shared.contains_key(start)
    }

    /// Returns the number of transactions that hold locks here, plus the number of those that this site coordinates.
    #[cfg(test)]
    pub fn under_way(&self) -> usize {
        self.locks.len() + self.coordinated.len()
    }

    /// Releases the locks of a transaction, if it has any.
    fn release(&mut self, id: TransactionId) {
        let Some(locks) = self.locks.remove(&id) else { return };
        self.ungranted -= usize::from(!locks.is_granted);
        for (start, is_exclusive) in locks.partitions {
            if is_exclusive {
                self.exclusive.remove(&start);
            } else if let Some(count) = self.shared.get_mut(&start) {
                *count -= 1;
                if *count == 0 {
                    self.shared.remove(&start);
                }
            }
        }
    }
}

impl Core {
    /// Sends a message to another site, or handles it if it is for this one.
    fn send_two_phase(&mut self, to: Site, message: TwoPhaseMessage) {
        match to == self.site {
            true => self.hear_two_phase(to, message),
            false => self.say(Output::Say(to, Message::TwoPhase(message))),
        }
    }

    /// Handles a message that site `from` sent about a distributed transaction.
    pub(super) fn hear_two_phase(&mut self, from: Site, message: TwoPhaseMessage) {
        match message {
            TwoPhaseMessage::Lock(request) => self.ask_for_locks(request),
            TwoPhaseMessage::Granted(grant) => {
                let number = grant.number;
                let Some(coordinated) = self.two_phase.coordinated.get_mut(&number) else {
                    // It is over, and writes nothing more.
                    let release = TwoPhaseMessage::Release(self.transaction_id(number), self.known);
                    return self.send_two_phase(from, release);
                };
                let asked = coordinated.shares.get(coordinated.grants.len());
                if asked.is_some_and(|(site, _)| *site == from) {
                    coordinated.grants.push(grant);
                    self.advance(number);
                }
            }
            TwoPhaseMessage::Denied(number) => {
                let coordinated = self.two_phase.coordinated.get(&number);
                let asked = coordinated.and_then(|one| one.shares.get(one.grants.len()));
                if asked.is_some_and(|(site, _)| *site == from)
                    && let Some(coordinated) = self.two_phase.coordinated.remove(&number)
                {
                    self.abandon(number, coordinated, None);
                }
            }
            TwoPhaseMessage::Release(id, known) => {
                let is_due = self.known >= known;
                #[cfg(test)]
                let is_due = is_due || self.has(super::tests::Bug::ReleasedEarly);
                if is_due {
                    self.end_locks(id);
                    self.two_phase.is_retry_due = true;
                }
            }
            TwoPhaseMessage::Inquire(id) => {
                let is_mine = (id.coordinator, id.epoch) == (self.site, self.epoch);
                if is_mine && !self.two_phase.coordinated.contains_key(&id.number) {
                    let release = TwoPhaseMessage::Release(id, self.known);
                    self.send_two_phase(from, release);
                }
            }
        }
    }

    /// Applies the commit of a distributed transaction, which the log has at `position`; or only ends the transaction
    /// if it is aborted there. `is_own` is true if this site coordinates it.
    pub(super) fn follow_distributed(
        &mut self,
        (coordinator, epoch): (Site, Epoch),
        commit: &DistributedCommit,
        position: Position,
        is_committed: bool,
    ) {
        if is_committed {
            for write in &commit.writes {
                self.replicate(write);
            }
            self.note_logged(&commit.writes);
        }
        let id = TransactionId { coordinator, epoch, number: commit.number };
        self.end_locks(id);
        if (coordinator, epoch) != (self.site, self.epoch) {
            return;
        }
        let coordinated = self.two_phase.coordinated.remove(&commit.number);
        let Some(Coordinated { ticket: Some(ticket), decided: Some(answer), .. }) = coordinated
        else {
            return;
        };
        match is_committed {
            true => {
                let done = Done { answer, committed: Some(position) };
                self.say(Output::Answer(ticket, position, Ok(done)));
            }
            // Nothing happened; the client may try again.
            false => self.refuse(ticket, Abort::Late),
        }
    }

    /// Reacts to the beginning or end of an epoch: locks of coordinators whose epoch is over are released, and
    /// transactions whose participants' epochs are over are ended.
    pub(super) fn end_lost_transactions(&mut self) {
        let is_lost = |id: &TransactionId| !self.design.is_in_epoch(id.coordinator, id.epoch);
        let mut lost: Vec<TransactionId> = self.two_phase.locks.keys().copied().collect();
        lost.extend(self.waiting.iter().filter_map(|one| match &one.what {
            Want::Locks(request) => Some(request.id),
            _ => None,
        }));
        lost.retain(is_lost);
        for id in lost {
            self.end_locks(id);
        }
        let is_over = |one: &Coordinated| {
            let granted = one.shares.iter().zip(&one.grants);
            let mut granted = granted.map(|((site, _), grant)| (*site, grant.epoch));
            one.decided.is_none()
                && granted.any(|(site, epoch)| !self.design.is_in_epoch(site, epoch))
        };
        let coordinated = self.two_phase.coordinated.iter();
        let over: Vec<u64> =
            coordinated.filter(|(_, one)| is_over(one)).map(|(number, _)| *number).collect();
        for number in over {
            if let Some(coordinated) = self.two_phase.coordinated.remove(&number) {
                self.abandon(number, coordinated, None);
            }
        }
    }

    /// Ends distributed transactions whose time is over, and repeats messages whose answer has not come.
    pub(super) fn tick_two_phase(&mut self) {
        let now_ms = self.now_ms;
        let coordinated = self.two_phase.coordinated.iter();
        let undecided = coordinated.filter(|(_, one)| one.decided.is_none());
        let numbers: Vec<u64> = undecided.map(|(number, _)| *number).collect();
        for number in numbers {
            let Some(coordinated) = self.two_phase.coordinated.get(&number) else { continue };
            if coordinated.until_ms <= now_ms {
                if let Some(coordinated) = self.two_phase.coordinated.remove(&number) {
                    self.abandon(number, coordinated, Some(Abort::Late));
                }
            } else if now_ms >= coordinated.asked_ms + REPEAT_MS {
                self.advance(number);
            }
        }
        let held = self.two_phase.locks.iter_mut();
        let mut inquired: Vec<TransactionId> = held
            .filter(|(_, locks)| now_ms >= locks.asked_ms + REPEAT_MS)
            .map(|(id, locks)| {
                locks.asked_ms = now_ms;
                *id
            })
            .collect();
        for waiting in &mut self.waiting {
            if let Want::Locks(request) = &waiting.what
                && now_ms >= waiting.since_ms + REPEAT_MS
            {
                waiting.since_ms = now_ms;
                inquired.push(request.id);
            }
        }
        for id in inquired {
            self.send_two_phase(id.coordinator, TwoPhaseMessage::Inquire(id));
        }
    }

    /// Answers the distributed transactions that wait for a log that accepts no entries.
    pub(super) fn stall_two_phase(&mut self) {
        let mut unlogged = Vec::new();
        for coordinated in self.two_phase.coordinated.values_mut() {
            if coordinated.decided.is_some() {
                unlogged.extend(coordinated.ticket.take());
            }
        }
        for ticket in unlogged {
            self.refuse(ticket, Abort::Unlogged);
        }
    }

    /// Ends all distributed transactions at this site, whose epoch is over.
    pub(super) fn end_two_phase(&mut self) {
        let two_phase = mem::take(&mut self.two_phase);
        self.two_phase.last = two_phase.last;
        for coordinated in two_phase.coordinated.into_values() {
            match (coordinated.ticket, coordinated.decided) {
                (Some(ticket), Some(_)) => self.refuse(ticket, Abort::Deposed),
                (Some(ticket), None) => {
                    self.say(Output::Reroute(ticket, coordinated.transaction));
                }
                (None, _) => {}
            }
        }
    }
}
