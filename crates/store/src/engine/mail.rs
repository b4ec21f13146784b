//! What comes to a site's door, and who is told what came of it.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::oneshot;

use super::Listener;
use crate::record::{Frame, Position, Site};
use crate::router::Step;
use crate::site::{Message, Ticket, Usage};
use crate::transaction::{Abort, Done, Transaction};

/// What comes to a site's door.
pub(crate) enum Mail {
    Transact(Batch),
    /// What came of a transaction that this site let another one run.
    Outcome(Ticket, Outcome),
    Step(StepOrder),
    Said(Site, Message),
    Logged(Position, Arc<[Frame]>),
    /// What it masters now is to be a part of a checkpoint.
    Mark,
    /// What copies it has.
    Count(oneshot::Sender<Vec<Usage>>),
    /// Its process shall seem to have died, and come back.
    Die(oneshot::Sender<()>),
    /// Clients come here.
    Listen(Arc<Listener>),
    /// A client.
    Connect(TcpStream, Arc<Listener>),
    /// There is no more log.
    End,
    Stop,
}

/// A step of a change of design.
pub(crate) struct StepOrder {
    pub step: Step,
    /// The prefix of the log that has what the steps before it did.
    pub session: Position,
    pub until: Instant,
    pub answer: oneshot::Sender<Outcome>,
}

/// Transactions in their order, and until when each may begin.
pub(crate) type Batch = Vec<(Remote, Transaction, Instant)>;

/// Who is told what came of something, wherever he is.
pub(crate) enum Remote {
    Once(oneshot::Sender<Outcome>),
    /// A site which has it under a ticket of its own.
    Site(Site, Ticket),
}

/// What came of something.
pub(crate) enum Outcome {
    /// It was answered, by a site that has this prefix of the log.
    Answer(Position, Result<Done, Abort>),
    /// It cannot be done there, and was not.
    Back(Transaction),
}
