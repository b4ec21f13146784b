//! Conversion of Cassandra and Redis errors into failures of a command.

use imago_job::control::Stop;
use imago_job::journal::JournalError;
use imago_tune::cluster;

use super::{Exit, Failure};

/// Converts an error of a Cassandra or Redis cluster into the failure of the command.
pub fn cluster_failure(error: &cluster::Error) -> Failure {
    let exit = match error {
        cluster::Error::Usage(_) => Exit::Usage,
        cluster::Error::Precondition { .. } | cluster::Error::Connect { .. } => Exit::Precondition,
        cluster::Error::Journal(
            JournalError::Owned { .. } | JournalError::Unknown { .. } | JournalError::Final { .. },
        ) => Exit::Precondition,
        cluster::Error::Stopped(Stop::Interrupted | Stop::HandedOver) => Exit::Interrupted,
        _ => Exit::Failed,
    };
    let failure = Failure::from_error(exit, "cluster", error);
    match error.help() {
        Some(help) => failure.help(help),
        None => failure,
    }
}
