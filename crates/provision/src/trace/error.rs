//! The errors of reading and writing traces: each says what happened to which file, and where in it.

use std::io;
use std::path::{Path, PathBuf};

/// A trace that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {doing} the trace {}", path.display())]
    Io {
        /// The action, as `open`.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file ends before its closing block, or a block is damaged.
    #[error(
        "the trace {} is torn at byte {at}: {what}; before that, {whole_phases} phases with {whole_reads} reads are whole",
        path.display()
    )]
    Torn {
        /// The file.
        path: PathBuf,
        /// Where the first block begins that is not whole.
        at: u64,
        /// The damage.
        what: String,
        /// Phases before it that have their end.
        whole_phases: u64,
        /// The reads of these phases.
        whole_reads: u64,
    },
    /// The file is no trace.
    #[error(
        "{} is no trace: {looks}; a trace is an .imt file of `imago provision record`, a CSV file with the columns \
         phase,key,bytes or time,key,bytes, or libCacheSim's oracleGeneral",
        path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Its look, as `it is compressed by gzip: decompress it first`.
        looks: String,
    },
    /// The file is of a later version of the form.
    #[error(
        "the trace {} has version {found} of its form, and this program reads version {known}: use the newer imago that \
         wrote it",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u16,
        /// The version that is read.
        known: u16,
    },
    /// A line of an imported file makes no sense.
    #[error("line {line} of {}: {what}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The problem.
        what: String,
    },
    /// A key or header is too large for a file.
    #[error("cannot write to the trace {}: {what}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The problem.
        what: String,
    },
}

impl Error {
    /// For `map_err`: an error of the operating system while `doing` something to a file.
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path: path.to_owned(), source }
    }
}
