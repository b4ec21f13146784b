//! The means by which threads share, and wait for each other: the system's locks, queues and threads; or,
//! with the feature `shuttle`, those of a scheduler that draws at each of their operations which thread
//! goes on.
//!
//! The store's own threads take what they share from here, so that the same code runs by drawn
//! schedules (`tests/schedules.rs`). Sockets, and the threads that wait for these, are none of it.

#[cfg(feature = "shuttle")]
pub mod fault;
#[cfg(feature = "shuttle")]
mod shuttle;
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::{
    ArcSwap, Mutex, MutexGuard, atomic, mpsc, point, run, sleep, thread, ticks,
};

#[cfg(not(feature = "shuttle"))]
mod real;
#[cfg(not(feature = "shuttle"))]
pub(crate) use real::{ArcSwap, Mutex, MutexGuard, atomic, mpsc, point, run, sleep, thread, ticks};
