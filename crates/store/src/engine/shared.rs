//! State shared by the threads of a process.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::facts::{Counts, Memory};
use super::presence::Presence;
use super::recovery::holds::Holds;
use super::remote::traffic::Traffic;
use super::site::epoch::Epochs;
use super::site::mailbox::SiteSender;
use super::unused::Unused;
use super::{Checkpoints, LogOptions};
use crate::design::Design;
use crate::key::{Key, KeyRange};
use crate::log::Runs;
use crate::record::{Position, Site};
use crate::router::{DesignPolicy, Route, master_of_all, prefer_used_site, route};
use crate::sampler::Sampler;
use crate::sequencer::Sequencer;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::{ArcSwap, Mutex};

/// The router's map (its routing table): the design as of a prefix of the log.
#[derive(Debug)]
pub struct Map {
    /// Position of the last log entry in the prefix.
    pub known: Position,
    /// Design at that position.
    pub design: Design,
}

/// A position of the log that several threads advance and read.
#[derive(Default)]
pub(in crate::engine) struct AtomicPosition(AtomicU64);

impl AtomicPosition {
    /// Advances to a position, unless a later one is reached. A thread that loads it sees all writes before this
    /// call.
    pub fn advance_to(&self, position: Position) {
        self.0.fetch_max(position.0, Ordering::Release);
    }

    /// Returns the current position.
    pub fn load(&self) -> Position {
        Position(self.0.load(Ordering::Acquire))
    }
}

/// State shared by the threads of a process.
pub(crate) struct Shared {
    /// Time at which the process's store or site began; clocks in ms count from it.
    pub(in crate::engine) began: Instant,
    /// The current map.
    pub(in crate::engine) map: ArcSwap<Map>,
    /// The map at the start.
    pub(in crate::engine) first: Map,
    /// Senders of the mailboxes: those of the sites by number, then those of threads that only serve clients.
    pub(in crate::engine) senders: Vec<SiteSender>,
    /// Number of sites.
    pub(in crate::engine) sites: usize,
    /// The sequencer, through which entries enter the log.
    pub(in crate::engine) sequencer: Sequencer,
    /// Decides how the design changes for a transaction that no site can run.
    pub(in crate::engine) policy: Box<dyn DesignPolicy>,
    /// Held while the design is changed for a transaction, until the transaction has run: otherwise two transactions
    /// that need one partition at two sites could take it from each other for ever.
    pub(in crate::engine) moves: tokio::sync::Mutex<()>,
    /// Prefix of the log that contains the last executed step of a change of the design.
    pub(in crate::engine) stepped: AtomicPosition,
    /// Prefix of the log that the map contains, in a router; its sites' processes may be ahead of the map. `None` if
    /// a site publishes the map before it replies.
    pub(in crate::engine) followed: Option<AtomicPosition>,
    /// Location of the log, if there is one in this process.
    pub(in crate::engine) log: Option<LogOptions>,
    /// The rule for the sites' next epochs.
    pub(in crate::engine) epochs: Epochs,
    /// State of the checkpoints.
    pub(in crate::engine) checkpoints: Arc<Mutex<Checkpoints>>,
    /// Number of transactions for which the design was changed first.
    pub(in crate::engine) brought: AtomicU64,
    /// Number of sessions' transactions under way at each site.
    pub(in crate::engine) under_way: Vec<AtomicU32>,
    /// Sites that are not in use; set in the process that has the map.
    pub(in crate::engine) unused: Unused,
    /// Log traffic to each site; empty if no site is remote.
    pub(in crate::engine) traffic: Vec<Traffic>,
    /// The runs of the log.
    pub(in crate::engine) runs: Runs,
    /// Positions of the log that transfers still read.
    pub(in crate::engine) holds: Holds,
    /// Memory of rows in this process, and its limit.
    pub(in crate::engine) memory: Memory,
    /// The counts that the sites reported last.
    pub(in crate::engine) counts: Mutex<Counts>,
    /// State of the sites' processes; empty if no site is remote.
    pub(in crate::engine) presence: Vec<Presence>,
    /// Minimum number of replicas of each partition, besides its master.
    pub(in crate::engine) replicas_min: AtomicU32,
    /// The sampler of transactions, once sampling is enabled.
    pub(in crate::engine) sampler: OnceLock<Arc<Sampler>>,
    /// Why the log accepts no more entries, once it does not.
    pub(in crate::engine) end: OnceLock<String>,
}

impl Shared {
    /// Returns the sender of a site's mailbox.
    pub(in crate::engine) fn sender(&self, site: Site) -> &SiteSender {
        &self.senders[usize::from(site.0)]
    }

    /// Returns the senders of all sites' mailboxes.
    pub(in crate::engine) fn site_senders(&self) -> &[SiteSender] {
        &self.senders[..self.sites]
    }

    /// Returns the threads that serve clients: those of the sites, if the sites are in this process.
    pub(in crate::engine) fn client_threads(&self) -> &[SiteSender] {
        match &self.senders[self.sites..] {
            [] => &self.senders,
            client_threads => client_threads,
        }
    }

    /// Returns the time from the start of the process's store or site to `at`, in ms.
    pub(in crate::engine) fn now_ms(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.began);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns why no writes are possible now, or `None` if they are.
    pub(in crate::engine) fn trouble(&self) -> Option<String> {
        self.end.get().cloned().or_else(|| self.sequencer.trouble())
    }

    /// Routes a transaction by the map: to `near` if possible, or, with `at_masters`, to the site that masters all of
    /// its rows if there is one. Refuses a transaction that needs a partition of a site that is down.
    pub(in crate::engine) fn route(
        &self,
        reads: &[KeyRange],
        writes: &[Key],
        near: Option<Site>,
        at_masters: bool,
    ) -> Route {
        let map = self.map.load();
        let at = at_masters.then(|| master_of_all(&map.design, reads, writes)).flatten();
        let under_way = |site: Site| self.under_way[usize::from(site.0)].load(Ordering::Relaxed);
        let by_design = || route(&map.design, &*self.policy, reads, writes, near, under_way);
        match at.map_or_else(by_design, Route::Run) {
            Route::Run(site) if !self.presence.is_empty() && map.design.is_fenced(site) => {
                self.down(&map.design, reads, writes).map_or(Route::Run(site), Route::Never)
            }
            Route::First(step) => {
                if let Some(abort) = self.down(&map.design, reads, writes) {
                    return Route::Never(abort);
                }
                let unused = self.unused.all();
                let step =
                    prefer_used_site(step, &unused, &map.design, &*self.policy, (reads, writes));
                Route::First(step)
            }
            other => other,
        }
    }
}
