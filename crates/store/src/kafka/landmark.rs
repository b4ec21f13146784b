//! A landmark is the location in a topic at which a checkpoint was made: a process that begins from the checkpoint
//! need not count from the first record on.
//!
//! The landmark identifies the last record that the checkpoint contains by its offset, the position of its first
//! log entry, and the checksum of its content. It is checked before later records are read: another
//! topic, or one that was created again under the same name, has another record there.

use serde::{Deserialize, Serialize};

use super::{KafkaLog, Result, batch};
use crate::log::LogError;
use crate::record::Position;

/// The location in a topic of the last record that a checkpoint contains, with data to recognise the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Landmark {
    /// Offset of the record in the topic's partition.
    pub(super) offset: i64,
    /// Position of the record's first log entry.
    pub(super) first: Position,
    /// Checksum in the header of the record's group of log entries.
    pub(super) checksum: u32,
}

#[cfg(test)]
impl Landmark {
    pub(crate) fn some() -> Self {
        Self { offset: 12, first: Position(40), checksum: 7 }
    }
}

impl KafkaLog {
    /// Returns the location of the last record that was read, or `None` if none was read.
    #[must_use]
    pub fn landmark(&self) -> Option<&Landmark> {
        self.last.as_ref()
    }

    /// Makes the record at a landmark, which this or another process has read before, the next one to read, after a
    /// check that the topic still has it.
    ///
    /// # Errors
    /// Returns an error if the topic cannot be read, or has another record at that offset.
    pub fn begin_at(&mut self, landmark: &Landmark) -> Result<()> {
        (self.offset, self.next) = (landmark.offset, landmark.first);
        let offset = self.offset;
        let wait = self.spec.work();
        let mut fetched = self.retry("read", |log| log.fetch(wait))?;
        let records = batch::decode(&mut fetched).ok().flatten().unwrap_or_default();
        let record = records.into_iter().find(|record| record.offset == offset);
        let value = record.and_then(|record| record.value);
        if value.is_some_and(|value| super::checksum(&value) == landmark.checksum) {
            return Ok(());
        }
        Err(self.unread(format!(
            "record {offset} is not the one after which the newest checkpoint was made: the \
             checkpoint belongs to another topic, or the topic was recreated"
        )))
    }

    /// Returns the error of a topic that ends before the log entry at position `known`, which was read before.
    pub(crate) fn lost(&self, known: Position) -> LogError {
        self.unread(format!("it ends before log entry {known}, which was read before"))
    }

    /// Returns the error of a topic that cannot be read for the reason `why`.
    fn unread(&self, why: String) -> LogError {
        LogError::Remote { doing: "read", log: self.name(), why }
    }
}
