//! The oracle for tiny histories: every way in which the transactions could have taken their
//! snapshots and committed is tried. Too slow for more than a handful, and it knows of no
//! dependencies.

use super::super::{Element, History, Outcome};
use super::model::{appends, reads};

#[derive(Clone)]
enum State {
    Waits,
    /// The lengths of the lists at its snapshot.
    Open(Vec<usize>),
    Ended,
}

struct World<'h> {
    history: &'h History,
    lists: Vec<Vec<Element>>,
    states: Vec<State>,
}

pub fn is_possible(history: &History) -> bool {
    let states = history.transactions.iter().map(|transaction| match transaction.outcome {
        Outcome::NotDone => State::Ended,
        Outcome::Done | Outcome::Unknown => State::Waits,
    });
    let lists = vec![Vec::new(); history.last.len()];
    World { history, lists, states: states.collect() }.can_end()
}

impl World<'_> {
    /// True if it can go on from here to the end of the history.
    fn can_end(&mut self) -> bool {
        let transactions = &self.history.transactions;
        let is_over = self.states.iter().zip(transactions).all(|(state, transaction)| {
            matches!(state, State::Ended) || transaction.outcome == Outcome::Unknown
        });
        if is_over && self.lists == self.history.last {
            return true;
        }
        if self.lists.iter().zip(&self.history.last).any(|(now, last)| !last.starts_with(now)) {
            return false;
        }
        (0..transactions.len()).any(|at| match self.states[at].clone() {
            State::Waits => self.may_begin(at) && self.with(at, Self::begin),
            State::Open(_) => self.with(at, Self::commit),
            State::Ended => false,
        })
    }

    fn may_begin(&self, at: usize) -> bool {
        let transactions = &self.history.transactions;
        let session = transactions[at].session;
        (0..at).all(|before| {
            transactions[before].session != session
                || transactions[before].outcome != Outcome::Done
                || matches!(self.states[before], State::Ended)
        })
    }

    /// Tries a step, and takes it back.
    fn with(&mut self, at: usize, step: fn(&mut Self, usize) -> bool) -> bool {
        let (lists, states) = (self.lists.clone(), self.states.clone());
        let can_end = step(self, at) && self.can_end();
        (self.lists, self.states) = (lists, states);
        can_end
    }

    fn begin(&mut self, at: usize) -> bool {
        let transaction = &self.history.transactions[at];
        let has_appends = !appends(&transaction.steps).is_empty();
        self.states[at] = match has_appends {
            true => State::Open(self.lists.iter().map(Vec::len).collect()),
            false => State::Ended,
        };
        transaction.outcome == Outcome::Unknown
            || reads(&transaction.steps, &self.lists) == transaction.reads
    }

    fn commit(&mut self, at: usize) -> bool {
        let State::Open(lengths) = std::mem::replace(&mut self.states[at], State::Ended) else {
            return false;
        };
        let appends = appends(&self.history.transactions[at].steps);
        let place = |list: super::super::List| list.0 as usize;
        let is_first =
            appends.iter().all(|(list, _)| self.lists[place(*list)].len() == lengths[place(*list)]);
        for (list, element) in appends {
            self.lists[place(list)].push(element);
        }
        is_first
    }
}
