//! A store in a few lines that keeps to strong-session snapshot isolation: a transaction commits
//! only if no other one appended to the same list since its snapshot. And a function that spoils
//! its history.

use std::collections::HashMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::super::{Element, History, List, Outcome, Step, Transaction};

#[derive(Clone, Copy)]
pub struct Size {
    pub sessions: u32,
    pub transactions: u32,
    pub lists: u32,
}

/// A transaction under way: its reads, and the lengths of the lists at its snapshot.
struct Open {
    transaction: Transaction,
    lengths: Vec<usize>,
}

pub fn run(seed: u64, size: Size) -> History {
    let mut random = StdRng::seed_from_u64(seed);
    let mut lists: Vec<Vec<Element>> = vec![Vec::new(); size.lists as usize];
    let mut open: HashMap<u32, Open> = HashMap::new();
    let mut of_sessions: HashMap<u32, Vec<Transaction>> = HashMap::new();
    // Numbers of the sessions that go on: an unknown outcome ends one.
    let mut numbers: Vec<u32> = (0..size.sessions).collect();
    let (mut next, mut element, mut begun) = (size.sessions, 1, 0);
    while begun < size.transactions || !open.is_empty() {
        let at = random.random_range(0..numbers.len());
        let session = numbers[at];
        let Some(Open { mut transaction, lengths }) = open.remove(&session) else {
            if begun < size.transactions {
                begun += 1;
                let steps = steps(&mut random, size.lists, &mut element);
                let reads = reads(&steps, &lists);
                let outcome = Outcome::Done;
                let transaction =
                    Transaction { session, steps, outcome, reads, began_ns: 0, ended_ns: 0 };
                let lengths = lists.iter().map(Vec::len).collect();
                open.insert(session, Open { transaction, lengths });
            }
            continue;
        };
        let appends = appends(&transaction.steps);
        let is_first = appends
            .iter()
            .all(|(list, _)| lists[list.0 as usize].len() == lengths[list.0 as usize]);
        if is_first {
            for (list, element) in appends {
                lists[list.0 as usize].push(element);
            }
        } else {
            transaction.outcome = Outcome::NotDone;
        }
        if random.random_bool(0.1) {
            transaction.outcome = Outcome::Unknown;
            numbers[at] = next;
            next += 1;
        }
        if transaction.outcome != Outcome::Done {
            transaction.reads.clear();
        }
        of_sessions.entry(session).or_default().push(transaction);
    }
    let mut sessions: Vec<_> = of_sessions.into_iter().collect();
    sessions.sort_unstable_by_key(|(session, _)| *session);
    let transactions = sessions.into_iter().flat_map(|(_, transactions)| transactions).collect();
    History { transactions, last: lists }
}

pub fn appends(steps: &[Step]) -> Vec<(List, Element)> {
    let append = |step: &Step| match *step {
        Step::Append(list, element) => Some((list, element)),
        Step::Read(_) => None,
    };
    steps.iter().filter_map(append).collect()
}

/// The reads of a transaction, given these lists.
pub fn reads(steps: &[Step], lists: &[Vec<Element>]) -> Vec<Vec<Element>> {
    let mut own = lists.to_vec();
    let mut reads = Vec::new();
    for step in steps {
        match *step {
            Step::Append(list, element) => own[list.0 as usize].push(element),
            Step::Read(list) => reads.push(own[list.0 as usize].clone()),
        }
    }
    reads
}

fn steps(random: &mut StdRng, lists: u32, element: &mut Element) -> Vec<Step> {
    let step = |random: &mut StdRng| {
        let list = List(random.random_range(0..lists));
        if random.random_bool(0.5) {
            return Step::Read(list);
        }
        *element += 1;
        Step::Append(list, *element)
    };
    let mut step = step;
    (0..random.random_range(1..=3)).map(|_| step(random)).collect()
}

/// Changes a few answers, or the lists at the end. It may still be a history that could have been.
pub fn spoil(seed: u64, history: &mut History) {
    let mut random = StdRng::seed_from_u64(seed ^ 0x5eed);
    for _ in 0..random.random_range(0..=2) {
        let at = random.random_range(0..history.transactions.len());
        let transaction = &mut history.transactions[at];
        match random.random_range(0..8) {
            0 => transaction.outcome = Outcome::NotDone,
            1 if transaction.outcome == Outcome::Unknown => {
                transaction.outcome = Outcome::Done;
                transaction.reads = reads(&transaction.steps, &history.last);
            }
            2..=5 if !transaction.reads.is_empty() => {
                let read = random.random_range(0..transaction.reads.len());
                let seen = &mut transaction.reads[read];
                if random.random_bool(0.7) {
                    seen.pop();
                } else {
                    let all = &history.last[random.random_range(0..history.last.len())];
                    seen.clone_from(all);
                }
            }
            6 => {
                let list = random.random_range(0..history.last.len());
                let content = &mut history.last[list];
                if content.len() > 1 {
                    let place = random.random_range(1..content.len());
                    content.swap(place - 1, place);
                }
            }
            _ => {
                let list = random.random_range(0..history.last.len());
                history.last[list].pop();
            }
        }
        let transaction = &mut history.transactions[at];
        if transaction.outcome != Outcome::Done {
            transaction.reads.clear();
        }
    }
}
