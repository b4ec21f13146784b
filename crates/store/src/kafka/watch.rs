//! The state of a log in Kafka, for threads that wait for it, while another thread is busy with it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Watch {
    trouble: Mutex<Option<String>>,
    is_ending: AtomicBool,
}

impl Watch {
    /// The reason why nothing goes on at the moment, if so: it is tried again.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.lock().clone()
    }

    /// From here on nothing is tried again: the user of the log is to end.
    pub fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    /// True if the user of the log is to end.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, trouble: Option<String>) {
        *self.lock() = trouble;
    }

    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
