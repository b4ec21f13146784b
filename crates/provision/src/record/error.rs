//! The errors of recording.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use crate::trace;

/// A reason why a recording cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URI is invalid; the field is the reason.
    #[error("the URI is not a MongoDB connection string: {0}")]
    Uri(String),
    /// The URI requests a feature that the proxy does not support.
    #[error("a recording proxy cannot stand before {what}: {remedy}")]
    Unsupported {
        /// The unsupported feature.
        what: &'static str,
        /// The way to record without the feature.
        remedy: &'static str,
    },
    /// The database does not reply.
    #[error("no server of {addresses} answers")]
    Unreachable {
        /// The addresses in the URI.
        addresses: String,
        /// The driver's error.
        source: mongodb::error::Error,
    },
    /// The trace's file exists already; the field is its path.
    #[error("{} exists: give another name, or remove it", .0.display())]
    Exists(PathBuf),
    /// The proxy cannot open a port.
    #[error("cannot open a port on this machine for the proxy")]
    Port(#[source] io::Error),
    /// The job cannot be started.
    #[error("cannot start the job {program:?}")]
    Start {
        /// The job's program.
        program: OsString,
        /// The operating system's error.
        source: io::Error,
    },
    /// Waiting for the end of the job failed.
    #[error("cannot wait for the end of the job")]
    Wait(#[source] io::Error),
    /// The trace cannot be written.
    #[error(transparent)]
    Trace(#[from] trace::Error),
}
