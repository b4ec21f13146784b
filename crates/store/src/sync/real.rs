//! The system's threads, and tokio's tasks and clock.

use std::io;
use std::time::Duration;

pub(crate) use std::sync::{Mutex, MutexGuard, atomic, mpsc};
pub(crate) use std::thread;

pub(crate) use arc_swap::ArcSwap;
pub(crate) use tokio::time::sleep;
use tokio::time::{Interval, interval};

/// Runs the given task of the present thread, and the tasks that it spawns, until the given one ends.
pub(crate) fn run(task: impl Future<Output = ()>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, task);
    Ok(())
}

/// Returns a timer that ticks at this interval, for the first time at once.
pub(crate) fn ticks(every: Duration) -> Interval {
    interval(every)
}

/// Marks a point at which a random schedule may switch to another thread; here it does nothing.
#[inline]
pub(crate) fn point() {}
