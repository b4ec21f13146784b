//! The meaning of a driver's answer to a write: applied, certainly not, or perhaps.
//!
//! The driver repeats a write once after a network error or a change of primary, under the same
//! The driver repeats a write once after a network error or a change of primary, under the same
//! transaction number, so that the server recognises the repetition. A certain outcome therefore
//! has to cover both attempts: an error that says only why the second one failed does not.

use imago_workload::target::Outcome;
use mongodb::error::{Error, ErrorKind, WriteFailure};

/// Server codes that refuse a statement before it changes anything, and would have reported
/// success had an earlier attempt of the same transaction number been applied.
const REFUSALS: &[i32] = &[
    2,     // BadValue
    9,     // FailedToParse
    13,    // Unauthorized
    18,    // AuthenticationFailed
    26,    // NamespaceNotFound
    66,    // ImmutableField
    121,   // DocumentValidationFailure
    166,   // CommandNotSupportedOnView
    371,   // UserWritesBlocked
    11000, // DuplicateKey
    11001, // DuplicateKey, of an update
    10334, // BSONObjectTooLarge
];

/// The label by which a server says that no attempt of a write was applied.
const NOTHING_WRITTEN: &str = "NoWritesPerformed";

/// The outcome of a write that found so many documents, or failed.
pub(super) fn of_write(answer: Result<u64, Error>) -> Outcome {
    match answer {
        Ok(0) => Outcome::NotFound,
        Ok(_) => Outcome::Acked,
        Err(error) if certainly_not_applied(&error) => Outcome::Refused(told(&error)),
        Err(error) => Outcome::Unknown(told(&error)),
    }
}

fn certainly_not_applied(error: &Error) -> bool {
    if error.contains_label(NOTHING_WRITTEN) {
        return true;
    }
    match error.kind.as_ref() {
        // The driver reports these of the first attempt only: nothing was sent.
        ErrorKind::ServerSelection { .. }
        | ErrorKind::InvalidArgument { .. }
        | ErrorKind::DnsResolve { .. }
        | ErrorKind::Shutdown => true,
        ErrorKind::Write(WriteFailure::WriteError(write)) => REFUSALS.contains(&write.code),
        ErrorKind::Command(command) => REFUSALS.contains(&command.code),
        // A write concern that failed: applied here, and perhaps rolled back later.
        _ => false,
    }
}

/// The cause, without the name of the document, so that equal failures count as one.
pub(super) fn told(error: &Error) -> String {
    match error.kind.as_ref() {
        ErrorKind::Command(command) => format!("{} ({})", command.code_name, command.code),
        ErrorKind::Write(WriteFailure::WriteError(write)) => match write.code {
            11000 => "duplicate key (11000)".into(),
            121 => "refused by the collection's validator (121)".into(),
            371 => "user writes are blocked (371)".into(),
            code => format!("write error {code}"),
        },
        ErrorKind::Write(WriteFailure::WriteConcernError(concern)) => {
            format!("write concern not met: {} ({})", concern.code_name, concern.code)
        }
        ErrorKind::ServerSelection { .. } => "no primary was found in time".into(),
        ErrorKind::ConnectionPoolCleared { .. } => "connections were closed after an error".into(),
        ErrorKind::Io(cause) => format!("network: {}", cause.kind()),
        ErrorKind::Authentication { .. } => "authentication failed".into(),
        ErrorKind::DnsResolve { .. } => "a host name could not be resolved".into(),
        kind => {
            let text = kind.to_string();
            text.chars().take(120).collect()
        }
    }
}
