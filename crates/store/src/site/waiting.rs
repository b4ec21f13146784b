//! Requests and answers that wait at a site.

use super::two_phase::message::LockRequest;
use super::{Core, Output, Ticket};
use crate::key::{Key, KeyRange};
use crate::record::{Change, Position};
use crate::reply::Reply;
use crate::sampler::Cause;
use crate::transaction::{Abort, Transaction};

/// A transaction or a change of the design that waits to begin.
pub(super) struct Waiting {
    /// The number that identifies the request to its caller.
    pub ticket: Ticket,
    /// Time at which the request arrived, in ms of the site's clock.
    pub since_ms: u64,
    /// Time until which the request must have begun, in ms of the site's clock.
    pub until_ms: u64,
    /// The transaction or the change of the design.
    pub what: Want,
    /// The first reason why the request waits; `None` if it has not had to wait.
    pub cause: Option<Cause>,
    /// The partitions of a transaction that waits, which are looked up again after each change of the design; `None` if
    /// they were not looked up yet.
    pub touched: Option<Touched>,
}

/// The partitions that a transaction touches, under one design.
pub(super) struct Touched {
    /// Number of changes of the design that the site had applied, which identifies the design.
    pub design_changes: u64,
    /// The first keys of the partitions that the transaction writes, in key order.
    pub written: Vec<Key>,
    /// The first keys of the partitions in which it reads ranges, in key order.
    pub read: Vec<Key>,
}

/// A transaction that had to wait at its site and has now run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResumedTransaction {
    /// The number that identifies the transaction to its caller.
    pub ticket: Ticket,
    /// The first reason why the transaction waited.
    pub cause: Cause,
    /// Numbers of rows that the transaction read and wrote.
    pub rows: (u32, u32),
}

/// A request that a site queues if it cannot begin at once.
pub(super) enum Want {
    Transaction(Transaction),
    Change(Change),
    /// The locks of a distributed transaction, which another site or this one coordinates.
    Locks(Box<LockRequest>),
}

impl Want {
    /// Returns the log position that the site must have reached before the request begins.
    pub fn session(&self) -> Position {
        match self {
            Self::Transaction(transaction) => transaction.session,
            Self::Change(_) => Position::START,
            Self::Locks(request) => request.session,
        }
    }

    /// Marks a transaction to be routed to the site that masters its rows. Returns true the first time; always false
    /// for a change of the design.
    pub fn fall_back_to_masters(&mut self) -> bool {
        match self {
            Self::Transaction(transaction) => !std::mem::replace(&mut transaction.at_masters, true),
            Self::Change(_) | Self::Locks(_) => false,
        }
    }

    /// Returns true if the output buffer of the request's client has room for more replies, or the request has no
    /// output buffer.
    pub fn has_room(&self) -> bool {
        match self {
            Self::Transaction(it) => it.output.as_ref().is_none_or(|output| output.has_room()),
            Self::Change(_) | Self::Locks(_) => true,
        }
    }

    /// Returns true if the request may write a log entry.
    pub fn writes(&self) -> bool {
        match self {
            Self::Transaction(transaction) => !transaction.writes.is_empty(),
            Self::Change(_) => true,
            Self::Locks(request) => !request.writes.is_empty(),
        }
    }

    /// Returns the client whose earlier transactions the request must not overtake; `None` for a change of the
    /// design, or a transaction without such a client.
    pub fn client(&self) -> Option<u64> {
        match self {
            Self::Transaction(transaction) => transaction.client,
            Self::Change(_) | Self::Locks(_) => None,
        }
    }
}

/// An answer that waits until the log has all changes that the answer shows.
pub(super) struct Held {
    /// The number of the last log entry of this site that the log must have before the answer is given.
    pub number: u64,
    /// The number that identifies the request to its caller.
    pub ticket: Ticket,
    /// The reply of the transaction or the change, or its error.
    pub answer: Result<Reply, Abort>,
    /// True if the request itself wrote the log entry with that number, false if it only saw changes of others.
    pub has_written: bool,
    /// The ranges that the transaction declared as read; `None` if it declared writes, and for a change of the
    /// design.
    pub reads: Option<Vec<KeyRange>>,
}

impl Core {
    /// Returns a request that cannot run here to its caller: a transaction for routing, a change with an error.
    pub(super) fn return_to_caller(&mut self, waiting: Waiting) {
        match waiting.what {
            Want::Transaction(transaction) => {
                self.say(Output::Reroute(waiting.ticket, transaction))
            }
            Want::Change(_) => self.refuse(waiting.ticket, Abort::Elsewhere),
            Want::Locks(request) => self.deny_locks(&request),
        }
    }

    /// Ends a request that is not to begin: answers it with the error `abort`, or denies locks.
    pub(super) fn turn_down(&mut self, waiting: Waiting, abort: Abort) {
        match waiting.what {
            Want::Locks(request) => self.deny_locks(&request),
            Want::Transaction(_) | Want::Change(_) => self.refuse(waiting.ticket, abort),
        }
    }
}
