//! The check beside an oracle that tries every order of a key's operations.

use std::collections::HashSet;

use proptest::prelude::*;

use super::explain::explain;
use super::*;
use crate::history::IdForm;
use crate::review::Reviews;

type State = Option<(u64, u64)>;

fn op(kind: Kind, fate: Fate, seq: u64, start_ns: u64, end_ns: u64) -> Op {
    Op { kind, fate, target: 0, key: 0, seq, intended_ns: start_ns, start_ns, end_ns }
}

/// Every content that some order of the operations leads to.
fn outcomes(initial: Option<u64>, ops: &[Op]) -> HashSet<State> {
    let ops: Vec<Op> = ops
        .iter()
        .filter(|op| op.kind.writes() && matches!(op.fate, Fate::Acked | Fate::Unknown))
        .copied()
        .collect();
    let acked = |index: usize| ops[index].fate == Fate::Acked;
    let all_acked = (0..ops.len()).filter(|i| acked(*i)).fold(0u32, |mask, i| mask | 1 << i);
    let start = (0u32, initial.map(|seq| (seq, 0)));
    let (mut known, mut open) = (HashSet::from([start]), vec![start]);
    let mut ends = HashSet::new();
    while let Some((done, state)) = open.pop() {
        if done & all_acked == all_acked {
            ends.insert(state);
        }
        for next in 0..ops.len() {
            let must_wait = (0..ops.len()).any(|other| {
                acked(other) && done >> other & 1 == 0 && ops[other].end_ns < ops[next].start_ns
            });
            if done >> next & 1 == 1 || must_wait {
                continue;
            }
            let after = match (ops[next].kind, state) {
                (Kind::Insert, None) => Some((ops[next].seq, 0)),
                (Kind::Update, Some((_, n))) => Some((ops[next].seq, n + 1)),
                (Kind::Delete, Some(_)) => None,
                // It would have had no effect, which an acknowledged one had.
                _ => continue,
            };
            let reached = (done | 1 << next, after);
            if known.insert(reached) {
                open.push(reached);
            }
        }
    }
    ends
}

/// Every content that is worth asking about.
fn contents(initial: Option<u64>, ops: &[Op]) -> Vec<State> {
    let seqs = ops.iter().map(|op| op.seq).chain(initial).chain([999]);
    let mut contents = vec![None];
    for seq in seqs {
        contents.extend((0..=ops.len() as u64 + 1).map(|n| Some((seq, n))));
    }
    contents
}

fn any_op(kinds: Vec<Kind>) -> impl Strategy<Value = (Kind, Fate, u64, u64)> {
    let fates = vec![Fate::Acked, Fate::Acked, Fate::Acked, Fate::Unknown, Fate::Refused];
    let (kind, fate) = (proptest::sample::select(kinds), proptest::sample::select(fates));
    (kind, fate, 0u64..14, 0u64..6)
}

fn history(raw: Vec<(Kind, Fate, u64, u64)>) -> Vec<Op> {
    let numbered = raw.into_iter().enumerate();
    numbered
        .map(|(index, (kind, fate, start, length))| {
            op(kind, fate, 100 + index as u64, start, start + length)
        })
        .collect()
}

fn agrees(initial: Option<u64>, ops: &[Op]) -> Result<(), TestCaseError> {
    let possible = outcomes(initial, ops);
    for content in contents(initial, ops) {
        let verdict = explain(initial, ops, content);
        prop_assert_eq!(
            verdict.is_ok(),
            possible.contains(&content),
            "{:?} is judged {:?}, possible are {:?}",
            content,
            verdict,
            possible
        );
    }
    Ok(())
}

const TURNS: [Kind; 3] = [Kind::Insert, Kind::Update, Kind::Delete];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn arbitrary_histories_allow_what_the_oracle_allows(
        raw in proptest::collection::vec(any_op(TURNS.to_vec()), 0..8),
        present: bool,
    ) {
        agrees(present.then_some(0), &history(raw))?;
    }

    #[test]
    fn histories_of_updates_allow_what_the_oracle_allows(
        raw in proptest::collection::vec(any_op(vec![Kind::Update]), 0..8),
    ) {
        agrees(Some(0), &history(raw))?;
    }

    /// Arbitrary histories mostly contradict themselves; those of an execution never do.
    #[test]
    fn executed_histories_allow_what_the_oracle_allows(
        steps in proptest::collection::vec(
            (proptest::sample::select(TURNS.to_vec()), 0u64..7, 0u64..7, 0u8..8),
            0..9,
        ),
        present: bool,
    ) {
        let (ops, last) = execute(present.then_some(0), &steps);
        prop_assert!(outcomes(present.then_some(0), &ops).contains(&last));
        agrees(present.then_some(0), &ops)?;
    }
}

/// Applies operations one after another, each at a moment within a window of its own; one in four
/// has no definite answer, and half of these are not applied.
fn execute(initial: Option<u64>, steps: &[(Kind, u64, u64, u8)]) -> (Vec<Op>, State) {
    let mut state = initial.map(|seq| (seq, 0));
    let mut ops = Vec::new();
    for (index, (kind, before, after, luck)) in steps.iter().enumerate() {
        let (moment, seq) = (10 + index as u64 * 2, 100 + index as u64);
        let possible = (*kind == Kind::Insert) == state.is_none();
        let applied = possible && *luck != 0;
        if applied {
            state = match (kind, state) {
                (Kind::Insert, _) => Some((seq, 0)),
                (Kind::Update, Some((_, n))) => Some((seq, n + 1)),
                _ => None,
            };
        }
        let fate = match luck {
            0 | 1 => Fate::Unknown,
            _ if applied => Fate::Acked,
            _ if *kind == Kind::Insert => Fate::Refused,
            _ => Fate::NotFound,
        };
        // One without an answer may also be applied after it was given up.
        let end = if fate == Fate::Unknown { moment - before / 2 } else { moment + after };
        ops.push(op(*kind, fate, seq, moment - before, end));
    }
    (ops, state)
}

fn judged(initial: Option<u64>, ops: &[Op], found: State) -> Option<Wrong> {
    explain(initial, ops, found).err().map(|(wrong, _)| wrong)
}

use Fate::{Acked, Refused, Unknown};
use Kind::{Delete, Insert, Update};

#[test]
fn an_acknowledged_insert_that_is_not_there_is_lost() {
    assert_eq!(judged(None, &[op(Insert, Acked, 5, 0, 1)], None), Some(Wrong::Lost));
    assert_eq!(judged(None, &[op(Insert, Unknown, 5, 0, 1)], None), None);
    assert_eq!(judged(Some(0), &[], None), Some(Wrong::Lost));
}

#[test]
fn an_update_that_the_counter_lacks_is_lost() {
    let ops = [op(Update, Acked, 5, 0, 1), op(Update, Acked, 6, 2, 3)];
    assert_eq!(judged(Some(0), &ops, Some((6, 1))), Some(Wrong::Lost));
}

#[test]
fn a_deleted_document_that_is_there_is_resurrected() {
    let ops = [op(Update, Acked, 5, 0, 1), op(Delete, Acked, 6, 2, 3)];
    assert_eq!(judged(Some(0), &ops, Some((5, 1))), Some(Wrong::Resurrected));
    let again = [ops[0], ops[1], op(Insert, Acked, 7, 4, 5)];
    assert_eq!(judged(Some(0), &again, Some((5, 1))), Some(Wrong::Resurrected));
    assert_eq!(judged(Some(0), &again, Some((7, 0))), None);
}

#[test]
fn an_update_applied_twice_is_duplicated() {
    let ops = [op(Update, Acked, 5, 0, 1)];
    assert_eq!(judged(Some(0), &ops, Some((5, 2))), Some(Wrong::Duplicated));
}

#[test]
fn overwritten_content_is_stale() {
    let ops = [op(Update, Acked, 5, 0, 1), op(Update, Acked, 6, 2, 3)];
    assert_eq!(judged(Some(0), &ops, Some((5, 2))), Some(Wrong::Stale));
    assert_eq!(judged(Some(0), &ops, Some((0, 0))), Some(Wrong::Stale));
}

#[test]
fn overlapping_updates_may_have_happened_in_either_order() {
    let ops = [op(Update, Acked, 5, 0, 2), op(Update, Acked, 6, 2, 3)];
    assert_eq!(judged(Some(0), &ops, Some((5, 2))), None);
}

#[test]
fn an_update_without_an_answer_may_take_effect_long_after() {
    let ops = [op(Update, Unknown, 5, 0, 1), op(Update, Acked, 6, 50, 60)];
    assert_eq!(judged(Some(0), &ops, Some((5, 2))), None);
    assert_eq!(judged(Some(0), &ops, Some((5, 1))), Some(Wrong::Lost));
}

#[test]
fn content_of_a_refused_write_is_unknown() {
    let ops = [op(Update, Refused, 5, 0, 1)];
    assert_eq!(judged(Some(0), &ops, Some((5, 1))), Some(Wrong::Unknown));
    assert_eq!(judged(Some(0), &ops, Some((77, 0))), Some(Wrong::Unknown));
}

#[test]
fn acknowledgements_can_contradict_each_other() {
    let ops = [op(Insert, Acked, 5, 0, 1), op(Insert, Acked, 6, 2, 3)];
    for found in [None, Some((5, 0)), Some((6, 0))] {
        assert_eq!(judged(None, &ops, found), Some(Wrong::Contradictory));
    }
}

#[test]
fn more_overlap_than_the_bounds_allow_is_undecided() {
    let ops: Vec<Op> = (0..80).map(|i| op(Insert, Acked, i, 0, 100)).collect();
    assert_eq!(judged(None, &ops, None), Some(Wrong::Undecided));
}

#[test]
fn a_hot_key_with_many_lives_is_decided() {
    let mut ops = Vec::new();
    for life in 0..20_000u64 {
        let (seq, at) = (life * 10, life * 100);
        ops.push(op(Insert, Acked, seq, at, at + 20));
        ops.push(op(Update, Acked, seq + 1, at + 10, at + 30));
        ops.push(op(Update, Unknown, seq + 2, at + 30, at + 40));
        ops.push(op(
            Delete,
            if life % 100 == 0 { Unknown } else { Acked },
            seq + 3,
            at + 35,
            at + 50,
        ));
    }
    ops.push(op(Insert, Acked, 900_000, 3_000_000, 3_000_001));
    assert_eq!(judged(None, &ops, Some((900_000, 0))), None);
    assert_eq!(judged(None, &ops, Some((199_991, 1))), Some(Wrong::Resurrected));
}

fn header(preloaded: u64) -> Header {
    Header {
        imago_history: Header::VERSION,
        preloaded,
        reviews: Reviews::default(),
        id_form: IdForm::Text,
        model: Model::Documents,
        reads_are_current: false,
        namespace: "shop.reviews".into(),
        started_unix_ms: 0,
    }
}

fn check(preloaded: u64, ops: Vec<Op>, found: &[Found]) -> Verdict {
    let recorded = ops.len() as u64;
    let mut checker = Checker::new(History { header: header(preloaded), ops, recorded });
    found.iter().for_each(|found| checker.add_document(*found));
    checker.finish()
}

fn found(key: u64, seq: u64, n: u64) -> Found {
    Found { key, seq, n, intact: true }
}

#[test]
fn content_as_it_was_loaded_holds() {
    let verdict = check(3, Vec::new(), &[found(2, 2, 0), found(0, 0, 0), found(1, 1, 0)]);
    assert!(verdict.holds());
    assert_eq!((verdict.documents, verdict.keys), (3, 3));
}

#[test]
fn each_anomaly_is_named_by_its_key() {
    let updated = Op { key: 1, ..op(Update, Acked, 10, 0, 1) };
    let deleted = Op { key: 2, ..op(Delete, Acked, 11, 0, 1) };
    let content = [found(1, 1, 0), found(2, 2, 0), found(3, 3, 0), found(3, 3, 0), found(4, 4, 1)];
    let mut verdict = check(6, vec![updated, deleted], &content);
    verdict.named.sort_by(|a, b| a.id.cmp(&b.id));
    let named: Vec<_> = verdict.named.iter().map(|a| (a.id.as_str(), a.wrong)).collect();
    let expected = [
        ("review-000000000000", Wrong::Lost),
        ("review-000000000001", Wrong::Stale),
        ("review-000000000002", Wrong::Resurrected),
        ("review-000000000003", Wrong::Duplicated),
        ("review-000000000004", Wrong::Duplicated),
        ("review-000000000005", Wrong::Lost),
    ];
    assert_eq!(named, expected);
    assert_eq!(verdict.named[1].ops, [updated]);
}

#[test]
fn a_document_without_a_write_is_unknown() {
    let verdict = check(1, Vec::new(), &[found(0, 0, 0), found(7, 7, 0)]);
    assert_eq!(verdict.counts, Counts { unknown: 1, ..Counts::default() });
}

#[test]
fn a_document_with_foreign_fields_is_unknown() {
    let verdict = check(1, Vec::new(), &[Found { intact: false, ..found(0, 0, 0) }]);
    assert_eq!(verdict.counts, Counts { unknown: 1, ..Counts::default() });
}

#[test]
fn a_write_that_misses_an_existing_document_is_told() {
    let missed = op(Update, Fate::NotFound, 5, 10, 20);
    let read = op(Kind::Read, Fate::NotFound, 0, 10, 20);
    let verdict = check(1, vec![missed, read], &[found(0, 0, 0)]);
    assert_eq!(verdict.counts, Counts { missed: 1, missed_reads: 1, ..Counts::default() });
    let delete = op(Delete, Unknown, 6, 20, 21);
    assert!(check(1, vec![missed, delete], &[found(0, 0, 0)]).holds());
}

#[test]
fn counts_are_exact_where_examples_are_few() {
    let verdict = check(1000, Vec::new(), &[]);
    assert_eq!(verdict.counts.lost, 1000);
    assert_eq!(verdict.named.len(), 50);
}

#[test]
fn registers_are_judged_by_their_reads_and_their_end() {
    let judged = |reads_are_current: bool, found: u64| {
        let header = Header { model: Model::Registers, reads_are_current, ..header(1) };
        let mut old = op(Kind::Read, Acked, 0, 60, 70);
        old.key = 0;
        let ops =
            vec![op(Update, Acked, 81_003, 10, 20), op(Kind::Read, Acked, 81_003, 30, 40), old];
        let mut checker = Checker::new(History { header, ops, recorded: 3 });
        checker.add_document(Found { key: 0, seq: found, n: 0, intact: true });
        checker.finish().counts
    };
    let counts = judged(false, 81_003);
    assert_eq!((counts.anomalies(), counts.stale_reads), (0, 1), "an old row was read");
    let counts = judged(true, 81_003);
    assert_eq!((counts.stale, counts.anomalies(), counts.stale_reads), (1, 1, 1));
    let counts = judged(false, 0);
    assert_eq!((counts.stale, counts.anomalies()), (1, 1), "the update is gone");
    assert_eq!(judged(false, 4_711).unknown, 1);
}
