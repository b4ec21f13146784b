//! The outcome of a statement that failed: whether too few replicas were available, and whether the statement was
//! perhaps applied.
//!
//! The driver repeats a statement at another node when a connection breaks or a node refuses the statement. So the
//! last error says nothing about the attempts before it: a write that failed with any error was perhaps applied.

use imago_workload::target::Outcome;
use scylla::errors::{DbError, ExecutionError, RequestAttemptError};

/// Returns the outcome of a write that failed with this error of the driver.
pub(super) fn of_failed_write(error: &ExecutionError) -> Outcome {
    match of_replicas(error) {
        Some(message) => Outcome::Unavailable { message, perhaps_applied: true },
        None => Outcome::Unknown(cause_text(error)),
    }
}

/// Returns the outcome of a read or scan that failed with this error of the driver.
pub(super) fn of_failed_read(error: &ExecutionError) -> Outcome {
    match of_replicas(error) {
        Some(message) => Outcome::Unavailable { message, perhaps_applied: false },
        None => Outcome::Refused(cause_text(error)),
    }
}

/// Returns a message if the error says that too few replicas were available or answered; `None` for other errors.
fn of_replicas(error: &ExecutionError) -> Option<String> {
    let ExecutionError::LastAttemptError(RequestAttemptError::DbError(error, _)) = error else {
        return None;
    };
    Some(match error {
        DbError::Unavailable { required, alive, .. } => {
            format!("unavailable: {alive} of {required} replicas alive")
        }
        DbError::ReadTimeout { received, required, .. } => {
            format!("read timeout: {received} of {required} replicas answered")
        }
        DbError::WriteTimeout { received, required, .. } => {
            format!("write timeout: {received} of {required} replicas answered")
        }
        DbError::ReadFailure { received, required, .. } => {
            format!("read failure: {received} of {required} replicas answered")
        }
        DbError::WriteFailure { received, required, .. } => {
            format!("write failure: {received} of {required} replicas answered")
        }
        _ => return None,
    })
}

/// Returns the cause of an error without the details that change from one failure to the next, so that equal failures
/// are counted as one.
fn cause_text(error: &ExecutionError) -> String {
    match error {
        ExecutionError::RequestTimeout(_) => "no answer in time".into(),
        ExecutionError::ConnectionPoolError(_) | ExecutionError::EmptyPlan => {
            "no node has a connection".into()
        }
        ExecutionError::LastAttemptError(RequestAttemptError::BrokenConnectionError(_)) => {
            "the connection broke".into()
        }
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(error, _)) => {
            error.to_string().chars().take(120).collect()
        }
        other => other.to_string().chars().take(120).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scylla::statement::Consistency;

    fn of(error: DbError) -> ExecutionError {
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(error, "of node 2".into()))
    }

    #[test]
    fn want_of_replicas_is_told_from_other_errors() {
        let consistency = Consistency::Quorum;
        let unavailable = of(DbError::Unavailable { consistency, required: 2, alive: 1 });
        let message = "unavailable: 1 of 2 replicas alive".to_owned();
        assert_eq!(
            of_failed_write(&unavailable),
            Outcome::Unavailable { message: message.clone(), perhaps_applied: true }
        );
        assert_eq!(
            of_failed_read(&unavailable),
            Outcome::Unavailable { message, perhaps_applied: false }
        );
        assert!(matches!(of_failed_write(&of(DbError::Overloaded)), Outcome::Unknown(_)));
        assert!(matches!(of_failed_read(&of(DbError::Unauthorized)), Outcome::Refused(_)));
        assert!(matches!(of_failed_write(&ExecutionError::EmptyPlan), Outcome::Unknown(_)));
    }
}
