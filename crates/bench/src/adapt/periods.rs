//! Popular users that are in two places in turn, by period: a store that adapts from one partition, beside the same store
//! left alone, and beside the better of two static designs that are made by hand from the law of both places.
//!
//! A store may serve less the longer it runs, as its log grows and is compacted: the better design by hand runs for the
//! same time again, behind the adapting one, and the same part of that time is compared.

use serde::Serialize;

use super::designs::{Part, balanced_in_turn};
use super::quality::Quality;
use super::report::{Bench, WARM_S};
use super::scene::{LoadSpec, Outcome};
use super::workload::{Popularity, Workload};
use crate::error::Result;

/// Visits of each place that a static design is measured for, and a store that adapts.
const VISITS: u64 = 1;
const ADAPTING_VISITS: u64 = 2;

/// The results for one period.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Period {
    /// How long the popular users stay in a place, in seconds.
    pub period_s: u64,
    /// Transactions a second of the store that is left alone.
    pub off_s: f64,
    /// Of the better static design that is made by hand, without the first quarter of its time.
    pub by_hand_s: f64,
    /// Of the store that adapts, over all of its time.
    pub on_s: f64,
    /// The same without its first quarter, in which it learns.
    pub on_late_s: f64,
    /// `on_s` of `off_s`.
    pub on_of_off: f64,
    /// `on_late_s` of `by_hand_s`.
    pub on_of_by_hand: f64,
    /// The share of its processor time that each site used, by hand and adapting.
    pub by_hand_site_shares: Vec<f64>,
    /// See [`Period::by_hand_site_shares`].
    pub on_site_shares: Vec<f64>,
    /// Workloads that it remembered at the end.
    pub regimes: usize,
    /// The share of a core that the planner used.
    pub planner_cpu: f64,
    /// What came of its decisions, and how good its predictions were.
    #[serde(flatten)]
    pub quality: Quality,
}

/// Measures each of the periods.
pub(super) fn run(bench: &mut Bench<'_>) -> Result<Vec<Period>> {
    let periods_s = bench.size.periods_s.clone();
    periods_s.into_iter().map(|period_s| one(bench, period_s)).collect()
}

fn one(bench: &mut Bench<'_>, period_s: u64) -> Result<Period> {
    let popularity = Popularity::Zipf(super::report::EXPONENT);
    let workload = Workload {
        shift_every_s: Some(period_s as f64),
        places: Some(2),
        ..bench.workload(0.5, popularity)
    };
    // Whole visits of both places.
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
