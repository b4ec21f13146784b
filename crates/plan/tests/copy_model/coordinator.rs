//! The coordinator: reads the change stream into the table of pending changes, moves the horizon, applies rounds, persists
//! the checkpoint.

use imago_plan::copy::pending_changes::{DirtyKey, Position, SliceState};

use crate::bug::Bug;
use crate::desk::{Desk, DirtyKeys, Place};
use crate::job::{Job, Row};
use crate::protocol::Protocol;
use crate::source::{Document, Source, Time};

/// The coordinator's progress in moving the horizon.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Horizon {
    Idle,
    /// Persisted, the slices not yet looked at.
    Persisted(Position),
    /// These slices were never leased; the horizon is persisted unless a bug says otherwise.
    Looked(Position, Vec<usize>),
    /// Only with [`Bug::LookedBeforeHorizon`].
    LookedFirst(Vec<usize>),
}

/// A lane's round: first all its keys are read, then all are written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InRound {
    dirty_keys: DirtyKeys,
    read: Vec<Document>,
    written: usize,
}

/// The coordinator's memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Coordinator<D> {
    desk: D,
    /// Number of changes of the source that were recorded.
    recorded: Time,
    /// The end of the batch that is being recorded.
    batch_end: Option<Time>,
    /// The ends of the batches recorded in full, by position; the first is where it resumed.
    ends: Vec<Time>,
    /// The last position whose horizon was persisted by this coordinator.
    horizon_at: Position,
    horizon: Horizon,
    seen: Vec<SliceState>,
    rounds: Vec<Option<InRound>>,
}

/// A step of the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Records the next change, of a batch that ends there.
    Record {
        batch_end: Time,
    },
    PersistHorizon,
    Look,
    Drop,
    Take {
        lane: usize,
    },
    Read {
        lane: usize,
        document: Document,
    },
    Write {
        lane: usize,
    },
    PersistCheckpoint,
}

impl<D: Desk> Coordinator<D> {
    /// A coordinator that knows only the persisted state.
    pub fn resume(protocol: &Protocol, job: &Job) -> Self {
        let slices = job.rows.len();
        Self {
            desk: D::new(slices, protocol.layout.lanes),
            recorded: job.checkpoint,
            batch_end: None,
            ends: vec![job.checkpoint],
            horizon_at: 0,
            horizon: Horizon::Idle,
            seen: vec![SliceState::Untouched; slices],
            rounds: vec![None; protocol.layout.lanes],
        }
    }

    pub fn is_drained(&self) -> bool {
        self.desk.is_drained()
    }

    /// The end of the last batch that was recorded in full.
    pub fn read_to(&self) -> Time {
        *self.ends.last().expect("it starts somewhere")
    }

    /// The last position that was recorded in full.
    fn position(&self) -> Position {
        self.ends.len() as Position - 1
    }

    /// The first document that a round has read and not yet written.
    pub fn in_flight(&self) -> Option<(u8, Document)> {
        self.rounds.iter().flatten().find_map(|round| {
            let document = round.read.get(round.written)?;
            Some((round.dirty_keys[round.written].0, *document))
        })
    }

    /// The time after which the stream may be reopened.
    fn checkpoint(&self, protocol: &Protocol) -> Time {
        let position = match protocol.bug {
            Some(Bug::CheckpointIgnoresAside) => self.desk.checkpoint_without(Place::Aside),
            Some(Bug::CheckpointIgnoresReady) => self.desk.checkpoint_without(Place::Ready),
            Some(Bug::CheckpointIgnoresRounds) => self.desk.checkpoint_without(Place::Round),
            _ => self.desk.checkpoint(),
        };
        match self.batch_end {
            Some(end)
                if protocol.has(Bug::CheckpointInsideBatch) && position == self.position() =>
            {
                end
            }
            _ => self.ends[position as usize],
        }
    }

    fn states(protocol: &Protocol, job: &Job) -> Vec<SliceState> {
        let state = |row: &Row| match row {
            Row::Leased | Row::Offered if protocol.has(Bug::LeasedAppliedAtOnce) => {
                SliceState::Copied
            }
            Row::Offered if protocol.has(Bug::OfferedCountsAsUntouched) => SliceState::Untouched,
            row => row.state(),
        };
        job.rows.iter().map(state).collect()
    }

    pub fn steps(&self, protocol: &Protocol, job: &Job, source: &Source) -> Vec<Step> {
        let mut steps = Vec::new();
        self.stream_steps(protocol, source, &mut steps);
        self.horizon_steps(protocol, job, &mut steps);
        for lane in 0..self.rounds.len() {
            self.round_steps(protocol, lane, source, &mut steps);
        }
        if self.checkpoint(protocol) > job.checkpoint {
            steps.push(Step::PersistCheckpoint);
        }
        steps
    }

    fn stream_steps(&self, protocol: &Protocol, source: &Source, steps: &mut Vec<Step>) {
        let ends = match self.batch_end {
            Some(end) => end..=end,
            None => {
                let last = source.now().min(self.recorded + protocol.batch_max);
                self.recorded + 1..=last
            }
        };
        steps.extend(ends.map(|batch_end| Step::Record { batch_end }));
    }

    fn horizon_steps(&self, protocol: &Protocol, job: &Job, steps: &mut Vec<Step>) {
        let looks_first = protocol.has(Bug::LookedBeforeHorizon);
        let news = Self::states(protocol, job) != self.seen;
        let due = self.position() > self.horizon_at;
        match self.horizon {
            Horizon::Idle => {
                if due && !looks_first && !protocol.has(Bug::DroppedWithoutHorizon) {
                    steps.push(Step::PersistHorizon);
                }
                if news || due && protocol.has(Bug::DroppedWithoutHorizon) || due && looks_first {
                    steps.push(Step::Look);
                }
            }
            Horizon::Persisted(_) => steps.push(Step::Look),
            Horizon::LookedFirst(_) => steps.push(Step::PersistHorizon),
            Horizon::Looked(..) => {
                steps.push(Step::Drop);
                if news {
                    steps.push(Step::Look);
                }
            }
        }
    }

    fn round_steps(
        &self,
        protocol: &Protocol,
        lane: usize,
        source: &Source,
        steps: &mut Vec<Step>,
    ) {
        let Some(round) = &self.rounds[lane] else {
            if self.desk.has_ready(lane) {
                steps.push(Step::Take { lane });
            }
            return;
        };
        let Some((key, dirty_key)) = round.dirty_keys.get(round.read.len()) else {
            steps.push(Step::Write { lane });
            return;
        };
        let open_end = self.batch_end.unwrap_or(self.recorded);
        let last = self.ends.get(dirty_key.last as usize).copied().unwrap_or(open_end);
        let floor = if protocol.has(Bug::ReadOlderThanTouch) { 0 } else { last };
        let seen = source.seen_since(*key, floor).into_iter();
        steps.extend(seen.map(|document| Step::Read { lane, document }));
    }

    pub fn step(
        &mut self,
        protocol: &Protocol,
        step: Step,
        job: &mut Job,
        source: &Source,
        dest: &mut [Document],
    ) {
        match step {
            Step::Record { batch_end } => self.record(protocol, batch_end, source),
            Step::PersistHorizon => {
                job.horizon = job.horizon.max(self.read_to());
                self.horizon_at = self.position();
                self.horizon = match std::mem::replace(&mut self.horizon, Horizon::Idle) {
                    Horizon::LookedFirst(untouched) => Horizon::Looked(self.horizon_at, untouched),
                    _ => Horizon::Persisted(self.horizon_at),
                };
            }
            Step::Look => self.look(protocol, job),
            Step::Drop => self.drop_dirty_keys(protocol),
            Step::Take { lane } => {
                let dirty_keys = self.desk.take(lane, protocol.keys_max);
                self.rounds[lane] = Some(InRound { dirty_keys, read: Vec::new(), written: 0 });
            }
            Step::Read { lane, document } => {
                let round = self.rounds[lane].as_mut().expect("a round is in progress");
                round.read.push(document);
            }
            Step::Write { lane } => self.write(protocol, lane, dest),
            Step::PersistCheckpoint => job.checkpoint = self.checkpoint(protocol),
        }
    }

    fn record(&mut self, protocol: &Protocol, batch_end: Time, source: &Source) {
        self.recorded += 1;
        let change = source.change(self.recorded);
        let position = self.position() + 1;
        let mut in_round = self.rounds.iter().flatten().flat_map(|round| &round.dirty_keys);
        let busy = in_round.any(|(key, _)| *key == change.key);
        if !(busy && protocol.has(Bug::BusyKeyForgotten)) {
            let layout = &protocol.layout;
            let lane = if protocol.has(Bug::LaneNotByKey) {
                position as usize % layout.lanes
            } else {
                layout.lane_of(change.key)
            };
            let dirty_key = DirtyKey::at(position, change.what);
            self.desk.mark_dirty(change.key, layout.slice_of(change.key), lane, dirty_key);
        }
        self.batch_end = Some(batch_end);
        if self.recorded == batch_end {
            self.desk.read_to(position);
            self.ends.push(batch_end);
            self.batch_end = None;
        }
    }

    fn look(&mut self, protocol: &Protocol, job: &Job) {
        let states = Self::states(protocol, job);
        for (slice, state) in states.iter().enumerate() {
            let lane_of = |key| protocol.layout.lane_of(key);
            self.desk.see(slice, *state, &lane_of);
            self.seen[slice] = *state;
        }
        let is_untouched = |slice: &usize| states[*slice] == SliceState::Untouched;
        let untouched = (0..states.len()).filter(is_untouched).collect();
        self.horizon = match std::mem::replace(&mut self.horizon, Horizon::Idle) {
            Horizon::Persisted(position) => Horizon::Looked(position, untouched),
            Horizon::Idle if protocol.has(Bug::LookedBeforeHorizon) => {
                Horizon::LookedFirst(untouched)
            }
            Horizon::Idle if protocol.has(Bug::DroppedWithoutHorizon) => {
                Horizon::Looked(self.position(), untouched)
            }
            other => other,
        };
    }

    fn drop_dirty_keys(&mut self, protocol: &Protocol) {
        let Horizon::Looked(position, untouched) =
            std::mem::replace(&mut self.horizon, Horizon::Idle)
        else {
            panic!("dirty keys are dropped only after a look");
        };
        let beyond = protocol.has(Bug::DroppedBeyondHorizon);
        let position = if beyond { self.position() } else { position };
        self.horizon_at = self.horizon_at.max(position);
        self.desk.horizon(position, &untouched);
    }

    fn write(&mut self, protocol: &Protocol, lane: usize, dest: &mut [Document]) {
        let round = self.rounds[lane].as_mut().expect("a round is in progress");
        let document = round.read[round.written];
        if document.is_some() || !protocol.has(Bug::DeleteIgnored) {
            dest[usize::from(round.dirty_keys[round.written].0)] = document;
        }
        round.written += 1;
        if round.written == round.dirty_keys.len() {
            self.rounds[lane] = None;
            self.desk.finish(lane);
        }
    }

    /// True if two rounds in progress hold the same key.
    pub fn key_is_in_two_rounds(&self) -> bool {
        let mut keys: Vec<u8> =
            self.rounds.iter().flatten().flat_map(|r| &r.dirty_keys).map(|(key, _)| *key).collect();
        keys.sort_unstable();
        keys.windows(2).any(|pair| pair[0] == pair[1])
    }
}
