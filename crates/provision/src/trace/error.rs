//! The errors of reading and writing traces. Each names the file, and, where there is one, the place in the file.

use std::io;
use std::path::{Path, PathBuf};

/// A reason why a trace file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system returned an error for an operation on the file.
    #[error("cannot {doing} the trace {}", path.display())]
    Io {
        /// The failed operation: `open`, `read`, `create` or `write`.
        doing: &'static str,
        /// Path of the trace file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file ends before its closing block, or a block is damaged.
    #[error(
        "the trace {} is torn at byte {at}: {what}; before that, {whole_phases} phases with {whole_reads} reads are whole",
        path.display()
    )]
    Torn {
        /// Path of the trace file.
        path: PathBuf,
        /// Offset in the file of the first incomplete or damaged block, in bytes.
        at: u64,
        /// Description of the damage.
        what: String,
        /// Number of complete phases before the damage.
        whole_phases: u64,
        /// Number of reads in the complete phases before the damage.
        whole_reads: u64,
    },
    /// The file has none of the formats of a trace.
    #[error(
        "{} is no trace: {looks}; a trace is an .imt file of `imago provision record`, a CSV file with the columns \
         phase,key,bytes or time,key,bytes, or libCacheSim's oracleGeneral",
        path.display()
    )]
    Foreign {
        /// Path of the file.
        path: PathBuf,
        /// What the file appears to be, as `it is compressed by gzip: decompress it first`.
        looks: String,
    },
    /// The trace file has a later version of the `.imt` format than this program reads.
    #[error(
        "the trace {} has version {found} of its form, and this program reads version {known}: use the newer imago that \
         wrote it",
        path.display()
    )]
    Newer {
        /// Path of the file.
        path: PathBuf,
        /// Version of the format that the file has.
        found: u16,
        /// Latest version of the format that this program reads.
        known: u16,
    },
    /// A line of an imported file is invalid.
    #[error("line {line} of {}: {what}", path.display())]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: u64,
        /// Description of the problem with the line.
        what: String,
    },
    /// A key or the header is too large for the format, or cannot be encoded.
    #[error("cannot write to the trace {}: {what}", path.display())]
    Unwritable {
        /// Path of the trace file.
        path: PathBuf,
        /// Description of the problem.
        what: String,
    },
}

impl Error {
    /// Returns a function for `map_err` that converts the operating system's error into an [`Error::Io`]; `doing`
    /// names the failed operation.
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path: path.to_owned(), source }
    }
}
