//! The part of the log that one site receives.
//!
//! There is one order of log entries for all sites, and each site knows its place in it. A site needs the content
//! of a commit only where it has a copy of what the commit writes. Of all other commits it receives that their
//! positions have passed, a run of them as one number.
//!
//! A site *holds* a partition that the design gives it, as the master or as a replica. A partition of which it
//! installs a replica is *requested* besides, from a position between the request and the snapshot that the site
//! asks the master for. The request is answered in the stream itself, so the site knows that position, and asks for
//! rows as of then or later.
//!
//! Invariants:
//! 1. The deliveries of a stretch of the log cover each of its positions once, in order.
//! 2. Of the entries that count, each that is no commit is delivered whole. The entries of the subscriber's epoch are
//!    delivered whole, whether they count or not. No other entry that is void is delivered.
//! 3. Of a commit of another author that counts, the writes to partitions that are held or requested at its position
//!    are delivered, and no other writes.
//! 4. Until the log has the subscriber's join, all entries that count are delivered whole: the site begins with
//!    copies of everything.
//! 5. A design that follows the deliveries ([`Design::follow_part`]) equals the log's design at each position, but
//!    for the versions of partitions that are neither held nor requested, and the numbers of other authors' entries.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::mem;

use serde::{Deserialize, Serialize};

use crate::design::{Design, Verdict};
use crate::key::Key;
use crate::record::{Body, Epoch, LogEntry, Position, Site, Write};

#[cfg(test)]
mod tests;

/// A part of the stream that a site receives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Delivery<'e> {
    /// So many entries that have nothing for this site.
    Passed(u64),
    /// The next entry: all of it, or of a commit the writes that concern the site.
    Entry(Cow<'e, LogEntry>),
    /// From here on the writes to a requested partition are delivered.
    Begins {
        /// The start of the partition.
        start: Key,
        /// Its version here.
        version: u64,
        /// The installation that requested it.
        installation: u64,
    },
}

impl Delivery<'_> {
    /// True if it may change the design.
    pub(crate) fn is_of_design(&self) -> bool {
        matches!(self, Self::Entry(entry) if entry.is_of_design())
    }
}

/// A request of a site to its subscription.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// It installs a replica of the partition that begins at a key: the writes to it are requested. The number
    /// tells installations of one epoch apart.
    Begin(Key, u64),
    /// The installation has ended, whether it made a replica or not.
    End(Key),
}

/// The part of the log that a site receives, from one position on.
pub(crate) struct Subscription {
    site: Site,
    epoch: Epoch,
    known: Position,
    /// The design at that position.
    design: Design,
    /// True if the log has the join of this epoch.
    has_joined: bool,
    /// Partitions that the site installs a replica of, by start, and the numbers of the installations.
    requested: BTreeMap<Key, u64>,
}

impl Subscription {
    /// Of an epoch that has written nothing yet, behind a prefix of the log, with the design there.
    pub(crate) fn new(site: Site, epoch: Epoch, known: Position, design: Design) -> Self {
        Self { site, epoch, known, design, has_joined: false, requested: BTreeMap::new() }
    }

    /// The prefix of the log that was delivered.
    pub(crate) fn known(&self) -> Position {
        self.known
    }

    /// The design there.
    pub(crate) fn design(&self) -> &Design {
        &self.design
    }

    /// Returns the deliveries of the log's next entries, and the position where they begin. Entries that were
    /// delivered before are skipped.
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
                // The change may have joined a requested partition with one whose version the site does not know.
                let starts = self.requested.keys();
                deliveries.extend(starts.filter_map(|start| self.beginning(start)));
            }
        }
        deliveries.extend(run(passed));
        (from, deliveries)
    }

    /// Executes a request, and returns what the site receives of it at this position.
    pub(crate) fn execute(&mut self, request: Request) -> Option<Delivery<'static>> {
        match request {
            Request::Begin(start, installation) => {
                self.requested.insert(start.clone(), installation);
                // Without such a partition the site learns from the stream before this place that it is gone.
                self.beginning(&start)
            }
            Request::End(start) => {
                self.requested.remove(&start);
                None
            }
        }
    }

    fn beginning(&self, start: &Key) -> Option<Delivery<'static>> {
        let version = self.design.beginning_at(start)?.version;
        let installation = *self.requested.get(start)?;
        Some(Delivery::Begins { start: start.clone(), version, installation })
    }

    /// The part of an entry that the site receives, if there is one.
    fn part_of<'e>(&mut self, entry: &'e LogEntry, verdict: Verdict) -> Option<Cow<'e, LogEntry>> {
        if (entry.by.site, entry.by.epoch) == (self.site, self.epoch) {
            self.has_joined |= entry.body == Body::Join && verdict == Verdict::Counts;
            return Some(Cow::Borrowed(entry));
        }
        if verdict == Verdict::Void {
            return None;
        }
        match &entry.body {
            Body::Commit(writes) if self.has_joined => {
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
            _ => Some(Cow::Borrowed(entry)),
        }
    }

    fn is_for_site(&self, write: &Write) -> bool {
        let partition = self.design.beginning_at(&write.start);
        partition.is_some_and(|partition| partition.is_at(self.site))
            || self.requested.contains_key(&write.start)
    }
}

fn run(passed: u64) -> Option<Delivery<'static>> {
    (passed > 0).then_some(Delivery::Passed(passed))
}
