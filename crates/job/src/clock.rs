//! The wall clock. Code that needs timestamps gets the clock as a parameter, so that tests can replace it.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// A function that returns the present time, in milliseconds since the Unix epoch.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Returns a [`Clock`] that reads the machine's wall clock.
pub fn wall() -> Clock {
    Arc::new(now_ms)
}

/// Returns the present time of the machine's wall clock, in milliseconds since the Unix epoch.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
