//! Requests that wait at a site: for their turn, or for the log.

use super::Ticket;
use crate::key::KeyRange;
use crate::record::{Change, Position};
use crate::reply::Reply;
use crate::sampler::Cause;
use crate::transaction::{Abort, Transaction};

/// A transaction or a change of the design that cannot begin yet.
pub(super) struct Waiting {
    pub ticket: Ticket,
    pub since_ms: u64,
    pub until_ms: u64,
    pub what: Want,
    /// The first reason why it waits.
    pub cause: Option<Cause>,
}

/// A transaction that has run after it had to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Woken {
    pub ticket: Ticket,
    pub cause: Cause,
    /// Rows that it read and wrote.
    pub rows: (u32, u32),
}

/// The work of a site.
pub(super) enum Want {
    Transaction(Transaction),
    Change(Change),
}

impl Want {
    /// The prefix of the log that it needs.
    pub fn session(&self) -> Position {
        match self {
            Self::Transaction(transaction) => transaction.session,
            Self::Change(_) => Position::START,
        }
    }

    /// Marks a transaction to run elsewhere rather than wait for long. True the first time; false for a change.
    pub fn may_fall_back(&mut self) -> bool {
        match self {
            Self::Transaction(transaction) => !std::mem::replace(&mut transaction.at_masters, true),
            Self::Change(_) => false,
        }
    }

    /// True if the output buffer of its client has room for more replies.
    pub fn has_room(&self) -> bool {
        match self {
            Self::Transaction(it) => it.output.as_ref().is_none_or(|output| output.has_room()),
            Self::Change(_) => true,
        }
    }

    /// True if it needs the log.
    pub fn writes(&self) -> bool {
        match self {
            Self::Transaction(transaction) => !transaction.writes.is_empty(),
            Self::Change(_) => true,
        }
    }

    /// Whose transactions it must not overtake.
    pub fn client(&self) -> Option<u64> {
        match self {
            Self::Transaction(transaction) => transaction.client,
            Self::Change(_) => None,
        }
    }
}

/// An answer, until the log has all of what it tells.
pub(super) struct Held {
    pub number: u64,
    pub ticket: Ticket,
    pub answer: Result<Reply, Abort>,
    pub has_written: bool,
    /// The reads of a transaction that was to write nothing.
    pub reads: Option<Vec<KeyRange>>,
}
