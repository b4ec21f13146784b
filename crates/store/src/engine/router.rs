//! The router of a store whose sites run in processes of their own: the log, the map, and the threads that
//! serve clients. Each site is served by a [`SiteProcess`](super::SiteProcess).

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use super::base::Base;
use super::remote::acceptor::Acceptor;
use super::remote::remote_site::RemoteSite;
use super::shared::AtomicPosition;
use super::site::executor::Executor;
use super::site::program::ClientThread;
use super::{Execution, Options, Store, StoreError};
use crate::record::Site;
use crate::router::MostMastered;
use crate::site::Core;

/// The options of a router that are not also those of a complete store.
#[derive(Clone, Copy, Debug)]
pub struct RouterOptions {
    /// Number of threads that serve clients; 0 is treated as 1.
    pub client_threads: u16,
    /// Time without a message from a site's process after which the router takes the process for dead.
    pub silence: Duration,
}

/// A running router. It stops when it is dropped and nothing else holds its store.
pub struct Router {
    // Dropped first: no process is admitted to a store that stops.
    acceptor: Acceptor,
    store: Arc<Store>,
}

impl Router {
    /// Starts the log, the map and the clients' threads, then admits site processes that connect to `listener` and
    /// know the secret.
    ///
    /// # Errors
    /// Returns the errors of [`Store::start`], and an error if `options` has no log, from which sites begin.
    pub fn start(
        options: &Options,
        router: &RouterOptions,
        listener: TcpListener,
        secret: String,
    ) -> Result<Self, StoreError> {
        if options.log.is_none() {
            return Err(StoreError::NoLog);
        }
        let client_threads = router.client_threads.max(1);
        let followed = Some(AtomicPosition::default());
        let clients = (client_threads, followed);
        let execution = Execution::default();
        let mut base = Base::start(options, Box::new(MostMastered), clients, execution)?;
        base.shared.sequencer.submit(base.shared.epochs.claims(options.sites));
        let inboxes = std::mem::take(&mut base.inboxes);
        for (site, inbox) in (0..).map(Site).zip(inboxes) {
            let (shared, parts) = (Arc::clone(&base.shared), base.parts());
            let known = base.image.known();
            if site.0 < options.sites {
                let link = RemoteSite::new(shared, site, known, router.silence, parts);
                base.spawn(site, move || link.run(inbox))?;
            } else {
                let core = Core::onlooker(known, base.image.design().unshared());
                let is_first = site.0 == options.sites;
                let program = Box::new(ClientThread { is_first });
                let run = move || Executor::run(shared, site, core, inbox, parts, program);
                base.spawn(site, run)?;
            }
        }
        let store = Arc::new(base.into_store());
        if store.shared.epochs.claim().is_some() {
            store.await_sites()?;
        }
        let acceptor = Acceptor::open(Arc::clone(&store.shared), listener, secret)
            .map_err(|error| StoreError::Start("the acceptor for sites", error))?;
        Ok(Self { acceptor, store })
    }

    /// Returns the address at which site processes connect to the router.
    #[must_use]
    pub fn peers(&self) -> SocketAddr {
        self.acceptor.address()
    }

    /// Returns the store, through which clients use the router.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }
}
