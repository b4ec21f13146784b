//! Traces: the keys that a job read, phase by phase, and the file format that stores them.
//!
//! A *phase* is one burst of reads: those of one map of the chain, between two of its reduces. The file (`.imt`) is
//! append-only: a process that is killed while it writes leaves all blocks that it had completed. Each block has its
//! length and its CRC, each phase an end block, and the file a closing block with totals.
//!
//! Invariant: [`Trace::read`] returns all reads that were written, in their order, or an error. A file without a
//! closing block is torn; its complete phases are used only if the caller requests it ([`Torn::UseWholePhases`]).
//!
//! Two foreign formats are read too: CSV ([`from_csv`]) and libCacheSim's `oracleGeneral` ([`from_oracle_general`]).
//! The format is detected by the file's content, not by its name ([`detect`]).

mod detect;
mod error;
mod format;
mod from_csv;
mod from_oracle_general;
mod gaps;
mod key;
mod reader;
mod references;
mod values;
mod writer;

#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use error::Error;
pub use key::Key;
pub use writer::Writer;

/// The reads of a job by `_id`, phase by phase.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// Origin of the trace: how, when and of which collection it was made.
    pub header: Header,
    /// The reads of each phase, in the order in which they were recorded.
    pub phases: Vec<Vec<Read>>,
    /// Start and end of each phase, in the order of `phases`; as many entries as there are phases.
    pub spans: Vec<Span>,
    /// Number of the job's reads that were not by `_id`, and which the trace does not contain.
    pub other_reads: u64,
    /// Whether the trace contains the whole job, and if not, the reason.
    pub ending: Ending,
}

/// One read of one document by its `_id`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Read {
    /// The document's `_id`.
    pub key: Key,
    /// Size of the document as BSON, in bytes; `None` if the read found no document.
    pub document_bytes: Option<u32>,
}

/// Start and end of a phase, in microseconds since the start of the recording; for a CSV file, in microseconds of its
/// column `time`. Both are 0 where times are not known. In a recording it also has the job's requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Start of the phase's first read, in microseconds since the start of the recording (CSV: the time in the file).
    pub began_us: u64,
    /// End of the phase's last read, in microseconds since the start of the recording.
    pub ended_us: u64,
    /// The requests by which the job made the reads of the phase; `None` if they are not known.
    pub requests: Option<Requests>,
}

/// The requests for the reads of a phase, as a proxy between the job and the database saw them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// Number of requests: `find`s by `_id`, and further batches of their cursors.
    pub count: u64,
    /// Sum of the times from each request to its reply, in microseconds.
    pub waited_us: u64,
    /// Greatest number of requests under way at once.
    pub at_once: u32,
}

/// Origin of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The method by which the trace was made, and its source: `recorded from mongodb://127.0.0.1:27017`.
    pub source: String,
    /// The collection that was read, as `database.collection`; empty if it is not known.
    pub namespace: String,
    /// Start of the recording (RFC 3339, UTC); empty if it is not known.
    pub when: String,
    /// The rule by which the reads were split into phases.
    pub phases_by: PhasesBy,
}

/// The rule by which the reads of a trace were split into phases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "snake_case")]
pub enum PhasesBy {
    /// The job itself reported the phase of each read.
    Job,
    /// The comment of a read names its phase; for reads without such a comment, an interval without reads ends a phase.
    CommentOrGap {
        /// Minimum interval without reads that ends a phase, in milliseconds.
        gap_ms: u64,
    },
    /// An interval without reads ends a phase.
    Gap {
        /// Minimum interval without reads that ends a phase, in milliseconds.
        gap_ms: u64,
    },
    /// The column `phase` of the imported file names the phase of each read.
    Column,
    /// All reads are one phase.
    One,
}

/// Whether a trace contains the reads of the whole job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The job was recorded to its end.
    Complete,
    /// The job was not recorded to its end; the field is the reason.
    Incomplete(String),
}

/// The treatment of a trace file that is torn (it lacks its closing block) or damaged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Torn {
    /// A torn or damaged file is an error, which reports the number of complete phases.
    #[default]
    Refuse,
    /// The complete phases before the damage are the trace, and its [`Ending`] names the damage.
    UseWholePhases,
}

/// Options for reading a trace file.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// The treatment of a torn or damaged file.
    pub torn: Torn,
    /// For imported files with times: the minimum interval without reads that ends a phase. If `None`, all reads are
    /// one phase.
    pub gap: Option<Duration>,
}

impl Trace {
    /// Reads a trace file of any supported format; a torn file is an error.
    ///
    /// # Errors
    /// [`Error`]: the file cannot be read, is torn, has a foreign format, or a later version.
    pub fn read(path: &Path) -> Result<Self, Error> {
        Self::read_with(path, Options::default())
    }

    /// Reads a trace file of any supported format, with options for torn files and for the split into phases.
    ///
    /// # Errors
    /// As [`Trace::read`].
    pub fn read_with(path: &Path, options: Options) -> Result<Self, Error> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        match detect::form(&file, path)? {
            detect::Form::Imago => reader::read(file, path, options.torn),
            detect::Form::Csv => from_csv::read(file, path, options.gap),
            detect::Form::OracleGeneral => from_oracle_general::read(file, path, options.gap),
        }
    }

    /// Writes the trace to the new `.imt` file `path`.
    ///
    /// # Errors
    /// The file already exists, or cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let mut writer = Writer::create(path, &self.header)?;
        for (phase, span) in self.phases.iter().zip(&self.spans) {
            for read in phase {
                writer.read(&read.key, read.document_bytes)?;
            }
            writer.end_phase(*span)?;
        }
        writer.count_other_reads(self.other_reads);
        writer.finish(&self.ending)
    }

    /// Returns the number of reads in all phases of the trace.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.phases.iter().map(|phase| phase.len() as u64).sum()
    }

    /// Returns the number of reads that found a document, and the total size of these documents in bytes.
    #[must_use]
    pub fn documents(&self) -> (u64, u64) {
        let sizes = self.phases.iter().flatten().filter_map(|read| read.document_bytes);
        sizes.fold((0, 0), |(count, bytes), size| (count + 1, bytes + u64::from(size)))
    }

    /// Returns the number of reads per second of the job's time, pauses between its phases included; `None` if times are not
    /// known.
    #[must_use]
    pub fn reads_per_s(&self) -> Option<f64> {
        let (first, last) = (self.spans.first()?, self.spans.last()?);
        let us = last.ended_us.saturating_sub(first.began_us);
        (us > 0).then(|| self.reads() as f64 / us as f64 * 1e6)
    }

    /// Returns the share of the job's reads that the trace lacks because they were not by `_id`, from 0 to 1.
    #[must_use]
    pub fn other_share(&self) -> f64 {
        let all = self.reads() + self.other_reads;
        if all == 0 { 0.0 } else { self.other_reads as f64 / all as f64 }
    }
}
