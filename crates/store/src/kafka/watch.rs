//! The state of a log in Kafka, for other threads to read while the log is in use by its thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The state of a log in Kafka; see the module's documentation.
#[derive(Debug, Default)]
pub struct Watch {
    /// The last failure of the operation under way.
    trouble: Mutex<Option<String>>,
    /// True if the user of the log is to end.
    is_ending: AtomicBool,
}

impl Watch {
    /// Returns why the operation under way fails at the moment, or `None`; it is repeated.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.lock().clone()
    }

    /// Stops further attempts: the user of the log is to end.
    pub fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    /// True if the user of the log is to end.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// Sets or clears the last failure.
    pub(super) fn set(&self, trouble: Option<String>) {
        *self.lock() = trouble;
    }

    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
