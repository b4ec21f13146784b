//! Reports of the state of a running store.

use std::sync::{Arc, PoisonError};

use tokio::sync::oneshot;

use super::presence::{Presence, Transfer};
use super::remote::traffic::{LogTraffic, Traffic};
use super::site::mailbox::SiteEvent;
use super::{Checkpoints, LogOptions, Map, Store};
use crate::log::CutTail;
use crate::output_buffer::OutputBuffers;
use crate::record::Site;
use crate::sampler::Sampler;
use crate::site::Usage;
use crate::sync::atomic::Ordering;
use crate::transaction::Absence;

impl Store {
    /// Makes the sites' threads sample transactions into `sampler` from now on. A sampler that was set before stays
    /// in use.
    pub fn sample(&self, sampler: Arc<Sampler>) {
        _ = self.shared.sampler.set(sampler);
    }

    /// Returns the router's map: the design as this process knows it now.
    #[must_use]
    pub fn map(&self) -> Arc<Map> {
        self.shared.map.load_full()
    }

    /// Returns the number of sites of the store, whether in use or not.
    #[must_use]
    pub fn sites(&self) -> usize {
        self.shared.sites
    }

    /// Returns the number of transactions since the start for which the design had to be changed before any site
    /// could run them.
    #[must_use]
    pub fn brought_together(&self) -> u64 {
        self.shared.brought.load(Ordering::Relaxed)
    }

    /// Returns the number of transactions since the start that were sent to a site to be executed by two-phase commit.
    #[must_use]
    pub fn distributed(&self) -> u64 {
        self.shared.distributed.load(Ordering::Relaxed)
    }

    /// Returns why the store accepts no writes now, or `None` if it does.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.shared.trouble()
    }

    /// Returns the state of the store's checkpoints, or `None` if none are made.
    #[must_use]
    pub fn checkpoints(&self) -> Option<Checkpoints> {
        let state = self.shared.checkpoints.lock().unwrap_or_else(PoisonError::into_inner);
        let log = self.shared.log.as_ref();
        log.is_some_and(LogOptions::has_checkpoints).then(|| state.clone())
    }

    /// Returns why the store has ended and accepts no more writes, or `None` while it runs.
    #[must_use]
    pub fn end(&self) -> Option<String> {
        self.shared.end.get().cloned().or_else(|| self.shared.sequencer.has_ended())
    }

    /// Returns the sizes and access counts of each site's copies. A site that has stopped is left out; one that does
    /// not reply has no copies.
    pub async fn usage(&self) -> Vec<(Site, Vec<Usage>)> {
        let mut all = Vec::new();
        for (site, sender) in (0..).map(Site).zip(self.shared.site_senders()) {
            let (answer, counted) = oneshot::channel();
            let tell = move |usage| _ = answer.send(usage);
            if sender.send(SiteEvent::Count(Box::new(tell))) {
                all.push((site, counted.await.unwrap_or_default()));
            }
        }
        all
    }

    /// Returns the size of the log messages to a site, or `None` for a site in this process.
    #[must_use]
    pub fn log_traffic(&self, site: Site) -> Option<LogTraffic> {
        self.shared.traffic.get(usize::from(site.0)).map(Traffic::load)
    }

    /// Returns why the partitions that a site masters cannot be used, or `None` if they can.
    pub(crate) fn absence(&self, map: &Map, site: Site) -> Option<Absence> {
        self.shared.absence(&map.design, site)
    }

    /// Returns the last transfer of rows to a site's process, or `None` for a site in this process, or before the
    /// first transfer.
    #[must_use]
    pub fn transfer(&self, site: Site) -> Option<Transfer> {
        self.shared.presence.get(usize::from(site.0)).and_then(Presence::transfer)
    }

    /// Returns the damaged end of the log that was cut off when the store started, or `None` if nothing was cut off.
    #[must_use]
    pub fn cut_tail(&self) -> Option<&CutTail> {
        self.cut.as_ref()
    }

    /// Returns the output buffers of the first listener's clients, or `None` before the store listens.
    #[must_use]
    pub fn output(&self) -> Option<&OutputBuffers> {
        self.output.get().map(Arc::as_ref)
    }
}
