//! Draining sites: a site that is not in use gives its partitions to other sites, and stays empty until it is taken
//! into use again.
//!
//! The site is marked as not in use first: from then on the router, commands and adaptation give it nothing. Copies
//! that were on their way to it still arrive, and are given away again: the site is checked for as long as it is not in
//! use.
//!
//! Invariants:
//! - A drain that cannot succeed in the present state changes nothing.
//! - A drain ends: after [`STUCK_AFTER`] without progress it reports why, and is not retried until it is requested
//!   again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use imago_plan::store::drain::{NowhereToGo, drain};
use imago_plan::store::layout::{Layout, Operator};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::Adaptation;
use super::report::named;
use crate::engine::Store;
use crate::engine::unused::is_live;
use crate::key::Key;
use crate::record::Site;

#[cfg(test)]
mod tests;

/// Time without progress after which a drain ends.
const STUCK_AFTER: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });
/// Interval at which the sites that are not in use are checked for copies.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// Delay before a drain continues after a change of the design has failed.
const AGAIN_WAIT: Duration = Duration::from_millis(50);
/// Maximum number of partitions that an error message about a drain names.
const NAMED_MAX: usize = 8;

/// State of the drain of a site that is not in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrainState {
    /// The site still has copies of partitions, and gives them away.
    Draining,
    /// The site holds no copy of any partition.
    Drained,
    /// The drain made no progress for a minute, and is not retried until it is requested again.
    Stuck,
}

/// Progress of the drain of a site that is not in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainReport {
    /// Number of the site that is drained.
    pub site: u16,
    /// Present state of the drain.
    pub state: DrainState,
    /// Number of partitions of which the site has a copy, as the master or as a replica.
    pub copies: u64,
    /// Number of design changes that were made to empty the site since the drain was requested.
    pub changes: u64,
    /// Text of the last failed change; `None` if there was none, once the site has given up a copy after it, or once
    /// the site is drained.
    pub failure: Option<String>,
    /// True if a file persists which sites are not in use, so that the site stays out of use after a restart of the
    /// store.
    pub is_kept: bool,
}

/// The reason why a site cannot be taken out of use (drained) or into use (added), as text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DrainFault(pub String);

/// A drain that has begun, and its latest progress.
struct Progress {
    report: DrainReport,
    /// Smallest number of copies that the site has had since the drain began; `u64::MAX` before the first count.
    fewest: u64,
    /// Time of the drain's last progress: when `fewest` last fell.
    since: Instant,
}

/// The drains of all sites of one store. See the module's documentation.
pub struct Drains {
    store: Arc<Store>,
    adaptation: Option<Arc<Adaptation>>,
    /// Held while a site is taken out of use or into use, so that such changes do not overlap.
    deciding: tokio::sync::Mutex<()>,
    progress: Mutex<BTreeMap<Site, Progress>>,
    /// Wakes [`Drains::run`] before its next periodic check.
    begun: Notify,
}

impl Drains {
    /// Creates the drains of a store. They obey the memory limit of `adaptation`; `None` for a store that does not
    /// adapt.
    #[must_use]
    pub fn new(store: Arc<Store>, adaptation: Option<Arc<Adaptation>>) -> Self {
        Self {
            store,
            adaptation,
            deciding: tokio::sync::Mutex::new(()),
            progress: Mutex::default(),
            begun: Notify::new(),
        }
    }

    /// Returns a report on each site that is not in use.
    #[must_use]
    pub fn reports(&self) -> Vec<DrainReport> {
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.values().map(|one| one.report.clone()).collect()
    }

    /// Takes a site out of use, and begins to drain it. The site is empty once its report says
    /// [`DrainState::Drained`].
    ///
    /// # Errors
    /// If the site cannot be drained; nothing is changed then.
    pub async fn begin(&self, site: Site) -> Result<DrainReport, DrainFault> {
        let _deciding = self.deciding.lock().await;
        self.check_site(site)?;
        if self.store.is_used(site) {
            self.check(site, &self.store.layout().await)?;
            self.set_used(site, false)?;
            // A pin that was set meanwhile has priority: nothing was given away yet.
            if let Err(fault) = self.check(site, &self.store.layout().await) {
                self.set_used(site, true)?;
                return Err(fault);
            }
        }
        let report = self.start_over(site);
        self.begun.notify_one();
        Ok(report)
    }

    /// Takes a site into use again, and ends its drain.
    ///
    /// # Errors
    /// If there is no such site, it is not running, or the change cannot be persisted.
    pub async fn add(&self, site: Site) -> Result<(), DrainFault> {
        let _deciding = self.deciding.lock().await;
        self.check_site(site)?;
        if !is_live(&self.store.map().design, site) {
            return Err(DrainFault(format!(
                "{site} is not running: start it first, with `imago store site --number {}`",
                site.0
            )));
        }
        self.set_used(site, true)?;
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).remove(&site);
        Ok(())
    }

    /// Empties the sites that are not in use, and keeps them empty, for as long as it is polled.
    pub async fn run(&self) {
        loop {
            for site in self.store.unused() {
                self.supervise(site).await;
            }
            _ = timeout(CHECK_EVERY, self.begun.notified()).await;
        }
    }

    fn check_site(&self, site: Site) -> Result<(), DrainFault> {
        let sites = self.store.sites();
        let fault =
            || DrainFault(format!("there is no {site}: this store has {sites} sites, from 0 on"));
        if usize::from(site.0) < sites { Ok(()) } else { Err(fault()) }
    }

    fn set_used(&self, site: Site, is_used: bool) -> Result<(), DrainFault> {
        self.store.set_used(site, is_used).map_err(|error| {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
            DrainFault(format!("{error}{}", cause.unwrap_or_default()))
        })
    }

    fn memory_max(&self) -> Option<u64> {
        self.adaptation.as_ref().and_then(|adaptation| adaptation.options().parameters.memory_max)
    }

    /// Returns the live sites in use except `site`: those that may receive its copies.
    fn others(&self, site: Site) -> Vec<u16> {
        let used = self.store.live_and_used(&self.store.map());
        used.into_iter().filter(|other| *other != site).map(|other| other.0).collect()
    }

    /// Checks that a site could give away all its copies now; the error is the reason why it could not.
    fn check(&self, site: Site, layout: &Layout<Key>) -> Result<(), DrainFault> {
        let to = self.others(site);
        if to.is_empty() {
            return Err(self.alone(site));
        }
        if let Some(why) = self.store.needs_more_sites(to.len()) {
            return Err(DrainFault(format!("{site} is needed: {why}")));
        }
        let map = self.store.map();
        let alone =
            map.design.partitions().filter(|one| one.master == site && one.replicas.is_empty());
        if !is_live(&map.design, site) {
            let lost: Vec<Key> = alone.map(|one| one.range.start.clone()).collect();
            return match &lost[..] {
                [] => Ok(()),
                _ => Err(DrainFault(format!(
                    "{site} is not running, and no other site has a copy of the partitions that it \
                     masters: {}",
                    listed(&lost)
                ))),
            };
        }
        drain(layout, site.0, &to, self.memory_max())
            .map(|_| ())
            .map_err(|why| self.told(site, why))
    }

    fn alone(&self, site: Site) -> DrainFault {
        let (unused, map) = (self.store.unused(), self.store.map());
        let others = (0..self.store.sites() as u16).map(Site).filter(|other| *other != site);
        let (away, dead): (Vec<Site>, Vec<Site>) = others.partition(|other| unused.contains(other));
        let dead: Vec<Site> =
            dead.into_iter().filter(|other| !is_live(&map.design, *other)).collect();
        let several = |sites: &[Site]| {
            sites.iter().map(|one| one.0.to_string()).collect::<Vec<_>>().join(", ")
        };
        let mut why = format!("{site} cannot give its partitions away: no other site is in use");
        if !away.is_empty() {
            why += &format!("; not in use: {}", several(&away));
        }
        if !dead.is_empty() {
            why += &format!("; not running: {}", several(&dead));
        }
        DrainFault(why)
    }

    fn told(&self, site: Site, why: NowhereToGo<Key>) -> DrainFault {
        match why {
            NowhereToGo::NoSite => self.alone(site),
            NowhereToGo::Pinned(starts) => DrainFault(format!(
                "partitions are pinned to {site}: {}; unpin them, or pin them to another site, first",
                listed(&starts)
            )),
            NowhereToGo::NoRoom(start, bytes) => DrainFault(format!(
                "no other site in use has room for the partition from {} on, {:.1} MB, within memory-max {} MB: raise \
                 the limit (`imago store adapt --memory-max`), or split the partition",
                named(&start),
                bytes as f64 / 1e6,
                self.memory_max().unwrap_or_default() / 1_000_000
            )),
        }
    }

    fn start_over(&self, site: Site) -> DrainReport {
        let report = DrainReport {
            site: site.0,
            state: DrainState::Draining,
            copies: self.copies(site),
            changes: 0,
            failure: None,
            is_kept: self.store.keeps_unused(),
        };
        let progress = Progress { report: report.clone(), fewest: u64::MAX, since: Instant::now() };
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).insert(site, progress);
        report
    }

    fn copies(&self, site: Site) -> u64 {
        self.store.map().design.partitions().filter(|one| one.is_at(site)).count() as u64
    }

    /// Updates the number of copies in a site's drain, applies `change` to it, and returns the drain's state; `None`
    /// if the site has no drain.
    fn note(&self, site: Site, change: impl FnOnce(&mut Progress)) -> Option<DrainState> {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let one = progress.get_mut(&site)?;
        one.report.copies = self.copies(site);
        if one.report.copies < one.fewest {
            (one.fewest, one.since) = (one.report.copies, Instant::now());
        }
        change(one);
        Some(one.report.state)
    }

    async fn supervise(&self, site: Site) {
        if self.note(site, |_| ()).is_none() {
            let _deciding = self.deciding.lock().await;
            if self.store.is_used(site) {
                // The site was taken into use meanwhile.
                return;
            }
            self.start_over(site);
        }
        let copies = self.copies(site);
        let state = self.note(site, |one| {
            if copies > 0 && one.report.state == DrainState::Drained {
                // The copy arrived late, or a transaction needed it here.
                (one.report.state, one.fewest, one.since) =
                    (DrainState::Draining, copies, Instant::now());
            }
        });
        if state != Some(DrainState::Draining) {
            return;
        }
        if copies == 0 {
            if self.is_empty(site).await {
                self.note(site, |one| {
                    (one.report.state, one.report.failure) = (DrainState::Drained, None)
                });
            }
            return;
        }
        if let Err(failure) = self.evacuate(site).await {
            self.note(site, |one| {
                if one.since.elapsed() >= STUCK_AFTER {
                    one.report.state = DrainState::Stuck;
                    tracing::warn!(%site, %failure, copies, "a drain makes no progress, and ends");
                }
                one.report.failure = Some(failure);
            });
            sleep(AGAIN_WAIT).await;
        }
        // The next check follows at once: it continues the drain, or finds the site empty.
        self.begun.notify_one();
    }

    /// True if the site itself reports no copies. A dead site reports none.
    async fn is_empty(&self, site: Site) -> bool {
        let usage = self.store.usage().await;
        usage.iter().all(|(of, copies)| *of != site || copies.is_empty())
    }

    /// Executes a plan that empties a site, until an operator fails or the site is taken into use.
    async fn evacuate(&self, site: Site) -> Result<(), String> {
        let layout = self.store.layout().await;
        let to = self.others(site);
        let plan = drain(&layout, site.0, &to, self.memory_max());
        let plan = plan.map_err(|why| self.told(site, why).0)?;
        for operator in &plan.operators {
            if self.store.is_used(site) {
                return Ok(());
            }
            self.store.execute(operator).await.map_err(|abort| abort.to_string())?;
            let is_over = matches!(operator, Operator::RemoveReplica(..));
            self.note(site, |one| {
                one.report.changes += 1;
                if is_over {
                    one.report.failure = None;
                }
            });
        }
        Ok(())
    }
}

/// Returns the starts of the first [`NAMED_MAX`] partitions, and the number of further ones, as text for a message.
fn listed(starts: &[Key]) -> String {
    let shown: Vec<String> = starts.iter().take(NAMED_MAX).map(named).collect();
    match starts.len().saturating_sub(NAMED_MAX) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
