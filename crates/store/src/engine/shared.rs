//! State that the threads of a store's, a router's or a site's process share.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::facts::{Counts, Memory};
use super::move_locks::{MoveLock, MoveLocks, ranges_of};
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
    /// Design at the position `known`: the bounds, masters and replicas of all partitions.
    pub design: Design,
}

/// A position of the log that several threads advance and read.
#[derive(Default)]
pub(in crate::engine) struct AtomicPosition(AtomicU64);

impl AtomicPosition {
    /// Advances to `position`, unless a later one is reached. A thread that loads the position sees all writes before
    /// this call.
    pub fn advance_to(&self, position: Position) {
        self.0.fetch_max(position.0, Ordering::Release);
    }

    /// Returns the current position.
    pub fn load(&self) -> Position {
        Position(self.0.load(Ordering::Acquire))
    }
}

/// State that the threads of a store's, a router's or a site's process share.
pub(crate) struct Shared {
    /// Time at which the process's store or site began; the sites' clocks in ms count from it.
    pub(in crate::engine) began: Instant,
    /// The router's map as this process knows it now.
    pub(in crate::engine) map: ArcSwap<Map>,
    /// The map when the process started.
    pub(in crate::engine) first: Map,
    /// Senders of the mailboxes: those of the sites by number, then those of threads that only serve clients.
    pub(in crate::engine) senders: Vec<SiteSender>,
    /// Number of sites of the store.
    pub(in crate::engine) sites: usize,
    /// The sequencer, which orders the log entries of all sites in one log.
    pub(in crate::engine) sequencer: Sequencer,
    /// The policy that decides how the design changes for a transaction that no site can run.
    pub(in crate::engine) policy: Box<dyn DesignPolicy>,
    /// True if sessions' transactions that no site can run are executed by two-phase commit.
    pub(in crate::engine) is_two_phase: bool,
    /// The locks of transactions for which the design is changed first.
    pub(in crate::engine) moves: MoveLocks,
    /// Position of the log up to which it contains all executed steps of design changes that this process requested.
    pub(in crate::engine) stepped: AtomicPosition,
    /// Position up to which the map of a router contains the log; its sites' processes may have more. `None` if the
    /// sites' threads publish the map before they reply.
    pub(in crate::engine) followed: Option<AtomicPosition>,
    /// Location of the log; `None` without a log in this process.
    pub(in crate::engine) log: Option<LogOptions>,
    /// The rule by which this process numbers the next epochs of sites.
    pub(in crate::engine) epochs: Epochs,
    /// State of the checkpoints of the log.
    pub(in crate::engine) checkpoints: Arc<Mutex<Checkpoints>>,
    /// Number of transactions since the start for which the design was changed first.
    pub(in crate::engine) brought: AtomicU64,
    /// Number of transactions of sessions since the start that were sent to a site to be executed by two-phase commit.
    pub(in crate::engine) distributed: AtomicU64,
    /// Number of transactions of sessions under way at each site, by site number.
    pub(in crate::engine) under_way: Vec<AtomicU32>,
    /// Sites that are not in use; complete only in the process that has the router's map.
    pub(in crate::engine) unused: Unused,
    /// Size of the log messages to each site, by site number; empty if no site is remote.
    pub(in crate::engine) traffic: Vec<Traffic>,
    /// The runs of the log: the periods in which one process each wrote it.
    pub(in crate::engine) runs: Runs,
    /// Positions of the log that transfers to sites still read: a checkpoint does not remove the log after them.
    pub(in crate::engine) holds: Holds,
    /// Memory of the rows of all sites in this process, and its limit.
    pub(in crate::engine) memory: Memory,
    /// The sums of the counts that the sites reported last, for INFO.
    pub(in crate::engine) counts: Mutex<Counts>,
    /// State of each site's process, by site number; empty if no site is remote.
    pub(in crate::engine) presence: Vec<Presence>,
    /// Minimum number of replicas of each partition, its master not counted; 0 for no minimum.
    pub(in crate::engine) replicas_min: AtomicU32,
    /// The sampler of transactions; empty before sampling is enabled.
    pub(in crate::engine) sampler: OnceLock<Arc<Sampler>>,
    /// Why this process's use of the log has ended; empty before.
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

    /// Returns the senders of the threads that serve clients: those of the sites, if the sites are in this process.
    pub(in crate::engine) fn client_threads(&self) -> &[SiteSender] {
        match &self.senders[self.sites..] {
            [] => &self.senders,
            client_threads => client_threads,
        }
    }

    /// Returns the time from the start of the process's store or site (`began`) until `at`, in ms.
    pub(in crate::engine) fn now_ms(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.began);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns why this process accepts no writes now, or `None` if it does.
    pub(in crate::engine) fn trouble(&self) -> Option<String> {
        self.end.get().cloned().or_else(|| self.sequencer.trouble())
    }

    /// Waits until no other transaction changes the design of the partitions that this one needs.
    pub(in crate::engine) async fn lock_moves(
        &self,
        reads: &[KeyRange],
        writes: &[Key],
    ) -> MoveLock<'_> {
        let ranges = ranges_of(&self.map.load().design, reads, writes);
        self.moves.lock(ranges).await
    }

    /// Routes a transaction by the map: to `near` if that site can run it, or, with `at_masters`, to the site that
    /// masters all of its rows if there is one. Refuses a transaction that needs a partition whose master is down.
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
