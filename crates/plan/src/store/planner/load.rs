//! The load of the sites since the last round of the planner, and the load function that is learned from it.
//!
//! Each site has its own span of time: a site in a separate process reports a few times a second, and not when a round
//! begins. Its work is divided by the span that its reports cover, so that rates are right in any round.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::store::cost::{CostModel, SiteRates};
use crate::store::layout::Site;
use crate::store::site_set::SiteSet;

/// The total work of a site since the site started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SiteWork {
    /// Elapsed time that the work covers.
    pub span: Duration,
    /// CPU time that the site's thread has used.
    pub cpu: Duration,
    /// Total numbers of rows read, of rows written, of rows applied for other masters, and of transactions run.
    pub counts: [u64; 4],
    /// Share of a core (0..1) that the site has.
    pub core_share: f64,
}

impl SiteWork {
    /// Returns the site's load since the earlier report `before`, as a share of the CPU that the site has, and its work.
    fn since(&self, before: &Self) -> (f64, SiteRates) {
        let passed_s = self.span.saturating_sub(before.span).as_secs_f64().max(1e-3);
        let used_s = self.cpu.saturating_sub(before.cpu).as_secs_f64();
        let mut rates_s = SiteRates::default();
        for (n, rate_s) in rates_s.iter_mut().enumerate() {
            *rate_s = self.counts[n].saturating_sub(before.counts[n]) as f64 / passed_s;
        }
        (used_s / self.core_share / passed_s, rates_s)
    }
}

/// The load of each site, from the total work that the sites report.
#[derive(Clone, Debug)]
pub(super) struct SiteLoads {
    /// Least time that the work of a site must cover before the model learns from it.
    span_min: Duration,
    /// Total work of each site as of the last round.
    work: BTreeMap<Site, SiteWork>,
    /// Total work of each site as of when the model last learned from it.
    learned: BTreeMap<Site, SiteWork>,
    /// Elapsed time that the last round's samples of each site cover.
    spans: BTreeMap<Site, Duration>,
    /// Load of each site over the time that its last report covers, as a share of the CPU that the site has.
    pub shares: BTreeMap<Site, f64>,
}

impl SiteLoads {
    pub fn new(span_min: Duration) -> Self {
        let (work, learned) = (BTreeMap::new(), BTreeMap::new());
        Self { span_min, work, learned, spans: BTreeMap::new(), shares: BTreeMap::new() }
    }

    /// Records the total work of those sites that are in `sites`, and lets the model learn the CPU cost of rows and
    /// transactions from it.
    pub fn record(
        &mut self,
        sites: SiteSet,
        work: &BTreeMap<Site, SiteWork>,
        cost: &mut CostModel,
    ) {
        self.spans.clear();
        for (site, work) in work.iter().filter(|(site, _)| sites.contains(**site)) {
            let Some(last) = self.work.insert(*site, *work) else { continue };
            if work.span == last.span {
                // A site in a separate process has not reported since.
                continue;
            }
            self.spans.insert(*site, work.span.saturating_sub(last.span));
            self.shares.insert(*site, work.since(&last).0);
            let learned = self.learned.entry(*site).or_insert(last);
            if work.span < learned.span {
                // The site's counters began anew.
                *learned = *work;
            } else if work.span - learned.span >= self.span_min {
                let (share, rates_s) = work.since(learned);
                *learned = *work;
                cost.cpu.observe(rates_s, share);
            }
        }
        self.shares.retain(|site, _| sites.contains(*site));
    }

    /// Returns the elapsed time that the last round's samples of a site cover; `None` if the site did not report in
    /// that round.
    pub fn span(&self, site: Site) -> Option<Duration> {
        self.spans.get(&site).copied()
    }

    /// Returns the load of a site over the time that its last report covers, as a share of the CPU that the site has;
    /// 0 if it has not reported.
    pub fn share(&self, site: Site) -> f64 {
        self.shares.get(&site).copied().unwrap_or(0.0)
    }
}
