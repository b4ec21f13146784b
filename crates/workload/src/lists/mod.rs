//! List-append histories: transactions that read whole lists and append to them, and the check of a
//! store's answers (Kingsbury and Alvaro, *Elle*, PVLDB 14, 2020).
//!
//! The idea: each element is appended once in the whole history. A list read is then the order of
//! all appends to it so far, so that the dependencies between transactions can be read off the
//! answers, without a search; and an anomaly is a cycle among these dependencies (Adya, 1999).
//!
//! The check requires three rules of a recorder of histories:
//! 1. [`Outcome::NotDone`] is recorded only of a transaction that certainly did not happen and
//!    never will.
//! 2. A session ends with the first transaction whose outcome is unknown, and so with its
//!    connection. A promise to a session is a promise to its later transactions.
//! 3. The last look at all lists ([`History::last`]) is taken when nothing is under way any more,
//!    and by transactions that write to the lists that they read: one that only reads may see an
//!    older snapshot.

mod check;
mod generate;
mod graph;
mod second;
mod verdict;

pub use check::check;
pub use generate::{Generator, Pool, Request};
pub use second::{Opinion, second_opinion};
pub use verdict::{Anomaly, Kind, Verdict};

/// An element of a list; each occurs once in a history.
pub type Element = u32;

/// Lists in use at a time. A list that has become long is followed by another one.
pub const LISTS: u32 = 24;

/// A list, by number: 0 to `LISTS - 1` are in use first, each followed by the one `LISTS` further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct List(pub u32);

impl List {
    /// The key under which a store has it. Lists that follow each other are neighbours.
    #[must_use]
    pub fn name(self) -> String {
        format!("list{:02}-{:04}", self.0 % LISTS, self.0 / LISTS)
    }
}

/// A part of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Reads the whole list.
    Read(List),
    /// Puts an element at its end.
    Append(List, Element),
}

/// A session's knowledge of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was acknowledged.
    Done,
    /// Nothing of it happened, nor will.
    NotDone,
    /// It happened, or will, or not.
    Unknown,
}

/// A transaction as the session saw it that sent it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// Which session.
    pub session: u32,
    /// The steps that were sent, in order.
    pub steps: Vec<Step>,
    /// The outcome.
    pub outcome: Outcome,
    /// The results of its reads, in order, if it is done.
    pub reads: Vec<Vec<Element>>,
    /// Time at which it was sent, in ns since the load began.
    pub began_ns: u64,
    /// Time at which it was answered, or given up, in ns since the load began.
    pub ended_ns: u64,
}

/// The transactions with their replies, and the lists at the end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// Each session's in the order in which it sent them, one after the other.
    pub transactions: Vec<Transaction>,
    /// By number of the list.
    pub last: Vec<Vec<Element>>,
}

/// An element as it stands in a list.
#[must_use]
pub fn written(element: Element) -> String {
    format!("{element},")
}

/// The elements of a value that is a list.
#[must_use]
pub fn elements(value: &[u8]) -> Option<Vec<Element>> {
    let text = std::str::from_utf8(value).ok()?;
    if text.is_empty() {
        return Some(Vec::new());
    }
    let elements = text.strip_suffix(',')?.split(',');
    elements.map(|element| element.parse().ok()).collect()
}

#[cfg(test)]
mod tests;
