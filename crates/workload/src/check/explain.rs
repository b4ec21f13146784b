//! Decides for one key whether its operations can have led to its content, and otherwise names the fault.
//!
//! A document's *life* lasts from an insert to a delete (see `turns`). Once the possible begins of the last life are
//! known, the updates need no search. If the content is from update `u`, all other updates of that life came before
//! it, so none that was acknowledged may have been sent after `u` was answered. The counter `n` is then at least the
//! number of acknowledged updates that cannot belong to an earlier life, and at most the number of all updates that
//! can belong to the last one. Each value in between is possible, since every other update can be assigned
//! independently.

use std::ops::RangeInclusive;

use super::turns::{Birth, SearchLimitExceeded, lives};
use super::verdict::Wrong;
use crate::history::{Fate, Op};
use crate::mix::Kind;

/// The times of the updates of one key, in ns since the start of the run, sorted for counting.
struct Updates {
    /// Times at which the acknowledged updates were sent; `ends` has the times at which they were answered.
    starts: Vec<u64>,
    ends: Vec<u64>,
    /// Times at which the updates without a definite answer were sent.
    unknown_starts: Vec<u64>,
}

impl Updates {
    fn of(ops: &[Op]) -> Self {
        let sorted = |fate: Fate, time: fn(&Op) -> u64| {
            let updates = ops.iter().filter(|op| op.kind == Kind::Update && op.fate == fate);
            let mut times: Vec<u64> = updates.map(time).collect();
            times.sort_unstable();
            times
        };
        Self {
            starts: sorted(Fate::Acked, |op| op.start_ns),
            ends: sorted(Fate::Acked, |op| op.end_ns),
            unknown_starts: sorted(Fate::Unknown, |op| op.start_ns),
        }
    }

    /// Returns the number of acknowledged updates that must have happened in the last life if that began with
    /// `birth`.
    fn updates_required(&self, birth: &Birth) -> u64 {
        let earlier = self.starts.partition_point(|start| Some(*start) <= birth.covered);
        (self.starts.len() - earlier) as u64
    }

    /// Returns the number of acknowledged updates that can have happened in the last life if that began with `birth`.
    fn updates_possible(&self, birth: &Birth) -> u64 {
        (self.ends.len() - self.ends.partition_point(|end| *end < birth.at)) as u64
    }

    fn unknown_sent_by(&self, moment: u64) -> u64 {
        self.unknown_starts.partition_point(|start| *start <= moment) as u64
    }
}

/// The write that left the final content of a key.
enum Author {
    /// The insert that began the last life, or the preload.
    Insert,
    /// An acknowledged update, with the times at which it was sent and answered, in ns since the start of the run.
    Acked { start: u64, end: u64 },
    /// An update without a definite answer, which may have been applied at any time after it was sent.
    Unknown,
}

/// Returns the possible values of the document's update counter `n` if the last life began with `birth`, and the
/// write `seq`, of the kind `author`, left the content; `None` if that is impossible.
fn counters(
    birth: &Birth,
    seq: u64,
    author: &Author,
    updates: &Updates,
) -> Option<RangeInclusive<u64>> {
    let bound = updates.updates_required(birth);
    match *author {
        Author::Insert => (birth.seq == Some(seq) && bound == 0).then_some(0..=0),
        Author::Acked { start, end } => {
            let last_start = updates.starts.last().copied().unwrap_or(0);
            if end < birth.at || last_start > end {
                return None;
            }
            let least = if Some(start) > birth.covered { bound } else { bound + 1 };
            Some(least..=updates.updates_possible(birth) + updates.unknown_sent_by(end))
        }
        Author::Unknown => {
            Some(bound + 1..=updates.updates_possible(birth) + updates.unknown_starts.len() as u64)
        }
    }
}

/// Decides whether the operations `ops` of a key allow its final content `found`, or returns the fault. `found` has
/// `seq` and `n` of the document; `None` is an absent document.
///
/// `initial` is the `seq` of the document that existed before the first operation; `None` if there was none.
pub(super) fn explain(
    initial: Option<u64>,
    ops: &[Op],
    found: Option<(u64, u64)>,
) -> Result<(), (Wrong, String)> {
    let Some((seq, n)) = found else { return explain_absence(initial, ops) };
    let writer = ops.iter().find(|op| op.kind.writes() && op.seq == seq);
    let author = author(initial, seq, writer)?;
    let reserved =
        writer.filter(|op| op.kind == Kind::Insert && op.fate == Fate::Unknown).map(|op| op.seq);
    let ways = lives(initial, ops, reserved).map_err(undecided)?;
    let updates = Updates::of(ops);
    let possible: Vec<_> =
        ways.births.iter().filter_map(|birth| counters(birth, seq, &author, &updates)).collect();
    if possible.iter().any(|range| range.contains(&n)) {
        return Ok(());
    }
    if ways.births.is_empty() && !ways.absent {
        return Err(contradiction());
    }
    let deleted_since = writer.is_none_or(|writer| writer.fate == Fate::Acked)
        && ops.iter().any(|op| {
            op.kind == Kind::Delete
                && op.fate == Fate::Acked
                && writer.is_none_or(|writer| op.start_ns > writer.end_ns)
        });
    if ways.births.is_empty() || (possible.is_empty() && deleted_since) {
        let why = format!("the document of write {seq} is there although it was deleted");
        return Err((Wrong::Resurrected, why));
    }
    Err(wrong_counter(seq, n, &possible))
}

fn explain_absence(initial: Option<u64>, ops: &[Op]) -> Result<(), (Wrong, String)> {
    let ways = lives(initial, ops, None).map_err(undecided)?;
    if ways.absent {
        Ok(())
    } else if ways.births.is_empty() {
        Err(contradiction())
    } else {
        Err((Wrong::Lost, "the document is not there".into()))
    }
}

fn author(initial: Option<u64>, seq: u64, writer: Option<&Op>) -> Result<Author, (Wrong, String)> {
    let unknown = |why: String| Err((Wrong::Unknown, why));
    let Some(op) = writer else {
        return if initial == Some(seq) {
            Ok(Author::Insert)
        } else {
            unknown(format!("write {seq}, of which the document says it is, did not use this key"))
        };
    };
    match (op.kind, op.fate) {
        (Kind::Insert, Fate::Acked | Fate::Unknown) => Ok(Author::Insert),
        (Kind::Update, Fate::Acked) => Ok(Author::Acked { start: op.start_ns, end: op.end_ns }),
        (Kind::Update, Fate::Unknown) => Ok(Author::Unknown),
        (kind, _) => {
            unknown(format!("the document is from {} {seq}, which changed nothing", kind.name()))
        }
    }
}

fn wrong_counter(seq: u64, n: u64, possible: &[RangeInclusive<u64>]) -> (Wrong, String) {
    let least = possible.iter().map(RangeInclusive::start).min();
    let most = possible.iter().map(RangeInclusive::end).max();
    match (least, most) {
        (Some(_), Some(most)) if n > *most => (
            Wrong::Duplicated,
            format!("the document of write {seq} counts {n} updates; at most {most} were sent"),
        ),
        (Some(least), Some(_)) => (
            Wrong::Lost,
            format!("the document of write {seq} counts {n} updates, not {least} or more"),
        ),
        _ => (
            Wrong::Stale,
            format!("the document is from write {seq}; a later one was acknowledged"),
        ),
    }
}

fn contradiction() -> (Wrong, String) {
    (Wrong::Contradictory, "no order of the operations allows all acknowledgements".into())
}

fn undecided(_: SearchLimitExceeded) -> (Wrong, String) {
    (Wrong::Undecided, "too many inserts and deletes of this key overlapped".into())
}
