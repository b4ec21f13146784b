//! The coordinator of distributed transactions: asks for locks, runs the procedure, and writes the decision.

use std::collections::BTreeMap;
use std::mem;

use super::message::{Grant, LockRequest, TransactionId, TwoPhaseMessage};
use super::{Coordinated, Core, Share};
use crate::design::Partition;
use crate::key::{Key, KeyRange, Value};
use crate::record::{Body, DistributedCommit, Epoch, Position, Site, Update, Write};
use crate::reply::Reply;
use crate::sampler::Cause;
use crate::site::{Output, ResumedTransaction, Ticket};
use crate::transaction::{Abort, Done, ReadRows, Seen, Transaction, View};

/// Maximum number of distributed transactions that a site coordinates at once; further ones are refused.
const COORDINATED_MAX: usize = 10_000;

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

    fn visit(&self, range: &KeyRange, limit: usize, visit: &mut dyn FnMut(&Key, u64, &Value)) {
        let granted = self.grants.iter().flat_map(|grant| grant.rows.range(range));
        let mut rows: BTreeMap<Key, (u64, Value)> = granted
            .map(|(key, row)| (key.clone(), (row.version, Value::clone(&row.value))))
            .collect();
        let local = self.local.iter().map(|local| local.intersection(range));
        for part in local.filter(|part| !part.is_empty()) {
            self.core.visit(&part, limit, &mut |key, version, value| {
                rows.insert(key.clone(), (version, Value::clone(value)));
            });
        }
        rows.iter().take(limit).for_each(|(key, (version, value))| visit(key, *version, value));
    }
}

impl Core {
    /// Begins to coordinate a distributed transaction, which must run before `until_ms` of the site's clock.
    pub(in crate::site) fn coordinate(
        &mut self,
        ticket: Ticket,
        until_ms: u64,
        transaction: Transaction,
    ) {
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
    pub(in crate::site) fn transaction_id(&self, number: u64) -> TransactionId {
        TransactionId { coordinator: self.site, epoch: self.epoch, number }
    }

    /// Asks the next site for its locks; if all are granted, runs the transaction as soon as this site's prefix of the
    /// log contains what the grants show.
    pub(in crate::site) fn advance(&mut self, number: u64) {
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
        let is_early = is_early && !self.has(crate::site::tests::Bug::GrantAheadOfLog);
        if !is_early {
            self.decide(number);
        }
    }

    /// Runs a distributed transaction all of whose locks are granted, and writes its commit.
    pub(in crate::site) fn decide(&mut self, number: u64) {
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
        self.work[3] += 1;
        match answer {
            Ok(reply) if !written.is_empty() => {
                let writes = distributed(written, &coordinated.grants);
                let commit = DistributedCommit { number, participants, writes };
                self.write(Body::DistributedCommit(commit));
                coordinated.decided = Some(reply);
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
    pub(super) fn run_over_grants(
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
    pub(super) fn abandon(&mut self, number: u64, coordinated: Coordinated, abort: Option<Abort>) {
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
    pub(super) fn release_everywhere(&mut self, number: u64, coordinated: &Coordinated) {
        let id = self.transaction_id(number);
        for (site, _) in coordinated.shares.iter().take(coordinated.grants.len() + 1) {
            self.send_two_phase(*site, TwoPhaseMessage::Release(id, Position::START));
        }
    }

    /// Runs the transactions whose grants this site's prefix of the log now contains.
    pub(in crate::site) fn advance_coordinated(&mut self) {
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
