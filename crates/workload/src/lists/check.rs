//! The check: do a store's answers and its final content form a history of strong-session snapshot isolation?
//!
//! The final lists show the order of all appends to each. First each transaction is compared with them alone:
//! whether all or none of its appends are there, and whether each list that it read existed. Then a graph of
//! the order in which transactions must have happened is built and searched for cycles ([`super::graph`]).
//! Every step takes linear time in the number of elements that were read and written, apart from hashing.

use std::collections::{HashMap, HashSet};

use super::graph::{Graph, Hop, Link};
use super::{Element, History, Kind, List, Outcome, Step, Transaction, Verdict};

/// The transaction that appended a certain element, and the list that it appended to.
#[derive(Debug, Clone, Copy)]
struct Writer {
    transaction: usize,
    list: List,
    /// True if the same transaction later appended more elements to the list.
    is_intermediate: bool,
}

struct Check<'h> {
    history: &'h History,
    writers: HashMap<Element, Writer>,
    /// First position of each element in the final lists: the list, and the index in it.
    places: HashMap<Element, (List, usize)>,
    verdict: Verdict,
    /// Elements that were already reported as lost, so that each is reported once.
    lost: HashSet<Element>,
    graph: Graph,
}

/// Checks a history for strong-session snapshot isolation, and returns the verdict.
///
/// # Panics
/// Panics if an element was sent twice: such a history cannot be checked.
#[must_use]
pub fn check(history: &History) -> Verdict {
    let mut check = Check {
        history,
        writers: writers(history),
        places: HashMap::new(),
        verdict: Verdict::default(),
        lost: HashSet::new(),
        graph: Graph::new(history.transactions.len()),
    };
    check.lists();
    let mut has_happened = Vec::with_capacity(history.transactions.len());
    for (at, transaction) in history.transactions.iter().enumerate() {
        has_happened.push(check.appends(at, transaction));
    }
    for (at, transaction) in history.transactions.iter().enumerate() {
        if transaction.outcome == Outcome::Done {
            check.reads(at, transaction);
        }
    }
    check.add_write_write_edges();
    check.sessions(&has_happened);
    for (kind, hops) in check.graph.cycles() {
        let transactions = hops.iter().map(|hop| hop.from).collect();
        check.verdict.note(kind, in_words(&hops), transactions);
    }
    check.verdict
}

fn writers(history: &History) -> HashMap<Element, Writer> {
    let mut writers = HashMap::new();
    for (at, transaction) in history.transactions.iter().enumerate() {
        let mut lists = HashSet::new();
        for step in transaction.steps.iter().rev() {
            let Step::Append(list, element) = *step else { continue };
            let is_intermediate = !lists.insert(list);
            let before = writers.insert(element, Writer { transaction: at, list, is_intermediate });
            assert!(before.is_none(), "element {element} is sent twice");
        }
    }
    writers
}

fn in_words(hops: &[Hop]) -> String {
    let mut text = String::new();
    for Hop { from, link, list } in hops {
        let why = match link {
            Link::Ww => "is overwritten by",
            Link::Wr => "is seen by",
            Link::Rw => "misses what is appended by",
            Link::Session | Link::Within => "is in its session before",
        };
        let list = list.map_or_else(String::new, |list| format!(" ({})", list.name()));
        text += &format!("T{from} {why}{list} ");
    }
    text + &hops.first().map_or_else(String::new, |hop| format!("T{}", hop.from))
}

impl Check<'_> {
    fn outcome(&self, writer: Writer) -> Outcome {
        self.history.transactions[writer.transaction].outcome
    }

    /// Checks the final lists for duplicate and foreign elements, and records the position of each element.
    fn lists(&mut self) {
        for (list, content) in (0..).map(List).zip(&self.history.last) {
            for (place, &element) in content.iter().enumerate() {
                let name = list.name();
                if self.places.contains_key(&element) {
                    let why = format!("{element} is there again in {name}, at {place}");
                    self.verdict.note(Kind::Duplicated, why, Vec::new());
                    continue;
                }
                self.places.insert(element, (list, place));
                match self.writers.get(&element) {
                    Some(&writer) if writer.list == list => {
                        if self.outcome(writer) == Outcome::NotDone {
                            let why = format!("{element} is in {name}, of what was not done");
                            self.verdict.note(Kind::Resurrected, why, vec![writer.transaction]);
                        }
                    }
                    _ => {
                        let why = format!("{element} is in {name}, where no client sent it");
                        self.verdict.note(Kind::Resurrected, why, Vec::new());
                    }
                }
            }
        }
    }

    /// Counts the transaction with the index `at`, and checks that its appends are in order and that all or none of
    /// them happened. Returns true if the transaction happened.
    fn appends(&mut self, at: usize, transaction: &Transaction) -> bool {
        let verdict = &mut self.verdict;
        verdict.transactions += 1;
        match transaction.outcome {
            Outcome::Done => verdict.done += 1,
            Outcome::NotDone => verdict.not_done += 1,
            Outcome::Unknown => verdict.unknown += 1,
        }
        let is_done = transaction.outcome == Outcome::Done;
        let (mut found, mut missing) = (0, 0);
        let mut places: HashMap<List, usize> = HashMap::new();
        for step in &transaction.steps {
            let Step::Append(list, element) = *step else { continue };
            verdict.appends += u64::from(is_done);
            let Some(&(_, place)) = self.places.get(&element).filter(|(at, _)| *at == list) else {
                missing += 1;
                if is_done && self.lost.insert(element) {
                    let why = format!("{element} was acknowledged and is not in {}", list.name());
                    verdict.note(Kind::Lost, why, vec![at]);
                }
                continue;
            };
            found += 1;
            if places.insert(list, place).is_some_and(|before| before > place) {
                let why = format!("T{at} appended to {} in another order", list.name());
                verdict.note(Kind::Order, why, vec![at]);
            }
        }
        if transaction.outcome == Outcome::NotDone {
            return false;
        }
        if found > 0 && missing > 0 {
            let why = format!("{found} appends of T{at} are there, {missing} are not");
            verdict.note(Kind::Atomicity, why, vec![at]);
        }
        verdict.unknown_but_done += u64::from(!is_done && found > 0);
        is_done || found > 0
    }

    /// Checks the reads of the acknowledged transaction with the index `at`: each must show the elements of other
    /// transactions, the same ones each time, and after them the transaction's own.
    fn reads(&mut self, at: usize, transaction: &Transaction) {
        let mut answers = transaction.reads.iter();
        let mut own: HashMap<List, Vec<Element>> = HashMap::new();
        let mut others: HashMap<List, &[Element]> = HashMap::new();
        for step in &transaction.steps {
            let list = match *step {
                Step::Append(list, element) => {
                    own.entry(list).or_default().push(element);
                    continue;
                }
                Step::Read(list) => list,
            };
            let Some(answer) = answers.next() else {
                let why = format!("T{at} has no answer for {}", list.name());
                self.verdict.note(Kind::Internal, why, vec![at]);
                return;
            };
            let own = own.get(&list).map_or(&[][..], Vec::as_slice);
            let Some(seen) = answer.strip_suffix(own) else {
                let why = format!("T{at} did not see in {} what it had appended", list.name());
                self.verdict.note(Kind::Internal, why, vec![at]);
                continue;
            };
            match others.get(&list) {
                None => {
                    others.insert(list, seen);
                    self.read(at, list, seen);
                }
                Some(before) if *before == seen => {}
                Some(_) => {
                    let why = format!("T{at} saw two states of {}", list.name());
                    self.verdict.note(Kind::Internal, why, vec![at]);
                }
            }
        }
    }

    /// Checks the elements `seen` that transaction `at` read in `list`, without its own, and adds the dependencies
    /// that follow.
    fn read(&mut self, at: usize, list: List, seen: &[Element]) {
        let name = list.name();
        let writers = seen.iter().filter_map(|element| self.writers.get(element));
        let mut aborted: Vec<usize> = writers
            .filter(|writer| self.outcome(**writer) == Outcome::NotDone)
            .map(|writer| writer.transaction)
            .collect();
        aborted.dedup();
        for writer in aborted {
            let why = format!("T{at} saw in {name} what T{writer} appended, which was not done");
            self.verdict.note(Kind::G1a, why, vec![at, writer]);
        }
        let last = self.history.last.get(list.0 as usize).map_or(&[][..], Vec::as_slice);
        if !last.starts_with(seen) {
            return self.report_misread(at, list, seen, last);
        }
        if let Some(writer) = seen.last().and_then(|element| self.writers.get(element)).copied() {
            if writer.transaction == at {
                let why = format!("T{at} saw in {name} what it appended later");
                self.verdict.note(Kind::Internal, why, vec![at]);
            } else {
                if writer.is_intermediate {
                    let why = format!("T{at} saw {name} as T{} was about it", writer.transaction);
                    self.verdict.note(Kind::G1b, why, vec![at, writer.transaction]);
                }
                self.graph.add_dependency(writer.transaction, at, Link::Wr, Some(list));
            }
        }
        let next = last.get(seen.len()).and_then(|element| self.writers.get(element));
        if let Some(writer) = next.filter(|writer| writer.transaction != at) {
            self.graph.add_antidependency(at, writer.transaction, list);
        }
    }

    /// Reports the anomaly of a read whose elements `seen` are not a prefix of `last`, the final content of `list`.
    fn report_misread(&mut self, at: usize, list: List, seen: &[Element], last: &[Element]) {
        let name = list.name();
        let mut met = HashSet::new();
        let first_wrong = seen
            .iter()
            .enumerate()
            .find(|(place, element)| !met.insert(**element) || last.get(*place) != Some(*element));
        let Some((place, &element)) = first_wrong else { return };
        let (kind, why) = match self.writers.get(&element) {
            _ if seen[..place].contains(&element) => (Kind::Duplicated, "twice"),
            None => (Kind::Resurrected, "which no client sent"),
            Some(writer) if writer.list != list => (Kind::Resurrected, "which is of another list"),
            // This anomaly was already reported.
            Some(writer) if self.outcome(*writer) == Outcome::NotDone => return,
            Some(_) if self.places.contains_key(&element) => (Kind::Order, "at another place"),
            Some(_) if !self.lost.insert(element) => return,
            Some(_) => (Kind::Lost, "which is gone"),
        };
        self.verdict.note(kind, format!("T{at} saw in {name} {element}, {why}"), vec![at]);
    }

    fn add_write_write_edges(&mut self) {
        for (list, content) in (0..).map(List).zip(&self.history.last) {
            let mut writers = content.iter().filter_map(|element| self.writers.get(element));
            let Some(mut before) = writers.next() else { continue };
            for writer in writers {
                if writer.transaction != before.transaction {
                    let (one, other) = (before.transaction, writer.transaction);
                    self.graph.add_dependency(one, other, Link::Ww, Some(list));
                }
                before = writer;
            }
        }
    }

    /// Adds edges from the acknowledged transactions of a session to its later transactions that happened.
    fn sessions(&mut self, has_happened: &[bool]) {
        let mut done: HashMap<u32, usize> = HashMap::new();
        for (at, transaction) in self.history.transactions.iter().enumerate() {
            if !has_happened[at] {
                continue;
            }
            if let Some(&before) = done.get(&transaction.session) {
                self.graph.add_dependency(before, at, Link::Session, None);
            }
            if transaction.outcome == Outcome::Done {
                done.insert(transaction.session, at);
            }
        }
    }
}
