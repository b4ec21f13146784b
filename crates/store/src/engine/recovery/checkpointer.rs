//! Assembles checkpoints from the parts that sites deliver, and removes the log before them.
//!
//! A checkpoint that cannot be written does not affect clients: the log is retained, and another checkpoint is
//! attempted when the log has grown by the same amount again.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use super::holds::Holds;
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

/// The state of the checkpoints of a store's log.
#[derive(Clone, Debug, Default)]
pub struct Checkpoints {
    /// Position as of which the newest checkpoint was made; 0 without a checkpoint.
    pub newest: Position,
    /// Why the last attempt to write a checkpoint failed; `None` if it succeeded or there was none.
    pub failure: Option<String>,
}

/// The state of the thread that assembles and writes checkpoints.
pub(in crate::engine) struct Checkpointer {
    /// The folder in which checkpoints are written.
    pub folder: Folder,
    /// True if the log is in Kafka, so that a checkpoint has to record its location in the topic.
    pub is_of_topic: bool,
    /// The sequencer of the log from which checkpoints are made.
    pub sequencer: Sequencer,
    /// Receives the parts of checkpoints that the sites deliver.
    pub parts: Receiver<Part>,
    /// Positions of the log that transfers to sites still read: a checkpoint does not remove the log after them.
    pub holds: Holds,
    /// Size of the log between two checkpoints, in bytes: the size of the newest checkpoint, and at least
    /// [`Folder::mark_every_min`].
    pub mark_every: Arc<AtomicU64>,
    /// The state of the checkpoints that the store reports.
    pub state: Arc<Mutex<Checkpoints>>,
}

impl Checkpointer {
    /// Writes checkpoints until no site can deliver parts any more.
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

    /// Writes a checkpoint of these snapshots as of the position of the part `first`, and removes older checkpoints
    /// and the log that is not needed any more.
    fn write(&self, first: &Part, snapshots: &[Snapshot]) -> Result<(), LogError> {
        // A checkpoint must not contain changes that the durable log lacks.
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
        // Files that a transfer still reads are removed after a later checkpoint.
        match self.holds.at_most(first.known) {
            Position::START => Ok(()),
            upto => log::drop_before(path, upto),
        }
    }
}

/// Returns the rows of all partitions of the design in key order, or `None` if the parts lack a partition.
pub(crate) fn complete(parts: &[Part]) -> Option<Vec<Snapshot>> {
    let snapshots = parts.iter().flat_map(|part| &part.copies);
    let by_start: BTreeMap<&Key, &Snapshot> =
        snapshots.map(|snapshot| (&snapshot.start, snapshot)).collect();
    let design = &parts.first()?.design;
    let found = design.partitions().map(|partition| by_start.get(&partition.range.start).copied());
    found.map(Option::<&Snapshot>::cloned).collect()
}
