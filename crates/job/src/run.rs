//! One process's work at a job, from its claim to its end. Combines journal, control and events.
//!
//! [`Run::begin`] claims the job and starts a heartbeat, which saves progress, keeps other processes from taking the
//! job over, and reads the operator's requests. The operation then calls [`Run::enter`] at each phase and
//! [`Run::save`] at each checkpoint, checks [`Run::control`] before each step, and ends with [`Run::end`].
//!
//! Invariant: the state in the journal is `Paused` exactly while the control blocks the operation on the operator's
//! request (up to the delay of a heartbeat), and nothing is saved after a takeover.

use std::sync::Arc;
use std::time::Duration;

use imago_plan::pacing::backoff::Backoff;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::control::{Control, Stop};
use crate::event::Body;
use crate::id::JobId;
use crate::journal::{Journal, JournalError, OperatorRequests, Update};
use crate::ownership::{Moment, Ownership};
use crate::prediction::{Interval, PREDICTIONS_MAX, Prediction};
use crate::record::{Record, Requested};
use crate::reporter::{Events, Reporter};
use crate::retry::{Budget, RetryError, retry};
use crate::state::State;

/// Interval and time limits of the heartbeats by which the owner of a job keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerTiming {
    /// Interval between two heartbeats; each saves progress and reads the operator's requests.
    pub heartbeat: Duration,
    /// Age of an owner's last heartbeat from which on another process may take the job over.
    pub stale_after: Duration,
    /// Time without a confirmed heartbeat after which an owner stops. Until then it writes nothing, because it cannot
    /// know whether it still owns the job; the journal reports that when it is available again.
    pub gives_up_after: Duration,
}

/// Default of [`OwnerTiming::gives_up_after`], longer than five minutes: a journal that is unavailable for five
/// minutes ends no run.
pub const GIVES_UP_AFTER: Duration = Duration::from_secs(330);

impl Default for OwnerTiming {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(1),
            stale_after: Duration::from_secs(30),
            gives_up_after: GIVES_UP_AFTER,
        }
    }
}

/// The way in which a process's work at a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The job is complete.
    Done,
    /// The job failed. The text names the problem, the affected object, and the remedy.
    Failed(String),
    /// The operation was stopped before the job was complete. A cancelled job is final; a job that was interrupted or
    /// handed over can be resumed.
    Stopped(Stop),
}

/// The reason why a process could not continue its work at a job.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The operation must end before the job is complete.
    #[error(transparent)]
    Stopped(#[from] Stop),
    /// The journal refused a request, or failed permanently.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The journal was unavailable for longer than the retry budget of a save.
    #[error(transparent)]
    Unreachable(Box<RetryError<JournalError>>),
}

/// One process's work at a job. Cheap to clone. If the last clone is dropped without [`Run::end`], heartbeats stop,
/// and another process can take the job over when the last heartbeat is stale.
#[derive(Clone)]
pub struct Run {
    shared: Arc<Shared>,
    _heartbeat: Arc<AbortOnDropHandle<()>>,
}

struct Shared {
    journal: Arc<dyn Journal>,
    id: JobId,
    epoch: u64,
    claimed: Record,
    control: Control,
    reporter: Reporter,
    ownership: Ownership,
    timing: OwnerTiming,
    predictions: std::sync::Mutex<Vec<Prediction>>,
    /// The job's state in the journal; `None` after the end of the run. The lock is held during a save, so that saves
    /// reach the journal in the order in which they are made.
    state: Mutex<Option<State>>,
}

impl Run {
    /// Claims the job `id` for `process`, a name such as `host/1234`, and starts its heartbeats. The job's events go
    /// to `events`. The caller cancels `interrupted` when this process is to end.
    #[crate::boxed]
    pub async fn begin(
        journal: Arc<dyn Journal>,
        id: &JobId,
        process: &str,
        timing: OwnerTiming,
        events: &Events,
        interrupted: CancellationToken,
    ) -> Result<Self, RunError> {
        let stale_after_ms = u64::try_from(timing.stale_after.as_millis()).unwrap_or(u64::MAX);
        let ownership = Ownership::new(Moment::now());
        let claimed = journal.claim(id, process, stale_after_ms).await?;
        let record = claimed.record;
        let control = Control::new(record.limits, interrupted).map_err(JournalError::from)?;
        let shared = Arc::new(Shared {
            reporter: events.reporter(id.clone(), record.kind.clone()),
            journal,
            id: id.clone(),
            epoch: claimed.epoch,
            control,
            ownership,
            timing,
            predictions: std::sync::Mutex::new(record.predictions.clone()),
            state: Mutex::new(Some(record.state.clone())),
            claimed: record,
        });
        // What another process predicted, before the job waited for this one, cannot come true.
        shared.withdraw_times();
        // Requests from before the claim take effect from the first step on.
        shared.send_heartbeat().await?;
        let heartbeat = tokio::spawn(heartbeats(Arc::clone(&shared)));
        Ok(Self { shared, _heartbeat: Arc::new(AbortOnDropHandle::new(heartbeat)) })
    }

    /// Returns the job's record at the time of the claim, from which the operation resumes.
    pub fn record(&self) -> &Record {
        &self.shared.claimed
    }

    /// Returns the epoch of this process's claim of the job.
    pub fn epoch(&self) -> u64 {
        self.shared.epoch
    }

    /// Returns the control, which the operation checks before each step.
    pub fn control(&self) -> &Control {
        &self.shared.control
    }

    /// Returns the ownership of the job, by which the operation checks how long ago the journal confirmed it.
    pub fn ownership(&self) -> Ownership {
        self.shared.ownership.clone()
    }

    /// Returns the reporter, to which the operation reports the job's events.
    pub fn reporter(&self) -> &Reporter {
        &self.shared.reporter
    }

    /// Enters the phase with this name: saves it in the journal, and then reports it. Waits while the job is paused.
    #[crate::boxed]
    pub async fn enter(&self, phase: &str) -> Result<(), RunError> {
        loop {
            self.shared.control.checkpoint().await?;
            let mut state = self.shared.state.lock().await;
            // A pause that was requested in between is waited for too.
            if !self.shared.control.is_paused() {
                let to = State::Running { phase: phase.to_owned() };
                self.shared.save(&mut state, &Update::of(to), &self.shared.control).await?;
                self.shared.reporter.phase(phase);
                return Ok(());
            }
        }
    }

    /// Saves the checkpoint, from which the operation can resume, in the journal.
    #[crate::boxed]
    pub async fn save(&self, checkpoint: Value) -> Result<(), RunError> {
        let mut state = self.shared.state.lock().await;
        let update = Update { checkpoint: Some(checkpoint), ..Update::default() };
        self.shared.save(&mut state, &update, &self.shared.control).await.map(drop)
    }

    /// Saves the checkpoint as [`Run::save`] does, even if the operation must end: for state that the job's next
    /// owner needs.
    #[crate::boxed]
    pub async fn save_final(&self, checkpoint: Value) -> Result<(), RunError> {
        let mut state = self.shared.state.lock().await;
        let update = Update { checkpoint: Some(checkpoint), ..Update::default() };
        self.shared.save(&mut state, &update, &Control::default()).await.map(drop)
    }

    /// Records that the quantity `name` was predicted at `at_ms`, in milliseconds since the Unix epoch; the heartbeat saves
    /// it. A quantity that is predicted already, or one beyond [`PREDICTIONS_MAX`], is not recorded. Returns true if it was.
    pub fn predict(&self, name: &str, predicted: Interval, at_ms: u64) -> bool {
        let mut all = self.shared.lock_predictions();
        let is_new = all.len() < PREDICTIONS_MAX && all.iter().all(|one| one.name != name);
        if is_new {
            let name = name.to_owned();
            all.push(Prediction { name, predicted, at_ms, realized: None });
        }
        is_new
    }

    /// Records the measured value of the predicted quantity `name`, unless there is no such prediction, or it has one. `value`
    /// gets the time of the prediction, in milliseconds since the Unix epoch.
    pub fn realize(&self, name: &str, value: impl FnOnce(u64) -> f64) {
        let mut all = self.shared.lock_predictions();
        if let Some(one) = all.iter_mut().find(|one| one.name == name && one.realized.is_none()) {
            one.realized = Some(value(one.at_ms));
        }
    }

    /// Ends the run: saves the final state, ends the ownership of the job, and reports the end. After an interruption
    /// or a handover the state stays unchanged, so that the job can be resumed. A run that was taken over or has lost
    /// its journal saves nothing.
    #[crate::boxed]
    pub async fn end(&self, ending: Ending) -> Result<(), RunError> {
        let shared = &self.shared;
        let mut state = shared.state.lock().await;
        let (body, last) = match ending {
            Ending::Done => (Body::Done, Some(State::Done)),
            Ending::Failed(error) => {
                (Body::Failed { error: error.clone() }, Some(State::Failed { error }))
            }
            Ending::Stopped(Stop::Cancelled) => (Body::Cancelled, Some(State::Cancelled)),
            Ending::Stopped(Stop::Interrupted) => (Body::Interrupted, None),
            Ending::Stopped(Stop::HandedOver) => (Body::HandedOver, None),
            Ending::Stopped(lost @ (Stop::TakenOver(_) | Stop::JournalLost(_))) => {
                *state = None;
                shared.reporter.emit(Body::Failed { error: lost.to_string() });
                return Ok(());
            }
        };
        // A stopped run must still be able to save its end.
        let unstopped = Control::default();
        if let (Some(State::Paused { phase }), Some(State::Done)) = (&*state, &last) {
            // The job was paused after its last step.
            let update = Update::of(State::Running { phase: phase.clone() });
            shared.save(&mut state, &update, &unstopped).await?;
        }
        let progress = shared.reporter.latest_progress();
        let predictions = Some(shared.predictions());
        let update = Update { state: last, progress, predictions, checkpoint: None };
        shared.save(&mut state, &update, &unstopped).await?;
        retry("end the ownership of the job", &FINAL_SAVE_RETRY, &unstopped, is_transient, |_| {
            shared.journal.release(&shared.id, shared.epoch)
        })
        .await
        .map_err(RunError::from)?;
        *state = None;
        shared.reporter.emit(body);
        Ok(())
    }
}

/// Retry budget of a save while the operation runs: a journal that is unavailable for five minutes ends no run.
const BUDGET: Budget = Budget {
    attempts_max: 400,
    elapsed_max: GIVES_UP_AFTER,
    backoff: Backoff { first_ms: 50, max_ms: 2_000 },
};
/// Retry budget of a save after the operation was stopped, and of the release: enough for the election of a new
/// primary. The command that ends the run waits for the save.
const FINAL_SAVE_RETRY: Budget =
    Budget { attempts_max: 50, elapsed_max: Duration::from_secs(30), ..BUDGET };

fn is_transient(error: &JournalError) -> bool {
    error.is_transient()
}

impl Shared {
    /// Saves `update` in the journal, retrying within a budget until `control` stops, and stores the saved state in
    /// `state`, which the caller has locked.
    async fn save(
        &self,
        state: &mut Option<State>,
        update: &Update,
        control: &Control,
    ) -> Result<OperatorRequests, RunError> {
        // The command that stopped the run waits for its end.
        let budget = if self.control.stopped().is_some() { &FINAL_SAVE_RETRY } else { &BUDGET };
        let saved = retry("save the state of the job", budget, control, is_transient, |_| {
            self.save_once(update)
        })
        .await
        .map_err(RunError::from);
        match &saved {
            Ok(_) => {
                if let Some(saved) = &update.state {
                    *state = Some(saved.clone());
                }
            }
            Err(RunError::Journal(JournalError::Fenced { .. })) => self.taken_over(),
            Err(_) => {}
        }
        saved
    }

    async fn save_once(&self, update: &Update) -> Result<OperatorRequests, JournalError> {
        let sent = Moment::now();
        let asked = self.journal.save(&self.id, self.epoch, update).await?;
        self.ownership.confirm(sent);
        Ok(asked)
    }

    fn lock_predictions(&self) -> std::sync::MutexGuard<'_, Vec<Prediction>> {
        // Every change is a single step, so the list is consistent even after a panic.
        self.predictions.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn predictions(&self) -> Vec<Prediction> {
        self.lock_predictions().clone()
    }

    /// Removes the predicted times that are not measured yet: they are those of a job that runs without a pause.
    fn withdraw_times(&self) {
        self.lock_predictions().retain(|one| one.realized.is_some() || !one.is_time());
    }

    fn taken_over(&self) {
        self.control.stop(Stop::TakenOver(format!("job {} has a new owner", self.id)));
    }

    /// Sends one heartbeat: saves the job's progress, and applies the operator's requests from the reply.
    async fn send_heartbeat(&self) -> Result<(), RunError> {
        let mut state = self.state.lock().await;
        if state.is_none() {
            return Ok(());
        }
        let (progress, predictions) = (self.reporter.latest_progress(), Some(self.predictions()));
        let update = Update { progress, predictions, ..Update::default() };
        // Not retried: the next heartbeat is the retry.
        let asked = self.save_once(&update).await?;
        self.control.throttle().set(asked.limits).map_err(JournalError::from)?;
        match asked.control {
            Requested::Run => self.resume(&mut state).await,
            Requested::Pause => self.pause(&mut state).await,
            asked @ (Requested::Cancel | Requested::HandOver) => {
                self.control.request(asked);
                Ok(())
            }
        }
    }

    async fn pause(&self, state: &mut Option<State>) -> Result<(), RunError> {
        if self.control.is_paused() {
            return Ok(());
        }
        if let Some(State::Running { phase }) = state {
            let update = Update::of(State::Paused { phase: phase.clone() });
            self.save(state, &update, &self.control).await?;
        }
        self.control.request(Requested::Pause);
        self.withdraw_times();
        self.reporter.emit(Body::Paused { cause: "paused by the operator".to_owned() });
        Ok(())
    }

    async fn resume(&self, state: &mut Option<State>) -> Result<(), RunError> {
        if let Some(State::Paused { phase }) = state {
            let update = Update::of(State::Running { phase: phase.clone() });
            self.save(state, &update, &self.control).await?;
        }
        if self.control.is_paused() {
            self.control.request(Requested::Run);
            self.reporter.emit(Body::Resumed);
        }
        Ok(())
    }
}

/// Sends heartbeats until the run ends, another process takes the job over, or the journal is lost.
async fn heartbeats(shared: Arc<Shared>) {
    let OwnerTiming { heartbeat, stale_after, gives_up_after } = shared.timing;
    let mut alive = Instant::now();
    loop {
        tokio::time::sleep(heartbeat).await;
        if shared.state.lock().await.is_none() {
            return;
        }
        let began = Instant::now();
        let failure = match tokio::time::timeout(stale_after, shared.send_heartbeat()).await {
            Ok(Ok(())) => {
                alive = began;
                continue;
            }
            Ok(Err(RunError::Stopped(_))) => continue,
            Ok(Err(RunError::Journal(JournalError::Fenced { .. }))) => {
                return shared.taken_over();
            }
            Ok(Err(RunError::Journal(error))) if !error.is_transient() => {
                return shared.control.stop(Stop::JournalLost(error.to_string()));
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        let silent = alive.elapsed();
        if silent >= gives_up_after {
            let why = format!("{failure}; for {} ms", silent.as_millis());
            return shared.control.stop(Stop::JournalLost(why));
        }
        shared.reporter.warning(
            "journal_unreachable",
            format!("the job's state could not be saved: {failure}"),
            format!(
                "nothing is written meanwhile; the job stops if this lasts {} s",
                gives_up_after.as_secs()
            ),
        );
    }
}

impl From<RetryError<JournalError>> for RunError {
    fn from(error: RetryError<JournalError>) -> Self {
        match error {
            RetryError::Stopped(stop) => RunError::Stopped(stop),
            RetryError::Failed { last, .. } if !last.is_transient() => RunError::Journal(last),
            failed => RunError::Unreachable(Box::new(failed)),
        }
    }
}

impl Update {
    /// Returns an update that changes only the job's state.
    pub fn of(state: State) -> Self {
        Self { state: Some(state), ..Self::default() }
    }
}

#[cfg(test)]
mod tests;
