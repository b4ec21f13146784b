//! The runs of a log: each process that writes a log in a folder records in `runs.json` there the position from which
//! on it writes, with a random number that identifies this *run*.
//!
//! A site that kept its rows names the run that they are from, and their position. The site's position is not
//! certainly a part of this log: the log may have lost its end, or be a restored copy. It is a part if no later run
//! began at or before it.
//!
//! Invariant: if a run is recorded, the log has at each position from its first up to the next run's first the entry
//! that the run wrote or found there.

use std::fs;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::path::Path;

use imago_job::atomic_file;
use serde::{Deserialize, Serialize};

use super::{Result, failed};
use crate::record::Position;

/// Version of the format of `runs.json`.
const VERSION: u32 = 1;
/// Maximum number of runs that `runs.json` records; a site with rows of an older run receives all rows.
const RUNS_MAX: usize = 64;

/// A period in which one process writes the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Run {
    /// The random number that identifies the run.
    id: u64,
    /// Position of the first log entry that the run may write.
    first: Position,
}

/// The recorded runs of a log; the last one is the present run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Runs {
    /// Version of the format of `runs.json`.
    version: u32,
    /// The runs in order of time.
    runs: Vec<Run>,
}

impl Runs {
    /// Returns a list with one new run that begins at position `first`, without recording it in a file.
    pub fn of_one(first: Position) -> Self {
        Self { version: VERSION, runs: vec![Run { id: drawn(), first }] }
    }

    /// Begins a run whose first entry has position `first`, and records it in `runs.json` in the log's folder before
    /// entries are written. If that fails, only the earlier record is removed.
    ///
    /// # Errors
    /// Returns an error if the run cannot be recorded and `runs.json` of the earlier runs cannot be removed.
    pub fn begin(folder: &Path, first: Position) -> Result<Self> {
        let path = folder.join("runs.json");
        let before =
            fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Self>(&bytes).ok());
        let mut runs = Self::of_one(first);
        if let Some(before) = before.filter(|before| before.version == VERSION) {
            let surplus = (before.runs.len() + 1).saturating_sub(RUNS_MAX);
            runs.runs.splice(0..0, before.runs.into_iter().skip(surplus));
        }
        let bytes = serde_json::to_vec(&runs).map_err(io::Error::from);
        if let Err(error) = bytes.and_then(|bytes| atomic_file::replace(&path, &bytes)) {
            // Without the file, sites are sent all rows; with an outdated one, a site could be sent a wrong
            // difference.
            tracing::warn!(%error, "{} is not written: sites are sent all rows", path.display());
            match fs::remove_file(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed("remove", &path)(error)),
            }
        }
        Ok(runs)
    }

    /// Returns the random number that identifies the present run.
    pub fn current(&self) -> u64 {
        self.runs.last().map_or(0, |run| run.id)
    }

    /// Returns true if this log has the same entries up to position `known` as the log of the run with number `id`
    /// had; false if that run is not recorded.
    pub fn has(&self, id: u64, known: Position) -> bool {
        let Some(at) = self.runs.iter().position(|run| run.id == id) else { return false };
        let next = self.runs.get(at + 1);
        known + 1 >= self.runs[at].first && next.is_none_or(|next| known < next.first)
    }
}

/// Returns a random number to identify a run.
fn drawn() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_of_the_log_up_to_where_the_next_run_began() {
        let folder = tempfile::tempdir().unwrap();
        let one = Runs::begin(folder.path(), Position(1)).unwrap();
        let two = Runs::begin(folder.path(), Position(501)).unwrap();
        assert_ne!(one.current(), two.current());
        let has = |known| two.has(one.current(), Position(known));
        assert_eq!((has(0), has(500), has(501)), (true, true, false), "its end was lost");
        assert!(two.has(two.current(), Position(500)) && two.has(two.current(), Position(9_000)));
        assert!(!two.has(two.current(), Position(499)) && !two.has(7, Position(10)));
    }

    #[test]
    fn a_restored_copy_goes_its_own_way() {
        let (live, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let one = Runs::begin(live.path(), Position(1)).unwrap();
        fs::copy(live.path().join("runs.json"), copy.path().join("runs.json")).unwrap();
        // The store went on to position 900 behind the copy, which ends at 600.
        let restored = Runs::begin(copy.path(), Position(601)).unwrap();
        assert!(restored.has(one.current(), Position(600)));
        assert!(!restored.has(one.current(), Position(900)), "it has other entries there");
    }

    #[test]
    fn a_damaged_file_is_begun_anew_and_the_list_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("runs.json"), b"{\"version\":1,").unwrap();
        let first = Runs::begin(folder.path(), Position(1)).unwrap();
        for n in 1..=RUNS_MAX as u64 {
            Runs::begin(folder.path(), Position(n)).unwrap();
        }
        let last = Runs::begin(folder.path(), Position(100)).unwrap();
        assert_eq!((last.runs.len(), last.has(first.current(), Position(0))), (RUNS_MAX, false));
    }
}
