//! The requests of a connection that are not answered yet, and their replies in request order.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::Notify;

use crate::engine::PATIENCE;
use crate::engine::site::mailbox::{Outcome, Recipient};
use crate::output_buffer::{OutputBuffer, UNCOUNTED_BYTES};
use crate::record::Position;
use crate::reply::Reply;
use crate::resp::ProtocolState;
use crate::transaction::{Abort, Done, Transaction};

/// Maximum number of one connection's requests that are under way, or answered and not sent yet.
const PIPELINE_MAX: usize = 1_024;

/// Size of a send in bytes, at which no further reply is added to it.
const SENT_BYTES: usize = 1024 * 1024;

/// Number of a connection's request slots whose memory is retained for further requests.
const RETAINED_SLOTS_MAX: usize = 64;

/// The requests of a connection that are not answered yet, in the order of arrival.
pub(super) struct Pipeline {
    pub slots: RefCell<VecDeque<Slot>>,
    /// Sequence number of the request in the first slot; requests of a connection are numbered from 0.
    pub first: Cell<u64>,
    /// Number of the connection's requests that are under way.
    pub running: Cell<usize>,
    /// True if a site has returned a request that is not queued again yet.
    pub has_rerouted: Cell<bool>,
    /// Time of the last send of replies; the time limit of later requests counts from then.
    pub progress: Cell<Instant>,
    pub output: Arc<OutputBuffer>,
    pub changed: Notify,
}

/// The state of a request of a connection.
pub(super) enum Slot {
    /// The reply is encoded and ready to be sent.
    Ready(Reply),
    /// The request is under way, or is to begin; it may begin until this time.
    Open(Instant),
    /// The transaction has this outcome, which is not encoded as a reply yet.
    Ended(Result<Done, Abort>),
    /// A site returned the transaction to be routed again; it may begin until this time.
    Returned(Instant, Transaction),
}

impl Pipeline {
    pub fn new(output: Arc<OutputBuffer>) -> Self {
        Self {
            slots: RefCell::default(),
            first: Cell::default(),
            running: Cell::default(),
            has_rerouted: Cell::default(),
            progress: Cell::new(Instant::now()),
            output,
            changed: Notify::default(),
        }
    }

    /// True if the connection may start no further request now: it has too many, or too large unsent replies.
    pub fn is_full(&self) -> bool {
        self.slots.borrow().len() >= PIPELINE_MAX || !self.output.has_room()
    }

    /// Adds a reply that needs no transaction, or an error if the output buffers have no room for the reply.
    pub fn say(&self, mut reply: Reply) {
        match self.output.try_charge(reply.len(), reply.shared()) {
            _ if reply.len() <= UNCOUNTED_BYTES => {}
            Some(charge) => reply.keep(Some(charge)),
            None => {
                reply = Reply::from(format!("-{}\r\n", self.output.all().refusal()).into_bytes())
            }
        }
        self.push(Slot::Ready(reply));
    }

    /// Returns the later of `until` and [`PATIENCE`] after the last send: the time until which a request may begin.
    pub fn until(&self, until: Instant) -> Instant {
        until.max(self.progress.get() + PATIENCE)
    }

    /// Adds a slot for a request at the end, and returns the request's number.
    pub fn push(&self, slot: Slot) -> u64 {
        let mut slots = self.slots.borrow_mut();
        slots.push_back(slot);
        self.first.get() + slots.len() as u64 - 1
    }

    /// Sets the error of the request with this number, which does not run.
    pub fn end(&self, number: u64, abort: Abort) {
        let at = usize::try_from(number - self.first.get()).expect("slots are in memory");
        self.slots.borrow_mut()[at] = Slot::Ended(Err(abort));
    }

    /// Encodes the replies that can be sent and moves them to `out`, up to about [`SENT_BYTES`].
    pub fn collect(&self, protocol: &mut ProtocolState, out: &mut Reply) {
        let mut slots = self.slots.borrow_mut();
        while let Some(Slot::Ready(_) | Slot::Ended(_)) = slots.front()
            && out.len() < SENT_BYTES
        {
            match slots.pop_front() {
                Some(Slot::Ready(reply)) => out.append(reply),
                Some(Slot::Ended(answer)) => {
                    out.append(protocol.reply(answer.map(|done| done.answer)));
                }
                _ => unreachable!("it was looked at"),
            }
            self.first.set(self.first.get() + 1);
        }
        if slots.is_empty() {
            slots.shrink_to(RETAINED_SLOTS_MAX);
        }
    }
}

impl Recipient for Pipeline {
    fn answer(&self, number: u64, outcome: Outcome, seen: &Cell<Position>) {
        self.running.set(self.running.get() - 1);
        // A closed connection has no slot for it.
        let at = usize::try_from(number - self.first.get()).expect("slots are in memory");
        if let Some(slot) = self.slots.borrow_mut().get_mut(at) {
            *slot = match (outcome, &*slot) {
                (Outcome::Answer(known, mut answer), _) => {
                    seen.set(seen.get().max(known));
                    if let Ok(done) = &mut answer
                        && done.answer.len() > UNCOUNTED_BYTES
                        && !done.answer.is_charged()
                    {
                        // A reply from another process is not charged yet.
                        let charge = self.output.charge(done.answer.len(), Vec::new());
                        done.answer.keep(Some(charge));
                    }
                    Slot::Ended(answer)
                }
                (Outcome::Rerouted(transaction), Slot::Open(until)) => {
                    self.has_rerouted.set(true);
                    Slot::Returned(*until, transaction)
                }
                (Outcome::Rerouted(_), _) => unreachable!("only what is open comes back"),
            };
        }
        self.changed.notify_one();
    }
}
