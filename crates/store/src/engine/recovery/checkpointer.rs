//! Assembles checkpoints from the sites' parts, and removes the log before them.
//!
//! A checkpoint that cannot be written does not disturb clients: the log is kept, and the next one is tried
//! when the log has grown as much again.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use super::log_options::Folder;
use crate::checkpoint;
use crate::key::Key;
use crate::log::{self, LogError};
use crate::record::Position;
use crate::sequencer::Sequencer;
use crate::site::{Part, Snapshot};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::mpsc::Receiver;
use crate::sync::{Mutex, point};

/// The state of checkpoints.
#[derive(Clone, Debug, Default)]
pub struct Checkpoints {
    /// The prefix of the log that the newest is of; 0 without one.
    pub newest: Position,
    /// Why the last one was not written, if so.
    pub failure: Option<String>,
}

pub(in crate::engine) struct Checkpointer {
    pub folder: Folder,
    /// True if a checkpoint has to name the place in a topic at which it was made.
    pub is_of_topic: bool,
    pub sequencer: Sequencer,
    pub parts: Receiver<Part>,
    /// Bytes of log between checkpoints: as many as the newest checkpoint has, and no fewer than the folder
    /// says.
    pub mark_every: Arc<AtomicU64>,
    pub state: Arc<Mutex<Checkpoints>>,
}

impl Checkpointer {
    /// Goes on until no site is there any more.
    pub fn run(self) {
        let mut parts: Vec<Part> = Vec::new();
        while let Ok(part) = self.parts.recv() {
            match parts.first().map(|first| first.known) {
                Some(known) if part.known < known => continue,
                Some(known) if part.known > known => parts.clear(),
                _ => {}
            }
            parts.push(part);
            if let Some(snapshots) = complete(&parts) {
                let first = parts.swap_remove(0);
                parts.clear();
                let written = self.write(&first, &snapshots);
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                match written {
                    Ok(()) => *state = Checkpoints { newest: first.known, failure: None },
                    Err(error) => state.failure = Some(crate::sequencer::with_causes(&error)),
                }
            }
        }
    }

    fn write(&self, first: &Part, snapshots: &[Snapshot]) -> Result<(), LogError> {
        // A checkpoint that knew more than the log would be a second truth.
        if !self.sequencer.sync() {
            return Ok(());
        }
        let Folder { path, mark_every_min, .. } = &self.folder;
        let landmark = self.sequencer.landmark(first.known);
        if self.is_of_topic && landmark.is_none() {
            let why = "its sites gave their parts too late, and where it is was forgotten".into();
            return Err(LogError::Remote {
                doing: "make a checkpoint of",
                log: "the topic".into(),
                why,
            });
        }
        let design = &first.design;
        let bytes = checkpoint::write(path, first.known, design, snapshots, landmark.as_ref())?;
        self.mark_every.store(bytes.max(*mark_every_min), Ordering::Relaxed);
        point();
        checkpoint::drop_before(path, first.known)?;
        point();
        log::drop_before(path, first.known)
    }
}

/// The rows of all partitions, if they are all there.
pub(crate) fn complete(parts: &[Part]) -> Option<Vec<Snapshot>> {
    let snapshots = parts.iter().flat_map(|part| &part.copies);
    let by_start: BTreeMap<&Key, &Snapshot> =
        snapshots.map(|snapshot| (&snapshot.start, snapshot)).collect();
    let design = &parts.first()?.design;
    let found = design.partitions().map(|partition| by_start.get(&partition.range.start).copied());
    found.map(Option::<&Snapshot>::cloned).collect()
}
