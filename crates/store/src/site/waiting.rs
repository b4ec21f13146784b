//! Requests and answers that wait at a site.

use super::Ticket;
use crate::key::KeyRange;
use crate::record::{Change, Position};
use crate::reply::Reply;
use crate::sampler::Cause;
use crate::transaction::{Abort, Transaction};

/// A transaction or a change of the design that waits to begin.
pub(super) struct Waiting {
    /// The caller.
    pub ticket: Ticket,
    /// Time of arrival, in ms of the site's clock.
    pub since_ms: u64,
    /// Time until which the request must have begun, in ms of the site's clock.
    pub until_ms: u64,
    /// The request.
    pub what: Want,
    /// The first reason why it waits.
    pub cause: Option<Cause>,
}

/// A transaction that waited and has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResumedTransaction {
    /// The caller.
    pub ticket: Ticket,
    /// The first reason why it waited.
    pub cause: Cause,
    /// Numbers of rows that it read and wrote.
    pub rows: (u32, u32),
}

/// A request to a site.
pub(super) enum Want {
    Transaction(Transaction),
    Change(Change),
}

impl Want {
    /// Returns the prefix of the log that the request needs.
    pub fn session(&self) -> Position {
        match self {
            Self::Transaction(transaction) => transaction.session,
            Self::Change(_) => Position::START,
        }
    }

    /// Marks a transaction to run where its rows are mastered. Returns true the first time; always false for a
    /// change.
    pub fn fall_back_to_masters(&mut self) -> bool {
        match self {
            Self::Transaction(transaction) => !std::mem::replace(&mut transaction.at_masters, true),
            Self::Change(_) => false,
        }
    }

    /// True if the output buffer of the request's client has room for more replies.
    pub fn has_room(&self) -> bool {
        match self {
            Self::Transaction(it) => it.output.as_ref().is_none_or(|output| output.has_room()),
            Self::Change(_) => true,
        }
    }

    /// True if the request may write a log entry.
    pub fn writes(&self) -> bool {
        match self {
            Self::Transaction(transaction) => !transaction.writes.is_empty(),
            Self::Change(_) => true,
        }
    }

    /// Returns the client whose earlier transactions the request must not overtake, if there is one.
    pub fn client(&self) -> Option<u64> {
        match self {
            Self::Transaction(transaction) => transaction.client,
            Self::Change(_) => None,
        }
    }
}

/// An answer that waits until the log has all changes that it shows.
pub(super) struct Held {
    /// The number of the log entry of this site that the log must have.
    pub number: u64,
    /// The caller.
    pub ticket: Ticket,
    /// The answer.
    pub answer: Result<Reply, Abort>,
    /// True if the request wrote the log entry.
    pub has_written: bool,
    /// The reads of a transaction that declared no writes.
    pub reads: Option<Vec<KeyRange>>,
}
