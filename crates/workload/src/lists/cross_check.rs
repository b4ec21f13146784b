//! A cross-check of a history by an independent checker: `adya`, a new implementation of Elle's checks.
//!
//! That checker does not know that the final read comes after everything else; it treats it as a transaction like any
//! other. It does not detect lost elements or elements without an author, but must agree on anomalies of isolation. A
//! transaction that happened although its session did not learn so is presented to the checker as an acknowledged one
//! that only appended: otherwise the checker would not include it in the session.

use std::collections::HashSet;
use std::time::Duration;

use adya::history::{Interner, Mop, Op, OpType, ReadValue, Scalar};
use adya::{Opts, Valid, Workload};

use super::{Element, History, List, Outcome, Step, Transaction};

const MODEL: &str = "strong-session-snapshot-isolation";
/// Time limit of the search for a cycle in each strongly connected component of transactions.
const CYCLE_SEARCH_MAX: Duration = Duration::from_secs(5);

/// The result of the independent checker `adya` for a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CrossCheck {
    /// The checker found no anomalies.
    Sound,
    /// The checker found anomalies, with these names.
    Unsound(Vec<String>),
    /// The checker has no result, because no transaction depends on another or the search took too long; it names
    /// these anomalies.
    None(Vec<String>),
}

/// Checks a history with the independent checker `adya`.
#[must_use]
pub fn cross_check(history: &History) -> CrossCheck {
    let mut encoder = HistoryEncoder::default();
    let there: HashSet<Element> = history.last.iter().flatten().copied().collect();
    for Transaction { session, steps, outcome, reads, .. } in &history.transactions {
        let is_append = |step: &&Step| matches!(step, Step::Append(..));
        let is_there =
            |step: &Step| matches!(step, Step::Append(_, element) if there.contains(element));
        match outcome {
            Outcome::Done => encoder.push_transaction(*session, OpType::Ok, steps, reads),
            Outcome::NotDone => encoder.push_transaction(*session, OpType::Fail, steps, &[]),
            Outcome::Unknown if steps.iter().any(is_there) => {
                let appends: Vec<Step> = steps.iter().filter(is_append).copied().collect();
                encoder.push_transaction(*session, OpType::Ok, &appends, &[]);
            }
            Outcome::Unknown => encoder.push_transaction(*session, OpType::Info, steps, &[]),
        }
    }
    let lists = (0..).map(List).zip(&history.last).filter(|(_, content)| !content.is_empty());
    let (steps, reads): (Vec<_>, Vec<_>) =
        lists.map(|(list, content)| (Step::Read(list), content.clone())).unzip();
    let sessions = history.transactions.iter().map(|transaction| transaction.session + 1);
    encoder.push_transaction(sessions.max().unwrap_or_default(), OpType::Ok, &steps, &reads);

    let HistoryEncoder { ops, interner } = encoder;
    let options = Opts { models: vec![MODEL.into()], timeout: CYCLE_SEARCH_MAX, ..Opts::default() };
    let history = adya::History::from_ops(ops, interner);
    let report = adya::check(&history, Workload::ListAppend, &options);
    match report.valid {
        Valid::True => CrossCheck::Sound,
        Valid::False => CrossCheck::Unsound(report.anomaly_types),
        Valid::Unknown => CrossCheck::None(report.anomaly_types),
    }
}

/// A history in the format of the checker `adya`.
#[derive(Default)]
struct HistoryEncoder {
    ops: Vec<Op>,
    interner: Interner,
}

impl HistoryEncoder {
    fn push_transaction(
        &mut self,
        session: u32,
        kind: OpType,
        steps: &[Step],
        reads: &[Vec<Element>],
    ) {
        let mut answers = reads.iter();
        let (mut asked, mut answered) = (Vec::new(), Vec::new());
        for step in steps {
            match *step {
                Step::Append(list, element) => {
                    let (key, value) = (self.list(list), self.element(element));
                    asked.push(Mop::Append { key, value });
                    answered.push(Mop::Append { key, value });
                }
                Step::Read(list) => {
                    let key = self.list(list);
                    let seen = answers.next().map_or(ReadValue::Nil, |seen| {
                        ReadValue::List(seen.iter().map(|&element| self.element(element)).collect())
                    });
                    asked.push(Mop::Read { key, value: ReadValue::Nil });
                    answered.push(Mop::Read { key, value: seen });
                }
            }
        }
        for (kind, value) in [(OpType::Invoke, asked), (kind, answered)] {
            let (index, process) = (self.ops.len() as u64, Some(i64::from(session)));
            self.ops.push(Op { index, kind, process, value, time: None });
        }
    }

    fn list(&mut self, list: List) -> u32 {
        self.interner.intern(Scalar::Str(list.name()))
    }

    fn element(&mut self, element: Element) -> u32 {
        self.interner.intern(Scalar::Int(element.into()))
    }
}
