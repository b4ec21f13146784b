//! A site whose process is another one, as the router's process has it: what comes to its door is sent
//! there, and what it says is done here.
//!
//! For everybody else it is a site like any other. While its process is not there, transactions come
//! back at once, so that the router is asked again until it has come or somebody else masters what is
//! wanted.
//!
//! Invariants:
//! 1. Only frames of the life that was welcomed are handed in, and none once it has been fenced: the
//!    thread that hears them has ended before the fence is written.
//! 2. Each question that was sent is answered: by the site, or, when its life is over, with "it may or
//!    may not have happened".
//! 3. A site is told the log without a gap, from what it began with.

use std::collections::HashMap;
use std::io::{self, BufReader, BufWriter, Write as _};
use std::mem;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::Shared;
use super::ear::Ear;
use super::mail::{Counted, Mail, Outcome, Remote, StepOrder};
use super::past::{LogOptions, Rest};
use super::place::GivePart;
use super::wire::{self, ALIVE_EVERY, Asked, ToSite};
use crate::order::with_causes;
use crate::record::{Author, Body, Frame, Position, Site};
use crate::site::{Core, Snapshot};
use crate::transaction::{Abort, Transaction};

/// Frames of the log that are read from its files at once.
const FRAMES_MAX: u64 = 10_000;
/// How often a site that begins is told how far the log is by now; then it has to be near.
const CATCH_UPS_MAX: usize = 100;
/// How often it is looked whether an image has been read.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How much is sent before whoever waits for its end has a turn.
const MAIL_MAX: usize = 256;

/// See the module's documentation.
pub(super) struct Link {
    shared: Arc<Shared>,
    site: Site,
    silence: Duration,
    parts: GivePart,
    /// The log as far as it was told here.
    seen: Position,
    /// The epoch of the last life.
    epoch: u64,
    /// When a life is given up that an earlier router knew, or that was claimed, if nobody comes.
    given_up_at: Option<Instant>,
    /// Counts the connections.
    arrivals: u64,
    talk: Option<Talk>,
    waiting: Arc<Mutex<Waiting>>,
}

/// A connection to the site's process.
struct Talk {
    stream: BufWriter<TcpStream>,
    hearing: JoinHandle<()>,
}

/// Who is to be told what comes of questions.
#[derive(Default)]
pub(super) struct Waiting {
    next: u64,
    pub all: HashMap<u64, Waiter>,
}

pub(super) enum Waiter {
    Remote(Remote),
    Count(Counted),
}

impl Link {
    pub fn new(
        shared: Arc<Shared>,
        site: Site,
        known: Position,
        silence: Duration,
        give: GivePart,
    ) -> Self {
        let design = &shared.first.design;
        let claim = shared.lives.claim();
        let epoch = claim.unwrap_or(design.epoch(site));
        let is_live = claim.is_some() || epoch > 0 && !design.is_fenced(site);
        let given_up_at = is_live.then(|| Instant::now() + silence);
        let (parts, seen, waiting) = (give, known, Arc::default());
        let (arrivals, talk) = (0, None);
        Self { shared, site, silence, parts, seen, epoch, given_up_at, arrivals, talk, waiting }
    }

    /// Goes on until it is told to stop.
    pub fn run(mut self, mut door: mpsc::UnboundedReceiver<Mail>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => {
                _ = self.shared.end.set(format!("the link to {} cannot run: {error}", self.site));
                return;
            }
        };
        let why = 'told: loop {
            let wait = async { tokio::time::timeout(ALIVE_EVERY, door.recv()).await };
            let mut mail = match runtime.block_on(wait) {
                Ok(Some(mail)) => Some(mail),
                Ok(None) => break "the router stops",
                Err(_) => {
                    self.send(&ToSite::Alive);
                    None
                }
            };
            for _ in 0..MAIL_MAX {
                let Some(next) = mail.take().or_else(|| door.try_recv().ok()) else { break };
                match next {
                    Mail::Arrived(stream) => self.welcome(stream, &mut door),
                    Mail::Stop => break 'told "the router stops",
                    Mail::End => break 'told "the router's log takes nothing any more",
                    other => self.handle(other),
                }
            }
            self.flush();
            // Also where it was told before anybody could see to it.
            if self.talk.as_ref().is_some_and(|talk| talk.hearing.is_finished()) {
                self.lose();
            }
            if self.given_up_at.is_some_and(|at| at <= Instant::now()) {
                self.fence(self.epoch);
            }
        };
        self.send(&ToSite::Bye(why.into(), true));
        self.flush();
        self.hang_up();
    }

    fn handle(&mut self, mail: Mail) {
        match mail {
            Mail::Transact(batch) if self.talk.is_some() => {
                // All are of one connection.
                let output = batch.first().and_then(|(_, first, _)| first.output.clone());
                let room = output.map_or(u64::MAX, |output| output.room() as u64);
                let asked: Vec<_> = batch
                    .into_iter()
                    .filter_map(|(remote, transaction, until)| {
                        self.asked(remote, transaction, until)
                    })
                    .collect();
                self.send(&ToSite::Transact(asked, room));
            }
            Mail::Transact(batch) => {
                for (remote, transaction, _) in batch {
                    remote.tell(Outcome::Back(transaction), &self.shared.doors);
                }
            }
            Mail::Step(StepOrder { step, session, until, answer }) => {
                if self.talk.is_none() {
                    let refused = Abort::Refused(format!("{} is not there", self.site));
                    let outcome = Outcome::Answer(self.seen, Err(refused));
                    return answer.tell(outcome, &self.shared.doors);
                }
                let number = self.wait_for(Waiter::Remote(answer));
                self.send(&ToSite::Step(number, step, session, left_ms(until)));
            }
            Mail::Count(answer) => {
                if self.talk.is_some() {
                    let number = self.wait_for(Waiter::Count(answer));
                    self.send(&ToSite::Count(number));
                } else {
                    answer(Vec::new());
                }
            }
            Mail::Logged(first, frames) => {
                self.seen = first + frames.len() as Position - 1;
                self.send(&ToSite::Logged(first, &*frames));
            }
            Mail::Relayed(from, said) => self.send(&ToSite::Said(from, said)),
            Mail::Mark => self.send(&ToSite::Mark),
            Mail::Stalled(is_stalled) => self.send(&ToSite::Stalled(is_stalled)),
            Mail::Lost(number) if number == self.arrivals => self.lose(),
            Mail::Lost(_) => {}
            Mail::Die(answer) => {
                self.lose();
                _ = answer.send(());
            }
            Mail::Arrived(_) | Mail::Stop | Mail::End => unreachable!("handled before"),
            Mail::Outcome(..) | Mail::Said(..) | Mail::Listen(_) | Mail::Connect(..) => {
                unreachable!("a link is told nothing of the kind")
            }
        }
    }

    fn asked(&self, remote: Remote, it: Transaction, until: Instant) -> Option<Asked> {
        let Some(procedure) = it.procedure.sent() else {
            let text = "this procedure cannot be sent to another process";
            let refused = Err(Abort::Refused(text.into()));
            remote.tell(Outcome::Answer(0, refused), &self.shared.doors);
            return None;
        };
        let number = self.wait_for(Waiter::Remote(remote));
        let Transaction { reads, writes, session, client, at_masters, .. } = it;
        let left_ms = left_ms(until);
        Some(Asked { number, reads, writes, session, client, at_masters, procedure, left_ms })
    }

    fn wait_for(&self, waiter: Waiter) -> u64 {
        let mut waiting = lock(&self.waiting);
        let number = waiting.next;
        waiting.next += 1;
        waiting.all.insert(number, waiter);
        number
    }

    /// Sends a message, if there is anybody.
    fn send(&mut self, message: &ToSite<&[Frame]>) {
        if let Some(talk) = &mut self.talk
            && wire::write(&mut talk.stream, message).is_err()
        {
            self.lose();
        }
    }

    fn flush(&mut self) {
        if self.talk.as_mut().is_some_and(|talk| talk.stream.flush().is_err()) {
            self.lose();
        }
    }

    /// Nothing that the site says from here on is heard.
    fn hang_up(&mut self) {
        if let Some(Talk { stream, hearing }) = self.talk.take() {
            _ = stream.get_ref().shutdown(Shutdown::Both);
            // What was not sent yet is for nobody.
            drop(stream.into_parts());
            _ = hearing.join();
        }
    }

    /// The site's life is over.
    fn lose(&mut self) {
        if self.talk.is_none() {
            return;
        }
        self.hang_up();
        self.fence(self.epoch);
        let lost = mem::take(&mut lock(&self.waiting).all);
        for waiter in lost.into_values() {
            match waiter {
                Waiter::Remote(remote) => {
                    let outcome = Outcome::Answer(self.seen, Err(Abort::Deposed));
                    remote.tell(outcome, &self.shared.doors);
                }
                Waiter::Count(answer) => answer(Vec::new()),
            }
        }
    }

    fn fence(&mut self, epoch: u64) {
        self.given_up_at = None;
        let by = Author { site: self.site, epoch, number: 0 };
        self.shared.order.submit(vec![Frame { by, body: Body::Fence }]);
    }

    /// A process has come as this site: it begins a new life.
    fn welcome(&mut self, stream: TcpStream, door: &mut mpsc::UnboundedReceiver<Mail>) {
        let instead = format!("another process came as {}: it is served instead", self.site);
        self.send(&ToSite::Bye(instead, false));
        self.flush();
        self.lose();
        self.given_up_at = None;
        let newest = self.shared.map.load().design.epoch(self.site);
        if self.shared.lives.is_over(newest) {
            return self.shared.end_for_another(self.site);
        }
        let before = self.epoch.max(newest);
        self.epoch = self.shared.lives.next(before);
        self.arrivals += 1;
        let began = self.hear(&stream).and_then(|hearing| {
            let mut talk = Talk { stream: BufWriter::new(stream), hearing };
            let begun = self.begin(&mut talk.stream, door);
            self.talk = Some(talk);
            begun
        });
        if began.is_err() {
            // It has said nothing that would count. But the life before it may be one that an earlier
            // router knew, for which nobody looks any more.
            self.hang_up();
            self.fence(before);
        }
    }

    /// Sends what a life begins with, and the log up to here.
    fn begin(
        &mut self,
        to: &mut BufWriter<TcpStream>,
        door: &mut mpsc::UnboundedReceiver<Mail>,
    ) -> io::Result<()> {
        let options = self.shared.log.clone().expect("there is one where sites are apart");
        self.handle_without_it(door);
        let (image, mut rest) = self.image(to, options)?;
        let mut sent = image.known();
        let write = |to: &mut BufWriter<_>, message: &ToSite<&[Frame]>| wire::write(to, message);
        let silence_ms = u64::try_from(self.silence.as_millis()).unwrap_or(u64::MAX);
        let (epoch, sites) = (self.epoch, self.shared.sites as u16);
        let design = image.design().clone();
        write(to, &ToSite::Welcome { epoch, sites, silence_ms, known: sent, design })?;
        for Snapshot { start, version, rows } in image.snapshots() {
            write(to, &ToSite::Partition(start, version))?;
            for rows in wire::pieces(&rows) {
                write(to, &ToSite::Rows(rows))?;
                self.handle_without_it(door);
            }
        }
        drop(image);
        for _ in 0..CATCH_UPS_MAX {
            self.handle_without_it(door);
            let upto = self.seen;
            if upto <= sent {
                break;
            }
            let is_near = upto - sent <= FRAMES_MAX;
            while sent < upto {
                let piece = upto.min(sent + FRAMES_MAX);
                let frames = rest.read(sent + 1, piece).map_err(io::Error::other)?;
                write(to, &ToSite::Logged(sent + 1, &frames))?;
                sent = piece;
            }
            if is_near {
                break;
            }
        }
        if self.seen > sent {
            return Err(io::Error::other("the log grows faster than the site is told"));
        }
        write(to, &ToSite::Begin)?;
        to.flush()
    }

    /// Reads what a life begins with; the site is told meanwhile that somebody is there.
    fn image(&self, to: &mut BufWriter<TcpStream>, log: LogOptions) -> io::Result<(Core, Rest)> {
        let known = self.seen;
        let reading = thread::Builder::new().name("image".into());
        let reading = reading.spawn(move || log.image_and_rest(known))?;
        let mut said = Instant::now();
        while !reading.is_finished() {
            thread::sleep(LOOK_EVERY);
            if said.elapsed() >= ALIVE_EVERY {
                said = Instant::now();
                wire::write(to, &ToSite::<&[Frame]>::Alive)?;
                to.flush()?;
            }
        }
        let read = reading.join().map_err(|_| io::Error::other("the log cannot be read"))?;
        read.map_err(|error| io::Error::other(with_causes(&error)))
    }

    /// Does what there is to be done, while the site is not there yet.
    fn handle_without_it(&mut self, door: &mut mpsc::UnboundedReceiver<Mail>) {
        for _ in 0..door.len() {
            let Ok(mail) = door.try_recv() else { return };
            match mail {
                // It may come again.
                Mail::Arrived(_) => {}
                Mail::Stop | Mail::End => {
                    door.close();
                    return;
                }
                other => self.handle(other),
            }
        }
    }

    /// Begins to hear what a site says.
    fn hear(&self, stream: &TcpStream) -> io::Result<JoinHandle<()>> {
        stream.set_read_timeout(Some(self.silence))?;
        stream.set_write_timeout(Some(self.silence))?;
        let ear = Ear {
            shared: Arc::clone(&self.shared),
            site: self.site,
            epoch: self.epoch,
            waiting: Arc::clone(&self.waiting),
            parts: Arc::clone(&self.parts),
            part: None,
        };
        let (from, number) = (stream.try_clone()?, self.arrivals);
        let hear = move || ear.listen(BufReader::new(from), number);
        thread::Builder::new().name(format!("{}'s words", self.site)).spawn(hear)
    }
}

fn left_ms(until: Instant) -> u64 {
    let left = until.saturating_duration_since(Instant::now());
    u64::try_from(left.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}
