//! The result of a check of lists: exact counts by kind of anomaly, and examples with their transactions.

use std::collections::BTreeMap;

use serde::Serialize;

use super::History;

/// Limit of the number of examples that a verdict contains for each kind of anomaly.
const NAMED_MAX: u64 = 20;

/// The kind of an anomaly under strong-session snapshot isolation. Names that begin with G are Adya's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Kind {
    /// An acknowledged append, or one that a client read, is missing from its list at the end.
    #[serde(rename = "lost")]
    Lost,
    /// A list has an element that no client appended to it, or whose transaction certainly did not happen.
    #[serde(rename = "resurrected")]
    Resurrected,
    /// An element occurs twice in the final lists, or in one read.
    #[serde(rename = "duplicated")]
    Duplicated,
    /// Some of a transaction's appends happened, and others did not.
    #[serde(rename = "atomicity")]
    Atomicity,
    /// The order of a list's elements differs between a read and the final list, or between a transaction's appends
    /// and the final list.
    #[serde(rename = "incompatible order")]
    Order,
    /// A transaction read a list that contradicts its own appends or its other reads of the list, or has no result
    /// for a read.
    #[serde(rename = "internal")]
    Internal,
    /// Aborted read: a read of an append whose transaction did not happen.
    G1a,
    /// Intermediate read: the last element read is one after which its transaction appended more to the list.
    G1b,
    /// A cycle of write-write dependencies.
    G0,
    /// A cycle of write-write and write-read dependencies.
    G1c,
    /// Lost update: two transactions append to a list, and one of them did not see the other's append.
    #[serde(rename = "lost update")]
    LostUpdate,
    /// Read skew: a transaction that saw some earlier changes but missed one.
    #[serde(rename = "G-single")]
    GSingle,
    /// Long fork: transactions that saw others in different orders. It is a cycle in which no two read-write
    /// dependencies are adjacent.
    #[serde(rename = "G-nonadjacent")]
    GNonadjacent,
    /// A session saw less than before, or missed its own writes.
    #[serde(rename = "session")]
    Session,
}

/// An example of an anomaly, with the transactions that are involved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Anomaly {
    /// The kind of anomaly.
    pub kind: Kind,
    /// Description of the evidence; a transaction is written as T and its index in the history.
    pub why: String,
    /// Indexes of the involved transactions in the history; those of a cycle, in its order.
    pub transactions: Vec<usize>,
}

/// The result of the check of a history of lists.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Number of transactions in the history.
    pub transactions: u64,
    /// Number of transactions that were acknowledged.
    pub done: u64,
    /// Number of transactions that certainly did not happen.
    pub not_done: u64,
    /// Number of transactions without a definite answer (acknowledged or certainly not done).
    pub unknown: u64,
    /// Number of transactions without a definite answer that happened, because some of their appends are in the final
    /// lists.
    pub unknown_but_done: u64,
    /// Number of appends of acknowledged transactions.
    pub appends: u64,
    /// Number of anomalies of each kind that occurred; cycles are counted once per strongly connected component of
    /// transactions.
    pub counts: BTreeMap<Kind, u64>,
    /// Examples of anomalies, at most 20 of each kind.
    pub named: Vec<Anomaly>,
}

impl Kind {
    /// Returns the name of this kind of anomaly in the literature.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Resurrected => "resurrected",
            Self::Duplicated => "duplicated",
            Self::Atomicity => "atomicity",
            Self::Order => "incompatible order",
            Self::Internal => "internal",
            Self::G1a => "G1a",
            Self::G1b => "G1b",
            Self::G0 => "G0",
            Self::G1c => "G1c",
            Self::LostUpdate => "lost update",
            Self::GSingle => "G-single",
            Self::GNonadjacent => "G-nonadjacent",
            Self::Session => "session",
        }
    }

    /// Returns true if this kind of anomaly concerns isolation between transactions. Other kinds concern the content
    /// of the lists, and a second checker need not detect them.
    #[must_use]
    pub fn is_of_isolation(self) -> bool {
        use Kind::{Atomicity, Duplicated, Lost, Order, Resurrected};
        !matches!(self, Lost | Resurrected | Duplicated | Atomicity | Order)
    }
}

impl Verdict {
    /// Returns true if the history has no anomalies of any kind.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.counts.is_empty()
    }

    /// Returns the number of anomalies of the kind `kind`.
    #[must_use]
    pub fn count(&self, kind: Kind) -> u64 {
        self.counts.get(&kind).copied().unwrap_or(0)
    }

    /// Returns the number of all anomalies, except lost appends.
    #[must_use]
    pub fn anomalies(&self) -> u64 {
        self.counts.iter().filter(|(kind, _)| **kind != Kind::Lost).map(|(_, count)| count).sum()
    }

    pub(super) fn note(&mut self, kind: Kind, why: String, transactions: Vec<usize>) {
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        if *count <= NAMED_MAX {
            self.named.push(Anomaly { kind, why, transactions });
        }
    }
}

impl Anomaly {
    /// Formats the example with all its transactions, which are those of `history`, for debugging.
    #[must_use]
    pub fn describe(&self, history: &History) -> String {
        let mut text = format!("{}: {}", self.kind.name(), self.why);
        for &at in &self.transactions {
            text += &format!("\n  T{at} {:?}", history.transactions[at]);
        }
        text
    }
}
