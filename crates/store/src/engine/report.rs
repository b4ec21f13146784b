//! Reports of a running store.

use std::sync::{Arc, PoisonError};

use tokio::sync::oneshot;

use super::remote::traffic::{LogTraffic, Traffic};
use super::site::mailbox::SiteEvent;
use super::{Checkpoints, LogOptions, Map, Store};
use crate::log::CutTail;
use crate::output_buffer::OutputBuffers;
use crate::record::Site;
use crate::sampler::Sampler;
use crate::site::Usage;
use crate::sync::atomic::Ordering;

impl Store {
    /// Has the sites' threads sample transactions from now on. What began earlier stays.
    pub fn sample(&self, sampler: Arc<Sampler>) {
        _ = self.shared.sampler.set(sampler);
    }

    /// The design, as the router knows it now.
    #[must_use]
    pub fn map(&self) -> Arc<Map> {
        self.shared.map.load_full()
    }

    /// Returns the number of its sites.
    #[must_use]
    pub fn sites(&self) -> usize {
        self.shared.sites
    }

    /// Transactions so far for which the design had to be changed before any site could run them.
    #[must_use]
    pub fn brought_together(&self) -> u64 {
        self.shared.brought.load(Ordering::Relaxed)
    }

    /// Why nothing can be written now, if so.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.shared.trouble()
    }

    /// Returns the state of checkpoints; none if none are made.
    #[must_use]
    pub fn checkpoints(&self) -> Option<Checkpoints> {
        let state = self.shared.checkpoints.lock().unwrap_or_else(PoisonError::into_inner);
        let log = self.shared.log.as_ref();
        log.is_some_and(LogOptions::has_checkpoints).then(|| state.clone())
    }

    /// Why it can do nothing any more, if so.
    #[must_use]
    pub fn end(&self) -> Option<String> {
        self.shared.end.get().cloned().or_else(|| self.shared.sequencer.has_ended())
    }

    /// The usage of each site; nothing of one that has stopped.
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

    /// Returns the log traffic to a site; none of a site in this process.
    #[must_use]
    pub fn log_traffic(&self, site: Site) -> Option<LogTraffic> {
        self.shared.traffic.get(usize::from(site.0)).map(Traffic::load)
    }

    /// The damaged end of its log that was cut off when it began, if there was one.
    #[must_use]
    pub fn cut_tail(&self) -> Option<&CutTail> {
        self.cut.as_ref()
    }

    /// The replies that clients of the first listener have not received yet; none before it listens.
    #[must_use]
    pub fn output(&self) -> Option<&OutputBuffers> {
        self.output.get().map(Arc::as_ref)
    }
}
