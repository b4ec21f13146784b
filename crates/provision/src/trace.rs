//! The keys that a job read, phase by phase, and the file that keeps them.
//!
//! A *phase* is one burst of reads: those of one map of the chain, between two of its reduces. The file (`.imt`) is
//! written from front to back and never changed before its end: a process that is killed while it writes one leaves all
//! blocks that it had completed. Each block has its length and its CRC, each phase an end, and the file a closing block
//! with totals.
//!
//! Invariant: [`Trace::read`] returns all reads that were written, in their order, or an error; never fewer without
//! a word. A file that was not closed is torn, and its whole phases are used only where the caller asks for it
//! ([`Torn::UseWholePhases`]).
//!
//! Two foreign forms are read too: CSV ([`from_csv`]) and libCacheSim's `oracleGeneral` ([`from_oracle_general`]). The
//! form is told by a file's content, not by its name ([`detect`]).

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

/// A job's reads.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// The trace's origin.
    pub header: Header,
    /// The reads of each phase, in order.
    pub phases: Vec<Vec<Read>>,
    /// The time of each phase; as many as there are phases.
    pub spans: Vec<Span>,
    /// Reads that the job made and the trace does not have, because they were not by `_id`.
    pub other_reads: u64,
    /// The trace has the whole job, or the reason why it does not.
    pub ending: Ending,
}

/// One read of one document by its `_id`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Read {
    /// The document's `_id`.
    pub key: Key,
    /// Bytes of the document as BSON; none if there was no such document.
    pub document_bytes: Option<u32>,
}

/// The time of a phase, in microseconds since the recording began. Both are 0 where times are not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Its first read.
    pub began_us: u64,
    /// The end of its last read.
    pub ended_us: u64,
}

/// A trace's origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The program that made it, and from which: `recorded from mongodb://127.0.0.1:27017`.
    pub source: String,
    /// The collection, as `database.collection`; empty where it is not known.
    pub namespace: String,
    /// When it was begun (RFC 3339, UTC); empty where that is not known.
    pub when: String,
    /// The rule by which phases were told apart.
    pub phases_by: PhasesBy,
}

/// The rule by which phases are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "snake_case")]
pub enum PhasesBy {
    /// The job says so itself.
    Job,
    /// The job says so by a comment of its reads; where there is none, a time without reads ends a phase.
    CommentOrGap {
        /// The time without reads, in milliseconds.
        gap_ms: u64,
    },
    /// A time without reads ends a phase.
    Gap {
        /// The time without reads, in milliseconds.
        gap_ms: u64,
    },
    /// A column of the imported file.
    Column,
    /// The trace is one phase.
    One,
}

/// The end of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The job was recorded to its end.
    Complete,
    /// It was not, for this reason.
    Incomplete(String),
}

/// The treatment of a file that is torn or damaged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Torn {
    /// It is an error, which says how many phases are whole.
    #[default]
    Refuse,
    /// The phases before the damage that have their end are the trace; its [`Ending`] says so.
    UseWholePhases,
}

/// The way in which a file is read.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// The treatment of a torn file.
    pub torn: Torn,
    /// Imported files with times: a time without reads that ends a phase. Without it they are one phase.
    pub gap: Option<Duration>,
}

impl Trace {
    /// Reads a trace of any form; a torn one is an error.
    ///
    /// # Errors
    /// [`Error`]: the file cannot be read, is torn, foreign, or of a later version.
    pub fn read(path: &Path) -> Result<Self, Error> {
        Self::read_with(path, Options::default())
    }

    /// Reads a trace of any form.
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

    /// Writes the trace as a new `.imt` file.
    ///
    /// # Errors
    /// The file exists, or cannot be written.
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

    /// Number of reads.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.phases.iter().map(|phase| phase.len() as u64).sum()
    }

    /// Number of reads that found their document, and the bytes of these documents together.
    #[must_use]
    pub fn documents(&self) -> (u64, u64) {
        let sizes = self.phases.iter().flatten().filter_map(|read| read.document_bytes);
        sizes.fold((0, 0), |(count, bytes), size| (count + 1, bytes + u64::from(size)))
    }

    /// Share of the job's reads that are not in the trace because they were not by `_id`; from 0 to 1.
    #[must_use]
    pub fn other_share(&self) -> f64 {
        let all = self.reads() + self.other_reads;
        if all == 0 { 0.0 } else { self.other_reads as f64 / all as f64 }
    }
}
