//! Learning the workload and the costs from samples, and the accuracy of the predicted costs.
//!
//! Single transactions vary by far more than their inputs explain: by chance, and by other load on the machine. So the
//! samples of a site are collected for a window of time, and the model learns from their means, separately for
//! transactions that only read, only write, or do both.
//!
//! Invariant: [`Accuracy`] compares each measurement with a prediction made before the model learned from that
//! measurement.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::store::controller::Controller;
use crate::store::cost::{Inputs, Measured, Operation};
use crate::store::layout::{Key, Layout, Operator, Partition, Site};
use crate::store::price::inputs_of;
use crate::store::regimes::ObservedTransaction;
use crate::store::regression::HeldOut;
use crate::store::updates::Updates;
use crate::store::workload::{Numbered, Sample, Statistics, Touched};

use super::load::SiteLoads;

/// Weight of a new sample in the moving mean of its site's log lag, from 0 to 1.
const LAG_RATE: f64 = 0.02;

/// A sampled transaction of the store, with its accesses and its latency in parts.
#[derive(Clone, Debug)]
pub struct Observed<K> {
    /// Time at which the transaction began, in ms of the planner's clock.
    pub at_ms: u64,
    /// Number of transactions that the sample stands for, itself included.
    pub every: u32,
    /// The site that ran the transaction.
    pub site: Site,
    /// Key ranges that the transaction declared to read: start, and exclusive end; without an end, up to the last key.
    pub reads: Vec<(K, Option<K>)>,
    /// Keys that the transaction declared to write.
    pub writes: Vec<K>,
    /// Number of rows that the transaction read, and number of rows that it wrote; `None` if it did not run.
    pub rows: Option<(u32, u32)>,
    /// Number of log entries that the site had yet to apply when the transaction arrived.
    pub lag_entries: u64,
    /// Cause of the transaction's wait at the site before it could begin, and the length of that wait in µs; `None`
    /// without a wait.
    pub waited: Option<(WaitCause, f64)>,
    /// Time from the client's request until the site first handled it, in µs.
    pub service_us: f64,
    /// Run time of the transaction's procedure, in µs.
    pub run_us: f64,
    /// Time from the end of the procedure until the log had the commit, in µs; `None` if the transaction wrote
    /// nothing.
    pub commit_us: Option<f64>,
}

/// The reason for which a transaction waits at its site before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitCause {
    /// The transaction waits for log entries that the site does not have yet.
    Updates,
    /// The transaction waits for a lock on a partition.
    Partition,
    /// The transaction waits for an earlier request of the same client.
    Client,
}

impl<K> Observed<K> {
    /// Returns the total latency of the transaction, in µs.
    #[must_use]
    pub fn latency_us(&self) -> f64 {
        let waited_us = self.waited.map_or(0.0, |(_, us)| us);
        self.service_us + waited_us + self.run_us + self.commit_us.unwrap_or(0.0)
    }

    fn sample(self) -> Sample<K> {
        let written = self.writes.len() as u32;
        let declared = (written + self.reads.len() as u32, written);
        let (rows_read, rows_written) = self.rows.unwrap_or(declared);
        Sample { reads: self.reads, writes: self.writes, rows_read, rows_written }
    }
}

/// The window of time over which samples of a site are collected before the model learns from their means.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Least time for which samples of a site are collected.
    pub span_min: Duration,
    /// Least number of samples of a site, unless the window has its greatest length.
    pub samples_min: f64,
    /// Longest time for which samples of a site are collected: then the model learns from however few there are.
    pub span_max: Duration,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            span_min: Duration::from_secs(1),
            samples_min: 20.0,
            span_max: Duration::from_secs(5),
        }
    }
}

/// Predicted total times compared with measured ones, for the costs of transactions and of operators.
#[derive(Clone, Debug, Default)]
pub struct Accuracy {
    /// Sampled transactions: each entry is the mean time of one kind of transaction at one site, in µs.
    pub transactions: HeldOut,
    /// Executed operators: each entry is the time of one operator, in µs.
    pub operators: HeldOut,
}

/// The collector of the samples of all sites, which lets the cost model learn from them.
#[derive(Clone, Debug)]
pub(super) struct Learner {
    window: Window,
    /// Samples of each site since the model last learned from that site.
    windows: BTreeMap<Site, SiteWindow>,
    /// Work ahead of one wait for each site's thread, in µs, as of when the model last learned from that site.
    queued_work_us: BTreeMap<Site, f64>,
    /// Log lag of each site, in entries: a moving mean over the site's samples.
    pub lag_entries: BTreeMap<Site, f64>,
    pub accuracy: Accuracy,
    /// Time at which samples were last collected, in ms of the planner's clock.
    collected_ms: u64,
}

impl Learner {
    pub fn new(window: Window, now_ms: u64) -> Self {
        Self {
            window,
            windows: BTreeMap::new(),
            queued_work_us: BTreeMap::new(),
            lag_entries: BTreeMap::new(),
            accuracy: Accuracy::default(),
            collected_ms: now_ms,
        }
    }

    /// Adds the samples `observed` to the statistics, and lets the model learn from each site that has enough of them.
    /// `chance` draws a number from 0 up to 1.
    pub fn collect<K: Key>(
        &mut self,
        controller: &mut Controller<K>,
        now_ms: u64,
        layout: &Layout<K>,
        loads: &SiteLoads,
        observed: Vec<Observed<K>>,
        mut chance: impl FnMut() -> f64,
    ) {
        let numbered = Numbered::new(layout);
        let touched: Vec<Touched> =
            controller.regimes.samples().map(|sample| numbered.touched(sample)).collect();
        let touched = touched.iter().map(|touched| (1.0, touched));
        let statistics = Statistics::counted(layout.len(), touched);
        let sites = layout.sites();
        let partitions: Vec<&Partition> = layout.partitions().map(|(_, one)| one).collect();
        let updates = Updates::new(sites, &partitions, &statistics);
        let commits = observed.iter().filter(|one| one.rows.is_some());
        let fastest_us = commits.filter_map(|one| one.commit_us).fold(f64::MAX, f64::min);
        let mut latencies_us: BTreeMap<Site, f64> = BTreeMap::new();
        for one in observed {
            let Observed { at_ms, every, site, lag_entries, .. } = one;
            let latency_us = one.latency_us();
            *latencies_us.entry(site).or_default() += latency_us * f64::from(every);
            let parts = Parts::of(&one);
            let sample = one.sample();
            let touched = numbered.touched(&sample);
            let window = self.windows.entry(site).or_default();
            window.count += f64::from(every);
            let contention = touched.writes.iter().map(|write| statistics.writes(*write)).sum();
            let kind = (!touched.reads.is_empty(), !touched.writes.is_empty());
            let totals = window.kinds.entry(kind).or_default();
            totals.add(&parts, &touched, contention, fastest_us);
            let known = Some(site).filter(|site| sites.contains(*site));
            if let Some(share) = known.and_then(|site| updates.share(site, &touched.reads)) {
                totals.lag_entries += lag_entries as f64;
                totals.update_share += share;
            }
            let lag = self.lag_entries.entry(site).or_default();
            *lag += LAG_RATE * (lag_entries as f64 - *lag);
            let chance = chance();
            controller.regimes.offer(ObservedTransaction {
                at_ms,
                every,
                latency_us,
                chance,
                sample,
            });
        }
        // Little's law: the mean number of concurrent transactions is the sum of their latencies over the elapsed time.
        let since = Duration::from_millis(now_ms.saturating_sub(self.collected_ms).max(1));
        self.collected_ms = now_ms;
        let mut under_way = 0.0;
        for (site, us) in latencies_us {
            let passed = loads.span(site).unwrap_or(since);
            under_way += us / (passed.as_secs_f64() * 1e6);
            self.windows.entry(site).or_default().latencies_us += us;
        }
        for (site, window) in &mut self.windows {
            let passed = loads.span(*site).unwrap_or_default();
            window.span += passed;
            window.busy_us += loads.share(*site) * passed.as_secs_f64() * 1e6;
        }
        self.learn(controller);
        controller.regimes.pass(now_ms);
        controller.regimes.under_way(under_way);
    }

    /// Lets the cost model learn from the sites whose windows are complete.
    fn learn<K: Key>(&mut self, controller: &mut Controller<K>) {
        let limits = self.window;
        let complete = self.windows.iter().filter(|(_, window)| window.is_complete(&limits));
        let due: Vec<Site> = complete.map(|(site, _)| *site).collect();
        for site in due {
            let Some(window) = self.windows.remove(&site) else { continue };
            let (waits, waited_us) = window.waits();
            let queued_work_us = window.queued_work_us();
            self.queued_work_us.insert(site, queued_work_us);
            let is_known = controller.cost.distrust().is_none();
            for ((reads, writes), totals) in window.kinds {
                let (inputs, measured) = (totals.inputs(queued_work_us), totals.measured());
                let is = Operation::Transaction { reads, writes };
                if is_known && let Some(us) = totals.whole_us() {
                    self.accuracy.transactions.push(us, controller.cost.predict(is, &inputs));
                }
                controller.cost.observe(is, &inputs, &measured);
            }
            if waits > 0.0 {
                controller.cost.service.observe([queued_work_us], waited_us / waits);
            }
        }
    }

    /// Learns from the total time `us`, in µs, of an operator that was executed on the design `layout`.
    pub fn learn_operator<K: Key>(
        &mut self,
        controller: &mut Controller<K>,
        operator: &Operator<K>,
        layout: &Layout<K>,
        us: f64,
    ) {
        let partition = layout.of(operator.key()).1;
        let (operation, inputs) =
            inputs_of(operator, partition, &self.queued_work_us, &self.lag_entries, 0.0);
        self.accuracy.operators.push(us, controller.cost.predict(operation, &inputs));
        controller.cost.observe_operator(operation, &inputs, us);
    }
}

/// The samples of one site since the model last learned from that site.
#[derive(Clone, Debug, Default)]
struct SiteWindow {
    /// Elapsed time that the site's samples cover.
    span: Duration,
    /// Sum of the latencies of all transactions that the samples stand for, in µs.
    latencies_us: f64,
    /// Number of transactions that the samples stand for.
    count: f64,
    /// Load of the site, as a share of the CPU that the site has, times the elapsed time, in µs.
    busy_us: f64,
    /// Totals by kind of transaction: whether it reads partitions that it does not write, and whether it writes.
    kinds: BTreeMap<(bool, bool), Totals>,
}

impl SiteWindow {
    fn samples(&self) -> f64 {
        self.kinds.values().map(|totals| totals.samples).sum()
    }

    fn is_complete(&self, window: &Window) -> bool {
        self.span >= window.span_max
            || self.span >= window.span_min && self.samples() >= window.samples_min
    }

    /// Returns the number of waits for the site's thread by the sampled transactions, and the total time of these
    /// waits in µs.
    fn waits(&self) -> (f64, f64) {
        let of = |(&(reads, writes), totals): (&(bool, bool), &Totals)| {
            let waits = Operation::Transaction { reads, writes }.waits().0;
            (totals.samples * waits, totals.service_us)
        };
        self.kinds.iter().map(of).fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// Returns the work ahead of one wait for the site's thread, in µs. Little's law gives the mean number of
    /// transactions at the site.
    fn queued_work_us(&self) -> f64 {
        let there = self.latencies_us / (self.span.as_secs_f64() * 1e6).max(1.0);
        let each_us = self.busy_us / self.count.max(1.0);
        there * each_us * self.samples() / self.waits().0.max(1.0)
    }
}

/// The measured parts of one transaction's latency, and its rows.
#[derive(Clone, Copy, Debug)]
struct Parts {
    rows: Option<(u32, u32)>,
    waited: Option<(WaitCause, f64)>,
    service_us: f64,
    run_us: f64,
    commit_us: Option<f64>,
}

impl Parts {
    fn of<K>(observed: &Observed<K>) -> Self {
        let Observed { rows, waited, service_us, run_us, commit_us, .. } = *observed;
        Self { rows, waited, service_us, run_us, commit_us }
    }
}

/// Totals over the sampled transactions of one kind at one site; all times are in µs.
#[derive(Clone, Debug, Default)]
struct Totals {
    samples: f64,
    service_us: f64,
    /// Number of sampled transactions that ran without waiting; `run_us`, `commit_us` and `rows` are totals over
    /// these.
    ran: f64,
    run_us: f64,
    commit_us: f64,
    /// Number of sampled transactions that ran and did not wait for an earlier request of their client; `updates_us`
    /// and `lock_us` are totals over these.
    begun: f64,
    updates_us: f64,
    lock_us: f64,
    contention: f64,
    lag_entries: f64,
    update_share: f64,
    rows: (f64, f64),
    partitions: (f64, f64),
}

impl Totals {
    fn add(&mut self, of: &Parts, touched: &Touched, contention: f64, fastest_us: f64) {
        let ran_at_once = of.rows.is_some() && of.waited.is_none();
        // The log takes as long as its fastest commit; the rest of a commit is a wait for the site's thread.
        let commit_us = of.commit_us.filter(|_| of.rows.is_some());
        self.samples += 1.0;
        self.service_us += of.service_us + commit_us.map_or(0.0, |us| us - fastest_us);
        self.contention += contention;
        self.partitions.0 += touched.reads.len() as f64;
        self.partitions.1 += touched.writes.len() as f64;
        if of.rows.is_some() && of.waited.is_none_or(|(cause, _)| cause != WaitCause::Client) {
            self.begun += 1.0;
            // A wait is for a lock if the transaction only writes, and for updates if it only reads; if it does both,
            // the cause of its wait decides.
            let us = of.waited.map_or(0.0, |(_, us)| us);
            let is_for_updates = of.waited.is_some_and(|(cause, _)| cause == WaitCause::Updates);
            match (touched.reads.is_empty(), touched.writes.is_empty()) {
                (false, true) => self.updates_us += us,
                (false, false) if is_for_updates => self.updates_us += us,
                _ => self.lock_us += us,
            }
        }
        if let Some((read, written)) = of.rows.filter(|_| ran_at_once) {
            self.ran += 1.0;
            self.run_us += of.run_us;
            self.commit_us += commit_us.map_or(0.0, |_| fastest_us);
            self.rows.0 += f64::from(read);
            self.rows.1 += f64::from(written);
        }
    }

    /// Returns the means of the inputs from which the cost of such a transaction is predicted.
    fn inputs(&self, queued_work_us: f64) -> Inputs {
        let (samples, ran) = (self.samples.max(1.0), self.ran.max(1.0));
        Inputs {
            queued_work_us,
            lag_entries: self.lag_entries / samples,
            update_share: self.update_share / samples,
            contention: self.contention / samples,
            rows: (self.rows.0 / ran, self.rows.1 / ran),
            partitions: (self.partitions.0 / samples, self.partitions.1 / samples),
            ..Inputs::default()
        }
    }

    /// Returns the mean measured times of such a transaction. The wait for service is not among them: all kinds of
    /// transactions wait for the same thread.
    fn measured(&self) -> Measured {
        let of_ran = |us: f64| (self.ran > 0.0).then_some(us / self.ran);
        let of_begun = |us: f64| (self.begun > 0.0).then_some(us / self.begun);
        Measured {
            read_write: of_ran(self.run_us),
            commit: of_ran(self.commit_us).filter(|us| *us > 0.0),
            wait_updates: of_begun(self.updates_us),
            lock: of_begun(self.lock_us),
            ..Measured::default()
        }
    }

    /// Returns the mean total time of such a transaction in µs; `None` if less than half of the transactions ran
    /// without waiting.
    fn whole_us(&self) -> Option<f64> {
        let is_known = 2.0 * self.ran >= self.samples;
        let waited_us = (self.updates_us + self.lock_us) / self.begun.max(1.0);
        let service_us = self.service_us / self.samples;
        is_known.then(|| service_us + waited_us + (self.run_us + self.commit_us) / self.ran)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the mean times of transactions of one kind, one for each entry of `waits`.
    fn means(reads: &[usize], writes: &[usize], waits: &[Option<(WaitCause, f64)>]) -> Measured {
        let touched = Touched { reads: reads.to_vec(), writes: writes.to_vec() };
        let mut totals = Totals::default();
        for waited in waits {
            let parts = Parts {
                rows: Some((600, 3)),
                waited: *waited,
                service_us: 900.0,
                run_us: 60.0,
                commit_us: Some(450.0),
            };
            totals.add(&parts, &touched, 0.25, 400.0);
        }
        totals.measured()
    }

    #[test]
    fn waits_are_attributed_to_updates_of_readers_and_to_locks_of_writers() {
        let updates = Some((WaitCause::Updates, 800.0));
        let partition = Some((WaitCause::Partition, 200.0));
        // The design does not cause waits for an earlier request of the client.
        let client = Some((WaitCause::Client, 5_000.0));
        let all = [updates, partition, None, client, None];
        let waits = |measured: Measured| (measured.wait_updates, measured.lock);
        assert_eq!(waits(means(&[4], &[], &all)), (Some(250.0), Some(0.0)));
        assert_eq!(waits(means(&[], &[9], &all)), (Some(0.0), Some(250.0)));
        assert_eq!(waits(means(&[4], &[9], &all)), (Some(200.0), Some(50.0)));
        assert_eq!(means(&[4], &[], &all).read_write, Some(60.0), "of those that ran at once");
        assert_eq!(waits(means(&[4], &[], &[client])), (None, None));
    }
}
