//! Learning from samples, and the accuracy of the predicted costs of transactions and operators.
//!
//! Single transactions vary by far more than their inputs explain: by chance, and by other load on the machine. So the
//! samples of a site are collected for at least a second, and the model learns from their means, separately for
//! transactions that only read, only write, or do both.
//!
//! Invariant: [`Fits`] compares each measurement with a prediction made before the model learned from that measurement.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use imago_plan::design::cost::{Inputs, Measured, Operation};
use imago_plan::design::layout::{self, Layout, Partition};
use imago_plan::design::price::inputs_of;
use imago_plan::design::regimes::Seen;
use imago_plan::design::regression::HeldOut;
use imago_plan::design::updates::Updates;
use imago_plan::design::workload::{Numbered, Sample, Statistics, Touched};
use rand::RngExt as _;

use super::planner::Planner;
use crate::key::Key;
use crate::sampler::{Cause, Sampled};

/// The model learns from the samples of a site once they cover this time and number [`SAMPLES_MIN`].
const SPAN_MIN: Duration = Duration::from_secs(1);
/// Least number of samples of a site to learn from, unless they cover [`SPAN_MAX`].
const SAMPLES_MIN: f64 = 20.0;
/// The model learns from the samples of a site, however few, once they cover this time.
const SPAN_MAX: Duration = Duration::from_secs(5);
/// Weight of a new sample in the moving mean of its site's log lag.
const BEHIND_RATE: f64 = 0.02;
/// Predicted total costs compared with measured ones.
#[derive(Default)]
pub(super) struct Fits {
    /// Transactions: each entry is the mean time of one kind of transaction at one site, in µs.
    pub transactions: HeldOut,
    /// Executed operators: each entry is the time of one operator, in µs.
    pub operators: HeldOut,
}

/// The samples of one site since the model last learned from that site.
#[derive(Default)]
pub(super) struct Pending {
    /// Elapsed time that the samples cover.
    span: Duration,
    /// Sum of the latencies of all transactions that the samples stand for, in µs.
    all_us: f64,
    /// Number of transactions that the samples stand for.
    count: f64,
    /// Load of the site, as a share of the CPU that it has, times the elapsed time, in µs.
    busy_us: f64,
    /// Sums by kind of transaction: whether it reads partitions that it does not write, and whether it writes.
    kinds: BTreeMap<(bool, bool), Sums>,
}

/// Sums over the sampled transactions of one kind.
#[derive(Default)]
struct Sums {
    samples: f64,
    service_us: f64,
    /// Number of transactions that ran without waiting; `run_us`, `commit_us` and `rows` are sums over these.
    ran: f64,
    run_us: f64,
    commit_us: f64,
    /// Number of transactions that ran and did not wait for an earlier request of their client; `updates_us` and
    /// `lock_us` are sums over these.
    begun: f64,
    updates_us: f64,
    lock_us: f64,
    contention: f64,
    behind: f64,
    update_share: f64,
    rows: (f64, f64),
    partitions: (f64, f64),
}

impl Planner<'_> {
    /// Adds samples to the statistics, and lets the model learn from each site that has enough of them.
    pub(super) fn learn(&mut self, layout: &Layout<Key>, fetched: &[Sampled]) {
        let numbered = Numbered::new(layout);
        let touched: Vec<Touched> =
            self.controller.regimes.samples().map(|sample| numbered.touched(sample)).collect();
        let touched = touched.iter().map(|touched| (1.0, touched));
        let statistics = Statistics::counted(layout.len(), touched);
        let sites = layout.sites();
        let partitions: Vec<&Partition> = layout.partitions().map(|(_, one)| one).collect();
        let updates = Updates::new(sites, &partitions, &statistics);
        let now_ms = self.now_ms();
        let mut there_us: BTreeMap<layout::Site, f64> = BTreeMap::new();
        let commits = fetched.iter().filter(|sampled| sampled.rows.is_some());
        let quickest_us = commits.filter_map(|sampled| sampled.commit_us).fold(f64::MAX, f64::min);
        for sampled in fetched {
            let written = sampled.writes.len() as u32;
            let declared = (written + sampled.reads.len() as u32, written);
            let rows = sampled.rows.unwrap_or(declared);
            let sample = Sample {
                reads: sampled.reads.iter().map(|of| (of.start.clone(), of.end.clone())).collect(),
                writes: sampled.writes.clone(),
                rows_read: rows.0,
                rows_written: rows.1,
            };
            let touched = numbered.touched(&sample);
            let all_us = sampled.latency_us() * f64::from(sampled.every);
            *there_us.entry(sampled.site.0).or_default() += all_us;
            let pending = self.pending.entry(sampled.site.0).or_default();
            let kind = (!touched.reads.is_empty(), !touched.writes.is_empty());
            pending.count += f64::from(sampled.every);
            let contention = touched.writes.iter().map(|write| statistics.writes(*write)).sum();
            let sums = pending.kinds.entry(kind).or_default();
            sums.add(sampled, &touched, contention, quickest_us);
            let site = Some(sampled.site.0).filter(|site| sites.contains(*site));
            if let Some(share) = site.and_then(|site| updates.share(site, &touched.reads)) {
                sums.behind += sampled.behind as f64;
                sums.update_share += share;
            }
            let behind = self.behind.entry(sampled.site.0).or_default();
            *behind += BEHIND_RATE * (sampled.behind as f64 - *behind);
            self.controller.regimes.offer(Seen {
                at_ms: self.of.ms_of(sampled.began),
                every: sampled.every,
                latency_us: sampled.latency_us(),
                chance: self.dice.random(),
                sample,
            });
        }
        // Little's law: the mean number of concurrent transactions is the sum of their latencies over the elapsed time.
        let since = std::mem::replace(&mut self.fetched, Instant::now()).elapsed();
        let mut under_way = 0.0;
        for (site, all_us) in there_us {
            let passed = self.spans.get(&site).copied().unwrap_or(since);
            under_way += all_us / (passed.as_secs_f64() * 1e6);
            self.pending.entry(site).or_default().all_us += all_us;
        }
        for (site, pending) in &mut self.pending {
            let passed = self.spans.get(site).copied().unwrap_or_default();
            let share = self.shares.get(site).copied().unwrap_or(0.0);
            pending.span += passed;
            pending.busy_us += share * passed.as_secs_f64() * 1e6;
        }
        self.learn_pending();
        self.controller.regimes.pass(now_ms);
        self.controller.regimes.under_way(under_way);
    }

    fn learn_pending(&mut self) {
        let due: Vec<layout::Site> =
            self.pending.iter().filter(|(_, one)| one.is_due()).map(|(site, _)| *site).collect();
        for site in due {
            let Some(pending) = self.pending.remove(&site) else { continue };
            let (waits, waited_us) = pending.waits();
            let ahead_us = pending.ahead_us();
            self.ahead_us.insert(site, ahead_us);
            let is_known = self.controller.cost.distrust().is_none();
            for ((reads, writes), sums) in pending.kinds {
                let (inputs, measured) = (sums.inputs(ahead_us), sums.measured());
                let is = Operation::Transaction { reads, writes };
                if is_known && let Some(us) = sums.whole_us() {
                    self.fits.transactions.push(us, self.controller.cost.predict(is, &inputs));
                }
                self.controller.cost.observe(is, &inputs, &measured);
            }
            if waits > 0.0 {
                self.controller.cost.service.observe([ahead_us], waited_us / waits);
            }
        }
    }

    /// Learns from the total time of an operator that was executed on the design `layout`.
    pub(super) fn learn_operator(
        &mut self,
        operator: &layout::Operator<Key>,
        layout: &Layout<Key>,
        took: Duration,
    ) {
        let partition = layout.of(operator.key()).1;
        let (operation, inputs) = inputs_of(operator, partition, &self.ahead_us, &self.behind, 0.0);
        let us = took.as_secs_f64() * 1e6;
        self.fits.operators.push(us, self.controller.cost.predict(operation, &inputs));
        self.controller.cost.observe_operator(operation, &inputs, us);
    }
}

impl Pending {
    fn is_due(&self) -> bool {
        let samples: f64 = self.kinds.values().map(|sums| sums.samples).sum();
        self.span >= SPAN_MAX || self.span >= SPAN_MIN && samples >= SAMPLES_MIN
    }

    /// Returns the number of waits for the site's thread, and their total time in µs.
    fn waits(&self) -> (f64, f64) {
        let of = |(&(reads, writes), sums): (&(bool, bool), &Sums)| {
            (sums.samples * Operation::Transaction { reads, writes }.waits().0, sums.service_us)
        };
        self.kinds.iter().map(of).fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// Returns the work ahead of one wait, in µs. Little's law gives the mean number of transactions at the site.
    fn ahead_us(&self) -> f64 {
        let samples: f64 = self.kinds.values().map(|sums| sums.samples).sum();
        let there = self.all_us / (self.span.as_secs_f64() * 1e6).max(1.0);
        let each_us = self.busy_us / self.count.max(1.0);
        there * each_us * samples / self.waits().0.max(1.0)
    }
}

impl Sums {
    fn add(&mut self, sampled: &Sampled, touched: &Touched, contention: f64, quickest_us: f64) {
        let ran_at_once = sampled.rows.is_some() && sampled.waited.is_none();
        // The log takes as long as its fastest commit; the rest of a commit is a wait for the site's thread.
        let commit_us = sampled.commit_us.filter(|_| sampled.rows.is_some());
        self.samples += 1.0;
        self.service_us += sampled.service_us + commit_us.map_or(0.0, |us| us - quickest_us);
        self.contention += contention;
        self.partitions.0 += touched.reads.len() as f64;
        self.partitions.1 += touched.writes.len() as f64;
        let waited = sampled.waited;
        if sampled.rows.is_some() && waited.is_none_or(|waited| waited.cause != Cause::Client) {
            self.begun += 1.0;
            // A wait is for a lock if the transaction only writes, and for updates if it only reads; if it does both,
            // the cause of its wait decides.
            let us = waited.map_or(0.0, |waited| waited.us);
            let is_for_updates = waited.is_some_and(|waited| waited.cause == Cause::Updates);
            match (touched.reads.is_empty(), touched.writes.is_empty()) {
                (false, true) => self.updates_us += us,
                (false, false) if is_for_updates => self.updates_us += us,
                _ => self.lock_us += us,
            }
        }
        if let Some((read, written)) = sampled.rows.filter(|_| ran_at_once) {
            self.ran += 1.0;
            self.run_us += sampled.run_us;
            self.commit_us += commit_us.map_or(0.0, |_| quickest_us);
            self.rows.0 += f64::from(read);
            self.rows.1 += f64::from(written);
        }
    }

    /// Returns the means of the inputs from which costs are predicted.
    fn inputs(&self, ahead_us: f64) -> Inputs {
        let (samples, ran) = (self.samples.max(1.0), self.ran.max(1.0));
        Inputs {
            ahead_us,
            behind: self.behind / samples,
            update_share: self.update_share / samples,
            contention: self.contention / samples,
            rows: (self.rows.0 / ran, self.rows.1 / ran),
            partitions: (self.partitions.0 / samples, self.partitions.1 / samples),
            ..Inputs::default()
        }
    }

    /// Returns the mean times. The wait for service is not among them: all kinds of transactions wait for the same
    /// thread.
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

    /// Returns the mean total time in µs; `None` if less than half of the transactions ran without waiting.
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
    use crate::record::Site;
    use crate::sampler::Waited;

    /// Sums transactions of one kind, one for each entry of `waits`, and returns their mean times.
    fn sums(reads: &[usize], writes: &[usize], waits: &[Option<(Cause, f64)>]) -> Measured {
        let touched = Touched { reads: reads.to_vec(), writes: writes.to_vec() };
        let mut sums = Sums::default();
        for waited in waits {
            let sampled = Sampled {
                began: Instant::now(),
                every: 8,
                site: Site(1),
                reads: Vec::new(),
                writes: Vec::new(),
                rows: Some((600, 3)),
                behind: 7,
                waited: waited.map(|(cause, us)| Waited { cause, us }),
                service_us: 900.0,
                run_us: 60.0,
                commit_us: Some(450.0),
                met_conflict: false,
            };
            sums.add(&sampled, &touched, 0.25, 400.0);
        }
        sums.measured()
    }

    #[test]
    fn waits_are_laid_to_updates_of_readers_and_to_locks_of_writers() {
        let (updates, partition) = (Some((Cause::Updates, 800.0)), Some((Cause::Partition, 200.0)));
        // The design does not cause waits for an earlier request of the client.
        let client = Some((Cause::Client, 5_000.0));
        let all = [updates, partition, None, client, None];
        let waits = |measured: Measured| (measured.wait_updates, measured.lock);
        assert_eq!(waits(sums(&[4], &[], &all)), (Some(250.0), Some(0.0)));
        assert_eq!(waits(sums(&[], &[9], &all)), (Some(0.0), Some(250.0)));
        assert_eq!(waits(sums(&[4], &[9], &all)), (Some(200.0), Some(50.0)));
        assert_eq!(sums(&[4], &[], &all).read_write, Some(60.0), "of those that ran at once");
        assert_eq!(waits(sums(&[4], &[], &[client])), (None, None));
    }
}
