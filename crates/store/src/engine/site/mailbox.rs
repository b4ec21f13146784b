//! The mailbox of a site's thread, and the recipients of its replies.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{mpsc, oneshot};

use crate::engine::client::listener::Listener;
use crate::record::{LogEntry, Position, Site};
use crate::router::Step;
use crate::site::{Message, Part, Ticket, Usage};
use crate::sync::point;
use crate::transaction::{Abort, Done, Transaction};

/// Where to hand in what is for a site, or for a thread that has clients, wherever that is.
#[derive(Clone)]
pub(crate) enum SiteSender {
    /// In this process.
    Local(mpsc::UnboundedSender<SiteEvent>),
    /// In another one, by way of the router's.
    Remote(std::sync::mpsc::Sender<Outgoing>, Site),
}

/// What leaves a site's process.
pub(crate) enum Outgoing {
    Entries(Vec<LogEntry>),
    Event(Site, SiteEvent),
    Counted(u64, Vec<Usage>),
    Part(Part),
    /// Nothing leaves behind this.
    End,
}

impl SiteSender {
    /// Hands it in; false where nobody takes anything any more.
    pub fn send(&self, event: SiteEvent) -> bool {
        point();
        match self {
            Self::Local(sender) => sender.send(event).is_ok(),
            Self::Remote(way, site) => way.send(Outgoing::Event(*site, event)).is_ok(),
        }
    }
}

/// What a site's thread receives.
pub(crate) enum SiteEvent {
    Transact(Batch),
    /// What came of a transaction that this site let another one run.
    Outcome(Ticket, Outcome),
    Step(StepRequest),
    Said(Site, Message),
    Logged(Position, Arc<[LogEntry]>),
    /// Whether the log takes nothing for now.
    Stalled(bool),
    /// What it masters now is to be a part of a checkpoint.
    Mark,
    /// What copies it has.
    Count(Counted),
    /// Its process shall seem to have died, and come back.
    Die(oneshot::Sender<()>),
    /// Clients come here.
    Listen(Arc<Listener>),
    /// A client.
    Connect(TcpStream, Arc<Listener>),
    /// What another site says, as it came from its process.
    Relayed(Site, Vec<u8>),
    /// The site's process has come.
    Arrived(TcpStream),
    /// The connection with a number has nothing more to say.
    Lost(u64),
    /// There is no more log.
    End,
    Stop,
}

/// Who is told what copies a site has.
pub(crate) type Counted = Box<dyn FnOnce(Vec<Usage>) + Send>;

/// A step of a change of design.
pub(crate) struct StepRequest {
    pub step: Step,
    /// The prefix of the log that has what the steps before it did.
    pub session: Position,
    pub until: Instant,
    pub answer: ReplyTo,
}

/// Transactions in their order, and until when each may begin.
pub(crate) type Batch = Vec<(ReplyTo, Transaction, Instant)>;

/// Who is told what came of something, wherever he is.
pub(crate) enum ReplyTo {
    Channel(oneshot::Sender<Outcome>),
    /// A site which has it under a ticket of its own.
    Site(Site, Ticket),
}

impl ReplyTo {
    /// Tells him. Whoever does not wait any more need not know.
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

/// What came of something.
pub(crate) enum Outcome {
    /// It was answered, by a site that has this prefix of the log.
    Answer(Position, Result<Done, Abort>),
    /// It cannot be done there, and was not.
    Back(Transaction),
}
