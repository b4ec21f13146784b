//! Shuttle's threads, of which one goes on at a time, and which is drawn.
//!
//! Time stands still: there is one tick and no other, a wait that has an end has none, and a thread that sleeps
//! lets others go on first. So a wake-up that is lost is not made good by the clock: all stand still, and
//! that is an error. What tokio's queues and the map do is one step each, with others before and behind it.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use std::{io, mem};

pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic, mpsc};

use arc_swap::Guard;
use atomic::{AtomicBool, Ordering};

pub(crate) mod thread {
    //! Shuttle's threads, where a sleeping thread lets all others go on first.

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

/// The first tick comes at once, as tokio's does.
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
    // Any operation on what could be shared is one.
    AtomicBool::new(false).load(Ordering::SeqCst);
}

/// As arc-swap's.
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
