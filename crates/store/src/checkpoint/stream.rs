//! Reads a checkpoint block by block, with one block in memory, however large the database is.
//!
//! Each block's checksum covers the blocks before it, and the last block contains the number of rows: a stream that
//! was read to its end is complete. The receiver has to check the order of rows and partitions.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use super::{BLOCK_BYTES, Block, Blocks, Checkpoint, MAGIC, all, failed};
use crate::design::Design;
use crate::kafka::Landmark;
use crate::key::Key;
use crate::log::Result;
use crate::record::{Position, StoredValue};
use crate::site::Core;

/// A part of a checkpoint that a stream returns.
pub(crate) enum Piece {
    /// A partition begins: its first key, and its version, which counts its commits and design changes.
    Partition(Key, u64),
    /// The next rows of the partition that began last: key, version of the partition at the row's last write, and
    /// value.
    Rows(Vec<(Key, u64, StoredValue)>),
}

/// A reader of the newest checkpoint of a folder, which returns it piece by piece.
pub(crate) struct CheckpointStream {
    /// The blocks of the checkpoint file.
    blocks: Blocks,
    /// The block after the design, which was read at the opening and is not returned yet.
    ahead: Option<Block>,
    /// Number of rows that the stream has returned so far.
    rows: u64,
    /// True after the last block was read.
    is_over: bool,
    /// Position of the log as of which the checkpoint was made.
    pub known: Position,
    /// Design at the position `known`.
    pub design: Design,
    /// Location in the Kafka topic at which the checkpoint was made; `None` if its log is not in Kafka.
    pub landmark: Option<Landmark>,
}

impl CheckpointStream {
    /// Opens the newest checkpoint of a folder, or returns `None` if there is none. The opened file stays readable if
    /// a newer checkpoint removes it.
    ///
    /// # Errors
    /// Returns an error if the checkpoint cannot be read, or its beginning is damaged.
    pub fn open(folder: &Path) -> Result<Option<Self>> {
        let Some((_, path)) = all(folder)?.pop() else { return Ok(None) };
        let file = File::open(&path).map_err(failed("open", &path))?;
        let bytes = file.metadata().map_err(failed("read", &path))?.len();
        let file = BufReader::with_capacity(BLOCK_BYTES, file);
        let mut blocks = Blocks { file, bytes, at: 0, before: Some(0), path };
        let (known, design) = blocks.begin()?;
        let (landmark, ahead) = match blocks.next()? {
            Block::Landmark(landmark) => (Some(landmark), None),
            other => (None, Some(other)),
        };
        let (rows, is_over) = (0, false);
        Ok(Some(Self { blocks, ahead, rows, is_over, known, design, landmark }))
    }

    /// Reads the next part of the checkpoint, or returns `None` after the last one.
    ///
    /// # Errors
    /// Returns an error if the checkpoint cannot be read, or is damaged.
    pub fn next(&mut self) -> Result<Option<Piece>> {
        if self.is_over {
            return Ok(None);
        }
        let block = match self.ahead.take() {
            Some(block) => block,
            None => self.blocks.next()?,
        };
        match block {
            Block::Partition(start, version) => Ok(Some(Piece::Partition(start, version))),
            Block::Rows(rows) => {
                self.rows += rows.len() as u64;
                Ok(Some(Piece::Rows(rows)))
            }
            Block::End(_) if self.blocks.at < self.blocks.bytes => {
                Err(self.blocks.damaged("there is more behind a checkpoint's end"))
            }
            Block::End(expected) if expected == self.rows => {
                self.is_over = true;
                Ok(None)
            }
            Block::End(_) => Err(self.blocks.damaged("rows are missing")),
            Block::Design(..) | Block::BeforePins(..) | Block::Landmark(_) => {
                Err(self.blocks.damaged("a second design"))
            }
        }
    }

    /// Reads and checks the rest of the checkpoint, and returns it with its design and without its rows.
    ///
    /// # Errors
    /// Returns the errors of [`CheckpointStream::next`].
    pub fn into_design(mut self) -> Result<Checkpoint> {
        while self.next()?.is_some() {}
        let image = Core::onlooker(self.known, self.design);
        Ok(Checkpoint { image, bytes: self.blocks.bytes, landmark: self.landmark })
    }
}

impl Blocks {
    /// Reads the header and the first block of the file, and returns the checkpoint's position and design.
    pub(super) fn begin(&mut self) -> Result<(Position, Design)> {
        let mut magic = [0; MAGIC.len()];
        self.fill(&mut magic)?;
        if magic != MAGIC {
            return Err(self.damaged("no checkpoint of this version begins there"));
        }
        self.at = MAGIC.len() as u64;
        let (known, design) = match self.next()? {
            Block::Design(known, design) => (known, design),
            Block::BeforePins(known, design) => {
                self.before = None;
                (known, design.into())
            }
            _ => return Err(self.damaged("a checkpoint begins with a design")),
        };
        if !design.is_whole() {
            return Err(self.damaged("its partitions leave gaps, or overlap"));
        }
        Ok((known, design))
    }
}
