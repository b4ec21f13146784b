//! Saves of a job's checkpoint in the background, so that changes do not wait for the destination's majority.
//!
//! Invariant: an older state never reaches the record after a newer one, because at most one save is in progress.

use std::time::{Duration, Instant};

use imago_job::run::Run;
use tokio_util::task::AbortOnDropHandle;

use super::state::{State, save};
use crate::error::Result;

/// Shortest time between the starts of two saves.
const SAVE_EVERY: Duration = Duration::from_secs(1);

/// Saves of a job's checkpoint.
pub(super) struct CheckpointSaver {
    saved: Instant,
    /// The save in progress; `None` if there is none.
    saving: Option<AbortOnDropHandle<Result<()>>>,
}

impl CheckpointSaver {
    pub fn new() -> Self {
        Self { saved: Instant::now(), saving: None }
    }

    /// Returns true if the next save is due, and none is in progress.
    ///
    /// # Errors
    /// Returns the error of the last save.
    pub async fn is_due(&mut self) -> Result<bool> {
        if self.saving.as_ref().is_some_and(AbortOnDropHandle::is_finished) {
            self.finish().await?;
        }
        Ok(self.saving.is_none() && self.saved.elapsed() > SAVE_EVERY)
    }

    /// Starts a save of `state` in the background.
    pub fn begin(&mut self, run: &Run, state: &State) {
        self.restart();
        let (run, state) = (run.clone(), state.clone());
        let saving = tokio::spawn(async move { save(&run, &state).await });
        self.saving = Some(AbortOnDropHandle::new(saving));
    }

    /// Waits for the save in progress, if there is one.
    ///
    /// # Errors
    /// Returns the error of that save.
    pub async fn finish(&mut self) -> Result<()> {
        match self.saving.take() {
            Some(saving) => saving.await.expect("a save neither panics nor is aborted"),
            None => Ok(()),
        }
    }

    /// Counts the time until the next save from now.
    pub fn restart(&mut self) {
        self.saved = Instant::now();
    }
}
