//! Faults that a test can inject, to check that random schedules find them: only another thread that runs
//! between two operations can observe them.

use std::cell::Cell;

/// A fault that a test injects: two operations in the wrong order or no longer atomic, or a missing operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Log entries get their positions before they are passed on to the sites that follow the log, and another thread
    /// may pass on others in between.
    ToldBehindPlace,
    /// A change of the design is answered before the router's map of the design includes the change.
    MapBehindAnswer,
    /// The log's thread waits for log entries before it serves pending sync requests.
    WaitBeforeSync,
    /// Requests that wait for a lock are not retried when the log advances.
    WaitersForgotten,
}

thread_local! {
    // To the system, all threads of a random schedule are one thread.
    static FAULT: Cell<Option<Fault>> = const { Cell::new(None) };
}

/// Sets the fault that operations inject from here on; `None` injects none.
pub fn set(fault: Option<Fault>) {
    FAULT.set(fault);
}

/// Returns true if this fault is set.
pub(crate) fn is(fault: Fault) -> bool {
    FAULT.get() == Some(fault)
}
