//! The sites' work since the last round, and what is learned from it.
//!
//! Each site has its span of time: a site apart reports a few times a second, and not when the planner looks. What it
//! reports is divided by the span that it is of, so that no round sees too much or too little.

use std::collections::BTreeMap;

use imago_plan::design::cost::CostModel;
use imago_plan::design::layout::{self, Layout};

use super::planner::Planner;
use crate::key::Key;
use crate::record::Site;

impl Planner<'_> {
    /// The share that each site used since the last time of what it has; learns what its rows took.
    pub(super) fn cpu_of_sites(&mut self, layout: &Layout<Key>) -> BTreeMap<layout::Site, f64> {
        self.spans.clear();
        for site in layout.sites() {
            let (span, (cpu, rows)) =
                (self.of.sampler.span(Site(site)), self.of.sampler.work(Site(site)));
            let last = self.work.insert(Site(site), (span, cpu, rows));
            let Some((span_before, cpu_before, rows_before)) = last else { continue };
            let passed = span.saturating_sub(span_before);
            if passed.is_zero() {
                // A site apart that has not reported since.
                continue;
            }
            self.spans.insert(site, passed);
            let passed_s = passed.as_secs_f64().max(1e-3);
            let used = cpu.saturating_sub(cpu_before).as_secs_f64();
            let share = used / self.of.sampler.share_of(Site(site)) / passed_s;
            let mut load = [0.0; 3];
            for (n, rate_s) in load.iter_mut().enumerate() {
                *rate_s = rows[n].saturating_sub(rows_before[n]) as f64 / passed_s;
            }
            self.cost.cpu.observe(load, share);
            self.shares.insert(site, share);
        }
        self.shares.retain(|site, _| layout.sites().any(|one| one == *site));
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
