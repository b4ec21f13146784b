//! The outcome of a write by the driver's result: applied, certainly not applied, or perhaps applied.
//!
//! The driver repeats a write once after a network error or a change of primary, under the same transaction number,
//! so that the server recognises the repetition. A certain outcome therefore has to cover both attempts: an error
//! that explains only the failure of the second one does not.

use imago_workload::target::Outcome;
use mongodb::error::{Error, ErrorKind, WriteFailure};

/// Server codes of errors that refuse a statement before it changes anything. If an earlier attempt with the same
/// transaction number had been applied, the server would have reported success instead.
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

/// Label of errors by which a server reports that no attempt of a write was applied.
const NOTHING_WRITTEN: &str = "NoWritesPerformed";

/// Returns the outcome of a write from the driver's result: the number of documents that the write found, or the
/// error.
pub(super) fn of_write(answer: Result<u64, Error>) -> Outcome {
    match answer {
        Ok(0) => Outcome::NotFound,
        Ok(_) => Outcome::Acked,
        Err(error) if certainly_not_applied(&error) => Outcome::Refused(cause_text(&error)),
        Err(error) => Outcome::Unknown(cause_text(&error)),
    }
}

fn certainly_not_applied(error: &Error) -> bool {
    if error.contains_label(NOTHING_WRITTEN) {
        return true;
    }
    match error.kind.as_ref() {
        // The driver reports these errors for the first attempt only: nothing was sent.
        ErrorKind::ServerSelection { .. }
        | ErrorKind::InvalidArgument { .. }
        | ErrorKind::DnsResolve { .. }
        | ErrorKind::Shutdown => true,
        ErrorKind::Write(WriteFailure::WriteError(write)) => REFUSALS.contains(&write.code),
        ErrorKind::Command(command) => REFUSALS.contains(&command.code),
        // This includes an unmet write concern: the write was applied here, and may be rolled back later.
        _ => false,
    }
}

/// Returns the cause of an error without details such as the name of the document, so that equal failures are counted
/// as one.
pub(super) fn cause_text(error: &Error) -> String {
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
