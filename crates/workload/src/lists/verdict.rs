//! The result of a check: exact counts by kind, and examples with the transactions that show it.

use std::collections::BTreeMap;

use serde::Serialize;

use super::History;

/// Examples that are kept of each kind.
const NAMED_MAX: u64 = 20;

/// Faults under strong-session snapshot isolation. Names that begin with G are Adya's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Kind {
    /// An acknowledged append, or one that a client read, is not in its list at the end.
    #[serde(rename = "lost")]
    Lost,
    /// A list has an element that no client sent, or whose transaction certainly did not happen.
    #[serde(rename = "resurrected")]
    Resurrected,
    /// A list has an element twice.
    #[serde(rename = "duplicated")]
    Duplicated,
    /// Some of a transaction's appends happened, others did not.
    #[serde(rename = "atomicity")]
    Atomicity,
    /// Two looks at a list differ in the order of its elements.
    #[serde(rename = "incompatible order")]
    Order,
    /// A transaction saw another list than its own steps before allow.
    #[serde(rename = "internal")]
    Internal,
    /// Aborted read: of a transaction that did not happen.
    G1a,
    /// Intermediate read: of a transaction that appended more to the list.
    G1b,
    /// A cycle of writes behind writes.
    G0,
    /// A cycle of writes behind writes, and reads of writes.
    G1c,
    /// Two transactions that append to a list, of which one did not see the other.
    #[serde(rename = "lost update")]
    LostUpdate,
    /// Read skew: a transaction that saw a part of the earlier changes, with one missing.
    #[serde(rename = "G-single")]
    GSingle,
    /// Long fork: transactions that saw others in different orders. A cycle in which reads that missed
    /// a write are never next to each other.
    #[serde(rename = "G-nonadjacent")]
    GNonadjacent,
    /// A session saw less than before, or not its own writes.
    #[serde(rename = "session")]
    Session,
}

/// An example.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Anomaly {
    /// Of what.
    pub kind: Kind,
    /// The evidence, with transactions as T and their place in the history.
    pub why: String,
    /// Their places in the history; of a cycle, in its order.
    pub transactions: Vec<usize>,
}

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Transactions that were sent.
    pub transactions: u64,
    /// Of these, acknowledged.
    pub done: u64,
    /// Of these, certainly not done.
    pub not_done: u64,
    /// Of these, without a definite answer.
    pub unknown: u64,
    /// Of these, those of which something is in the lists, so that they happened.
    pub unknown_but_done: u64,
    /// Appends that were acknowledged.
    pub appends: u64,
    /// Number of anomalies of each kind; of cycles, one for each knot of transactions.
    pub counts: BTreeMap<Kind, u64>,
    /// Examples.
    pub named: Vec<Anomaly>,
}

impl Kind {
    /// As the literature calls it.
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

    /// True if it concerns the view of transactions on each other. The others concern the content
    /// of the lists, or one transaction by itself, and a second opinion need not know of them.
    #[must_use]
    pub fn is_of_isolation(self) -> bool {
        use Kind::{Atomicity, Duplicated, Lost, Order, Resurrected};
        !matches!(self, Lost | Resurrected | Duplicated | Atomicity | Order)
    }
}

impl Verdict {
    /// True if nothing is wrong.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.counts.is_empty()
    }

    /// Number of anomalies of a kind.
    #[must_use]
    pub fn count(&self, kind: Kind) -> u64 {
        self.counts.get(&kind).copied().unwrap_or(0)
    }

    /// Number of all anomalies, besides appends that are lost.
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
    /// The example with all its transactions, for the search of the fault.
    #[must_use]
    pub fn told(&self, history: &History) -> String {
        let mut text = format!("{}: {}", self.kind.name(), self.why);
        for &at in &self.transactions {
            text += &format!("\n  T{at} {:?}", history.transactions[at]);
        }
        text
    }
}
