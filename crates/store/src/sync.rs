//! The primitives by which threads share data and wait for each other: the system's locks, queues and threads; or,
//! with the feature `shuttle`, those of a scheduler that selects at random the thread that runs next, at each
//! operation of these primitives.
//!
//! The store's own threads use only these primitives, so that the same code runs under random schedules
//! (`tests/schedules.rs`). Sockets, and the threads that wait for them, are not included.

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
