//! Measures the peak memory of an operation. It is an allocator for the tests, which counts the memory of
//! each thread and otherwise works as the system's allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // The counters of a thread that is ending may be gone.
    _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: every call is passed on to the system allocator unchanged, and counting allocates nothing.
#[allow(unsafe_code, reason = "an allocator has no safe form")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        unsafe { System.realloc(at, layout, size) }
    }
}

/// Runs `work`, and returns its result and its peak memory on this thread, in bytes beyond what the thread
/// had before.
pub(crate) fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    PEAK.set(before);
    let done = work();
    (done, usize::try_from(PEAK.get() - before).unwrap_or(0))
}

#[test]
fn what_was_given_back_counts_too() {
    let (length, bytes) = peak(|| {
        drop(vec![1_u8; 100_000]);
        vec![1_u8; 10_000].len()
    });
    assert!(length == 10_000 && (100_000..101_000).contains(&bytes), "{bytes}");
}
