//! Who hears what a site's process says, on the router's side, and does it.

use std::io::BufReader;
use std::mem;
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use super::Shared;
use super::link::{Waiter, Waiting, lock};
use super::mail::{Mail, Outcome};
use super::place::GivePart;
use super::wire::{self, Asked, ToRouter};
use crate::key::Key;
use crate::record::{Body, Frame, Site};
use crate::resp::received;
use crate::rows::{Row, Rows};
use crate::site::{Part, Snapshot};
use crate::transaction::{Abort, Transaction};

/// Who hears what a site's process says.
pub(super) struct Ear {
    pub shared: Arc<Shared>,
    pub site: Site,
    pub epoch: u64,
    pub waiting: Arc<Mutex<Waiting>>,
    pub parts: GivePart,
    /// A part of a checkpoint that is coming: its rows, and of which partition the last are.
    pub part: Option<(Part, Vec<(Key, Row)>)>,
}

impl Ear {
    pub fn listen(mut self, mut from: BufReader<TcpStream>, number: u64) {
        let why = loop {
            match wire::read(&mut from).map(|said| self.obey(said)) {
                Ok(Ok(())) => {}
                Ok(Err(what)) => break what.to_owned(),
                Err(error) => break wire::told(&error),
            }
        };
        tracing::warn!(site = self.site.0, why, "a site's process is not heard any more");
        _ = self.shared.door(self.site).send(Mail::Lost(number));
    }

    /// Does what the site says, or tells what is wrong with it.
    fn obey(&mut self, said: ToRouter) -> Result<(), &'static str> {
        match said {
            ToRouter::Write(frames) => {
                let is_its_own = |frame: &Frame| {
                    frame.by.site == self.site
                        && frame.by.epoch == self.epoch
                        && frame.body != Body::Fence
                };
                if !frames.iter().all(is_its_own) {
                    return Err("it wrote what is not its own");
                }
                self.shared.order.submit(frames);
            }
            ToRouter::Ended(number, known, answer) => {
                self.end(number, |_| Some(Outcome::Answer(known, answer)));
            }
            ToRouter::Back(asked) => self.end(asked.number, |_| {
                let Asked { reads, writes, session, client, at_masters, procedure, .. } = asked;
                // It is sent on, or read again where it is run.
                let procedure = received(&procedure, &Arc::default())?;
                let output = None;
                let transaction =
                    Transaction { reads, writes, session, client, at_masters, output, procedure };
                Some(Outcome::Back(transaction))
            }),
            ToRouter::Say(to, said) => {
                let door = self.shared.site_doors().get(usize::from(to.0));
                door.ok_or("it speaks to a site that there is not")?
                    .send(Mail::Relayed(self.site, said));
            }
            ToRouter::Counted(number, usage) => {
                if let Some(Waiter::Count(answer)) = lock(&self.waiting).all.remove(&number) {
                    answer(usage);
                }
            }
            ToRouter::Part(known, design) => {
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
            ToRouter::Alive => {}
            ToRouter::Hello { .. } => return Err("it said twice who it is"),
        }
        Ok(())
    }

    fn end(&self, number: u64, outcome: impl FnOnce(&Self) -> Option<Outcome>) {
        let waiter = lock(&self.waiting).all.remove(&number);
        if let Some(Waiter::Remote(remote)) = waiter {
            let unread = Outcome::Answer(0, Err(Abort::Deposed));
            remote.tell(outcome(self).unwrap_or(unread), &self.shared.doors);
        }
    }
}

/// The rows that came belong to the partition that was begun last.
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
