//! State shared by the threads of a process.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::remote::traffic::Traffic;
use super::site::epoch::Epochs;
use super::site::mailbox::SiteSender;
use super::unused::Unused;
use super::{Checkpoints, LogOptions};
use crate::design::Design;
use crate::key::{Key, KeyRange};
use crate::record::{Position, Site};
use crate::router::{DesignPolicy, Route, kept_off, master_of_all, route};
use crate::sampler::Sampler;
use crate::sequencer::Sequencer;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::{ArcSwap, Mutex};

/// The router's map: the design as of a prefix of the log.
#[derive(Debug)]
pub struct Map {
    /// The prefix.
    pub known: Position,
    /// The design there.
    pub design: Design,
}

/// A position that threads advance and read.
#[derive(Default)]
pub(in crate::engine) struct AtomicPosition(AtomicU64);

impl AtomicPosition {
    /// Readers that load the position afterwards see the writes before it.
    pub fn advance_to(&self, position: Position) {
        self.0.fetch_max(position.0, Ordering::Release);
    }

    pub fn load(&self) -> Position {
        Position(self.0.load(Ordering::Acquire))
    }
}

/// State shared by the threads of a process.
pub(crate) struct Shared {
    pub(in crate::engine) began: Instant,
    pub(in crate::engine) map: ArcSwap<Map>,
    /// The one that it began with.
    pub(in crate::engine) first: Map,
    /// Of the sites, by number, and then of threads that have clients only.
    pub(in crate::engine) senders: Vec<SiteSender>,
    pub(in crate::engine) sites: usize,
    pub(in crate::engine) sequencer: Sequencer,
    pub(in crate::engine) policy: Box<dyn DesignPolicy>,
    /// Held while the design is changed for a transaction, until that has run: two transactions that want one
    /// partition at two sites would take it from each other for ever.
    pub(in crate::engine) moves: tokio::sync::Mutex<()>,
    /// The prefix of the log that has the last step of a change of design.
    pub(in crate::engine) stepped: AtomicPosition,
    /// The prefix of the log that the map has. Absent where a site publishes the map before it replies; a site
    /// in another process may be ahead of the router's map.
    pub(in crate::engine) followed: Option<AtomicPosition>,
    pub(in crate::engine) log: Option<LogOptions>,
    pub(in crate::engine) epochs: Epochs,
    pub(in crate::engine) checkpoints: Arc<Mutex<Checkpoints>>,
    /// Transactions for which the design was changed first.
    pub(in crate::engine) brought: AtomicU64,
    /// Transactions of sessions that each site has at work.
    pub(in crate::engine) under_way: Vec<AtomicU32>,
    /// The sites that get nothing; in the process with the map.
    pub(in crate::engine) unused: Unused,
    /// The log traffic to each site; empty where none is in another process.
    pub(in crate::engine) traffic: Vec<Traffic>,
    /// The sampler of transactions, if they are sampled.
    pub(in crate::engine) sampler: OnceLock<Arc<Sampler>>,
    /// Why the log takes nothing any more.
    pub(in crate::engine) end: OnceLock<String>,
}

impl Shared {
    pub(in crate::engine) fn sender(&self, site: Site) -> &SiteSender {
        &self.senders[usize::from(site.0)]
    }

    pub(in crate::engine) fn site_senders(&self) -> &[SiteSender] {
        &self.senders[..self.sites]
    }

    /// The threads that have clients: those of the sites, where these are in this process.
    pub(in crate::engine) fn client_threads(&self) -> &[SiteSender] {
        match &self.senders[self.sites..] {
            [] => &self.senders,
            client_threads => client_threads,
        }
    }

    pub(in crate::engine) fn now_ms(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.began);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    pub(in crate::engine) fn trouble(&self) -> Option<String> {
        self.end.get().cloned().or_else(|| self.sequencer.trouble())
    }

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
            Route::First(step) => {
                let unused = self.unused.all();
                let step = kept_off(step, &unused, &map.design, &*self.policy, (reads, writes));
                Route::First(step)
            }
            other => other,
        }
    }
}
