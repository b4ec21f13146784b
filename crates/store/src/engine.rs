//! The store with its threads: a thread for each site, one order of log entries, and the router's map.
//!
//! A site's thread owns the site's state machine. Everything for the site arrives in its *mailbox*, a queue. A
//! connection or session asks the router's map where a transaction can run and sends it to that site's mailbox.
//! A site returns a transaction that it cannot run because the design has changed, and it is routed again.
//!
//! Bounds of the queues: a session has one transaction under way, a connection a thousand; a site refuses
//! transactions beyond some thousands that wait, and beyond a number of log entries that are not in the log
//! yet. A transaction that has not begun within [`PATIENCE`] is refused.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use crate::log::{CutTail, LogError};
use crate::output_buffer::OutputBuffers;
use crate::record::{LogEntry, Position, Site};
use crate::resp::Settings;
use crate::router::{DesignPolicy, MostMastered};
use crate::sequencer::Follower;
use crate::site::Core;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{self, ArcSwap, Mutex};

mod change;
mod client;
mod recovery;
mod remote;
mod report;
mod shared;
pub(crate) mod site;
#[cfg(test)]
mod tests;

pub use client::listener::Listener;
pub use client::session::Session;
pub use client::tls::{Tls, TlsError};
use recovery::checkpointer::Checkpointer;
pub use recovery::checkpointer::Checkpoints;
#[cfg(test)]
pub(crate) use recovery::checkpointer::complete;
pub use recovery::log_options::LogOptions;
use recovery::log_options::Recovered;
use remote::acceptor::Acceptor;
use remote::remote_site::RemoteSite;
pub use remote::site_process::{SiteProcess, SiteProcessError, SiteProcessEvent};
pub use shared::Map;
pub(crate) use shared::{Role, Shared};
use site::executor::{CheckpointSink, Executor};
use site::mailbox::{SiteEvent, SiteSender};

/// The most sites of a store.
pub const SITES_MAX: u16 = 64;
/// How long a transaction, or a change of design, may take until it has begun.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Delay before a returned transaction is routed again.
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

/// The router of a store whose sites run in processes of their own.
#[derive(Clone, Copy, Debug)]
pub struct RouterOptions {
    /// Threads that serve clients; one at least.
    pub client_threads: u16,
    /// How long a site's process may be silent before it is taken for dead.
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
    /// The sites did not begin.
    #[error("the sites did not begin within {BEGIN_WAIT:?}: {0}")]
    NotBegun(String),
    /// There is no such site.
    #[error("there is no {0}: this store has {1} sites, from 0 on")]
    NoSite(Site, usize),
    /// A site dies only where it can come back.
    #[error("a store without a log has nothing from which a site could begin again")]
    NoLog,
}

/// A store that runs. It stops when it is dropped.
pub struct Store {
    shared: Arc<Shared>,
    /// Of sites, of connections to remote sites, and of clients.
    threads: Vec<JoinHandle<()>>,
    acceptor: Option<Acceptor>,
    checkpointer: Option<JoinHandle<()>>,
    log: Option<JoinHandle<()>>,
    /// The damaged end of the log, which was cut off at the start.
    cut: Option<CutTail>,
    /// Of clients that connect here.
    output: OnceLock<Arc<OutputBuffers>>,
}

/// Delivers the sequencer's log entries to a mailbox.
struct Following(SiteSender);

impl Follower for Following {
    fn follow(&mut self, first: Position, entries: &Arc<[LogEntry]>) -> bool {
        self.0.send(SiteEvent::Logged(first, Arc::clone(entries)))
    }

    fn stall(&mut self, is_stalled: bool) {
        _ = self.0.send(SiteEvent::Stalled(is_stalled));
    }

    fn mark(&mut self) {
        _ = self.0.send(SiteEvent::Mark);
    }

    fn end(&mut self, _: &str) {
        _ = self.0.send(SiteEvent::End);
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
    /// The same, and without a log, from which sites begin.
    pub fn start_router(options: &Options, apart: &RouterOptions) -> Result<Self, StoreError> {
        if options.log.is_none() {
            return Err(StoreError::NoLog);
        }
        let store = Self::start_as(options, Box::new(MostMastered), Some(apart))?;
        if store.shared.epochs.claim().is_some() {
            store.await_sites()?;
        }
        Ok(store)
    }

    fn start_as(
        options: &Options,
        policy: Box<dyn DesignPolicy>,
        apart: Option<&RouterOptions>,
    ) -> Result<Self, StoreError> {
        if !(1..=SITES_MAX).contains(&options.sites) {
            return Err(StoreError::Sites(options.sites));
        }
        let recovered = match &options.log {
            None => Recovered::in_memory(),
            Some(log) => log.recover(options.sites)?,
        };
        let Recovered {
            image,
            sequencer,
            thread: log_thread,
            mark_every,
            newest,
            checkpoints,
            cut,
        } = recovered;
        let numbers = options.sites + apart.map_or(0, |apart| apart.client_threads.max(1));
        let (senders, inboxes): (Vec<_>, Vec<_>) =
            (0..numbers).map(|_| mpsc::unbounded_channel()).unzip();
        let map = || Map { known: image.known(), design: image.design().clone() };
        let shared = Arc::new(Shared {
            began: Instant::now(),
            map: ArcSwap::from_pointee(map()),
            first: map(),
            senders: senders.into_iter().map(SiteSender::Local).collect(),
            sites: options.sites.into(),
            role: if apart.is_some() { Role::Router } else { Role::Whole },
            sequencer,
            policy,
            moves: tokio::sync::Mutex::new(()),
            stepped: AtomicU64::new(0),
            followed: AtomicU64::new(0),
            log: options.log.clone(),
            epochs: LogOptions::epochs(options.log.as_ref(), image.design()),
            checkpoints: Arc::new(Mutex::new(Checkpoints { newest, failure: None })),
            end: OnceLock::new(),
        });
        let (parts, assembled) = sync::mpsc::channel();
        let mut checkpointer = None;
        if let Some(folder) = checkpoints {
            let checkpoints = Checkpointer {
                folder,
                is_of_topic: matches!(&options.log, Some(LogOptions::Kafka { .. })),
                sequencer: shared.sequencer.clone(),
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
        // Every mailbox follows the log before the first site writes.
        for sender in &shared.senders {
            let next = shared.sequencer.join(Box::new(Following(sender.clone())));
            assert_eq!(next, image.known() + 1, "nobody writes before the sites begin");
        }
        if apart.is_some() {
            shared.sequencer.submit(shared.epochs.claims(options.sites));
        }
        for (site, inbox) in (0..numbers).map(Site).zip(inboxes) {
            let (shared, parts) = (Arc::clone(&shared), parts.clone());
            // Without a log nobody makes checkpoints.
            let give: CheckpointSink = Arc::new(move |part| _ = parts.send(part));
            let known = image.known();
            let run: Box<dyn FnOnce() + Send> = match apart {
                Some(apart) if site.0 < options.sites => {
                    let link = RemoteSite::new(shared, site, known, apart.silence, give);
                    Box::new(move || link.run(inbox))
                }
                Some(_) => {
                    let core = Core::onlooker(known, image.design().apart());
                    Box::new(move || Executor::run(shared, site, core, inbox, give))
                }
                None => {
                    let epoch = shared.epochs.next(image.design().epoch(site));
                    let core = image.begun(site, epoch);
                    Box::new(move || Executor::run(shared, site, core, inbox, give))
                }
            };
            let thread = thread::Builder::new().name(site.to_string()).spawn(run);
            threads.push(thread.map_err(|error| StoreError::Start("a site", error))?);
        }
        drop((image, parts));
        let known = shared.map.load().known;
        shared.stepped.store(known, Ordering::Relaxed);
        let (acceptor, log, output) = (None, log_thread, OnceLock::new());
        Ok(Self { shared, threads, acceptor, checkpointer, log, cut, output })
    }

    /// Accepts site processes that know the secret, and returns the address.
    ///
    /// # Errors
    /// When nothing can listen there.
    pub fn admit(
        &mut self,
        listener: TcpListener,
        secret: String,
    ) -> Result<SocketAddr, StoreError> {
        let acceptor = Acceptor::open(Arc::clone(&self.shared), listener, secret);
        let acceptor =
            acceptor.map_err(|error| StoreError::Start("the acceptor for sites", error))?;
        let address = acceptor.address();
        self.acceptor = Some(acceptor);
        Ok(address)
    }

    /// Serves the Redis protocol, encrypted or not, and returns the address.
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
        _ = self.shared.client_threads()[0].send(SiteEvent::Listen(Arc::new(listener)));
        Ok(address)
    }

    /// Simulates the death of a site: its memory is dropped, the site is fenced, and begins a new epoch from
    /// the log.
    ///
    /// # Errors
    /// Without a log, or without such a site.
    pub async fn crash(&self, site: Site) -> Result<(), StoreError> {
        let senders = self.shared.site_senders();
        let sender =
            senders.get(usize::from(site.0)).ok_or(StoreError::NoSite(site, senders.len()))?;
        if self.shared.log.is_none() {
            return Err(StoreError::NoLog);
        }
        let (answer, died) = oneshot::channel();
        // A site that has stopped does neither.
        _ = sender.send(SiteEvent::Die(answer));
        _ = died.await;
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        drop(self.acceptor.take());
        for sender in &self.shared.senders {
            _ = sender.send(SiteEvent::Stop);
        }
        for thread in self.threads.drain(..) {
            _ = thread.join();
        }
        if let Some(thread) = self.checkpointer.take() {
            _ = thread.join();
        }
        self.shared.sequencer.end();
        if let Some(thread) = self.log.take() {
            _ = thread.join();
        }
    }
}
