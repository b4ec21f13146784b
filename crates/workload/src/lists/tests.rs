//! Histories by hand, each with one thing wrong; and by a model that does nothing wrong, or whose answers
//! are then changed, held against an oracle that tries everything.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;

mod model;
mod oracle;

/// A history in short. Each line is a transaction: its session, `!` if it was not done, `?` if that is
/// unknown, then its steps: `0+7` appends 7 to list 0, `0=1,2` read 1 and 2 in it. The rest are the lists at
/// the end.
fn history(lines: &str, last: &[&str]) -> History {
    let numbers = |text: &str| -> Vec<Element> {
        text.split(',').filter(|one| !one.is_empty()).map(|one| one.parse().unwrap()).collect()
    };
    let transactions = lines.lines().map(str::trim).filter(|line| !line.is_empty()).map(|line| {
        let mut words = line.split_whitespace();
        let who = words.next().unwrap();
        let outcome = match who.chars().last() {
            Some('!') => Outcome::NotDone,
            Some('?') => Outcome::Unknown,
            _ => Outcome::Done,
        };
        let (mut steps, mut reads) = (Vec::new(), Vec::new());
        for word in words {
            if let Some((list, element)) = word.split_once('+') {
                steps.push(Step::Append(List(list.parse().unwrap()), element.parse().unwrap()));
            } else {
                let (list, seen) = word.split_once('=').unwrap();
                steps.push(Step::Read(List(list.parse().unwrap())));
                reads.push(numbers(seen));
            }
        }
        let session = who.trim_end_matches(['!', '?']).parse().unwrap();
        Transaction { session, steps, outcome, reads, began_ns: 0, ended_ns: 0 }
    });
    let transactions = transactions.collect();
    History { transactions, last: last.iter().map(|list| numbers(list)).collect() }
}

/// Asserts the findings of the check, with the transactions of the first example of each kind.
#[track_caller]
fn finds(lines: &str, last: &[&str], expected: &[(Kind, &[usize])]) {
    let history = history(lines, last);
    let verdict = check(&history);
    let found: Vec<_> =
        verdict.named.iter().map(|one| (one.kind, one.transactions.as_slice())).collect();
    assert_eq!(found, expected, "{:?}", verdict.named);
    let opinion = cross_check(&history);
    if expected.is_empty() {
        assert!(!matches!(opinion, CrossCheck::Unsound(_)), "{opinion:?}");
    } else if expected.iter().any(|(kind, _)| kind.is_of_isolation()) {
        assert!(matches!(opinion, CrossCheck::Unsound(_)), "{opinion:?}");
    }
}

#[test]
fn what_snapshot_isolation_allows_is_no_anomaly() {
    finds("1 0+1\n2 0=1 0+2 0=1,2\n1 0=1,2 1=", &["1,2", ""], &[]);
    // Write skew.
    finds("1 0= 1= 0+1\n2 0= 1= 1+2", &["1", "2"], &[]);
    // A session need not see changes that another one had acknowledged before.
    finds("1 0+1\n2 0=", &["1"], &[]);
    // It is not known whether it happened, and either is right.
    finds("1? 0+1 1+2\n2 0=", &["", ""], &[]);
    finds("1? 0+1 1+2\n2 0=1", &["1", "2"], &[]);
    finds("1! 0+1", &[""], &[]);
}

#[test]
fn an_acknowledged_append_that_is_gone_is_lost() {
    finds("1 0+1\n2 0+2", &["2"], &[(Kind::Lost, &[0])]);
    finds("1? 0+1\n2 0=1", &[""], &[(Kind::Lost, &[1])]);
}

#[test]
fn an_append_of_what_did_not_happen_is_resurrected() {
    finds("1! 0+1", &["1"], &[(Kind::Resurrected, &[0])]);
    finds("1 0+1", &["1,9"], &[(Kind::Resurrected, &[])]);
    let found: &[(Kind, &[usize])] =
        &[(Kind::Resurrected, &[]), (Kind::Lost, &[0]), (Kind::Atomicity, &[0])];
    finds("1 0+1 1+2", &["1,2", ""], found);
}

#[test]
fn an_element_that_is_there_twice_is_duplicated() {
    finds("1 0+1", &["1,1"], &[(Kind::Duplicated, &[])]);
    finds("1 0+1\n2 0=1,1", &["1"], &[(Kind::Duplicated, &[1])]);
}

#[test]
fn a_part_of_a_transaction_is_an_anomaly() {
    finds("1? 0+1 1+2", &["1", ""], &[(Kind::Atomicity, &[0])]);
    finds("1 0+1 1+2", &["", "2"], &[(Kind::Lost, &[0]), (Kind::Atomicity, &[0])]);
}

#[test]
fn an_order_that_changes_is_an_anomaly() {
    finds("1 0+1\n2 0+2\n3 0=2", &["1,2"], &[(Kind::Order, &[2])]);
    finds("1 0+1 0+2\n2 0=", &["2,1"], &[(Kind::Order, &[0])]);
}

#[test]
fn a_transaction_that_contradicts_itself_is_an_anomaly() {
    finds("1 0+1\n2 0=1 0=", &["1"], &[(Kind::Internal, &[1])]);
    finds("1 0+1 0=", &["1"], &[(Kind::Internal, &[0])]);
    finds("1 0=1 0+1", &["1"], &[(Kind::Internal, &[0])]);
}

#[test]
fn a_read_of_what_did_not_happen_is_g1a() {
    finds("1! 0+1\n2 0=1", &[""], &[(Kind::G1a, &[1, 0])]);
}

#[test]
fn a_read_of_half_a_transaction_is_g1b() {
    let found: &[(Kind, &[usize])] = &[(Kind::G1b, &[1, 0]), (Kind::GSingle, &[0, 1])];
    finds("1 0+1 0+2\n2 0=1", &["1,2"], found);
}

#[test]
fn writes_in_two_orders_are_g0() {
    finds("1 0+1 1+2\n2 0+3 1+4\n3 0=1,3 1=4,2", &["1,3", "4,2"], &[(Kind::G0, &[0, 1])]);
}

#[test]
fn two_that_saw_each_other_are_g1c() {
    finds("1 0+1 1=2\n2 1+2 0=1", &["1", "2"], &[(Kind::G1c, &[0, 1])]);
}

#[test]
fn read_skew_is_g_single() {
    finds("1 0+1 1+2\n2 0=1 1=", &["1", "2"], &[(Kind::GSingle, &[0, 1])]);
}

#[test]
fn two_that_append_to_what_both_read_lose_an_update() {
    finds("1 0= 0+1\n2 0= 0+2", &["1,2"], &[(Kind::LostUpdate, &[0, 1])]);
}

#[test]
fn two_that_saw_two_others_in_two_orders_are_a_long_fork() {
    let lines = "1 0+1\n2 1+2\n3 0=1 1=\n4 0= 1=2";
    finds(lines, &["1", "2"], &[(Kind::GNonadjacent, &[0, 2, 1, 3])]);
}

#[test]
fn a_session_that_does_not_see_what_it_did_or_saw_is_broken() {
    finds("1 0+1\n1 0=", &["1"], &[(Kind::Session, &[0, 1])]);
    finds("1 0+1\n2 0=1\n2 0=", &["1"], &[(Kind::Session, &[0, 1, 2])]);
    // Through another session's view of it.
    let lines = "1 0+1\n1 1+2\n2 1=2 0=";
    finds(lines, &["1", "2"], &[(Kind::Session, &[0, 1, 2])]);
}

#[test]
fn a_transaction_of_unknown_outcome_does_not_bind_its_session() {
    finds("1? 0+1\n2 0=1", &["1"], &[]);
    // But it happens behind the transactions that were acknowledged before.
    finds("1 0+1\n1? 0= 1+2\n2 1=2 0=", &["1", "2"], &[(Kind::Session, &[0, 1, 2])]);
}

#[test]
fn of_a_knot_the_worst_is_named_and_its_smallest_cycle() {
    let lines = "1 0+1 1+2\n2 0=1 1=\n3 0=1 2+3\n4 2=3 1=";
    finds(lines, &["1", "2", "3"], &[(Kind::GSingle, &[0, 1])]);
}

#[test]
fn a_value_is_a_list_or_not() {
    let list = [written(7), written(12)].concat();
    assert_eq!(elements(list.as_bytes()), Some(vec![7, 12]));
    assert_eq!(elements(b""), Some(vec![]));
    for torn in ["7", "7,,", "7,a,", ",", "7, 8,"] {
        assert_eq!(elements(torn.as_bytes()), None, "{torn}");
    }
}

#[test]
fn draws_of_a_seed_repeat_and_each_element_is_used_once() {
    let draws = || {
        let pool = std::sync::Arc::new(Pool::default());
        let mut generator = Generator::new(7, 3, pool.clone());
        let drawn: Vec<Request> = (0..20_000).map(|_| generator.draw()).collect();
        (drawn, pool.lists())
    };
    let (drawn, lists) = draws();
    assert_eq!((drawn.clone(), lists), draws());
    let appended = drawn.iter().flat_map(|request| &request.steps).filter_map(|step| match step {
        Step::Append(list, element) => Some((*element, *list)),
        Step::Read(_) => None,
    });
    let appended: Vec<_> = appended.collect();
    assert!(appended.is_sorted_by(|one, other| one.0 < other.0));
    assert!(appended.iter().all(|(_, list)| list.0 < lists));
    assert!(lists > 10 * LISTS, "lists are followed by others");
}

#[test]
fn what_a_correct_model_answers_is_sound() {
    for seed in 0..20 {
        let history = model::run(seed, model::Size { sessions: 6, transactions: 400, lists: 5 });
        let verdict = check(&history);
        assert!(verdict.holds(), "seed {seed}: {:?}", verdict.named);
        assert!(verdict.done > 100 && verdict.unknown > 5 && verdict.not_done > 5, "{verdict:?}");
        assert_eq!(cross_check(&history), CrossCheck::Sound, "seed {seed}");
    }
}

#[test]
fn the_check_says_what_trying_every_execution_says() {
    let (mut sound, mut unsound) = (0, 0);
    for seed in 0..4_000 {
        let size = model::Size { sessions: 2 + seed as u32 % 2, transactions: 5, lists: 2 };
        let mut history = model::run(seed, size);
        model::spoil(seed, &mut history);
        let verdict = check(&history);
        let is_possible = oracle::is_possible(&history);
        assert_eq!(verdict.holds(), is_possible, "seed {seed}: {history:#?} {:#?}", verdict.named);
        match cross_check(&history) {
            CrossCheck::Unsound(names) => {
                assert!(!is_possible, "seed {seed}: {names:?} in {history:#?}");
            }
            CrossCheck::Sound | CrossCheck::None(_) => {
                let blind = verdict.counts.keys().any(|kind| !kind.is_of_isolation());
                assert!(is_possible || blind, "seed {seed}: {history:#?} {:#?}", verdict.named);
            }
        }
        *(if is_possible { &mut sound } else { &mut unsound }) += 1;
    }
    assert!(sound > 500 && unsound > 500, "{sound} sound, {unsound} not");
}
