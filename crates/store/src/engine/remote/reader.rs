//! Reads the messages of a site's process on the router's side, and executes them.

use std::io::BufReader;
use std::mem;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};

use super::marks::Marks;
use super::waiting::{Waiter, Waiting, lock};
use super::wire::{self, Asked, ToRouter};
use crate::engine::Shared;
use crate::engine::site::executor::CheckpointSink;
use crate::engine::site::mailbox::{Outcome, SiteEvent};
use crate::key::Key;
use crate::record::{Body, Epoch, LogEntry, Position, Site};
use crate::resp::decode;
use crate::rows::{Row, Rows};
use crate::site::{Part, Snapshot};
use crate::transaction::{Abort, Transaction};

/// The reader of the messages on one connection of a site's process.
pub(in crate::engine) struct Reader {
    /// State shared with the router's other threads.
    pub shared: Arc<Shared>,
    /// The site that the process on this connection serves.
    pub site: Site,
    /// The epoch that the site has on this connection; log entries of other epochs are invalid.
    pub epoch: Epoch,
    /// The router's requests that the process has not answered yet.
    pub waiting: Arc<Mutex<Waiting>>,
    /// Receives the parts of checkpoints that the site delivers.
    pub parts: CheckpointSink,
    /// The number of the connection among those of the site.
    pub number: u64,
    /// The designs at the positions as of which parts of checkpoints were requested.
    pub marks: Arc<Marks>,
    /// The part of a checkpoint that is being received, and the rows so far of its last partition; `None` between
    /// parts.
    pub part: Option<(Part, Vec<(Key, Row)>)>,
}

impl Reader {
    /// Reads and executes messages until the connection is lost or a message is invalid, then reports the end to the
    /// site's mailbox.
    pub fn run(mut self, mut from: BufReader<TcpStream>) {
        let why = loop {
            match wire::read(&mut from).map(|said| self.execute(said)) {
                Ok(Ok(())) => {}
                Ok(Err(what)) => break what.to_owned(),
                Err(error) => break wire::told(&error),
            }
        };
        tracing::warn!(site = self.site.0, why, "a site's process is not heard any more");
        // Data that is still being sent to the process is of no use.
        _ = from.get_ref().shutdown(Shutdown::Both);
        _ = self.shared.sender(self.site).send(SiteEvent::Lost(self.number));
    }

    /// Executes a message of the process, or returns the reason why the message is invalid.
    fn execute(&mut self, said: ToRouter) -> Result<(), &'static str> {
        match said {
            ToRouter::Write(entries) => {
                let is_its_own = |entry: &LogEntry| {
                    entry.by.site == self.site
                        && entry.by.epoch == self.epoch
                        && entry.body != Body::Fence
                };
                if !entries.iter().all(is_its_own) {
                    return Err("it wrote what is not its own");
                }
                self.shared.sequencer.submit(entries);
            }
            ToRouter::Ended(number, known, answer) => {
                self.end(number, |_| Some(Outcome::Answer(known, answer)));
            }
            ToRouter::Back(asked) => self.end(asked.number, |_| {
                let Asked { reads, writes, session, client, at_masters, procedure, .. } = asked;
                // The procedure is sent on as bytes, or decoded again where it runs.
                let procedure = decode(&procedure, &Arc::default())?;
                let output = None;
                let transaction = Transaction {
                    reads,
                    writes,
                    session,
                    client,
                    at_masters,
                    is_distributed: false,
                    output,
                    procedure,
                };
                Some(Outcome::Rerouted(transaction))
            }),
            ToRouter::Say(to, said) => {
                let sender = self.shared.site_senders().get(usize::from(to.0));
                sender
                    .ok_or("it speaks to a site that there is not")?
                    .send(SiteEvent::Relayed(self.site, said));
            }
            ToRouter::Counted(number, usage) => {
                if let Some(Waiter::Count(answer)) = lock(&self.waiting).all.remove(&number) {
                    answer(usage);
                }
            }
            ToRouter::Subscribe(request) => {
                let event = SiteEvent::Subscribe(self.number, request);
                _ = self.shared.sender(self.site).send(event);
            }
            ToRouter::Part(known) => {
                let design = self.marks.take(known).ok_or("a part that was not asked for")?;
                self.part = Some((Part::given(known, design, Vec::new()), Vec::new()));
            }
            ToRouter::Partition(start, version) => {
                let (part, rows) = self.part.as_mut().ok_or("a partition of no part")?;
                close(part, rows)?;
                part.copies.push(Snapshot { start, version, rows: Rows::default() });
            }
            ToRouter::Rows(more) => {
                let (_, rows) = self.part.as_mut().ok_or("rows of no part")?;
                rows.extend(more.into_iter().map(wire::row));
            }
            ToRouter::PartEnd => {
                let (mut part, mut rows) = self.part.take().ok_or("an end of no part")?;
                close(&mut part, &mut rows)?;
                (self.parts)(part);
            }
            ToRouter::Sampled(report) => {
                if let Some(sampler) = self.shared.sampler.get() {
                    sampler.take(self.site, report);
                }
            }
            ToRouter::Alive => {}
            ToRouter::Hello { .. } | ToRouter::Comes { .. } => {
                return Err("it said twice who it is");
            }
        }
        Ok(())
    }

    /// Passes the outcome of the request with this number to its caller; if `outcome` returns `None`, an unknown
    /// outcome.
    fn end(&self, number: u64, outcome: impl FnOnce(&Self) -> Option<Outcome>) {
        let waiter = lock(&self.waiting).all.remove(&number);
        if let Some(Waiter::ReplyTo(reply_to)) = waiter {
            let unread = Outcome::Answer(Position::START, Err(Abort::Deposed));
            reply_to.deliver(outcome(self).unwrap_or(unread), &self.shared.senders);
        }
    }
}

/// Sets the received rows as those of the part's last partition. The error is the reason why they are invalid.
fn close(part: &mut Part, rows: &mut Vec<(Key, Row)>) -> Result<(), &'static str> {
    let rows = mem::take(rows);
    if !rows.is_sorted_by(|(one, _), (next, _)| one < next) {
        return Err("rows that are not in their order");
    }
    match part.copies.last_mut() {
        Some(last) => last.rows = Rows::from_sorted(rows),
        None if rows.is_empty() => {}
        None => return Err("rows of no partition"),
    }
    Ok(())
}
