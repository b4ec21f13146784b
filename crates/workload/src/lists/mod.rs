//! List-append histories: transactions that read whole lists and append to them, and the check of a
//! store's answers (Kingsbury and Alvaro, *Elle*, PVLDB 14, 2020).
//!
//! Each element is appended once in the whole history. So a read of a list shows the order of all appends to
//! it so far, the dependencies between transactions follow from the answers without a search, and an anomaly
//! is a cycle of these dependencies (Adya, 1999).
//!
//! The check requires three rules of a recorder of histories:
//! 1. [`Outcome::NotDone`] is recorded only for a transaction that certainly did not happen and never will.
//! 2. A session ends with the first transaction whose outcome is unknown, and so with its connection. A
//!    guarantee for a session is a guarantee for its later transactions.
//! 3. The final read of all lists ([`History::last`]) is made when nothing is in progress any more, and by
//!    transactions that write to the lists that they read: a transaction that only reads may see an older
//!    snapshot.

mod check;
mod cross_check;
mod generate;
mod graph;
mod verdict;

pub use check::check;
pub use cross_check::{CrossCheck, cross_check};
pub use generate::{Generator, Pool, Request};
pub use verdict::{Anomaly, Kind, Verdict};

/// An element of a list, a number that is appended at most once in a history.
pub type Element = u32;

/// Number of lists in use at the same time. A list that has become long is replaced by a new one.
pub const LISTS: u32 = 24;

/// A list, by its number: 0 to `LISTS - 1` are used first, and list n is replaced by list n + `LISTS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct List(pub u32);

impl List {
    /// Returns the key under which a store has the list. The keys of a list and its replacement are adjacent.
    #[must_use]
    pub fn name(self) -> String {
        format!("list{:02}-{:04}", self.0 % LISTS, self.0 / LISTS)
    }
}

/// A step of a transaction: a read or an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Reads the whole content of this list.
    Read(List),
    /// Appends this element to the end of this list.
    Append(List, Element),
}

/// The outcome of a transaction, as the session that sent it knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The transaction was acknowledged by the store.
    Done,
    /// The transaction did not happen, and never will.
    NotDone,
    /// The transaction may have happened, or may still happen.
    Unknown,
}

/// A transaction with its outcome and its answers, as the session that sent it saw them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// Number of the session that sent the transaction.
    pub session: u32,
    /// Reads and appends that were sent, in order.
    pub steps: Vec<Step>,
    /// Outcome of the transaction, as the session knows it.
    pub outcome: Outcome,
    /// Content that each read step saw, in the order of the reads; empty unless the transaction was acknowledged.
    pub reads: Vec<Vec<Element>>,
    /// Time at which the transaction was sent, in ns since the load began.
    pub began_ns: u64,
    /// Time at which the transaction was answered or timed out, in ns since the load began.
    pub ended_ns: u64,
}

/// Transactions with their answers, and the final content of the lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// Transactions of all sessions; those of one session are in the order in which they ran.
    pub transactions: Vec<Transaction>,
    /// Final content of each list; the index is the number of the list.
    pub last: Vec<Vec<Element>>,
}

/// Formats an element as it is appended to the value of a list: its number and a comma.
#[must_use]
pub fn written(element: Element) -> String {
    format!("{element},")
}

/// Parses the value of a list (elements, each followed by a comma); returns `None` if it has another form.
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
