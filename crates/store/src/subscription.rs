//! The part of the log that one site receives.
//!
//! There is one order of log entries for all sites, and each site knows its position in it. A site needs the
//! content of a commit only if it has a copy of a partition that the commit writes. Of all other commits it
//! receives only the fact that their positions have passed, a run of them as one number.
//!
//! A site *holds* a partition if the design assigns it to the site, as the master or as a replica. While a
//! site installs a replica, the partition is also *requested*, from a position between the request and the
//! snapshot that the site requests from the master. The request is answered in the stream itself: so the site
//! knows that position, and requests rows as of that position or a later one.
//!
//! Invariants:
//! 1. The deliveries of a section of the log cover each of its positions once, in order.
//! 2. Of the entries that count, each that is not a commit is delivered whole. The entries of the
//!    subscriber's epoch are delivered whole, whether they count or not. No other void entry is delivered.
//! 3. Of a commit of another author that counts, exactly the writes to partitions that are held or requested
//!    at its position are delivered.
//! 4. Until the log has the subscriber's join, all entries that count are delivered whole if the site begins
//!    with copies of everything. They are not if the site begins with persisted rows, which are those of the
//!    partitions that it holds.
//! 5. A design that follows the deliveries ([`Design::follow_part`]) equals the log's design at each
//!    position, except for the versions of partitions that are neither held nor requested, and the numbers of
//!    other authors' entries.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::mem;

use serde::{Deserialize, Serialize};

use crate::design::{Design, Verdict};
use crate::key::Key;
use crate::record::{Body, DistributedCommit, Epoch, LogEntry, Position, Site, Write};

#[cfg(test)]
mod tests;

/// One element of the stream that a subscribing site receives instead of the whole log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Delivery<'e> {
    /// A run of this many consecutive log entries that do not concern the site.
    Passed(u64),
    /// The next log entry: all of it, or, if it is a commit, only the writes that concern the site.
    Entry(Cow<'e, LogEntry>),
    /// From this position of the stream on, the writes to the partition that the site requested are delivered.
    Begins {
        /// The first key of the requested partition.
        start: Key,
        /// The partition's version at this position of the log.
        version: u64,
        /// The number, within the site's epoch, of the replica installation for which the partition was requested.
        installation: u64,
    },
}

impl Delivery<'_> {
    /// Returns true if the delivery contains a log entry that may change the design.
    pub(crate) fn is_of_design(&self) -> bool {
        matches!(self, Self::Entry(entry) if entry.is_of_design())
    }
}

/// A request of a site that changes which writes its subscription delivers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The site installs a replica of the partition whose first key is given, and requests the writes to it. The
    /// number identifies the installation within the site's epoch.
    Begin(Key, u64),
    /// The installation of a replica of the partition with this first key has ended, whether or not it succeeded.
    End(Key),
}

/// The state of one site's subscription: it converts log entries to deliveries, from one position on.
pub(crate) struct Subscription {
    /// The site that receives the deliveries.
    site: Site,
    /// The epoch of that site.
    epoch: Epoch,
    /// The position of the last log entry that was converted.
    known: Position,
    /// The store's design at the position `known`.
    design: Design,
    /// True if only the writes of held or requested partitions are delivered: the log has the join of this epoch, or
    /// the site began with persisted rows of the partitions that it holds.
    is_partial: bool,
    /// The numbers of the replica installations that the site has requested, by the first key of their partition.
    requested: BTreeMap<Key, u64>,
}

impl Subscription {
    /// Returns the subscription of a site's epoch that has written nothing yet, from the position after `known` on.
    /// `design` is the store's design at `known`.
    pub(crate) fn new(site: Site, epoch: Epoch, known: Position, design: Design) -> Self {
        Self { site, epoch, known, design, is_partial: false, requested: BTreeMap::new() }
    }

    /// Returns the subscription of a site's epoch that begins with rows which its process persisted: those of the
    /// partitions that the site holds, as of position `known`. `design` is the store's design there.
    pub(crate) fn resumed(site: Site, epoch: Epoch, known: Position, design: Design) -> Self {
        Self { is_partial: true, ..Self::new(site, epoch, known, design) }
    }

    /// Returns the position of the last log entry that was converted to deliveries.
    pub(crate) fn known(&self) -> Position {
        self.known
    }

    /// Returns the store's design at the last position that was delivered.
    pub(crate) fn design(&self) -> &Design {
        &self.design
    }

    /// Returns the deliveries for the log entries that begin at position `first`, and the position of the first
    /// delivery. Entries that were delivered before are skipped.
    pub(crate) fn deliver<'e>(
        &mut self,
        first: Position,
        entries: &'e [LogEntry],
    ) -> (Position, Vec<Delivery<'e>>) {
        let from = self.known + 1;
        assert!(first <= from, "the log comes without a gap");
        let old = usize::try_from(first.entries_to(from)).unwrap_or(usize::MAX);
        let (mut deliveries, mut passed) = (Vec::new(), 0);
        for entry in entries.iter().skip(old) {
            self.known += 1;
            let verdict = self.design.follow(entry);
            let Some(delivered) = self.part_of(entry, verdict) else {
                passed += 1;
                continue;
            };
            deliveries.extend(run(mem::take(&mut passed)));
            deliveries.push(Delivery::Entry(delivered));
            if verdict == Verdict::Counts && entry.is_of_design() {
                // The change may have merged a requested partition with one whose version the site does not
                // know.
                let starts = self.requested.keys();
                deliveries.extend(starts.filter_map(|start| self.beginning(start)));
            }
        }
        deliveries.extend(run(passed));
        (from, deliveries)
    }

    /// Executes a request of the site, and returns the delivery that answers it at the present position, or `None` if
    /// there is none.
    pub(crate) fn execute(&mut self, request: Request) -> Option<Delivery<'static>> {
        match request {
            Request::Begin(start, installation) => {
                self.requested.insert(start.clone(), installation);
                // If there is no such partition, the site learns from the stream before this position that it
                // is gone.
                self.beginning(&start)
            }
            Request::End(start) => {
                self.requested.remove(&start);
                None
            }
        }
    }

    /// Returns the delivery that begins the writes of the requested partition, or `None` if no such partition exists
    /// or was requested.
    fn beginning(&self, start: &Key) -> Option<Delivery<'static>> {
        let version = self.design.beginning_at(start)?.version;
        let installation = *self.requested.get(start)?;
        Some(Delivery::Begins { start: start.clone(), version, installation })
    }

    /// Returns the part of a log entry that the site receives, or `None` if the entry does not concern the site.
    /// `verdict` is the entry's effect on the design.
    fn part_of<'e>(&mut self, entry: &'e LogEntry, verdict: Verdict) -> Option<Cow<'e, LogEntry>> {
        if (entry.by.site, entry.by.epoch) == (self.site, self.epoch) {
            self.is_partial |= entry.body == Body::Join && verdict == Verdict::Counts;
            return Some(Cow::Borrowed(entry));
        }
        if verdict == Verdict::Void {
            return None;
        }
        match &entry.body {
            Body::Commit(writes) if self.is_partial => {
                let count = writes.iter().filter(|write| self.is_for_site(write)).count();
                if count == writes.len() {
                    return Some(Cow::Borrowed(entry));
                }
                let writes = writes.iter().filter(|write| self.is_for_site(write));
                (count > 0).then(|| {
                    let body = Body::Commit(writes.cloned().collect());
                    Cow::Owned(LogEntry { by: entry.by, body })
                })
            }
            Body::DistributedCommit(commit) if self.is_partial => {
                let writes = commit.writes.iter().filter(|write| self.is_for_site(write));
                let writes: Vec<_> = writes.cloned().collect();
                // A participant that only read holds locks until it sees the commit.
                let is_participant = commit.participants.iter().any(|(site, _)| *site == self.site);
                (is_participant || !writes.is_empty()).then(|| {
                    let DistributedCommit { number, participants, .. } = commit;
                    let (number, participants) = (*number, participants.clone());
                    let commit = DistributedCommit { number, participants, writes };
                    Cow::Owned(LogEntry { by: entry.by, body: Body::DistributedCommit(commit) })
                })
            }
            _ => Some(Cow::Borrowed(entry)),
        }
    }

    /// Returns true if the site holds or has requested the written partition.
    fn is_for_site(&self, write: &Write) -> bool {
        let partition = self.design.beginning_at(&write.start);
        partition.is_some_and(|partition| partition.is_at(self.site))
            || self.requested.contains_key(&write.start)
    }
}

/// Returns the delivery for a run of `passed` omitted entries, or `None` if there are none.
fn run(passed: u64) -> Option<Delivery<'static>> {
    (passed > 0).then_some(Delivery::Passed(passed))
}
