//! The state of a log in Kafka, for other threads to read while its own thread uses the log.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The state of a log in Kafka that other threads share with its thread: the present failure, and whether to end.
#[derive(Debug, Default)]
pub struct Watch {
    /// The last failure of the operation in progress; `None` if it has not failed.
    trouble: Mutex<Option<String>>,
    /// True if the thread that uses the log is to end.
    is_ending: AtomicBool,
}

impl Watch {
    /// Returns the reason why the operation in progress fails at present, while it is repeated; `None` if it does not
    /// fail.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.lock().clone()
    }

    /// Stops further attempts of failing operations: the thread that uses the log is to end.
    pub fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    /// Returns true if the thread that uses the log is to end.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// Sets the last failure of the operation in progress; `None` clears it.
    pub(super) fn set(&self, trouble: Option<String>) {
        *self.lock() = trouble;
    }

    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
