//! The member of a shard from which the bulk is read: the planned one, or its replacement.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bson::Document;

use crate::error::{Error, Result};
use crate::server::endpoint::Endpoint;

/// Time after a failure of the planned member after which it is read again.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Longest wait for the planned member's reply: another member can replace it.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// The member from which one shard is read, and its replacement.
#[derive(Debug)]
pub struct Reader {
    /// The whole replica set, in which the driver selects a secondary if there is one.
    set: Endpoint,
    /// The planned member; `None` if the driver selects any member.
    chosen: Option<Endpoint>,
    failed: Mutex<Failed>,
}

/// The last failure of the planned member.
#[derive(Debug, Default)]
struct Failed {
    /// Time of the last failure that replaced the planned member; `None` if there was none.
    at: Option<Instant>,
    /// Description of the replacement; `None` if there is none that was not reported yet.
    unreported: Option<String>,
}

impl Reader {
    /// Creates a reader of the member `host` (`host:port`) of `set`, or of any member without a host.
    ///
    /// # Errors
    /// Fails if `host` is not a host and a port.
    pub fn new(set: Endpoint, host: Option<&str>) -> Result<Self> {
        let chosen = host.map(|host| set.member(host, ANSWERS_WITHIN)).transpose()?;
        Ok(Self { set, chosen, failed: Mutex::default() })
    }

    /// Returns the connection to read from now: to the planned member, or to the whole set while that is replaced.
    #[must_use]
    pub fn now(&self) -> &Endpoint {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner).at;
        let is_away = failed.is_some_and(|at| at.elapsed() < ASKED_AGAIN_AFTER);
        self.chosen.as_ref().filter(|_| !is_away).unwrap_or(&self.set)
    }

    /// Records that a read of this shard failed with `error`, and returns the error. If the planned member may be the
    /// cause, other members replace it for a minute.
    #[must_use]
    pub fn failed(&self, error: Error) -> Error {
        let Some(chosen) = self.chosen.as_ref().filter(|_| error.is_transient()) else {
            return error;
        };
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.at.is_none_or(|at| at.elapsed() >= ASKED_AGAIN_AFTER) {
            let (host, set) = (chosen.redacted(), self.set.redacted());
            failed.unreported = Some(format!(
                "{host} is not read for a minute, other members of {set} are read instead: {error}"
            ));
            failed.at = Some(Instant::now());
        }
        error
    }

    /// Returns the description of a replacement that was not reported yet, and counts it as reported.
    #[must_use]
    pub fn replaced(&self) -> Option<String> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).unreported.take()
    }

    /// Advances the planned member's cluster time to the one in `reply`, unless it is replaced: see
    /// [`Endpoint::advance_cluster_time`].
    pub(super) async fn advance_cluster_time(&self, reply: &Document) {
        if let Some(chosen) =
            self.chosen.as_ref().filter(|chosen| std::ptr::eq(*chosen, self.now()))
            && let Err(error) = chosen.advance_cluster_time(reply).await
        {
            // The next read uses another member instead.
            let _ = self.failed(error);
        }
    }
}
