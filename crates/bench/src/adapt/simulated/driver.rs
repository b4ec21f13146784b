//! The planner of a simulated store: that of the real store, in virtual time.

use std::collections::BTreeMap;
use std::time::Duration;

use imago_plan::store::guardrails::Limits;
use imago_plan::store::layout::{Layout, Operator, Site};
use imago_plan::store::parameters::Parameters;
use imago_plan::store::planner::{
    Observed, Outcome, Planner, Round, Settings, SiteWork, WaitCause,
};
use imago_plan::store::strategy::MorphoSys;

use super::site_queue::Transaction;
use crate::adapt::workload::{Kind, ROWS};

/// The planner, and the transactions that were sampled since its last decision.
pub(super) struct Driver {
    planner: Planner<u64>,
    strategy: MorphoSys<u64>,
    skipped: u32,
    observed: Vec<Observed<u64>>,
}

impl Driver {
    pub fn new(seed: u64) -> Self {
        let limits = (Parameters::default(), Limits::default());
        Self {
            planner: Planner::new(Settings::default(), limits, seed, 0),
            strategy: MorphoSys::default(),
            skipped: 0,
            observed: Vec::new(),
        }
    }

    /// Records a transaction that ends now, if it is the next one to be sampled.
    pub fn record(&mut self, now_us: u64, site: Site, of: &Transaction) {
        self.skipped += 1;
        let every = self.planner.sample_every();
        if self.skipped < every {
            return;
        }
        self.skipped = 0;
        let handled_us = of.first_handled_us.unwrap_or(of.began_us);
        let waited_us = of.began_us - handled_us;
        // The reply of a scan may also wait for the log. As in the store, this wait is not reported.
        let commit_us = (now_us as f64 - of.began_us - of.demand_us).max(0.0);
        let (reads, writes, rows, cause, commit_us) = match of.kind {
            Kind::Count(user) => {
                let cause = WaitCause::Partition;
                (Vec::new(), vec![user], (ROWS, ROWS), cause, Some(commit_us))
            }
            Kind::Scan(user, users) => {
                let reads = vec![(user, Some(user + users))];
                (reads, Vec::new(), (users * ROWS, 0), WaitCause::Updates, None)
            }
        };
        self.observed.push(Observed {
            at_ms: of.arrived_us as u64 / 1_000,
            every,
            site,
            reads,
            writes,
            rows: Some((rows.0 as u32, rows.1 as u32)),
            lag_entries: of.lag_entries,
            waited: (waited_us > 0.0).then_some((cause, waited_us)),
            service_us: handled_us - of.arrived_us,
            run_us: of.demand_us,
            commit_us,
        });
    }

    /// Makes one decision, unless plans of the last one are in progress. `work` has the CPU time of each site so far,
    /// in µs, and its numbers of rows read, written, and applied for other masters and of transactions.
    pub fn decide(&mut self, now_us: u64, layout: &Layout<u64>, work: &[(f64, [u64; 4])]) {
        if self.planner.is_busy() {
            return;
        }
        let (now_ms, span) = (now_us / 1_000, Duration::from_micros(now_us));
        let of = |(site, (worked_us, counts)): (usize, &(f64, [u64; 4]))| {
            let cpu = Duration::from_secs_f64(worked_us / 1e6);
            (site as Site, SiteWork { span, cpu, counts: *counts, core_share: 1.0 })
        };
        let work: BTreeMap<Site, SiteWork> = work.iter().enumerate().map(of).collect();
        let observed = std::mem::take(&mut self.observed);
        let core_share = Some(1.0);
        self.planner.observe(Round { now_ms, layout, observed, work: &work, core_share });
        _ = self.planner.decide(now_ms, layout, &mut self.strategy, &|_: &_, _: &_| None);
        // A simulation does not report decisions.
        drop(self.planner.events());
    }

    /// Returns the operators to execute next. The result is empty while others are in progress.
    pub fn next(&mut self, now_us: u64, layout: &Layout<u64>) -> Vec<Operator<u64>> {
        let next = self.planner.next(now_us / 1_000, layout).unwrap_or_default();
        drop(self.planner.events());
        next
    }

    /// Reports the outcome of an operator to the planner: its duration in µs, or `None` if the design no longer
    /// allowed it.
    pub fn ended(&mut self, operator: &Operator<u64>, took_us: Option<f64>) {
        let failed = || Outcome::Failed("the design has changed".to_owned());
        self.planner.ended(operator, took_us.map_or_else(failed, Outcome::Done));
    }

    /// Returns the number of operators that were executed.
    pub fn changes(&self) -> u64 {
        self.planner.changes
    }
}
