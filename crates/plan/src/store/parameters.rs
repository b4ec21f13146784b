//! The parameters of decisions about the store's design, and the limits that they set.

use super::calibration::RealizedShares;
use super::layout::{Key, Layout, Operator};
use super::plans::Thresholds;

/// The parameters of decisions about the store's design.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// λ: the weight of an expected µs saved by a plan, relative to a µs that the plan's operators take.
    pub lambda: f64,
    /// Time for which a plan is credited with its savings, in seconds.
    pub horizon_s: f64,
    /// Least saving of a plan with up to four sites, as a share (0..1) of a transaction's cost: see
    /// [`Self::least_gain`].
    pub gain_min: f64,
    /// Additional least saving because of uncertainty, as a share (0..1) of a transaction's cost. It applies to plans
    /// that change the load of sites: a split alone moves no load, and later plans need it.
    pub gain_uncertainty: f64,
    /// Number of draws of sampled transactions for which one decision makes plans.
    pub triggers: usize,
    /// Limit on the number of plans that one decision chooses.
    pub plans_max: usize,
    /// Limit on the bytes of keys and values that a site may hold, replicas included; `None`: no limit.
    pub memory_max: Option<u64>,
    /// Factor (at least 1) on the predicted cost of operators, which grows with the error of these predictions.
    pub cost_factor: f64,
    /// For each kind of plan, the share (0..1) of its predicted saving that counts.
    pub realized: RealizedShares,
    /// Thresholds and limits for making plans.
    pub thresholds: Thresholds,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            lambda: 1.0,
            horizon_s: 10.0,
            gain_min: 0.01,
            gain_uncertainty: 0.0,
            triggers: 12,
            plans_max: 4,
            memory_max: None,
            cost_factor: 1.0,
            realized: RealizedShares::default(),
            thresholds: Thresholds::default(),
        }
    }
}

/// Number of sites up to which the least gain is the same.
const FEW_SITES: usize = 4;

impl Parameters {
    /// Returns the share of a transaction's cost that a plan has to save. A plan concerns few sites. So with more
    /// sites it saves less of the cost of all transactions, though as much for those at its own sites.
    #[must_use]
    pub fn least_gain(&self, sites: usize, is_uncertain: bool) -> f64 {
        let gain = self.gain_min + if is_uncertain { self.gain_uncertainty } else { 0.0 };
        gain * FEW_SITES as f64 / sites.max(FEW_SITES) as f64
    }

    /// True if the operators exceed no limit of memory, replicas or partitions on the design `layout`; a limit that
    /// the design exceeds already may not be exceeded further.
    #[must_use]
    pub fn permits<K: Key>(&self, operators: &[Operator<K>], layout: &Layout<K>) -> bool {
        let mut after = layout.clone();
        if !operators.iter().all(|operator| after.apply(operator).is_ok()) {
            // The execution of the operators reports why one is impossible.
            return true;
        }
        let grows = |before: usize, after: usize, most: usize| after > most && after > before;
        let is_full = self.memory_max.is_some_and(|most| {
            let bytes = |site| (layout.bytes_at(site) as usize, after.bytes_at(site) as usize);
            let mut sites = layout.sites().iter().map(bytes);
            sites.any(|(before, after)| {
                grows(before, after, usize::try_from(most).unwrap_or(usize::MAX))
            })
        });
        let has_surplus = after.partitions().any(|(start, one)| {
            let before = layout.of(start).1.replicas.len();
            grows(before, one.replicas.len(), self.thresholds.replicas_max)
        });
        let partitions_max = self.thresholds.partitions_max;
        !is_full && !has_surplus && !grows(layout.len(), after.len(), partitions_max)
    }
}
