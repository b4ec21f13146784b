//! A site: copies of partitions, the transactions that run on them, and what it does as the log goes
//! on. A state machine without input, output, clock or thread: it is told what happens, and says
//! what is to be done.
//!
//! The idea: time is the log. A snapshot of the database is a prefix of it, a commit's timestamp is
//! its place, and a site is the image of a prefix, which grows as frames arrive in their order. What
//! a site masters it runs ahead of the log: its commits are applied at once, written into the log,
//! and told to nobody before the log has them. So a transaction that touches only what its site
//! masters waits for nothing before it runs (MorphoSys, §4.2); and because nobody else writes there,
//! the place that the log gives it later is as good as one that had been known before.
//!
//! Where a transaction also reads replicas, or what is being handed to another site, its snapshot is
//! the prefix that the site has: it waits until whatever the site itself wrote to its partitions is
//! in there. The paper records for each
//! version which versions of other partitions it depends on (Eq. 1), and waits for these. That keeps
//! causes before effects, but two readers at two sites may see two independent commits in two orders
//! (a long fork), which snapshot isolation does not allow. One order for all costs less to keep, and
//! a session's timestamp is a number.
//!
//! A change of the design happens when the log has it, and if it is possible there. Its partition is
//! locked from when it is written until then, so that its master knows what it will be a change of.
//!
//! Invariants:
//! 1. A copy that is not mastered here is as of `known`. One that is, is ahead of it by those commits
//!    of this site that the log has not shown yet, and by nothing else.
//! 2. An answer is given only when the log has every frame of this site that it could have seen.
//! 3. The write set is locked before the snapshot is fixed, and until the commit is applied: nobody
//!    reads, to write it, a row that somebody else overwrites meanwhile.
//! 4. Locks are taken all at once, in the order of arrival where the same ones are wanted: nobody
//!    waits in a circle, and nobody for ever.
//! 5. Where the design says that a site has a replica, it has the rows.
//! 6. A site that finds itself given up for dead, or with a newer life, forgets all that it had.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;

use crate::design::{Design, Impossible, Verdict};
use crate::key::{Key, Value};
use crate::record::{Author, Body, Change, Frame, Position, Site, Write};
use crate::rows::Rows;
use crate::transaction::{Abort, Done, Transaction, View, WRITTEN_BYTES_MAX};

mod adopt;
mod copy;
mod lock;
#[cfg(test)]
mod tests;

pub use adopt::Message;
use adopt::{Adoption, Wanted};
use copy::Copy;

/// Whom an answer is for: whoever asked knows.
pub type Ticket = u64;

/// How many may wait at a site; more are refused.
const WAITING_MAX: usize = 10_000;
/// How many frames a site may be ahead of the log; a log that stands still must not fill its memory.
const AHEAD_MAX: u64 = 100_000;

/// What happens to a site.
pub enum Input {
    /// A transaction is to run; until a time, in ms.
    Transact(Ticket, Transaction, u64),
    /// The design is to change; until a time. Replicas are made by [`Input::Adopt`].
    Change(Ticket, Change, u64),
    /// A replica is to be made here of the partition that begins at a key; until a time.
    Adopt(Ticket, Key, u64),
    /// The log's next frame.
    Logged(Position, Frame),
    /// Another site says something.
    Said(Site, Message),
    /// It is so late now, in ms.
    Tick(u64),
}

/// What is to be done.
#[derive(Debug)]
pub enum Output {
    /// Write this into the log, behind what was written before.
    Write(Frame),
    /// Tell whoever asked, and that its session has now seen this prefix of the log.
    Answer(Ticket, Position, Result<Done, Abort>),
    /// Tell another site.
    Say(Site, Message),
}

/// See the module's documentation.
pub struct Core {
    site: Site,
    epoch: u64,
    /// Whether the log has this life's beginning, and no end of it.
    is_live: bool,
    is_over: bool,
    now_ms: u64,
    /// The log that it has, and the design there.
    known: Position,
    design: Design,
    copies: BTreeMap<Key, Copy>,
    /// The number of the last frame that was written, and of the last that came back.
    written: u64,
    ordered: u64,
    waiting: VecDeque<Waiting>,
    /// Partitions whose design is being changed, by start, and by which frame.
    changing: BTreeMap<Key, u64>,
    /// Answers that wait for a frame of this site, in the order of the frames.
    answers: VecDeque<Held>,
    /// Replicas that are being made here.
    adoptions: BTreeMap<Key, Adoption>,
    /// Copies that others asked for, until the log has what is given.
    wanted: BTreeMap<(Site, Key), Wanted>,
    outputs: Vec<Output>,
    /// What the tests break, to see whether they notice.
    #[cfg(test)]
    broken: Option<tests::Bug>,
}

struct Waiting {
    ticket: Ticket,
    until_ms: u64,
    what: Want,
}

enum Want {
    Transaction(Transaction),
    Change(Change),
}

impl Want {
    /// The prefix of the log that it needs.
    fn session(&self) -> Position {
        match self {
            Self::Transaction(transaction) => transaction.session,
            Self::Change(_) => 0,
        }
    }
}

struct Held {
    number: u64,
    ticket: Ticket,
    answer: Result<Vec<u8>, Abort>,
    has_written: bool,
}

impl Core {
    /// A site that begins a new life, with an epoch that it never had. It is to be told the log from
    /// the first frame on; what it says first makes it alive, once the log has it.
    #[must_use]
    pub fn new(site: Site, epoch: u64, initial: Design) -> Self {
        let mut core = Self {
            site,
            epoch,
            is_live: false,
            is_over: false,
            now_ms: 0,
            known: 0,
            copies: BTreeMap::new(),
            design: initial,
            written: 0,
            ordered: 0,
            waiting: VecDeque::new(),
            changing: BTreeMap::new(),
            answers: VecDeque::new(),
            adoptions: BTreeMap::new(),
            wanted: BTreeMap::new(),
            outputs: Vec::new(),
            #[cfg(test)]
            broken: None,
        };
        // Until it lives it is the image of everything: only then it is known what its own is.
        for partition in core.design.partitions() {
            let version = partition.version;
            let copy = Copy { rows: Rows::default(), version, changed: version, last: 0 };
            core.copies.insert(partition.range.start.clone(), copy);
        }
        core.write(Body::Join);
        core
    }

    /// Goes on by one thing that happened, and says what is to be done, in this order.
    pub fn on(&mut self, input: Input) -> Vec<Output> {
        match input {
            Input::Transact(ticket, transaction, until_ms) => {
                self.ask(ticket, until_ms, Want::Transaction(transaction));
            }
            Input::Change(ticket, change, until_ms) => {
                self.ask(ticket, until_ms, Want::Change(change));
            }
            Input::Adopt(ticket, start, until_ms) => self.adopt(ticket, start, until_ms),
            Input::Logged(position, frame) => self.follow(position, &frame),
            Input::Said(from, message) => self.hear(from, message),
            Input::Tick(now_ms) => self.tick(now_ms),
        }
        mem::take(&mut self.outputs)
    }

    /// The design as of the prefix of the log that the site has.
    #[must_use]
    pub fn design(&self) -> &Design {
        &self.design
    }

    /// That prefix.
    #[must_use]
    pub fn known(&self) -> Position {
        self.known
    }

    /// Whether it takes part: the log has its beginning, and not its end.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.is_live
    }

    /// Whether it was given up for dead: it can only begin another life.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    #[cfg(test)]
    fn has(&self, bug: tests::Bug) -> bool {
        self.broken == Some(bug)
    }

    fn say(&mut self, output: Output) {
        self.outputs.push(output);
    }

    fn refuse(&mut self, ticket: Ticket, abort: Abort) {
        self.say(Output::Answer(ticket, self.known, Err(abort)));
    }

    fn write(&mut self, body: Body) -> u64 {
        self.written += 1;
        let by = Author { site: self.site, epoch: self.epoch, number: self.written };
        self.say(Output::Write(Frame { by, body }));
        self.written
    }

    fn ask(&mut self, ticket: Ticket, until_ms: u64, what: Want) {
        if !self.is_live {
            return self.refuse(ticket, Abort::Elsewhere);
        }
        let is_far_ahead = self.written - self.ordered >= AHEAD_MAX;
        if self.waiting.len() >= WAITING_MAX || is_far_ahead {
            return self.refuse(ticket, Abort::Busy);
        }
        self.waiting.push_back(Waiting { ticket, until_ms, what });
        self.attempt_all();
    }

    /// Tries whatever waits, the first who came first. Who wants what one before him wants waits.
    fn attempt_all(&mut self) {
        let mut taken = BTreeSet::new();
        for mut waiting in mem::take(&mut self.waiting) {
            // The design that it is meant for may be one that the site does not know yet.
            let is_early = waiting.what.session() > self.known;
            #[cfg(test)]
            let is_early = is_early && !self.has(tests::Bug::SessionIgnored);
            if is_early {
                self.waiting.push_back(waiting);
                continue;
            }
            let locks = match self.locks(&waiting.what) {
                Ok(locks) => locks,
                Err(abort) => {
                    self.refuse(waiting.ticket, abort);
                    continue;
                }
            };
            let is_free = |start| !taken.contains(start) && !self.changing.contains_key(start);
            #[cfg(test)]
            let is_free = |start| is_free(start) || self.has(tests::Bug::LockIgnored);
            if locks.iter().all(is_free) && self.attempt(&mut waiting, &locks) {
                continue;
            }
            taken.extend(locks);
            self.waiting.push_back(waiting);
        }
    }

    /// Does it, if its time has come; its locks are free.
    fn attempt(&mut self, waiting: &mut Waiting, locks: &[Key]) -> bool {
        match &mut waiting.what {
            Want::Transaction(transaction) if !self.may_run(transaction) => return false,
            Want::Transaction(transaction) => self.run(waiting.ticket, transaction),
            Want::Change(change) => {
                let number = self.write(Body::Change(change.clone()));
                self.changing.extend(locks.iter().map(|start| (start.clone(), number)));
                self.hold(waiting.ticket, Ok(Vec::new()), true);
            }
        }
        true
    }

    fn run(&mut self, ticket: Ticket, transaction: &mut Transaction) {
        let (reads, writes) = (&transaction.reads, &transaction.writes);
        let mut view = View { rows: &*self, reads, writes, written: BTreeMap::new() };
        let answer = transaction.procedure.run(&mut view);
        let bytes = view.written_bytes();
        let is_too_large = bytes > WRITTEN_BYTES_MAX;
        let answer = answer
            .and_then(|answer| if is_too_large { Err(Abort::TooLarge(bytes)) } else { Ok(answer) });
        let written = view.written;
        let has_written = answer.is_ok() && !written.is_empty();
        if has_written {
            self.commit(written);
        }
        // It may have seen any commit of this site; a refusal tells of them too.
        self.hold(ticket, answer, has_written);
        self.release(0);
    }

    fn commit(&mut self, written: BTreeMap<Key, Option<Value>>) {
        let number = self.written + 1;
        let mut writes: Vec<Write> = Vec::new();
        for (key, value) in written {
            let start = &self.design.of(&key).range.start;
            if writes.last().is_none_or(|write| write.start != *start) {
                let version = self.copies[start].version + 1;
                writes.push(Write { start: start.clone(), version, rows: Vec::new() });
            }
            writes.last_mut().expect("one was pushed").rows.push((key, value));
        }
        for write in &writes {
            let copy = self.copies.get_mut(&write.start).expect("what is mastered here is here");
            copy.apply(write);
            copy.last = number;
        }
        self.write(Body::Commit(writes));
    }

    /// Keeps an answer until the log has all that was written so far.
    fn hold(&mut self, ticket: Ticket, answer: Result<Vec<u8>, Abort>, has_written: bool) {
        let number = self.written;
        #[cfg(test)]
        let number =
            if self.has(tests::Bug::AnswerAheadOfLog) { number.min(self.ordered) } else { number };
        self.answers.push_back(Held { number, ticket, answer, has_written });
    }

    fn follow(&mut self, position: Position, frame: &Frame) {
        assert_eq!(position, self.known + 1, "the log comes in its order");
        self.known = position;
        let is_of_this_life = frame.by.site == self.site && frame.by.epoch == self.epoch;
        let is_own = is_of_this_life && frame.body != Body::Fence;
        let verdict = self.design.follow(frame);
        if !self.is_over && self.is_the_end(frame, verdict) {
            self.end();
        }
        if self.is_over {
            return;
        }
        if is_own && verdict != Verdict::Void {
            assert_eq!(frame.by.number, self.ordered + 1, "own frames come in their order");
            self.ordered = frame.by.number;
        }
        match (&frame.body, verdict) {
            (_, Verdict::Void) => {}
            (Body::Join, _) => self.is_live |= is_own,
            // An own commit was applied when it was written.
            (Body::Commit(_), _) if is_own => {}
            (Body::Commit(writes), _) => writes.iter().for_each(|write| self.replicate(write)),
            (Body::Change(change), Verdict::Counts) => {
                self.reshape(change);
                self.notice(change);
            }
            (Body::Change(_), Verdict::Refused(impossible)) => {
                let held = self
                    .answers
                    .front_mut()
                    .filter(|held| is_own && held.has_written && held.number == self.ordered);
                if let Some(held) = held {
                    held.answer = Err(refused(&impossible));
                }
            }
            (Body::Fence, _) => self.inherit(),
        }
        let ordered = self.ordered;
        self.changing.retain(|_, number| *number > ordered);
        if self.is_live {
            if !matches!(frame.body, Body::Commit(_)) {
                self.settle();
            }
            self.give_all();
            self.release(position);
            self.attempt_all();
        }
    }

    /// Whether a frame ends this life: a word of others, a newer life, or one of its own that does not
    /// count. One that came before comes to nothing.
    fn is_the_end(&self, frame: &Frame, verdict: Verdict) -> bool {
        let by = frame.by;
        if by.site != self.site || by.epoch < self.epoch {
            return false;
        }
        match frame.body {
            Body::Join if by.epoch > self.epoch => verdict == Verdict::Counts,
            _ if by.epoch > self.epoch => false,
            Body::Fence => verdict == Verdict::Counts,
            _ => verdict == Verdict::Void && by.number > self.ordered,
        }
    }

    /// Answers whoever waited for what the log has now, up to a position.
    fn release(&mut self, position: Position) {
        while let Some(held) = self.answers.front()
            && held.number <= self.ordered
        {
            let held = self.answers.pop_front().expect("there is one");
            let committed = held.has_written.then_some(position);
            let done = held.answer.map(|answer| Done { answer, committed });
            self.say(Output::Answer(held.ticket, self.known, done));
        }
    }

    /// Somebody gave this site up for dead.
    fn end(&mut self) {
        (self.is_live, self.is_over) = (false, true);
        self.copies.clear();
        self.changing.clear();
        self.wanted.clear();
        let waiting = mem::take(&mut self.waiting).into_iter().map(|waiting| waiting.ticket);
        let held = mem::take(&mut self.answers).into_iter().map(|held| held.ticket);
        let adoptions = mem::take(&mut self.adoptions).into_values();
        let adopting = adoptions.filter_map(|adoption| adoption.ticket);
        for ticket in held.chain(waiting).chain(adopting).collect::<Vec<_>>() {
            self.refuse(ticket, Abort::Deposed);
        }
    }

    fn tick(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        let now_ms = self.now_ms;
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
