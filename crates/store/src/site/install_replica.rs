//! The installation of a replica while the partition is written (MorphoSys, §4.4.1).
//!
//! The installing site keeps the partition's log entries from then on, and requests the rows from the master, as of
//! that position of the log or later. A snapshot costs the master nothing and needs no lock. The master sends it when
//! the log has all of it, so that no replica has rows that were never committed. The installing site confirms the
//! rows; only then does the master write into the log that the site has a replica.
//!
//! A site that receives only a part of the log ([`crate::subscription`]) requests the partition's entries first. It
//! keeps them from the position on at which its subscription begins to deliver them, and asks the master for rows as
//! of that position or later.
//!
//! Between snapshot and log entry the design of the partition must not change: a snapshot from before a split is not
//! a snapshot of one of its halves. The master writes the replica into the log only if nothing has changed since the
//! snapshot that the replica confirms, and then nothing can change until the log has it.

use std::mem;

use serde::{Deserialize, Serialize};

use crate::design::Impossible;
use crate::key::Key;
use crate::record::{Body, Change, Epoch, Operator, Position, Site, Write};
use crate::reply::Reply;
use crate::rows::Rows;
use crate::subscription::Request;
use crate::transaction::Abort;

use super::two_phase::message::TwoPhaseMessage;
use super::{Copy, Core, Output, Ticket, refused};

/// A message between two sites, sent outside the log: about the installation of a replica, or a distributed
/// transaction.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Message {
    /// The sender keeps the partition's log entries, and needs its rows as of log position `since` or later.
    Want {
        /// The first key of the partition to replicate.
        start: Key,
        /// The position after which the sender keeps the partition's log entries.
        since: Position,
    },
    /// The rows of a partition, all of whose changes the log has.
    Give {
        /// The first key of the partition to replicate.
        start: Key,
        /// The position `since` of the request that this message answers.
        since: Position,
        /// The partition's version after the last change of its design.
        changed: u64,
        /// The partition's version as of which the rows are.
        version: u64,
        /// The partition's rows.
        rows: Rows,
    },
    /// The sender has received the rows: the master may write into the log that it has a replica.
    Have {
        /// The first key of the partition to replicate.
        start: Key,
        /// The partition's version after the last change of its design, as received with the rows.
        changed: u64,
        /// The sender's epoch, in which it received the rows.
        epoch: Epoch,
    },
    /// The partition's design has changed since the rows were taken: the receiver must drop the rows.
    Forget {
        /// The first key of the partition to replicate.
        start: Key,
        /// The partition's version after the last change of its design, as the master sent it with the rows.
        changed: u64,
        /// The log position up to which the sender has applied the log, which includes the change.
        known: Position,
    },
    /// A message about a distributed transaction.
    TwoPhase(TwoPhaseMessage),
}

impl Message {
    /// Returns the total size of the keys and values of the rows in the message, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Give { rows, .. } => rows.size().bytes,
            Self::Want { .. } | Self::Have { .. } | Self::Forget { .. } | Self::TwoPhase(_) => 0,
        }
    }
}

/// The installation of a replica at this site; the replica is not read until the design contains it.
pub(super) struct Installation {
    /// The request that the installation answers; `None` once it was answered.
    pub(super) ticket: Option<Ticket>,
    /// Time of the site's clock, in ms, until which the caller waits.
    until_ms: u64,
    /// The number of the installation in this epoch of the site.
    number: u64,
    /// The log position after which the site keeps the partition's entries; `None` until its subscription delivers
    /// them.
    since: Option<Position>,
    /// The partition's versions that the log has shown after `since`, each with the write that made it; `None` for a
    /// change of the partition's design.
    pub(super) news: Vec<(u64, Option<Write>)>,
    /// The rows that the master sent; `None` until they arrive.
    given: Option<ReceivedRows>,
}

/// Another site's request for the rows of a partition, as of a log position or later.
pub(super) struct RowsRequest {
    /// The position as of which or later the other site needs the rows.
    since: Position,
    /// The snapshot, or `None` until it is taken: the partition's version after its last change of design, the
    /// version of the rows, the rows, and the number of this site's log entry with the last change in them.
    taken: Option<(u64, u64, Rows, u64)>,
}

/// The rows of a partition that its master has sent.
struct ReceivedRows {
    /// The site that sent the rows as the partition's master.
    by: Site,
    /// The partition's version after the last change of its design.
    changed: u64,
    /// The partition's version as of which the rows are.
    version: u64,
    /// The partition's rows.
    rows: Rows,
}

impl Installation {
    /// Returns true if the partition's design has changed after the received rows were taken: the installation cannot
    /// succeed any more.
    fn is_outdated(&self) -> bool {
        let given = self.given.as_ref();
        let is_behind = |version: u64| given.is_some_and(|given| version > given.version);
        self.news.iter().any(|(version, write)| write.is_none() && is_behind(*version))
    }
}

impl Core {
    /// Begins the installation of a replica at this site of the partition whose first key is `start`. The request is
    /// refused if no such partition exists, or the site has a copy of it.
    pub(super) fn install_replica(&mut self, ticket: Ticket, start: Key, until_ms: u64) {
        let Some(partition) = self.design.beginning_at(&start).filter(|_| self.is_live) else {
            return self.refuse(ticket, refused(&Impossible::NoPartition));
        };
        if partition.is_at(self.site) || self.installations.contains_key(&start) {
            return self.refuse(ticket, refused(&Impossible::HasCopy));
        }
        let (master, number) = (partition.master, self.installation + 1);
        self.installation = number;
        let since = (!self.is_subscriber).then_some(self.known);
        #[cfg(test)]
        let since = since.or(self.has(super::tests::Bug::Unsubscribed).then_some(self.known));
        let (ticket, news, given) = (Some(ticket), Vec::new(), None);
        let adoption = Installation { ticket, until_ms, number, since, news, given };
        self.installations.insert(start.clone(), adoption);
        if self.is_subscriber {
            self.say(Output::Subscribe(Request::Begin(start.clone(), number)));
        }
        if let Some(since) = since {
            self.say(Output::Say(master, Message::Want { start, since }));
        }
    }

    /// Begins to keep a partition's log entries, because the subscription delivers them from here on for installation
    /// `number`, and requests the rows from the master.
    pub(super) fn begin_installation(&mut self, start: Key, number: u64) {
        let adoption = self.installations.get_mut(&start);
        let Some(adoption) = adoption.filter(|one| one.number == number && one.since.is_none())
        else {
            // The installation has ended, or has begun already.
            return;
        };
        adoption.since = Some(self.known);
        // Deliveries for an earlier installation may have ended at some position before.
        adoption.news.clear();
        let (master, since) = (self.design.of(&start).master, self.known);
        self.say(Output::Say(master, Message::Want { start, since }));
    }

    /// Removes and returns the installation for the partition that begins at `start`, and ends its request to the
    /// subscription.
    fn end_installation(&mut self, start: &Key) -> Option<Installation> {
        let adoption = self.installations.remove(start)?;
        if self.is_subscriber {
            self.say(Output::Subscribe(Request::End(start.clone())));
        }
        Some(adoption)
    }

    /// Handles a message that site `from` sent.
    pub(super) fn hear(&mut self, from: Site, message: Message) {
        if !self.is_live {
            return;
        }
        match message {
            Message::Want { start, since } => self.send_rows(from, start, since),
            Message::Give { start, since, changed, version, rows } => {
                let Some(adoption) = self.installations.get_mut(&start) else { return };
                if adoption.since == Some(since) && adoption.given.is_none() {
                    adoption.given = Some(ReceivedRows { by: from, changed, version, rows });
                    #[cfg(test)]
                    if self.broken.bug == Some(super::tests::Bug::CollectedTooEarly) {
                        adoption.news.clear();
                    }
                    if adoption.is_outdated() {
                        return self.forget(&start);
                    }
                    let epoch = self.epoch;
                    self.say(Output::Say(from, Message::Have { start, changed, epoch }));
                }
            }
            Message::Have { start, changed, epoch } => self.add(from, start, changed, epoch),
            Message::TwoPhase(message) => self.hear_two_phase(from, message),
            Message::Forget { start, changed, known } => {
                let given = self.installations.get(&start).and_then(|one| one.given.as_ref());
                let is_meant = given.is_some_and(|given| given.changed == changed);
                // Otherwise the log may still have to show that it became a replica.
                if is_meant && known <= self.known {
                    self.forget(&start);
                }
            }
        }
    }

    /// Records the request of site `to` for the rows of a partition as of position `since` or later, and sends the
    /// rows as soon as the log has all of them.
    fn send_rows(&mut self, to: Site, start: Key, since: Position) {
        let wanted =
            self.rows_requests.entry((to, start)).or_insert(RowsRequest { since, taken: None });
        // A repeated request waits for the same snapshot: waiting for newer ones might never end.
        if wanted.since != since {
            *wanted = RowsRequest { since, taken: None };
        }
        self.send_requested_rows();
    }

    /// Sends the rows that other sites have requested, if the log has all of them. A snapshot is taken once, and then
    /// waits for the log: if a partition is written continuously, there is never a moment at which the log has
    /// everything.
    pub(super) fn send_requested_rows(&mut self) {
        let mut given = Vec::new();
        self.rows_requests.retain(|(to, start), wanted| {
            let partition = self.design.beginning_at(start);
            if partition.is_none_or(|one| one.master != self.site || one.is_at(*to)) {
                return false;
            }
            if self.known < wanted.since {
                return true;
            }
            let copy = &self.copies[start];
            let (changed, version, rows, last) = wanted
                .taken
                .get_or_insert_with(|| (copy.changed, copy.version, copy.rows.clone(), copy.last));
            let is_there = *last <= self.ordered;
            #[cfg(test)]
            let is_there = is_there || self.broken.bug == Some(super::tests::Bug::GivenAheadOfLog);
            if is_there {
                let (start, since, rows) = (start.clone(), wanted.since, mem::take(rows));
                let (changed, version) = (*changed, *version);
                given.push((*to, Message::Give { start, since, changed, version, rows }));
            }
            !is_there
        });
        self.outputs.extend(given.into_iter().map(|(to, message)| Output::Say(to, message)));
    }

    /// Writes into the log that site `at` has a replica, unless the partition's design has changed since its version
    /// `changed`, at which the site received the rows in its epoch `epoch`; then tells the site to drop them.
    fn add(&mut self, at: Site, start: Key, changed: u64, epoch: Epoch) {
        let partition = self.design.beginning_at(&start);
        if partition.is_some_and(|partition| partition.is_at(at))
            || self.changing.contains_key(&start)
            || self.two_phase.is_locked(&start)
        {
            // It is a replica already, or this cannot be decided yet: the site will ask again.
            return;
        }
        let is_mine = partition.is_some_and(|partition| partition.master == self.site);
        let is_same = is_mine && self.copies[&start].changed == changed;
        #[cfg(test)]
        let is_same = is_same || is_mine && self.has(super::tests::Bug::ChangeUnnoticed);
        if is_same {
            let operator = Operator::AddReplica(at, epoch);
            let number = self.write(Body::Change(Change { start: start.clone(), operator }));
            self.changing.insert(start, number);
        } else {
            let known = self.known;
            self.say(Output::Say(at, Message::Forget { start, changed, known }));
        }
    }

    /// Applies a change of the design to the installations at this site: it makes one of them a replica, or
    /// invalidates some.
    pub(super) fn notice(&mut self, change: &Change) {
        let is_added = matches!(change.operator, Operator::AddReplica(site, epoch)
            if (site, epoch) == (self.site, self.epoch));
        if !is_added {
            return self.notice_all();
        }
        let Some(adoption) = self.end_installation(&change.start) else {
            // Before its epoch begins, a site has copies of all partitions.
            assert!(!self.is_live, "a site confirms its rows before it is a replica");
            return;
        };
        let given = adoption.given.expect("a site confirms its rows before it is a replica");
        let ReceivedRows { version: of, rows, .. } = given;
        let partition = self.design.beginning_at(&change.start).expect("it was added to");
        let mut copy = Copy::new(partition, self.site, rows);
        copy.version = of;
        for (version, write) in adoption.news {
            if version > of {
                copy.apply(&write.expect("the design has not changed since"));
            }
        }
        copy.version += 1;
        copy.changed = copy.version;
        assert_eq!(copy.version, partition.version, "the replica is the partition as of here");
        self.copies.insert(change.start.clone(), copy);
        if let Some(ticket) = adoption.ticket {
            self.hold(ticket, Ok(Reply::default()), self.written, false, None);
        }
    }

    /// Records changes of the design in the installations whose partition they concern, and ends the installations
    /// that cannot succeed any more.
    pub(super) fn notice_all(&mut self) {
        let mut outdated = Vec::new();
        for (start, adoption) in &mut self.installations {
            // A partition that was merged into the one before it has that one's version, which shows the same.
            let partition = self.design.of(start);
            let seen = adoption.news.last().map(|(version, _)| *version);
            if seen.is_none_or(|seen| seen < partition.version) {
                adoption.news.push((partition.version, None));
            }
            // The given rows may be of a later partition that begins there, and is not known here yet.
            let is_gone = partition.range.start != *start && adoption.given.is_none();
            if is_gone || adoption.is_outdated() {
                outdated.push(start.clone());
            }
        }
        for start in outdated {
            self.forget(&start);
        }
    }

    /// Ends the installation for the partition that begins at `start`, which cannot succeed, and refuses its caller.
    fn forget(&mut self, start: &Key) {
        if let Some(ticket) = self.end_installation(start).and_then(|adoption| adoption.ticket) {
            self.refuse(ticket, Abort::Refused("the partition changed meanwhile".into()));
        }
    }

    /// Repeats the messages of installations that may have been lost, and answers callers whose time is over.
    pub(super) fn remind(&mut self) {
        let (now_ms, epoch) = (self.now_ms, self.epoch);
        let (mut outputs, mut late) = (Vec::new(), Vec::new());
        for (start, adoption) in &mut self.installations {
            let is_late = adoption.until_ms <= now_ms;
            if let Some(ticket) = adoption.ticket.take_if(|_| is_late) {
                outputs.push(Output::Answer(ticket, self.known, Err(Abort::Late)));
            }
            match (&adoption.given, adoption.since) {
                // It may become a replica at any time: only the master can tell that it will not.
                (Some(given), _) => {
                    let (start, changed) = (start.clone(), given.changed);
                    outputs.push(Output::Say(given.by, Message::Have { start, changed, epoch }));
                }
                (None, _) if is_late => late.push(start.clone()),
                (None, Some(since)) => {
                    let master = self.design.beginning_at(start).map(|partition| partition.master);
                    let want =
                        |master| Output::Say(master, Message::Want { start: start.clone(), since });
                    outputs.extend(master.map(want));
                }
                // A request to the subscription is not lost during this epoch.
                (None, None) => {}
            }
        }
        self.outputs.append(&mut outputs);
        for start in late {
            _ = self.end_installation(&start);
        }
    }
}
