//! Errors of the MongoDB crate as failures of a command: which exit code, which code word.

use imago_mongo::error::{Class, Error};

use crate::exit::{Exit, Failure};

/// The failure that an error of the MongoDB crate is.
pub fn failure(error: &Error) -> Failure {
    let exit = match error.class() {
        Class::Failed => Exit::Failed,
        Class::Usage => Exit::Usage,
        Class::Precondition => Exit::Precondition,
        Class::Interrupted => Exit::Interrupted,
    };
    let failure = Failure::from_error(exit, code(error), error);
    match error.help() {
        Some(help) => failure.help(help),
        None => failure,
    }
}

fn code(error: &Error) -> &'static str {
    match error {
        Error::Usage { .. } => "usage",
        Error::Precondition { .. } => "precondition",
        Error::Unreachable { .. } => "unreachable",
        Error::Credentials { .. } => "credentials",
        Error::Server { .. } => "server",
        Error::Passing { .. } | Error::Exhausted { .. } => "retries_exhausted",
        Error::Document { .. } => "document_refused",
        Error::OplogRolledOver { .. } => "oplog_rolled_over",
        Error::Disrupted { .. } => "disrupted",
        Error::Superseded { .. } => "superseded",
        Error::Journal(_) => "journal",
        Error::Stopped(_) => "stopped",
        Error::Malformed { .. } => "malformed_answer",
    }
}
