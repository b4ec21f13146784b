//! The mailbox of a site's thread, the recipients of its replies, and the interfaces between the thread and the
//! connections of clients that run on it.

use std::cell::Cell;
use std::net::TcpStream;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{mpsc, oneshot};

use crate::engine::network::{From, Link};
use crate::record::{LogEntry, Position, Site};
use crate::router::Step;
use crate::site::{Message, Part, Ticket, Usage};
use crate::subscription::{Delivery, Request};
use crate::sync::point;
use crate::transaction::{Abort, Done, Transaction};

/// The sending end of the mailbox of a site or of a thread that serves clients.
#[derive(Clone)]
pub(crate) enum SiteSender {
    /// The thread that receives the mailbox is in this process.
    Local(mpsc::UnboundedSender<SiteEvent>),
    /// The thread that receives the mailbox is in another process: events for this site are sent through the router.
    Remote(std::sync::mpsc::Sender<Outgoing>, Site),
    /// The thread that receives the mailbox is in this process, and some events reach it over a simulated network.
    Delayed(Link<SiteEvent>),
}

/// A message from a site to the thread that sends its messages to the router.
pub(crate) enum Outgoing {
    /// The site's next entries to append to the log.
    Entries(Vec<LogEntry>),
    /// An event for the mailbox of this other site, or of the router (numbered after the sites).
    Event(Site, SiteEvent),
    /// The sizes and access counts of the site's copies, with the number of the router's request.
    Counted(u64, Vec<Usage>),
    /// The site's part of a checkpoint.
    Part(Part),
    /// A request of the site to its log subscription.
    Subscribe(Request),
    /// The last message: the thread that sends to the router ends.
    End,
}

impl SiteSender {
    /// Sends an event to the mailbox; returns false if the thread that receives it is gone.
    pub fn send(&self, event: SiteEvent) -> bool {
        point();
        match self {
            Self::Local(sender) => sender.send(event).is_ok(),
            Self::Delayed(link) => {
                let from = match event {
                    SiteEvent::Said(..) => From::Site,
                    SiteEvent::Logged(..) | SiteEvent::Stalled(_) | SiteEvent::Mark => From::Log,
                    _ => From::Here,
                };
                link.send(event, from)
            }
            Self::Remote(way, site) => way.send(Outgoing::Event(*site, event)).is_ok(),
        }
    }
}

/// An event in the mailbox of a site's thread or of a client thread.
pub(crate) enum SiteEvent {
    /// Run these transactions, in their order.
    Transact(Batch),
    /// The outcome of a request that this thread sent to another site, by the number (ticket) that this thread gave
    /// the request.
    Outcome(Ticket, Outcome),
    /// Execute this step of a change of the design.
    Step(StepRequest),
    /// A message from the site with this number.
    Said(Site, Message),
    /// The next log entries, and the log position of the first.
    Logged(Position, Arc<[LogEntry]>),
    /// The next deliveries of the log subscription to a site in a process of its own, and the log position of the
    /// first.
    Delivered(Position, Vec<Delivery<'static>>),
    /// A request of a remote site to its log subscription, which arrived on the connection with this number.
    Subscribe(u64, Request),
    /// True if the log accepts no entries for now, because its disk is full; false if it accepts entries again.
    Stalled(bool),
    /// Deliver the site's part of a checkpoint: snapshots of the partitions that the site masters now.
    Mark,
    /// Report the sizes and access counts of the site's copies to this recipient.
    Count(Counted),
    /// Simulate the crash of the site, then notify the sender.
    Die(oneshot::Sender<()>),
    /// Accept the clients of this service.
    Listen(Arc<dyn ClientService>),
    /// Serve the client of this stream, which the service accepted.
    Connect(TcpStream, Arc<dyn ClientService>),
    /// A message from the site with this number, in the bytes in which that site's process encoded it.
    Relayed(Site, Vec<u8>),
    /// A process has connected to the router as this site.
    Arrived(Arrival),
    /// The connection of the site's process with this number has ended.
    Lost(u64),
    /// The log accepts no more entries; the thread ends.
    End,
    /// The thread is to end, because the store stops.
    Stop,
}

/// A process that has connected to the router as a site, and is admitted.
pub(crate) struct Arrival {
    /// The stream to the process.
    pub stream: TcpStream,
    /// The rack in which the process runs; `None` if the process named none.
    pub rack: Option<String>,
    /// The random number of the run of the log, and the position, of the rows that the process kept; `None` if it
    /// kept none.
    pub kept: Option<(u64, Position)>,
}

/// Receives the sizes and access counts of a site's copies.
pub(crate) type Counted = Box<dyn FnOnce(Vec<Usage>) + Send>;

/// A request to a site to execute one step of a change of the design.
pub(crate) struct StepRequest {
    /// The step of the change of the design to execute.
    pub step: Step,
    /// The prefix of the log that contains the steps before this one.
    pub session: Position,
    /// Time until which the step must have begun.
    pub until: Instant,
    /// The recipient of the step's outcome.
    pub answer: ReplyTo,
}

/// Transactions for one site in their order, with the recipients of their outcomes and the times until which they
/// must begin.
pub(crate) type Batch = Vec<(ReplyTo, Transaction, Instant)>;

/// The recipient of the outcome of a transaction or a step.
pub(crate) enum ReplyTo {
    /// A task of this process, which waits for the outcome.
    Channel(oneshot::Sender<Outcome>),
    /// The thread of a site or of clients, which knows the request by this number (ticket).
    Site(Site, Ticket),
}

impl ReplyTo {
    /// Sends the outcome to the recipient; the outcome is dropped if the recipient is gone.
    pub fn deliver(self, outcome: Outcome, senders: &[SiteSender]) {
        match self {
            Self::Channel(answer) => {
                point();
                _ = answer.send(outcome);
            }
            Self::Site(site, ticket) => {
                _ = senders[usize::from(site.0)].send(SiteEvent::Outcome(ticket, outcome));
            }
        }
    }
}

/// The outcome of a transaction, or of a step of a change of the design, at a site.
pub(crate) enum Outcome {
    /// The reply or the error, and the prefix of the log that the site has.
    Answer(Position, Result<Done, Abort>),
    /// The transaction cannot run at the site, and did not: it is to be routed again.
    Rerouted(Transaction),
}

/// A service for clients, which runs on the threads of a store: it accepts clients, and serves each on one thread.
pub(crate) trait ClientService: Send + Sync {
    /// Accepts clients without end, and assigns them to the threads.
    fn accept(self: Arc<Self>) -> LocalTask;

    /// Serves the client of `stream` on the current thread, which is `site`, until the client or the store ends the
    /// connection.
    fn serve(self: Arc<Self>, stream: TcpStream, site: Rc<dyn Submit>) -> LocalTask;
}

/// A task that stays on one thread.
pub(crate) type LocalTask = Pin<Box<dyn Future<Output = ()>>>;

/// The thread of a site, to which the connections on it submit their requests.
pub(crate) trait Submit {
    /// The number of the site, or a number after those of the sites for a thread that only serves clients.
    fn site(&self) -> Site;

    /// Runs a transaction at this site, or queues it until it can begin, at latest at the time `until`. Returns true
    /// if the transaction was returned to be routed again.
    fn transact(&self, caller: Caller, transaction: Transaction, until: Instant) -> bool;

    /// Sends the transactions of a batch to another site.
    fn send(&self, to: Site, batch: Batch);

    /// Registers the recipient of the outcome of a request, and returns the number (ticket) by which the site knows
    /// the request.
    fn expect(&self, caller: Caller) -> Ticket;

    /// Submits the log entries that the site has written to the sequencer.
    fn flush(&self);
}

/// A connection that receives the outcomes of its requests.
pub(crate) trait Recipient {
    /// Records the outcome of the request with this number, and advances `seen` to the log prefix of its reply.
    fn answer(&self, number: u64, outcome: Outcome, seen: &Cell<Position>);
}

/// The recipient of the outcome of a request at a site.
pub(crate) enum Caller {
    /// A connection of this thread, the number of its request, and the prefix of the log that its client has seen.
    Connection(Rc<dyn Recipient>, u64, Rc<Cell<Position>>),
    ReplyTo(ReplyTo),
}

impl Caller {
    pub fn deliver(self, outcome: Outcome, senders: &[SiteSender]) {
        match self {
            Self::Connection(connection, number, seen) => {
                connection.answer(number, outcome, &seen);
            }
            Self::ReplyTo(reply_to) => reply_to.deliver(outcome, senders),
        }
    }
}
