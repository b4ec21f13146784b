//! The check: do the acknowledgements of a database allow its content?
//!
//! Keys are independent of each other, so each is decided alone (`explain`). The content is accepted exactly if there
//! is an order of the key's operations that contradicts neither the acknowledgements nor the clock, and that ends in
//! this content. Operations that overlapped may have happened in either order. An operation that failed without a
//! definite answer may have happened at any time after it was sent, even long after it timed out, or never. Content
//! that no order explains is reported with the fault that must have caused it.

mod explain;
mod registers;
mod turns;
mod verdict;

use crate::history::{Fate, Header, History, Model, Op};
use crate::mix::Kind;

pub use verdict::{Anomaly, Counts, Verdict, Wrong};

use explain::explain;
use registers::Register;
use verdict::Tracker;

/// One document of the database's final content, as the check needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Number of the document's key.
    pub key: u64,
    /// Number of the write that left the document, from its field `seq`.
    pub seq: u64,
    /// Number of updates that were applied to the document, from its field `n`.
    pub n: u64,
    /// True if the other fields of the document are those that follow from `key` and `seq`.
    pub intact: bool,
}

/// Final content of one key, in compact form, because there may be hundreds of millions of keys.
#[derive(Debug, Clone, Copy, Default)]
struct Content {
    seq: u64,
    n: u32,
    documents: u16,
    intact: bool,
}

/// Checks a history against the final content of the database, whose documents are passed one by one, in any order.
#[derive(Debug)]
pub struct Checker {
    header: Header,
    /// Operations of the history, sorted by key, then by the time at which they were sent.
    ops: Vec<Op>,
    recorded: u64,
    content: Vec<Content>,
    tracker: Tracker,
    documents: u64,
}

impl Checker {
    /// Prepares the check of `history`. Besides the history, this takes 16 bytes of memory for each key that was ever
    /// used.
    #[must_use]
    pub fn new(history: History) -> Self {
        let History { header, mut ops, recorded } = history;
        ops.sort_unstable_by_key(|op| (op.key, op.start_ns, op.seq));
        let written =
            ops.iter().rev().find(|op| op.kind == Kind::Insert).map_or(0, |op| op.key + 1);
        let keys = written.max(header.preloaded);
        Self {
            tracker: Tracker::new(header.id_form),
            content: vec![Content::default(); keys as usize],
            header,
            ops,
            recorded,
            documents: 0,
        }
    }

    /// Returns the header of the history that is checked.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Adds one document of the final content to the check.
    pub fn add_document(&mut self, found: Found) {
        let Some(content) = self.content.get_mut(found.key as usize) else {
            let id = self.header.id_form.name(found.key);
            self.add_foreign_document(&id, "no write of the history ever used its key");
            return;
        };
        self.documents += 1;
        content.documents = content.documents.saturating_add(1);
        if content.documents == 1 {
            content.seq = found.seq;
            // A greater counter exceeds that of any history, and is reported all the same.
            content.n = u32::try_from(found.n).unwrap_or(u32::MAX);
            content.intact = found.intact;
        }
    }

    /// Adds a document that cannot be from this load, because its `_id` is not that of a key or it lacks fields. It
    /// is counted as an anomaly with the reason `why`.
    pub fn add_foreign_document(&mut self, id: &str, why: &str) {
        self.documents += 1;
        self.tracker.stranger(id, why);
    }

    /// Checks every key, and returns the verdict on the whole content.
    #[must_use]
    pub fn finish(mut self) -> Verdict {
        let mut rest = self.ops.as_slice();
        let mut written = 0;
        for key in 0..self.content.len() as u64 {
            let ops = take_key(&mut rest, key);
            written += u64::from(ops.iter().any(|op| op.kind.writes()));
            let initial = (key < self.header.preloaded).then_some(key);
            let content = self.content[key as usize];
            if ops.is_empty() && untouched(initial, content) {
                continue;
            }
            let judged = match self.header.model {
                Model::Documents => {
                    self.tracker.missed(key, ops, initial.is_some());
                    judge(content, |seen| explain(initial, ops, seen))
                }
                model @ (Model::Registers | Model::Arrivals) => {
                    let register = Register::new(model, initial, ops);
                    let are_current = self.header.reads_are_current;
                    let counts = &mut self.tracker.counts;
                    let read = judge_reads(&register, ops, are_current, counts);
                    let end = u64::MAX;
                    let last = judge(content, |seen| {
                        register.check_observation(seen.map(|(seq, _)| seq), end, end)
                    });
                    last.and(read)
                }
            };
            if let Err((wrong, why)) = judged {
                self.tracker.anomaly(wrong, key, why, ops);
            }
        }
        let count = |fate| self.ops.iter().filter(|op| op.kind.writes() && op.fate == fate).count();
        Verdict {
            documents: self.documents,
            operations: self.recorded,
            keys: self.content.len() as u64,
            keys_written: written,
            writes_acknowledged: count(Fate::Acked) as u64,
            writes_unknown: count(Fate::Unknown) as u64,
            writes_refused: count(Fate::Refused) as u64,
            counts: self.tracker.counts,
            named: self.tracker.named,
        }
    }
}

/// Checks the reads among the operations `ops` of one key, and returns the first fault. A read of replaced content is
/// counted in `counts`; unless `are_current` is true, it is not a fault.
fn judge_reads(
    register: &Register,
    ops: &[Op],
    are_current: bool,
    counts: &mut Counts,
) -> Result<(), (Wrong, String)> {
    let mut judged = Ok(());
    for op in ops.iter().filter(|op| op.kind == Kind::Read) {
        let seen = match op.fate {
            Fate::Acked => Some(op.seq),
            Fate::NotFound => None,
            Fate::Refused | Fate::Unknown => continue,
        };
        let Err((wrong, why)) = register.check_observation(seen, op.start_ns, op.end_ns) else {
            continue;
        };
        if wrong != Wrong::Unknown {
            counts.stale_reads += 1;
            if !are_current {
                continue;
            }
        }
        let at_ms = op.start_ns / 1_000_000;
        judged = judged.and_then(|()| Err((wrong, format!("read at {at_ms} ms: {why}"))));
    }
    judged
}

/// Removes the operations of `key` from the front of `rest` and returns them. Keys that no insert ever used come last
/// and are ignored: their operations can only have found nothing.
fn take_key<'a>(rest: &mut &'a [Op], key: u64) -> &'a [Op] {
    let end = rest.iter().position(|op| op.key != key).unwrap_or(rest.len());
    let (ops, later) = rest.split_at(end);
    *rest = later;
    ops
}

fn untouched(initial: Option<u64>, content: Content) -> bool {
    match initial {
        Some(seq) => {
            content.documents == 1 && content.seq == seq && content.n == 0 && content.intact
        }
        None => content.documents == 0,
    }
}

/// Checks the final content of one key. `allows` decides on a single intact document, given its `seq` and number of
/// updates, or on its absence (`None`).
fn judge(
    content: Content,
    allows: impl Fn(Option<(u64, u64)>) -> Result<(), (Wrong, String)>,
) -> Result<(), (Wrong, String)> {
    match content.documents {
        0 => allows(None),
        1 if !content.intact => Err((
            Wrong::Unknown,
            format!("the document says it is from write {}, whose fields it has not", content.seq),
        )),
        1 => allows(Some((content.seq, u64::from(content.n)))),
        more => Err((Wrong::Duplicated, format!("{more} documents have this key"))),
    }
}

#[cfg(test)]
mod tests;
