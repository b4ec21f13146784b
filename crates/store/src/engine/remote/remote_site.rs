//! The router's side of a site that runs in a process of its own: events in the site's mailbox are sent to the
//! process, and the process's messages are executed here.
//!
//! The rest of the router treats it like any other site. While no process is connected, transactions are returned at
//! once, and are routed again until a process has connected or another site is the master.
//!
//! Invariants:
//! 1. Only log entries of the current connection's epoch are accepted, and none once that epoch is fenced: the
//!    reader's thread has ended before the fence is written.
//! 2. Each request that was sent is answered: by the site, or, when its epoch is over, with "it may or may not have
//!    happened".
//! 3. A site receives the deliveries of its [`Subscription`] without a gap, from the position at which it began.

use std::io::{self, BufReader, BufWriter, Write as _};
use std::mem;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::marks::Marks;
use super::reader::Reader;
use super::traffic::Traffic;
use super::waiting::{Waiter, Waiting, lock};
use super::wire::{self, ALIVE_EVERY, Asked, ToSite};
use crate::engine::Shared;
use crate::engine::presence::Presence;
use crate::engine::site::executor::CheckpointSink;
use crate::engine::site::mailbox::{Arrival, Outcome, ReplyTo, SiteEvent, StepRequest};
use crate::record::{Author, Body, Epoch, LogEntry, Position, Site};
use crate::subscription::{Request, Subscription};
use crate::transaction::{Abort, Transaction};

/// Maximum number of mailbox events that are handled before the stream to the process is flushed.
const EVENTS_MAX: usize = 256;

/// The router's side of one remote site; see the module's documentation.
pub(in crate::engine) struct RemoteSite {
    pub(super) shared: Arc<Shared>,
    pub(super) site: Site,
    /// Time without a message from the site's process after which the process is taken for dead.
    pub(super) silence: Duration,
    /// Receives the parts of checkpoints that the site delivers.
    parts: CheckpointSink,
    /// Position of the last log entry that this thread has received from the sequencer.
    pub(super) seen: Position,
    /// The site's newest epoch, of an earlier router, a claim or a connection.
    pub(super) epoch: Epoch,
    /// Time at which the epoch of an earlier router, or a claimed one, is fenced if no process has connected; `None`
    /// once a process has connected or the epoch is fenced.
    given_up_at: Option<Instant>,
    /// Number of connections of the site's processes so far; also the number of the current one.
    arrivals: u64,
    /// The connection to the site's process; `None` if no process is connected.
    connection: Option<SiteConnection>,
    /// The router's requests that the process has not answered yet.
    waiting: Arc<Mutex<Waiting>>,
}

/// The open connection to a site's process.
struct SiteConnection {
    /// The stream to the site's process, buffered.
    stream: BufWriter<TcpStream>,
    /// The thread that reads the process's messages.
    reader: JoinHandle<()>,
    /// The filter that selects the part of the log that the site receives.
    subscription: Subscription,
    /// The positions as of which parts of checkpoints were requested, with their designs.
    marks: Arc<Marks>,
    /// The sampling rate that was sent to the process: one transaction in this many; 0 for none.
    every: u32,
}

impl RemoteSite {
    /// Returns the state of a site to which no process has connected. `known` is the end of the recovered log,
    /// `silence` the time without a message after which a process is taken for dead, and `give` receives the site's
    /// parts of checkpoints.
    pub fn new(
        shared: Arc<Shared>,
        site: Site,
        known: Position,
        silence: Duration,
        give: CheckpointSink,
    ) -> Self {
        let design = &shared.first.design;
        let claim = shared.epochs.claim();
        let epoch = claim.unwrap_or(design.epoch(site));
        let is_live = claim.is_some() || epoch.has_begun() && !design.is_fenced(site);
        let given_up_at = is_live.then(|| Instant::now() + silence);
        let (parts, seen, waiting) = (give, known, Arc::default());
        let (arrivals, connection) = (0, None);
        Self {
            shared,
            site,
            silence,
            parts,
            seen,
            epoch,
            given_up_at,
            arrivals,
            connection,
            waiting,
        }
    }

    /// Handles the events in the site's mailbox, and sends heartbeats, until an event ends the thread.
    pub fn run(mut self, mut mailbox: mpsc::UnboundedReceiver<SiteEvent>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => {
                _ = self.shared.end.set(format!("the link to {} cannot run: {error}", self.site));
                return;
            }
        };
        let why = 'told: loop {
            let wait = async { tokio::time::timeout(ALIVE_EVERY, mailbox.recv()).await };
            let mut event = match runtime.block_on(wait) {
                Ok(Some(event)) => Some(event),
                Ok(None) => break "the router stops",
                Err(_) => {
                    self.send(&ToSite::Alive);
                    None
                }
            };
            for _ in 0..EVENTS_MAX {
                let Some(next) = event.take().or_else(|| mailbox.try_recv().ok()) else { break };
                match next {
                    SiteEvent::Arrived(arrival) => self.welcome(arrival, &mut mailbox),
                    SiteEvent::Stop => break 'told "the router stops",
                    SiteEvent::End => break 'told "the router's log accepts no more entries",
                    other => self.handle(other),
                }
            }
            self.set_sampling();
            self.flush();
            // The reader may have ended before this thread received that event.
            if self.connection.as_ref().is_some_and(|connection| connection.reader.is_finished()) {
                self.lose();
            }
            if self.given_up_at.is_some_and(|at| at <= Instant::now()) {
                self.fence(self.epoch);
            }
        };
        self.send(&ToSite::Bye(why.into(), true));
        self.flush();
        self.hang_up();
    }

    /// Handles one event of the site's mailbox.
    pub(super) fn handle(&mut self, event: SiteEvent) {
        match event {
            SiteEvent::Transact(batch) if self.connection.is_some() => {
                // All transactions of a batch are of one client connection.
                let output = batch.first().and_then(|(_, first, _)| first.output.clone());
                let room = output.map_or(u64::MAX, |output| output.room() as u64);
                let asked: Vec<_> = batch
                    .into_iter()
                    .filter_map(|(reply_to, transaction, until)| {
                        self.asked(reply_to, transaction, until)
                    })
                    .collect();
                self.send(&ToSite::Transact(asked, room));
            }
            SiteEvent::Transact(batch) => {
                for (reply_to, transaction, _) in batch {
                    reply_to.deliver(Outcome::Rerouted(transaction), &self.shared.senders);
                }
            }
            SiteEvent::Step(StepRequest { step, session, until, answer }) => {
                if self.connection.is_none() {
                    let refused = Abort::Refused(format!("{} is not connected", self.site));
                    let outcome = Outcome::Answer(self.seen, Err(refused));
                    return answer.deliver(outcome, &self.shared.senders);
                }
                let number = self.wait_for(Waiter::ReplyTo(answer));
                self.send(&ToSite::Step(number, step, session, remaining_ms(until)));
            }
            SiteEvent::Count(answer) => {
                if self.connection.is_some() {
                    let number = self.wait_for(Waiter::Count(answer));
                    self.send(&ToSite::Count(number));
                } else {
                    answer(Vec::new());
                }
            }
            SiteEvent::Logged(first, entries) => {
                self.seen = first + entries.len() as u64 - 1;
                self.deliver(first, &entries);
            }
            SiteEvent::Subscribe(number, request) if number == self.arrivals => {
                self.request(request);
            }
            SiteEvent::Subscribe(..) => {}
            SiteEvent::Relayed(from, said) => self.send(&ToSite::Said(from, said)),
            SiteEvent::Mark => {
                let is_noted = self.connection.as_ref().is_some_and(|connection| {
                    let subscription = &connection.subscription;
                    connection.marks.put(subscription.known(), subscription.design())
                });
                if is_noted {
                    self.send(&ToSite::Mark);
                }
            }
            SiteEvent::Stalled(is_stalled) => self.send(&ToSite::Stalled(is_stalled)),
            SiteEvent::Lost(number) if number == self.arrivals => self.lose(),
            SiteEvent::Lost(_) => {}
            SiteEvent::Die(answer) => {
                self.lose();
                _ = answer.send(());
            }
            SiteEvent::Arrived(_) | SiteEvent::Stop | SiteEvent::End => {
                unreachable!("handled before")
            }
            SiteEvent::Outcome(..)
            | SiteEvent::Said(..)
            | SiteEvent::Delivered(..)
            | SiteEvent::Listen(_)
            | SiteEvent::Connect(..) => {
                unreachable!("a link is told nothing of the kind")
            }
        }
    }

    /// Returns the message that sends a transaction to the process, or `None` if the transaction's procedure cannot
    /// be encoded; the transaction is refused then.
    fn asked(&self, reply_to: ReplyTo, it: Transaction, until: Instant) -> Option<Asked> {
        let Some(procedure) = it.procedure.encode() else {
            let text = "this procedure cannot be sent to another process";
            let refused = Err(Abort::Refused(text.into()));
            reply_to.deliver(Outcome::Answer(Position::START, refused), &self.shared.senders);
            return None;
        };
        let number = self.wait_for(Waiter::ReplyTo(reply_to));
        let Transaction { reads, writes, session, client, at_masters, .. } = it;
        let left = until.saturating_duration_since(Instant::now());
        let left_us = u64::try_from(left.as_micros()).unwrap_or(u64::MAX);
        Some(Asked { number, reads, writes, session, client, at_masters, procedure, left_us })
    }

    /// Registers the recipient of the process's reply to a request, and returns the request's number.
    fn wait_for(&self, waiter: Waiter) -> u64 {
        let mut waiting = lock(&self.waiting);
        let number = waiting.next;
        waiting.next += 1;
        waiting.all.insert(number, waiter);
        number
    }

    /// Sends a message to the site's process, if one is connected.
    fn send(&mut self, message: &ToSite) {
        if let Some(connection) = &mut self.connection
            && wire::write(&mut connection.stream, message).is_err()
        {
            self.lose();
        }
    }

    /// Sends to the process the deliveries of the log's next entries, of which the first is at position `first`.
    fn deliver(&mut self, first: Position, entries: &[LogEntry]) {
        let traffic = &self.shared.traffic[usize::from(self.site.0)];
        if let Some(SiteConnection { stream, subscription, .. }) = &mut self.connection
            && deliver(subscription, stream, traffic, first, entries).is_err()
        {
            self.lose();
        }
    }

    /// Executes a request of the site to its log subscription.
    fn request(&mut self, request: Request) {
        let Some(connection) = &mut self.connection else { return };
        let next = connection.subscription.known() + 1;
        if let Some(begins) = connection.subscription.execute(request) {
            self.send(&ToSite::Logged(next, vec![begins]));
        }
    }

    /// Sends the sampling rate to the process, if the rate has changed since it was last sent.
    fn set_sampling(&mut self) {
        let every = self.shared.sampler.get().map_or(0, |sampler| sampler.every());
        if let Some(connection) = &mut self.connection
            && mem::replace(&mut connection.every, every) != every
        {
            self.send(&ToSite::Sample(every));
        }
    }

    fn flush(&mut self) {
        if self.connection.as_mut().is_some_and(|connection| connection.stream.flush().is_err()) {
            self.lose();
        }
    }

    /// Closes the connection to the process; no more messages are read from it.
    fn hang_up(&mut self) {
        if let Some(SiteConnection { stream, reader, .. }) = self.connection.take() {
            close(stream, reader);
        }
    }

    /// Ends the site's epoch, if a process is connected: closes the connection, fences the site, and fails the
    /// requests under way.
    fn lose(&mut self) {
        if self.connection.is_none() {
            return;
        }
        self.hang_up();
        self.presence().leave();
        self.fence(self.epoch);
        let lost = mem::take(&mut lock(&self.waiting).all);
        for waiter in lost.into_values() {
            match waiter {
                Waiter::ReplyTo(reply_to) => {
                    let outcome = Outcome::Answer(self.seen, Err(Abort::Deposed));
                    reply_to.deliver(outcome, &self.shared.senders);
                }
                Waiter::Count(answer) => answer(Vec::new()),
            }
        }
    }

    /// Returns the state of the site's process that the router reports.
    pub(super) fn presence(&self) -> &Presence {
        &self.shared.presence[usize::from(self.site.0)]
    }

    /// Writes the fence of an epoch of the site into the log: the site's later entries in that epoch are ignored.
    fn fence(&mut self, epoch: Epoch) {
        self.given_up_at = None;
        let by = Author { site: self.site, epoch, number: 0 };
        self.shared.sequencer.submit(vec![LogEntry { by, body: Body::Fence }]);
    }

    /// Begins a new epoch for a process that has connected as this site; an earlier connection is ended first.
    fn welcome(&mut self, arrival: Arrival, mailbox: &mut mpsc::UnboundedReceiver<SiteEvent>) {
        let Arrival { stream, rack, kept } = arrival;
        let instead = format!("another process came as {}: it is served instead", self.site);
        self.send(&ToSite::Bye(instead, false));
        self.flush();
        self.lose();
        self.given_up_at = None;
        let newest = self.shared.map.load().design.epoch(self.site);
        if self.shared.epochs.is_over(newest) {
            return self.shared.end_for_another(self.site);
        }
        let before = self.epoch.max(newest);
        self.epoch = self.shared.epochs.next(before);
        self.arrivals += 1;
        self.presence().connected(rack);
        let marks = Arc::<Marks>::default();
        let begun = self.start_reader(&stream, &marks).and_then(|reader| {
            let mut stream = BufWriter::new(stream);
            match self.begin(&mut stream, kept, mailbox) {
                Ok(subscription) => {
                    stream.get_ref().set_write_timeout(Some(self.silence))?;
                    Ok(SiteConnection { stream, reader, subscription, marks, every: 0 })
                }
                Err(error) => {
                    close(stream, reader);
                    Err(error)
                }
            }
        });
        if let Err(error) = &begun {
            tracing::warn!(site = self.site.0, %error, "a site that comes is not served");
        }
        self.connection = begun.ok();
        if self.connection.is_none() {
            self.presence().leave();
            // The new epoch has written nothing. The epoch before it may be of an earlier router; nothing else fences
            // that epoch.
            self.fence(before);
        }
    }

    /// Starts the thread that reads the process's messages from `stream`.
    fn start_reader(&self, stream: &TcpStream, marks: &Arc<Marks>) -> io::Result<JoinHandle<()>> {
        stream.set_read_timeout(Some(self.silence))?;
        // While it begins, the site may be slow to receive.
        stream.set_write_timeout(Some(self.silence.max(wire::PROGRESS_WAIT)))?;
        let reader = Reader {
            shared: Arc::clone(&self.shared),
            site: self.site,
            epoch: self.epoch,
            waiting: Arc::clone(&self.waiting),
            parts: Arc::clone(&self.parts),
            number: self.arrivals,
            marks: Arc::clone(marks),
            part: None,
        };
        let from = stream.try_clone()?;
        let read = move || reader.run(BufReader::new(from));
        thread::Builder::new().name(format!("{}'s words", self.site)).spawn(read)
    }
}

/// Sends a subscription's deliveries of the log's next entries, of which the first is at position `first`, adds their
/// size to `traffic`, and returns the bytes sent.
pub(super) fn deliver(
    subscription: &mut Subscription,
    to: &mut BufWriter<TcpStream>,
    traffic: &Traffic,
    first: Position,
    entries: &[LogEntry],
) -> io::Result<usize> {
    let whole = wire::size(&ToSite::Logged(first, entries));
    let (first, deliveries) = subscription.deliver(first, entries);
    if deliveries.is_empty() {
        return Ok(0);
    }
    let sent = wire::write(to, &ToSite::Logged(first, deliveries))?;
    traffic.add(sent, whole);
    Ok(sent)
}

/// Closes a connection to a process: discards unsent messages, and waits for the reader's thread to end.
fn close(stream: BufWriter<TcpStream>, reader: JoinHandle<()>) {
    _ = stream.get_ref().shutdown(Shutdown::Both);
    drop(stream.into_parts());
    _ = reader.join();
}

/// Returns the time from now until `until`, in ms.
fn remaining_ms(until: Instant) -> u64 {
    let left = until.saturating_duration_since(Instant::now());
    u64::try_from(left.as_millis()).unwrap_or(u64::MAX)
}
