//! The member of a shard that the bulk is read from: the one that the plan chose, or its replacement.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bson::Document;

use crate::error::{Error, Result};
use crate::server::endpoint::Endpoint;

/// A member that failed is asked again after so long.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// A member that does not answer so soon is not waited for: another one can do it.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// One shard's reader.
#[derive(Debug)]
pub struct Reader {
    /// The whole replica set, of which the driver takes a secondary where there is one.
    set: Endpoint,
    chosen: Option<Endpoint>,
    failed: Mutex<Failed>,
}

/// The known failures of a chosen member.
#[derive(Debug, Default)]
struct Failed {
    at: Option<Instant>,
    untold: Option<String>,
}

impl Reader {
    /// The member `host` of `set`, as `host:port`; without one, any.
    ///
    /// # Errors
    /// Fails if `host` is not a host and a port.
    pub fn new(set: Endpoint, host: Option<&str>) -> Result<Self> {
        let chosen = host.map(|host| set.member(host, ANSWERS_WITHIN)).transpose()?;
        Ok(Self { set, chosen, failed: Mutex::default() })
    }

    /// The member to read from now.
    #[must_use]
    pub fn now(&self) -> &Endpoint {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner).at;
        let is_away = failed.is_some_and(|at| at.elapsed() < ASKED_AGAIN_AFTER);
        self.chosen.as_ref().filter(|_| !is_away).unwrap_or(&self.set)
    }

    /// Notes that reading ended with this error, and gives it back. If a chosen member may be the cause,
    /// the others take its place for a minute.
    #[must_use]
    pub fn failed(&self, error: Error) -> Error {
        let Some(chosen) = self.chosen.as_ref().filter(|_| error.is_transient()) else {
            return error;
        };
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.at.is_none_or(|at| at.elapsed() >= ASKED_AGAIN_AFTER) {
            let (host, set) = (chosen.redacted(), self.set.redacted());
            failed.untold =
                Some(format!("{host} is not read from for a minute, others of {set} are: {error}"));
            failed.at = Some(Instant::now());
        }
        error
    }

    /// The news that another member took the chosen one's place, if it has not been told yet.
    #[must_use]
    pub fn replaced(&self) -> Option<String> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).untold.take()
    }

    /// Tells the chosen member the time of its cluster: see [`Endpoint::hear`].
    pub(super) async fn hear(&self, reply: &Document) {
        if let Some(chosen) =
            self.chosen.as_ref().filter(|chosen| std::ptr::eq(*chosen, self.now()))
            && let Err(error) = chosen.hear(reply).await
        {
            // The next read finds another member in its place.
            let _ = self.failed(error);
        }
    }
}
