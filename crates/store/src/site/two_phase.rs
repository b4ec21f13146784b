//! Distributed transactions: those that no site can run alone, executed by two-phase commit over the partitions'
//! masters.
//!
//! The store itself does not use them: it changes its design until one site can run a transaction. They are there so
//! that designs without that ability can be compared with it in the same engine (MorphoSys, §7.1).
//!
//! The site that receives the transaction coordinates it. First phase: it asks the masters of the partitions that it
//! lacks, and itself as one of them, for locks: exclusive ones where the transaction writes, shared ones where it only
//! reads. The masters are asked one after the other, in the order of their numbers, so that no two transactions wait
//! for each other. A master grants its locks when the log has all its changes of the locked partitions, and sends the
//! rows with the grant. From then on it has prepared the transaction: it does nothing to these partitions until it
//! learns the outcome. Second phase: the coordinator runs the procedure, and writes one log entry with all writes. Its
//! position in the log is the decision, for all sites at once; each participant applies the writes to its partitions
//! when the entry comes, and releases its locks.
//!
//! The sites of a participant may be declared dead after it has granted its locks. Another site then masters its
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

use serde::{Deserialize, Serialize};

use super::waiting::{Waiting, Want};
use super::{Core, Message, Output, ResumedTransaction, Ticket};
use crate::design::{Design, Partition};
use crate::key::{Key, KeyRange, Value};
use crate::record::{Body, DistributedCommit, Epoch, Position, Row, Site, Update, Write};
use crate::reply::Reply;
use crate::rows::Rows;
use crate::sampler::Cause;
use crate::transaction::{Abort, Done, ReadRows, Seen, Transaction, View};

/// Time in ms after which a site repeats a message whose answer has not come.
const REPEAT_MS: u64 = if cfg!(test) { 10 } else { 100 };
/// Maximum number of distributed transactions that a site coordinates at once; further ones are refused.
const COORDINATED_MAX: usize = 10_000;

/// The identity of a distributed transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TransactionId {
    /// The site that coordinates the transaction.
    pub coordinator: Site,
    /// The epoch of the coordinator.
    pub epoch: Epoch,
    /// The number of the transaction among those that the coordinator has begun in that epoch.
    pub number: u64,
}

/// A request to the master of partitions to lock them for a distributed transaction.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LockRequest {
    /// The transaction for which the partitions are locked.
    pub id: TransactionId,
    /// The log position that the master must have reached, because the transaction's session has seen it.
    pub session: Position,
    /// Ranges of keys whose partitions get shared locks. The master sends their rows.
    pub reads: Vec<KeyRange>,
    /// Keys whose partitions get exclusive locks. The master sends their rows.
    pub writes: Vec<Key>,
}

/// The locks that a site has granted for a distributed transaction, and the rows that they protect.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Grant {
    /// The number of the transaction at its coordinator.
    number: u64,
    /// The epoch of the site that grants the locks.
    epoch: Epoch,
    /// The log position that the site had reached when it granted the locks. It contains all changes of the locked
    /// partitions.
    known: Position,
    /// The range and version of each partition with an exclusive lock.
    written: Vec<(KeyRange, u64)>,
    /// The rows that the request names.
    rows: Rows,
}

/// A message between the coordinator of a distributed transaction and a participant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum TwoPhaseMessage {
    /// The coordinator asks for locks.
    Lock(LockRequest),
    /// The participant has locked the partitions.
    Granted(Grant),
    /// The participant does not master the partitions: the transaction with this number cannot go on.
    Denied(u64),
    /// The transaction writes nothing: the participant releases its locks once it has the given log position.
    Release(TransactionId, Position),
    /// The participant asks whether the transaction is still under way.
    Inquire(TransactionId),
}

/// The locks of a distributed transaction at this site, which masters the locked partitions.
struct Locks {
    /// The request that the locks answer.
    request: LockRequest,
    /// The first key of each locked partition, and whether its lock is exclusive.
    partitions: Vec<(Key, bool)>,
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
    /// The transaction; its procedure has run once `entry` is set.
    transaction: Transaction,
    /// Ranges that are read from replicas at this site.
    local: Vec<KeyRange>,
    /// The sites whose locks are needed, each with the keys to lock there, in the order in which they are asked.
    shares: Vec<(Site, Share)>,
    /// The grants of the first of these sites.
    grants: Vec<Grant>,
    /// Time of the site's clock, in ms, at which a site was last asked.
    asked_ms: u64,
    /// The number of the log entry with the decision, and the reply; `None` before it is written.
    decided: Option<(u64, Reply)>,
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

/// The rows of a distributed transaction: granted ones, and those of replicas at the coordinator.
struct Gathered<'a> {
    core: &'a Core,
    local: &'a [KeyRange],
    grants: &'a [Grant],
}

impl ReadRows for Gathered<'_> {
    fn get(&self, key: &Key) -> Option<Seen> {
        if self.local.iter().any(|range| range.contains(key)) {
            return self.core.get(key);
        }
        let row = self.grants.iter().find_map(|grant| grant.rows.get(key))?;
        Some(Seen { version: row.version, value: Value::clone(&row.value) })
    }

    fn range(&self, range: &KeyRange, limit: usize) -> Vec<(Key, Seen)> {
        let seen = |(key, row): (&Key, &Row)| {
            (key.clone(), Seen { version: row.version, value: Value::clone(&row.value) })
        };
        let granted = self.grants.iter().flat_map(|grant| grant.rows.range(range)).map(seen);
        let mut rows: BTreeMap<Key, Seen> = granted.collect();
        let local = self.local.iter().map(|local| local.intersection(range));
        for part in local.filter(|part| !part.is_empty()) {
            rows.extend(self.core.range(&part, limit));
        }
        rows.into_iter().take(limit).collect()
    }
}

impl LockRequest {
    /// Returns true if the request is for an exclusive lock of the partition that begins at `start`.
    pub(super) fn writes_to(&self, start: &Key, design: &Design) -> bool {
        self.writes.iter().any(|key| design.of(key).range.start == *start)
    }
}

impl Core {
    /// Tells the coordinator of a distributed transaction that it does not get the locks.
    pub(super) fn deny_locks(&mut self, request: &LockRequest) {
        let TransactionId { coordinator, number, .. } = request.id;
        self.send_two_phase(coordinator, TwoPhaseMessage::Denied(number));
    }

    /// Begins to coordinate a distributed transaction, which must run before `until_ms` of the site's clock.
    pub(super) fn coordinate(&mut self, ticket: Ticket, until_ms: u64, transaction: Transaction) {
        if self.two_phase.coordinated.len() >= COORDINATED_MAX {
            return self.refuse(ticket, Abort::Busy);
        }
        let mut shares: BTreeMap<Site, Share> = BTreeMap::new();
        let mut local = Vec::new();
        for range in &transaction.reads {
            for partition in self.design.within(range) {
                let part = range.intersection(&partition.range);
                match partition.master != self.site && partition.is_at(self.site) {
                    true => local.push(part),
                    false => shares.entry(partition.master).or_default().reads.push(part),
                }
            }
        }
        for key in &transaction.writes {
            shares.entry(self.design.of(key).master).or_default().writes.push(key.clone());
        }
        self.two_phase.last += 1;
        let number = self.two_phase.last;
        let coordinated = Coordinated {
            ticket: Some(ticket),
            until_ms,
            transaction,
            local,
            shares: shares.into_iter().collect(),
            grants: Vec::new(),
            asked_ms: self.now_ms,
            decided: None,
        };
        self.two_phase.coordinated.insert(number, coordinated);
        self.advance(number);
    }

    /// Returns the identity of the transaction with this number that this site coordinates.
    fn transaction_id(&self, number: u64) -> TransactionId {
        TransactionId { coordinator: self.site, epoch: self.epoch, number }
    }

    /// Sends a message to another site, or handles it if it is for this one.
    fn send_two_phase(&mut self, to: Site, message: TwoPhaseMessage) {
        match to == self.site {
            true => self.hear_two_phase(to, message),
            false => self.say(Output::Say(to, Message::TwoPhase(message))),
        }
    }

    /// Asks the next site for its locks; if all are granted, runs the transaction as soon as this site's prefix of the
    /// log contains what the grants show.
    fn advance(&mut self, number: u64) {
        let id = self.transaction_id(number);
        let now_ms = self.now_ms;
        let Some(coordinated) = self.two_phase.coordinated.get_mut(&number) else { return };
        if coordinated.decided.is_some() {
            return;
        }
        if let Some((site, share)) = coordinated.shares.get(coordinated.grants.len()) {
            coordinated.asked_ms = now_ms;
            let (site, session) = (*site, coordinated.transaction.session);
            let (reads, writes) = (share.reads.clone(), share.writes.clone());
            let request = LockRequest { id, session, reads, writes };
            return self.send_two_phase(site, TwoPhaseMessage::Lock(request));
        }
        let snapshot = coordinated.grants.iter().map(|grant| grant.known).max();
        let is_early =
            self.known < snapshot.unwrap_or_default().max(coordinated.transaction.session);
        #[cfg(test)]
        let is_early = is_early && !self.has(super::tests::Bug::GrantAheadOfLog);
        if !is_early {
            self.decide(number);
        }
    }

    /// Runs a distributed transaction all of whose locks are granted, and writes its commit.
    fn decide(&mut self, number: u64) {
        let Some(mut coordinated) = self.two_phase.coordinated.remove(&number) else { return };
        let participants: Vec<(Site, Epoch)> = coordinated
            .shares
            .iter()
            .zip(&coordinated.grants)
            .map(|((site, _), grant)| (*site, grant.epoch))
            .collect();
        let is_live =
            participants.iter().all(|(site, epoch)| self.design.is_in_epoch(*site, *epoch));
        // A replica that was removed has no rows, and one that became the master may be ahead of the log.
        let is_replica = |one: &Partition| one.is_at(self.site) && one.master != self.site;
        let is_here = |range: &KeyRange| self.design.within(range).all(is_replica);
        if !is_live || !coordinated.local.iter().all(is_here) {
            return self.abandon(number, coordinated, None);
        }
        if self.is_stalled && !coordinated.transaction.writes.is_empty() {
            return self.abandon(number, coordinated, Some(Abort::LogFull));
        }
        let (answer, rows_read, written) = self.run_over_grants(&mut coordinated);
        let Some(ticket) = coordinated.ticket else { return };
        let rows = (rows_read, written.len() as u32);
        self.last_run = Some((ticket, rows.0, rows.1));
        self.resumed.push(ResumedTransaction { ticket, cause: Cause::Partition, rows });
        self.work[0] += u64::from(rows.0);
        match answer {
            Ok(reply) if !written.is_empty() => {
                let writes = distributed(written, &coordinated.grants);
                let commit = DistributedCommit { number, participants, writes };
                let entry = self.write(Body::DistributedCommit(commit));
                coordinated.decided = Some((entry, reply));
                self.two_phase.coordinated.insert(number, coordinated);
            }
            answer => {
                let done = answer.map(|answer| Done { answer, committed: None });
                self.say(Output::Answer(ticket, self.known, done));
                self.release_everywhere(number, &coordinated);
            }
        }
    }

    /// Runs the procedure of a distributed transaction, and returns its answer, the number of rows that it read, and the
    /// rows that it writes.
    fn run_over_grants(
        &self,
        coordinated: &mut Coordinated,
    ) -> (Result<Reply, Abort>, u32, BTreeMap<Key, Option<Value>>) {
        let Coordinated { transaction, local, grants, .. } = coordinated;
        let gathered = Gathered { core: self, local, grants };
        let mut view = View::new(&gathered, &transaction.reads, &transaction.writes);
        let answer = transaction.procedure.run(&mut view);
        let answer = self.checked(answer, &view, transaction.output.as_ref());
        (answer, view.rows_read.get(), mem::take(&mut view.written))
    }

    /// Ends a transaction that has written nothing: returns it to its caller to be routed again, or answers with an
    /// error, and releases its locks.
    fn abandon(&mut self, number: u64, coordinated: Coordinated, abort: Option<Abort>) {
        self.release_everywhere(number, &coordinated);
        match (coordinated.ticket, abort) {
            (Some(ticket), Some(abort)) => self.refuse(ticket, abort),
            (Some(ticket), None) => {
                self.say(Output::Reroute(ticket, coordinated.transaction));
            }
            (None, _) => {}
        }
    }

    /// Releases the locks that sites hold or may hold for a transaction that has written nothing.
    fn release_everywhere(&mut self, number: u64, coordinated: &Coordinated) {
        let id = self.transaction_id(number);
        for (site, _) in coordinated.shares.iter().take(coordinated.grants.len() + 1) {
            self.send_two_phase(*site, TwoPhaseMessage::Release(id, Position::START));
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

    /// Handles a coordinator's request for locks: takes them, or queues the request.
    fn ask_for_locks(&mut self, request: LockRequest) {
        let LockRequest { id, .. } = request;
        if !self.design.is_in_epoch(id.coordinator, id.epoch) {
            // Its coordinator is declared dead, or is not known here yet: it asks again.
            return;
        }
        if let Some(locks) = self.two_phase.locks.get_mut(&id) {
            // The grant was lost.
            if mem::replace(&mut locks.is_granted, false) {
                self.two_phase.ungranted += 1;
            }
            return self.send_grants();
        }
        let is_same = |one: &Waiting| matches!(&one.what, Want::Locks(request) if request.id == id);
        if self.waiting.iter().any(is_same) {
            return;
        }
        let what = Want::Locks(Box::new(request));
        let (ticket, since_ms, until_ms, cause) = (0, self.now_ms, u64::MAX, None);
        let waiting = Waiting { ticket, since_ms, until_ms, what, cause };
        if self.waiting.len() >= super::WAITING_MAX {
            return self.return_to_caller(waiting);
        }
        let waiting = self.attempt(waiting);
        self.waiting.extend(waiting);
    }

    /// Takes the locks of a request, which are free.
    pub(super) fn take_locks(&mut self, request: &LockRequest) {
        let mut partitions: BTreeMap<Key, bool> = BTreeMap::new();
        for range in &request.reads {
            for partition in self.design.within(range) {
                partitions.insert(partition.range.start.clone(), false);
            }
        }
        for key in &request.writes {
            partitions.insert(self.design.of(key).range.start.clone(), true);
        }
        #[cfg(test)]
        if self.has(super::tests::Bug::SharedLockIgnored) {
            partitions.retain(|_, is_exclusive| *is_exclusive);
        }
        for (start, is_exclusive) in &partitions {
            match is_exclusive {
                true => _ = self.two_phase.exclusive.insert(start.clone()),
                false => *self.two_phase.shared.entry(start.clone()).or_default() += 1,
            }
        }
        let (partitions, asked_ms) = (partitions.into_iter().collect(), self.now_ms);
        let locks = Locks { request: request.clone(), partitions, is_granted: false, asked_ms };
        self.two_phase.locks.insert(request.id, locks);
        self.two_phase.ungranted += 1;
        self.send_grants();
    }

    /// Sends the grants of locks whose partitions have no changes that the log lacks.
    pub(super) fn send_grants(&mut self) {
        if self.two_phase.ungranted == 0 {
            return;
        }
        let is_logged = |(start, _): &(Key, bool)| self.copies[start].last <= self.ordered;
        let due = |locks: &Locks| !locks.is_granted && locks.partitions.iter().all(is_logged);
        let due = self.two_phase.locks.iter().filter(|(_, locks)| due(locks));
        let due: Vec<TransactionId> = due.map(|(id, _)| *id).collect();
        for id in due {
            let Some(locks) = self.two_phase.locks.get_mut(&id) else { continue };
            locks.is_granted = true;
            self.two_phase.ungranted -= 1;
            let Some(locks) = self.two_phase.locks.get(&id) else { continue };
            let grant = self.grant_of(locks);
            self.send_two_phase(id.coordinator, TwoPhaseMessage::Granted(grant));
        }
    }

    /// Returns the grant of locks, with the rows that they protect.
    fn grant_of(&self, locks: &Locks) -> Grant {
        let LockRequest { id, reads, writes, .. } = &locks.request;
        let mut rows: BTreeMap<Key, Row> = BTreeMap::new();
        let row = |seen: Seen| Row { version: seen.version, value: seen.value };
        for range in reads {
            rows.extend(self.range(range, usize::MAX).into_iter().map(|(key, it)| (key, row(it))));
        }
        for (key, seen) in writes.iter().zip(self.get_each(writes)) {
            rows.extend(seen.map(|seen| (key.clone(), row(seen))));
        }
        let copies = locks.partitions.iter().filter(|(_, is_exclusive)| *is_exclusive);
        let copies = copies.map(|(start, _)| &self.copies[start]);
        Grant {
            number: id.number,
            epoch: self.epoch,
            known: self.known,
            written: copies.map(|copy| (copy.range.clone(), copy.version)).collect(),
            rows: Rows::from_sorted(rows.into_iter().collect()),
        }
    }

    /// Releases the locks of a transaction, and drops its request for locks if that waits.
    fn end_locks(&mut self, id: TransactionId) {
        self.two_phase.release(id);
        self.waiting.retain(|one| !matches!(&one.what, Want::Locks(request) if request.id == id));
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
        let Some(Coordinated { ticket: Some(ticket), decided: Some((_, answer)), .. }) =
            coordinated
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

    /// Runs the transactions whose grants this site's prefix of the log now contains.
    pub(super) fn advance_coordinated(&mut self) {
        let is_complete = |one: &Coordinated| one.grants.len() == one.shares.len();
        let coordinated = self.two_phase.coordinated.iter();
        let ready: Vec<u64> = coordinated
            .filter(|(_, one)| one.decided.is_none() && is_complete(one))
            .map(|(number, _)| *number)
            .collect();
        for number in ready {
            self.advance(number);
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

/// Returns the writes of a transaction by partition, with the versions after those that were granted.
fn distributed(written: BTreeMap<Key, Option<Value>>, grants: &[Grant]) -> Vec<Write> {
    let mut writes: Vec<Write> = Vec::new();
    for (key, value) in written {
        let mut partitions = grants.iter().flat_map(|grant| &grant.written);
        let (range, version) = partitions
            .find(|(range, _)| range.contains(&key))
            .expect("a written key is in a partition with an exclusive lock");
        if writes.last().is_none_or(|write| write.start != range.start) {
            let start = range.start.unshared();
            writes.push(Write { start, version: version + 1, rows: Vec::new() });
        }
        let update = value.map_or(Update::Delete, Update::Put);
        writes.last_mut().expect("one was pushed").rows.push((key, update));
    }
    writes
}
