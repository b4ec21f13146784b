//! The installation of a replica while the partition is written (MorphoSys, §4.4.1).
//!
//! The site keeps log entries of the partition from now on, and asks its master for the rows as of now or
//! later. A snapshot costs the master nothing and needs no lock; it is handed over when the log has all of
//! it, so that no replica has rows that were never committed. The replica confirms the rows, and only then
//! the master writes into the log that it is one.
//!
//! A site that receives a part of the log only ([`crate::subscription`]) requests the partition's entries first. It
//! keeps them from the position on at which its subscription begins to deliver them, and asks the master for rows as
//! of that position or later.
//!
//! Between the two the design of the partition must not change: a snapshot of before a split is not a
//! snapshot of one of its halves. The master writes the replica into the log only if nothing has changed
//! since the snapshot that the replica confirms, and then nothing can change until the log has it.

use std::mem;

use serde::{Deserialize, Serialize};

use crate::design::Impossible;
use crate::key::Key;
use crate::record::{Body, Change, Epoch, Operator, Position, Site, Write};
use crate::reply::Reply;
use crate::rows::Rows;
use crate::subscription::Request;
use crate::transaction::Abort;

use super::{Copy, Core, Output, Ticket, refused};

/// Messages between sites, besides the log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Message {
    /// I keep what the log says of this partition: give me its rows as of my prefix, or later.
    Want {
        /// The start of the partition.
        start: Key,
        /// The asker's prefix of the log.
        since: Position,
    },
    /// The rows of a partition, as of a version that the log has.
    Give {
        /// The start of the partition.
        start: Key,
        /// The position of the request.
        since: Position,
        /// The version of the partition's last change of design.
        changed: u64,
        /// The version that the rows are of.
        version: u64,
        /// The rows.
        rows: Rows,
    },
    /// I have them: the design may say so.
    Have {
        /// The start of the partition.
        start: Key,
        /// The version of the rows.
        changed: u64,
        /// The epoch in which they came.
        epoch: Epoch,
    },
    /// The design changed since: forget them.
    Forget {
        /// The start of the partition.
        start: Key,
        /// The version of the rows.
        changed: u64,
        /// The prefix of the log in which it shows.
        known: Position,
    },
}

/// A replica in the making. Until the design has it, it is not read.
pub(super) struct Installation {
    /// The caller, as long as it waits.
    pub(super) ticket: Option<Ticket>,
    until_ms: u64,
    /// Tells it from others of this epoch.
    number: u64,
    /// The prefix of the log behind which it has the partition's entries; nothing until its subscription delivers
    /// them.
    since: Option<Position>,
    /// The versions that the log has shown since; a change of design has no write.
    pub(super) news: Vec<(u64, Option<Write>)>,
    given: Option<Given>,
}

/// Rows that another site wants, as of a prefix of the log or later.
pub(super) struct Wanted {
    since: Position,
    /// The last change of design, the version, the rows, and the log entry that has the last of them.
    taken: Option<(u64, u64, Rows, u64)>,
}

struct Given {
    by: Site,
    changed: u64,
    version: u64,
    rows: Rows,
}

impl Installation {
    /// True if the design has changed behind the given rows: the installation cannot succeed any more.
    fn is_outdated(&self) -> bool {
        let given = self.given.as_ref();
        let is_behind = |version: u64| given.is_some_and(|given| version > given.version);
        self.news.iter().any(|(version, write)| write.is_none() && is_behind(*version))
    }
}

impl Core {
    pub(super) fn install_replica(&mut self, ticket: Ticket, start: Key, until_ms: u64) {
        let Some(partition) = self.design.beginning_at(&start).filter(|_| self.is_live) else {
            return self.refuse(ticket, refused(&Impossible::NoPartition));
        };
        if partition.is_at(self.site) || self.adoptions.contains_key(&start) {
            return self.refuse(ticket, refused(&Impossible::HasCopy));
        }
        let (master, number) = (partition.master, self.installation + 1);
        self.installation = number;
        let since = (!self.is_subscriber).then_some(self.known);
        #[cfg(test)]
        let since = since.or(self.has(super::tests::Bug::Unsubscribed).then_some(self.known));
        let (ticket, news, given) = (Some(ticket), Vec::new(), None);
        let adoption = Installation { ticket, until_ms, number, since, news, given };
        self.adoptions.insert(start.clone(), adoption);
        if self.is_subscriber {
            self.say(Output::Subscribe(Request::Begin(start.clone(), number)));
        }
        if let Some(since) = since {
            self.say(Output::Say(master, Message::Want { start, since }));
        }
    }

    /// From here on the subscription delivers what an installation needs.
    pub(super) fn begin_installation(&mut self, start: Key, number: u64) {
        let adoption = self.adoptions.get_mut(&start);
        let Some(adoption) = adoption.filter(|one| one.number == number && one.since.is_none())
        else {
            // It is over, or has begun.
            return;
        };
        adoption.since = Some(self.known);
        // Entries that an earlier installation still received end somewhere before.
        adoption.news.clear();
        let (master, since) = (self.design.of(&start).master, self.known);
        self.say(Output::Say(master, Message::Want { start, since }));
    }

    /// Takes an installation out, which needs the partition's entries no more.
    fn end_installation(&mut self, start: &Key) -> Option<Installation> {
        let adoption = self.adoptions.remove(start)?;
        if self.is_subscriber {
            self.say(Output::Subscribe(Request::End(start.clone())));
        }
        Some(adoption)
    }

    pub(super) fn hear(&mut self, from: Site, message: Message) {
        if !self.is_live {
            return;
        }
        match message {
            Message::Want { start, since } => self.give(from, start, since),
            Message::Give { start, since, changed, version, rows } => {
                let Some(adoption) = self.adoptions.get_mut(&start) else { return };
                if adoption.since == Some(since) && adoption.given.is_none() {
                    adoption.given = Some(Given { by: from, changed, version, rows });
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
            Message::Forget { start, changed, known } => {
                let given = self.adoptions.get(&start).and_then(|one| one.given.as_ref());
                let is_meant = given.is_some_and(|given| given.changed == changed);
                // Otherwise the log may still have to show that it became a replica.
                if is_meant && known <= self.known {
                    self.forget(&start);
                }
            }
        }
    }

    /// Gives another site the rows of a partition, as soon as the log has all of them.
    fn give(&mut self, to: Site, start: Key, since: Position) {
        let wanted = self.wanted.entry((to, start)).or_insert(Wanted { since, taken: None });
        // A repeated request waits for the same rows: for newer ones it might wait for ever.
        if wanted.since != since {
            *wanted = Wanted { since, taken: None };
        }
        self.give_all();
    }

    /// Hands over the rows that other sites wait for and the log has. Rows are taken once, and then waited for: a
    /// partition that is written all the time never has a moment at which the log has everything.
    pub(super) fn give_all(&mut self) {
        let mut given = Vec::new();
        self.wanted.retain(|(to, start), wanted| {
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

    /// Has a copy that another site has written into the log as a replica, if it can be one.
    fn add(&mut self, at: Site, start: Key, changed: u64, epoch: Epoch) {
        let partition = self.design.beginning_at(&start);
        if partition.is_some_and(|partition| partition.is_at(at))
            || self.changing.contains_key(&start)
        {
            // It is one, or this cannot be said yet: it will ask again.
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

    /// A change of design: the one that makes a replica of what is in the making, or one that comes
    /// between.
    pub(super) fn notice(&mut self, change: &Change) {
        let is_added = matches!(change.operator, Operator::AddReplica(site, epoch)
            if (site, epoch) == (self.site, self.epoch));
        if !is_added {
            return self.notice_all();
        }
        let Some(adoption) = self.end_installation(&change.start) else {
            // Before its epoch begins a site has copies of everything.
            assert!(!self.is_live, "a site confirms its rows before it is a replica");
            return;
        };
        let given = adoption.given.expect("a site confirms its rows before it is a replica");
        let Given { version: of, rows, .. } = given;
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

    /// Replicas in the making learn of changes of its partition's design.
    pub(super) fn notice_all(&mut self) {
        let mut outdated = Vec::new();
        for (start, adoption) in &mut self.adoptions {
            // A partition that was merged into the one before it has that one's version, which tells the same.
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

    fn forget(&mut self, start: &Key) {
        if let Some(ticket) = self.end_installation(start).and_then(|adoption| adoption.ticket) {
            self.refuse(ticket, Abort::Refused("the partition changed meanwhile".into()));
        }
    }

    /// Says once more what may have been lost, and replies to callers that have waited long enough.
    pub(super) fn remind(&mut self) {
        let (now_ms, epoch) = (self.now_ms, self.epoch);
        let (mut outputs, mut late) = (Vec::new(), Vec::new());
        for (start, adoption) in &mut self.adoptions {
            let is_late = adoption.until_ms <= now_ms;
            if let Some(ticket) = adoption.ticket.take_if(|_| is_late) {
                outputs.push(Output::Answer(ticket, self.known, Err(Abort::Late)));
            }
            match (&adoption.given, adoption.since) {
                // It may be a replica at any time: only its master can say that it will not.
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
                // A request to the subscription is not lost while this epoch lives.
                (None, None) => {}
            }
        }
        self.outputs.append(&mut outputs);
        for start in late {
            _ = self.end_installation(&start);
        }
    }
}
