//! Faults that may be set on purpose, to see that drawn schedules find them: only another thread
//! between two operations can tell them.

use std::cell::Cell;

/// Two operations the wrong way round, apart that belong together, or one of them missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Log entries have their place before followers are told, and others may tell them between.
    ToldBehindPlace,
    /// A change of the design is answered before the map has it.
    MapBehindAnswer,
    /// The log's thread waits for log entries before it looks for waiters.
    WaitBeforeSync,
    /// Waiters for a lock are not looked at when the log goes on.
    WaitersForgotten,
}

thread_local! {
    // All threads of a drawn schedule are one to the system.
    static FAULT: Cell<Option<Fault>> = const { Cell::new(None) };
}

/// Sets the fault for the operations from here on, or none.
pub fn set(fault: Option<Fault>) {
    FAULT.set(fault);
}

pub(crate) fn is(fault: Fault) -> bool {
    FAULT.get() == Some(fault)
}
