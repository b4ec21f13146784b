//! The participants of distributed transactions: locks at the master of partitions, and their grants.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use super::message::{Grant, LockRequest, TransactionId, TwoPhaseMessage};
use super::{Core, Locks};
use crate::key::Key;
use crate::record::Row;
use crate::rows::Rows;
use crate::site::WAITING_MAX;
use crate::site::waiting::{Waiting, Want};
use crate::transaction::{ReadRows as _, Seen};

impl Core {
    /// Tells the coordinator of a distributed transaction that it does not get the locks.
    pub(in crate::site) fn deny_locks(&mut self, request: &LockRequest) {
        let TransactionId { coordinator, number, .. } = request.id;
        self.send_two_phase(coordinator, TwoPhaseMessage::Denied(number));
    }

    /// Handles a coordinator's request for locks: takes them, or queues the request.
    pub(in crate::site) fn ask_for_locks(&mut self, request: LockRequest) {
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
        let waiting = Waiting { ticket, since_ms, until_ms, what, cause, touched: None };
        if self.waiting.len() >= WAITING_MAX {
            return self.return_to_caller(waiting);
        }
        let waiting = self.attempt(waiting);
        self.waiting.extend(waiting);
    }

    /// Takes the locks of a request, which are free.
    pub(in crate::site) fn take_locks(&mut self, request: &LockRequest) {
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
        if self.has(crate::site::tests::Bug::SharedLockIgnored) {
            partitions.retain(|_, is_exclusive| *is_exclusive);
        }
        for (start, is_exclusive) in &partitions {
            match is_exclusive {
                true => _ = self.two_phase.exclusive.insert(start.clone()),
                false => *self.two_phase.shared.entry(start.clone()).or_default() += 1,
            }
        }
        let (partitions, asked_ms) = (partitions.into_iter().collect(), self.now_ms);
        let after = if request.writes.is_empty() { 0 } else { self.written };
        let (request, is_granted) = (request.clone(), false);
        let id = request.id;
        let locks = Locks { request, partitions, after, is_granted, asked_ms };
        self.two_phase.locks.insert(id, locks);
        self.two_phase.ungranted += 1;
        self.send_grants();
    }

    /// Sends the grants of locks whose partitions have no changes that the log lacks.
    pub(in crate::site) fn send_grants(&mut self) {
        if self.two_phase.ungranted == 0 {
            return;
        }
        let is_logged = |(start, _): &(Key, bool)| self.copies[start].last <= self.ordered;
        let due = |locks: &Locks| {
            !locks.is_granted
                && locks.after <= self.ordered
                && locks.partitions.iter().all(is_logged)
        };
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
    pub(super) fn grant_of(&self, locks: &Locks) -> Grant {
        let LockRequest { id, reads, writes, .. } = &locks.request;
        let mut rows: BTreeMap<Key, Row> = BTreeMap::new();
        let row = |seen: Seen| Row { version: seen.version, value: seen.value };
        for range in reads {
            self.visit(range, usize::MAX, &mut |key, version, value| {
                rows.insert(key.clone(), Row { version, value: Arc::clone(value) });
            });
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
    pub(in crate::site) fn end_locks(&mut self, id: TransactionId) {
        self.two_phase.release(id);
        self.waiting.retain(|one| !matches!(&one.what, Want::Locks(request) if request.id == id));
    }
}
