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
mod layout;
mod recovery;
mod remote;
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

/// The most sites of a store.
pub const SITES_MAX: u16 = imago_plan::design::site_set::SITES_MAX;
/// Longest time until a transaction, or a change of design, has begun.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Delay before a returned transaction is routed again.
const BACK_WAIT: Duration = Duration::from_millis(2);
/// Deadline for all sites to begin.
const BEGIN_WAIT: Duration = Duration::from_secs(60);

/// Setup of a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of sites.
    pub sites: u16,
    /// The place of its log; without one the store ends with its process.
    pub log: Option<LogOptions>,
}

/// The reason why a store could not be started, or a change was not made.
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

/// A store that runs: all of it, or the part of a [`Router`]. It stops when it is dropped.
pub struct Store {
    shared: Arc<Shared>,
    /// Of sites, of connections to remote sites, and of clients.
    threads: Vec<JoinHandle<()>>,
    checkpointer: Option<JoinHandle<()>>,
    log: Option<JoinHandle<()>>,
    /// The damaged end of the log, which was cut off at the start.
    cut: Option<CutTail>,
    /// Of clients that connect here.
    output: OnceLock<Arc<OutputBuffers>>,
}

impl Store {
    /// Starts a store, from what its log has if there is one.
    ///
    /// # Errors
    /// Returns an error if its log cannot be used, its threads cannot be started, or the log is of a store
    /// with more sites.
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
        let mut base = Base::start(options, policy, 0, None)?;
        let sites = mem::take(&mut base.inboxes).into_iter();
        for (site, inbox) in (0..options.sites).map(Site).zip(sites) {
            let epoch = base.shared.epochs.next(base.image.design().epoch(site));
            let core = base.image.begun(site, epoch);
            let (shared, parts) = (Arc::clone(&base.shared), base.parts());
            let run = move || Executor::run(shared, site, core, inbox, parts, Box::new(LocalSite));
            base.spawn(site, run)?;
        }
        let store = base.into_store();
        store.await_sites()?;
        Ok(store)
    }

    /// Serves the Redis protocol, encrypted or not, and returns the address.
    ///
    /// # Errors
    /// Returns an error if nothing can listen there.
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
