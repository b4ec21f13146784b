//! The transactions of the simulated clients. Where a planner changes the design they are tried again until they have
//! an outcome, as a router does it: by the newest design, behind steps that bring their partitions together if no site
//! has them.

use rand::RngExt;
use rand::rngs::StdRng;

use super::super::*;
use super::simulation::{KEYS, Known, Outcome, PATIENCE_MS, SITES, Simulation, key};
use crate::engine::move_locks::{overlap, ranges_of};
use crate::key::{KeyRange, Value};
use crate::router::{MostMastered, Route, Step, route};
use crate::transaction::View;

/// What a client wants.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub reads: Vec<KeyRange>,
    pub writes: Vec<Key>,
    deletes: bool,
    pub since_ms: u64,
}

/// The steps for a transaction that no site could run: of one at a time for each partition.
pub(super) struct Move {
    session: usize,
    /// The keys of the partitions that it needs.
    ranges: Vec<KeyRange>,
    /// The one under way, and since when.
    step: Option<(Ticket, u64)>,
}

impl Simulation {
    pub(super) fn transact(&mut self) {
        let session = self.dice.random_range(0..self.sessions.len());
        if self.sessions[session].1.is_none() {
            match self.planner {
                None => self.transact_once(session),
                Some(_) if self.is_ending && self.wishes[session].is_none() => {}
                Some(_) => self.transact_on(session),
            }
        }
    }

    /// A transaction that is asked for once, wherever it fits, or anywhere.
    fn transact_once(&mut self, session: usize) {
        let some = |dice: &mut StdRng, most: usize| -> Vec<Key> {
            let many = dice.random_range(0..=most);
            (0..many).map(|_| key(dice.random_range(0..KEYS))).collect()
        };
        let mut writes = some(&mut self.dice, 2);
        writes.sort();
        writes.dedup();
        let mut reads: Vec<KeyRange> = some(&mut self.dice, 3).iter().map(KeyRange::only).collect();
        if self.dice.random_range(0..5) == 0 {
            let (from, to) = (self.dice.random_range(0..KEYS), self.dice.random_range(0..KEYS));
            reads.push(KeyRange { start: key(from.min(to)), end: Some(key(from.max(to) + 1)) });
        }
        let deletes = self.dice.random_range(0..6) == 0;
        let wish = Wish { reads, writes, deletes, since_ms: self.now_ms };
        let is_distributed = self.dice.random_range(0..3) > 0;
        let fitting: Vec<u16> = (0..SITES).filter(|site| self.fits(&wish, Site(*site))).collect();
        let at = match fitting.as_slice() {
            [] => self.dice.random_range(0..SITES),
            sites => sites[self.dice.random_range(0..sites.len())],
        };
        if self.hosts[usize::from(at)].core.is_some() {
            self.run(session, at, wish, is_distributed);
        }
    }

    fn fits(&self, wish: &Wish, site: Site) -> bool {
        let read = || wish.reads.iter().flat_map(|range| self.design.within(range));
        wish.writes.iter().all(|key| self.design.of(key).master == site)
            && read().all(|partition| partition.is_at(site))
    }

    /// Goes on with what a session wants: one attempt, or one step towards a design in which it can be done.
    fn transact_on(&mut self, session: usize) {
        let wish = match self.wishes[session].clone() {
            Some(wish) => wish,
            None => self.wish(session),
        };
        self.wishes[session] = Some(wish.clone());
        match route(&self.design, &MostMastered, &wish.reads, &wish.writes, None, |_| 0) {
            Route::Run(Site(at)) => {
                if self.hosts[usize::from(at)].core.is_some() {
                    // A router lets others have the partitions once the transaction is sent, or once it has run.
                    if self.dice.random_range(0..2) == 0 {
                        self.moves.retain(|one| one.session != session);
                    }
                    self.run(session, at, wish, false);
                }
            }
            // By its pins it cannot be done.
            Route::Never(_) => self.end_wish(session),
            Route::First(step) => self.step_for(session, &wish, step),
        }
    }

    /// A transaction as sessions have them for a while: of keys that belong together.
    fn wish(&mut self, session: usize) -> Wish {
        let groups = 4;
        let phase = self.now_ms / 500;
        let group = u8::try_from((session as u64 + phase) % u64::from(groups)).unwrap();
        // Neighbours in one phase, keys from all over the table in the next.
        let of_group =
            |n: u8| if phase.is_multiple_of(2) { group * 3 + n } else { group + groups * n };
        let draw = |dice: &mut StdRng| key(of_group(dice.random_range(0..KEYS / groups)));
        let mut writes: Vec<Key> =
            (0..self.dice.random_range(0..=2)).map(|_| draw(&mut self.dice)).collect();
        writes.sort();
        writes.dedup();
        let mut reads: Vec<KeyRange> = (0..self.dice.random_range(0..=2))
            .map(|_| KeyRange::only(&draw(&mut self.dice)))
            .collect();
        if self.dice.random_range(0..20) == 0 {
            let (from, to) = (self.dice.random_range(0..KEYS), self.dice.random_range(0..KEYS));
            reads.push(KeyRange { start: key(from.min(to)), end: Some(key(from.max(to) + 1)) });
        }
        let deletes = self.dice.random_range(0..6) == 0;
        Wish { reads, writes, deletes, since_ms: self.now_ms }
    }

    fn step_for(&mut self, session: usize, wish: &Wish, step: Step) {
        let (now_ms, steps) = (self.now_ms, &self.steps);
        let mine = self.moves.iter().position(|one| one.session == session);
        let mine = mine.unwrap_or_else(|| {
            let ranges = ranges_of(&self.design, &wish.reads, &wish.writes);
            self.moves.push(Move { session, ranges, step: None });
            self.moves.len() - 1
        });
        let (earlier, mine) = (&self.moves[..mine], &self.moves[mine]);
        if earlier.iter().any(|one| overlap(&one.ranges, &mine.ranges)) {
            return;
        }
        // A site that died does not answer.
        let is_open = |(ticket, since_ms): &(Ticket, u64)| {
            !steps.contains_key(ticket) && now_ms < since_ms + 2 * PATIENCE_MS
        };
        if mine.step.as_ref().is_some_and(is_open) {
            return;
        }
        if let Some(ticket) = self.take_step(step) {
            let mine = self.moves.iter_mut().find(|one| one.session == session);
            mine.expect("it was found").step = Some((ticket, now_ms));
        }
    }

    /// Hands a step in at its site, if that has what the steps before did.
    pub(super) fn take_step(&mut self, step: Step) -> Option<Ticket> {
        let (Step::InstallReplica(site, _) | Step::Change(site, _)) = &step;
        let at = usize::from(site.0);
        let core = self.hosts[at].core.as_ref();
        if core.is_none_or(|core| core.known() < self.stepped) {
            return None;
        }
        let ticket = self.next;
        self.next += 1;
        let until_ms = self.clock_ms(at) + PATIENCE_MS;
        self.tell(
            at,
            match step {
                Step::InstallReplica(_, start) => Input::InstallReplica(ticket, start, until_ms),
                Step::Change(_, change) => Input::Change(ticket, change, until_ms),
            },
        );
        Some(ticket)
    }

    /// What a session wanted has an outcome.
    pub(super) fn end_wish(&mut self, session: usize) {
        self.moves.retain(|one| one.session != session);
        let Some(wish) = self.wishes[session].take() else { return };
        let waited_ms = self.now_ms - wish.since_ms;
        self.waited_ms_max = self.waited_ms_max.max(waited_ms);
        if let Some(planner) = &mut self.planner {
            planner.record(self.now_ms, &self.design, &wish, waited_ms);
        }
    }

    fn run(&mut self, session: usize, at: u16, wish: Wish, is_distributed: bool) {
        let Wish { reads, writes, deletes, .. } = wish.clone();
        let since = self.sessions[session].0;
        let ticket = self.next;
        self.next += 1;
        let has_replica = self.fits(&wish, Site(at)) && {
            let mut read = reads.iter().flat_map(|range| self.design.within(range));
            read.any(|partition| partition.master != Site(at))
        };
        self.by_replicas += usize::from(has_replica);
        let (declared, ranges) = (writes.clone(), reads.clone());
        let procedure = move |view: &mut View<'_>| {
            let mut seen = Vec::new();
            for key in &declared {
                let range = KeyRange::only(key);
                seen.push((range, view.get(key)?.map(|seen| (key.clone(), seen.value))));
            }
            let mut answer = Vec::new();
            let mut tell = |range: &KeyRange, rows: &[(Key, Value)]| {
                let bytes = |key: &Key| {
                    [&[u8::try_from(key.as_bytes().len()).unwrap()], key.as_bytes()].concat()
                };
                answer.extend(bytes(&range.start));
                answer.extend(bytes(range.end.as_ref().unwrap()));
                answer.push(u8::try_from(rows.len()).unwrap());
                for (key, value) in rows {
                    answer.extend(bytes(key));
                    answer.extend(value.iter());
                }
            };
            for (range, row) in &seen {
                tell(range, row.as_slice());
            }
            for range in &ranges {
                let rows = view.range(range, usize::MAX)?;
                let rows: Vec<_> = rows.into_iter().map(|(key, seen)| (key, seen.value)).collect();
                tell(range, &rows);
            }
            for key in &declared {
                match deletes {
                    true => view.delete(key)?,
                    false => view.put(key, ticket.to_be_bytes().as_slice().into())?,
                }
            }
            Ok(answer)
        };
        let outcome = Outcome::Unknown;
        self.transactions.insert(ticket, Known { session, since, writes: writes.clone(), outcome });
        self.sessions[session].1 = Some((ticket, at.into()));
        let transaction = Transaction {
            reads,
            writes,
            session: since,
            client: None,
            at_masters: false,
            is_distributed,
            output: None,
            procedure: Box::new(procedure),
        };
        let until_ms = self.clock_ms(at.into()) + PATIENCE_MS;
        self.tell(at.into(), Input::Transact(ticket, transaction, until_ms));
        let core = self.hosts[usize::from(at)].core.as_ref();
        let is_ahead = core.is_some_and(|core| core.is_stalled && core.written > core.ordered);
        let is_read = matches!(self.transactions[&ticket].outcome, Outcome::Done(..));
        self.in_stall += usize::from(is_ahead && is_read);
    }
}
