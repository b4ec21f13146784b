//! The mailbox of a site's thread, and the recipients of its replies.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{mpsc, oneshot};

use crate::engine::client::listener::Listener;
use crate::record::{LogEntry, Position, Site};
use crate::router::Step;
use crate::site::{Message, Part, Ticket, Usage};
use crate::subscription::{Delivery, Request};
use crate::sync::point;
use crate::transaction::{Abort, Done, Transaction};

/// The sending end of a mailbox, of a site or of a thread that serves clients.
#[derive(Clone)]
pub(crate) enum SiteSender {
    /// The receiver is in this process.
    Local(mpsc::UnboundedSender<SiteEvent>),
    /// The receiver is in another process, and is reached through the router.
    Remote(std::sync::mpsc::Sender<Outgoing>, Site),
}

/// A message from a site's process to the router.
pub(crate) enum Outgoing {
    /// Entries to append to the log.
    Entries(Vec<LogEntry>),
    /// An event for another site's mailbox, or for the router's.
    Event(Site, SiteEvent),
    /// The usage of the site's copies, with the number of the request.
    Counted(u64, Vec<Usage>),
    /// A part of a checkpoint.
    Part(Part),
    /// A request to the site's subscription.
    Subscribe(Request),
    /// The last message: the sending thread ends.
    End,
}

impl SiteSender {
    /// Sends an event; returns false if the receiver is gone.
    pub fn send(&self, event: SiteEvent) -> bool {
        point();
        match self {
            Self::Local(sender) => sender.send(event).is_ok(),
            Self::Remote(way, site) => way.send(Outgoing::Event(*site, event)).is_ok(),
        }
    }
}

/// An event of a site's thread.
pub(crate) enum SiteEvent {
    /// Run these transactions.
    Transact(Batch),
    /// Another site's outcome of a transaction that this thread sent to it.
    Outcome(Ticket, Outcome),
    /// Execute a step of a change of the design.
    Step(StepRequest),
    /// A message from another site.
    Said(Site, Message),
    /// The next log entries, and the position of the first.
    Logged(Position, Arc<[LogEntry]>),
    /// Deliveries of the subscription to a site in a process of its own, and the position of the first.
    Delivered(Position, Vec<Delivery<'static>>),
    /// A request to that subscription, which arrived on the connection with this number.
    Subscribe(u64, Request),
    /// True if the log accepts no entries for now.
    Stalled(bool),
    /// Deliver a part of a checkpoint: the partitions that the site masters now.
    Mark,
    /// Report the usage of the site's copies.
    Count(Counted),
    /// Simulate the crash of the site.
    Die(oneshot::Sender<()>),
    /// Accept clients of this listener.
    Listen(Arc<Listener>),
    /// Serve a client that this listener accepted.
    Connect(TcpStream, Arc<Listener>),
    /// A message from another site, as its process encoded it.
    Relayed(Site, Vec<u8>),
    /// A process has connected as this site.
    Arrived(Arrival),
    /// The connection with this number has ended.
    Lost(u64),
    /// The log accepts no more entries.
    End,
    /// Stop, because the store stops.
    Stop,
}

/// A process that has connected as a site.
pub(crate) struct Arrival {
    /// The connection.
    pub stream: TcpStream,
    /// The rack in which the process runs, if it named one.
    pub rack: Option<String>,
    /// The run of the log and the position of the rows that the process kept, if it kept any.
    pub kept: Option<(u64, Position)>,
}

/// Receives the usage of a site's copies.
pub(crate) type Counted = Box<dyn FnOnce(Vec<Usage>) + Send>;

/// A request to execute one step of a change of the design.
pub(crate) struct StepRequest {
    /// The step.
    pub step: Step,
    /// The prefix of the log that contains the steps before it.
    pub session: Position,
    /// Time until which the step must have begun.
    pub until: Instant,
    /// The recipient of the outcome.
    pub answer: ReplyTo,
}

/// Transactions in their order, with their recipients and the times until which they must begin.
pub(crate) type Batch = Vec<(ReplyTo, Transaction, Instant)>;

/// The recipient of an outcome.
pub(crate) enum ReplyTo {
    /// A task of this process.
    Channel(oneshot::Sender<Outcome>),
    /// A site or thread, which knows the request by this ticket.
    Site(Site, Ticket),
}

impl ReplyTo {
    /// Sends the outcome; it is dropped if the recipient is gone.
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

/// The outcome of a transaction or a step.
pub(crate) enum Outcome {
    /// An answer, and the prefix of the log that the site has.
    Answer(Position, Result<Done, Abort>),
    /// The transaction cannot run at the site, and did not.
    Rerouted(Transaction),
}
