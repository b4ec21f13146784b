//! A site in a process of its own: the process connects to a router, receives the state to begin with, and serves the
//! site until the connection is lost. That ends the site's epoch. The process then begins a new epoch with the first
//! of its configured routers that admits it.
//!
//! The process stores nothing on disk: its data is in the router's log. So the same site can be started on another
//! machine. Between two epochs the process keeps its rows in memory ([`kept`]), and receives only the log entries
//! after them.
//!
//! [`kept`]: crate::site::Core::into_retained

use std::io::{self, BufReader, BufWriter, Write as _};
use std::net::{Shutdown, TcpStream, ToSocketAddrs as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::receive::{End, Image, ImageReceiver, KeptRows, invalid};
use super::wire::{self, ALIVE_EVERY, PROTOCOL, ToRouter, ToSite};
use crate::engine::facts::Memory;
use crate::engine::move_locks::MoveLocks;
use crate::engine::recovery::holds::Holds;
use crate::engine::shared::AtomicPosition;
use crate::engine::site::epoch::{self, Epochs};
use crate::engine::site::executor::Executor;
use crate::engine::site::mailbox::{Outgoing, ReplyTo, SiteEvent, SiteSender, StepRequest};
use crate::engine::site::program::SeparateSite;
use crate::engine::unused::Unused;
use crate::engine::{Checkpoints, Map, Shared};
use crate::log::Runs;
use crate::output_buffer::OutputBuffer;
use crate::record::{Epoch, Site};
use crate::resp::{Settings, decode};
use crate::router::MostMastered;
use crate::sampler::Sampler;
use crate::sampler::report::{REPORT_EVERY, Reporter};
use crate::sequencer::Sequencer;
use crate::site::{Core, Message, Part, Snapshot};
use crate::sync::atomic::{AtomicU32, AtomicU64};
use crate::sync::{ArcSwap, Mutex};
use crate::transaction::Transaction;

/// Timeout for connecting to a router, and of each read and write until the router's first reply.
const CONNECT_WAIT: Duration = Duration::from_secs(3);
/// Delay between two attempts to connect to a router.
const PAUSE: Duration = Duration::from_millis(200);

/// Size of a message's rows in bytes, above which the message to another site is encoded in a thread of its own.
const LARGE_BYTES: u64 = 16 * 1024 * 1024;
/// Interval at which the process checks whether the thread that encodes a large message has finished.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The configuration of a process that serves one site of a store.
pub struct SiteProcess {
    /// The site that the process serves.
    pub site: Site,
    /// Addresses at which routers admit sites, each as `host:port`, in the order in which they are tried: one router
    /// has the log, others may take over from it.
    pub routers: Vec<String>,
    /// The secret that the routers require from the processes of sites.
    pub secret: String,
    /// Name of the rack in which the process runs; `None` if racks are not distinguished.
    pub rack: Option<String>,
    /// Limit on the memory of the site's rows in bytes, above which transactions that put rows are refused; 0 for no
    /// limit.
    pub maxmemory: u64,
    /// Time without a connection to any router after which the process gives up.
    pub patience: Duration,
    /// Settings of the procedures of transactions, among them the limits of scripts.
    pub settings: Settings,
    /// The share of a CPU core to which the site's thread is limited; `None` if it is not limited.
    pub site_cpu: Option<f64>,
}

/// A change of the state of a site's process.
#[derive(Debug, PartialEq, Eq)]
pub enum SiteProcessEvent {
    /// The process has received the site's state and serves it, in the epoch with this number, counted from 1.
    Serves(u64),
    /// The process has lost its router, or found none, for this reason; it tries its routers in turn.
    Alone(String),
}

/// The reason why a process stopped serving its site.
#[derive(Debug, thiserror::Error)]
pub enum SiteProcessError {
    /// A router refused the process for good, so that the process does not try again.
    #[error("the router at {router} refuses {site}: {why}")]
    Refused {
        /// The site that the process was to serve.
        site: Site,
        /// Address of the router that refused the process.
        router: String,
        /// The router's reason for the refusal.
        why: String,
    },
    /// No router was available for longer than the process's `patience`.
    #[error("no router at {routers} for {} s: {why}", patience.as_secs())]
    NoRouter {
        /// The addresses that were tried, separated by commas.
        routers: String,
        /// Time for which the process tried to reach a router.
        patience: Duration,
        /// The error of the last attempt to reach a router.
        why: String,
    },
}

impl SiteProcess {
    /// Serves the site until `is_stopped` is set, which may take a second to have an effect. Passes each change of
    /// the process's state to `tell`.
    ///
    /// # Errors
    /// Returns an error if a router refuses the process for good, or no router is available for too long.
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
        let mut kept = None;
        for router in routers.iter().cycle() {
            let mut has_served = false;
            let mut served = |epoch| {
                has_served = true;
                tell(SiteProcessEvent::Serves(epoch));
            };
            let why = match self.live(router, &settings, &mut kept, &mut served, is_stopped) {
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
                return Err(SiteProcessError::NoRouter { routers, patience, why });
            }
            if is_stopped.load(Ordering::Relaxed) {
                return Ok(());
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Runs one epoch of the site, from the connection to `router` until the epoch's end. Begins from the rows in
    /// `kept` if the router accepts them, and puts the site's rows there at the end; calls `serves` with the epoch's
    /// number.
    fn live(
        &self,
        router: &str,
        settings: &Arc<Settings>,
        kept: &mut Option<KeptRows>,
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
        let of = kept.as_ref().map(|kept| (kept.run, kept.core.known()));
        wire::write(&mut stream, &ToRouter::Comes { rack: self.rack.clone(), kept: of })?;
        let (leave, leaving) = std::sync::mpsc::channel();
        let to = stream.try_clone()?;
        let sampler = Arc::new(Sampler::of_process(self.site.0 + 1, self.site_cpu));
        let reporter = Reporter::new(Arc::clone(&sampler), self.site);
        let speak = move || speak(to, &leaving, reporter);
        let speaking = thread::Builder::new().name("words".into()).spawn(speak)?;
        let (served, run, ended) = (None, 0, Arc::default());
        let mut serving =
            Serving { process: self, settings, leave, is_stopped, sampler, served, run, ended };
        let end = serving.listen(&stream, kept, serves);
        let Serving { leave, served, run, ended, .. } = serving;
        _ = stream.shutdown(Shutdown::Both);
        _ = leave.send(Outgoing::End);
        if let Some((inbox, thread)) = served {
            _ = inbox.send(SiteEvent::Stop);
            _ = thread.join();
        }
        _ = speaking.join();
        let ended = ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(core) = ended.and_then(Core::into_retained) {
            *kept = Some(KeptRows { run, core });
        }
        end
    }
}

/// Connects to a router, given as `host:port`, at the first of the host's addresses that accepts.
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

/// The sender of the site's mailbox, and the site's thread.
type Served = (mpsc::UnboundedSender<SiteEvent>, thread::JoinHandle<()>);

/// The state of an epoch of the site that is under way.
struct Serving<'m> {
    process: &'m SiteProcess,
    settings: &'m Arc<Settings>,
    /// Sends messages to the thread that writes to the router.
    leave: Sender<Outgoing>,
    is_stopped: &'m AtomicBool,
    /// The sampler of the site's transactions in this epoch.
    sampler: Arc<Sampler>,
    /// The sender of the site's mailbox and the site's thread; `None` before the epoch has begun.
    served: Option<Served>,
    /// The random number of the present run of the router's log: the period in which that router writes it.
    run: u64,
    /// The state of the site when its thread ended; `None` while the thread runs.
    ended: Arc<std::sync::Mutex<Option<Core>>>,
}

impl Serving<'_> {
    /// Receives the initial state, begins the epoch, and passes the router's messages to the site until the epoch
    /// ends.
    fn listen(
        &mut self,
        stream: &TcpStream,
        kept: &mut Option<KeptRows>,
        serves: &mut dyn FnMut(u64),
    ) -> Result<(), End> {
        let mut from = BufReader::new(stream);
        let receiver = ImageReceiver { is_stopped: self.is_stopped };
        let Image { core, epoch, sites, run } = receiver.receive(stream, &mut from, kept)?;
        self.run = run;
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
                return Err(End::Lost(io::Error::other("the site was declared dead")));
            }
            let event = self.event(said, sites)?;
            if let Some(event) = event {
                _ = inbox.send(event);
            }
        }
    }

    /// Starts the site's thread in this epoch from the image `core`; `sites` is the number of the store's sites.
    fn begin(&mut self, core: &Core, epoch: Epoch, sites: u16) -> Result<(), End> {
        let site = self.process.site;
        let (mailbox, inbox) = mpsc::unbounded_channel();
        // The last sender is that of the router itself, after those of the sites.
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
            moves: MoveLocks::default(),
            stepped: AtomicPosition::default(),
            followed: None,
            traffic: Vec::new(),
            presence: Vec::new(),
            replicas_min: AtomicU32::new(0),
            memory: Memory::of(sites, self.process.maxmemory),
            counts: Mutex::default(),
            runs: Runs::of_one(core.known() + 1),
            holds: Holds::default(),
            log: None,
            epochs: Epochs::of_one_process(),
            checkpoints: Arc::new(Mutex::new(Checkpoints::default())),
            brought: AtomicU64::new(0),
            distributed: AtomicU64::new(0),
            is_two_phase: false,
            under_way: (0..=sites).map(|_| AtomicU32::new(0)).collect(),
            unused: Unused::none(),
            sampler: OnceLock::from(Arc::clone(&self.sampler)),
            end: OnceLock::new(),
        });
        let leave = self.leave.clone();
        let give = Arc::new(move |part: Part| _ = leave.send(Outgoing::Part(part)));
        let core = core.begin_epoch(site, epoch).subscribed();
        let (leave, ended) = (self.leave.clone(), Arc::clone(&self.ended));
        let program = Box::new(SeparateSite { leave, ended });
        let run = move || Executor::run(shared, site, core, inbox, give, program);
        let thread = thread::Builder::new().name(site.to_string()).spawn(run)?;
        self.served = Some((mailbox, thread));
        Ok(())
    }

    /// Converts a message of the router to an event for the site's mailbox; `None` if the message was handled here.
    fn event(&self, said: ToSite, sites: u16) -> Result<Option<SiteEvent>, End> {
        let until = |left| Instant::now() + left;
        Ok(Some(match said {
            ToSite::Logged(first, deliveries) => SiteEvent::Delivered(first, deliveries),
            ToSite::Transact(asked, room) => {
                let room = usize::try_from(room).unwrap_or(usize::MAX);
                let output = OutputBuffer::for_batch(room);
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
                        is_distributed: false,
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
            ToSite::Welcome { .. }
            | ToSite::Resume { .. }
            | ToSite::Partition(..)
            | ToSite::Rows(_)
            | ToSite::Begin => {
                return Err(invalid("the epoch has begun already"));
            }
        }))
    }
}

/// Sends the site's messages from `leaving` to the router, and heartbeats and samples in between.
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

/// Sends a report of the site's samples to the router, if one is due.
fn report(to: &mut BufWriter<TcpStream>, reporter: &mut Reporter) -> io::Result<()> {
    let report = reporter.report(Instant::now());
    report.map_or(Ok(()), |report| wire::write(to, &ToRouter::Sampled(report)).map(drop))
}

/// Encodes a message to another site. A large replica may take longer to encode than a site may be silent, so
/// heartbeats are sent to the router meanwhile.
fn encoded(to: &mut BufWriter<TcpStream>, message: Message) -> io::Result<Vec<u8>> {
    let is_large = message.bytes() > LARGE_BYTES;
    let encode = move || postcard::to_stdvec(&message).map_err(io::Error::other);
    if !is_large {
        return encode();
    }
    let encoding = thread::Builder::new().name("replica".into()).spawn(encode)?;
    let mut said = Instant::now();
    while !encoding.is_finished() {
        thread::sleep(LOOK_EVERY);
        if said.elapsed() >= ALIVE_EVERY {
            said = Instant::now();
            wire::write(to, &ToRouter::Alive)?;
            to.flush()?;
        }
    }
    encoding.join().map_err(|_| io::Error::other("a replica has no form in bytes"))?
}

/// Sends one message of the site to the router; returns false for [`Outgoing::End`].
fn say(to: &mut BufWriter<TcpStream>, leaving: Outgoing) -> io::Result<bool> {
    let said = match leaving {
        Outgoing::Entries(entries) => ToRouter::Write(entries),
        Outgoing::Event(_, SiteEvent::Outcome(number, outcome)) => {
            ToRouter::outcome(number, outcome)
        }
        Outgoing::Event(site, SiteEvent::Said(_, message)) => {
            ToRouter::Say(site, encoded(to, message)?)
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
