//! Shuttle's threads: one of them runs at a time, selected at random.
//!
//! Time does not pass: there is one tick and no other, a wait with a time limit never ends by it, and a
//! thread that sleeps lets others run first. So a timer cannot hide a lost wake-up: all threads block, and
//! that is an error. An operation of tokio's queues or of the map is one atomic step, with possible switches
//! before and after it.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use std::{io, mem};

pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic, mpsc};

use arc_swap::Guard;
use atomic::{AtomicBool, Ordering};

pub(crate) mod thread {
    //! Shuttle's threads, where a sleeping thread lets all others run first.

    pub(crate) use shuttle::thread::{Builder, JoinHandle};

    pub(crate) fn sleep(_: std::time::Duration) {
        shuttle::thread::yield_now();
    }
}

pub(crate) fn run(task: impl Future<Output = ()>) -> io::Result<()> {
    shuttle::future::block_on(task);
    Ok(())
}

pub(crate) async fn sleep(_: Duration) {
    shuttle::future::yield_now().await;
}

/// A timer whose only tick comes at once, like the first tick of tokio's timers.
pub(crate) struct Ticks {
    has_begun: bool,
}

pub(crate) fn ticks(_: Duration) -> Ticks {
    Ticks { has_begun: false }
}

impl Ticks {
    pub(crate) async fn tick(&mut self) {
        if mem::replace(&mut self.has_begun, true) {
            pending().await
        }
    }
}

pub(crate) fn point() {
    // Any operation on an object that could be shared is such a point.
    AtomicBool::new(false).load(Ordering::SeqCst);
}

/// A pointer that threads replace atomically, with the part of arc-swap's API that the store uses.
pub(crate) struct ArcSwap<T>(arc_swap::ArcSwap<T>);

impl<T> ArcSwap<T> {
    pub(crate) fn from_pointee(value: T) -> Self {
        Self(arc_swap::ArcSwap::from_pointee(value))
    }

    pub(crate) fn load(&self) -> Guard<Arc<T>> {
        point();
        self.0.load()
    }

    pub(crate) fn load_full(&self) -> Arc<T> {
        point();
        self.0.load_full()
    }

    pub(crate) fn rcu(&self, change: impl FnMut(&Arc<T>) -> Arc<T>) {
        point();
        self.0.rcu(change);
    }
}
