//! The errors of recording.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use crate::trace;

/// A recording that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URI makes no sense.
    #[error("the URI is none of MongoDB: {0}")]
    Uri(String),
    /// The URI asks for a thing that a proxy cannot do.
    #[error("a recording proxy cannot stand before {what}: {remedy}")]
    Unsupported {
        /// The thing.
        what: &'static str,
        /// The way without it.
        remedy: &'static str,
    },
    /// The database does not answer.
    #[error("no server of {addresses} answers")]
    Unreachable {
        /// The addresses of the URI.
        addresses: String,
        /// The last reason.
        source: mongodb::error::Error,
    },
    /// There would be a file already.
    #[error("{} exists: give another name, or remove it", .0.display())]
    Exists(PathBuf),
    /// No port can be opened.
    #[error("cannot open a port on this machine for the proxy")]
    Port(#[source] io::Error),
    /// The job does not start.
    #[error("cannot start the job {program:?}")]
    Start {
        /// The program.
        program: OsString,
        /// The system's reason.
        source: io::Error,
    },
    /// The job's end cannot be waited for.
    #[error("cannot wait for the end of the job")]
    Wait(#[source] io::Error),
    /// The trace cannot be written.
    #[error(transparent)]
    Trace(#[from] trace::Error),
}
