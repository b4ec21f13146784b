//! The work of the sites since the last round, and the load function that is learned from it.
//!
//! Each site has its own span of time: a site in a separate process reports a few times a second, and not when the
//! planner's round begins. Its work is divided by the span that its reports cover, so that rates are right in any
//! round.

use std::collections::BTreeMap;
use std::time::Duration;

use imago_plan::design::cost::CostModel;
use imago_plan::design::layout::{self, Layout};

use super::planner::Planner;
use crate::key::Key;
use crate::record::Site;

/// Shortest span of time that the model learns from.
const SPAN_MIN: Duration = Duration::from_secs(1);

/// A site's total work since it started.
#[derive(Clone, Copy)]
pub(super) struct Work {
    /// Elapsed time that the work covers.
    span: Duration,
    /// CPU time of the site's thread.
    cpu: Duration,
    /// Rows read, rows written, and rows applied for other masters.
    rows: [u64; 3],
}

impl Work {
    /// Returns the load since an earlier time, as a share of the CPU that the site has, and the rates of rows, per
    /// second. `share_of` is the share of a core that the site has.
    fn since(&self, before: &Self, share_of: f64) -> (f64, [f64; 3]) {
        let passed_s = self.span.saturating_sub(before.span).as_secs_f64().max(1e-3);
        let used_s = self.cpu.saturating_sub(before.cpu).as_secs_f64();
        let mut load = [0.0; 3];
        for (n, rate_s) in load.iter_mut().enumerate() {
            *rate_s = self.rows[n].saturating_sub(before.rows[n]) as f64 / passed_s;
        }
        (used_s / share_of / passed_s, load)
    }
}

impl Planner<'_> {
    /// Returns the load of each site in its last span, as a share of the CPU that it has, and learns the CPU cost of
    /// rows.
    pub(super) fn cpu_of_sites(&mut self, layout: &Layout<Key>) -> BTreeMap<layout::Site, f64> {
        self.spans.clear();
        for site in layout.sites().iter() {
            let (span, (cpu, rows)) =
                (self.of.sampler.span(Site(site)), self.of.sampler.work(Site(site)));
            let (work, share_of) = (Work { span, cpu, rows }, self.of.sampler.share_of(Site(site)));
            let Some(last) = self.work.insert(Site(site), work) else { continue };
            if span == last.span {
                // A site in a separate process has not reported since.
                continue;
            }
            self.spans.insert(site, span.saturating_sub(last.span));
            self.shares.insert(site, work.since(&last, share_of).0);
            let learned = self.learned_work.entry(Site(site)).or_insert(last);
            if span < learned.span {
                // The site's counters began anew.
                *learned = work;
            } else if span - learned.span >= SPAN_MIN {
                let (share, load) = work.since(learned, share_of);
                *learned = work;
                self.controller.cost.cpu.observe(load, share);
            }
        }
        self.shares.retain(|site, _| layout.sites().contains(*site));
        self.shares.clone()
    }

    /// Discards the cost functions if the sites have another share of a core than when the functions were learned.
    pub(super) fn check_share(&mut self) {
        let Some(share) = self.of.sampler.share() else { return };
        if self.learned_share.is_some_and(|before| before != share) {
            tracing::info!(share, "the cost functions are learned anew: sites have another share");
            self.controller.cost = CostModel::default();
        }
        self.learned_share = Some(share);
    }
}
