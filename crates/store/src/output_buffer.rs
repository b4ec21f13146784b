//! Output buffers: the replies that clients have not received yet.
//!
//! A client that sends requests and reads no replies must not exhaust the memory. Each connection has an
//! [`OutputBuffer`], and all of them count into one [`OutputBuffers`]. A reply is charged when its
//! transaction has run, before anything of the transaction happens, wherever it runs; the [`Charge`] goes
//! with the reply and is given back when the reply was sent or dropped.
//!
//! Two limits hold, as `client-output-buffer-limit` and `maxmemory-clients` of Redis do:
//! - A connection's next request runs only while its own replies are below [`CLIENT_BYTES_MAX`]; beyond
//!   it waits, which slows down that client alone.
//! - All replies together stay below a sum. Where it is reached, each connection still has
//!   [`OWN_BYTES`]; what a longer reply belongs to is refused, and clients that read nothing are closed
//!   soon ([`OutputBuffers::is_crowded`]).
//!
//! Values that a reply shares with rows are counted in full, although they may take no memory of their
//! own: a row that is overwritten leaves its value to the replies that have it.
//!
//! Invariant: all replies together take at most the sum and, for each connection, twice `OWN_BYTES`,
//! `SMALL_BYTES`, and what sites in other processes reply to one batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Bytes of replies of all connections together, if nothing else is set.
pub const OUTPUT_BYTES_MAX: usize = 1024 * 1024 * 1024;
/// Bytes of a connection's replies beyond which it runs no further request.
const CLIENT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes of replies that a connection may have even when the sum is reached.
const OWN_BYTES: usize = 128 * 1024;
/// Bytes of a reply that is never refused.
const SMALL_BYTES: usize = 16 * 1024;

/// Bytes of a reply that is not counted: a connection's requests that are under way have hardly more such
/// replies than [`OWN_BYTES`], and to count each would cost as much as to look up a row.
pub(crate) const UNCOUNTED_BYTES: usize = 128;

/// The output buffers of all connections.
pub struct OutputBuffers {
    bytes_max: usize,
    bytes: AtomicUsize,
    closed: AtomicU64,
}

impl OutputBuffers {
    /// At most so many bytes of replies, together.
    #[must_use]
    pub fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { bytes_max, bytes: AtomicUsize::new(0), closed: AtomicU64::new(0) })
    }

    /// Bytes of replies that wait to be received.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Connections that were closed because their clients did not receive replies.
    #[must_use]
    pub fn closed(&self) -> u64 {
        self.closed.load(Ordering::Relaxed)
    }

    /// Counts a connection that is closed because its client does not receive replies.
    pub(crate) fn count_closed(&self) {
        self.closed.fetch_add(1, Ordering::Relaxed);
    }

    /// True if the sum is nearly reached: within an eighth.
    pub(crate) fn is_crowded(&self) -> bool {
        self.bytes() >= self.bytes_max - self.bytes_max / 8
    }

    /// The error of a request whose reply is too long while the sum is reached.
    pub(crate) fn refusal(&self) -> String {
        format!(
            "ERR replies that clients have not received take too much memory: at most {} bytes, try later",
            self.bytes_max
        )
    }
}

/// The output buffer of one connection.
pub struct OutputBuffer {
    of: Arc<OutputBuffers>,
    bytes: AtomicUsize,
    bytes_max: usize,
    /// True if charges are never given back: the replies to one batch, which leave for another process.
    is_batch: bool,
}

impl OutputBuffer {
    /// An empty one.
    #[must_use]
    pub fn new(of: &Arc<OutputBuffers>) -> Arc<Self> {
        let (of, bytes, bytes_max) = (Arc::clone(of), AtomicUsize::new(0), CLIENT_BYTES_MAX);
        Arc::new(Self { of, bytes, bytes_max, is_batch: false })
    }

    /// The replies to one batch of requests, which another process sent and will count.
    pub(crate) fn of_batch(room: usize) -> Arc<Self> {
        let (of, bytes, bytes_max) = (OutputBuffers::new(usize::MAX), AtomicUsize::new(0), room);
        Arc::new(Self { of, bytes, bytes_max, is_batch: true })
    }

    /// True if a further request may run.
    pub(crate) fn has_room(&self) -> bool {
        self.room() > 0
    }

    /// Bytes that further replies may take; one of them may be longer.
    pub(crate) fn room(&self) -> usize {
        let bytes = self.bytes.load(Ordering::Relaxed);
        let of_all = self.of.bytes_max.saturating_sub(self.of.bytes());
        let own = OWN_BYTES.saturating_sub(bytes);
        self.bytes_max.saturating_sub(bytes).min(of_all.max(own))
    }

    /// True if this connection has more than the bytes that each has in any case.
    pub(crate) fn is_large(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > OWN_BYTES
    }

    /// All of them.
    pub(crate) fn all(&self) -> &OutputBuffers {
        &self.of
    }

    /// Charges a reply that has not been made yet; none where it would be too much for all.
    pub(crate) fn try_charge(self: &Arc<Self>, bytes: usize) -> Option<Charge> {
        let own = self.bytes.load(Ordering::Relaxed).saturating_add(bytes);
        if bytes <= SMALL_BYTES || own <= OWN_BYTES {
            return Some(self.charge(bytes));
        }
        let (most, order) = (self.of.bytes_max, Ordering::Relaxed);
        let add = |sum: usize| sum.checked_add(bytes).filter(|sum| *sum <= most);
        self.of.bytes.fetch_update(order, order, add).ok()?;
        self.bytes.fetch_add(bytes, order);
        Some(Charge { of: Arc::clone(self), bytes })
    }

    /// Charges a reply that is there.
    pub(crate) fn charge(self: &Arc<Self>, bytes: usize) -> Charge {
        self.of.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Charge { of: Arc::clone(self), bytes }
    }
}

/// The charge of replies to an output buffer, until it is dropped.
pub(crate) struct Charge {
    of: Arc<OutputBuffer>,
    bytes: usize,
}

impl Charge {
    /// Takes over what another one of the same connection has.
    pub fn join(&mut self, mut other: Self) {
        assert!(Arc::ptr_eq(&self.of, &other.of), "replies are sent to the client that asked");
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if !self.of.is_batch {
            self.of.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
            self.of.of.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: usize = 1024 * 1024;

    #[test]
    fn a_connection_runs_nothing_more_while_it_has_its_most() {
        let all = OutputBuffers::new(1024 * MB);
        let (one, other) = (OutputBuffer::new(&all), OutputBuffer::new(&all));
        let mut charges = Vec::new();
        while one.has_room() {
            charges.push(one.try_charge(3 * MB).expect("all together have room"));
        }
        assert_eq!(charges.len(), 22, "the 22nd of 3 MB goes beyond 64 MB");
        assert!(other.has_room());
        charges.pop();
        assert!(one.has_room(), "{} bytes", all.bytes());
        charges.clear();
        assert_eq!(all.bytes(), 0);
    }

    #[test]
    fn all_together_stay_below_the_sum_and_each_keeps_a_little() {
        let all = OutputBuffers::new(100 * MB);
        let buffers: Vec<_> = (0..1_000).map(|_| OutputBuffer::new(&all)).collect();
        let mut charges = Vec::new();
        for buffer in &buffers {
            while buffer.has_room() {
                let Some(charge) = buffer.try_charge(MB) else { break };
                charges.push(charge);
            }
        }
        assert_eq!(all.bytes(), 100 * MB);
        assert!(all.is_crowded());
        // Short replies still fit in the last buffer's own bytes.
        let last = buffers.last().expect("there are many");
        while last.has_room() {
            charges.push(last.try_charge(1_000).expect("it is short"));
        }
        assert_eq!(last.room(), 0);
        assert_eq!(all.bytes(), 100 * MB + OWN_BYTES.div_ceil(1_000) * 1_000);
        assert!(last.try_charge(MB).is_none());
        assert!(all.refusal().contains("104857600"), "{}", all.refusal());
        drop(charges);
        assert_eq!((all.bytes(), all.is_crowded()), (0, false));
    }

    #[test]
    fn charges_join_and_are_given_back_once() {
        let all = OutputBuffers::new(MB);
        let buffer = OutputBuffer::new(&all);
        let mut one = buffer.charge(10);
        one.join(buffer.charge(32));
        assert_eq!(all.bytes(), 42);
        drop(one);
        assert_eq!((all.bytes(), buffer.room()), (0, MB));
    }

    #[test]
    fn a_batch_counts_what_has_left_already() {
        let batch = OutputBuffer::of_batch(2 * MB);
        drop(batch.try_charge(MB));
        assert!(batch.has_room());
        drop(batch.try_charge(MB));
        assert!(!batch.has_room());
    }
}
