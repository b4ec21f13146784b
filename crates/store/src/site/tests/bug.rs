//! What may be broken on purpose, to see that the simulation notices. Each bug is what the site does
//! without one of its rules, in the smallest way. Five of them are what such protocols are prone to, here
//! under the letters (a) to (e):
//!
//! (a) a transaction's snapshot misses what the versions that it reads, or its session, depend on;
//! (b) a master is granted without its predecessor's release;
//! (c) updates are applied out of order;
//! (d) what is still needed is collected too early;
//! (e) a snapshot is fixed before the locks are held.

use std::collections::BTreeMap;

use super::super::*;
use crate::record::Write;
use crate::transaction::ReadRows;

/// What may be broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Bug {
    /// (a) Replicas are read beside own commits that the log has not shown yet: what each partition's
    /// version depends on is not merged into the snapshot's prefix.
    SnapshotAheadOfLog,
    /// (a) What a session has seen is not waited for: it is not merged either.
    SessionIgnored,
    /// Answers are given before the log has what they tell.
    AnswerAheadOfLog,
    /// (b) A partition is written while its design changes: who hands it over does not stop before.
    LockIgnored,
    /// What is being handed to another site is read as if it stayed.
    HandoverIgnored,
    /// (b) Who handed a partition over goes on as its master, beside the one to whom it was granted.
    GrantWithoutRelease,
    /// A replica gets rows that the log may never have.
    GivenAheadOfLog,
    /// A replica is written into the log although its partition has changed since.
    ChangeUnnoticed,
    /// An image has commits that the log may never have.
    ImageAheadOfLog,
    /// (c) A replica gets a commit behind one that the log has later.
    AppliedOutOfOrder,
    /// (d) What the log says of a replica in the making is dropped when its rows come, which may be
    /// older. There are no old versions to be collected; this is what is kept for a replica that is behind.
    CollectedTooEarly,
    /// (e) A transaction that waits for its locks reads what was there when it came.
    SnapshotBeforeLock,
    /// While the log is stalled, rows are read whose last change is not logged.
    UnloggedRead,
    /// A subscription begins to deliver a partition's entries one entry behind the place that it names.
    SubscribedLate,
    /// An installation asks for rows as of a place before its subscription begins.
    Unsubscribed,
    /// A site that comes back with its rows has commits among them that the log may never have.
    KeptAheadOfLog,
    /// A subscriber is not told the version of a partition that was joined with one that it does not have.
    VersionUntold,
    /// The coordinator of a distributed transaction reads its replicas as of before what it was granted.
    GrantAheadOfLog,
    /// A participant releases its locks before it has applied the commit.
    ReleasedEarly,
    /// A distributed transaction does not lock what it only reads.
    SharedLockIgnored,
    /// The partitions of a waiting transaction are not looked up again after the design has changed.
    OldDesign,
}

impl Bug {
    pub(super) const ALL: [Self; 21] = [
        Self::SnapshotAheadOfLog,
        Self::SessionIgnored,
        Self::AnswerAheadOfLog,
        Self::LockIgnored,
        Self::HandoverIgnored,
        Self::GrantWithoutRelease,
        Self::GivenAheadOfLog,
        Self::ChangeUnnoticed,
        Self::ImageAheadOfLog,
        Self::AppliedOutOfOrder,
        Self::CollectedTooEarly,
        Self::SnapshotBeforeLock,
        Self::UnloggedRead,
        Self::SubscribedLate,
        Self::Unsubscribed,
        Self::KeptAheadOfLog,
        Self::VersionUntold,
        Self::GrantAheadOfLog,
        Self::ReleasedEarly,
        Self::SharedLockIgnored,
        Self::OldDesign,
    ];
}

/// A site's bug, and what it needs for it.
#[derive(Default)]
pub(in super::super) struct Broken {
    pub bug: Option<Bug>,
    /// The commit that is applied behind the next one.
    postponed: Vec<Write>,
    /// What those who wait found when they came.
    early: BTreeMap<Ticket, Core>,
}

impl Core {
    pub(in super::super) fn has(&self, bug: Bug) -> bool {
        self.broken.bug == Some(bug)
    }

    /// Applies two commits of others the wrong way round, if the next log entry is one and writes to other
    /// partitions. True says that the log entry is done with.
    pub(in super::super) fn swap_with_next(&mut self, body: &Body) -> bool {
        let is_broken = self.has(Bug::AppliedOutOfOrder) && self.is_live;
        let postponed = &self.broken.postponed;
        match body {
            Body::Commit(writes) if is_broken && postponed.is_empty() => {
                self.broken.postponed = writes.clone();
                true
            }
            Body::Commit(writes) if writes.iter().all(|write| !is_to_same(write, postponed)) => {
                let is_swapped = !postponed.is_empty();
                if is_swapped {
                    writes.iter().for_each(|write| self.replicate(write));
                    self.catch_up();
                }
                is_swapped
            }
            _ => {
                self.catch_up();
                false
            }
        }
    }

    /// Applies what was postponed.
    pub(in super::super) fn catch_up(&mut self) {
        for write in mem::take(&mut self.broken.postponed) {
            self.replicate(&write);
        }
    }

    /// Fixes the snapshot of one that comes, if its session allows it.
    pub(in super::super) fn look_early(&mut self, ticket: Ticket, want: &Want) {
        if self.has(Bug::SnapshotBeforeLock) && want.session() <= self.known {
            let mut seen = Self::observer(self.design.clone());
            seen.copies = self.copies.clone();
            self.broken.early.insert(ticket, seen);
        }
    }

    /// The rows that a transaction reads.
    pub(in super::super) fn rows_for(&self, ticket: Ticket) -> &dyn ReadRows {
        self.broken.early.get(&ticket).unwrap_or(self)
    }
}

fn is_to_same(write: &Write, others: &[Write]) -> bool {
    others.iter().any(|other| other.start == write.start)
}
