//! Policy for freed memory. Batches of several megabytes are allocated and freed continuously.
//! Returning each to the operating system, which clears and maps its pages again, costs a copy a
//! fifth of its own processor time. A store, which runs for months, returns the memory that a burst
//! of requests used.

use std::time::Duration;

/// Interval between two checks whether memory is to be returned to the operating system.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Decrease of the memory in use since its peak, in bytes, from which freed memory is returned to the operating
/// system.
const FREED_BYTES_MIN: usize = 64 * 1024 * 1024;

/// Configures the C library's allocator to retain freed memory for the next batch. It must be called before the
/// process has other threads.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn retain_freed() {
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

/// Does nothing: other allocators retain freed memory by default.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn retain_freed() {}

/// Returns freed memory to the operating system whenever much of it was freed, for as long as the future is polled.
/// `held` returns the number of bytes that short-lived data uses at the time of the call.
pub async fn release_freed(held: impl Fn() -> usize) {
    let mut most = 0;
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let now = held();
        most = most.max(now);
        if most >= now + FREED_BYTES_MIN {
            // This may take some tens of milliseconds.
            _ = tokio::task::spawn_blocking(trim_heap).await;
            most = now;
        }
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn trim_heap() {
    #[expect(unsafe_code, reason = "the C library's function has no safe form")]
    // SAFETY: `malloc_trim` takes a plain number, and locks what it looks at.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Does nothing: other allocators return freed memory themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn trim_heap() {}
