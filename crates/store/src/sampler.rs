//! Samples of transactions, and the CPU time of sites, as the sites' threads report them.
//!
//! A site's thread samples one transaction in `every`. The planner sets `every` by the rate of transactions, so that
//! there are a few hundred samples a second at any rate. Samples that are not fetched are dropped beyond a bound, and
//! counted.
//!
//! Sites in separate processes have a sampler each, and report to the sampler of their router ([`report`]). A
//! report's samples and CPU time take effect together, at the next fetch.

use std::cell::Cell;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::key::{Key, KeyRange};
use crate::record::Site;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub(crate) mod report;
#[cfg(test)]
mod tests;

use report::SampleReport;

/// Maximum number of samples that wait to be fetched in each of a sampler's two queues; further ones are dropped.
const WAITING_MAX: usize = 8_192;
/// Maximum number of reports of remote sites that wait in a router's sampler to be fetched; further ones are dropped.
const REPORTS_MAX: usize = 256;
/// Maximum number of transactions that one sample stands for.
const EVERY_MAX: u32 = 65_536;
/// CPU time that a site with a CPU limit may save while idle, and use in one burst.
const BURST: Duration = Duration::from_millis(20);
/// Minimum time between two reports of its work by a thread whose CPU use is not limited.
const REPORT_EVERY: Duration = Duration::from_millis(10);
/// Maximum time of one pause of a site that exceeded its CPU limit.
const THROTTLE_MAX: Duration = Duration::from_millis(100);

/// A sampled transaction that a site ran or returned, with the parts of its latency in µs.
#[derive(Clone, Debug)]
pub(crate) struct Sampled {
    /// Time at which the site first handled the transaction, by the clock of the sampler's process.
    pub began: Instant,
    /// Number of transactions that this sample stands for.
    pub every: u32,
    /// The site that ran or returned the transaction.
    pub site: Site,
    /// The ranges that the transaction declared as read.
    pub reads: Vec<KeyRange>,
    /// The keys that the transaction declared as written.
    pub writes: Vec<Key>,
    /// Numbers of rows that the transaction read and wrote; `None` if it did not run.
    pub rows: Option<(u32, u32)>,
    /// Number of log entries by which the site lagged when the transaction arrived: those that its session had seen
    /// and the site had not, and the site's own that had not come back from the log.
    pub log_lag_entries: u64,
    /// Wait from the time at which the site first handled the transaction until it could begin, with the cause;
    /// `None` if it began at once.
    pub waited: Option<WaitTime>,
    /// Time from the request until the site first handled the transaction, in µs; for a remote site without the time
    /// on the network.
    pub service_us: f64,
    /// Run time of the transaction's procedure, in µs.
    pub run_us: f64,
    /// Time from the end of the transaction's procedure until the log had the commit, in µs; `None` if it wrote
    /// nothing.
    pub commit_us: Option<f64>,
    /// True if the transaction conflicted with another one or with a design change: it waited for a lock, a row that
    /// its client watches was changed, or it was returned because its partitions are at another site.
    pub met_conflict: bool,
}

/// The reason why a request waits at its site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Cause {
    /// The request waits for log entries that its session has seen and the site has not, or for the site's own
    /// entries that the log does not have yet.
    Updates,
    /// The request waits for a lock on a partition, which an earlier request or a design change holds.
    Partition,
    /// The request waits for an earlier request of the same client.
    Client,
}

/// The wait of a sampled transaction at its site.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WaitTime {
    /// The first reason of the wait.
    pub cause: Cause,
    /// Duration of the wait, in µs.
    pub us: f64,
}

/// The samples of transactions and the work of the sites of one process, or of all sites of a router.
pub struct Sampler {
    /// Number of transactions of which one is sampled; 0 if none is.
    every: AtomicU32,
    /// Samples of transactions that ran, until they are fetched.
    waiting: Mutex<Vec<Sampled>>,
    /// Samples of transactions that a site returned for routing, and that therefore have no outcome at that site.
    returned: Mutex<Vec<Sampled>>,
    /// Number of samples that were dropped, here or at a remote site.
    dropped: AtomicU64,
    /// CPU time that all sites' threads used for design changes, in ns.
    changing_ns: AtomicU64,
    /// The total work of each site, by its number.
    sites: Vec<SiteWork>,
    /// CPU limit of each site in this process, as a share of one core; `None` for no limit.
    site_cpu: Option<f64>,
    /// Time at which the sampler was made.
    began: Instant,
    /// Reports of remote sites that were not fetched yet, with their times of arrival; `None` if the sites are in
    /// this process.
    reports: Option<Mutex<Vec<(Site, Instant, SampleReport)>>>,
}

impl Sampler {
    /// Returns the sampler of `sites` sites in this process. `site_cpu` limits the CPU use of each site to a share of
    /// one core; `None` sets no limit.
    #[must_use]
    pub fn new(sites: u16, site_cpu: Option<f64>) -> Self {
        Self {
            began: Instant::now(),
            reports: None,
            every: AtomicU32::new(8),
            waiting: Mutex::new(Vec::new()),
            returned: Mutex::new(Vec::new()),
            dropped: AtomicU64::new(0),
            changing_ns: AtomicU64::new(0),
            sites: (0..sites).map(|_| SiteWork::default()).collect(),
            site_cpu,
        }
    }

    /// Returns the sampler of a router whose `sites` sites are in separate processes and report to it.
    #[must_use]
    pub fn remote(sites: u16) -> Self {
        Self { reports: Some(Mutex::default()), ..Self::new(sites, None) }
    }

    /// Returns the sampler of a process with one site, which takes no samples until its router requests them. `sites`
    /// is the number of all sites, and `site_cpu` the CPU limit as a share of one core.
    pub(crate) fn of_process(sites: u16, site_cpu: Option<f64>) -> Self {
        Self { every: AtomicU32::new(0), ..Self::new(sites, site_cpu) }
    }

    /// Returns the number of transactions of which one is sampled; 0 if none is.
    pub(crate) fn every(&self) -> u32 {
        self.every.load(Ordering::Relaxed)
    }

    /// Sets the number of transactions of which one is sampled, at most 65,536; 0 switches sampling off.
    pub(crate) fn set_every(&self, every: u32) {
        self.every.store(every.min(EVERY_MAX), Ordering::Relaxed);
    }

    /// Adds the sample of a transaction that its site ran.
    pub(crate) fn put(&self, sampled: Sampled) {
        self.put_into(&self.waiting, sampled);
    }

    /// Adds the sample of a transaction that its site returned for routing, as one that met a conflict.
    pub(crate) fn put_returned(&self, sampled: Sampled) {
        self.put_into(&self.returned, Sampled { met_conflict: true, ..sampled });
    }

    /// Appends a sample to a queue, or counts it as dropped if the queue is full.
    fn put_into(&self, queue: &Mutex<Vec<Sampled>>, sampled: Sampled) {
        let mut waiting = queue.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < WAITING_MAX {
            waiting.push(sampled);
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Queues a report of the remote site `site` until the next fetch; does nothing in a sampler of sites in this
    /// process.
    pub(crate) fn take(&self, site: Site, report: SampleReport) {
        let Some(reports) = &self.reports else { return };
        let mut reports = reports.lock().unwrap_or_else(PoisonError::into_inner);
        if reports.len() < REPORTS_MAX {
            reports.push((site, Instant::now(), report));
        } else {
            let lost = report.samples.len() as u64 + report.dropped;
            self.dropped.fetch_add(lost, Ordering::Relaxed);
        }
    }

    /// Adds the samples and the work in the reports that have arrived since the last fetch.
    fn count_reports(&self) {
        let Some(reports) = &self.reports else { return };
        let come = std::mem::take(&mut *reports.lock().unwrap_or_else(PoisonError::into_inner));
        for (site, at, report) in come {
            self.dropped.fetch_add(report.dropped, Ordering::Relaxed);
            if let Some(work) = self.sites.get(usize::from(site.0)) {
                work.add(&report);
            }
            for one in report.samples {
                let was_returned = one.was_returned;
                let sampled = one.sampled(site, at);
                if was_returned { self.put_returned(sampled) } else { self.put(sampled) }
            }
        }
    }

    /// Removes and returns the samples of transactions that ran, after adding the queued reports.
    pub(crate) fn fetch(&self) -> Vec<Sampled> {
        self.count_reports();
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Removes and returns the samples of transactions that sites returned for routing.
    pub(crate) fn fetch_returned(&self) -> Vec<Sampled> {
        std::mem::take(&mut *self.returned.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the number of samples that were dropped since the start, because the planner did not fetch them in
    /// time or a report was too large.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Returns the CPU time that a site's thread has used so far, and what it has done in that time.
    pub(crate) fn work(&self, site: Site) -> (Duration, WorkCounts) {
        let Some(SiteWork { cpu_ns, counts, .. }) = self.sites.get(usize::from(site.0)) else {
            return Default::default();
        };
        let load = |of: &AtomicU64| of.load(Ordering::Relaxed);
        (Duration::from_nanos(load(cpu_ns)), std::array::from_fn(|n| load(&counts[n])))
    }

    /// Returns the CPU time that a site's thread has used so far.
    #[must_use]
    pub fn cpu(&self, site: Site) -> Duration {
        self.work(site).0
    }

    /// Returns the number of sites that the sampler was made for.
    pub(crate) fn sites(&self) -> u16 {
        self.sites.len() as u16
    }

    /// Returns the time span that [`Self::work`] covers: since the sampler was made; for a remote site the total span
    /// of its reports.
    pub(crate) fn span(&self, site: Site) -> Duration {
        match (&self.reports, self.sites.get(usize::from(site.0))) {
            (None, _) => self.began.elapsed(),
            (Some(_), work) => work.map_or(Duration::ZERO, |work| {
                Duration::from_nanos(work.span_ns.load(Ordering::Relaxed))
            }),
        }
    }

    /// Returns the CPU limit of a site, as a share of one core; 1 without a limit, and for a remote site that has not
    /// reported yet.
    pub(crate) fn share_of(&self, site: Site) -> f64 {
        let told = self.sites.get(usize::from(site.0)).and_then(SiteWork::share);
        told.or(self.site_cpu).unwrap_or(1.0)
    }

    /// Returns the CPU limit of the sites, as a share of one core, 1 without a limit. For remote sites it is the
    /// least that was reported, or `None` before the first report.
    pub(crate) fn share(&self) -> Option<f64> {
        match self.reports {
            None => Some(self.site_cpu.unwrap_or(1.0)),
            Some(_) => self.sites.iter().filter_map(SiteWork::share).reduce(f64::min),
        }
    }

    /// Runs a design change's work of a site's thread, and counts its CPU time if the sites' work is measured here.
    pub(crate) fn changing<T>(&self, run: impl FnOnce() -> T) -> T {
        if !self.is_measured() {
            return run();
        }
        let before = thread_cpu();
        let done = run();
        let ns = u64::try_from((thread_cpu() - before).as_nanos()).unwrap_or(u64::MAX);
        self.changing_ns.fetch_add(ns, Ordering::Relaxed);
        done
    }

    /// Returns the CPU time that the sites' threads have used for design changes so far; remote sites do not report
    /// it.
    pub(crate) fn changing_cpu(&self) -> Duration {
        Duration::from_nanos(self.changing_ns.load(Ordering::Relaxed))
    }

    /// Returns true if the sites' threads must measure their CPU time: the sites are in this process, and
    /// transactions are sampled or a CPU limit is set.
    fn is_measured(&self) -> bool {
        self.reports.is_none() && (self.every() > 0 || self.site_cpu.is_some())
    }

    /// Records the total CPU time of a site's thread so far, and what it has done in that time.
    fn record_work(&self, site: Site, cpu: Duration, counts: WorkCounts) {
        let Some(work) = self.sites.get(usize::from(site.0)) else { return };
        let ns = u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
        work.cpu_ns.store(ns, Ordering::Relaxed);
        for (into, count) in work.counts.iter().zip(counts) {
            into.store(count, Ordering::Relaxed);
        }
    }
}

/// What a site has done: the numbers of rows that it has read, written, and applied from the log for other masters, and
/// of transactions that it has run.
pub(crate) type WorkCounts = [u64; 4];

/// The total work of a site's thread so far.
#[derive(Default)]
struct SiteWork {
    /// CPU time that the site's thread has used so far, in ns.
    cpu_ns: AtomicU64,
    /// See [`WorkCounts`].
    counts: [AtomicU64; 4],
    /// Total time span of a remote site's reports, in ns; and its CPU limit as a share of one core, as the bits of an
    /// `f64`, 0 before its first report.
    span_ns: AtomicU64,
    share: AtomicU64,
}

impl SiteWork {
    /// Adds the work that a remote site reported.
    fn add(&self, report: &SampleReport) {
        let span_ns = report.span_ns;
        self.span_ns.fetch_add(span_ns, Ordering::Relaxed);
        self.cpu_ns.fetch_add(report.cpu_ns.min(span_ns), Ordering::Relaxed);
        for (into, count) in self.counts.iter().zip(report.counts) {
            into.fetch_add(count, Ordering::Relaxed);
        }
        if report.share.is_finite() {
            self.share.store(report.share.clamp(0.01, 1.0).to_bits(), Ordering::Relaxed);
        }
    }

    /// Returns the CPU limit that a remote site reported last, as a share of one core; `None` before.
    fn share(&self) -> Option<f64> {
        let share = f64::from_bits(self.share.load(Ordering::Relaxed));
        (share > 0.0).then_some(share)
    }
}

/// Returns the CPU time that the present thread has used so far.
pub(crate) fn thread_cpu() -> Duration {
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(cpu.tv_sec.cast_unsigned(), cpu.tv_nsec as u32)
}

/// A thread's measurements of its own CPU time, by which the thread reports its work and keeps to its CPU limit.
#[derive(Default)]
pub(crate) struct ThreadTime {
    /// The time of the last measurement, the thread's CPU time then, and the CPU time in s that it might still use in
    /// one burst.
    last: Cell<Option<(Instant, Duration, f64)>>,
    /// The time at which the thread last reported its work; `None` before the first report.
    last_report: Cell<Option<Instant>>,
}

impl ThreadTime {
    /// Records the CPU time of the present thread and what it has done in `sampler` as the work of `site`, and sleeps if the thread has exceeded its CPU limit.
    pub fn report(&self, sampler: &Sampler, site: Site, counts: WorkCounts) {
        if !sampler.is_measured() {
            return;
        }
        let now = Instant::now();
        let is_recent = self.last_report.get().is_some_and(|told| now - told < REPORT_EVERY);
        if is_recent && sampler.site_cpu.is_none() {
            return;
        }
        self.last_report.set(Some(now));
        // Reading the thread's CPU time is a system call, unlike reading the time of day.
        let cpu = thread_cpu();
        sampler.record_work(site, cpu, counts);
        let Some(share) = sampler.site_cpu else { return };
        let (then, before, left) = self.last.get().unwrap_or((now, cpu, BURST.as_secs_f64()));
        let earned = share * (now - then).as_secs_f64();
        let left = (left + earned).min(BURST.as_secs_f64()) - (cpu - before).as_secs_f64();
        self.last.set(Some((now, cpu, left)));
        if left < 0.0 {
            // The whole thread sleeps, with its connections: it stands for a machine.
            std::thread::sleep(Duration::from_secs_f64(-left / share).min(THROTTLE_MAX));
        }
    }
}
