//! A simulated network between the sites of one process, for benchmarks: it delays messages between sites and the log
//! as much as a network would.
//!
//! A message between two sites takes half a round trip. The log is at a distance, too: its entries reach the sites a
//! round trip after they were written. Messages of one kind to one site stay in order.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;

use crate::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use crate::sync::thread;

/// The sender of an event, which determines how long the event takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// A thread at the site, or a client: no delay.
    Here,
    /// Another site: half a round trip.
    Site,
    /// The log: a round trip.
    Log,
}

/// Sends events to a site over the simulated network.
pub(crate) struct Link<E> {
    /// The thread that delays events.
    network: Sender<Sent<E>>,
    /// The mailbox of the site.
    mailbox: UnboundedSender<E>,
    /// Time that a message takes from a site to another one and back.
    round_trip: Duration,
}

impl<E> Clone for Link<E> {
    fn clone(&self) -> Self {
        let (network, mailbox) = (self.network.clone(), self.mailbox.clone());
        Self { network, mailbox, round_trip: self.round_trip }
    }
}

/// An event on its way.
struct Sent<E> {
    due: Instant,
    is_of_log: bool,
    event: E,
    mailbox: UnboundedSender<E>,
}

/// Starts the thread that delays events; it ends when all links are dropped. Returns a link to each of the mailboxes.
///
/// # Errors
/// Returns an error if no thread can be started.
pub(super) fn links<E: Send + 'static>(
    mailboxes: Vec<UnboundedSender<E>>,
    round_trip: Duration,
) -> std::io::Result<Vec<Link<E>>> {
    let (network, sent) = channel();
    thread::Builder::new().name("network".into()).spawn(move || run(&sent))?;
    let link = |mailbox| Link { network: network.clone(), mailbox, round_trip };
    Ok(mailboxes.into_iter().map(link).collect())
}

impl<E> Link<E> {
    /// Sends an event, which arrives after the delay from its sender. Returns false if the mailbox is closed.
    pub fn send(&self, event: E, from: From) -> bool {
        let delay = match from {
            From::Here => return self.mailbox.send(event).is_ok(),
            From::Site => self.round_trip / 2,
            From::Log => self.round_trip,
        };
        let (mailbox, is_of_log) = (self.mailbox.clone(), from == From::Log);
        let sent = Sent { due: Instant::now() + delay, is_of_log, event, mailbox };
        !self.mailbox.is_closed() && self.network.send(sent).is_ok()
    }
}

/// Delivers events when they are due, until all links are dropped.
fn run<E>(sent: &Receiver<Sent<E>>) {
    // All events of a queue have the same delay, so each queue is in the order of the times at which they are due.
    let mut queues: [VecDeque<Sent<E>>; 2] = [VecDeque::new(), VecDeque::new()];
    loop {
        let first = queues.iter().filter_map(|queue| queue.front()).map(|sent| sent.due).min();
        let wait = first.map_or(Duration::MAX, |due| due.saturating_duration_since(Instant::now()));
        match sent.recv_timeout(wait) {
            Ok(event) => queues[usize::from(event.is_of_log)].push_back(event),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let now = Instant::now();
        for queue in &mut queues {
            while queue.front().is_some_and(|sent| sent.due <= now) {
                let Some(Sent { event, mailbox, .. }) = queue.pop_front() else { break };
                // A site that has stopped receives nothing more.
                _ = mailbox.send(event);
            }
        }
    }
}
