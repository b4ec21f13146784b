//! The result of a check: exact counts of anomalies, and examples.

use serde::{Deserialize, Serialize};

use crate::history::{Fate, IdForm, Op};
use crate::mix::Kind;

/// Limit of the number of examples that a verdict contains for each kind of anomaly.
const NAMED_MAX: usize = 50;
/// Limit of the number of operations that are shown with an example: the last ones of its key.
const OPS_SHOWN_MAX: usize = 12;

/// The kind of fault in the content or the acknowledgements of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wrong {
    /// The effect of an acknowledged insert or update must be present and is missing.
    Lost,
    /// A document exists although its delete was acknowledged and no later write explains it.
    Resurrected,
    /// The key has several documents, or its update counter is greater than the number of updates that were sent.
    Duplicated,
    /// The content is that of a write that a later acknowledged write has overwritten.
    Stale,
    /// The content is not that of any write that may have been applied.
    Unknown,
    /// An update or delete was answered "not found" while the document must have existed.
    Missed,
    /// The acknowledgements contradict each other, for any content.
    Contradictory,
    /// The key's operations overlap too much to be decided within the limits of the check.
    Undecided,
}

/// Number of anomalies of each kind, by key, document or operation, and of reads that are not anomalies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Number of keys that lost an acknowledged write: [`Wrong::Lost`].
    pub lost: u64,
    /// Number of keys with a document that was deleted: [`Wrong::Resurrected`].
    pub resurrected: u64,
    /// Number of keys with several documents or too many updates: [`Wrong::Duplicated`].
    pub duplicated: u64,
    /// Number of keys with overwritten content: [`Wrong::Stale`].
    pub stale: u64,
    /// Number of keys or documents with content of no possible write: [`Wrong::Unknown`].
    pub unknown: u64,
    /// Number of updates and deletes that were wrongly answered "not found": [`Wrong::Missed`].
    pub missed: u64,
    /// Number of keys whose acknowledgements contradict each other: [`Wrong::Contradictory`].
    pub contradictory: u64,
    /// Number of keys that the check could not decide: [`Wrong::Undecided`].
    pub undecided: u64,
    /// Number of reads that found nothing although the document must have existed. Not an anomaly: a server
    /// that lost its role may answer a plain read from an old state.
    pub missed_reads: u64,
    /// Number of reads that saw content which a later acknowledged write had replaced. If reads must be
    /// current, each key with such a read is also an anomaly.
    #[serde(default)]
    pub stale_reads: u64,
}

impl Counts {
    /// Returns the number of anomalies of all kinds, undecided keys included.
    #[must_use]
    pub fn anomalies(&self) -> u64 {
        self.lost
            + self.resurrected
            + self.duplicated
            + self.stale
            + self.unknown
            + self.missed
            + self.contradictory
            + self.undecided
    }

    fn of(&mut self, wrong: Wrong) -> &mut u64 {
        match wrong {
            Wrong::Lost => &mut self.lost,
            Wrong::Resurrected => &mut self.resurrected,
            Wrong::Duplicated => &mut self.duplicated,
            Wrong::Stale => &mut self.stale,
            Wrong::Unknown => &mut self.unknown,
            Wrong::Missed => &mut self.missed,
            Wrong::Contradictory => &mut self.contradictory,
            Wrong::Undecided => &mut self.undecided,
        }
    }
}

/// An example of an anomaly: one key or foreign document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anomaly {
    /// The kind of fault of this key or document.
    pub wrong: Wrong,
    /// The `_id` of the document.
    pub id: String,
    /// The reason why the content, or the answer to an operation, is impossible.
    pub why: String,
    /// Last operations on the key, at most 12, in the order in which they were sent; for a missed document the one
    /// operation.
    pub ops: Vec<Op>,
}

/// The result of the check of a history against the final content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Number of documents in the final content, foreign ones included.
    pub documents: u64,
    /// Number of operations in the history, reads included.
    pub operations: u64,
    /// Number of keys that were checked: all up to the highest that was preloaded or used by an insert.
    pub keys: u64,
    /// Number of keys to which the load sent a write.
    pub keys_written: u64,
    /// Number of writes that were acknowledged.
    pub writes_acknowledged: u64,
    /// Number of writes that failed and may have been applied.
    pub writes_unknown: u64,
    /// Number of writes that failed and were certainly not applied.
    pub writes_refused: u64,
    /// Numbers of anomalies, exact for each kind.
    #[serde(flatten)]
    pub counts: Counts,
    /// Examples of anomalies, at most 50 of each kind.
    pub named: Vec<Anomaly>,
}

impl Verdict {
    /// Returns true if the acknowledgements allow the final content: there are no anomalies.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.counts.anomalies() == 0
    }
}

/// Counts anomalies during a check, and stores examples of them.
#[derive(Debug)]
pub(super) struct Tracker {
    pub(super) counts: Counts,
    pub(super) named: Vec<Anomaly>,
    id_form: IdForm,
}

impl Tracker {
    pub(super) fn new(id_form: IdForm) -> Self {
        Self { counts: Counts::default(), named: Vec::new(), id_form }
    }

    pub(super) fn anomaly(&mut self, wrong: Wrong, key: u64, why: String, ops: &[Op]) {
        let id = self.id_form.name(key);
        self.note(wrong, id, why, &ops[ops.len().saturating_sub(OPS_SHOWN_MAX)..]);
    }

    pub(super) fn stranger(&mut self, id: &str, why: &str) {
        self.note(Wrong::Unknown, id.to_owned(), why.to_owned(), &[]);
    }

    fn note(&mut self, wrong: Wrong, id: String, why: String, ops: &[Op]) {
        let count = self.counts.of(wrong);
        *count += 1;
        if *count <= NAMED_MAX as u64 {
            self.named.push(Anomaly { wrong, id, why, ops: ops.to_vec() });
        }
    }

    /// Counts the operations of `key` that were answered "not found" although the document existed from before they
    /// were sent until after they were answered. `preloaded` is true if it existed before the load.
    pub(super) fn missed(&mut self, key: u64, ops: &[Op], preloaded: bool) {
        let acked_insert = |op: &&Op| op.kind == Kind::Insert && op.fate == Fate::Acked;
        let inserted_by = ops.iter().filter(acked_insert).map(|op| op.end_ns).min();
        let may_delete =
            |op: &&Op| op.kind == Kind::Delete && matches!(op.fate, Fate::Acked | Fate::Unknown);
        let deleted_from = ops.iter().filter(may_delete).map(|op| op.start_ns).min();
        for op in ops.iter().filter(|op| op.fate == Fate::NotFound) {
            let inserted = preloaded || inserted_by.is_some_and(|end| end < op.start_ns);
            let deleted = deleted_from.is_some_and(|start| start <= op.end_ns);
            if !inserted || deleted {
                continue;
            }
            if op.kind.writes() {
                let why =
                    format!("the {} found no document although there was one", op.kind.name());
                self.anomaly(Wrong::Missed, key, why, std::slice::from_ref(op));
            } else {
                self.counts.missed_reads += 1;
            }
        }
    }
}
