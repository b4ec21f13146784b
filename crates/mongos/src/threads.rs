//! Processor time of the router's threads, which a `mongos` would report as that of its process.
//!
//! The router shares its process with the servers' supervisor and other code, so each of its threads registers here
//! when it starts and deregisters when it ends. The kernel counts the time of each (`/proc/PID/task/TID`).

use std::collections::BTreeSet;
use std::fs;
use std::ops::AddAssign;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The registered threads of one router; clones share the same registry.
#[derive(Debug, Clone, Default)]
pub struct Threads(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// Folders of the registered threads in `/proc`.
    running: BTreeSet<PathBuf>,
    /// Processor time of the registered threads that have ended.
    ended: Times,
}

/// Processor time of threads, in user and in system mode, in µs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) user_us: u64,
    pub(super) system_us: u64,
}

impl AddAssign for Times {
    fn add_assign(&mut self, other: Self) {
        self.user_us += other.user_us;
        self.system_us += other.system_us;
    }
}

impl Threads {
    /// Registers the calling thread as a thread of the router.
    pub fn enter(&self) {
        if let Some(thread) = present() {
            self.known().running.insert(thread);
        }
    }

    /// Deregisters the calling thread, which is about to end; its processor time remains counted.
    pub fn leave(&self) {
        let Some(thread) = present() else { return };
        let mut known = self.known();
        if known.running.remove(&thread) {
            known.ended += of(&thread).unwrap_or_default();
        }
    }

    /// Returns the processor time of all registered threads since their start, including those that have ended;
    /// `None` if no thread is registered or the kernel does not report the time.
    pub(super) fn times(&self) -> Option<Times> {
        let known = self.known();
        let mut times = known.ended;
        for thread in &known.running {
            times += of(thread)?;
        }
        (!known.running.is_empty()).then_some(times)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the folder of the calling thread in `/proc`; `None` if it cannot be determined.
fn present() -> Option<PathBuf> {
    // The link is relative: `PID/task/TID`.
    fs::read_link("/proc/thread-self").ok().map(|link| Path::new("/proc").join(link))
}

/// Returns the processor time of the thread with the folder `thread` in `/proc`: the total is the scheduler's, which
/// is in ns, and is divided between user and system in proportion to clock ticks.
fn of(thread: &Path) -> Option<Times> {
    let scheduled = fs::read_to_string(thread.join("schedstat")).ok()?;
    let whole_us = scheduled.split(' ').next()?.parse::<u64>().ok()? / 1_000;
    let stat = fs::read_to_string(thread.join("stat")).ok()?;
    // The name, which is in brackets, may contain blanks. After it come the fields from the third.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let (user, system) = (ticks(11)?, ticks(12)?);
    let system_us = whole_us * system / (user + system).max(1);
    Some(Times { user_us: whole_us - system_us, system_us })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use super::*;

    /// Keeps a processor busy.
    fn burn(time: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < time {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn only_the_threads_that_entered_count_and_their_time_outlives_them() {
        let threads = Threads::default();
        assert_eq!(threads.times(), None);
        threads.enter();
        let of_one = threads.clone();
        let (entered, told) = mpsc::channel();
        let one = std::thread::spawn(move || {
            of_one.enter();
            entered.send(()).unwrap();
            burn(Duration::from_millis(50));
            of_one.leave();
        });
        let other = std::thread::spawn(|| burn(Duration::from_millis(500)));
        told.recv().unwrap();
        one.join().unwrap();
        let all = |times: Times| times.user_us + times.system_us;
        let after = all(threads.times().unwrap());
        other.join().unwrap();
        assert!(after > 1_000, "{after} µs of a thread that has ended");
        assert!(all(threads.times().unwrap()) < after + 300_000, "another thread was counted");
    }
}
