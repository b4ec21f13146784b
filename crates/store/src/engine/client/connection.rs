//! A client's connection: its queue of requests, the requests that are under way, and the replies in request order.
//!
//! A client may pipeline requests. They are under way at the same time as long as one site runs them all, because a
//! site keeps their order. A request for another site waits until all requests before it are answered. So do a
//! returned request and all requests after it. So the requests of a connection take effect in the order in which they
//! were sent, whichever sites run them.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt as _};
use tokio::time;

use super::pipeline::{Pipeline, Slot};
use super::request_timeout::RequestTimeout;
use super::sending::send;
use crate::engine::move_locks::MoveLock;
use crate::engine::site::mailbox::{Batch, Caller, ReplyTo, Submit};
use crate::engine::{BACK_WAIT, PATIENCE, Shared};
use crate::output_buffer::OutputBuffer;
use crate::record::{Position, Site};
use crate::reply::Reply;
use crate::resp::{Headway, Next, ProtocolState, Request, Scan, Settings};
use crate::router::Route;
use crate::transaction::{Abort, Transaction};

/// Size of a connection's buffer for input, in bytes.
const READ_BYTES: usize = 16 * 1024;
/// Capacity that a connection's buffer for replies retains after a send, in bytes.
const RETAINED_BYTES_MAX: usize = 64 * 1024;
/// The event that a connection's task waits for next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// Input from the client, or the outcome of a request.
    ForInput,
    /// The outcome of a request that is under way.
    ForAnswers,
    /// The end of a delay, in which the design may change.
    ForTime,
    /// No event: a reply is ready to be sent.
    Not,
}

/// A request of a connection that has a slot and is not under way.
struct Pending {
    /// Number of the request's slot.
    slot: u64,
    /// Time until which the request may begin.
    until: Instant,
    transaction: Transaction,
}

/// The site that can run a request, or the reason why none can.
enum Located {
    /// This site can run the request.
    At(Site),
    /// No site can run the request, because of pins or because a site that the request needs is down.
    Never(Abort),
    /// No site can run the request, because the change of the design that it needs failed with this error.
    NotMoved(Abort),
    /// The site cannot be determined while other requests of the connection are under way.
    Later,
}

/// The state of a client's connection, owned by its task.
struct Connection<'p> {
    /// The thread that runs this connection.
    site: &'p dyn Submit,
    shared: &'p Shared,
    protocol: ProtocolState,
    /// The number of the connection, by which its transactions are kept in order.
    id: u64,
    pipeline: Rc<Pipeline>,
    /// The prefix of the log that the client has seen in replies.
    seen: Rc<Cell<Position>>,
    /// The site that runs all requests under way; `None` if none are.
    at: Option<Site>,
    /// Requests that have a slot and are not under way yet, in the order in which the client sent them.
    later: VecDeque<Pending>,
    /// Scans under way, by the number of their slot: their steps are planned again when partitions change.
    scans: HashMap<u64, Scan>,
    /// True if requests in `later` were returned; they wait for [`BACK_WAIT`] before they begin again.
    is_backing_off: bool,
    /// True if no further request is read, and the connection closes after the replies.
    is_closing: bool,
    /// The lock that is held while the design is changed for a request, until the request has run.
    moved: Option<MoveLock<'p>>,
}

/// Serves the client on `stream` until the client or the store ends the connection; `id` is the connection's number,
/// and `site` the thread that runs it.
///
/// # Errors
/// Returns an error if the connection breaks, or the client does not receive its replies.
pub(super) async fn serve(
    site: &dyn Submit,
    shared: &Shared,
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    settings: Arc<Settings>,
    id: u64,
) -> io::Result<()> {
    let mut timeout = RequestTimeout::new(settings.request_wait);
    let output = OutputBuffer::new(&settings.output);
    let mut connection = Connection {
        site,
        shared,
        protocol: ProtocolState::new(settings, id),
        id,
        pipeline: Rc::new(Pipeline::new(Arc::clone(&output))),
        seen: Rc::default(),
        at: None,
        later: VecDeque::new(),
        scans: HashMap::new(),
        is_backing_off: false,
        is_closing: false,
        moved: None,
    };
    let mut buffer = vec![0; READ_BYTES];
    let mut out = Reply::default();
    loop {
        let waits = connection.advance().await;
        connection.pipeline.collect(&mut connection.protocol, &mut out);
        if !out.is_empty() {
            tokio::select! {
                // Polled first: this client's memory for replies is counted as free already.
                biased;
                () = output.is_to_leave() => {
                    output.all().count_closed();
                    return Err(io::ErrorKind::TimedOut.into());
                }
                sent = send(&mut stream, &out, &output) => sent?,
            }
            out.clear(RETAINED_BYTES_MAX);
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
    /// Returns the progress of a partly received request; `None` if there is none or a reply is outstanding.
    fn unfinished_request(&self) -> Option<Headway> {
        self.protocol.headway().filter(|_| self.pipeline.slots.borrow().is_empty())
    }

    /// Ends the connection after an error reply, because the client did not finish a request in time.
    fn give_up(&mut self) {
        self.is_closing = true;
        let last = self.protocol.give_up();
        self.pipeline.push(Slot::Ready(last));
    }

    /// Starts the requests that can begin, and returns the event to wait for.
    async fn advance(&mut self) -> Waits {
        // Requests for another site are sent as one batch; further requests wait for its outcome.
        let mut batch = Batch::new();
        let waits = loop {
            if self.pipeline.running.get() == 0 && batch.is_empty() {
                self.at = None;
                self.moved = None;
                self.requeue_rerouted();
            }
            let request = match self.take_request().await {
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
            self.site.send(site, batch);
        }
        self.site.flush();
        waits
    }

    /// Takes the connection's next request that is not under way, or returns `None` if a request was answered without
    /// a transaction. The error is the event to wait for.
    async fn take_request(&mut self) -> Result<Option<Pending>, Waits> {
        if self.pipeline.has_rerouted.get() {
            return Err(Waits::ForAnswers);
        }
        if std::mem::take(&mut self.is_backing_off) {
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
            None => self.next().await?,
        };
        Ok(next.map(|mut next| {
            // The request must see the results that were sent to the client since it arrived.
            next.transaction.session = self.seen.get();
            next.transaction.output = Some(Arc::clone(&self.pipeline.output));
            next
        }))
    }

    /// Finds the site that can run a request. If there is none, and no other request of the connection is under way,
    /// changes the design.
    async fn locate(&mut self, request: &Pending) -> Located {
        let shared = self.shared;
        let Transaction { reads, writes, at_masters, .. } = &request.transaction;
        match shared.route(reads, writes, Some(self.site.site()), *at_masters) {
            Route::Run(site) => Located::At(site),
            Route::Never(abort) => Located::Never(abort),
            Route::First(_) if self.at.is_some() => Located::Later,
            Route::First(_) => {
                self.moved = Some(shared.lock_moves(reads, writes).await);
                let moved = shared.change_design_for(reads, writes, request.until).await;
                moved.map_or_else(Located::NotMoved, Located::At)
            }
        }
    }

    /// True if a request for `site` may begin now: no request is under way, or those under way are at `site` and that
    /// is this thread's own site, or they are in the batch that is being made (`has_batch`).
    fn may_join(&self, site: Site, has_batch: bool) -> bool {
        self.at.is_none() || self.at == Some(site) && (site == self.site.site() || has_batch)
    }

    /// Starts a request at a site: at once at this thread's site, or by adding it to `batch` for another one.
    fn begin(&mut self, site: Site, request: Pending, batch: &mut Batch) {
        let Pending { slot, until, transaction } = request;
        self.at = Some(site);
        self.pipeline.running.set(self.pipeline.running.get() + 1);
        let caller =
            Caller::Connection(Rc::<Pipeline>::clone(&self.pipeline), slot, Rc::clone(&self.seen));
        let here = self.site.site();
        if site == here {
            self.site.transact(caller, transaction, until);
        } else {
            let ticket = self.site.expect(caller);
            batch.push((ReplyTo::Site(here, ticket), transaction, until));
        }
    }

    /// Parses the client's next request and gives it a slot, or returns `None` if the request was answered without a
    /// transaction. The error is the event to wait for.
    async fn next(&mut self) -> Result<Option<Pending>, Waits> {
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
            Next::Info => {
                self.shared.count().await;
                let reply = self.protocol.describe();
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

    /// Returns the transaction of a client's request.
    fn transaction(&self, request: Request) -> Transaction {
        let Request { reads, writes, procedure, .. } = request;
        let (session, client) = (self.seen.get(), Some(self.id));
        let output = None;
        Transaction {
            reads,
            writes,
            session,
            client,
            at_masters: false,
            is_distributed: false,
            output,
            procedure,
        }
    }

    /// Returns the request for the next step of a scan, within one partition of the current design.
    fn step_of(&self, scan: &Scan) -> Request {
        let map = self.shared.map.load();
        scan.within(map.design.of(scan.start()).range.end.as_ref())
    }

    /// Moves returned requests back to the front of the queue, before those that arrived later.
    fn requeue_rerouted(&mut self) {
        if !self.pipeline.has_rerouted.take() {
            return;
        }
        let first = self.pipeline.first.get();
        let mut again = VecDeque::new();
        for (slot, number) in self.pipeline.slots.borrow_mut().iter_mut().zip(first..) {
            if let Slot::Returned(until, _) = *slot {
                match std::mem::replace(slot, Slot::Open(until)) {
                    Slot::Returned(_, it) if self.pipeline.until(until) <= Instant::now() => {
                        let late = self.shared.late(&it.reads, &it.writes);
                        *slot = Slot::Ended(Err(late));
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
        self.is_backing_off = true;
        self.scans.retain(|slot, _| *slot >= first);
    }
}
