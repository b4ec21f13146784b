//! Popular users that alternate between two places, for several periods. A store that adapts, starting from one
//! partition, is compared with the same store without adaptation, and with the better of two static designs that are
//! made by hand from the distribution of accesses in both places.
//!
//! The throughput of a store may decrease while it runs, because its log grows and is compacted. Therefore the better
//! static design runs once more after the adapting store, for the same time, and the same part of both runs is
//! compared.

use serde::Serialize;

use super::designs::{Part, balanced_in_turn};
use super::loads::{Bench, EXPONENT, WARM_S};
use super::quality::Quality;
use super::scene::{LoadSpec, Outcome};
use super::workload::{Popularity, Workload};
use crate::error::Result;

/// Minimum number of visits of each place in the short runs, which measure static designs.
const VISITS: u64 = 1;
/// Minimum number of visits of each place in the long runs, which compare the adapting store with the better static
/// design.
const ADAPTING_VISITS: u64 = 2;

/// Results for one period.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Period {
    /// Time for which the popular users stay in a place, in seconds.
    pub period_s: u64,
    /// Throughput of the store without adaptation, in transactions per second.
    pub off_s: f64,
    /// Throughput of the better hand-made static design, without the first quarter of its run, in transactions per
    /// second.
    pub by_hand_s: f64,
    /// Throughput of the adapting store over its run, without the first 2 s, in transactions per second.
    pub on_s: f64,
    /// Throughput of the adapting store without the first quarter of its run, in which it learns, in transactions per
    /// second.
    pub on_late_s: f64,
    /// Ratio of `on_s` to `off_s`.
    pub on_of_off: f64,
    /// Ratio of `on_late_s` to `by_hand_s`.
    pub on_of_by_hand: f64,
    /// CPU time that each site used under the hand-made design, as a fraction of its limit.
    pub by_hand_site_shares: Vec<f64>,
    /// CPU time that each site used while the store adapted, as a fraction of its limit.
    pub on_site_shares: Vec<f64>,
    /// Number of workloads that the planner remembered at the end.
    pub regimes: usize,
    /// Fraction of a core that the planner used.
    pub planner_cpu: f64,
    /// Outcomes of the decisions, and accuracy of the predictions.
    #[serde(flatten)]
    pub quality: Quality,
}

/// Measures all periods.
pub(super) fn run(bench: &mut Bench<'_>) -> Result<Vec<Period>> {
    let periods_s = bench.size.periods_s.clone();
    periods_s.into_iter().map(|period_s| one(bench, period_s)).collect()
}

fn one(bench: &mut Bench<'_>, period_s: u64) -> Result<Period> {
    let popularity = Popularity::Zipf(EXPONENT);
    let workload = Workload {
        shift_every_s: Some(period_s as f64),
        places: Some(2),
        ..bench.workload(0.5, popularity)
    };
    // Whole cycles: both places are visited equally often.
    let cycles =
        |least_s: u64, visits: u64| (least_s.div_ceil(2 * period_s)).max(visits) * 2 * period_s;
    let (short_s, long_s) =
        (cycles(bench.size.compared_s, VISITS), cycles(bench.size.learns_s, ADAPTING_VISITS));
    let sites = bench.size.sites;
    let one = vec![Part { from: 0, master: 0, replicas: Vec::new() }];
    let setting = |bench: &Bench<'_>, lasts_s, adapts, design: Vec<Part>| LoadSpec {
        design,
        ..bench.setting(workload, lasts_s, adapts)
    };
    let of = |name: &str| format!("two places in turn every {period_s} s, {name}");
    let steady = |outcome: &Outcome| outcome.mean_s(WARM_S, usize::MAX);
    let late = |outcome: &Outcome| outcome.mean_s(long_s as usize / 4, usize::MAX);
    let alone = setting(bench, short_s, false, one.clone());
    let off_s = steady(&bench.load(&of("one partition, left alone"), &alone)?);
    let mut best = (0.0, Vec::new());
    for is_replicated in [false, true] {
        let design = balanced_in_turn(&workload, 2, sites, is_replicated);
        let by_hand = setting(bench, short_s, false, design.clone());
        let rate_s = steady(&bench.load(&of("by hand"), &by_hand)?);
        if rate_s > best.0 {
            best = (rate_s, design);
        }
    }
    let adapting = setting(bench, long_s, true, one);
    let outcome = bench.load(&of("one partition that adapts"), &adapting)?;
    let by_hand = setting(bench, long_s, false, best.1);
    let by_hand = bench.load(&of("by hand"), &by_hand)?;
    let (on_s, on_late_s, by_hand_s) = (steady(&outcome), late(&outcome), late(&by_hand));
    let report = outcome.report.unwrap_or_default();
    for decision in &report.decisions {
        tracing::info!(period_s, ?decision, "a decision");
    }
    Ok(Period {
        period_s,
        off_s,
        by_hand_s,
        on_s,
        on_late_s,
        on_of_off: on_s / off_s.max(1.0),
        on_of_by_hand: on_late_s / by_hand_s.max(1.0),
        by_hand_site_shares: by_hand.site_shares,
        on_site_shares: outcome.site_shares,
        regimes: report.regimes,
        planner_cpu: report.planner_cpu,
        quality: Quality::of(&report),
    })
}
