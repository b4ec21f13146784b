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

/// The sending half of a mailbox, of a site or of a thread that serves clients, in whichever process it is.
#[derive(Clone)]
pub(crate) enum SiteSender {
    /// In this process.
    Local(mpsc::UnboundedSender<SiteEvent>),
    /// In another process, by way of the router.
    Remote(std::sync::mpsc::Sender<Outgoing>, Site),
}

/// A message of a site's process to the router.
pub(crate) enum Outgoing {
    Entries(Vec<LogEntry>),
    Event(Site, SiteEvent),
    Counted(u64, Vec<Usage>),
    Part(Part),
    Subscribe(Request),
    /// The last one.
    End,
}

impl SiteSender {
    /// Sends an event; false when the receiver is gone.
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
    Transact(Batch),
    /// The outcome of a transaction that another site ran for this one.
    Outcome(Ticket, Outcome),
    Step(StepRequest),
    Said(Site, Message),
    Logged(Position, Arc<[LogEntry]>),
    /// Deliveries of the subscription of a site in a process of its own, from a position on.
    Delivered(Position, Vec<Delivery<'static>>),
    /// A request to that subscription, which came by the connection with this number.
    Subscribe(u64, Request),
    /// True if the log accepts no entries for now.
    Stalled(bool),
    /// Take a part of a checkpoint: everything that the site masters now.
    Mark,
    /// Report the copies that the site has.
    Count(Counted),
    /// Simulate the death of its process.
    Die(oneshot::Sender<()>),
    /// Accept clients.
    Listen(Arc<Listener>),
    /// A client.
    Connect(TcpStream, Arc<Listener>),
    /// A message of another site, as its process sent it.
    Relayed(Site, Vec<u8>),
    /// The site's process has connected.
    Arrived(TcpStream),
    /// The connection with this number has ended.
    Lost(u64),
    /// The log has ended.
    End,
    Stop,
}

/// Receives the copies that a site has.
pub(crate) type Counted = Box<dyn FnOnce(Vec<Usage>) + Send>;

/// A step of a change of design.
pub(crate) struct StepRequest {
    pub step: Step,
    /// The prefix of the log that has what the steps before it did.
    pub session: Position,
    pub until: Instant,
    pub answer: ReplyTo,
}

/// Transactions in their order, with the latest time at which each may begin.
pub(crate) type Batch = Vec<(ReplyTo, Transaction, Instant)>;

/// The recipient of an outcome, in whichever process it is.
pub(crate) enum ReplyTo {
    Channel(oneshot::Sender<Outcome>),
    /// A site, which knows it by its own ticket.
    Site(Site, Ticket),
}

impl ReplyTo {
    /// Sends the outcome; a recipient that is gone needs none.
    pub fn tell(self, outcome: Outcome, senders: &[SiteSender]) {
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
    /// An answer, by a site that has this prefix of the log.
    Answer(Position, Result<Done, Abort>),
    /// It cannot run there, and did not.
    Back(Transaction),
}
