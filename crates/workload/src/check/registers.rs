//! The check of registers: keys under which each write replaces all content.
//!
//! A write's timestamp is taken between its start and its end, even if it timed out, and of two writes the one with
//! the later timestamp wins. So a write is certainly *replaced* once an acknowledged write has ended that started
//! after the first had ended. An observation, which is a read or the final content, is allowed if it shows a write
//! that started before the observation ended and that was not certainly replaced before the observation began.
//!
//! Without timestamps, a write that timed out may be applied at any time after its start: it is never certainly
//! replaced.

use std::collections::HashMap;

use super::verdict::Wrong;
use crate::history::{Fate, Model, Op};
use crate::mix::Kind;

/// A write of one key, or the state of the key before its first write.
#[derive(Debug, Clone, Copy)]
struct Write {
    start_ns: u64,
    /// Time from which on the write is certainly replaced by a later one, in ns since the start of the run;
    /// `u64::MAX` if it never is.
    replaced_ns: u64,
    deletes: bool,
}

/// The writes of one key, prepared for checks of observations.
#[derive(Debug)]
pub(super) struct Register {
    /// The writes of the key, sorted by the time at which they were sent.
    writes: Vec<Write>,
    /// Index in `writes` of each write that is not a delete, by its number `seq`.
    by_seq: HashMap<u64, usize>,
    /// For each index in `writes`, the latest time at which an absent document is allowed by the deletes up to that
    /// index, in ns since the start of the run.
    absent_until_ns: Vec<u64>,
}

/// Fault of an observation: its kind, and the reason as text.
pub(super) type Fault = (Wrong, String);

impl Register {
    /// Prepares the writes among the operations `ops` of one key. `initial` is the `seq` of the document that existed
    /// before them, `None` if there was none; `model` decides for how long a write that timed out may still be
    /// applied.
    pub(super) fn new(model: Model, initial: Option<u64>, ops: &[Op]) -> Self {
        // The initial document has its own `seq`, and was written before all operations.
        let mut timed = vec![(0, 0, initial, initial.is_none())];
        let mut acknowledged = Vec::new();
        for op in ops {
            let may_be_there = matches!(op.fate, Fate::Acked | Fate::Unknown);
            if !op.kind.writes() || !may_be_there {
                continue;
            }
            let deletes = op.kind == Kind::Delete;
            // Times are at least 1 ns, so that no operation starts at the time at which the initial write
            // ended.
            let is_late = model == Model::Arrivals && op.fate == Fate::Unknown;
            let end_ns = if is_late { u64::MAX } else { op.end_ns.max(1) };
            timed.push((op.start_ns.max(1), end_ns, Some(op.seq), deletes));
            if op.fate == Fate::Acked {
                acknowledged.push((op.start_ns.max(1), op.end_ns.max(1)));
            }
        }
        timed.sort_unstable_by_key(|(start_ns, ..)| *start_ns);
        acknowledged.sort_unstable();
        // The earliest end of the acknowledged writes from each index on.
        let mut first_end: Vec<u64> = acknowledged.iter().map(|(_, end_ns)| *end_ns).collect();
        for place in (1..first_end.len()).rev() {
            first_end[place - 1] = first_end[place - 1].min(first_end[place]);
        }
        let mut register =
            Self { writes: Vec::new(), by_seq: HashMap::new(), absent_until_ns: Vec::new() };
        let mut absent_until_ns = 0;
        for (start_ns, end_ns, seq, deletes) in timed {
            let later = acknowledged.partition_point(|(start, _)| *start <= end_ns);
            let replaced_ns = first_end.get(later).copied().unwrap_or(u64::MAX);
            if deletes {
                absent_until_ns = absent_until_ns.max(replaced_ns);
            } else if let Some(seq) = seq {
                register.by_seq.insert(seq, register.writes.len());
            }
            register.absent_until_ns.push(absent_until_ns);
            register.writes.push(Write { start_ns, replaced_ns, deletes });
        }
        register
    }

    /// Checks an observation that began at `from_ns` and ended at `to_ns`, in ns since the start of the run. `seen`
    /// is the `seq` of the write that it saw; `None` if it saw no document.
    pub(super) fn check_observation(
        &self,
        seen: Option<u64>,
        from_ns: u64,
        to_ns: u64,
    ) -> Result<(), Fault> {
        let Some(seq) = seen else { return self.check_absence(from_ns, to_ns) };
        let Some(write) = self.by_seq.get(&seq).map(|place| self.writes[*place]) else {
            return Err((Wrong::Unknown, format!("it is from write {seq}, which was never sent")));
        };
        if write.start_ns > to_ns {
            return Err((Wrong::Unknown, format!("it is from write {seq}, which started later")));
        }
        if write.replaced_ns >= from_ns {
            return Ok(());
        }
        // If the last write before is a delete that was not replaced, the document has reappeared.
        let last = self.writes.iter().rev().find(|other| other.start_ns <= from_ns);
        let wrong = if last.is_some_and(|last| last.deletes && last.replaced_ns >= from_ns) {
            Wrong::Resurrected
        } else {
            Wrong::Stale
        };
        Err((wrong, format!("it is from write {seq}, which an acknowledged later one replaced")))
    }

    fn check_absence(&self, from_ns: u64, to_ns: u64) -> Result<(), Fault> {
        let started = self.writes.partition_point(|write| write.start_ns <= to_ns);
        let until_ns = started.checked_sub(1).map_or(0, |place| self.absent_until_ns[place]);
        if until_ns >= from_ns {
            return Ok(());
        }
        Err((Wrong::Lost, "nothing is there, although a write was acknowledged".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An operation of a history that a register could have given: writes take effect at a moment of their own.
    #[derive(Debug, Clone, Copy)]
    struct Drawn {
        kind: Kind,
        start_ns: u64,
        lasts_ns: u64,
        /// The moment of its effect, as a share of its time.
        at: f64,
        fate: Fate,
        applied: bool,
    }

    fn drawn() -> impl Strategy<Value = Drawn> {
        let kinds = vec![Kind::Read, Kind::Read, Kind::Insert, Kind::Update, Kind::Delete];
        let fates = vec![Fate::Acked, Fate::Acked, Fate::Acked, Fate::Unknown, Fate::Refused];
        let kind = proptest::sample::select(kinds);
        let fate = proptest::sample::select(fates);
        (kind, 1..400_000_u64, 1..60_000_u64, 0.0..1.0, fate, any::<bool>()).prop_map(
            |(kind, start_ns, lasts_ns, at, fate, applied)| Drawn {
                kind,
                start_ns,
                lasts_ns,
                at,
                fate,
                applied,
            },
        )
    }

    /// The history of a register whose writes take effect at their moments, and what it holds at the end. All writes
    /// for which `keeps` is false are lost, though acknowledged.
    fn played(
        initial: Option<u64>,
        drawn: &[Drawn],
        keeps: impl Fn(u64) -> bool,
    ) -> (Vec<Op>, Option<u64>) {
        let moment = |one: &Drawn| one.start_ns + (one.at * one.lasts_ns as f64) as u64;
        let mut order: Vec<(usize, &Drawn)> = drawn.iter().enumerate().collect();
        order.sort_by_key(|(place, one)| (moment(one), *place));
        let mut holds = initial;
        let mut ops = Vec::new();
        for (place, one) in order {
            let number = 1_398_442_107 + place as u64;
            let mut op = Op {
                kind: one.kind,
                fate: one.fate,
                target: 0,
                key: 7,
                seq: number,
                intended_ns: one.start_ns,
                start_ns: one.start_ns,
                end_ns: one.start_ns + one.lasts_ns,
            };
            if one.kind == Kind::Read {
                op.fate = if holds.is_some() { Fate::Acked } else { Fate::NotFound };
                op.seq = holds.unwrap_or(0);
            } else {
                let applies = match one.fate {
                    Fate::Acked => keeps(number),
                    Fate::Unknown => one.applied,
                    Fate::Refused | Fate::NotFound => false,
                };
                if applies {
                    holds = (one.kind != Kind::Delete).then_some(number);
                }
            }
            ops.push(op);
        }
        ops.sort_unstable_by_key(|op| (op.start_ns, op.seq));
        (ops, holds)
    }

    /// The definition, write by write.
    fn allowed(
        initial: Option<u64>,
        ops: &[Op],
        seen: Option<u64>,
        from_ns: u64,
        to_ns: u64,
    ) -> bool {
        let writes = || ops.iter().filter(|op| op.kind.writes() && op.fate != Fate::Refused);
        let replaced = |end_ns: u64| {
            writes().any(|later| {
                later.fate == Fate::Acked && later.start_ns > end_ns && later.end_ns < from_ns
            })
        };
        let shows = |op: &Op| match seen {
            Some(seq) => op.kind != Kind::Delete && op.seq == seq,
            None => op.kind == Kind::Delete,
        };
        (initial == seen && !replaced(0))
            || writes().any(|op| shows(op) && op.start_ns <= to_ns && !replaced(op.end_ns))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn what_a_register_shows_is_allowed(
            there in any::<bool>(),
            drawn in proptest::collection::vec(drawn(), 0..14),
        ) {
            let initial = there.then_some(7);
            let (ops, holds) = played(initial, &drawn, |_| true);
            let register = Register::new(Model::Registers, initial, &ops);
            for op in ops.iter().filter(|op| op.kind == Kind::Read) {
                let seen = (op.fate == Fate::Acked).then_some(op.seq);
                prop_assert_eq!(register.check_observation(seen, op.start_ns, op.end_ns), Ok(()));
            }
            prop_assert_eq!(register.check_observation(holds, u64::MAX, u64::MAX), Ok(()));
        }

        #[test]
        fn exactly_what_the_definition_allows_is_allowed(
            there in any::<bool>(),
            drawn in proptest::collection::vec(drawn(), 0..14),
            from_ns in 1..500_000_u64,
            lasts_ns in 0..50_000_u64,
        ) {
            let initial = there.then_some(7);
            let (ops, _) = played(initial, &drawn, |_| true);
            let register = Register::new(Model::Registers, initial, &ops);
            let to_ns = from_ns + lasts_ns;
            let numbers = ops.iter().filter(|op| op.kind.writes()).map(|op| Some(op.seq));
            for seen in numbers.chain([None, Some(7), Some(4_711)]) {
                prop_assert_eq!(
                    register.check_observation(seen, from_ns, to_ns).is_ok(),
                    allowed(initial, &ops, seen, from_ns, to_ns),
                    "{:?}", seen
                );
            }
        }
    }

    fn write(kind: Kind, seq: u64, start_ns: u64, end_ns: u64) -> Op {
        let fate = Fate::Acked;
        Op { kind, fate, target: 0, key: 7, seq, intended_ns: start_ns, start_ns, end_ns }
    }

    #[test]
    fn each_fault_has_its_name() {
        let ops = [write(Kind::Update, 81_003, 10, 20), write(Kind::Delete, 81_950, 30, 40)];
        let wrong = |initial, ops: &[Op], seen| {
            let register = Register::new(Model::Registers, initial, ops);
            register.check_observation(seen, u64::MAX, u64::MAX).map_err(|(wrong, _)| wrong)
        };
        assert_eq!(wrong(Some(7), &ops, None), Ok(()));
        assert_eq!(wrong(Some(7), &ops, Some(81_003)), Err(Wrong::Resurrected));
        assert_eq!(wrong(Some(7), &ops[..1], Some(7)), Err(Wrong::Stale));
        assert_eq!(wrong(Some(7), &ops[..1], None), Err(Wrong::Lost));
        assert_eq!(wrong(Some(7), &ops[..1], Some(4_711)), Err(Wrong::Unknown));
        assert_eq!(wrong(None, &ops[..1], None), Err(Wrong::Lost));
        assert_eq!(wrong(None, &[], None), Ok(()));
        assert_eq!(wrong(Some(7), &[], None), Err(Wrong::Lost));
    }

    #[test]
    fn a_write_that_was_given_up_does_not_replace_a_later_one() {
        let mut old = write(Kind::Update, 81_003, 10, 20);
        old.fate = Fate::Unknown;
        let new = write(Kind::Update, 81_950, 30, 40);
        let register = Register::new(Model::Registers, Some(7), &[old, new]);
        assert!(
            register.check_observation(Some(81_003), 41, 50).is_err(),
            "its timestamp is the older one"
        );
        assert_eq!(register.check_observation(Some(81_003), 40, 50), Ok(()), "they met");
        assert_eq!(register.check_observation(Some(81_950), 41, 50), Ok(()));
    }

    #[test]
    fn without_timestamps_a_write_that_was_given_up_may_come_later() {
        let mut old = write(Kind::Update, 81_003, 10, 20);
        old.fate = Fate::Unknown;
        let new = write(Kind::Update, 81_950, 30, 40);
        let register = Register::new(Model::Arrivals, Some(7), &[old, new]);
        assert_eq!(register.check_observation(Some(81_003), 41, 50), Ok(()), "it arrived late");
        assert_eq!(register.check_observation(Some(81_950), 41, 50), Ok(()));
        let stale = register.check_observation(Some(7), 41, 50).map_err(|(wrong, _)| wrong);
        assert_eq!(stale, Err(Wrong::Stale), "what was there before is replaced");
        let mut delete = write(Kind::Delete, 81_003, 10, 20);
        delete.fate = Fate::Unknown;
        let register = Register::new(Model::Arrivals, Some(7), &[delete, new]);
        assert_eq!(register.check_observation(None, 41, 50), Ok(()), "the delete arrived late");
    }
}
