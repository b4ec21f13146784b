//! The running store: one thread for each site, a sequencer that orders their log entries, and the routing table.
//!
//! A site's thread owns the site's state machine. Every event for the site arrives in its *mailbox*, a queue. A
//! connection or session looks up in the router's map where a transaction can run and sends it to that site's
//! mailbox. A site returns a transaction that it cannot run because the design has changed, and it is routed again.
//!
//! The queues are bounded. A session has one transaction under way, a connection at most 1024. A site refuses
//! transactions while 10,000 others wait, or while 100,000 of its entries are not in the log yet. A transaction that
//! has not begun within [`PATIENCE`] is refused.

use std::io;
use std::mem;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::log::{CutTail, LogError};
use crate::output_buffer::OutputBuffers;
use crate::record::Site;
use crate::resp::Settings;
use crate::router::{DesignPolicy, MostMastered};
use crate::sync::thread::JoinHandle;

mod base;
mod change;
mod client;
mod facts;
mod layout;
pub(crate) mod move_locks;
mod network;
mod presence;
mod recovery;
mod remote;
mod replicas;
mod report;
mod router;
mod shared;
pub(crate) mod site;
#[cfg(test)]
mod tests;
pub(crate) mod unused;

use base::Base;
pub use client::listener::Listener;
pub use client::session::Session;
pub use client::tls::{Tls, TlsError};
pub use presence::Transfer;
pub use recovery::checkpointer::Checkpoints;
#[cfg(test)]
pub(crate) use recovery::checkpointer::complete;
pub use recovery::log_options::LogOptions;
pub use remote::site_process::{SiteProcess, SiteProcessError, SiteProcessEvent};
pub use remote::traffic::LogTraffic;
pub use router::{Router, RouterOptions};
pub use shared::Map;
pub(crate) use shared::Shared;
use site::executor::Executor;
use site::mailbox::SiteEvent;
use site::program::LocalSite;
pub use unused::UnusedError;

/// Maximum number of sites in one store.
pub const SITES_MAX: u16 = imago_plan::store::site_set::SITES_MAX;
/// Time from a request within which its transaction or change of the design must begin; then it is refused.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Delay before a transaction that a site returned is routed again.
const BACK_WAIT: Duration = Duration::from_millis(2);
/// Time that a starting store allows all its sites to begin.
const BEGIN_WAIT: Duration = Duration::from_secs(60);

/// Options with which a store is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of sites of the store, from 1 to [`SITES_MAX`].
    pub sites: u16,
    /// Location of the store's log; `None` for a store without one, whose data is lost when the process ends.
    pub log: Option<LogOptions>,
}

/// How a store executes transactions that no site can run alone, and at which distance its sites are: for comparisons
/// of designs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Execution {
    /// True if sessions' transactions are executed by two-phase commit where no site can run them; false if the design
    /// is changed for them.
    pub is_two_phase: bool,
    /// Time that a message takes from a site to another one and back, which is simulated; 0 for no delay.
    pub round_trip: Duration,
}

/// The error of a store that cannot start, or of a request that needs a site or a log that the store lacks.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The log cannot be opened or read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The number of sites is 0 or above [`SITES_MAX`].
    #[error("{0} sites: a store has from 1 to {SITES_MAX}")]
    Sites(u16),
    /// Partitions in the log have copies at, or pins to, more sites than the store is started with.
    #[error("{log} is of a store with {least} sites at least: start as many")]
    SitesMissing {
        /// Description of the log: its folder or topic.
        log: String,
        /// Minimum number of sites: one more than the greatest number of a site that has a copy or a pin.
        least: u16,
    },
    /// The operating system failed to start the thread or socket that the text names.
    #[error("cannot start {0}")]
    Start(&'static str, #[source] io::Error),
    /// The sites did not begin within a minute of the start; the text is the reason.
    #[error("the sites did not start within {BEGIN_WAIT:?}: {0}")]
    NotBegun(String),
    /// The store, which has this many sites, has no site with this number.
    #[error("there is no {0}: this store has {1} sites, from 0 on")]
    NoSite(Site, usize),
    /// The operation needs a log from which sites can begin an epoch, and the store has none.
    #[error("a store without a log cannot restart a site")]
    NoLog,
}

/// A running store: all of it, or the part that a [`Router`] has. The store stops when this is dropped.
pub struct Store {
    /// State shared with the store's threads.
    shared: Arc<Shared>,
    /// Threads of sites, of connections to remote sites, and of clients.
    threads: Vec<JoinHandle<()>>,
    /// The thread that writes checkpoints; `None` if none are made.
    checkpointer: Option<JoinHandle<()>>,
    /// The thread that writes the log; `None` without a log.
    log: Option<JoinHandle<()>>,
    /// The damaged end of the log that was cut off at the start; `None` if nothing was cut off.
    cut: Option<CutTail>,
    /// Output buffers of the clients that connect to the first listener; empty before the store listens.
    output: OnceLock<Arc<OutputBuffers>>,
}

impl Store {
    /// Starts a store, and recovers the database from its log if it has one.
    ///
    /// # Errors
    /// Returns an error if the log cannot be used, threads cannot be started, or the log is of a store with more
    /// sites.
    pub fn start(options: &Options) -> Result<Self, StoreError> {
        Self::start_with(options, Box::new(MostMastered))
    }

    /// Starts a store as [`Store::start`] does; `policy` decides how the design changes for a transaction that no
    /// site can run.
    ///
    /// # Errors
    /// Returns the errors of [`Store::start`].
    pub fn start_with(
        options: &Options,
        policy: Box<dyn DesignPolicy>,
    ) -> Result<Self, StoreError> {
        Self::start_as(options, policy, Execution::default())
    }

    /// Starts a store as [`Store::start_with`] does, with another way to execute transactions.
    ///
    /// # Errors
    /// Returns the errors of [`Store::start`].
    pub fn start_as(
        options: &Options,
        policy: Box<dyn DesignPolicy>,
        execution: Execution,
    ) -> Result<Self, StoreError> {
        let mut base = Base::start(options, policy, (0, None), execution)?;
        let sites = mem::take(&mut base.inboxes).into_iter();
        for (site, inbox) in (0..options.sites).map(Site).zip(sites) {
            let epoch = base.shared.epochs.next(base.image.design().epoch(site));
            let core = base.image.begin_epoch(site, epoch);
            let (shared, parts) = (Arc::clone(&base.shared), base.parts());
            let run = move || Executor::run(shared, site, core, inbox, parts, Box::new(LocalSite));
            base.spawn(site, run)?;
        }
        let store = base.into_store();
        store.await_sites()?;
        Ok(store)
    }

    /// Serves the Redis protocol on a listener, encrypted if `tls` is given, and returns the listener's address.
    ///
    /// # Errors
    /// Returns an error if the listener cannot be used.
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
        self.shared.memory.limit(settings.maxmemory);
        let (shared, output) = (Arc::clone(&self.shared), Arc::clone(&settings.output));
        let before = Arc::clone(&settings.info);
        settings.info = Arc::new(move || {
            let mut sections = shared.sections(&output);
            sections.extend(before());
            sections
        });
        let listener =
            Listener::new(listener, Arc::clone(&self.shared), settings, tls).map_err(failed)?;
        let address = listener.address().map_err(failed)?;
        _ = self.shared.client_threads()[0].send(SiteEvent::Listen(Arc::new(listener)));
        Ok(address)
    }

    /// Simulates the crash of a site: its memory is dropped, the site is fenced, and it begins a new epoch from
    /// the log.
    ///
    /// # Errors
    /// Returns an error if the store has no log, or no such site.
    pub async fn crash(&self, site: Site) -> Result<(), StoreError> {
        let senders = self.shared.site_senders();
        let sender =
            senders.get(usize::from(site.0)).ok_or(StoreError::NoSite(site, senders.len()))?;
        if self.shared.log.is_none() {
            return Err(StoreError::NoLog);
        }
        let (answer, died) = oneshot::channel();
        // A site that has stopped neither receives the event nor replies.
        _ = sender.send(SiteEvent::Die(answer));
        _ = died.await;
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
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
