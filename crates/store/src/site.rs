//! A site: copies of partitions, the transactions that run on them, and its reaction to the log. A state
//! machine without input, output, clock or thread: it receives events and returns actions.
//!
//! The log is the clock. A snapshot of the database is a prefix of it, a commit's timestamp is its position,
//! and a site is the image of a prefix that grows as log entries arrive in order. A master runs ahead of the
//! log: its commits are applied at once, written into the log, and replied to when the log has them. So a
//! transaction that touches only partitions mastered by its site waits for nothing before it runs (MorphoSys,
//! §4.2). No other site writes there, so the position that the log assigns later serves as well as one known
//! before.
//!
//! If a transaction also reads replicas, or a partition that is being handed to another site, its snapshot is
//! the site's prefix. It waits until that prefix contains all of the site's own writes to its partitions. The
//! paper records for each version the versions of other partitions that it depends on (Eq. 1), and waits for
//! these. That keeps causes before effects, but two readers at two sites may see two independent commits in
//! two orders (a long fork), which snapshot isolation forbids. One order for all costs less to keep, and a
//! session's timestamp is a number.
//!
//! A change of the design happens when the log has it, if it is possible at that position. Its partition is
//! locked from the write of the entry until then, so the master knows the state that it changes.
//!
//! Invariants:
//! 1. A copy that is not mastered here equals the prefix `known`. A mastered copy is ahead of it by those
//!    commits of this site that the log has not shown yet, and by nothing else.
//! 2. A reply is given only when the log has every log entry of this site that it could have seen.
//! 3. The write set is locked before the snapshot is fixed, and until the commit is applied: a row that is
//!    read in order to be written is not overwritten meanwhile.
//! 4. Locks are taken all at once, in order of arrival where requests overlap: no deadlock, no starvation.
//! 5. If the design gives a site a replica, the site has the rows.
//! 6. While the log is stalled, rows that it has can be read, nothing is written, and no request waits for
//!    it.
//! 7. A site that finds itself fenced, or with a newer epoch, forgets everything.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::mem;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::design::{Design, Impossible, Partition};
use crate::key::Key;
use crate::record::{Author, Body, Change, Epoch, LogEntry, Position, Site};
use crate::rows::{Rows, Size};
use crate::subscription::{Delivery, Request};
use crate::transaction::{Abort, Done, Transaction};

mod copy;
mod follow;
mod image;
mod install_replica;
mod lock;
mod run;
mod stall;
#[cfg(test)]
mod tests;
mod waiting;

use copy::Copy;
pub use image::{Part, Snapshot};
pub use install_replica::Message;
use install_replica::{Installation, Wanted};
pub(crate) use waiting::Woken;
use waiting::{Held, Waiting, Want};

/// Identifies the caller of a request.
pub type Ticket = u64;

/// Largest number of requests that wait at a site; more are refused.
const WAITING_MAX: usize = 10_000;
/// Time that a transaction waits for the log that its session has seen, in ms; then it runs where its rows
/// are mastered.
const BEHIND_MS_MAX: u64 = 100;
/// Largest number of a site's own groups of log entries that it keeps while other sites hold them.
const SPENT_MAX: usize = 1_024;
/// The site and epoch of an observer, which is no site.
const OBSERVER: (Site, Epoch) = (Site(u16::MAX), Epoch(u64::MAX));

/// An event of a site.
pub enum Input {
    /// A transaction is to run; until a time, in ms.
    Transact(Ticket, Transaction, u64),
    /// The design is to change; until a time. Replicas are made by [`Input::InstallReplica`].
    Change(Ticket, Change, u64),
    /// A replica is to be made here of the partition that begins at a key; until a time.
    InstallReplica(Ticket, Key, u64),
    /// The log's next entries, and the place of the first.
    Logged(Position, Arc<[LogEntry]>),
    /// The next deliveries to a subscriber, and the position where they begin.
    Delivered(Position, Vec<Delivery<'static>>),
    /// Another site says something.
    Said(Site, Message),
    /// It is so late now, in ms.
    Tick(u64),
    /// True if the log takes nothing for now, since its disk is full.
    Stalled(bool),
}

/// An action of a site.
pub enum Output {
    /// Write this into the log, behind what was written before.
    Write(LogEntry),
    /// Answer the caller, whose session has now seen this prefix of the log.
    Answer(Ticket, Position, Result<Done, Abort>),
    /// It cannot be done here by the design that this site knows, or its client has not received enough of
    /// what it asked for: nothing of it happened.
    Back(Ticket, Transaction),
    /// Tell another site.
    Say(Site, Message),
    /// Ask this of the site's subscription, in the order of the requests.
    Subscribe(Request),
}

/// A copy's size and use.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Usage {
    /// The first key of its partition.
    pub start: Key,
    /// True if it is the master's.
    pub is_master: bool,
    /// Its rows.
    pub size: Size,
    /// Its version: it counts commits that wrote to it, and changes of its design.
    pub version: u64,
    /// Transactions that read it here, since the site began.
    pub reads: u64,
}

/// See the module's documentation.
pub struct Core {
    site: Site,
    epoch: Epoch,
    /// True if the log has this epoch's beginning, and no end of it.
    is_live: bool,
    is_over: bool,
    /// True if the log takes nothing for now.
    is_stalled: bool,
    /// True if it receives only a part of the log.
    is_subscriber: bool,
    now_ms: u64,
    /// The log that it has, and the design there.
    known: Position,
    design: Design,
    copies: BTreeMap<Key, Copy>,
    /// The number of the last log entry that was written, and of the last that came back.
    written: u64,
    ordered: u64,
    waiting: VecDeque<Waiting>,
    /// The locks that waiting requests need, and the clients among them: a later request that needs
    /// the same, or is of the same client, waits behind them.
    taken: BTreeSet<Key>,
    queued: HashSet<u64>,
    /// Clients whose waiting transactions are being given back, all from one on.
    returned: HashSet<u64>,
    /// Clients of whose transactions the log has not all yet, and the last log entry that it has to have: so
    /// long a session has seen more than the client could be told.
    ahead: HashMap<u64, u64>,
    /// Partitions whose design is being changed, by start, and by which log entry.
    changing: BTreeMap<Key, u64>,
    /// Answers that wait for a log entry of this site, in the order of the log entries.
    answers: VecDeque<Held>,
    /// Replicas that are being made here, and the number of the last one.
    adoptions: BTreeMap<Key, Installation>,
    installation: u64,
    /// Copies that others asked for, until the log has what is given.
    wanted: BTreeMap<(Site, Key), Wanted>,
    outputs: Vec<Output>,
    /// The transaction that was run last, and how many rows it read and wrote.
    last_run: Option<(Ticket, u32, u32)>,
    /// Rows that were read, written and applied for other masters here, since the site began.
    work: [u64; 3],
    /// The request that last met a lock, or a watched row that another transaction had changed.
    last_conflict: Option<Ticket>,
    /// Transactions that had to wait and were run by the last input.
    woken: Vec<Woken>,
    /// Log entries of its own that others may still look at.
    spent: VecDeque<Arc<[LogEntry]>>,
    /// Deliberate faults, to see whether the tests notice.
    #[cfg(test)]
    broken: tests::Broken,
}

impl Core {
    /// A site that begins a new epoch, which it never had. It is to be told the log from
    /// the first log entry on; what it says first makes it alive, once the log has it.
    #[must_use]
    pub fn new(site: Site, epoch: Epoch, initial: Design) -> Self {
        Self::observer(initial).begun(site, epoch)
    }

    /// An observer with copies of everything: fed the log from the first log entry on, it is the
    /// database as of each prefix, from which sites may begin.
    #[must_use]
    pub fn observer(initial: Design) -> Self {
        let (site, epoch) = OBSERVER;
        let copy = |partition: &Partition| {
            (partition.range.start.clone(), Copy::new(partition, site, Rows::default()))
        };
        let copies = initial.partitions().map(copy).collect();
        Self {
            site,
            epoch,
            is_live: false,
            is_over: false,
            is_stalled: false,
            is_subscriber: false,
            now_ms: 0,
            known: Position::START,
            copies,
            design: initial,
            written: 0,
            ordered: 0,
            waiting: VecDeque::new(),
            taken: BTreeSet::new(),
            queued: HashSet::new(),
            returned: HashSet::new(),
            ahead: HashMap::new(),
            changing: BTreeMap::new(),
            answers: VecDeque::new(),
            adoptions: BTreeMap::new(),
            installation: 0,
            wanted: BTreeMap::new(),
            outputs: Vec::new(),
            last_run: None,
            work: [0; 3],
            last_conflict: None,
            woken: Vec::new(),
            spent: VecDeque::new(),
            #[cfg(test)]
            broken: tests::Broken::default(),
        }
    }

    /// An observer of the design only: it has no copy of anything.
    #[must_use]
    pub fn onlooker(known: Position, design: Design) -> Self {
        let mut core = Self::observer(design);
        core.known = known;
        core.copies.clear();
        core
    }

    /// As [`Core::new`], but from an observer's prefix on: the log is to be told from there.
    #[must_use]
    pub fn begun(&self, site: Site, epoch: Epoch) -> Self {
        let mut core = Self::observer(self.design.apart());
        (core.site, core.epoch, core.known) = (site, epoch, self.known);
        // Until it has begun it is the image of everything: only then it is known what its own is.
        for (copy, image) in core.copies.values_mut().zip(self.copies.values()) {
            let range = mem::replace(copy, image.clone()).range;
            copy.range = range;
        }
        core.write(Body::Join);
        core
    }

    /// A site that receives what a subscription delivers instead of the whole log. Its own epoch's entries and the
    /// partitions that it has are all there, so it does the same.
    #[must_use]
    pub fn subscribed(self) -> Self {
        Self { is_subscriber: true, ..self }
    }

    /// Goes on by one thing that happened, and says what is to be done, in this order.
    pub fn on(&mut self, input: Input) -> Vec<Output> {
        self.woken.clear();
        match input {
            Input::Transact(ticket, mut transaction, until_ms) => {
                transaction.put_in_order();
                self.ask(ticket, until_ms, Want::Transaction(transaction));
            }
            Input::Change(ticket, change, until_ms) => {
                self.ask(ticket, until_ms, Want::Change(change));
            }
            Input::InstallReplica(ticket, start, until_ms) => {
                self.install_replica(ticket, start, until_ms)
            }
            Input::Logged(first, entries) => {
                self.follow_all(first, &entries);
                self.outlive(entries);
            }
            Input::Delivered(first, deliveries) => self.follow_deliveries(first, deliveries),
            Input::Said(from, message) => self.hear(from, message),
            Input::Tick(now_ms) => self.tick(now_ms),
            Input::Stalled(is_stalled) => self.stall(is_stalled),
        }
        mem::take(&mut self.outputs)
    }

    /// Keeps log entries of its own until no other site has them. The site that drops them last touches each key and
    /// value in them, and to the site that wrote them these are at hand.
    fn outlive(&mut self, entries: Arc<[LogEntry]>) {
        if entries.first().is_some_and(|entry| entry.by.site == self.site) {
            self.spent.push_back(entries);
        }
        while self.spent.len() > SPENT_MAX
            || self.spent.front().is_some_and(|entries| Arc::strong_count(entries) == 1)
        {
            self.spent.pop_front();
        }
    }

    /// The design as of the prefix of the log that the site has.
    #[must_use]
    pub fn design(&self) -> &Design {
        &self.design
    }

    /// The prefix of the log that the site has.
    #[must_use]
    pub fn known(&self) -> Position {
        self.known
    }

    /// Which site it is.
    #[must_use]
    pub fn site(&self) -> Site {
        self.site
    }

    /// Its epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The usage of each partition of which there is a copy here.
    pub fn usage(&self) -> impl Iterator<Item = Usage> {
        let copies = self.copies.values().filter(|_| self.is_live);
        copies.map(|copy| Usage {
            start: copy.range.start.clone(),
            is_master: copy.is_own,
            size: copy.rows.size(),
            version: copy.version,
            reads: copy.reads.get(),
        })
    }

    /// Rows that a transaction read, and rows that it wrote, if it is the one that was run last.
    pub(crate) fn rows_of(&self, ticket: Ticket) -> Option<(u32, u32)> {
        self.last_run.filter(|(last, _, _)| *last == ticket).map(|(_, read, wrote)| (read, wrote))
    }

    /// Rows that it has read, written and applied for other masters, since it began.
    pub(crate) fn work(&self) -> [u64; 3] {
        self.work
    }

    /// True if a transaction met another one or a change of design, if it is the last that did.
    pub(crate) fn met_conflict(&self, ticket: Ticket) -> bool {
        self.last_conflict == Some(ticket)
    }

    /// The transactions that had to wait and were run by the last input.
    pub(crate) fn woken(&self) -> &[Woken] {
        &self.woken
    }

    /// Log entries that the site lacks for a session, and its own that it does not have back from the log.
    pub(crate) fn behind(&self, session: Position) -> u64 {
        self.known.entries_to(session) + (self.written - self.ordered)
    }

    /// True if it takes part: the log has its beginning, and not its end.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.is_live
    }

    /// True if it was given up for dead: it can only begin another epoch.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    fn say(&mut self, output: Output) {
        self.outputs.push(output);
    }

    fn give_back(&mut self, waiting: Waiting) {
        match waiting.what {
            Want::Transaction(transaction) => self.say(Output::Back(waiting.ticket, transaction)),
            Want::Change(_) => self.refuse(waiting.ticket, Abort::Elsewhere),
        }
    }

    fn refuse(&mut self, ticket: Ticket, abort: Abort) {
        self.say(Output::Answer(ticket, self.known, Err(abort)));
    }

    fn write(&mut self, body: Body) -> u64 {
        self.written += 1;
        let by = Author { site: self.site, epoch: self.epoch, number: self.written };
        self.say(Output::Write(LogEntry { by, body }));
        self.written
    }

    /// Another process fenced this site.
    fn end(&mut self) {
        (self.is_live, self.is_over) = (false, true);
        self.copies.clear();
        self.changing.clear();
        self.taken.clear();
        self.queued.clear();
        self.ahead.clear();
        self.wanted.clear();
        let held = mem::take(&mut self.answers).into_iter().map(|held| held.ticket);
        let adoptions = mem::take(&mut self.adoptions).into_values();
        let adopting = adoptions.filter_map(|adoption| adoption.ticket);
        for ticket in held.chain(adopting).collect::<Vec<_>>() {
            self.refuse(ticket, Abort::Deposed);
        }
        for waiting in mem::take(&mut self.waiting) {
            self.give_back(waiting);
        }
    }

    fn tick(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        #[cfg(test)]
        self.catch_up();
        let (now_ms, ordered) = (self.now_ms, self.ordered);
        self.ahead.retain(|_, number| *number > ordered);
        let waiting = mem::take(&mut self.waiting).into_iter();
        let (late, waiting): (VecDeque<_>, _) = waiting.partition(|one| one.until_ms <= now_ms);
        self.waiting = waiting;
        for one in late {
            self.refuse(one.ticket, Abort::Late);
        }
        self.remind();
        self.attempt_all();
    }
}

fn refused(impossible: &Impossible) -> Abort {
    Abort::Refused(impossible.to_string())
}
