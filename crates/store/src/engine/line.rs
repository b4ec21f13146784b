//! A client's connection: what it asks, what of that is under way, and the answers in their order.
//!
//! A client may send many requests before it reads an answer. They are under way at the same time, if
//! one site runs them all: it keeps their order. What another site has to run waits until all before it
//! are answered; so do those that came back because the design has changed, and all behind them. Whoever
//! sends a request behind another is never surprised by their order, at whatever sites they run.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{MutexGuard, Notify};
use tokio::time;

use super::half::Half;
use super::place::{Caller, Place};
use super::{BACK_WAIT, Outcome, PATIENCE, Remote};
use crate::record::{Position, Site};
use crate::resp::{Connection, Headway, Next, Request, Scan, Settings};
use crate::router::Route;
use crate::transaction::{Abort, Done, Transaction};

/// The most requests of a connection that are under way, or answered and not sent yet.
const UNDER_WAY_MAX: usize = 1_024;
/// The most bytes of answers that wait to be sent before no further request begins.
const WAITING_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How much is read at once.
const READ_BYTES: usize = 16 * 1024;
/// What is kept of a buffer for answers after a long one.
const KEPT_BYTES_MAX: usize = 1024 * 1024;
/// How long a client may take to receive what it asked for.
const SEND_WAIT: Duration = Duration::from_secs(60);

/// The requests of a connection that are not answered yet.
#[derive(Default)]
pub(super) struct Line {
    slots: RefCell<VecDeque<Slot>>,
    /// The number of the first.
    first: Cell<u64>,
    running: Cell<usize>,
    /// Of the answers.
    bytes: Cell<usize>,
    has_back: Cell<bool>,
    changed: Notify,
}

/// A request, by how far it has come.
enum Slot {
    /// What is to be sent.
    Said(Vec<u8>),
    /// Until a time it may begin.
    Open(Instant),
    Ended(Result<Done, Abort>),
    Back(Instant, Transaction),
}

impl Line {
    /// What came of the request with a number.
    pub(super) fn answer(&self, number: u64, outcome: Outcome, seen: &Cell<Position>) {
        self.running.set(self.running.get() - 1);
        // Where the connection is gone nobody is there to be told.
        let at = usize::try_from(number - self.first.get()).expect("slots are in memory");
        if let Some(slot) = self.slots.borrow_mut().get_mut(at) {
            *slot = match (outcome, &*slot) {
                (Outcome::Answer(known, answer), _) => {
                    seen.set(seen.get().max(known));
                    let bytes = answer.as_ref().map_or(0, |done| done.answer.len());
                    self.bytes.set(self.bytes.get() + bytes);
                    Slot::Ended(answer)
                }
                (Outcome::Back(transaction), Slot::Open(until)) => {
                    self.has_back.set(true);
                    Slot::Back(*until, transaction)
                }
                (Outcome::Back(_), _) => unreachable!("only what is open comes back"),
            };
        }
        self.changed.notify_one();
    }

    fn is_full(&self) -> bool {
        self.slots.borrow().len() >= UNDER_WAY_MAX || self.bytes.get() >= WAITING_BYTES_MAX
    }

    fn push(&self, slot: Slot) -> u64 {
        let mut slots = self.slots.borrow_mut();
        slots.push_back(slot);
        self.first.get() + slots.len() as u64 - 1
    }

    fn end(&self, number: u64, abort: Abort) {
        let at = usize::try_from(number - self.first.get()).expect("slots are in memory");
        self.slots.borrow_mut()[at] = Slot::Ended(Err(abort));
    }

    /// Takes the answers that can be sent.
    fn collect(&self, connection: &mut Connection, out: &mut Vec<u8>) {
        let mut slots = self.slots.borrow_mut();
        while let Some(Slot::Said(_) | Slot::Ended(_)) = slots.front()
            && out.len() < KEPT_BYTES_MAX
        {
            match slots.pop_front() {
                Some(Slot::Said(bytes)) => out.extend(bytes),
                Some(Slot::Ended(answer)) => {
                    let bytes = answer.as_ref().map_or(0, |done| done.answer.len());
                    self.bytes.set(self.bytes.get() - bytes);
                    out.extend(connection.reply(answer.map(|done| done.answer)));
                }
                _ => unreachable!("it was looked at"),
            }
            self.first.set(self.first.get() + 1);
        }
    }
}

/// What a connection waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// What the client sends next, besides answers.
    ForInput,
    ForAnswers,
    /// The design to settle.
    ForTime,
    /// Nothing: there is something to be sent.
    Not,
}

/// A connection as its task has it.
struct Talk<'p> {
    place: &'p Rc<Place>,
    connection: Connection,
    id: u64,
    line: Rc<Line>,
    seen: Rc<Cell<Position>>,
    /// Where everything runs that is under way.
    at: Option<Site>,
    /// What is not under way yet, though it has its slot.
    later: VecDeque<(u64, Instant, Transaction)>,
    /// Steps of walks, which are asked for anew where partitions change.
    scans: HashMap<u64, Scan>,
    /// Whether what is later came back.
    is_again: bool,
    is_closing: bool,
    moved: Option<MutexGuard<'p, ()>>,
}

/// Talks with a client until one of the two ends it.
///
/// # Errors
/// When the connection breaks, or the client does not receive.
pub(super) async fn talk(
    place: &Rc<Place>,
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    settings: Arc<Settings>,
    id: u64,
) -> io::Result<()> {
    let mut half = Half::new(settings.request_wait);
    let mut talk = Talk {
        place,
        connection: Connection::new(settings, id),
        id,
        line: Rc::default(),
        seen: Rc::default(),
        at: None,
        later: VecDeque::new(),
        scans: HashMap::new(),
        is_again: false,
        is_closing: false,
        moved: None,
    };
    let mut buffer = vec![0; READ_BYTES];
    let mut out = Vec::new();
    loop {
        let waits = talk.go_on().await;
        talk.line.collect(&mut talk.connection, &mut out);
        if !out.is_empty() {
            time::timeout(SEND_WAIT, stream.write_all(&out)).await??;
            out.clear();
            out.shrink_to(KEPT_BYTES_MAX);
            // An answer may have let the next request begin.
            continue;
        }
        if talk.is_closing && talk.line.slots.borrow().is_empty() {
            return stream.shutdown().await;
        }
        match waits {
            Waits::Not => {}
            Waits::ForTime => time::sleep(BACK_WAIT).await,
            Waits::ForAnswers => talk.line.changed.notified().await,
            Waits::ForInput => {
                let until = half.until(talk.left_half());
                let gives_up = async {
                    match until {
                        Some(until) => time::sleep_until(until.into()).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    read = stream.read(&mut buffer) => match read? {
                        0 => return Ok(()),
                        bytes => talk.connection.feed(&buffer[..bytes]),
                    },
                    () = talk.line.changed.notified() => {}
                    () = gives_up => talk.give_up(),
                }
            }
        }
    }
}

impl Talk<'_> {
    /// How far the client has come with what it has left half done, while it waits for nothing.
    fn left_half(&self) -> Option<Headway> {
        self.connection.headway().filter(|_| self.line.slots.borrow().is_empty())
    }

    fn give_up(&mut self) {
        self.is_closing = true;
        self.line.push(Slot::Said(self.connection.give_up()));
    }

    /// Begins what can begin.
    async fn go_on(&mut self) -> Waits {
        // For another site, in one piece: what comes later has to wait.
        let mut batch = Vec::new();
        let waits = loop {
            if self.line.running.get() == 0 && batch.is_empty() {
                self.at = None;
                self.moved = None;
                self.take_back();
            }
            if self.line.has_back.get() {
                break Waits::ForAnswers;
            }
            if self.is_again {
                self.is_again = false;
                break Waits::ForTime;
            }
            let (slot, until, mut transaction) = match self.later.pop_front() {
                Some(next) => next,
                None if self.is_closing || self.line.is_full() => break Waits::ForAnswers,
                None => match self.next() {
                    Ok(Some(next)) => next,
                    Ok(None) => continue,
                    Err(waits) => break waits,
                },
            };
            // What was answered since it came, it has to see.
            transaction.session = self.seen.get();
            let (reads, writes) = (&transaction.reads, &transaction.writes);
            let here = self.place.site;
            let is_idle = self.at.is_none();
            let at_masters = transaction.at_masters;
            let site = match self.place.shared.route(reads, writes, Some(here), at_masters) {
                Route::Run(site) => site,
                Route::Never(abort) => {
                    self.line.end(slot, abort);
                    continue;
                }
                Route::First(_) if is_idle => {
                    let shared = &self.place.shared;
                    self.moved = Some(shared.moves.lock().await);
                    match shared.bring_about(reads, writes, until).await {
                        Ok(site) => site,
                        Err(abort) => {
                            self.line.end(slot, abort);
                            break Waits::Not;
                        }
                    }
                }
                // Where it will be is not known: all before it have to be done.
                Route::First(_) => {
                    self.later.push_front((slot, until, transaction));
                    break Waits::ForAnswers;
                }
            };
            let is_in_batch = self.at == Some(site) && !batch.is_empty();
            if !(is_idle || is_in_batch || self.at == Some(site) && site == here) {
                self.later.push_front((slot, until, transaction));
                break Waits::ForAnswers;
            }
            self.at = Some(site);
            self.line.running.set(self.line.running.get() + 1);
            let caller = Caller::Line(Rc::clone(&self.line), slot, Rc::clone(&self.seen));
            if site == here {
                self.place.transact(caller, transaction, until);
            } else {
                let ticket = self.place.expect(caller);
                batch.push((Remote::Site(here, ticket), transaction, until));
            }
        };
        if let Some(site) = self.at.filter(|_| !batch.is_empty()) {
            self.place.send(site, batch);
        }
        self.place.flush();
        waits
    }

    /// The client's next request, with a slot; nothing where it was answered at once.
    fn next(&mut self) -> Result<Option<(u64, Instant, Transaction)>, Waits> {
        let (request, scan) = match self.connection.next() {
            // It may wait for an answer; what comes meanwhile is read nevertheless.
            Next::Wait => return Err(Waits::ForInput),
            Next::Reply(bytes) => {
                self.line.push(Slot::Said(bytes));
                return Ok(None);
            }
            Next::Close(bytes) => {
                self.is_closing = true;
                self.line.push(Slot::Said(bytes));
                return Ok(None);
            }
            Next::Run(request) => (request, None),
            Next::Scan(scan) => (self.step_of(&scan), Some(scan)),
        };
        let until = Instant::now() + PATIENCE;
        let slot = self.line.push(Slot::Open(until));
        if let Some(scan) = scan {
            let first = self.line.first.get();
            self.scans.retain(|slot, _| *slot >= first);
            self.scans.insert(slot, scan);
        }
        Ok(Some((slot, until, self.transaction(request))))
    }

    fn transaction(&self, request: Request) -> Transaction {
        let Request { reads, writes, procedure, .. } = request;
        let (session, client) = (self.seen.get(), Some(self.id));
        Transaction { reads, writes, session, client, at_masters: false, procedure }
    }

    fn step_of(&self, scan: &Scan) -> Request {
        let map = self.place.shared.map.load();
        scan.within(map.design.of(scan.start()).range.end.as_ref())
    }

    /// What came back is begun again, before all that came later.
    fn take_back(&mut self) {
        if !self.line.has_back.take() {
            return;
        }
        let first = self.line.first.get();
        let mut again = VecDeque::new();
        for (slot, number) in self.line.slots.borrow_mut().iter_mut().zip(first..) {
            if let Slot::Back(until, _) = *slot {
                match std::mem::replace(slot, Slot::Open(until)) {
                    Slot::Back(_, _) if until <= Instant::now() => {
                        *slot = Slot::Ended(Err(Abort::Late));
                    }
                    Slot::Back(_, transaction) => again.push_back((number, until, transaction)),
                    _ => unreachable!("it was looked at"),
                }
            }
        }
        for (slot, _, transaction) in &mut again {
            if let Some(scan) = self.scans.get(slot) {
                let at_masters = transaction.at_masters;
                let step = self.transaction(self.step_of(scan));
                *transaction = Transaction { at_masters, ..step };
            }
        }
        again.append(&mut self.later);
        self.later = again;
        self.is_again = true;
        self.scans.retain(|slot, _| *slot >= first);
    }
}
