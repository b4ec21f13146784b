//! The store in one process: each site on a thread of its own, one order of frames, a router.
//!
//! The idea: a site's thread has the site's state machine, and whatever comes to the site comes through
//! its *door*, a queue. Whoever runs a transaction asks the router's map where, hands it in at that
//! site's door, and if it comes back, because the design has changed, asks again.
//!
//! What bounds the queues: a session or a connection has few transactions under way at a time; a site
//! refuses more than some thousands that wait, and more than some frames that the log does not have.
//! And each transaction has its time, after which it is refused if it has not begun.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use crate::design::Design;
use crate::key::{Key, KeyRange};
use crate::log::{CutTail, LogError};
use crate::order::{Follower, Order};
use crate::output_buffer::OutputBuffers;
use crate::record::{Frame, Position, Site};
use crate::resp::Settings;
use crate::router::{DesignPolicy, MostMastered, Route, master_of_all, route};
use crate::site::{Core, Ticket};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{self, ArcSwap, Mutex};

mod change;
mod checkpointer;
mod ear;
mod gate;
mod half;
pub(crate) mod life;
mod line;
mod link;
mod listener;
mod mail;
mod member;
mod past;
mod place;
mod report;
mod sending;
mod session;
#[cfg(test)]
mod tests;
mod tls;
mod wire;

use checkpointer::Checkpointer;
pub use checkpointer::Checkpoints;
#[cfg(test)]
pub(crate) use checkpointer::complete;
use gate::Gate;
use life::Lives;
use link::Link;
pub use listener::Listener;
use mail::{Batch, Door, Mail, Outcome, Remote, StepOrder};
pub use member::{Member, MemberError, MemberEvent};
use past::Begun;
pub use past::LogOptions;
use place::{GivePart, Place};
pub use session::Session;
pub use tls::{Tls, TlsError};

/// The most sites of a store.
pub const SITES_MAX: u16 = 64;
/// How long a transaction, or a change of design, may take until it has begun.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// How long somebody waits to whom a transaction came back, before it asks the router again.
const BACK_WAIT: Duration = Duration::from_millis(2);
/// How long all sites may take to begin.
const BEGIN_WAIT: Duration = Duration::from_secs(60);

/// How a store is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many sites.
    pub sites: u16,
    /// Where its log is; without one the store ends with its process.
    pub log: Option<LogOptions>,
}

/// How a store is whose sites are in processes of their own.
#[derive(Clone, Copy, Debug)]
pub struct Apart {
    /// How many threads have the clients; one at least.
    pub fronts: u16,
    /// How long a site's process may be silent until it is given up for dead.
    pub silence: Duration,
}

/// Why a store could not be started, or a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The log cannot be used.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Too few sites, or too many.
    #[error("{0} sites: a store has from 1 to {SITES_MAX}")]
    Sites(u16),
    /// The log knows of a site that is not started.
    #[error("{log} is of a store with {least} sites at least: start as many")]
    SitesMissing {
        /// Which log.
        log: String,
        /// One more than the greatest number of a site that has a copy of anything, or a pin.
        least: u16,
    },
    /// The system would not start it.
    #[error("cannot start {0}")]
    Start(&'static str, #[source] io::Error),
    /// The sites did not come to life.
    #[error("the sites did not begin within {BEGIN_WAIT:?}: {0}")]
    NotBegun(String),
    /// There is no such site.
    #[error("there is no {0}: this store has {1} sites, from 0 on")]
    NoSite(Site, usize),
    /// A site dies only where it can come back.
    #[error("a store without a log has nothing from which a site could begin again")]
    NoLog,
}

/// The router's map: the design as of a prefix of the log.
#[derive(Debug)]
pub struct Map {
    /// The prefix.
    pub known: Position,
    /// The design there.
    pub design: Design,
}

/// A store that runs. It stops when it is dropped.
pub struct Store {
    shared: Arc<Shared>,
    /// Of sites, of links to sites, and of clients.
    threads: Vec<JoinHandle<()>>,
    gate: Option<Gate>,
    checkpointer: Option<JoinHandle<()>>,
    log: Option<JoinHandle<()>>,
    /// The damaged end of its log, that was cut off when it began.
    cut: Option<CutTail>,
    /// Of clients that connect here.
    output: OnceLock<Arc<OutputBuffers>>,
}

/// What a process has of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// All of it.
    Whole,
    /// The log, the map and the clients.
    Router,
    /// One site.
    Site,
}

/// What everybody in the process shares.
pub(crate) struct Shared {
    began: Instant,
    map: ArcSwap<Map>,
    /// The one that it began with.
    first: Map,
    /// Of the sites, by number, and then of threads that have clients only.
    doors: Vec<Door>,
    sites: usize,
    role: Role,
    order: Order,
    policy: Box<dyn DesignPolicy>,
    /// Whoever changes the design for a transaction does so alone until it has run: two that want the
    /// same partition at two sites would take it from each other for ever.
    moves: tokio::sync::Mutex<()>,
    /// The prefix of the log that has the last step of a change of design.
    stepped: AtomicU64,
    /// Where sites are apart: the prefix of whose changes the map has all.
    followed: AtomicU64,
    log: Option<LogOptions>,
    lives: Lives,
    checkpoints: Arc<Mutex<Checkpoints>>,
    /// Why the log takes nothing any more.
    end: OnceLock<String>,
}

/// A door's end of the order of frames.
struct Following(Door);

impl Follower for Following {
    fn follow(&mut self, first: Position, frames: &Arc<[Frame]>) -> bool {
        self.0.send(Mail::Logged(first, Arc::clone(frames)))
    }

    fn stall(&mut self, is_stalled: bool) {
        _ = self.0.send(Mail::Stalled(is_stalled));
    }

    fn mark(&mut self) {
        _ = self.0.send(Mail::Mark);
    }

    fn end(&mut self, _: &str) {
        _ = self.0.send(Mail::End);
    }
}

impl Store {
    /// Starts a store, from what its log has if there is one.
    ///
    /// # Errors
    /// When its log or its threads cannot be, or the log is of a store with more sites.
    pub fn start(options: &Options) -> Result<Self, StoreError> {
        Self::start_with(options, Box::new(MostMastered))
    }

    /// As [`Store::start`], with another rule for changes of the design.
    ///
    /// # Errors
    /// The same.
    pub fn start_with(
        options: &Options,
        policy: Box<dyn DesignPolicy>,
    ) -> Result<Self, StoreError> {
        let store = Self::start_as(options, policy, None)?;
        store.await_sites()?;
        Ok(store)
    }

    /// As [`Store::start`], but each site is in a process of its own ([`Member`]), which comes to
    /// [`Store::admit`]. Here are the log, the map, and threads that have the clients.
    ///
    /// # Errors
    /// The same, and without a log: from what should a site begin?
    pub fn start_router(options: &Options, apart: &Apart) -> Result<Self, StoreError> {
        if options.log.is_none() {
            return Err(StoreError::NoLog);
        }
        let store = Self::start_as(options, Box::new(MostMastered), Some(apart))?;
        if store.shared.lives.claim().is_some() {
            store.await_sites()?;
        }
        Ok(store)
    }

    fn start_as(
        options: &Options,
        policy: Box<dyn DesignPolicy>,
        apart: Option<&Apart>,
    ) -> Result<Self, StoreError> {
        if !(1..=SITES_MAX).contains(&options.sites) {
            return Err(StoreError::Sites(options.sites));
        }
        let begun = match &options.log {
            None => Begun::in_memory(),
            Some(log) => log.begin(options.sites)?,
        };
        let Begun { image, order, thread: log_thread, mark_every, newest, checkpoints, cut } =
            begun;
        let numbers = options.sites + apart.map_or(0, |apart| apart.fronts.max(1));
        let (doors, inboxes): (Vec<_>, Vec<_>) =
            (0..numbers).map(|_| mpsc::unbounded_channel()).unzip();
        let map = || Map { known: image.known(), design: image.design().clone() };
        let shared = Arc::new(Shared {
            began: Instant::now(),
            map: ArcSwap::from_pointee(map()),
            first: map(),
            doors: doors.into_iter().map(Door::Here).collect(),
            sites: options.sites.into(),
            role: if apart.is_some() { Role::Router } else { Role::Whole },
            order,
            policy,
            moves: tokio::sync::Mutex::new(()),
            stepped: AtomicU64::new(0),
            followed: AtomicU64::new(0),
            log: options.log.clone(),
            lives: LogOptions::lives(options.log.as_ref(), image.design()),
            checkpoints: Arc::new(Mutex::new(Checkpoints { newest, failure: None })),
            end: OnceLock::new(),
        });
        let (parts, assembled) = sync::mpsc::channel();
        let mut checkpointer = None;
        if let Some(folder) = checkpoints {
            let checkpoints = Checkpointer {
                folder,
                is_of_topic: matches!(&options.log, Some(LogOptions::Kafka { .. })),
                order: shared.order.clone(),
                parts: assembled,
                mark_every,
                state: Arc::clone(&shared.checkpoints),
            };
            let thread = thread::Builder::new().name("checkpoints".into());
            let thread = thread.spawn(move || checkpoints.run());
            let failed = |error| StoreError::Start("the checkpoints", error);
            checkpointer = Some(thread.map_err(failed)?);
        }
        let mut threads = Vec::new();
        // All of them follow before the first one writes.
        for door in &shared.doors {
            let next = shared.order.join(Box::new(Following(door.clone())));
            assert_eq!(next, image.known() + 1, "nobody writes before the sites begin");
        }
        if apart.is_some() {
            shared.order.submit(shared.lives.claims(options.sites));
        }
        for (site, inbox) in (0..numbers).map(Site).zip(inboxes) {
            let (shared, parts) = (Arc::clone(&shared), parts.clone());
            // Without a log nobody makes checkpoints.
            let give: GivePart = Arc::new(move |part| _ = parts.send(part));
            let known = image.known();
            let run: Box<dyn FnOnce() + Send> = match apart {
                Some(apart) if site.0 < options.sites => {
                    let link = Link::new(shared, site, known, apart.silence, give);
                    Box::new(move || link.run(inbox))
                }
                Some(_) => {
                    let core = Core::onlooker(known, image.design().apart());
                    Box::new(move || Place::run(shared, site, core, inbox, give))
                }
                None => {
                    let epoch = shared.lives.next(image.design().epoch(site));
                    let core = image.begun(site, epoch);
                    Box::new(move || Place::run(shared, site, core, inbox, give))
                }
            };
            let thread = thread::Builder::new().name(site.to_string()).spawn(run);
            threads.push(thread.map_err(|error| StoreError::Start("a site", error))?);
        }
        drop((image, parts));
        let known = shared.map.load().known;
        shared.stepped.store(known, Ordering::Relaxed);
        let (gate, log, output) = (None, log_thread, OnceLock::new());
        Ok(Self { shared, threads, gate, checkpointer, log, cut, output })
    }

    /// Lets the processes of sites come in which know a secret, and returns where.
    ///
    /// # Errors
    /// When nothing can listen there.
    pub fn admit(
        &mut self,
        listener: TcpListener,
        secret: String,
    ) -> Result<SocketAddr, StoreError> {
        let gate = Gate::open(Arc::clone(&self.shared), listener, secret);
        let gate = gate.map_err(|error| StoreError::Start("the gate for sites", error))?;
        let address = gate.address();
        self.gate = Some(gate);
        Ok(address)
    }

    /// Serves the Redis protocol to whoever connects, encrypted or not, and returns where.
    ///
    /// # Errors
    /// When nothing can listen there.
    pub fn listen(
        &self,
        listener: TcpListener,
        mut settings: Settings,
        tls: Option<Tls>,
    ) -> Result<SocketAddr, StoreError> {
        let failed = |error| StoreError::Start("a listener", error);
        let shared = Arc::clone(&self.shared);
        settings
            .script_limits
            .clock_ms
            .get_or_insert_with(|| Arc::new(move || shared.now_ms(Instant::now())));
        _ = self.output.set(Arc::clone(&settings.output));
        let listener = Listener::new(listener, settings, tls).map_err(failed)?;
        let address = listener.address().map_err(failed)?;
        _ = self.shared.fronts()[0].send(Mail::Listen(Arc::new(listener)));
        Ok(address)
    }

    /// Lets a site forget all that it has, as if its process had died, gives it up for dead, and lets
    /// it come back from the log.
    ///
    /// # Errors
    /// Without a log, or without such a site.
    pub async fn crash(&self, site: Site) -> Result<(), StoreError> {
        let doors = self.shared.site_doors();
        let door = doors.get(usize::from(site.0)).ok_or(StoreError::NoSite(site, doors.len()))?;
        if self.shared.log.is_none() {
            return Err(StoreError::NoLog);
        }
        let (answer, died) = oneshot::channel();
        // One that has ended does neither.
        _ = door.send(Mail::Die(answer));
        _ = died.await;
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        drop(self.gate.take());
        for door in &self.shared.doors {
            _ = door.send(Mail::Stop);
        }
        for thread in self.threads.drain(..) {
            _ = thread.join();
        }
        if let Some(thread) = self.checkpointer.take() {
            _ = thread.join();
        }
        self.shared.order.end();
        if let Some(thread) = self.log.take() {
            _ = thread.join();
        }
    }
}

impl Shared {
    fn door(&self, site: Site) -> &Door {
        &self.doors[usize::from(site.0)]
    }

    fn site_doors(&self) -> &[Door] {
        &self.doors[..self.sites]
    }

    /// The threads that have clients: those of the sites, where these are in this process.
    fn fronts(&self) -> &[Door] {
        match &self.doors[self.sites..] {
            [] => &self.doors,
            fronts => fronts,
        }
    }

    fn now_ms(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.began);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn trouble(&self) -> Option<String> {
        self.end.get().cloned().or_else(|| self.order.trouble())
    }

    fn route(
        &self,
        reads: &[KeyRange],
        writes: &[Key],
        near: Option<Site>,
        at_masters: bool,
    ) -> Route {
        let map = self.map.load();
        let at = at_masters.then(|| master_of_all(&map.design, reads, writes)).flatten();
        at.map_or_else(|| route(&map.design, &*self.policy, reads, writes, near), Route::Run)
    }
}
