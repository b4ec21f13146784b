//! Rules for freed memory: batches of several megabytes come and go all the time, and giving each
//! back to the system, to have its pages cleared and mapped anew, costs a copy a fifth of its own
//! processor time. A store, which goes on for months, gives back the memory that a flood of
//! requests took.

use std::time::Duration;

/// Interval between two checks for memory to give back.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Bytes that were taken and freed, before they are given back.
const GIVEN_BACK_MIN: usize = 64 * 1024 * 1024;

/// Keeps freed memory for the next batch. Called before there are other threads.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn keep_freed() {
    const MMAP_THRESHOLD: i32 = 32 << 20;
    const TRIM_THRESHOLD: i32 = 256 << 20;
    #[expect(
        unsafe_code,
        reason = "the C library's switches have no safe form; no other thread runs"
    )]
    // SAFETY: `mallopt` takes plain numbers and races only with itself.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD);
        libc::mallopt(libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD);
    }
}

/// Other allocators keep it by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn keep_freed() {}

/// Gives freed memory back to the system whenever much of it was freed, as long as it is polled. `held`
/// says how many bytes there are of what comes and goes.
pub async fn give_back_freed(held: impl Fn() -> usize) {
    let mut most = 0;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = held();
        most = most.max(now);
        if most >= now + GIVEN_BACK_MIN {
            // It may take some tens of milliseconds.
            _ = tokio::task::spawn_blocking(give_back).await;
            most = now;
        }
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn give_back() {
    #[expect(unsafe_code, reason = "the C library's function has no safe form")]
    // SAFETY: `malloc_trim` takes a plain number, and locks what it looks at.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Other allocators do it by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn give_back() {}
