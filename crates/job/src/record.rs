//! The record of a job: the state from which any process, on any machine, can continue it.
//!
//! Every change that a journal may make to a record is a method here, which checks it first and
//! changes nothing when it refuses: a journal only has to make "read, change, write" atomic, for
//! which [`Record::revision`] helps where there is no lock.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::JournalError;
use crate::event::Progress;
use crate::id::JobId;
pub use crate::limits::{Limits, ZeroLimit};
use crate::state::State;

/// A job as it is persisted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Its id.
    pub id: JobId,
    /// The kind of operation, such as `copy`; chosen by the operation.
    pub kind: String,
    /// The request, as the operation understands it. Holds no secret.
    pub spec: Value,
    /// Its place in the life cycle.
    pub state: State,
    /// Time of its creation, in milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// Time of its last save, in milliseconds since the Unix epoch.
    pub updated_at_ms: u64,
    /// Number of changes of the record.
    pub revision: u64,
    /// Number of claims; only the latest claim may save (0: never claimed).
    pub epoch: u64,
    /// The process that works at it, if one does.
    pub owner: Option<Owner>,
    /// The operator's request.
    pub control: Requested,
    /// Limits on its speed.
    pub limits: Limits,
    /// Its progress at the last save.
    pub progress: Option<Progress>,
    /// The state that the operation needs to go on; opaque to all other code.
    pub checkpoint: Value,
}

/// The process that works at a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The process, as it names itself, for example `host/1234`.
    pub process: String,
    /// The epoch of its claim.
    pub epoch: u64,
    /// Time of its last sign of life, in milliseconds since the Unix epoch.
    pub heartbeat_at_ms: u64,
}

/// The operator's request to a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Requested {
    /// Work.
    #[default]
    Run,
    /// Wait, keeping everything.
    Pause,
    /// Give up, leaving the source untouched.
    Cancel,
    /// End without being done, so that another process can claim the job; its claim is the answer.
    HandOver,
}

/// The fields that the owner saves; absent ones stay as they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Update {
    /// The new state; refused if it cannot follow the one before.
    pub state: Option<State>,
    /// The new progress.
    pub progress: Option<Progress>,
    /// The state that the operation needs to go on.
    pub checkpoint: Option<Value>,
}

/// The operator's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Run, pause or cancel.
    pub control: Requested,
    /// Limits on the job's speed.
    pub limits: Limits,
}

/// A request of the operator to a running or waiting job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Run, pause or cancel.
    Control(Requested),
    /// All limits, in place of the ones before.
    Limits(Limits),
}

impl Record {
    /// A planned job. `spec` must hold no secret: redact connection strings first.
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
            checkpoint: Value::Null,
        }
    }

    /// Makes `process` the owner and answers the new epoch; see [`crate::journal::Journal::claim`].
    pub fn claim(
        &mut self,
        process: &str,
        stale_after_ms: u64,
        now_ms: u64,
    ) -> Result<u64, JournalError> {
        self.check_not_final()?;
        if let Some(owner) = &self.owner {
            // A sign of life from the future (clocks differ) is a fresh one.
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

    /// Takes over what the owner saves; see [`crate::journal::Journal::save`].
    pub fn save(
        &mut self,
        epoch: u64,
        update: &Update,
        now_ms: u64,
    ) -> Result<Asked, JournalError> {
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
        if let Some(checkpoint) = &update.checkpoint {
            self.checkpoint = checkpoint.clone();
        }
        if let Some(owner) = &mut self.owner {
            owner.heartbeat_at_ms = now_ms;
        }
        self.touch(now_ms);
        Ok(Asked { control: self.control, limits: self.limits })
    }

    /// Ends the ownership; see [`crate::journal::Journal::release`].
    pub fn release(&mut self, epoch: u64, now_ms: u64) -> Result<(), JournalError> {
        self.check_epoch(epoch)?;
        self.owner = None;
        self.touch(now_ms);
        Ok(())
    }

    /// Takes over what the operator requests; see [`crate::journal::Journal::request`].
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

    /// Replaces the checkpoint of a job that has ended; see [`crate::journal::Journal::amend`].
    ///
    /// # Panics
    /// Panics if the job has not ended: callers have seen its end, and no state follows that.
    pub fn amend(&mut self, checkpoint: &Value, now_ms: u64) {
        assert!(self.state.is_final(), "job {} has not ended", self.id);
        self.checkpoint = checkpoint.clone();
        self.touch(now_ms);
    }

    fn check_not_final(&self) -> Result<(), JournalError> {
        if !self.state.is_final() {
            return Ok(());
        }
        Err(JournalError::Final { id: self.id.clone(), state: self.state.clone() })
    }

    /// The epoch of the latest claim, which was not released, may change the record; no other.
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
        let illegal =
            Update { state: Some(State::Done), checkpoint: Some(1.into()), progress: None };
        assert!(matches!(record.save(epoch, &illegal, 2), Err(JournalError::Transition { .. })));
        let zero = Limits { documents_s: Some(0), ..Limits::default() };
        assert!(matches!(record.request(&Request::Limits(zero), 2), Err(JournalError::Limit(_))));
        assert_eq!(record, before);
    }
}
