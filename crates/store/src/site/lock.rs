//! The locks of transactions and changes of design, and the order in which they are granted.
//!
//! A writer locks the partitions that it writes, so that the rows that it read are not overwritten. A
//! transaction that also reads replicas locks its reads of this site's own partitions, until the log has all
//! their changes: otherwise other writers could make it wait for ever. A change of design locks its partition, and
//! a merge also the partition after it.

use super::waiting::Touched;
use super::{Core, Want, refused};
use crate::design::Partition;
use crate::key::Key;
use crate::record::{Change, Operator};
use crate::transaction::{Abort, Transaction};

impl Core {
    /// Returns the first keys of the partitions that a request locks, or the reason why it cannot run at this site.
    /// `touched` has the partitions of a transaction that were looked up before, and gets them.
    pub(super) fn locks(
        &self,
        what: &Want,
        touched: &mut Option<Touched>,
    ) -> Result<Vec<Key>, Abort> {
        let mastered = |key: &Key| {
            let partition = self.design.of(key);
            let is_here = partition.master == self.site;
            is_here.then(|| partition.range.start.clone()).ok_or(Abort::Elsewhere)
        };
        match what {
            Want::Transaction(transaction) => {
                let known = touched.take();
                let is_same = |known: &Touched| known.design_changes == self.design_changes;
                #[cfg(test)]
                let is_same =
                    |known: &Touched| is_same(known) || self.has(super::tests::Bug::OldDesign);
                let known = known.filter(is_same);
                let known = match known {
                    Some(known) => known,
                    None => self.touched(transaction)?,
                };
                let mut locks = known.written.clone();
                // A request that waits for the log to have this site's writes must not also wait for
                // later writes.
                if known.read.iter().any(|start| !self.keeps(self.design.of(start))) {
                    let is_own = |start: &&Key| self.design.of(start).master == self.site;
                    locks.extend(known.read.iter().filter(is_own).cloned());
                    locks.sort_unstable();
                    locks.dedup();
                }
                *touched = Some(known);
                Ok(locks)
            }
            Want::Locks(request) => {
                let read = request.reads.iter().flat_map(|range| self.design.within(range));
                let written = request.writes.iter().map(|key| self.design.of(key));
                let mut locks = Vec::new();
                for partition in read.chain(written) {
                    if partition.master != self.site {
                        return Err(Abort::Elsewhere);
                    }
                    locks.push(partition.range.start.clone());
                }
                locks.sort_unstable();
                locks.dedup();
                Ok(locks)
            }
            Want::Change(Change { operator: Operator::AddReplica(..), .. }) => {
                Err(Abort::Refused("a site makes a replica for itself".into()))
            }
            Want::Change(change) => {
                let mut locks = vec![mastered(&change.start)?];
                self.design.check(change).map_err(|impossible| refused(&impossible))?;
                if change.operator == Operator::Merge {
                    locks.extend(self.design.of(&change.start).range.end.clone());
                }
                Ok(locks)
            }
        }
    }

    /// Returns the partitions that a transaction touches, or an error if this site does not master those that it writes or
    /// lacks a copy of one that it reads.
    fn touched(&self, transaction: &Transaction) -> Result<Touched, Abort> {
        let sorted = |mut starts: Vec<Key>| {
            starts.sort_unstable();
            starts.dedup();
            starts
        };
        let mut written = Vec::new();
        for key in &transaction.writes {
            let partition = self.design.of(key);
            if partition.master != self.site {
                return Err(Abort::Elsewhere);
            }
            if written.last() != Some(&partition.range.start) {
                written.push(partition.range.start.clone());
            }
        }
        let mut read = Vec::new();
        for partition in transaction.reads.iter().flat_map(|range| self.design.within(range)) {
            if !partition.is_at(self.site) {
                return Err(Abort::Elsewhere);
            }
            if read.last() != Some(&partition.range.start) {
                read.push(partition.range.start.clone());
            }
        }
        let design_changes = self.design_changes;
        Ok(Touched { design_changes, written: sorted(written), read: sorted(read) })
    }

    /// Returns true if a transaction on these partitions certainly has to wait until the log has more of this site's
    /// entries: it reads a replica, and a partition that it writes has changes that the log lacks. It is a part of what
    /// [`Self::last_if_possible`] checks, at less cost.
    pub(super) fn must_wait(&self, touched: &Touched) -> bool {
        #[cfg(test)]
        if self.has(super::tests::Bug::SnapshotAheadOfLog) {
            return false;
        }
        let is_ahead = |start: &Key| self.copies[start].last > self.ordered;
        touched.written.iter().any(is_ahead)
            && touched.read.iter().any(|start| !self.keeps(self.design.of(start)))
    }

    /// Returns true if no other site can write the partition before the next write of this site. A partition that is
    /// being handed over may be written by its new master before the log shows this site the handover, and one with an
    /// exclusive lock by the coordinator of a distributed transaction.
    fn keeps(&self, partition: &Partition) -> bool {
        let start = &partition.range.start;
        let is_changing = self.changing.contains_key(start) || self.two_phase.is_exclusive(start);
        #[cfg(test)]
        let is_changing = is_changing && !self.has(super::tests::Bug::HandoverIgnored);
        partition.master == self.site && !is_changing
    }

    /// Returns the number of the last log entry of this site that a transaction sees, or `None` unless the
    /// transaction touches only partitions that this site masters. While no design changes, such a transaction can
    /// run. Counts the reads of the copies.
    pub(super) fn last_own_entry(&self, transaction: &Transaction) -> Option<u64> {
        let mut last = 0;
        for key in &transaction.writes {
            let copy = self.copy_of(key).filter(|copy| copy.is_own)?;
            last = last.max(copy.last);
        }
        for range in &transaction.reads {
            let copy = self.copy_of(&range.start).filter(|copy| copy.is_own)?;
            if !copy.range.covers(range) {
                return None;
            }
            last = last.max(self.last_for(copy, range));
            copy.reads.set(copy.reads.get() + 1);
        }
        Some(last)
    }

    /// Returns the number of the last log entry of this site that a transaction sees, or `None` unless this site's
    /// copies are one state of the database for all rows that the transaction touches. Counts the reads of the
    /// copies.
    pub(super) fn last_if_possible(&self, transaction: &Transaction) -> Option<u64> {
        let (mut has_replica, mut last) = (false, 0);
        for key in &transaction.writes {
            let partition = self.design.of(key);
            has_replica |= !self.keeps(partition);
            last = last.max(self.copies[&partition.range.start].last);
        }
        for range in &transaction.reads {
            for partition in self.design.within(range) {
                has_replica |= !self.keeps(partition);
                let copy = &self.copies[&partition.range.start];
                last = last.max(self.last_for(copy, range));
            }
        }
        // Earlier requests of its client may have seen more of this site's commits than this prefix contains.
        let ahead = transaction.client.and_then(|client| self.ahead.get(&client)).copied();
        let is_one = !has_replica || last.max(ahead.unwrap_or(0)) <= self.ordered;
        #[cfg(test)]
        let is_one = is_one || self.has(super::tests::Bug::SnapshotAheadOfLog);
        if !is_one {
            return None;
        }
        for partition in transaction.reads.iter().flat_map(|range| self.design.within(range)) {
            let reads = &self.copies[&partition.range.start].reads;
            reads.set(reads.get() + 1);
        }
        Some(last)
    }
}
