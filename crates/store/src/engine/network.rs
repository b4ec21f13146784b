//! A simulated network between the sites of one process, for benchmarks: it delays messages between sites and the log
//! as much as a network would.
//!
//! A message between two sites takes half a round trip. The log is at a distance, too: its entries reach the sites a
//! round trip after they were written. Messages of one kind to one site stay in order.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;

use super::site::mailbox::SiteEvent;
use crate::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use crate::sync::thread;

/// Sends events to a site over the simulated network.
#[derive(Clone)]
pub(crate) struct Link {
    /// The thread that delays events.
    network: Sender<Sent>,
    /// The mailbox of the site.
    mailbox: UnboundedSender<SiteEvent>,
    /// Time that a message takes from a site to another one and back.
    round_trip: Duration,
}

/// An event on its way.
struct Sent {
    due: Instant,
    is_of_log: bool,
    event: SiteEvent,
    mailbox: UnboundedSender<SiteEvent>,
}

/// Starts the thread that delays events; it ends when all links are dropped. Returns a link to each of the mailboxes.
///
/// # Errors
/// Returns an error if no thread can be started.
pub(super) fn links(
    mailboxes: Vec<UnboundedSender<SiteEvent>>,
    round_trip: Duration,
) -> std::io::Result<Vec<Link>> {
    let (network, sent) = channel();
    thread::Builder::new().name("network".into()).spawn(move || run(&sent))?;
    let link = |mailbox| Link { network: network.clone(), mailbox, round_trip };
    Ok(mailboxes.into_iter().map(link).collect())
}

impl Link {
    /// Sends an event: with a delay if it comes from another site or the log, otherwise at once. Returns false if the
    /// mailbox is closed.
    pub fn send(&self, event: SiteEvent) -> bool {
        let is_of_log = matches!(event, SiteEvent::Logged(..) | SiteEvent::Stalled(_));
        let delay = match event {
            SiteEvent::Said(..) => self.round_trip / 2,
            _ if is_of_log => self.round_trip,
            _ => return self.mailbox.send(event).is_ok(),
        };
        let mailbox = self.mailbox.clone();
        let sent = Sent { due: Instant::now() + delay, is_of_log, event, mailbox };
        !self.mailbox.is_closed() && self.network.send(sent).is_ok()
    }
}

/// Delivers events when they are due, until all links are dropped.
fn run(sent: &Receiver<Sent>) {
    // All events of a queue have the same delay, so each queue is in the order of the times at which they are due.
    let mut queues: [VecDeque<Sent>; 2] = [VecDeque::new(), VecDeque::new()];
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
