//! The report of a site in a separate process to its router: samples of its transactions, its CPU time and
//! its rows.
//!
//! Times in a report are durations by the site's clock, so that the clocks of two machines need not agree. A report
//! includes the time span that its numbers cover, so that rates are right whenever it arrives.
//!
//! The wait of a transaction before its site consists of the wait at the router, by the router's clock, and
//! of the wait in the site's mailbox, by the site's clock. The time of a message between the two, in system
//! buffers and on the network, is in neither; the time of a commit to the log and back is in the commit time.
//! A sample seems younger at the router than it is, by the time that its report took.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Cause, EVERY_MAX, Sampled, Sampler, WaitTime, WorkCounts};
use crate::key::{Key, KeyRange};
use crate::record::Site;

/// Interval between two sample reports of a remote site to its router.
pub(crate) const REPORT_EVERY: Duration = Duration::from_millis(200);
/// Maximum number of samples in one report, and maximum total size of their keys in bytes; further samples are
/// dropped and counted.
const SAMPLES_MAX: usize = 256;
const BYTES_MAX: usize = 256 * 1024;
/// Maximum duration that the router accepts in a report; it replaces a longer one by this.
const DURATION_MAX: Duration = Duration::from_secs(60);

/// A remote site's report to its router: samples of transactions, CPU time and rows of one time span.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SampleReport {
    /// Time span that the report covers, and the CPU time that the site's thread used in it, both in ns.
    pub(super) span_ns: u64,
    pub(super) cpu_ns: u64,
    /// What the site did in the span.
    pub(super) counts: WorkCounts,
    /// CPU limit of the site as a share of one core; 1 without a limit.
    pub(super) share: f64,
    /// Number of samples that the site dropped in the span.
    pub(super) dropped: u64,
    pub(super) samples: Vec<Reported>,
}

/// A sampled transaction, in the form in which a remote site reports it; the fields are those of [`Sampled`], with
/// durations in ns.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Reported {
    /// Time from when the site first handled the transaction until the report, in ns.
    age_ns: u64,
    every: u32,
    reads: Vec<KeyRange>,
    writes: Vec<Key>,
    rows: Option<(u32, u32)>,
    behind: u64,
    /// The wait at the site before the transaction could begin: its cause, and its duration in ns; `None` if there
    /// was none.
    waited: Option<(Cause, u64)>,
    service_ns: u64,
    run_ns: u64,
    commit_ns: Option<u64>,
    met_conflict: bool,
    pub(super) was_returned: bool,
}

impl Reported {
    /// Converts a sample to its reported form. `now` is the time of the report.
    fn of(it: Sampled, was_returned: bool, now: Instant) -> Self {
        let ns = |us: f64| (us * 1e3) as u64;
        Self {
            age_ns: nanos(now.saturating_duration_since(it.began)),
            every: it.every,
            service_ns: ns(it.service_us),
            run_ns: ns(it.run_us),
            commit_ns: it.commit_us.map(ns),
            reads: it.reads,
            writes: it.writes,
            rows: it.rows,
            behind: it.log_lag_entries,
            waited: it.waited.map(|waited| (waited.cause, ns(waited.us))),
            met_conflict: it.met_conflict,
            was_returned,
        }
    }

    /// Returns the total size of the sample's keys and range bounds, in bytes.
    fn bytes(&self) -> usize {
        let end = |read: &KeyRange| read.end.as_ref().map_or(0, |end| end.as_bytes().len());
        let reads = self.reads.iter().map(|read| read.start.as_bytes().len() + end(read));
        reads.sum::<usize>() + self.writes.iter().map(|key| key.as_bytes().len()).sum::<usize>()
    }

    /// Converts a sample that site `site` reported to the form in the router's process, where the report arrived at
    /// time `come`.
    pub(super) fn sampled(self, site: Site, come: Instant) -> Sampled {
        let duration = |ns| Duration::from_nanos(ns).min(DURATION_MAX);
        let us = |ns| duration(ns).as_secs_f64() * 1e6;
        Sampled {
            began: come.checked_sub(duration(self.age_ns)).unwrap_or(come),
            every: self.every.clamp(1, EVERY_MAX),
            site,
            service_us: us(self.service_ns),
            run_us: us(self.run_ns),
            commit_us: self.commit_ns.map(us),
            reads: self.reads,
            writes: self.writes,
            rows: self.rows,
            log_lag_entries: self.behind,
            waited: self.waited.map(|(cause, wait_ns)| WaitTime { cause, us: us(wait_ns) }),
            met_conflict: self.met_conflict,
        }
    }
}

/// Makes the sample reports of one epoch of a remote site, from the data in its process's sampler.
pub(crate) struct Reporter {
    sampler: Arc<Sampler>,
    site: Site,
    /// Time from which on the next report is due.
    due: Instant,
    /// The time of the last report, and the totals at that time: the site's CPU time, its work, and its number of
    /// dropped samples; `None` while sampling is off.
    last: Option<(Instant, Duration, WorkCounts, u64)>,
}

impl Reporter {
    /// Returns a reporter for a site, whose first report is due at once.
    pub fn new(sampler: Arc<Sampler>, site: Site) -> Self {
        Self { sampler, site, due: Instant::now(), last: None }
    }

    /// Returns the report at time `now`, if one is due. Returns `None` while sampling is off, and for the first
    /// interval after it is switched on.
    pub fn report(&mut self, now: Instant) -> Option<SampleReport> {
        if now < self.due {
            return None;
        }
        self.due = now + REPORT_EVERY;
        let waiting = self.sampler.fetch().into_iter().map(|one| (one, false));
        let returned = self.sampler.fetch_returned().into_iter().map(|one| (one, true));
        let (cpu, counts) = self.sampler.work(self.site);
        let is_on = self.sampler.every() > 0;
        let is = is_on.then_some((now, cpu, counts, self.sampler.dropped()));
        let (then, cpu_before, counts_before, dropped_before) =
            std::mem::replace(&mut self.last, is)?;
        let (.., dropped) = is?;
        let (mut samples, mut bytes, mut left_out) = (Vec::new(), 0, 0);
        for (sampled, was_returned) in waiting.chain(returned) {
            let one = Reported::of(sampled, was_returned, now);
            bytes += one.bytes();
            if samples.len() < SAMPLES_MAX && bytes <= BYTES_MAX {
                samples.push(one);
            } else {
                bytes -= one.bytes();
                left_out += 1;
            }
        }
        let span = now.saturating_duration_since(then);
        Some(SampleReport {
            span_ns: nanos(span),
            // A thread that did not report for a while reports more CPU time than belongs to the span.
            cpu_ns: nanos(cpu.saturating_sub(cpu_before).min(span)),
            counts: std::array::from_fn(|n| counts[n].saturating_sub(counts_before[n])),
            share: self.sampler.site_cpu.unwrap_or(1.0),
            dropped: dropped.saturating_sub(dropped_before) + left_out,
            samples,
        })
    }
}

fn nanos(of: Duration) -> u64 {
    u64::try_from(of.as_nanos()).unwrap_or(u64::MAX)
}
