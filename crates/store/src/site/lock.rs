//! The locks of transactions and changes of design, and the order in which they are granted.
//!
//! A writer locks the partitions that it writes, so that the rows that it read are not overwritten. A
//! transaction that also reads replicas locks its reads of this site's own partitions, until the log has all
//! their changes: otherwise other writers could make it wait for ever. A change of design locks its partition, and
//! a merge also the partition after it.

use super::{Core, Want, refused};
use crate::design::Partition;
use crate::key::Key;
use crate::record::{Change, Operator};
use crate::transaction::{Abort, Transaction};

impl Core {
    /// Returns the first keys of the partitions that a request locks, or the reason why it cannot run at this site.
    pub(super) fn locks(&self, what: &Want) -> Result<Vec<Key>, Abort> {
        let mastered = |key: &Key| {
            let partition = self.design.of(key);
            let is_here = partition.master == self.site;
            is_here.then(|| partition.range.start.clone()).ok_or(Abort::Elsewhere)
        };
        match what {
            Want::Transaction(transaction) => {
                let mut locks = Vec::new();
                for key in &transaction.writes {
                    locks.push(mastered(key)?);
                }
                let read = || transaction.reads.iter().flat_map(|range| self.design.within(range));
                if !read().all(|partition| partition.is_at(self.site)) {
                    return Err(Abort::Elsewhere);
                }
                // A request that waits for the log to have this site's writes must not also wait for
                // later writes.
                if read().any(|partition| !self.keeps(partition)) {
                    let own = read().filter(|partition| partition.master == self.site);
                    locks.extend(own.map(|partition| partition.range.start.clone()));
                }
                locks.sort_unstable();
                locks.dedup();
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
