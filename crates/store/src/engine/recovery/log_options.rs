//! The place of a store's log, and the database as of its entries: for a store that starts, and for a
//! site that comes back.
//!
//! The newest checkpoint is read, if there is one, and the log behind it. Whether the two belong to each
//! other is looked at: a checkpoint of a log in Kafka says where in its topic it was made, one of a log
//! in the same folder does not.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::checkpoint::{self, Checkpoint};
use crate::design::{Design, Partition};
use crate::engine::StoreError;
use crate::engine::site::epoch::Epochs;
use crate::kafka::{KafkaLog, KafkaSpec};
use crate::log::{self, CutTail, Log, LogError, RedoLog as _, Sync};
use crate::record::{LogEntry, Position, Site};
use crate::sequencer::Sequencer;
use crate::site::{Core, Input};
use crate::sync::atomic::AtomicU64;
use crate::sync::point;
use crate::sync::thread::JoinHandle;

/// Attempts to read a checkpoint and the log behind it; they do not fit if a newer checkpoint has come
/// meanwhile.
const IMAGE_TRIES: usize = 3;
/// The longest time for which absent brokers are asked to make the topic: the start of a store waits for it.
const OPEN_PATIENCE: Duration = Duration::from_secs(15);
/// The length of one wait for entries that the topic is known to have.
const TOPIC_WAIT: Duration = Duration::from_millis(200);

/// The place of a log.
#[derive(Clone, Debug)]
pub enum LogOptions {
    /// In files of this process alone.
    Files {
        /// Their folder.
        folder: PathBuf,
        /// The time at which written entries are made durable.
        sync: Sync,
        /// The size of one of its files, in bytes.
        segment_bytes: u64,
    },
    /// In Kafka.
    Kafka {
        /// The topic, and its brokers.
        topic: KafkaSpec,
        /// The folder of checkpoints; without one a start reads the topic from its first record on.
        checkpoints: Option<PathBuf>,
        /// Least bytes of the topic between two checkpoints.
        checkpoint_bytes: u64,
    },
}

/// A log that goes on, and what it has.
pub(in crate::engine) struct Recovered {
    pub(in crate::engine) image: Core,
    pub(in crate::engine) sequencer: Sequencer,
    pub(in crate::engine) thread: Option<JoinHandle<()>>,
    pub(in crate::engine) mark_every: Arc<AtomicU64>,
    /// The position of the newest checkpoint.
    pub(in crate::engine) newest: Position,
    pub(in crate::engine) checkpoints: Option<Folder>,
    pub(in crate::engine) cut: Option<CutTail>,
}

/// The folder of checkpoints.
pub(in crate::engine) struct Folder {
    pub(in crate::engine) path: PathBuf,
    /// Least bytes of log between two checkpoints.
    pub(in crate::engine) mark_every_min: u64,
    /// Keeps other processes out, where the log does not.
    pub(in crate::engine) _lock: Option<log::FolderLock>,
}

impl Recovered {
    /// A store without a log, which ends with its process.
    pub(in crate::engine) fn in_memory() -> Self {
        Self {
            image: Core::observer(Design::new(Site(0))),
            sequencer: Sequencer::in_memory(),
            thread: None,
            mark_every: Arc::default(),
            newest: Position::START,
            checkpoints: None,
            cut: None,
        }
    }
}

impl LogOptions {
    /// Opens the log, and reads all of it that no checkpoint has, for a store of so many sites.
    pub(in crate::engine) fn recover(&self, sites: u16) -> Result<Recovered, StoreError> {
        let failed = |error| StoreError::Start("the log", error);
        match self {
            Self::Files { folder, sync, segment_bytes } => {
                let Checkpoint { mut image, bytes, .. } = self.newest(folder)?;
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
                let (sequencer, thread) =
                    Sequencer::of(log, Arc::clone(&mark_every)).map_err(failed)?;
                let (path, mark_every_min) = (folder.clone(), *segment_bytes);
                let checkpoints = Some(Folder { path, mark_every_min, _lock: None });
                let thread = Some(thread);
                Ok(Recovered { image, sequencer, thread, mark_every, newest, checkpoints, cut })
            }
            Self::Kafka { topic, checkpoints, checkpoint_bytes } => {
                let lock = checkpoints.as_deref().map(log::lock_folder).transpose()?;
                let Checkpoint { mut image, bytes, landmark } = match checkpoints {
                    Some(folder) => self.newest(folder)?,
                    None => Checkpoint::of_nothing(Design::new(Site(0))),
                };
                let mark_every_min = *checkpoint_bytes;
                let is_marked = checkpoints.is_some();
                let every = if is_marked { bytes.max(mark_every_min) } else { u64::MAX };
                let mark_every = Arc::new(AtomicU64::new(every));
                let patience = topic.patience.min(OPEN_PATIENCE);
                KafkaLog::open(KafkaSpec { patience, ..topic.clone() })?;
                let mut log = KafkaLog::reader(topic.clone());
                if let Some(landmark) = &landmark {
                    log.begin_at(landmark)?;
                }
                let newest = image.known();
                read_topic(&mut log, &mut image, None)?;
                self.check_sites(&image, sites)?;
                let sequencer = Sequencer::of_topic(log, image.known(), Arc::clone(&mark_every));
                let (sequencer, thread) = sequencer.map_err(failed)?;
                let folder =
                    |path: &PathBuf| Folder { path: path.clone(), mark_every_min, _lock: lock };
                let (checkpoints, thread) = (checkpoints.as_ref().map(folder), Some(thread));
                let cut = None;
                Ok(Recovered { image, sequencer, thread, mark_every, newest, checkpoints, cut })
            }
        }
    }

    /// True if checkpoints are made.
    pub(in crate::engine) fn has_checkpoints(&self) -> bool {
        !matches!(self, Self::Kafka { checkpoints: None, .. })
    }

    /// Checks that each site that has a copy of anything is started.
    fn check_sites(&self, image: &Core, sites: u16) -> Result<(), StoreError> {
        let known = image.design().partitions().flat_map(Partition::known_sites);
        let least = known.map(|site| site.0 + 1).max().unwrap_or_default();
        if least > sites {
            return Err(StoreError::SitesMissing { log: self.to_string(), least });
        }
        Ok(())
    }

    /// Returns the epochs that this process gives its sites, by the design as of its log, if it has one.
    pub(in crate::engine) fn epochs(log: Option<&Self>, design: &Design) -> Epochs {
        match log {
            None | Some(Self::Files { .. }) => Epochs::of_one_process(),
            Some(Self::Kafka { .. }) => Epochs::of_one_of_many(design),
        }
    }

    /// The database as of a prefix of the log, or a later one if the newest checkpoint is of that.
    pub(in crate::engine) fn image_of(&self, known: Position) -> log::Result<Core> {
        self.image_and_rest(known).map(|(image, _)| image)
    }

    /// The same, and what lies behind it.
    pub(in crate::engine) fn image_and_rest(&self, known: Position) -> log::Result<(Core, Rest)> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.try_image_of(known) {
                Ok(read) => return Ok(read),
                // A newer checkpoint may have come, and what it makes needless gone.
                Err(_) if tries < IMAGE_TRIES => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn try_image_of(&self, known: Position) -> log::Result<(Core, Rest)> {
        match self {
            Self::Files { folder, .. } => {
                let mut image = self.newest(folder)?.image;
                point();
                let from = image.known() + 1;
                let see = |position, entry| follow(&mut image, position, entry);
                log::read(folder, from, known, see)?;
                Ok((image, Rest::Files(folder.clone())))
            }
            Self::Kafka { topic, checkpoints, .. } => {
                let Checkpoint { mut image, landmark, .. } = match checkpoints {
                    Some(folder) => self.newest(folder)?,
                    None => Checkpoint::of_nothing(Design::new(Site(0))),
                };
                let mut log = KafkaLog::reader(topic.clone());
                if let Some(landmark) = &landmark {
                    log.begin_at(landmark)?;
                }
                read_topic(&mut log, &mut image, Some((known, topic.patience)))?;
                Ok((image, Rest::Topic(Box::new(log), topic.patience)))
            }
        }
    }

    /// The newest checkpoint of a folder, which is one of this log.
    fn newest(&self, folder: &Path) -> log::Result<Checkpoint> {
        let newest = checkpoint::read_newest(folder, Design::new(Site(0)))?;
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

/// The log behind an image.
pub(in crate::engine) enum Rest {
    /// In the files of a folder.
    Files(PathBuf),
    /// In a topic, whose reader is where the image ends; how long its leader is given.
    Topic(Box<KafkaLog>, Duration),
}

impl Rest {
    /// The log entries from a position up to another, which the log has.
    pub(in crate::engine) fn read(
        &mut self,
        from: Position,
        upto: Position,
    ) -> log::Result<Vec<LogEntry>> {
        let mut entries = Vec::new();
        match self {
            Self::Files(folder) => log::read(folder, from, upto, |_, entry| entries.push(entry))?,
            Self::Topic(log, patience) => {
                let until = Instant::now() + *patience;
                let mut next = from;
                while next <= upto {
                    let mut see = |position, entry| {
                        if position <= upto {
                            entries.push(entry);
                        }
                    };
                    let behind = log.deliver(next, TOPIC_WAIT, &mut see)?;
                    if behind == next && Instant::now() >= until {
                        return Err(log.lost(upto));
                    }
                    next = behind;
                }
            }
        }
        Ok(entries)
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

fn follow(image: &mut Core, position: Position, entry: LogEntry) {
    image.on(Input::Logged(position, [entry].into()));
}

/// Lets an image follow a topic: to its end, or up to a position that it has, for which the leader of
/// now is given some time.
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
