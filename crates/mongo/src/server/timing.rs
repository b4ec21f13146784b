//! Deadlines and retry budgets that several layers share.
//!
//! A write must end before another process can own its target. So two pairs of deadlines must fit: that of a slice's
//! lease and that of a job's owner, each together with the longest time that one write runs at the server.

use std::time::Duration;

use imago_job::control::Control;
use imago_job::retry::{Budget, retry};
use imago_job::run::GIVES_UP_AFTER;
use imago_plan::pacing::backoff::Backoff;

use crate::error::{Error, Result};

/// Retry budget of one operation while a server is unavailable; afterwards the process that works at the job gives
/// up.
pub const PATIENCE: Budget = Budget {
    attempts_max: 800,
    elapsed_max: GIVES_UP_AFTER,
    backoff: Backoff { first_ms: 50, max_ms: 1_000 },
};

/// Time after the last renewal of a slice's lease within which the lease's holder may still send writes.
pub const LEASED_WRITE_WITHIN: Duration = Duration::from_secs(10);
/// Longest time that one write may run at the server.
pub const WRITE_TIME_MAX: Duration = Duration::from_secs(10);
/// Time after the last acknowledged heartbeat within which a coordinator may still send writes. After it the
/// coordinator only waits, for example for an election at the destination.
pub const OWNED_WRITE_WITHIN: Duration = Duration::from_secs(6);

/// Longest time that a server may search before its first reply: for the few documents that match a filter, or for a
/// sample that makes the server read all documents.
pub(crate) const SEARCH_MAX: Duration = Duration::from_secs(1_800);

/// Runs the idempotent operation `attempt`, and retries it as [`PATIENCE`] allows while its errors are transient,
/// such as an election. `what` names the operation in the error and completes "cannot …".
pub(crate) async fn retry_transient<T, F: Future<Output = Result<T>>>(
    what: &str,
    control: &Control,
    mut attempt: impl FnMut() -> F,
) -> Result<T> {
    let tried = retry(what, &PATIENCE, control, Error::is_transient, |_| Box::pin(attempt()));
    Ok(tried.await?)
}
