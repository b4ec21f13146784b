//! A client's connection: its requests, those of them that are under way, and the replies in their order.
//!
//! A client may pipeline requests. They are under way at the same time while one site runs them all, because
//! a site keeps their order. A request for another site waits until all requests before it are answered; so do
//! a returned request and all requests behind it. So the requests of a connection take effect in the order in
//! which they were sent, at whichever sites they run.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{MutexGuard, Notify};
use tokio::time;

use super::request_timeout::RequestTimeout;
use super::sending::send;
use crate::engine::site::executor::{Caller, Executor};
use crate::engine::site::mailbox::{Batch, Outcome, ReplyTo};
use crate::engine::{BACK_WAIT, PATIENCE};
use crate::output_buffer::{OutputBuffer, UNCOUNTED_BYTES};
use crate::record::{Position, Site};
use crate::reply::Reply;
use crate::resp::{Headway, Next, ProtocolState, Request, Scan, Settings};
use crate::router::Route;
use crate::transaction::{Abort, Done, Transaction};

/// The most requests of a connection that are under way, or answered and not sent yet.
const UNDER_WAY_MAX: usize = 1_024;
/// The most bytes that are read at once.
const READ_BYTES: usize = 16 * 1024;
/// Memory that is kept of a buffer for replies.
const KEPT_BYTES_MAX: usize = 64 * 1024;
/// Bytes of replies at which no further reply is added to a send.
const SENT_BYTES: usize = 1024 * 1024;
/// Slots that are kept for the next requests.
const KEPT_SLOTS_MAX: usize = 64;

/// The requests of a connection that are not answered yet, in their order.
pub(in crate::engine) struct Pipeline {
    slots: RefCell<VecDeque<Slot>>,
    /// The number of the first.
    first: Cell<u64>,
    running: Cell<usize>,
    has_back: Cell<bool>,
    /// The time at which a reply was last sent; the time of the requests behind it counts from then.
    progress: Cell<Instant>,
    output: Arc<OutputBuffer>,
    changed: Notify,
}

/// A request, by how far it has come.
enum Slot {
    /// A reply that is ready to be sent.
    Ready(Reply),
    /// Under way; it may begin until this time.
    Open(Instant),
    Ended(Result<Done, Abort>),
    Returned(Instant, Transaction),
}

impl Pipeline {
    fn new(output: Arc<OutputBuffer>) -> Self {
        Self {
            slots: RefCell::default(),
            first: Cell::default(),
            running: Cell::default(),
            has_back: Cell::default(),
            progress: Cell::new(Instant::now()),
            output,
            changed: Notify::default(),
        }
    }

    /// Takes the outcome of the request with a number.
    pub(in crate::engine) fn answer(&self, number: u64, outcome: Outcome, seen: &Cell<Position>) {
        self.running.set(self.running.get() - 1);
        // The slot is gone when the connection is.
        let at = usize::try_from(number - self.first.get()).expect("slots are in memory");
        if let Some(slot) = self.slots.borrow_mut().get_mut(at) {
            *slot = match (outcome, &*slot) {
                (Outcome::Answer(known, mut answer), _) => {
                    seen.set(seen.get().max(known));
                    if let Ok(done) = &mut answer
                        && done.answer.len() > UNCOUNTED_BYTES
                        && !done.answer.is_charged()
                    {
                        // A reply of another process is not charged yet.
                        let charge = self.output.charge(done.answer.len());
                        done.answer.keep(Some(charge));
                    }
                    Slot::Ended(answer)
                }
                (Outcome::Back(transaction), Slot::Open(until)) => {
                    self.has_back.set(true);
                    Slot::Returned(*until, transaction)
                }
                (Outcome::Back(_), _) => unreachable!("only what is open comes back"),
            };
        }
        self.changed.notify_one();
    }

    fn is_full(&self) -> bool {
        self.slots.borrow().len() >= UNDER_WAY_MAX || !self.output.has_room()
    }

    /// Adds a reply that needs no transaction, or the error that it is too long.
    fn say(&self, mut reply: Reply) {
        match self.output.try_charge(reply.len()) {
            _ if reply.len() <= UNCOUNTED_BYTES => {}
            Some(charge) => reply.keep(Some(charge)),
            None => {
                reply = Reply::from(format!("-{}\r\n", self.output.all().refusal()).into_bytes())
            }
        }
        self.push(Slot::Ready(reply));
    }

    /// The latest time at which a request may begin, after the replies before it were sent.
    fn until(&self, until: Instant) -> Instant {
        until.max(self.progress.get() + PATIENCE)
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

    /// Takes the replies that can be sent.
    fn collect(&self, protocol: &mut ProtocolState, out: &mut Reply) {
        let mut slots = self.slots.borrow_mut();
        while let Some(Slot::Ready(_) | Slot::Ended(_)) = slots.front()
            && out.len() < SENT_BYTES
        {
            match slots.pop_front() {
                Some(Slot::Ready(reply)) => out.append(reply),
                Some(Slot::Ended(answer)) => {
                    out.append(protocol.reply(answer.map(|done| done.answer)));
                }
                _ => unreachable!("it was looked at"),
            }
            self.first.set(self.first.get() + 1);
        }
        if slots.is_empty() {
            slots.shrink_to(KEPT_SLOTS_MAX);
        }
    }
}

/// The event that a connection waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// For input of the client, or replies.
    ForInput,
    ForAnswers,
    /// For the design to change.
    ForTime,
    /// For nothing: a reply is to be sent.
    Not,
}

/// A request with a slot that is not under way.
struct Pending {
    slot: u64,
    /// It may begin until this time.
    until: Instant,
    transaction: Transaction,
}

/// The place where a request can run.
enum Located {
    At(Site),
    /// Nowhere, under any design.
    Never(Abort),
    /// Nowhere: the change of the design that it needs failed.
    NotMoved(Abort),
    /// It is not known while other requests of the connection are under way.
    Later,
}

/// A connection, as its task owns it.
struct Connection<'p> {
    executor: &'p Rc<Executor>,
    protocol: ProtocolState,
    id: u64,
    pipeline: Rc<Pipeline>,
    seen: Rc<Cell<Position>>,
    /// The site that runs all requests that are under way.
    at: Option<Site>,
    /// Requests that have a slot and are not under way yet.
    later: VecDeque<Pending>,
    /// Steps of scans, which are planned anew when partitions change.
    scans: HashMap<u64, Scan>,
    /// True if requests in `later` were returned.
    is_again: bool,
    is_closing: bool,
    moved: Option<MutexGuard<'p, ()>>,
}

/// Serves a client until the client or the store ends the connection.
///
/// # Errors
/// Fails if the connection breaks, or the client does not receive.
pub(in crate::engine) async fn serve(
    executor: &Rc<Executor>,
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    settings: Arc<Settings>,
    id: u64,
) -> io::Result<()> {
    let mut timeout = RequestTimeout::new(settings.request_wait);
    let output = OutputBuffer::new(&settings.output);
    let mut connection = Connection {
        executor,
        protocol: ProtocolState::new(settings, id),
        id,
        pipeline: Rc::new(Pipeline::new(Arc::clone(&output))),
        seen: Rc::default(),
        at: None,
        later: VecDeque::new(),
        scans: HashMap::new(),
        is_again: false,
        is_closing: false,
        moved: None,
    };
    let mut buffer = vec![0; READ_BYTES];
    let mut out = Reply::default();
    loop {
        let waits = connection.advance().await;
        connection.pipeline.collect(&mut connection.protocol, &mut out);
        if !out.is_empty() {
            send(&mut stream, &out, &output).await?;
            out.clear(KEPT_BYTES_MAX);
            connection.pipeline.progress.set(Instant::now());
            // A sent reply may let the next request begin.
            continue;
        }
        if connection.is_closing && connection.pipeline.slots.borrow().is_empty() {
            return stream.shutdown().await;
        }
        match waits {
            Waits::Not => {}
            Waits::ForTime => time::sleep(BACK_WAIT).await,
            Waits::ForAnswers => connection.pipeline.changed.notified().await,
            Waits::ForInput => {
                let until = timeout.until(connection.unfinished_request());
                let gives_up = async {
                    match until {
                        Some(until) => time::sleep_until(until.into()).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    read = stream.read(&mut buffer) => match read? {
                        0 => return Ok(()),
                        bytes => connection.protocol.feed(&buffer[..bytes]),
                    },
                    () = connection.pipeline.changed.notified() => {}
                    () = gives_up => connection.give_up(),
                }
            }
        }
    }
}

impl Connection<'_> {
    /// Returns the progress of an unfinished request, while the client waits for no reply.
    fn unfinished_request(&self) -> Option<Headway> {
        self.protocol.headway().filter(|_| self.pipeline.slots.borrow().is_empty())
    }

    fn give_up(&mut self) {
        self.is_closing = true;
        let last = self.protocol.give_up();
        self.pipeline.push(Slot::Ready(last));
    }

    /// Begins the requests that can begin.
    async fn advance(&mut self) -> Waits {
        // The requests for another site are sent as one batch: later ones have to wait.
        let mut batch = Batch::new();
        let waits = loop {
            if self.pipeline.running.get() == 0 && batch.is_empty() {
                self.at = None;
                self.moved = None;
                self.take_back();
            }
            let request = match self.take_request() {
                Ok(Some(request)) => request,
                Ok(None) => continue,
                Err(waits) => break waits,
            };
            let site = match self.locate(&request).await {
                Located::At(site) => site,
                Located::Never(abort) => {
                    self.pipeline.end(request.slot, abort);
                    continue;
                }
                Located::NotMoved(abort) => {
                    self.pipeline.end(request.slot, abort);
                    break Waits::Not;
                }
                Located::Later => {
                    self.later.push_front(request);
                    break Waits::ForAnswers;
                }
            };
            if !self.may_join(site, !batch.is_empty()) {
                self.later.push_front(request);
                break Waits::ForAnswers;
            }
            self.begin(site, request, &mut batch);
        };
        if let Some(site) = self.at.filter(|_| !batch.is_empty()) {
            self.executor.send(site, batch);
        }
        self.executor.flush();
        waits
    }

    /// Takes the next request that is not under way; `None` if a request of the client was answered at once.
    fn take_request(&mut self) -> Result<Option<Pending>, Waits> {
        if self.pipeline.has_back.get() {
            return Err(Waits::ForAnswers);
        }
        if std::mem::take(&mut self.is_again) {
            return Err(Waits::ForTime);
        }
        let has_room = self.pipeline.output.has_room();
        let next = match self.later.pop_front() {
            Some(next) if !has_room => {
                self.later.push_front(next);
                return Err(Waits::ForAnswers);
            }
            Some(next) => Some(Pending { until: self.pipeline.until(next.until), ..next }),
            None if self.is_closing || self.pipeline.is_full() => return Err(Waits::ForAnswers),
            None => self.next()?,
        };
        Ok(next.map(|mut next| {
            // It must see what was answered since it arrived.
            next.transaction.session = self.seen.get();
            next.transaction.output = Some(Arc::clone(&self.pipeline.output));
            next
        }))
    }

    /// Finds the site that can run a request. If there is none, the design is changed, once no other request of
    /// the connection is under way.
    async fn locate(&mut self, request: &Pending) -> Located {
        let shared = &self.executor.shared;
        let Transaction { reads, writes, at_masters, .. } = &request.transaction;
        match shared.route(reads, writes, Some(self.executor.site), *at_masters) {
            Route::Run(site) => Located::At(site),
            Route::Never(abort) => Located::Never(abort),
            Route::First(_) if self.at.is_some() => Located::Later,
            Route::First(_) => {
                self.moved = Some(shared.moves.lock().await);
                let moved = shared.bring_about(reads, writes, request.until).await;
                moved.map_or_else(Located::NotMoved, Located::At)
            }
        }
    }

    /// True if a request for `site` may begin beside those that are under way: with none, with those of this
    /// thread's site, or in the batch that is being made.
    fn may_join(&self, site: Site, has_batch: bool) -> bool {
        self.at.is_none() || self.at == Some(site) && (site == self.executor.site || has_batch)
    }

    fn begin(&mut self, site: Site, request: Pending, batch: &mut Batch) {
        let Pending { slot, until, transaction } = request;
        self.at = Some(site);
        self.pipeline.running.set(self.pipeline.running.get() + 1);
        let caller = Caller::Pipeline(Rc::clone(&self.pipeline), slot, Rc::clone(&self.seen));
        let here = self.executor.site;
        if site == here {
            self.executor.transact(caller, transaction, until);
        } else {
            let ticket = self.executor.expect(caller);
            batch.push((ReplyTo::Site(here, ticket), transaction, until));
        }
    }

    /// The client's next request, with a slot; none if it was answered at once.
    fn next(&mut self) -> Result<Option<Pending>, Waits> {
        let (request, scan) = match self.protocol.next() {
            // It may wait for a reply; input is read meanwhile.
            Next::Wait => return Err(Waits::ForInput),
            Next::Reply(reply) => {
                self.pipeline.say(reply);
                return Ok(None);
            }
            Next::Close(reply) => {
                self.is_closing = true;
                self.pipeline.say(reply);
                return Ok(None);
            }
            Next::Run(request) => (request, None),
            Next::Scan(scan) => (self.step_of(&scan), Some(scan)),
        };
        let until = Instant::now() + PATIENCE;
        let slot = self.pipeline.push(Slot::Open(until));
        if let Some(scan) = scan {
            let first = self.pipeline.first.get();
            self.scans.retain(|slot, _| *slot >= first);
            self.scans.insert(slot, scan);
        }
        Ok(Some(Pending { slot, until, transaction: self.transaction(request) }))
    }

    fn transaction(&self, request: Request) -> Transaction {
        let Request { reads, writes, procedure, .. } = request;
        let (session, client) = (self.seen.get(), Some(self.id));
        let output = None;
        Transaction { reads, writes, session, client, at_masters: false, output, procedure }
    }

    fn step_of(&self, scan: &Scan) -> Request {
        let map = self.executor.shared.map.load();
        scan.within(map.design.of(scan.start()).range.end.as_ref())
    }

    /// Puts returned requests back in front of those that arrived later.
    fn take_back(&mut self) {
        if !self.pipeline.has_back.take() {
            return;
        }
        let first = self.pipeline.first.get();
        let mut again = VecDeque::new();
        for (slot, number) in self.pipeline.slots.borrow_mut().iter_mut().zip(first..) {
            if let Slot::Returned(until, _) = *slot {
                match std::mem::replace(slot, Slot::Open(until)) {
                    Slot::Returned(_, _) if self.pipeline.until(until) <= Instant::now() => {
                        *slot = Slot::Ended(Err(Abort::Late));
                    }
                    Slot::Returned(_, transaction) => {
                        again.push_back(Pending { slot: number, until, transaction });
                    }
                    _ => unreachable!("it was looked at"),
                }
            }
        }
        for Pending { slot, transaction, .. } in &mut again {
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
