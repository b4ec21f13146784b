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
//! If a transaction also reads replicas, or a partition that is being handed to another site, its snapshot is the
//! site's prefix of the log. The transaction waits until that prefix contains all of the site's own writes to its
//! partitions. The paper records for each version the versions of other partitions that it depends on (Eq. 1), and
//! waits for these. That keeps causes before effects, but two readers at two sites may see two independent commits in
//! two orders (a long fork), which snapshot isolation forbids. One order for all costs less to maintain, and a
//! session's timestamp is a number.
//!
//! A change of the design takes effect at its position in the log, if it is possible there. Its partition is
//! locked from the write of the entry until then, so the master knows the state that it changes.
//!
//! Invariants:
//! 1. A copy that is not mastered here equals the prefix `known`. A mastered copy is ahead of it by those
//!    commits of this site that have not come back from the log yet, and by nothing else.
//! 2. A reply is given only when the log has every log entry of this site whose effect it could show.
//! 3. The write set is locked before the snapshot is fixed, and until the commit is applied: a row that is
//!    read in order to be written is not overwritten meanwhile.
//! 4. Locks are taken all at once, in order of arrival where requests overlap: no deadlock, no starvation.
//! 5. If the design gives a site a replica, the site has the rows.
//! 6. While the log is stalled, rows that it has can be read, nothing is written, and no request waits for
//!    it.
//! 7. A site that finds itself fenced, or with a newer epoch, drops all its state.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::mem;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::design::{Design, Impossible, Partition};
use crate::key::Key;
use crate::record::{Author, Body, Change, Epoch, LogEntry, Position, Site};
use crate::rows::{ROW_BYTES, Rows, Size};
use crate::sampler::WorkCounts;
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
mod two_phase;
mod undo;
mod waiting;

use copy::Copy;
pub use image::{Part, Snapshot};
pub use install_replica::Message;
use install_replica::{Installation, RowsRequest};
use two_phase::TwoPhase;
use undo::CommitUndo;
pub(crate) use waiting::ResumedTransaction;
use waiting::{Held, Waiting, Want};

/// A number by which a site's caller identifies a request; the site returns it with the answer.
pub type Ticket = u64;

/// Maximum number of requests that wait at one site; further ones are refused.
const WAITING_MAX: usize = 10_000;
/// Time in ms that a transaction waits until its site has reached the log position that its session has seen; then it
/// is returned, to run where its rows are mastered.
const BEHIND_MS_MAX: u64 = 100;
/// Maximum number of batches of its own log entries that a site retains while other sites in the process hold them.
const UNRELEASED_MAX: usize = 1_024;
/// The site and epoch of an observer; no real site has them.
const OBSERVER: (Site, Epoch) = (Site(u16::MAX), Epoch(u64::MAX));

/// An event that a site's state machine receives.
pub enum Input {
    /// Run a transaction, which must begin before the given time of the site's clock in ms.
    Transact(Ticket, Transaction, u64),
    /// Change the design, before the given time of the site's clock in ms. [`Input::InstallReplica`] makes replicas.
    Change(Ticket, Change, u64),
    /// Install a replica of the partition with this first key here, before the given time of the site's clock in ms.
    InstallReplica(Ticket, Key, u64),
    /// The log's next entries, and the position of the first one.
    Logged(Position, Arc<[LogEntry]>),
    /// The next deliveries of the site's subscription, and the log position of the first one.
    Delivered(Position, Vec<Delivery<'static>>),
    /// A message that the given other site sent.
    Said(Site, Message),
    /// The current time of the site's clock in ms, from an origin that the caller chooses.
    Tick(u64),
    /// The log accepts no entries for now because its disk is full (true), or accepts entries again (false).
    Stalled(bool),
}

/// An action that a site's state machine requests from its caller.
pub enum Output {
    /// Append a log entry to the log, after all entries that the site wrote earlier.
    Write(LogEntry),
    /// Answer the request, whose session has now seen the log up to the given position.
    Answer(Ticket, Position, Result<Done, Abort>),
    /// Return the transaction to its caller for routing. It did not run, because the design that this site knows does
    /// not allow it here, or its client has too many replies that it has not received.
    Reroute(Ticket, Transaction),
    /// Send a message to the given other site.
    Say(Site, Message),
    /// Send this request to the site's subscription; requests must arrive there in order.
    Subscribe(Request),
}

/// Size and usage of a site's copy of one partition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Usage {
    /// The first key of the copy's partition.
    pub start: Key,
    /// True if the site masters the partition.
    pub is_master: bool,
    /// Number of the copy's rows, and the size of their keys and values.
    pub size: Size,
    /// The copy's version, which each commit to the partition and each change of its design increases.
    pub version: u64,
    /// Number of transactions that read the copy at this site; both parts of a split copy keep the count.
    pub reads: u64,
    /// Number of rows of each table, by the table's number, if the site masters the partition; otherwise empty.
    pub tables: Vec<(u32, u64)>,
}

/// A site's state machine: its copies of partitions, the requests that wait, and its position in the log.
pub struct Core {
    /// The number of this site.
    site: Site,
    /// The epoch of this site: its present incarnation.
    epoch: Epoch,
    /// True if the site has seen the join of its epoch in the log, and not the epoch's end.
    is_live: bool,
    /// True if the site has seen the end of its epoch in the log.
    is_over: bool,
    /// True if the log accepts no entries for now, because its disk is full.
    is_stalled: bool,
    /// True if the rows in the site's process exceed the limit on memory.
    is_full: bool,
    /// True if the site receives the deliveries of a subscription instead of the whole log.
    is_subscriber: bool,
    /// True if the site began with the rows that its process kept from an earlier epoch.
    has_retained_rows: bool,
    /// Time of the last tick, in ms of the site's clock.
    now_ms: u64,
    /// The position of the last log entry that the site has applied.
    known: Position,
    /// The store's design at the position `known`.
    design: Design,
    /// The site's copies of partitions, by the first key of the partition.
    copies: BTreeMap<Key, Copy>,
    /// The number of the last log entry that the site wrote in this epoch.
    written: u64,
    /// The number of this epoch's last log entry that came back to the site from the log.
    ordered: u64,
    /// Requests that have not begun, in order of arrival.
    waiting: VecDeque<Waiting>,
    /// First keys of the partitions that waiting requests lock; a later request that needs one of them waits after
    /// them.
    taken: BTreeSet<Key>,
    /// Number of log entries that the site has applied to the design.
    design_changes: u64,
    /// The clients of waiting requests; a later request of one of these clients waits after them.
    queued: HashSet<u64>,
    /// Clients a transaction of which was just returned; their later waiting transactions are returned too.
    returned: HashSet<u64>,
    /// Clients whose transactions have seen entries of this site that are not in the log yet, with the number of the
    /// last one. Until the log has it, a client's session has seen more than its replies have shown.
    ahead: HashMap<u64, u64>,
    /// Partitions whose design is being changed, by first key, with the number of the log entry that changes it.
    changing: BTreeMap<Key, u64>,
    /// Answers that wait until the log has an entry of this site, in the order of these entries.
    answers: VecDeque<Held>,
    /// Replicas that are being installed at this site, by the first key of the partition.
    installations: BTreeMap<Key, Installation>,
    /// The number of the last replica installation that began in this epoch.
    installation: u64,
    /// Requests for a partition's rows that were not answered yet, by the requesting site and the partition's first
    /// key.
    rows_requests: BTreeMap<(Site, Key), RowsRequest>,
    /// The actions that the current event has caused so far, in order.
    outputs: Vec<Output>,
    /// The request that ran last, with the numbers of rows that it read and wrote.
    last_run: Option<(Ticket, u32, u32)>,
    /// What the site has done in this epoch.
    work: WorkCounts,
    /// The last request that had to wait for a lock, or found that a row which its client watches had changed.
    last_conflict: Option<Ticket>,
    /// Transactions that had waited, and that the last event made run.
    resumed: Vec<ResumedTransaction>,
    /// The rows before each commit that has not come back from the log yet, in the order of the commits.
    undo: VecDeque<CommitUndo>,
    /// Distributed transactions that have locks here, or that this site coordinates.
    two_phase: TwoPhase,
    /// Log entries of this site that other sites in the process may still read.
    unreleased_entries: VecDeque<Arc<[LogEntry]>>,
    /// Deliberate faults, which tests inject to check that they detect them.
    #[cfg(test)]
    broken: tests::Broken,
}

impl Core {
    /// Returns a site that begins a new epoch with an empty database, under the design `initial`. It must receive the
    /// log from the first entry on. Its first output is its join; the site is live once the log has the join.
    #[must_use]
    pub fn new(site: Site, epoch: Epoch, initial: Design) -> Self {
        Self::observer(initial).begin_epoch(site, epoch)
    }

    /// Returns an observer, which has copies of all partitions and runs no transactions. After it has received the
    /// log from the first entry on, it is the database as of its position, from which sites may begin.
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
            is_full: false,
            is_subscriber: false,
            has_retained_rows: false,
            now_ms: 0,
            known: Position::START,
            copies,
            design: initial,
            written: 0,
            ordered: 0,
            waiting: VecDeque::new(),
            taken: BTreeSet::new(),
            design_changes: 0,
            queued: HashSet::new(),
            returned: HashSet::new(),
            ahead: HashMap::new(),
            changing: BTreeMap::new(),
            answers: VecDeque::new(),
            installations: BTreeMap::new(),
            installation: 0,
            rows_requests: BTreeMap::new(),
            outputs: Vec::new(),
            last_run: None,
            work: WorkCounts::default(),
            last_conflict: None,
            resumed: Vec::new(),
            undo: VecDeque::new(),
            two_phase: TwoPhase::default(),
            unreleased_entries: VecDeque::new(),
            #[cfg(test)]
            broken: tests::Broken::default(),
        }
    }

    /// Returns an observer that follows only the design, without copies, from position `known` of the log on.
    /// `design` is the store's design there.
    #[must_use]
    pub fn onlooker(known: Position, design: Design) -> Self {
        let mut core = Self::observer(design);
        core.known = known;
        core.copies.clear();
        core
    }

    /// Returns a site that begins the given epoch with the rows of this observer. It must receive the log after the
    /// observer's position.
    #[must_use]
    pub fn begin_epoch(&self, site: Site, epoch: Epoch) -> Self {
        let mut core = Self::observer(self.design.unshared());
        (core.site, core.epoch, core.known) = (site, epoch, self.known);
        core.has_retained_rows = self.has_retained_rows;
        // Until it has begun, its copies are those of the image: only its join shows which are its own.
        core.copies.retain(|start, copy| {
            let Some(image) = self.copies.get(start) else { return false };
            let range = mem::replace(copy, image.clone()).range;
            copy.range = range;
            true
        });
        core.write(Body::Join);
        core
    }

    /// Makes the site a subscriber, which receives deliveries instead of the whole log. These contain all entries of
    /// its own epoch and of its partitions, so the site behaves in the same way.
    #[must_use]
    pub fn subscribed(self) -> Self {
        Self { is_subscriber: true, ..self }
    }

    /// Handles one event, and returns the actions to execute, in order.
    pub fn on(&mut self, input: Input) -> Vec<Output> {
        self.resumed.clear();
        match input {
            Input::Transact(ticket, mut transaction, until_ms) => {
                transaction.normalize();
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
        // Each turn ends a distributed transaction.
        while self.two_phase.take_retry() {
            self.attempt_all();
        }
        mem::take(&mut self.outputs)
    }

    /// Retains log entries, if this site wrote them, until no other site has them. Dropping the last reference reads
    /// each key and value, which are in the caches of the site that wrote them.
    fn outlive(&mut self, entries: Arc<[LogEntry]>) {
        if entries.first().is_some_and(|entry| entry.by.site == self.site) {
            self.unreleased_entries.push_back(entries);
        }
        while self.unreleased_entries.len() > UNRELEASED_MAX
            || self
                .unreleased_entries
                .front()
                .is_some_and(|entries| Arc::strong_count(entries) == 1)
        {
            self.unreleased_entries.pop_front();
        }
    }

    /// Returns the store's design at the last log position that the site has applied.
    #[must_use]
    pub fn design(&self) -> &Design {
        &self.design
    }

    /// Returns the position of the last log entry that the site has applied.
    #[must_use]
    pub fn known(&self) -> Position {
        self.known
    }

    /// Returns the number of this site.
    #[must_use]
    pub fn site(&self) -> Site {
        self.site
    }

    /// Returns the epoch in which the site runs.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns the size and usage of each copy, in key order; nothing while the site is not live.
    pub fn usage(&self) -> impl Iterator<Item = Usage> {
        let copies = self.copies.values().filter(|_| self.is_live);
        copies.map(|copy| Usage {
            start: copy.range.start.clone(),
            is_master: copy.is_own,
            size: copy.rows.size(),
            version: copy.version,
            reads: copy.reads.get(),
            tables: match copy.is_own {
                true => copy.rows.by_table().iter().map(|(table, rows)| (table.0, *rows)).collect(),
                false => Vec::new(),
            },
        })
    }

    /// Returns the estimated memory of the rows of all copies at this site, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let of = |copy: &Copy| copy.rows.size().bytes + copy.rows.size().rows * ROW_BYTES;
        self.copies.values().map(of).sum()
    }

    /// Sets whether transactions that put rows are refused because memory is full.
    pub(crate) fn set_full(&mut self, is_full: bool) {
        self.is_full = is_full;
    }

    /// Returns the numbers of rows that the transaction of this request read and wrote, or `None` unless it is the
    /// last that ran.
    pub(crate) fn rows_of(&self, ticket: Ticket) -> Option<(u32, u32)> {
        self.last_run.filter(|(last, _, _)| *last == ticket).map(|(_, read, wrote)| (read, wrote))
    }

    /// Returns what the site has done since its epoch began.
    pub(crate) fn work(&self) -> WorkCounts {
        self.work
    }

    /// Returns true if the request is the last one that had to wait for a lock, or found a watched row changed.
    pub(crate) fn met_conflict(&self, ticket: Ticket) -> bool {
        self.last_conflict == Some(ticket)
    }

    /// Returns the transactions that had waited, and that the last event made run.
    pub(crate) fn resumed(&self) -> &[ResumedTransaction] {
        &self.resumed
    }

    /// Returns the number of log entries that the site lacks up to the position `session`, plus the number of its own
    /// entries that have not come back from the log.
    pub(crate) fn lag_entries(&self, session: Position) -> u64 {
        self.known.entries_to(session) + (self.written - self.ordered)
    }

    /// Returns true if the site is live: it has seen the beginning of its epoch in the log, and not the end.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.is_live
    }

    /// Returns true if the site's epoch has ended: its process can only begin another one.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Adds an action to those that the current event causes.
    fn say(&mut self, output: Output) {
        self.outputs.push(output);
    }

    /// Answers the request with the error `abort`.
    fn refuse(&mut self, ticket: Ticket, abort: Abort) {
        self.say(Output::Answer(ticket, self.known, Err(abort)));
    }

    /// Writes a log entry with this content, and returns its number in the site's epoch.
    fn write(&mut self, body: Body) -> u64 {
        self.written += 1;
        let by = Author { site: self.site, epoch: self.epoch, number: self.written };
        self.say(Output::Write(LogEntry { by, body }));
        self.written
    }

    /// Ends the site's epoch: drops all copies, and answers or returns all requests.
    fn end(&mut self) {
        (self.is_live, self.is_over) = (false, true);
        self.copies.clear();
        self.changing.clear();
        self.undo.clear();
        self.taken.clear();
        self.queued.clear();
        self.ahead.clear();
        self.rows_requests.clear();
        self.end_two_phase();
        let held = mem::take(&mut self.answers).into_iter().map(|held| held.ticket);
        let installations = mem::take(&mut self.installations).into_values();
        let adopting = installations.filter_map(|adoption| adoption.ticket);
        for ticket in held.chain(adopting).collect::<Vec<_>>() {
            self.refuse(ticket, Abort::Deposed);
        }
        for waiting in mem::take(&mut self.waiting) {
            self.return_to_caller(waiting);
        }
    }

    /// Advances the site's clock to `now_ms`, refuses requests whose time is over, and retries the others.
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
            self.turn_down(one, Abort::Late);
        }
        self.remind();
        self.tick_two_phase();
        self.attempt_all();
    }
}

/// Returns the error for the request of a change that is impossible under the design.
fn refused(impossible: &Impossible) -> Abort {
    Abort::Refused(impossible.to_string())
}
