//! The three programs whose threads run an executor, and what each does beside it when the design changes.

use std::sync::mpsc::Sender;

use super::epoch;
use super::mailbox::Outgoing;
use crate::design::Design;
use crate::engine::Shared;
use crate::record::{Position, Site};
use crate::subscription::Request;

/// The program that an executor's thread belongs to.
pub(in crate::engine) trait Program: Send {
    /// Called when log entries up to `known` were applied and the map was published; with the design if they
    /// changed it.
    fn follow(&self, _shared: &Shared, _known: Position, _changed: Option<&Design>) {}

    /// Hands a request of the site to its subscription.
    fn subscribe(&self, _request: Request) {
        unreachable!("it receives the whole log");
    }

    /// True if the thread of the site `own`, which may not be live, brings partitions home that are pinned to
    /// `site` and mastered elsewhere.
    fn fetches_for(&self, own: Site, is_live: bool, design: &Design, site: Site) -> bool;
}

/// A site of a store whose sites are all in this process. Each fetches its own partitions.
pub(in crate::engine) struct LocalSite;

impl Program for LocalSite {
    fn fetches_for(&self, own: Site, is_live: bool, _: &Design, site: Site) -> bool {
        site == own && is_live
    }
}

/// A thread of the router that serves clients. The first one fetches partitions for all sites.
pub(in crate::engine) struct ClientThread {
    pub is_first: bool,
}

impl Program for ClientThread {
    /// Ends the router if another process has taken its log over, and says how much of the log the map has.
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

/// A site in a process of its own. Its router fetches for it.
pub(in crate::engine) struct SeparateSite {
    /// To the router.
    pub leave: Sender<Outgoing>,
}

impl Program for SeparateSite {
    fn subscribe(&self, request: Request) {
        // Without a router this epoch is over.
        _ = self.leave.send(Outgoing::Subscribe(request));
    }

    fn fetches_for(&self, _: Site, _: bool, _: &Design, _: Site) -> bool {
        false
    }
}
