//! The location of a store's log, and the recovery of the database from it: for a store that starts, and for a
//! site that begins a new epoch.
//!
//! Recovery reads the newest checkpoint, if there is one, and the log after it. It checks that the two belong
//! together: a checkpoint of a log in Kafka records its location in the topic, one of a log in the same folder
//! does not.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::checkpoint::{self, Checkpoint, CheckpointStream};
use crate::design::{Design, Partition};
use crate::engine::StoreError;
use crate::engine::site::epoch::Epochs;
use crate::kafka::{KafkaLog, KafkaSpec, Landmark};
use crate::log::{self, CutTail, Log, LogError, LogReader, RedoLog as _, Runs, Sync};
use crate::record::{LogEntry, Position, Site};
use crate::sequencer::Sequencer;
use crate::site::{Core, Input};
use crate::sync::atomic::AtomicU64;
use crate::sync::point;
use crate::sync::thread::JoinHandle;

/// Number of attempts to read a checkpoint and the log after it. An attempt fails if a newer checkpoint replaces the
/// files during the read.
const IMAGE_TRIES: usize = 3;
/// Maximum time to wait for Kafka brokers that must create or check the topic while the store starts.
const OPEN_PATIENCE: Duration = Duration::from_secs(15);
/// Maximum duration of one wait for log entries that the topic is known to have.
const TOPIC_WAIT: Duration = Duration::from_millis(200);

/// The location of a store's log.
#[derive(Clone, Debug)]
pub enum LogOptions {
    /// Files in a folder, which only this process writes.
    Files {
        /// Folder of the log files, which also has the checkpoints.
        folder: PathBuf,
        /// When log entries that were written are made durable.
        sync: Sync,
        /// Size at which a new log file is begun, in bytes; also the minimum size of the log between two checkpoints.
        segment_bytes: u64,
    },
    /// A topic in Kafka, which other processes may write too.
    Kafka {
        /// The topic, its brokers, and the time for which a process waits for them.
        topic: KafkaSpec,
        /// Folder of checkpoints; `None` for none: a start then reads the topic from its first record.
        checkpoints: Option<PathBuf>,
        /// Minimum size of the topic's records between two checkpoints, in bytes.
        checkpoint_bytes: u64,
    },
}

/// A recovered log that can be written, and the database that the log contains.
pub(in crate::engine) struct Recovered {
    /// The database as of the end of the log; only the design if the rows were not requested.
    pub(in crate::engine) image: Core,
    /// The sequencer of the log, which writes further entries.
    pub(in crate::engine) sequencer: Sequencer,
    /// The thread that writes the log; `None` without a log.
    pub(in crate::engine) thread: Option<JoinHandle<()>>,
    /// Size of the log between two checkpoints, in bytes: the newest checkpoint's size, or the minimum if that is
    /// larger.
    pub(in crate::engine) mark_every: Arc<AtomicU64>,
    /// Position as of which the newest checkpoint was made; 0 without a checkpoint.
    pub(in crate::engine) newest: Position,
    /// The folder of checkpoints; `None` if none are made.
    pub(in crate::engine) checkpoints: Option<Folder>,
    /// The damaged end of the log that was cut off; `None` if nothing was cut off.
    pub(in crate::engine) cut: Option<CutTail>,
    /// The runs of the log: the periods in which one process each wrote it.
    pub(in crate::engine) runs: Runs,
}

/// The saved state of a store, which is read piece by piece: the newest checkpoint, and the log after it.
pub(in crate::engine) struct SavedState {
    /// Position as of which the checkpoint was made; 0 without a checkpoint.
    pub(in crate::engine) known: Position,
    /// Design at the position `known`.
    pub(in crate::engine) design: Design,
    /// Reads the checkpoint's rows; `None` without a checkpoint.
    pub(in crate::engine) rows: Option<CheckpointStream>,
    /// Reads the log entries after the checkpoint.
    pub(in crate::engine) rest: Rest,
}

/// A folder of checkpoints, and how often they are made.
pub(in crate::engine) struct Folder {
    /// Path of the folder of checkpoints.
    pub(in crate::engine) path: PathBuf,
    /// Minimum size of the log between two checkpoints, in bytes.
    pub(in crate::engine) mark_every_min: u64,
    /// Lock that keeps other processes out of the folder; `None` if the log itself locks the folder.
    pub(in crate::engine) _lock: Option<log::FolderLock>,
}

impl Recovered {
    /// Returns the empty database of a store without a log, whose data is lost when the process ends.
    pub(in crate::engine) fn in_memory() -> Self {
        Self {
            image: Core::observer(Design::new(Site(0))),
            sequencer: Sequencer::in_memory(),
            thread: None,
            mark_every: Arc::default(),
            newest: Position::START,
            checkpoints: None,
            cut: None,
            runs: Runs::of_one(Position::FIRST),
        }
    }
}

impl LogOptions {
    /// Opens the log for a store with `sites` sites, and recovers the database from the newest checkpoint and the log
    /// after it. If `has_rows` is false, only the design is recovered.
    pub(in crate::engine) fn recover(
        &self,
        sites: u16,
        has_rows: bool,
    ) -> Result<Recovered, StoreError> {
        let failed = |error| StoreError::Start("the log", error);
        match self {
            Self::Files { folder, sync, segment_bytes } => {
                let Checkpoint { mut image, bytes, .. } = self.newest(Some(folder), has_rows)?;
                let mark_every = Arc::new(AtomicU64::new(bytes.max(*segment_bytes)));
                let newest = image.known();
                let from = newest + 1;
                let see = |position, entry| follow(&mut image, position, entry);
                let log = Log::open_from(folder, *sync, *segment_bytes, from, see)?;
                if let Some(cut) = log.cut_tail() {
                    let missing = match sync {
                        Sync::Always => {
                            "it was never acknowledged, unless the disk has damaged it since: then the last \
                             commits are missing"
                        }
                        Sync::Every(_) => {
                            "what was acknowledged in the last moment of --sync may be missing"
                        }
                        Sync::Never => {
                            "what was acknowledged and not yet on the disk may be missing"
                        }
                    };
                    tracing::warn!("{cut}; {missing}");
                }
                let cut = log.cut_tail().cloned();
                self.check_sites(&image, sites)?;
                let runs = Runs::begin(folder, log.next())?;
                let (sequencer, thread) =
                    Sequencer::of(log, Arc::clone(&mark_every)).map_err(failed)?;
                let (path, mark_every_min) = (folder.clone(), *segment_bytes);
                let checkpoints = Some(Folder { path, mark_every_min, _lock: None });
                let thread = Some(thread);
                Ok(Recovered {
                    image,
                    sequencer,
                    thread,
                    mark_every,
                    newest,
                    checkpoints,
                    cut,
                    runs,
                })
            }
            Self::Kafka { topic, checkpoints, checkpoint_bytes } => {
                let lock = checkpoints.as_deref().map(log::lock_folder).transpose()?;
                let Checkpoint { mut image, bytes, landmark } =
                    self.newest(checkpoints.as_deref(), has_rows)?;
                let mark_every_min = *checkpoint_bytes;
                let is_marked = checkpoints.is_some();
                let every = if is_marked { bytes.max(mark_every_min) } else { u64::MAX };
                let mark_every = Arc::new(AtomicU64::new(every));
                let patience = topic.patience.min(OPEN_PATIENCE);
                KafkaLog::open(KafkaSpec { patience, ..topic.clone() })?;
                let mut log = reader(topic, landmark.as_ref())?;
                let newest = image.known();
                read_topic(&mut log, &mut image, None)?;
                self.check_sites(&image, sites)?;
                let first = image.known() + 1;
                let runs = match checkpoints {
                    Some(folder) => Runs::begin(folder, first)?,
                    None => Runs::of_one(first),
                };
                let sequencer = Sequencer::of_topic(log, image.known(), Arc::clone(&mark_every));
                let (sequencer, thread) = sequencer.map_err(failed)?;
                let folder =
                    |path: &PathBuf| Folder { path: path.clone(), mark_every_min, _lock: lock };
                let (checkpoints, thread) = (checkpoints.as_ref().map(folder), Some(thread));
                let cut = None;
                Ok(Recovered {
                    image,
                    sequencer,
                    thread,
                    mark_every,
                    newest,
                    checkpoints,
                    cut,
                    runs,
                })
            }
        }
    }

    /// True if checkpoints of this log are made.
    pub(in crate::engine) fn has_checkpoints(&self) -> bool {
        !matches!(self, Self::Kafka { checkpoints: None, .. })
    }

    /// Returns an error if the design names a site that a store of `sites` sites lacks.
    fn check_sites(&self, image: &Core, sites: u16) -> Result<(), StoreError> {
        let known = image.design().partitions().flat_map(Partition::known_sites);
        let least = known.map(|site| site.0 + 1).max().unwrap_or_default();
        if least > sites {
            return Err(StoreError::SitesMissing { log: self.to_string(), least });
        }
        Ok(())
    }

    /// Returns the rule by which this process numbers the epochs of its sites, based on the design as of its log.
    pub(in crate::engine) fn epochs(log: Option<&Self>, design: &Design) -> Epochs {
        match log {
            None | Some(Self::Files { .. }) => Epochs::of_one_process(),
            Some(Self::Kafka { .. }) => Epochs::of_one_of_many(design),
        }
    }

    /// Reads the database as of position `known`, or as of the newest checkpoint if that is later.
    pub(in crate::engine) fn image_of(&self, known: Position) -> log::Result<Core> {
        retried(|| self.try_image_of(known))
    }

    fn try_image_of(&self, known: Position) -> log::Result<Core> {
        match self {
            Self::Files { folder, .. } => {
                let mut image = self.newest(Some(folder), true)?.image;
                point();
                let from = image.known() + 1;
                let see = |position, entry| follow(&mut image, position, entry);
                log::read(folder, from, known, see)?;
                Ok(image)
            }
            Self::Kafka { topic, checkpoints, .. } => {
                let Checkpoint { mut image, landmark, .. } =
                    self.newest(checkpoints.as_deref(), true)?;
                let mut log = reader(topic, landmark.as_ref())?;
                read_topic(&mut log, &mut image, Some((known, topic.patience)))?;
                Ok(image)
            }
        }
    }

    /// Opens the newest checkpoint and the log after it, to be read piece by piece while the log grows.
    pub(in crate::engine) fn saved_state(&self) -> log::Result<SavedState> {
        retried(|| self.try_saved_state())
    }

    fn try_saved_state(&self) -> log::Result<SavedState> {
        let (Self::Files { folder, .. } | Self::Kafka { checkpoints: Some(folder), .. }) = self
        else {
            return self.saved_state_from(None);
        };
        self.saved_state_from(CheckpointStream::open(folder)?)
    }

    /// Returns the saved state that begins with these rows of a checkpoint, or with the empty database if `rows` is
    /// `None`.
    fn saved_state_from(&self, rows: Option<CheckpointStream>) -> log::Result<SavedState> {
        let initial = || (Position::START, Design::new(Site(0)));
        let (known, design) =
            rows.as_ref().map_or_else(initial, |rows| (rows.known, rows.design.unshared()));
        let rest = match self {
            Self::Files { folder, .. } => Rest::Files(LogReader::at(folder, known + 1)?),
            Self::Kafka { topic, .. } => {
                let landmark = rows.as_ref().and_then(|rows| rows.landmark.as_ref());
                let log = Box::new(reader(topic, landmark)?);
                Rest::Topic(log, topic.patience, known + 1)
            }
        };
        Ok(SavedState { known, design, rows, rest })
    }

    /// Reads the newest checkpoint of a folder: with its rows, or checked and without them. Returns the empty
    /// checkpoint if there is no folder or checkpoint. Fails if the checkpoint is not of this log.
    fn newest(&self, folder: Option<&Path>, has_rows: bool) -> log::Result<Checkpoint> {
        let initial = Design::new(Site(0));
        let Some(folder) = folder else { return Ok(Checkpoint::empty(initial)) };
        let newest = match has_rows {
            true => checkpoint::read_newest(folder, initial)?,
            false => match CheckpointStream::open(folder)? {
                Some(stream) => stream.into_design()?,
                None => {
                    let image = Core::onlooker(Position::START, initial);
                    Checkpoint { image, bytes: 0, landmark: None }
                }
            },
        };
        let is_of_topic = newest.landmark.is_some();
        let path = || folder.to_owned();
        match self {
            Self::Files { .. } if is_of_topic => {
                Err(LogError::Foreign { path: path(), what: "the checkpoints of a log in Kafka" })
            }
            Self::Kafka { .. }
                if newest.image.known() > Position::START && !is_of_topic
                    || log::is_in(folder)? =>
            {
                Err(LogError::Foreign { path: path(), what: "a log of its own" })
            }
            _ => Ok(newest),
        }
    }
}

/// Repeats a failed read up to [`IMAGE_TRIES`] attempts: a newer checkpoint may have been written during the read,
/// and the files before it removed.
fn retried<T>(read: impl Fn() -> log::Result<T>) -> log::Result<T> {
    let mut tries = 0;
    loop {
        tries += 1;
        match read() {
            Err(_) if tries < IMAGE_TRIES => {}
            other => return other,
        }
    }
}

/// Returns a reader of a topic that begins after a checkpoint's location, or at the first record if `landmark` is
/// `None`.
fn reader(topic: &KafkaSpec, landmark: Option<&Landmark>) -> log::Result<KafkaLog> {
    let mut log = KafkaLog::reader(topic.clone());
    if let Some(landmark) = landmark {
        log.begin_at(landmark)?;
    }
    Ok(log)
}

/// Reads the log after a checkpoint.
pub(in crate::engine) enum Rest {
    /// Reads log files in a folder.
    Files(LogReader),
    /// Reads a topic in Kafka; with the time for which its leader may lack entries, and the position of the next
    /// entry.
    Topic(Box<KafkaLog>, Duration, Position),
}

impl Rest {
    /// Returns entries from the next position on, and the position of the first of them. The log must have entries up
    /// to position `upto`; the entries of a topic may extend beyond it.
    pub(in crate::engine) fn read(
        &mut self,
        upto: Position,
    ) -> log::Result<(Position, Vec<LogEntry>)> {
        match self {
            Self::Files(reader) => reader.read(upto),
            Self::Topic(log, patience, next) => {
                let (first, until) = (*next, Instant::now() + *patience);
                let mut entries = Vec::new();
                while entries.is_empty() && *next <= upto {
                    let mut see = |_, entry| entries.push(entry);
                    let behind = log.deliver(*next, TOPIC_WAIT, &mut see)?;
                    if behind == *next && Instant::now() >= until {
                        return Err(log.lost(upto));
                    }
                    *next = behind;
                }
                Ok((first, entries))
            }
        }
    }
}

impl fmt::Display for LogOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Files { folder, .. } => write!(f, "the log in {}", folder.display()),
            Self::Kafka { topic, .. } => topic.fmt(f),
        }
    }
}

/// Applies one log entry at a position to an image of the database.
fn follow(image: &mut Core, position: Position, entry: LogEntry) {
    image.on(Input::Logged(position, [entry].into()));
}

/// Applies the entries of a topic to an image of the database: up to the topic's end, or up to a position that the
/// topic is known to have and that its present leader has to deliver within the given time.
fn read_topic(
    log: &mut KafkaLog,
    image: &mut Core,
    upto: Option<(Position, Duration)>,
) -> log::Result<()> {
    let upto_max = upto.map_or(Position::MAX, |(upto, _)| upto);
    let until = Instant::now() + upto.map_or(Duration::ZERO, |(_, patience)| patience);
    let wait = if upto.is_some() { TOPIC_WAIT } else { Duration::ZERO };
    while image.known() < upto_max {
        let next = image.known() + 1;
        let mut see = |position, entry| {
            if position <= upto_max {
                follow(image, position, entry);
            }
        };
        let behind = log.deliver(next, wait, &mut see)?;
        match (behind == next, upto) {
            (true, None) => break,
            (true, Some((upto, _))) if Instant::now() >= until => {
                return Err(log.lost(upto));
            }
            _ => {}
        }
    }
    Ok(())
}
