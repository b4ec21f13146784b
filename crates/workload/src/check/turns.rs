//! Turns: the inserts and deletes of one key, and the lives that they may give its document.
//!
//! A document's *life* begins with an insert (or before the load) and ends with a delete. Only the last life
//! determines the final content. So the search needs every possible begin of a last life: its time, and the time up
//! to which updates can have happened in earlier lives instead ([`Birth`]).
//!
//! The search is that of linearisability checkers ("just in time": Wing and Gong 1993, Lowe 2017): an operation is
//! placed in the order no earlier than the answer to some operation forces one to be placed, which loses no outcome.
//! Between answers only a small set of configurations must be remembered, and a configuration that another one
//! dominates is dropped. Updates are not part of the search: an update needs a time between its start and its end at
//! which the document exists, and `covered`, the last such time, decides that for all of them at once.

use crate::history::{Fate, Op};
use crate::mix::Kind;

/// Limit of the number of acknowledged turns of one key that are in flight at the same time; beyond it the key is
/// undecided.
const SLOTS_MAX: usize = 64;
/// Limit of the number of configurations that are visited for one key; beyond it the key is undecided.
const VISITS_MAX: u64 = 4_000_000;

/// A possible begin of the last life of a key's document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Birth {
    /// Time of the begin, in ns since the start of the run; 0 if the life began before all operations. All operations
    /// that were answered before this time happened in earlier lives.
    pub at: u64,
    /// Time up to which updates that were sent can have happened in an earlier life, in ns since the start of the
    /// run; `None` if no update can have happened in one.
    pub covered: Option<u64>,
    /// The `seq` of the insert that began the life; `None` if it is any of the inserts without a definite answer.
    pub seq: Option<u64>,
}

/// All states in which the turns of a key can leave its document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Lives {
    /// Possible begins of the last life, if the document exists at the end.
    pub births: Vec<Birth>,
    /// True if the document can be absent at the end.
    pub absent: bool,
}

/// Error: the search exceeded [`SLOTS_MAX`] or [`VISITS_MAX`], so that the key is undecided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SearchLimitExceeded;

/// A configuration of the search: which turns were placed in the order so far, and the state in which they leave the
/// document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Config {
    alive: bool,
    /// Acknowledged turns in flight that were placed already, one bit for each slot.
    placed: u64,
    /// Numbers of inserts and, in `deletes_used`, of deletes without a definite answer that were placed.
    inserts_used: u32,
    deletes_used: u32,
    /// Last time at which the document existed, in ns since the start of the run; `None` if it never did.
    covered: Option<u64>,
}

impl Config {
    fn dominates(&self, other: &Self) -> bool {
        self.alive == other.alive
            && self.placed == other.placed
            && self.inserts_used <= other.inserts_used
            && self.deletes_used <= other.deletes_used
            && self.covered >= other.covered
    }
}

/// Adds the configuration `new` to `configs` unless another one dominates it, and removes those that it dominates.
/// Returns true if it was added.
fn add(configs: &mut Vec<Config>, new: Config) -> bool {
    if configs.iter().any(|known| known.dominates(&new)) {
        return false;
    }
    configs.retain(|known| !new.dominates(known));
    configs.push(new);
    true
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    // The order of events at the same time: turns whose times only touch count as overlapping.
    Start(usize),
    TurnAnswered(usize),
    UpdateAnswered { start: u64 },
}

/// A step of the search: the turn that is placed next in the order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Slot(usize),
    Pooled { insert: bool },
    Reserved,
}

struct Search<'a> {
    ops: &'a [Op],
    /// Index in `ops` of the operation in each slot, an acknowledged turn between its start and its answer; `None`
    /// for a free slot.
    slots: [Option<usize>; SLOTS_MAX],
    inserts_open: u32,
    deletes_open: u32,
    /// The `seq` of an insert without a definite answer whose content was found at the end: this insert can only be
    /// the last turn.
    reserved: Option<u64>,
    reserved_open: bool,
    /// Time at which the last acknowledged turn was sent, in ns since the start of the run: no last life begins
    /// before it.
    last_start: u64,
    configs: Vec<Config>,
    lives: Lives,
    visits: u64,
}

/// Returns all states in which the turns among the operations `ops` of one key can leave its document. `initial` is
/// the `seq` of the document that existed before, if any; `reserved` is the `seq` of the insert whose own content was
/// found, if that insert had no definite answer.
pub(super) fn lives(
    initial: Option<u64>,
    ops: &[Op],
    reserved: Option<u64>,
) -> Result<Lives, SearchLimitExceeded> {
    let first = Config {
        alive: initial.is_some(),
        placed: 0,
        inserts_used: 0,
        deletes_used: 0,
        covered: None,
    };
    let acked = |op: &&Op| is_turn(op) && op.fate == Fate::Acked;
    let mut search = Search {
        ops,
        slots: [None; SLOTS_MAX],
        inserts_open: 0,
        deletes_open: 0,
        reserved,
        reserved_open: false,
        last_start: ops.iter().filter(acked).map(|op| op.start_ns).max().unwrap_or(0),
        configs: vec![first],
        lives: Lives::default(),
        visits: 0,
    };
    if let Some(seq) = initial
        && !ops.iter().any(|op| acked(&op))
    {
        search.lives.births.push(Birth { at: 0, covered: None, seq: Some(seq) });
    }
    search.run()?;
    Ok(search.lives)
}

fn is_turn(op: &Op) -> bool {
    matches!(op.kind, Kind::Insert | Kind::Delete) && matches!(op.fate, Fate::Acked | Fate::Unknown)
}

fn is_acked_update(op: &Op) -> bool {
    op.kind == Kind::Update && op.fate == Fate::Acked
}

impl Search<'_> {
    fn run(&mut self) -> Result<(), SearchLimitExceeded> {
        for (at, event) in self.events() {
            match event {
                Event::Start(index) => self.open(index)?,
                Event::TurnAnswered(index) => {
                    self.note_births(at)?;
                    self.answer_turn(at, index)?;
                }
                Event::UpdateAnswered { start } => {
                    self.note_births(at)?;
                    self.answer_update(at, start)?;
                }
            }
        }
        self.note_births(u64::MAX)?;
        let mut ends = self.expand(self.configs.clone(), u64::MAX, |_, _, _| false)?;
        ends.retain(|config| !config.alive);
        self.lives.absent = !ends.is_empty();
        Ok(())
    }

    fn events(&self) -> Vec<(u64, Event)> {
        let mut events = Vec::new();
        // A key without turns keeps its document, so no search is needed, unless updates were acknowledged
        // although there was never a document.
        let alive = self.configs.iter().any(|config| config.alive);
        if alive && !self.ops.iter().any(is_turn) {
            return events;
        }
        for (index, op) in self.ops.iter().enumerate() {
            if is_turn(op) {
                events.push((op.start_ns, Event::Start(index)));
                if op.fate == Fate::Acked {
                    events.push((op.end_ns, Event::TurnAnswered(index)));
                }
            } else if is_acked_update(op) {
                events.push((op.end_ns, Event::UpdateAnswered { start: op.start_ns }));
            }
        }
        events.sort_unstable();
        events
    }

    fn open(&mut self, index: usize) -> Result<(), SearchLimitExceeded> {
        let op = &self.ops[index];
        if op.fate == Fate::Acked {
            let slot =
                self.slots.iter_mut().find(|slot| slot.is_none()).ok_or(SearchLimitExceeded)?;
            *slot = Some(index);
        } else if op.kind == Kind::Delete {
            self.deletes_open += 1;
        } else if self.reserved == Some(op.seq) {
            self.reserved_open = true;
        } else {
            self.inserts_open += 1;
        }
        Ok(())
    }

    fn answer_turn(&mut self, at: u64, index: usize) -> Result<(), SearchLimitExceeded> {
        let slot = self
            .slots
            .iter()
            .position(|slot| *slot == Some(index))
            .expect("an answered turn occupies a slot since its start");
        let bit = 1u64 << slot;
        let (mut ready, waiting): (Vec<_>, Vec<_>) =
            self.configs.iter().partition(|config| config.placed & bit != 0);
        let forced = self.reach(waiting, at, |step, _| step == Step::Slot(slot))?;
        forced.into_iter().for_each(|config| {
            add(&mut ready, config);
        });
        self.configs.clear();
        for mut config in ready {
            config.placed &= !bit;
            add(&mut self.configs, config);
        }
        self.slots[slot] = None;
        Ok(())
    }

    fn answer_update(&mut self, at: u64, start: u64) -> Result<(), SearchLimitExceeded> {
        let had = |config: &Config| config.alive || config.covered.is_some_and(|to| to >= start);
        if self.configs.iter().all(had) {
            return Ok(());
        }
        let (mut ready, waiting): (Vec<_>, Vec<_>) =
            self.configs.iter().copied().partition(|config| had(config));
        let forced = self.reach(waiting, at, |_, after| after.alive)?;
        for mut config in forced {
            config.covered = Some(at);
            add(&mut ready, config);
        }
        self.configs = ready;
        Ok(())
    }

    /// Returns the configurations that can be reached from `from` at the time `at` (ns since the start of the run) by
    /// steps of which only the last is `wanted`.
    fn reach(
        &mut self,
        from: Vec<Config>,
        at: u64,
        wanted: impl Fn(Step, &Config) -> bool,
    ) -> Result<Vec<Config>, SearchLimitExceeded> {
        let mut reached = Vec::new();
        if !from.is_empty() {
            self.expand(from, at, |_, step, after| {
                let found = step != Step::Reserved && wanted(step, after);
                if found {
                    add(&mut reached, *after);
                }
                found
            })?;
        }
        Ok(reached)
    }

    /// Records every last life that can begin at the time `at`, in ns since the start of the run.
    fn note_births(&mut self, at: u64) -> Result<(), SearchLimitExceeded> {
        let idle = self.slots.iter().all(Option::is_none);
        let pooled = self.inserts_open > 0 || self.reserved_open;
        if at < self.last_start || (idle && !pooled) {
            return Ok(());
        }
        let all = self
            .slots
            .iter()
            .enumerate()
            .fold(0, |all, (slot, op)| if op.is_some() { all | 1u64 << slot } else { all });
        let slots = self.slots;
        let seqs: Vec<Option<u64>> =
            slots.iter().map(|slot| slot.map(|index| self.ops[index].seq)).collect();
        let reserved = self.reserved;
        let mut found = Vec::new();
        self.expand(self.configs.clone(), at, |before, step, after| {
            if after.alive && after.placed == all {
                let seq = match step {
                    Step::Slot(slot) => seqs[slot],
                    Step::Pooled { .. } => None,
                    Step::Reserved => reserved,
                };
                found.push(Birth { at, covered: before.covered, seq });
            }
            false
        })?;
        for birth in found {
            self.add_birth(birth);
        }
        Ok(())
    }

    /// Adds a possible begin of the last life. Begins come in the order of their times: a later one is useful only if
    /// it lets more updates have happened before it.
    fn add_birth(&mut self, birth: Birth) {
        let same = self.lives.births.iter().rev().find(|known| known.seq == birth.seq);
        if same.is_none_or(|known| known.covered < birth.covered) {
            self.lives.births.push(birth);
        }
    }

    /// Visits every configuration that can be reached from `from` at the time `at`, and returns those at which the
    /// search did not stop. `visit` receives each step with the configurations before and after it, and returns true
    /// to stop after it.
    fn expand(
        &mut self,
        from: Vec<Config>,
        at: u64,
        mut visit: impl FnMut(&Config, Step, &Config) -> bool,
    ) -> Result<Vec<Config>, SearchLimitExceeded> {
        let mut known = Vec::new();
        let mut open = Vec::new();
        for config in from {
            let config = living_until(config, at);
            if add(&mut known, config) {
                open.push(config);
            }
        }
        while let Some(config) = open.pop() {
            for (step, after) in self.steps(config, at) {
                self.visits += 1;
                if self.visits > VISITS_MAX {
                    return Err(SearchLimitExceeded);
                }
                // The reserved insert begins the last life: no turn comes after it.
                let last = step == Step::Reserved;
                if !visit(&config, step, &after) && !last && add(&mut known, after) {
                    open.push(after);
                }
            }
        }
        Ok(known)
    }

    fn steps(&self, config: Config, at: u64) -> Vec<(Step, Config)> {
        let mut steps = Vec::new();
        let turned = living_until(Config { alive: !config.alive, ..config }, at);
        for (slot, index) in self.slots.iter().enumerate() {
            let Some(index) = *index else { continue };
            let bit = 1u64 << slot;
            let inserts = self.ops[index].kind == Kind::Insert;
            if config.placed & bit == 0 && inserts != config.alive {
                let after = Config { placed: config.placed | bit, ..turned };
                steps.push((Step::Slot(slot), after));
            }
        }
        if config.alive && config.deletes_used < self.deletes_open {
            let after = Config { deletes_used: config.deletes_used + 1, ..turned };
            steps.push((Step::Pooled { insert: false }, after));
        }
        if !config.alive && config.inserts_used < self.inserts_open {
            let after = Config { inserts_used: config.inserts_used + 1, ..turned };
            steps.push((Step::Pooled { insert: true }, after));
        }
        if !config.alive && self.reserved_open {
            steps.push((Step::Reserved, turned));
        }
        steps
    }
}

fn living_until(config: Config, at: u64) -> Config {
    if config.alive { Config { covered: Some(at), ..config } } else { config }
}
