//! The errors of recording.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use crate::trace;

/// A reason why the reads of a job cannot be recorded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database's URI is invalid; the field is the reason.
    #[error("the URI is not a MongoDB connection string: {0}")]
    Uri(String),
    /// The database's URI requests a feature that the proxy does not support.
    #[error("a recording proxy cannot stand before {what}: {remedy}")]
    Unsupported {
        /// Name of the unsupported feature, for display.
        what: &'static str,
        /// Advice how to record without the feature.
        remedy: &'static str,
    },
    /// No server of the database replies.
    #[error("no server of {addresses} answers")]
    Unreachable {
        /// The addresses in the URI, separated by commas.
        addresses: String,
        /// The error of the MongoDB driver.
        source: mongodb::error::Error,
    },
    /// The file of the new trace exists already; the field is its path.
    #[error("{} exists: give another name, or remove it", .0.display())]
    Exists(PathBuf),
    /// The proxy cannot open a port on this machine.
    #[error("cannot open a port on this machine for the proxy")]
    Port(#[source] io::Error),
    /// The job's program cannot be started.
    #[error("cannot start the job {program:?}")]
    Start {
        /// The job's program, as it was given.
        program: OsString,
        /// The operating system's error.
        source: io::Error,
    },
    /// Waiting for the end of the job failed.
    #[error("cannot wait for the end of the job")]
    Wait(#[source] io::Error),
    /// The trace file cannot be written.
    #[error(transparent)]
    Trace(#[from] trace::Error),
}
