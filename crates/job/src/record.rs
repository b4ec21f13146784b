//! The record of a job: the state from which any process, on any machine, can continue the job.
//!
//! Every change that a journal may make to a record is a method of [`Record`]. The method first checks the change,
//! and changes nothing if it refuses. A journal must only make "read, change, write" atomic; if the journal has no
//! locks, it can use [`Record::revision`].

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::JournalError;
use crate::event::Progress;
use crate::id::JobId;
pub use crate::limits::{Limits, ZeroLimit};
use crate::prediction::Prediction;
use crate::state::State;

/// The persisted form of a job: request, state, owner, the operator's requests, progress and checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The job's id.
    pub id: JobId,
    /// The kind of operation that the job runs, such as `copy`; chosen by the operation.
    pub kind: String,
    /// The request that the job fulfils, in a format of the operation. Contains no secrets.
    pub spec: Value,
    /// The state of the job in its life cycle.
    pub state: State,
    /// Time of the job's creation, in milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// Time of the record's last change, in milliseconds since the Unix epoch.
    pub updated_at_ms: u64,
    /// Number of changes of the record since it was created.
    pub revision: u64,
    /// Number of claims of the job, which is the epoch of the latest claim; only that claim may save (0: never
    /// claimed).
    pub epoch: u64,
    /// The process that works at the job; `None` if no process does.
    pub owner: Option<Owner>,
    /// The operator's last request for control: run, pause, cancel or hand over.
    pub control: Requested,
    /// The operator's limits on the job's speed.
    pub limits: Limits,
    /// The job's progress at its last save; `None` before the first.
    pub progress: Option<Progress>,
    /// The quantities that the job predicted, with the values that it measured later.
    #[serde(default)]
    pub predictions: Vec<Prediction>,
    /// The state from which the operation can resume, in a format of the operation; opaque to all other code.
    pub checkpoint: Value,
}

/// The process that works at a job, with its claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Name of the process, as chosen by itself, for example `host/1234`.
    pub process: String,
    /// The epoch of the process's claim of the job.
    pub epoch: u64,
    /// Time of the last claim or save by this owner, in milliseconds since the Unix epoch.
    pub heartbeat_at_ms: u64,
}

/// The operator's request for control of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Requested {
    /// Run the job, or continue it after a pause.
    #[default]
    Run,
    /// Pause the job, keeping all of its work.
    Pause,
    /// Cancel the job, leaving the source untouched.
    Cancel,
    /// End the process that works at the job without completing the job, so that another process can claim it. That
    /// claim resets this request to [`Requested::Run`].
    HandOver,
}

/// The fields of a job's record that its owner saves; fields that are `None` stay as they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Update {
    /// The new state of the job; refused if it may not follow the present one.
    pub state: Option<State>,
    /// The new progress of the job.
    pub progress: Option<Progress>,
    /// All predictions of the job, which replace those in the record.
    pub predictions: Option<Vec<Prediction>>,
    /// The new state from which the operation can resume, in a format of the operation.
    pub checkpoint: Option<Value>,
}

/// The operator's present requests to a job, as the owner receives them in the reply to a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperatorRequests {
    /// The operator's last request for control: run, pause, cancel or hand over.
    pub control: Requested,
    /// The operator's present limits on the job's speed.
    pub limits: Limits,
}

/// A request of the operator to a job that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Run, pause, cancel or hand over the job.
    Control(Requested),
    /// Replace all limits on the job's speed by these.
    Limits(Limits),
}

impl Record {
    /// Returns the record of a planned job with a new id, for an operation of the kind `kind` with the request
    /// `spec`, created at `at_ms` milliseconds since the Unix epoch. `spec` must not contain secrets: redact
    /// connection strings first.
    pub fn new(kind: impl Into<String>, spec: Value, at_ms: u64) -> Self {
        Self {
            id: JobId::from_parts(at_ms, rand::random()),
            kind: kind.into(),
            spec,
            state: State::Planned,
            created_at_ms: at_ms,
            updated_at_ms: at_ms,
            revision: 0,
            epoch: 0,
            owner: None,
            control: Requested::default(),
            limits: Limits::default(),
            progress: None,
            predictions: Vec::new(),
            checkpoint: Value::Null,
        }
    }

    /// Makes `process` the owner and returns the new epoch; see [`crate::journal::Journal::claim`]. `now_ms` is the
    /// present time, in milliseconds since the Unix epoch.
    pub fn claim(
        &mut self,
        process: &str,
        stale_after_ms: u64,
        now_ms: u64,
    ) -> Result<u64, JournalError> {
        self.check_not_final()?;
        if let Some(owner) = &self.owner {
            // If clocks differ, a heartbeat may be in the future; it counts as recent.
            let age_ms = now_ms.saturating_sub(owner.heartbeat_at_ms);
            if age_ms < stale_after_ms {
                let (id, process) = (self.id.clone(), owner.process.clone());
                return Err(JournalError::Owned { id, process, age_ms, stale_after_ms });
            }
        }
        if self.control == Requested::HandOver {
            self.control = Requested::Run;
        }
        self.epoch += 1;
        let process = process.to_owned();
        self.owner = Some(Owner { process, epoch: self.epoch, heartbeat_at_ms: now_ms });
        self.touch(now_ms);
        Ok(self.epoch)
    }

    /// Applies the owner's update and returns the operator's requests; see [`crate::journal::Journal::save`].
    /// `now_ms` is the present time, in milliseconds since the Unix epoch.
    pub fn save(
        &mut self,
        epoch: u64,
        update: &Update,
        now_ms: u64,
    ) -> Result<OperatorRequests, JournalError> {
        self.check_epoch(epoch)?;
        if let Some(state) = &update.state {
            self.state.check_transition(state).map_err(|source| JournalError::Transition {
                id: self.id.clone(),
                source: Box::new(source),
            })?;
            self.state = state.clone();
        }
        if let Some(progress) = &update.progress {
            self.progress = Some(progress.clone());
        }
        if let Some(predictions) = &update.predictions {
            self.predictions.clone_from(predictions);
        }
        if let Some(checkpoint) = &update.checkpoint {
            self.checkpoint = checkpoint.clone();
        }
        if let Some(owner) = &mut self.owner {
            owner.heartbeat_at_ms = now_ms;
        }
        self.touch(now_ms);
        Ok(OperatorRequests { control: self.control, limits: self.limits })
    }

    /// Ends the ownership of the claim with this epoch; see [`crate::journal::Journal::release`]. `now_ms` is the
    /// present time, in milliseconds since the Unix epoch.
    pub fn release(&mut self, epoch: u64, now_ms: u64) -> Result<(), JournalError> {
        self.check_epoch(epoch)?;
        self.owner = None;
        self.touch(now_ms);
        Ok(())
    }

    /// Stores the operator's request; see [`crate::journal::Journal::request`]. `now_ms` is the present time, in
    /// milliseconds since the Unix epoch.
    pub fn request(&mut self, request: &Request, now_ms: u64) -> Result<(), JournalError> {
        self.check_not_final()?;
        match *request {
            Request::Control(control) => self.control = control,
            Request::Limits(limits) => {
                limits.check()?;
                self.limits = limits;
            }
        }
        self.touch(now_ms);
        Ok(())
    }

    /// Replaces the checkpoint of a job whose state is final; see [`crate::journal::Journal::amend`]. `now_ms` is the
    /// present time, in milliseconds since the Unix epoch.
    ///
    /// # Panics
    /// Panics if the job's state is not final: callers have checked that it is, and no other state can follow.
    pub fn amend(&mut self, checkpoint: &Value, now_ms: u64) {
        assert!(self.state.is_final(), "job {} has not ended", self.id);
        self.checkpoint = checkpoint.clone();
        self.touch(now_ms);
    }

    /// Checks that the job's state is final, so that its record may be removed, and returns an error if not; see
    /// [`crate::journal::Journal::remove`].
    pub fn check_final(&self) -> Result<(), JournalError> {
        if self.state.is_final() {
            return Ok(());
        }
        Err(JournalError::Unfinished { id: self.id.clone(), state: self.state.clone() })
    }

    fn check_not_final(&self) -> Result<(), JournalError> {
        if !self.state.is_final() {
            return Ok(());
        }
        Err(JournalError::Final { id: self.id.clone(), state: self.state.clone() })
    }

    /// Checks that `epoch` is that of the present owner, because no other claim may change the record, and returns an
    /// error if it is not.
    fn check_epoch(&self, epoch: u64) -> Result<(), JournalError> {
        if self.owner.as_ref().is_some_and(|owner| owner.epoch == epoch) {
            return Ok(());
        }
        Err(JournalError::Fenced { id: self.id.clone(), epoch, now: self.epoch })
    }

    fn touch(&mut self, now_ms: u64) {
        self.revision += 1;
        self.updated_at_ms = now_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Claim { stale: bool },
        Save { epoch: u64 },
        Release { epoch: u64 },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            any::<bool>().prop_map(|stale| Step::Claim { stale }),
            (0..8_u64).prop_map(|epoch| Step::Save { epoch }),
            (0..8_u64).prop_map(|epoch| Step::Release { epoch }),
        ];
        proptest::collection::vec(step, 0..40)
    }

    proptest! {
        /// The oracle: the owner of the job is the last process that was granted a claim and did
        /// not release it.
        #[test]
        fn only_the_latest_claim_saves(steps in steps()) {
            let mut record = Record::new("copy", Value::Null, 0);
            let (mut owner, mut granted) = (None, 0);
            for (now_ms, step) in (0_u64..).zip(steps) {
                match step {
                    Step::Claim { stale } => {
                        let stale_after_ms = if stale { 0 } else { u64::MAX };
                        let claimed = record.claim("p", stale_after_ms, now_ms);
                        prop_assert_eq!(claimed.is_ok(), stale || owner.is_none());
                        if let Ok(epoch) = claimed {
                            prop_assert_eq!(epoch, granted + 1);
                            (owner, granted) = (Some(epoch), epoch);
                        }
                    }
                    Step::Save { epoch } => {
                        let saved = record.save(epoch, &Update::default(), now_ms);
                        prop_assert_eq!(saved.is_ok(), owner == Some(epoch));
                    }
                    Step::Release { epoch } => {
                        let released = record.release(epoch, now_ms);
                        prop_assert_eq!(released.is_ok(), owner == Some(epoch));
                        if released.is_ok() {
                            owner = None;
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_sign_of_life_from_the_future_is_fresh() {
        let mut record = Record::new("copy", Value::Null, 0);
        record.claim("a", 0, 5_000).unwrap();
        assert!(matches!(record.claim("b", 1, 1_000), Err(JournalError::Owned { age_ms: 0, .. })));
    }

    #[test]
    fn a_refused_change_changes_nothing() {
        let mut record = Record::new("copy", Value::Null, 0);
        let epoch = record.claim("a", 0, 1).unwrap();
        let before = record.clone();
        let (state, checkpoint) = (Some(State::Done), Some(1.into()));
        let illegal = Update { state, checkpoint, ..Update::default() };
        assert!(matches!(record.save(epoch, &illegal, 2), Err(JournalError::Transition { .. })));
        let zero = Limits { documents_s: Some(0), ..Limits::default() };
        assert!(matches!(record.request(&Request::Limits(zero), 2), Err(JournalError::Limit(_))));
        assert_eq!(record, before);
    }
}
