//! The protocol's actors put together: which steps are possible, and what each does.

use crate::bug::Bug;
use crate::coordinator::{self, Coordinator};
use crate::desk::Desk;
use crate::job::{Job, Row};
use crate::source::{Document, Key, Source, Time};
use crate::worker::{self, Worker};

/// The document of a destination that was not empty before.
pub const LEFTOVER: Time = Time::MAX;

/// The distribution of keys over slices and lanes.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The number of keys in each slice.
    pub slices: Vec<usize>,
    pub lanes: usize,
}

impl Layout {
    pub fn keys(&self) -> usize {
        self.slices.iter().sum()
    }

    pub fn keys_of(&self, slice: usize) -> impl Iterator<Item = Key> + use<> {
        let start: usize = self.slices[..slice].iter().sum();
        (start..start + self.slices[slice]).map(|key| Key::try_from(key).expect("few keys"))
    }

    pub fn slice_of(&self, key: Key) -> usize {
        let holds = |slice: &usize| self.keys_of(*slice).any(|other| other == key);
        (0..self.slices.len()).find(holds).expect("every key lies in a slice")
    }

    pub fn lane_of(&self, key: Key) -> usize {
        usize::from(key) % self.lanes
    }
}

/// The events that may happen in a run, and their number.
#[derive(Clone, Debug)]
pub struct Protocol {
    pub layout: Layout,
    pub workers: usize,
    pub writes_max: Time,
    pub coordinator_kills_max: usize,
    pub worker_kills_max: usize,
    /// Changes in one batch of the stream, at most.
    pub batch_max: Time,
    /// Dirty keys in one round, at most.
    pub keys_max: usize,
    /// The destination starts with an old version of every document, and the application never
    /// deletes.
    pub leftovers: bool,
    pub bug: Option<Bug>,
}

/// Everything that there is at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State<D> {
    pub source: Source,
    pub dest: Vec<Document>,
    pub job: Job,
    pub workers: Vec<Worker>,
    pub coordinator: Coordinator<D>,
    pub lead_kills: usize,
    pub worker_kills: usize,
    /// A write of a killed coordinator that is still on its way.
    pub ghost: Option<(Key, Document)>,
}

/// One step of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Put(Key),
    Delete(Key),
    KillLead,
    KillWorker(usize),
    /// Its lease ran out while it lives.
    RobWorker(usize),
    GhostLands,
    Worker(usize, worker::Step),
    Coordinator(coordinator::Step),
}

impl Protocol {
    pub fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// The beginning of a copy of a source whose keys are `initial`ly there or not.
    pub fn start<D: Desk>(&self, initial: Vec<bool>) -> State<D> {
        let leftover = |present: &bool| (*present && self.leftovers).then_some(LEFTOVER);
        let job = Job::new(self.layout.slices.len());
        State {
            dest: initial.iter().map(leftover).collect(),
            source: Source::new(initial),
            workers: vec![Worker::default(); self.workers],
            coordinator: Coordinator::resume(self, &job),
            job,
            lead_kills: 0,
            worker_kills: 0,
            ghost: None,
        }
    }

    /// The writes that the application may make next.
    pub fn writes<D: Desk>(&self, state: &State<D>) -> Vec<Action> {
        let source = &state.source;
        if source.now() >= self.writes_max {
            return Vec::new();
        }
        let keys = (0..source.keys()).map(|key| key as Key);
        let mut writes: Vec<_> = keys.clone().map(Action::Put).collect();
        if !self.leftovers {
            let there = keys.filter(|key| source.at(*key, source.now()).is_some());
            writes.extend(there.map(Action::Delete));
        }
        writes
    }

    /// The processes that a crash may hit next.
    pub fn crashes<D: Desk>(&self, state: &State<D>) -> Vec<Action> {
        let mut crashes = Vec::new();
        if state.lead_kills < self.coordinator_kills_max {
            crashes.push(Action::KillLead);
        }
        if state.worker_kills < self.worker_kills_max {
            for (i, worker) in state.workers.iter().enumerate().filter(|(_, w)| !w.is_idle()) {
                crashes.push(Action::KillWorker(i));
                let holds = worker.slice.is_some_and(|s| state.job.rows[s] == Row::Leased);
                if holds && !worker.robbed && self.has(Bug::LeaseTakenFromTheLiving) {
                    crashes.push(Action::RobWorker(i));
                }
            }
        }
        crashes
    }

    /// The steps by which the copy may get on.
    pub fn progress<D: Desk>(&self, state: &State<D>) -> Vec<Action> {
        let State { source, job, workers, coordinator, .. } = state;
        let mut steps = Vec::new();
        for (i, worker) in workers.iter().enumerate() {
            // Idle workers are alike.
            if worker.is_idle() && workers[..i].iter().any(Worker::is_idle) {
                continue;
            }
            let own = worker.steps(self, job, source).into_iter();
            steps.extend(own.map(|step| Action::Worker(i, step)));
        }
        steps.extend(coordinator.steps(self, job, source).into_iter().map(Action::Coordinator));
        steps.extend(state.ghost.map(|_| Action::GhostLands));
        steps
    }

    /// Does `action`.
    pub fn act<D: Desk>(&self, state: &mut State<D>, action: Action) {
        let State { source, job, workers, coordinator, dest, .. } = state;
        match action {
            Action::Put(key) => source.write(key, true),
            Action::Delete(key) => source.write(key, false),
            Action::KillLead => {
                if self.has(Bug::WriteOutlivesLead) {
                    state.ghost = coordinator.in_flight();
                }
                *coordinator = Coordinator::resume(self, job);
                state.lead_kills += 1;
            }
            Action::KillWorker(i) => {
                workers[i].kill(job);
                state.worker_kills += 1;
            }
            Action::RobWorker(i) => {
                workers[i].robbed = true;
                job.rows[workers[i].slice.expect("it holds a slice")] = Row::Offered;
                state.worker_kills += 1;
            }
            Action::GhostLands => {
                let (key, document) = state.ghost.take().expect("a write is on its way");
                dest[usize::from(key)] = document;
            }
            Action::Worker(i, step) => workers[i].step(self, step, job, dest),
            Action::Coordinator(step) => coordinator.step(self, step, job, source, dest),
        }
        // Which worker is which does not matter.
        workers.sort_unstable();
    }
}
