//! Output buffers: the replies that clients have not received yet.
//!
//! A client that sends requests and reads no replies must not exhaust the memory, nor make the reads of other
//! clients fail. Each connection has an [`OutputBuffer`], and all of them count into one [`OutputBuffers`]. A
//! reply is charged when its transaction has run, before the transaction takes effect, at whichever site it
//! runs. The [`Charge`] belongs to the reply and is returned when the reply was sent or dropped.
//!
//! Two limits hold, like `client-output-buffer-limit` and `maxmemory-clients` of Redis:
//! - A connection's next request runs only while its own unsent replies are below [`CLIENT_BYTES_MAX`];
//!   otherwise it waits, which slows down that client alone.
//! - The memory of all replies together stays below a total limit. A long value that replies share with a row
//!   counts once, however many replies share it. When the total limit is reached, connections are closed, the
//!   largest first: those that use more memory than the connection that needs room would, and those whose
//!   clients receive nothing. If that does not make enough room, the reply is refused.
//!
//! A connection that is to be closed releases its memory when its thread notices that, within milliseconds; until
//! then its memory does not count towards the total limit.
//!
//! Invariant: all replies together take at most the total limit, as much again for connections that are being
//! closed, and, for each connection, twice `OWN_BYTES`, `SMALL_BYTES`, and the replies of sites in other
//! processes to one batch.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

use crate::key::Value;

/// Default of the limit on the memory of all connections' unsent replies together, in bytes.
pub const OUTPUT_BYTES_MAX: usize = 1024 * 1024 * 1024;
/// Limit on the unsent replies of one connection, in bytes; beyond it the connection runs no further request.
const CLIENT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes of unsent replies that each connection may have even when the total limit of all connections is reached.
const OWN_BYTES: usize = 128 * 1024;
/// Maximum length of a reply, in bytes, that is never refused for lack of room.
const SMALL_BYTES: usize = 16 * 1024;

/// Maximum length of a reply, in bytes, that is not counted. The requests of a connection that are in progress hardly
/// have more such replies than [`OWN_BYTES`], and counting each would cost as much as a row lookup.
pub(crate) const UNCOUNTED_BYTES: usize = 128;

/// The unsent replies of all connections, counted towards one limit of their memory.
pub struct OutputBuffers {
    bytes_max: usize,
    /// Memory of all unsent replies, in bytes; values that several replies share count once.
    memory: AtomicUsize,
    /// Total length of the replies that clients have not received, in bytes; shared values count in each reply.
    bytes: AtomicUsize,
    /// Memory of the connections that are being closed to make room, in bytes, as of the decision to close each.
    leaving: AtomicUsize,
    closed: AtomicU64,
    /// The number of unsent replies that share each value, by the value's address.
    shared: Mutex<HashMap<usize, usize>>,
    connections: Mutex<Connections>,
}

#[derive(Default)]
struct Connections {
    next: u64,
    all: BTreeMap<u64, Weak<OutputBuffer>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OutputBuffers {
    /// Returns the output buffers of a process, whose replies together take at most `bytes_max` bytes of memory.
    #[must_use]
    pub fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            bytes_max,
            memory: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            leaving: AtomicUsize::new(0),
            closed: AtomicU64::new(0),
            shared: Mutex::default(),
            connections: Mutex::default(),
        })
    }

    /// Returns the total length of the replies that clients have not received, in bytes; shared values count in each
    /// reply.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the memory of the replies that clients have not received, in bytes: values that replies share with
    /// rows count once.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.memory.load(Ordering::Relaxed)
    }

    /// Returns the number of open connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        lock(&self.connections).all.len()
    }

    /// Returns the number of connections that were closed because their clients did not receive replies.
    #[must_use]
    pub fn closed(&self) -> u64 {
        self.closed.load(Ordering::Relaxed)
    }

    /// Adds a connection to the number of those closed because their clients do not receive replies.
    pub(crate) fn count_closed(&self) {
        self.closed.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns true if at least seven eighths of the total limit on memory are used.
    pub(crate) fn is_crowded(&self) -> bool {
        self.memory() >= self.bytes_max - self.bytes_max / 8
    }

    /// Returns the text of the error for a request whose reply does not fit because the total limit is reached.
    pub(crate) fn refusal(&self) -> String {
        format!(
            "ERR replies that clients have not received take too much memory: at most {} bytes, try later",
            self.bytes_max
        )
    }

    /// Returns the memory that counts towards the total limit, in bytes: without the connections that are being
    /// closed.
    fn counted(&self) -> usize {
        self.memory().saturating_sub(self.leaving.load(Ordering::Relaxed))
    }

    /// Counts one more reply for each value, and returns the total length in bytes of the values that no other reply
    /// shares.
    fn share(&self, values: &[Value]) -> usize {
        if values.is_empty() {
            return 0;
        }
        let mut shared = lock(&self.shared);
        let first = |value: &&Value| {
            let replies = shared.entry(value.as_ptr() as usize).or_default();
            *replies += 1;
            *replies == 1
        };
        values.iter().filter(first).map(|value| value.len()).sum()
    }

    /// Counts one reply less for each value, and returns the total length in bytes of the values that no reply shares
    /// any more.
    fn unshare(&self, values: &[Value]) -> usize {
        if values.is_empty() {
            return 0;
        }
        let mut shared = lock(&self.shared);
        let last = |value: &&Value| {
            let address = value.as_ptr() as usize;
            let left = shared.get_mut(&address).map_or(0, |replies| {
                *replies -= 1;
                *replies
            });
            left == 0 && shared.remove(&address).is_some()
        };
        values.iter().filter(last).map(|value| value.len()).sum()
    }

    /// Requests the end of connections, the largest first, until the memory is within the total limit; `own` is the
    /// memory in bytes of the connection that needs room. Returns false if closing connections does not suffice.
    fn make_room(&self, own: usize) -> bool {
        if self.counted() <= self.bytes_max {
            return true;
        }
        let connections: Vec<Arc<OutputBuffer>> =
            lock(&self.connections).all.values().filter_map(Weak::upgrade).collect();
        loop {
            if self.counted() <= self.bytes_max {
                return true;
            }
            let may_go = |one: &&Arc<OutputBuffer>| {
                let memory = one.memory.load(Ordering::Relaxed);
                let is_silent = one.is_silent.load(Ordering::Relaxed) && memory > OWN_BYTES;
                !one.is_leaving.load(Ordering::Relaxed) && (memory > own || is_silent)
            };
            let all = connections.iter().filter(may_go);
            let largest = all.max_by_key(|one| one.memory.load(Ordering::Relaxed));
            let Some(largest) = largest else { return false };
            largest.leave();
        }
    }
}

/// The unsent replies of one connection, as counted.
pub struct OutputBuffer {
    of: Arc<OutputBuffers>,
    number: u64,
    bytes: AtomicUsize,
    /// Memory of the connection's replies without the values that they share with rows, in bytes.
    memory: AtomicUsize,
    bytes_max: usize,
    /// True if the client has received no byte of its pending replies for a while.
    is_silent: AtomicBool,
    /// True if the connection is to be closed to make room; `left` is its memory in bytes at that decision, and
    /// `told` signals its thread.
    is_leaving: AtomicBool,
    left: AtomicUsize,
    told: Notify,
    /// True if charges are never returned, because the buffer counts the replies to one batch for another process.
    is_batch: bool,
}

impl OutputBuffer {
    /// Returns the empty output buffer of a new connection.
    #[must_use]
    pub fn new(of: &Arc<OutputBuffers>) -> Arc<Self> {
        let mut connections = lock(&of.connections);
        let number = connections.next;
        connections.next += 1;
        let one = Arc::new(Self::of(Arc::clone(of), number, CLIENT_BYTES_MAX, false));
        connections.all.insert(number, Arc::downgrade(&one));
        drop(connections);
        one
    }

    /// Returns an output buffer of at most `room` bytes for the replies to one batch of requests from another
    /// process, which counts the replies itself.
    pub(crate) fn for_batch(room: usize) -> Arc<Self> {
        Arc::new(Self::of(OutputBuffers::new(usize::MAX), 0, room, true))
    }

    fn of(of: Arc<OutputBuffers>, number: u64, bytes_max: usize, is_batch: bool) -> Self {
        Self {
            of,
            number,
            bytes: AtomicUsize::new(0),
            memory: AtomicUsize::new(0),
            bytes_max,
            is_silent: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            left: AtomicUsize::new(0),
            told: Notify::new(),
            is_batch,
        }
    }

    /// Returns true if the connection may run a further request.
    pub(crate) fn has_room(&self) -> bool {
        self.room() > 0
    }

    /// Returns the number of bytes that further replies of the connection may take; the last of them may exceed it.
    pub(crate) fn room(&self) -> usize {
        let bytes = self.bytes.load(Ordering::Relaxed);
        let of_all = self.of.bytes_max.saturating_sub(self.of.counted());
        let own = OWN_BYTES.saturating_sub(bytes);
        self.bytes_max.saturating_sub(bytes).min(of_all.max(own))
    }

    /// Returns true if this connection's replies take more than [`OWN_BYTES`], which each connection always has.
    pub(crate) fn is_large(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > OWN_BYTES
    }

    /// Records whether the client has received no byte of its pending replies for a while.
    pub(crate) fn set_silent(&self, is_silent: bool) {
        self.is_silent.store(is_silent, Ordering::Relaxed);
    }

    /// Waits until the connection is to be closed to make room for others.
    pub(crate) async fn is_to_leave(&self) {
        self.told.notified().await;
    }

    fn leave(&self) {
        if self.is_leaving.swap(true, Ordering::Relaxed) {
            return;
        }
        let memory = self.memory.load(Ordering::Relaxed);
        self.left.store(memory, Ordering::Relaxed);
        self.of.leaving.fetch_add(memory, Ordering::Relaxed);
        self.told.notify_one();
    }

    /// Returns the output buffers of all connections, to which this one belongs.
    pub(crate) fn all(&self) -> &OutputBuffers {
        &self.of
    }

    /// Charges a reply before it is made. `bytes` is the length of the reply, the values in `shared` included.
    /// Returns `None` if the reply would exceed the total limit.
    pub(crate) fn try_charge(self: &Arc<Self>, bytes: usize, shared: Vec<Value>) -> Option<Charge> {
        let own = self.bytes.load(Ordering::Relaxed).saturating_add(bytes);
        if bytes <= SMALL_BYTES || own <= OWN_BYTES {
            return Some(self.charge(bytes, shared));
        }
        let charge = self.charged(bytes, shared);
        self.of.make_room(self.memory.load(Ordering::Relaxed)).then_some(charge)
    }

    /// Charges a reply that has been made already, even if it exceeds the total limit. `bytes` is its length, the
    /// values in `shared` included.
    pub(crate) fn charge(self: &Arc<Self>, bytes: usize, shared: Vec<Value>) -> Charge {
        let charge = self.charged(bytes, shared);
        if bytes > SMALL_BYTES && self.of.counted() > self.of.bytes_max {
            self.of.make_room(self.memory.load(Ordering::Relaxed));
        }
        charge
    }

    fn charged(self: &Arc<Self>, bytes: usize, shared: Vec<Value>) -> Charge {
        let of_values: usize = shared.iter().map(|value| value.len()).sum();
        let copied = bytes.saturating_sub(of_values);
        let memory = copied + self.of.share(&shared);
        self.of.memory.fetch_add(memory, Ordering::Relaxed);
        self.of.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.memory.fetch_add(copied, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Charge { of: Arc::clone(self), bytes, copied, shared }
    }
}

impl Drop for OutputBuffer {
    fn drop(&mut self) {
        self.of.leaving.fetch_sub(self.left.load(Ordering::Relaxed), Ordering::Relaxed);
        lock(&self.of.connections).all.remove(&self.number);
    }
}

/// The charge of one or more replies of a client to its output buffer; dropping it returns the charge.
pub(crate) struct Charge {
    of: Arc<OutputBuffer>,
    bytes: usize,
    /// Number of the charged bytes that are not in shared values.
    copied: usize,
    /// The values that the replies share with rows; held, so that no other value can get the address of a counted
    /// one.
    shared: Vec<Value>,
}

impl Charge {
    /// Adds another charge of the same connection to this one.
    pub fn join(&mut self, mut other: Self) {
        assert!(Arc::ptr_eq(&self.of, &other.of), "replies are sent to the client that asked");
        self.bytes += std::mem::take(&mut other.bytes);
        self.copied += std::mem::take(&mut other.copied);
        self.shared.append(&mut other.shared);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if !self.of.is_batch {
            let all = &self.of.of;
            let memory = self.copied + all.unshare(&self.shared);
            all.memory.fetch_sub(memory, Ordering::Relaxed);
            all.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
            self.of.memory.fetch_sub(self.copied, Ordering::Relaxed);
            self.of.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: usize = 1024 * 1024;

    fn copied(buffer: &Arc<OutputBuffer>, bytes: usize) -> Option<Charge> {
        buffer.try_charge(bytes, Vec::new())
    }

    #[test]
    fn a_connection_runs_nothing_more_while_it_has_its_most() {
        let all = OutputBuffers::new(1024 * MB);
        let (one, other) = (OutputBuffer::new(&all), OutputBuffer::new(&all));
        let mut charges = Vec::new();
        while one.has_room() {
            charges.push(copied(&one, 3 * MB).expect("all together have room"));
        }
        assert_eq!(charges.len(), 22, "the 22nd of 3 MB goes beyond 64 MB");
        assert!(other.has_room());
        charges.pop();
        assert!(one.has_room(), "{} bytes", all.bytes());
        charges.clear();
        assert_eq!((all.bytes(), all.memory()), (0, 0));
    }

    #[test]
    fn all_together_stay_below_the_sum_and_each_keeps_a_little() {
        let all = OutputBuffers::new(100 * MB);
        let buffers: Vec<_> = (0..1_000).map(|_| OutputBuffer::new(&all)).collect();
        let mut charges = Vec::new();
        // None has more than the next one asks for, and each receives.
        for buffer in &buffers {
            charges.extend(copied(buffer, MB));
        }
        assert_eq!((all.memory(), all.connections()), (100 * MB, 1_000));
        assert!(all.is_crowded());
        // Short replies still fit in the last buffer's own bytes.
        let last = buffers.last().expect("there are many");
        while last.has_room() {
            charges.push(copied(last, 1_000).expect("it is short"));
        }
        assert_eq!(last.room(), 0);
        assert_eq!(all.memory(), 100 * MB + OWN_BYTES.div_ceil(1_000) * 1_000);
        assert!(copied(last, MB).is_none());
        assert!(all.refusal().contains("104857600"), "{}", all.refusal());
        drop(charges);
        assert_eq!((all.bytes(), all.memory(), all.is_crowded()), (0, 0, false));
    }

    #[test]
    fn a_value_that_replies_share_is_counted_once() {
        let all = OutputBuffers::new(100 * MB);
        let (value, other): (Value, Value) = (vec![1; MB].into(), vec![2; MB].into());
        let buffers: Vec<_> = (0..300).map(|_| OutputBuffer::new(&all)).collect();
        let mut charges: Vec<Charge> = Vec::new();
        for buffer in &buffers {
            let charge = buffer.try_charge(MB + 20, vec![Value::clone(&value)]);
            charges.push(charge.expect("the value takes its memory once"));
        }
        assert_eq!((all.memory(), all.bytes()), (MB + 300 * 20, 300 * (MB + 20)));
        charges.push(buffers[0].charge(2 * MB, vec![Value::clone(&other), Value::clone(&other)]));
        assert_eq!(all.memory(), 2 * MB + 300 * 20);
        charges.truncate(1);
        assert_eq!((all.memory(), all.bytes()), (MB + 20, MB + 20));
        charges.clear();
        assert_eq!((all.memory(), all.bytes()), (0, 0));
    }

    #[test]
    fn the_largest_connection_makes_room_for_one_that_has_less() {
        let all = OutputBuffers::new(100 * MB);
        let silent: Vec<_> = (0..2).map(|_| OutputBuffer::new(&all)).collect();
        let mut held: Vec<Charge> = (0..60).filter_map(|_| copied(&silent[0], MB)).collect();
        held.extend((0..40).filter_map(|_| copied(&silent[1], MB)));
        let reader = OutputBuffer::new(&all);
        let charge = copied(&reader, MB);
        assert!(charge.is_some(), "it reads, and has less");
        let is_leaving = |one: &OutputBuffer| one.is_leaving.load(Ordering::Relaxed);
        assert!(is_leaving(&silent[0]) && !is_leaving(&silent[1]) && !is_leaving(&reader));
        // Who has most is refused.
        let mut more: Vec<Charge> = (0..58).filter_map(|_| copied(&reader, MB)).collect();
        assert!(copied(&reader, 2 * MB).is_none() && !is_leaving(&silent[1]));
        more.clear();
        // Its thread gives the memory back.
        held.drain(..60);
        drop(silent);
        drop((held, charge));
        assert_eq!((all.memory(), all.leaving.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn who_receives_nothing_makes_room_however_little_it_has() {
        let all = OutputBuffers::new(10 * MB);
        let buffers: Vec<_> = (0..11).map(|_| OutputBuffer::new(&all)).collect();
        let _held: Vec<Charge> = buffers[..10].iter().filter_map(|one| copied(one, MB)).collect();
        assert!(copied(&buffers[10], MB).is_none(), "all have as much as it asks for");
        buffers[3].set_silent(true);
        assert!(copied(&buffers[10], MB).is_some());
        assert!(buffers[3].is_leaving.load(Ordering::Relaxed));
    }

    #[test]
    fn charges_join_and_are_given_back_once() {
        let all = OutputBuffers::new(MB);
        let buffer = OutputBuffer::new(&all);
        let mut one = buffer.charge(10, Vec::new());
        one.join(buffer.charge(32, Vec::new()));
        assert_eq!(all.bytes(), 42);
        drop(one);
        assert_eq!((all.bytes(), buffer.room()), (0, MB));
    }

    #[test]
    fn a_batch_counts_what_has_left_already() {
        let batch = OutputBuffer::for_batch(2 * MB);
        drop(copied(&batch, MB));
        assert!(batch.has_room());
        drop(copied(&batch, MB));
        assert!(!batch.has_room());
    }
}
