//! How freed memory is kept: batches of several megabytes come and go all the time, and giving each
//! back to the system, to have its pages cleared and mapped anew, costs a copy a fifth of its own
//! processor time.

/// Keeps what is freed for the next batch. Called before there are other threads.
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
