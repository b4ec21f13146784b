//! The sites' work since the last round, and what is learned from it.
//!
//! Each site has its span of time: a site apart reports a few times a second, and not when the planner looks. What it
//! reports is divided by the span that it is of, so that no round sees too much or too little.

use std::collections::BTreeMap;
use std::time::Duration;

use imago_plan::design::cost::CostModel;
use imago_plan::design::layout::{self, Layout};

use super::planner::Planner;
use crate::key::Key;
use crate::record::Site;

/// The model learns from spans of this length at least.
const SPAN_MIN: Duration = Duration::from_secs(1);

/// A site's work since it began.
#[derive(Clone, Copy)]
pub(super) struct Work {
    /// The span of time that it is of.
    span: Duration,
    /// The processor time of its thread.
    cpu: Duration,
    /// Rows read, written, and applied for others.
    rows: [u64; 3],
}

impl Work {
    /// The share that was used of what the site has, which is this share of a core, since an earlier time; and the rows
    /// a second.
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
    /// The share that each site used since the last time of what it has; learns what its rows took.
    pub(super) fn cpu_of_sites(&mut self, layout: &Layout<Key>) -> BTreeMap<layout::Site, f64> {
        self.spans.clear();
        for site in layout.sites().iter() {
            let (span, (cpu, rows)) =
                (self.of.sampler.span(Site(site)), self.of.sampler.work(Site(site)));
            let (work, share_of) = (Work { span, cpu, rows }, self.of.sampler.share_of(Site(site)));
            let Some(last) = self.work.insert(Site(site), work) else { continue };
            if span == last.span {
                // A site apart that has not reported since.
                continue;
            }
            self.spans.insert(site, span.saturating_sub(last.span));
            self.shares.insert(site, work.since(&last, share_of).0);
            let learned = self.learned_work.entry(Site(site)).or_insert(last);
            if span < learned.span {
                // It began anew.
                *learned = work;
            } else if span - learned.span >= SPAN_MIN {
                let (share, load) = work.since(learned, share_of);
                *learned = work;
                self.cost.cpu.observe(load, share);
            }
        }
        self.shares.retain(|site, _| layout.sites().contains(*site));
        self.shares.clone()
    }

    /// Learns anew if the sites have another share of a core than those that the functions were learned of.
    pub(super) fn check_share(&mut self) {
        let Some(share) = self.of.sampler.share() else { return };
        if self.learned_share.is_some_and(|before| before != share) {
            tracing::info!(share, "the cost functions are learned anew: sites have another share");
            self.cost = CostModel::default();
        }
        self.learned_share = Some(share);
    }
}
