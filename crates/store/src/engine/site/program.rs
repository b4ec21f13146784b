//! The three programs whose threads run an executor, and their different reactions to changes of the design.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use super::epoch;
use super::mailbox::Outgoing;
use crate::design::Design;
use crate::engine::Shared;
use crate::record::{Position, Site};
use crate::site::Core;
use crate::subscription::Request;

/// The program that an executor's thread belongs to: it defines the reactions that differ between programs.
pub(in crate::engine) trait Program: Send {
    /// Reacts to log entries up to position `known`, after they were applied and the map was published. `changed` is
    /// the design, if the entries may have changed it.
    fn follow(&self, _shared: &Shared, _known: Position, _changed: Option<&Design>) {}

    /// Passes a request of the site to its log subscription.
    fn subscribe(&self, _request: Request) {
        unreachable!("it receives the whole log");
    }

    /// Receives the state of the site when its thread ends.
    fn take_over(&self, _core: Core) {}

    /// True if the thread of the site `own` fetches partitions for `site`: those that are pinned to `site` and
    /// mastered elsewhere. `is_live` says whether `own` is live.
    fn fetches_for(&self, own: Site, is_live: bool, design: &Design, site: Site) -> bool;
}

/// A site of a store whose sites are all in this process. Each site fetches the partitions that are pinned to it.
pub(in crate::engine) struct LocalSite;

impl Program for LocalSite {
    fn fetches_for(&self, own: Site, is_live: bool, _: &Design, site: Site) -> bool {
        site == own && is_live
    }
}

/// A thread of the router that serves clients. The first one fetches pinned partitions for all sites.
pub(in crate::engine) struct ClientThread {
    /// True for the first of the router's threads that serve clients.
    pub is_first: bool,
}

impl Program for ClientThread {
    /// Ends the router if another process has taken over its log, and publishes how much of the log the map contains.
    fn follow(&self, shared: &Shared, known: Position, changed: Option<&Design>) {
        if let Some(design) = changed {
            let mut sites = (0..shared.sites as u16).map(Site);
            let is_over = |site: &Site| shared.epochs.is_over(design.epoch(*site));
            if let Some(site) = sites.find(is_over) {
                shared.end_for_another(site);
            }
        }
        if let Some(followed) = &shared.followed {
            followed.advance_to(known);
        }
    }

    fn fetches_for(&self, _: Site, _: bool, design: &Design, site: Site) -> bool {
        self.is_first && epoch::count(design.epoch(site)) > 0 && !design.is_fenced(site)
    }
}

/// A site in a process of its own. Its router fetches pinned partitions for it.
pub(in crate::engine) struct SeparateSite {
    /// Sends messages to the thread that writes to the router.
    pub leave: Sender<Outgoing>,
    /// Receives the state of the site when its thread ends; `None` before.
    pub ended: Arc<Mutex<Option<Core>>>,
}

impl Program for SeparateSite {
    fn subscribe(&self, request: Request) {
        // If the router is gone, this epoch is over.
        _ = self.leave.send(Outgoing::Subscribe(request));
    }

    fn take_over(&self, core: Core) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(core);
    }

    fn fetches_for(&self, _: Site, _: bool, _: &Design, _: Site) -> bool {
        false
    }
}
