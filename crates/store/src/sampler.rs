//! Samples of transactions, and the processor time of sites: what the sites' threads tell of what they do.
//!
//! A thread samples one transaction of so many; the planner sets of how many, so that a second has a few hundred
//! samples at any rate. Samples that nothing fetches are dropped beyond a bound, and counted.
//!
//! Sites in processes of their own have a sampler each, and report to that of their router ([`report`]). A report counts
//! from the next fetch on, its samples and its processor time together.

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

/// Samples that wait to be fetched.
const WAITING_MAX: usize = 8_192;
/// Reports of sites apart that wait to be fetched.
const REPORTS_MAX: usize = 256;
/// The most transactions that one sample stands for.
const EVERY_MAX: u32 = 65_536;
/// Samples that the threads are to take a second, together.
const SAMPLES_S: f64 = 400.0;
/// A site that is held to a share of a core may use so much at once.
const BURST: Duration = Duration::from_millis(20);
/// A thread that is not held to a share tells its work no more often.
const TOLD_EVERY: Duration = Duration::from_millis(10);
/// The longest that a site is held at once.
const HELD_MAX: Duration = Duration::from_millis(100);

/// A transaction that a site ran, with what it took, in µs.
#[derive(Clone, Debug)]
pub(crate) struct Sampled {
    pub began: Instant,
    /// For how many it stands.
    pub every: u32,
    pub site: Site,
    pub reads: Vec<KeyRange>,
    pub writes: Vec<Key>,
    /// Rows that it read and wrote; none where it did not run.
    pub rows: Option<(u32, u32)>,
    /// Log entries that the site was behind when it came.
    pub behind: u64,
    /// From when the site looked at it until it could begin, and why, where it had to wait.
    pub waited: Option<Waited>,
    /// From when it was asked for until the site looked at it; of a site apart without the way there.
    pub service_us: f64,
    /// The procedure.
    pub run_us: f64,
    /// From then until the log had it; none where it wrote nothing.
    pub commit_us: Option<f64>,
    /// True if it met another transaction or a change of design: it waited for a lock, a row that it watched
    /// was changed, or it was returned, because its partitions are elsewhere.
    pub met_conflict: bool,
}

/// A reason why a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Cause {
    /// Log entries that its session has seen, or the site's own until the log has them.
    Updates,
    /// A partition that an earlier request or a change of design has locked.
    Partition,
    /// An earlier request of its client.
    Client,
}

/// The wait of a sampled transaction at its site.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Waited {
    pub cause: Cause,
    pub us: f64,
}

impl Sampled {
    /// All of it.
    pub fn latency_us(&self) -> f64 {
        let waited_us = self.waited.map_or(0.0, |waited| waited.us);
        self.service_us + waited_us + self.run_us + self.commit_us.unwrap_or(0.0)
    }
}

/// See the module's documentation.
pub struct Sampler {
    every: AtomicU32,
    waiting: Mutex<Vec<Sampled>>,
    /// Those that were returned, which have no outcome at that site.
    returned: Mutex<Vec<Sampled>>,
    dropped: AtomicU64,
    /// The processor time for changes of the design, in ns.
    changing_ns: AtomicU64,
    sites: Vec<SiteWork>,
    /// The share of a core that a site may use.
    site_cpu: Option<f64>,
    began: Instant,
    /// Reports that were not fetched yet, and when they came; absent where the sites are in this process.
    reports: Option<Mutex<Vec<(Site, Instant, SampleReport)>>>,
}

impl Sampler {
    /// A sampler of so many sites, each of which may use a share of a core, if it is held to one.
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

    /// The sampler of a router, whose sites are in processes of their own and report.
    #[must_use]
    pub fn apart(sites: u16) -> Self {
        Self { reports: Some(Mutex::default()), ..Self::new(sites, None) }
    }

    /// The sampler of the process of one site, which samples nothing until its router asks for it.
    pub(crate) fn of_process(sites: u16, site_cpu: Option<f64>) -> Self {
        Self { every: AtomicU32::new(0), ..Self::new(sites, site_cpu) }
    }

    /// One transaction of so many is sampled; 0: none.
    pub(crate) fn every(&self) -> u32 {
        self.every.load(Ordering::Relaxed)
    }

    /// Sets of how many one is sampled; 0: none.
    pub(crate) fn set_every(&self, every: u32) {
        self.every.store(every.min(EVERY_MAX), Ordering::Relaxed);
    }

    /// Sets of how many one is sampled, by the rate of transactions.
    pub(crate) fn adjust(&self, rate_s: f64) {
        self.set_every((rate_s / SAMPLES_S).ceil().clamp(1.0, f64::from(EVERY_MAX)) as u32);
    }

    pub(crate) fn put(&self, sampled: Sampled) {
        self.put_into(&self.waiting, sampled);
    }

    /// A sampled transaction that its site returned.
    pub(crate) fn put_returned(&self, sampled: Sampled) {
        self.put_into(&self.returned, Sampled { met_conflict: true, ..sampled });
    }

    fn put_into(&self, queue: &Mutex<Vec<Sampled>>, sampled: Sampled) {
        let mut waiting = queue.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < WAITING_MAX {
            waiting.push(sampled);
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes a report of a site apart.
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

    /// Counts the reports that have come since the last fetch.
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

    pub(crate) fn fetch(&self) -> Vec<Sampled> {
        self.count_reports();
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn fetch_returned(&self) -> Vec<Sampled> {
        std::mem::take(&mut *self.returned.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Samples that were dropped, because the planner did not fetch them.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// The processor time of a site so far, and the rows that it read, wrote and applied in it.
    pub(crate) fn work(&self, site: Site) -> (Duration, [u64; 3]) {
        let Some(SiteWork { cpu_ns, rows, .. }) = self.sites.get(usize::from(site.0)) else {
            return Default::default();
        };
        let load = |of: &AtomicU64| of.load(Ordering::Relaxed);
        (Duration::from_nanos(load(cpu_ns)), [load(&rows[0]), load(&rows[1]), load(&rows[2])])
    }

    /// The processor time of a site's thread so far.
    #[must_use]
    pub fn cpu(&self, site: Site) -> Duration {
        self.work(site).0
    }

    /// Returns the number of sites.
    pub(crate) fn sites(&self) -> u16 {
        self.sites.len() as u16
    }

    /// The time in which a site has done that work; of a site apart, as far as its reports go.
    pub(crate) fn span(&self, site: Site) -> Duration {
        match (&self.reports, self.sites.get(usize::from(site.0))) {
            (None, _) => self.began.elapsed(),
            (Some(_), work) => work.map_or(Duration::ZERO, |work| {
                Duration::from_nanos(work.span_ns.load(Ordering::Relaxed))
            }),
        }
    }

    /// The share of a core that a site has; of a site apart 1 until it has reported.
    pub(crate) fn share_of(&self, site: Site) -> f64 {
        let told = self.sites.get(usize::from(site.0)).and_then(SiteWork::share);
        told.or(self.site_cpu).unwrap_or(1.0)
    }

    /// The share of a core that the sites have. Where they are apart: the least that one has told, or none if none has.
    pub(crate) fn share(&self) -> Option<f64> {
        match self.reports {
            None => Some(self.site_cpu.unwrap_or(1.0)),
            Some(_) => self.sites.iter().filter_map(SiteWork::share).reduce(f64::min),
        }
    }

    /// Runs what a site's thread does for a change of the design, and counts the processor time that it takes.
    pub(crate) fn changing<T>(&self, run: impl FnOnce() -> T) -> T {
        if !self.is_told() {
            return run();
        }
        let before = thread_cpu();
        let done = run();
        let ns = u64::try_from((thread_cpu() - before).as_nanos()).unwrap_or(u64::MAX);
        self.changing_ns.fetch_add(ns, Ordering::Relaxed);
        done
    }

    /// The processor time of the sites' threads for changes of the design so far; of sites apart it is not told.
    pub(crate) fn changing_cpu(&self) -> Duration {
        Duration::from_nanos(self.changing_ns.load(Ordering::Relaxed))
    }

    /// True if a site's thread has something to tell, or is held to a share.
    fn is_told(&self) -> bool {
        self.reports.is_none() && (self.every() > 0 || self.site_cpu.is_some())
    }

    /// Told by a site's thread: its processor time so far, and its rows.
    fn tell(&self, site: Site, cpu: Duration, rows: [u64; 3]) {
        let Some(work) = self.sites.get(usize::from(site.0)) else { return };
        let ns = u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
        work.cpu_ns.store(ns, Ordering::Relaxed);
        for (into, rows) in work.rows.iter().zip(rows) {
            into.store(rows, Ordering::Relaxed);
        }
    }
}

/// The work of a site's thread so far.
#[derive(Default)]
struct SiteWork {
    /// Its processor time, in ns.
    cpu_ns: AtomicU64,
    /// Rows read, written, and applied for other masters.
    rows: [AtomicU64; 3],
    /// The time that the reports of a site apart are of, in ns, and the bits of the share that it has told; 0 before.
    span_ns: AtomicU64,
    share: AtomicU64,
}

impl SiteWork {
    /// Adds what a site apart reports.
    fn add(&self, report: &SampleReport) {
        let span_ns = report.span_ns;
        self.span_ns.fetch_add(span_ns, Ordering::Relaxed);
        self.cpu_ns.fetch_add(report.cpu_ns.min(span_ns), Ordering::Relaxed);
        for (into, rows) in self.rows.iter().zip(report.rows) {
            into.fetch_add(rows, Ordering::Relaxed);
        }
        if report.share.is_finite() {
            self.share.store(report.share.clamp(0.01, 1.0).to_bits(), Ordering::Relaxed);
        }
    }

    fn share(&self) -> Option<f64> {
        let share = f64::from_bits(self.share.load(Ordering::Relaxed));
        (share > 0.0).then_some(share)
    }
}

/// Processor time of the present thread so far.
pub(crate) fn thread_cpu() -> Duration {
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(cpu.tv_sec.cast_unsigned(), cpu.tv_nsec as u32)
}

/// A thread's own processor time, which it tells, and by which it is held to its share.
#[derive(Default)]
pub(crate) struct ThreadTime {
    /// The time of the last look, the thread's processor time then, and how much more it might use at once, in
    /// s.
    last: Cell<Option<(Instant, Duration, f64)>>,
    /// The time at which it was told last.
    told: Cell<Option<Instant>>,
}

impl ThreadTime {
    /// Tells the thread's processor time, and waits if it has used more than its share.
    pub fn tell(&self, sampler: &Sampler, site: Site, rows: [u64; 3]) {
        if !sampler.is_told() {
            return;
        }
        let now = Instant::now();
        let is_recent = self.told.get().is_some_and(|told| now - told < TOLD_EVERY);
        if is_recent && sampler.site_cpu.is_none() {
            return;
        }
        self.told.set(Some(now));
        // This asks the kernel, unlike the time of day.
        let cpu = thread_cpu();
        sampler.tell(site, cpu, rows);
        let Some(share) = sampler.site_cpu else { return };
        let (then, before, left) = self.last.get().unwrap_or((now, cpu, BURST.as_secs_f64()));
        let earned = share * (now - then).as_secs_f64();
        let left = (left + earned).min(BURST.as_secs_f64()) - (cpu - before).as_secs_f64();
        self.last.set(Some((now, cpu, left)));
        if left < 0.0 {
            // The whole thread waits, with its connections: it stands for a machine.
            std::thread::sleep(Duration::from_secs_f64(-left / share).min(HELD_MAX));
        }
    }
}
