//! Checkpoints: the database as of a position of the log, in a file, so that the log before it can be removed.
//!
//! A checkpoint file is a header, then *blocks* with their lengths and checksums: first the design, then for each
//! partition its first key and its rows, block by block, and an end. A file without its end, or with an incomplete
//! block, is no checkpoint. A block's checksum also covers all blocks before it, so none can be missing, duplicated,
//! or from another file. The file is written under another name, synced, and only then renamed. A damaged file with a
//! checkpoint's name was therefore damaged later. That is an error, and the file is not ignored, because the log
//! before it may have been removed.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::design::{BeforePins, Design};
use crate::kafka::Landmark;
use crate::key::{Key, Value};
use crate::log::{LogError, Result, failed, sync_folder};
use crate::record::{Position, StoredValue};
use crate::rows::{Row, Rows};
use crate::site::{Core, Snapshot};

mod stream;
#[cfg(test)]
mod tests;

pub(crate) use stream::{CheckpointStream, Piece};

/// The first bytes of a checkpoint file. The last of them is the version of the format.
const MAGIC: [u8; 8] = *b"imagocp1";
/// Size of a block's keys and values in bytes, at which the next block of a checkpoint file is begun.
const BLOCK_BYTES: usize = 1024 * 1024;
/// Maximum size of a block of a checkpoint file in bytes: only the last row of a block exceeds [`BLOCK_BYTES`], so a
/// larger block is damaged.
const BLOCK_BYTES_MAX: usize = 256 * 1024 * 1024;

/// The error text for a checkpoint file that ends too early.
const CUT_OFF: &str = "a checkpoint is cut off";

/// A block of a checkpoint file: one encoded unit with a length and a checksum.
#[derive(Serialize, Deserialize)]
enum Block {
    /// The position of the checkpoint and the design there, in the format from before there were pins; only read. In
    /// such a file each checksum covers one block only.
    BeforePins(Position, BeforePins),
    /// A partition begins: its first key, and its version, which counts its commits and design changes.
    Partition(Key, u64),
    /// The next rows of the partition that began last: key, version of the partition at the row's last write, and
    /// value.
    Rows(Vec<(Key, u64, StoredValue)>),
    /// The end of the checkpoint: the number of all its rows.
    End(u64),
    /// The position of the log as of which the checkpoint was made, and the design at that position.
    Design(Position, Design),
    /// The location in the Kafka topic at which the checkpoint was made. It precedes the partitions, and is absent if
    /// the log is not in Kafka.
    Landmark(Landmark),
}

/// A checkpoint that was read from a file, or the empty one.
pub struct Checkpoint {
    /// The database as of the checkpoint's position: an observer, which has copies of all partitions.
    pub image: Core,
    /// Size of the checkpoint file, in bytes; 0 without a file.
    pub bytes: u64,
    /// The location in the Kafka topic at which the checkpoint was made; `None` if its log is not in Kafka.
    pub landmark: Option<Landmark>,
}

impl Checkpoint {
    /// Returns the empty checkpoint with the design `initial`, for a folder without a checkpoint.
    #[must_use]
    pub fn empty(initial: Design) -> Self {
        Self { image: Core::observer(initial), bytes: 0, landmark: None }
    }
}

/// Returns the path of the checkpoint file as of position `known`.
fn path_of(folder: &Path, known: Position) -> PathBuf {
    folder.join(format!("{known:020}.checkpoint"))
}

/// Returns the positions and paths of the checkpoint files in a folder, sorted by position.
fn all(folder: &Path) -> Result<Vec<(Position, PathBuf)>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(failed("list", folder)(error)),
    };
    for entry in entries {
        let path = entry.map_err(failed("list", folder))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(known) =
            name.strip_suffix(".checkpoint").and_then(|known| known.parse().ok().map(Position))
        {
            found.push((known, path));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Writes the checkpoint as of position `known` into a folder, and returns its size in bytes. `design` is the design
/// at that position, and `snapshots` has all its partitions in key order. If the log is in Kafka, `landmark` is the
/// checkpoint's location in the topic.
///
/// # Errors
/// Returns an error if the checkpoint is not durable; older ones are unchanged.
pub fn write(
    folder: &Path,
    known: Position,
    design: &Design,
    snapshots: &[Snapshot],
    landmark: Option<&Landmark>,
) -> Result<u64> {
    let unfinished = folder.join("checkpoint.new");
    let file = File::create(&unfinished).map_err(failed("make", &unfinished))?;
    let to = BufWriter::with_capacity(BLOCK_BYTES, file);
    let written = write_blocks(to, known, design, snapshots, landmark);
    if written.is_err() {
        // The log may need the space.
        _ = fs::remove_file(&unfinished);
    }
    let bytes = written.map_err(failed("write", &unfinished))?;
    let path = path_of(folder, known);
    fs::rename(&unfinished, &path).map_err(failed("rename", &unfinished))?;
    sync_folder(folder)?;
    Ok(bytes)
}

/// Returns the checksum of a block with this content, where `before` is the checksum of the block before it, or 0 for
/// the first.
fn checksum(before: u32, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(before);
    hasher.update(payload);
    hasher.finalize()
}

/// Writes all blocks of a checkpoint, makes them durable, and returns the size of the file in bytes.
fn write_blocks(
    mut to: BufWriter<File>,
    known: Position,
    design: &Design,
    snapshots: &[Snapshot],
    landmark: Option<&Landmark>,
) -> io::Result<u64> {
    to.write_all(&MAGIC)?;
    let (mut bytes, mut sum) = (MAGIC.len() as u64, 0);
    let mut put = |block: &Block| {
        let payload = postcard::to_stdvec(block).map_err(io::Error::other)?;
        let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
        bytes += 8 + u64::from(length);
        to.write_all(&length.to_le_bytes())?;
        sum = checksum(sum, &payload);
        to.write_all(&sum.to_le_bytes())?;
        to.write_all(&payload)
    };
    put(&Block::Design(known, design.clone()))?;
    if let Some(landmark) = landmark {
        put(&Block::Landmark(landmark.clone()))?;
    }
    let mut many = 0;
    for Snapshot { start, version, rows } in snapshots {
        put(&Block::Partition(start.clone(), *version))?;
        let (mut block, mut block_bytes) = (Vec::new(), 0);
        for (key, row) in rows.iter() {
            many += 1;
            block_bytes += key.as_bytes().len() + row.value.len();
            block.push((key.clone(), row.version, StoredValue(Value::clone(&row.value))));
            if block_bytes >= BLOCK_BYTES {
                put(&Block::Rows(std::mem::take(&mut block)))?;
                block_bytes = 0;
            }
        }
        put(&Block::Rows(block))?;
    }
    put(&Block::End(many))?;
    to.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    Ok(bytes)
}

/// Reads the newest checkpoint of a folder, or returns the empty one with the design `initial` if there is none.
///
/// # Errors
/// Returns an error if the checkpoint cannot be read, or is damaged.
pub fn read_newest(folder: &Path, initial: Design) -> Result<Checkpoint> {
    let Some((_, path)) = all(folder)?.pop() else { return Ok(Checkpoint::empty(initial)) };
    let file = File::open(&path).map_err(failed("open", &path))?;
    let bytes = file.metadata().map_err(failed("read", &path))?.len();
    let file = BufReader::with_capacity(BLOCK_BYTES, file);
    let mut from = Blocks { file, bytes, at: 0, before: Some(0), path };
    let (image, landmark) = from.read()?;
    Ok(Checkpoint { image, bytes, landmark })
}

/// A checkpoint file that is being read block by block.
struct Blocks {
    /// The open checkpoint file, buffered.
    file: BufReader<File>,
    /// Size of the checkpoint file, in bytes.
    bytes: u64,
    /// Offset of the next block in the checkpoint file, in bytes.
    at: u64,
    /// The checksum of the block that was read last; `None` in a file in which each checksum covers one block only.
    before: Option<u32>,
    /// Path of the checkpoint file, for errors.
    path: PathBuf,
}

impl Blocks {
    /// Returns the error of a block that is damaged at the present offset; `what` describes the damage.
    fn damaged(&self, what: &'static str) -> LogError {
        LogError::Damaged { path: self.path.clone(), at: self.at, what }
    }

    /// Fills `bytes` from the checkpoint file; an early end of the file is reported as damage.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.file.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.damaged(CUT_OFF),
            _ => failed("read", &self.path)(error),
        })
    }

    /// Reads the next block, and checks its length and checksum.
    fn next(&mut self) -> Result<Block> {
        let (mut length, mut stored) = ([0; 4], [0; 4]);
        self.fill(&mut length)?;
        self.fill(&mut stored)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > BLOCK_BYTES_MAX {
            return Err(self.damaged("a block's length cannot be true"));
        }
        // The length is checked before memory is allocated for it.
        if length as u64 > self.bytes.saturating_sub(self.at + 8) {
            return Err(self.damaged(CUT_OFF));
        }
        let mut payload = vec![0; length];
        self.fill(&mut payload)?;
        let sum = checksum(self.before.unwrap_or(0), &payload);
        if sum != u32::from_le_bytes(stored) {
            return Err(self.damaged("a block's checksum is wrong"));
        }
        self.before = self.before.map(|_| sum);
        let block = postcard::from_bytes(&payload)
            .map_err(|_| self.damaged("a block cannot be read by this version"))?;
        self.at += 8 + length as u64;
        Ok(block)
    }

    /// Reads and checks the whole checkpoint, and returns the database and the location in the Kafka topic, if it has
    /// one.
    fn read(&mut self) -> Result<(Core, Option<Landmark>)> {
        let (known, design) = self.begin()?;
        let mut snapshots: Vec<Snapshot> = Vec::new();
        let mut sorted: Vec<(Key, Row)> = Vec::new();
        let (mut many, mut landmark) = (0, None);
        loop {
            let block = self.next()?;
            if matches!(block, Block::Partition(..) | Block::End(_))
                && let Some(last) = snapshots.last_mut()
            {
                many += sorted.len() as u64;
                last.rows = Rows::from_sorted(std::mem::take(&mut sorted));
            }
            match block {
                Block::Partition(start, version) => {
                    snapshots.push(Snapshot { start, version, rows: Rows::default() });
                }
                Block::Rows(rows) => {
                    let row = |(key, version, value): (Key, u64, StoredValue)| {
                        (key, Row { version, value: Arc::clone(&value.0) })
                    };
                    let range = snapshots.last().and_then(|last| design.beginning_at(&last.start));
                    let Some(range) = range.map(|partition| &partition.range) else {
                        return Err(self.damaged("rows are of no partition"));
                    };
                    for (key, row) in rows.into_iter().map(row) {
                        let is_next = sorted.last().is_none_or(|(last, _)| *last < key);
                        if !is_next || !range.contains(&key) {
                            return Err(self.damaged("a row is out of its place"));
                        }
                        sorted.push((key, row));
                    }
                }
                Block::End(_) if self.at < self.bytes => {
                    return Err(self.damaged("there is more behind a checkpoint's end"));
                }
                Block::End(expected) if expected == many => break,
                Block::End(_) => return Err(self.damaged("rows are missing")),
                Block::Landmark(of_topic) => landmark = Some(of_topic),
                Block::Design(..) | Block::BeforePins(..) => {
                    return Err(self.damaged("a second design"));
                }
            }
        }
        let image = Core::observer_of(known, design, snapshots)
            .map_err(|_| self.damaged("its partitions are not those of its design"))?;
        Ok((image, landmark))
    }
}

/// Removes the checkpoints in a folder that are older than position `known`.
///
/// # Errors
/// Returns an error if a checkpoint cannot be removed.
pub fn drop_before(folder: &Path, known: Position) -> Result<()> {
    for (older, path) in all(folder)? {
        if older < known {
            fs::remove_file(&path).map_err(failed("remove", &path))?;
        }
    }
    Ok(())
}
