//! A site in a process of its own: it goes to the router's process, is told there what to begin with, and
//! serves until the connection is lost. Then it has lost its epoch, and begins a new one, with whichever
//! of the routers that it was told of lets it in.
//!
//! It keeps nothing: what it has is in the log, which is the router's. So it needs no disk, and a process that
//! starts it on another machine has the same site there.

use std::io::{self, BufReader, BufWriter, Write as _};
use std::net::{Shutdown, TcpStream, ToSocketAddrs as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::wire::{self, ALIVE_EVERY, PROTOCOL, ToRouter, ToSite};
use crate::engine::shared::AtomicPosition;
use crate::engine::site::epoch::{self, Epochs};
use crate::engine::site::executor::Executor;
use crate::engine::site::mailbox::{Outgoing, ReplyTo, SiteEvent, SiteSender, StepRequest};
use crate::engine::site::program::SeparateSite;
use crate::engine::unused::Unused;
use crate::engine::{Checkpoints, Map, Shared};
use crate::key::Key;
use crate::output_buffer::OutputBuffer;
use crate::record::{Epoch, Site};
use crate::resp::{Settings, decode};
use crate::router::MostMastered;
use crate::rows::{Row, Rows};
use crate::sampler::Sampler;
use crate::sampler::report::{REPORT_EVERY, Reporter};
use crate::sequencer::Sequencer;
use crate::site::{Core, Input, Part, Snapshot};
use crate::sync::atomic::{AtomicU32, AtomicU64};
use crate::sync::{ArcSwap, Mutex};
use crate::transaction::Transaction;

/// How long a router may take to take a connection, and to answer it.
const CONNECT_WAIT: Duration = Duration::from_secs(3);
/// Between two attempts to find a router.
const PAUSE: Duration = Duration::from_millis(200);

/// A site that is to be served by this process.
pub struct SiteProcess {
    /// Which site.
    pub site: Site,
    /// Where routers admit sites, each as `host:port`: one has the log, others may come after it.
    pub routers: Vec<String>,
    /// The router's secret.
    pub secret: String,
    /// How long all of them may be away.
    pub patience: Duration,
    /// The limits of scripts.
    pub settings: Settings,
    /// The share of a core that the site's thread is held to.
    pub site_cpu: Option<f64>,
}

/// An event of its life.
#[derive(Debug, PartialEq, Eq)]
pub enum SiteProcessEvent {
    /// It has what there is in the log, and serves; which of the site's epochs, from 1 on.
    Serves(u64),
    /// It has lost the router, and looks for it; why.
    Alone(String),
}

/// Why it does not serve any more.
#[derive(Debug, thiserror::Error)]
pub enum SiteProcessError {
    /// The router will not have it.
    #[error("the router at {router} refuses {site}: {why}")]
    Refused {
        /// Which site.
        site: Site,
        /// Where the router is.
        router: String,
        /// Its reason.
        why: String,
    },
    /// No router is there.
    #[error("no router at {routers} for {} s: {why}", patience.as_secs())]
    Away {
        /// Where one should be.
        routers: String,
        /// For how long it was looked for.
        patience: Duration,
        /// The error of the last attempt.
        why: String,
    },
}

/// How an epoch, or an attempt at one, came to its end.
enum End {
    Stopped,
    /// The router's last words; whether it is any use to come again.
    Bye(String, bool),
    Lost(io::Error),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Lost(error)
    }
}

impl SiteProcess {
    /// Serves until it is stopped. It may take a second to notice.
    ///
    /// # Errors
    /// When the router will not have it, or is not found for too long.
    pub fn serve(
        mut self,
        tell: &dyn Fn(SiteProcessEvent),
        is_stopped: &AtomicBool,
    ) -> Result<(), SiteProcessError> {
        let began = Instant::now();
        let clock_ms = move || u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.settings.script_limits.clock_ms.get_or_insert_with(|| Arc::new(clock_ms));
        let settings = Arc::new(std::mem::take(&mut self.settings));
        let (mut alone_since, mut is_told) = (Instant::now(), false);
        let routers = std::mem::take(&mut self.routers);
        for router in routers.iter().cycle() {
            let mut has_served = false;
            let mut served = |epoch| {
                has_served = true;
                tell(SiteProcessEvent::Serves(epoch));
            };
            let why = match self.live(router, &settings, &mut served, is_stopped) {
                Err(End::Stopped) | Ok(()) => return Ok(()),
                Err(End::Bye(why, false)) => {
                    let (site, router) = (self.site, router.clone());
                    return Err(SiteProcessError::Refused { site, router, why });
                }
                Err(End::Bye(why, true)) => why,
                Err(End::Lost(error)) => wire::told(&error),
            };
            if has_served {
                (alone_since, is_told) = (Instant::now(), false);
            }
            if !std::mem::replace(&mut is_told, true) {
                tell(SiteProcessEvent::Alone(why.clone()));
            }
            if alone_since.elapsed() > self.patience {
                let (routers, patience) = (routers.join(", "), self.patience);
                return Err(SiteProcessError::Away { routers, patience, why });
            }
            if is_stopped.load(Ordering::Relaxed) {
                return Ok(());
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// One epoch, from the first word to the last.
    fn live(
        &self,
        router: &str,
        settings: &Arc<Settings>,
        serves: &mut dyn FnMut(u64),
        is_stopped: &AtomicBool,
    ) -> Result<(), End> {
        let mut stream = connect(router)?;
        wire::write(
            &mut stream,
            &ToRouter::Hello {
                protocol: PROTOCOL,
                version: env!("CARGO_PKG_VERSION").into(),
                site: self.site,
                secret: self.secret.clone(),
            },
        )?;
        let (leave, leaving) = std::sync::mpsc::channel();
        let to = stream.try_clone()?;
        let sampler = Arc::new(Sampler::of_process(self.site.0 + 1, self.site_cpu));
        let reporter = Reporter::new(Arc::clone(&sampler), self.site);
        let speak = move || speak(to, &leaving, reporter);
        let speaking = thread::Builder::new().name("words".into()).spawn(speak)?;
        let mut serving =
            Serving { process: self, settings, leave, is_stopped, sampler, served: None };
        let ended = serving.listen(&stream, serves);
        let Serving { leave, served, .. } = serving;
        _ = stream.shutdown(Shutdown::Both);
        _ = leave.send(Outgoing::End);
        if let Some((inbox, thread)) = served {
            _ = inbox.send(SiteEvent::Stop);
            _ = thread.join();
        }
        _ = speaking.join();
        ended
    }
}

fn connect(router: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::other("its name has no address");
    for address in router.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_WAIT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(CONNECT_WAIT))?;
                stream.set_write_timeout(Some(CONNECT_WAIT))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The site's thread, and its mailbox.
type Served = (mpsc::UnboundedSender<SiteEvent>, thread::JoinHandle<()>);

/// An epoch that is under way.
struct Serving<'m> {
    process: &'m SiteProcess,
    settings: &'m Arc<Settings>,
    leave: Sender<Outgoing>,
    is_stopped: &'m AtomicBool,
    /// Of this epoch.
    sampler: Arc<Sampler>,
    served: Option<Served>,
}

impl Serving<'_> {
    fn listen(&mut self, stream: &TcpStream, serves: &mut dyn FnMut(u64)) -> Result<(), End> {
        let mut from = BufReader::new(stream);
        let (core, epoch, sites) = self.image(stream, &mut from)?;
        self.begin(&core, epoch, sites)?;
        drop(core);
        serves(epoch::count(epoch));
        loop {
            let said = wire::read(&mut from)?;
            if self.is_stopped.load(Ordering::Relaxed) {
                return Err(End::Stopped);
            }
            let (inbox, thread) = self.served.as_ref().expect("it has begun");
            if thread.is_finished() {
                return Err(End::Lost(io::Error::other("the site was given up for dead")));
            }
            let event = self.event(said, sites)?;
            if let Some(event) = event {
                _ = inbox.send(event);
            }
        }
    }

    /// The image that the epoch begins with, as of a prefix of the log.
    fn image(
        &self,
        stream: &TcpStream,
        from: &mut BufReader<&TcpStream>,
    ) -> Result<(Core, Epoch, u16), End> {
        let invalid = |what| End::Lost(io::Error::new(io::ErrorKind::InvalidData, what));
        let mut said = wire::read::<ToSite>(from)?;
        while let ToSite::Alive = said {
            said = wire::read(from)?;
        }
        let (epoch, sites, known, design) = match said {
            ToSite::Welcome { epoch, sites, silence_ms, known, design } => {
                let silence = Duration::from_millis(silence_ms.max(1));
                stream.set_read_timeout(Some(silence))?;
                stream.set_write_timeout(Some(silence))?;
                (epoch, sites, known, design)
            }
            ToSite::Bye(why, is_use) => return Err(End::Bye(why, is_use)),
            _ => return Err(invalid("the router does not say first what to begin with")),
        };
        let mut snapshots = Vec::new();
        let mut rows: Vec<(Key, Row)> = Vec::new();
        let mut partition: Option<(Key, u64)> = None;
        let mut image = None;
        loop {
            if self.is_stopped.load(Ordering::Relaxed) {
                return Err(End::Stopped);
            }
            let said = wire::read::<ToSite>(from)?;
            if let ToSite::Rows(more) = said {
                rows.extend(more.into_iter().map(wire::row));
                continue;
            }
            if let ToSite::Alive = said {
                continue;
            }
            if let Some((start, version)) = partition.take() {
                let rows = std::mem::take(&mut rows);
                if !rows.is_sorted_by(|(one, _), (next, _)| one < next) {
                    return Err(invalid("rows that are not in their order"));
                }
                snapshots.push(Snapshot { start, version, rows: Rows::from_sorted(rows) });
            }
            if let ToSite::Partition(start, version) = said {
                partition = Some((start, version));
                continue;
            }
            let core = match &mut image {
                Some(core) => core,
                None => {
                    let snapshots = std::mem::take(&mut snapshots);
                    let core = Core::observer_of(known, design.clone(), snapshots);
                    image.insert(core.map_err(|_| invalid("partitions are missing"))?)
                }
            };
            match said {
                ToSite::Logged(first, deliveries) => {
                    _ = core.on(Input::Delivered(first, deliveries));
                }
                ToSite::Begin => break,
                ToSite::Bye(why, is_use) => return Err(End::Bye(why, is_use)),
                _ => return Err(invalid("the router asks before the epoch has begun")),
            }
        }
        let image = image.ok_or_else(|| invalid("there is nothing to begin with"))?;
        Ok((image, epoch, sites))
    }

    fn begin(&mut self, core: &Core, epoch: Epoch, sites: u16) -> Result<(), End> {
        let site = self.process.site;
        let (mailbox, inbox) = mpsc::unbounded_channel();
        // Behind the sites' mailboxes is the router's own.
        let senders = (0..=sites).map(Site).map(|number| match number {
            own if own == site => SiteSender::Local(mailbox.clone()),
            other => SiteSender::Remote(self.leave.clone(), other),
        });
        let map = || Map { known: core.known(), design: core.design().clone() };
        let leave = self.leave.clone();
        let shared = Arc::new(Shared {
            began: Instant::now(),
            map: ArcSwap::from_pointee(map()),
            first: map(),
            senders: senders.collect(),
            sites: sites.into(),
            sequencer: Sequencer::elsewhere(move |entries| {
                _ = leave.send(Outgoing::Entries(entries))
            }),
            policy: Box::new(MostMastered),
            moves: tokio::sync::Mutex::new(()),
            stepped: AtomicPosition::default(),
            followed: None,
            traffic: Vec::new(),
            log: None,
            epochs: Epochs::of_one_process(),
            checkpoints: Arc::new(Mutex::new(Checkpoints::default())),
            brought: AtomicU64::new(0),
            under_way: (0..=sites).map(|_| AtomicU32::new(0)).collect(),
            unused: Unused::none(),
            sampler: OnceLock::from(Arc::clone(&self.sampler)),
            end: OnceLock::new(),
        });
        let leave = self.leave.clone();
        let give = Arc::new(move |part: Part| _ = leave.send(Outgoing::Part(part)));
        let core = core.begun(site, epoch).subscribed();
        let program = Box::new(SeparateSite { leave: self.leave.clone() });
        let run = move || Executor::run(shared, site, core, inbox, give, program);
        let thread = thread::Builder::new().name(site.to_string()).spawn(run)?;
        self.served = Some((mailbox, thread));
        Ok(())
    }

    /// The router's message as an event of the site's mailbox.
    fn event(&self, said: ToSite, sites: u16) -> Result<Option<SiteEvent>, End> {
        let invalid = |what| End::Lost(io::Error::new(io::ErrorKind::InvalidData, what));
        let until = |left| Instant::now() + left;
        Ok(Some(match said {
            ToSite::Logged(first, deliveries) => SiteEvent::Delivered(first, deliveries),
            ToSite::Transact(asked, room) => {
                let room = usize::try_from(room).unwrap_or(usize::MAX);
                let output = OutputBuffer::of_batch(room);
                let mut batch = Vec::new();
                for it in asked {
                    let procedure = decode(&it.procedure, self.settings)
                        .ok_or_else(|| invalid("a transaction that is none"))?;
                    let transaction = Transaction {
                        reads: it.reads,
                        writes: it.writes,
                        session: it.session,
                        client: it.client,
                        at_masters: it.at_masters,
                        output: Some(Arc::clone(&output)),
                        procedure,
                    };
                    let reply_to = ReplyTo::Site(Site(sites), it.number);
                    batch.push((reply_to, transaction, until(Duration::from_micros(it.left_us))));
                }
                SiteEvent::Transact(batch)
            }
            ToSite::Step(number, step, session, left_ms) => {
                let answer = ReplyTo::Site(Site(sites), number);
                let until = until(Duration::from_millis(left_ms));
                SiteEvent::Step(StepRequest { step, session, until, answer })
            }
            ToSite::Said(from, said) => {
                let said = postcard::from_bytes(&said).map_err(|_| invalid("a site's message"))?;
                SiteEvent::Said(from, said)
            }
            ToSite::Count(number) => {
                let leave = self.leave.clone();
                let tell = move |usage| _ = leave.send(Outgoing::Counted(number, usage));
                SiteEvent::Count(Box::new(tell))
            }
            ToSite::Mark => SiteEvent::Mark,
            ToSite::Stalled(is_stalled) => SiteEvent::Stalled(is_stalled),
            ToSite::Sample(every) => {
                self.sampler.set_every(every);
                return Ok(None);
            }
            ToSite::Alive => return Ok(None),
            ToSite::Bye(why, is_use) => return Err(End::Bye(why, is_use)),
            ToSite::Welcome { .. } | ToSite::Partition(..) | ToSite::Rows(_) | ToSite::Begin => {
                return Err(invalid("the epoch has begun already"));
            }
        }))
    }
}

/// Says to the router what leaves the site, and that the site is there.
fn speak(to: TcpStream, leaving: &Receiver<Outgoing>, mut reporter: Reporter) -> io::Result<()> {
    let mut to = BufWriter::new(to);
    loop {
        let mut next = match leaving.recv_timeout(ALIVE_EVERY.min(REPORT_EVERY)) {
            Ok(next) => Some(next),
            Err(RecvTimeoutError::Timeout) => {
                wire::write(&mut to, &ToRouter::Alive)?;
                None
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        while let Some(said) = next.take().or_else(|| leaving.try_recv().ok()) {
            if !say(&mut to, said)? {
                return to.flush();
            }
            report(&mut to, &mut reporter)?;
        }
        report(&mut to, &mut reporter)?;
        to.flush()?;
    }
}

/// Reports what was sampled, if a report is due.
fn report(to: &mut BufWriter<TcpStream>, reporter: &mut Reporter) -> io::Result<()> {
    let report = reporter.report(Instant::now());
    report.map_or(Ok(()), |report| wire::write(to, &ToRouter::Sampled(report)).map(drop))
}

/// False says that it was the last.
fn say(to: &mut BufWriter<TcpStream>, leaving: Outgoing) -> io::Result<bool> {
    let said = match leaving {
        Outgoing::Entries(entries) => ToRouter::Write(entries),
        Outgoing::Event(_, SiteEvent::Outcome(number, outcome)) => {
            ToRouter::outcome(number, outcome)
        }
        Outgoing::Event(site, SiteEvent::Said(_, message)) => {
            ToRouter::Say(site, postcard::to_stdvec(&message).map_err(io::Error::other)?)
        }
        Outgoing::Event(..) => unreachable!("a site without clients says nothing else"),
        Outgoing::Counted(number, usage) => ToRouter::Counted(number, usage),
        Outgoing::Subscribe(request) => ToRouter::Subscribe(request),
        Outgoing::Part(part) => {
            wire::write(to, &ToRouter::Part(part.known))?;
            for Snapshot { start, version, rows } in part.copies {
                wire::write(to, &ToRouter::Partition(start, version))?;
                for rows in wire::pieces(&rows) {
                    wire::write(to, &ToRouter::Rows(rows))?;
                }
            }
            ToRouter::PartEnd
        }
        Outgoing::End => return Ok(false),
    };
    wire::write(to, &said)?;
    Ok(true)
}
