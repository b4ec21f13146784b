//! Samples of transactions, and the processor time of sites: what the sites' threads tell of what they do.
//!
//! A thread samples one transaction of so many; the planner sets of how many, so that a second has a few hundred
//! samples at any rate. Samples that nothing fetches are dropped beyond a bound, and counted.

use std::cell::Cell;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crate::key::{Key, KeyRange};
use crate::record::Site;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Samples that wait to be fetched.
const WAITING_MAX: usize = 8_192;
/// Samples that the threads are to take a second, together.
const SAMPLES_S: f64 = 400.0;
/// A site that is held to a share of a core may use so much at once.
const BURST: Duration = Duration::from_millis(20);
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
    /// Rows that it read and wrote; none where it waited for something before it ran.
    pub rows: Option<(u32, u32)>,
    /// From when it was asked for until the site looked at it.
    pub service_us: f64,
    /// The procedure.
    pub run_us: f64,
    /// From then until the log had it; none where it wrote nothing.
    pub commit_us: Option<f64>,
    /// True if it met another transaction or a change of design: it waited for a lock, a row that it watched
    /// was changed, or it was returned, because its partitions are elsewhere.
    pub met_conflict: bool,
}

impl Sampled {
    /// All of it.
    pub fn latency_us(&self) -> f64 {
        self.service_us + self.run_us + self.commit_us.unwrap_or(0.0)
    }
}

/// See the module's documentation.
pub struct Sampler {
    every: AtomicU32,
    waiting: Mutex<Vec<Sampled>>,
    /// Those that were returned, which have no outcome at that site.
    returned: Mutex<Vec<Sampled>>,
    dropped: AtomicU64,
    sites: Vec<SiteWork>,
    /// The share of a core that a site may use.
    site_cpu: Option<f64>,
}

impl Sampler {
    /// A sampler of so many sites, each of which may use a share of a core, if it is held to one.
    #[must_use]
    pub fn new(sites: u16, site_cpu: Option<f64>) -> Self {
        Self {
            every: AtomicU32::new(8),
            waiting: Mutex::new(Vec::new()),
            returned: Mutex::new(Vec::new()),
            dropped: AtomicU64::new(0),
            sites: (0..sites).map(|_| SiteWork::default()).collect(),
            site_cpu,
        }
    }

    /// One transaction of so many is sampled.
    pub(crate) fn every(&self) -> u32 {
        self.every.load(Ordering::Relaxed)
    }

    /// Sets of how many one is sampled, by the rate of transactions.
    pub(crate) fn adjust(&self, rate_s: f64) {
        self.every
            .store((rate_s / SAMPLES_S).ceil().clamp(1.0, 65_536.0) as u32, Ordering::Relaxed);
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

    pub(crate) fn fetch(&self) -> Vec<Sampled> {
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
        let Some(SiteWork { cpu_ns, rows }) = self.sites.get(usize::from(site.0)) else {
            return Default::default();
        };
        let load = |of: &AtomicU64| of.load(Ordering::Relaxed);
        (Duration::from_nanos(load(cpu_ns)), [load(&rows[0]), load(&rows[1]), load(&rows[2])])
    }

    /// Returns the number of sites.
    pub(crate) fn sites(&self) -> u16 {
        self.sites.len() as u16
    }

    /// The share of a core that a site has.
    pub(crate) fn share(&self) -> f64 {
        self.site_cpu.unwrap_or(1.0)
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
}

/// A thread's own processor time, which it tells, and by which it is held to its share.
#[derive(Default)]
pub(crate) struct ThreadTime {
    /// The time of the last look, the thread's processor time then, and how much more it might use at once, in
    /// s.
    last: Cell<Option<(Instant, Duration, f64)>>,
}

impl ThreadTime {
    /// Tells the thread's processor time, and waits if it has used more than its share.
    pub fn tell(&self, sampler: &Sampler, site: Site, rows: [u64; 3]) {
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let cpu = Duration::new(cpu.tv_sec.cast_unsigned(), cpu.tv_nsec as u32);
        sampler.tell(site, cpu, rows);
        let Some(share) = sampler.site_cpu else { return };
        let now = Instant::now();
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
