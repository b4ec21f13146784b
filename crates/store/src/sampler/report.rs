//! What a site in a process of its own reports to its router: samples of its transactions, its processor time and its
//! rows.
//!
//! Times are durations that the site's clock measured, so that the clocks of two machines need not agree. A report says
//! of which span of time it is, and its numbers are those of that span: whichever way it took, rates are right.
//!
//! The wait of a transaction before its site is what the router had it, by the router's clock, and what the site's
//! mailbox had it, by the site's. What a message takes on its way between the two, in the buffers of the systems and on
//! the network, is in neither; a commit's way to the log and back is in the commit's time. A sample looks younger at
//! the router than it is by the time that its report took.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Cause, EVERY_MAX, Sampled, Sampler, Waited};
use crate::key::{Key, KeyRange};
use crate::record::Site;

/// Between two reports of a site.
pub(crate) const REPORT_EVERY: Duration = Duration::from_millis(200);
/// Samples of a report, and about how many bytes their keys have; more are dropped, and counted.
const SAMPLES_MAX: usize = 256;
const BYTES_MAX: usize = 256 * 1024;
/// A router takes no duration for longer.
const DURATION_MAX: Duration = Duration::from_secs(60);

/// See the module's documentation.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SampleReport {
    /// The span of time that the report is of, and the processor time of the site's thread in it, in ns.
    pub(super) span_ns: u64,
    pub(super) cpu_ns: u64,
    /// Rows read, written and applied for other masters in it.
    pub(super) rows: [u64; 3],
    /// The share of a core that the site may use.
    pub(super) share: f64,
    /// Samples that were dropped.
    pub(super) dropped: u64,
    pub(super) samples: Vec<Reported>,
}

/// A sampled transaction.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Reported {
    /// The time since it began, when it is reported.
    age_ns: u64,
    every: u32,
    reads: Vec<KeyRange>,
    writes: Vec<Key>,
    rows: Option<(u32, u32)>,
    behind: u64,
    /// The wait before it began.
    waited: Option<(Cause, u64)>,
    service_ns: u64,
    run_ns: u64,
    commit_ns: Option<u64>,
    met_conflict: bool,
    pub(super) was_returned: bool,
}

impl Reported {
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
            behind: it.behind,
            waited: it.waited.map(|waited| (waited.cause, ns(waited.us))),
            met_conflict: it.met_conflict,
            was_returned,
        }
    }

    /// The bytes of its keys.
    fn bytes(&self) -> usize {
        let end = |read: &KeyRange| read.end.as_ref().map_or(0, |end| end.as_bytes().len());
        let reads = self.reads.iter().map(|read| read.start.as_bytes().len() + end(read));
        reads.sum::<usize>() + self.writes.iter().map(|key| key.as_bytes().len()).sum::<usize>()
    }

    /// As a sample of the router's process, where it has come at that moment.
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
            behind: self.behind,
            waited: self.waited.map(|(cause, wait_ns)| Waited { cause, us: us(wait_ns) }),
            met_conflict: self.met_conflict,
        }
    }
}

/// Makes the reports of a site's epoch, from what the site's thread tells its process's sampler.
pub(crate) struct Reporter {
    sampler: Arc<Sampler>,
    site: Site,
    due: Instant,
    /// The time of the last report, the site's processor time and rows then, and samples that had been dropped.
    last: Option<(Instant, Duration, [u64; 3], u64)>,
}

impl Reporter {
    pub fn new(sampler: Arc<Sampler>, site: Site) -> Self {
        Self { sampler, site, due: Instant::now(), last: None }
    }

    /// The report that is due, if one is. While nothing is sampled there is none, and the first span begins one report
    /// after sampling did.
    pub fn report(&mut self, now: Instant) -> Option<SampleReport> {
        if now < self.due {
            return None;
        }
        self.due = now + REPORT_EVERY;
        let waiting = self.sampler.fetch().into_iter().map(|one| (one, false));
        let returned = self.sampler.fetch_returned().into_iter().map(|one| (one, true));
        let (cpu, rows) = self.sampler.work(self.site);
        let is_on = self.sampler.every() > 0;
        let is = is_on.then_some((now, cpu, rows, self.sampler.dropped()));
        let (then, cpu_before, rows_before, dropped_before) =
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
        let mut since = [0; 3];
        for (n, since) in since.iter_mut().enumerate() {
            *since = rows[n].saturating_sub(rows_before[n]);
        }
        Some(SampleReport {
            span_ns: nanos(span),
            // A thread that had told nothing for a while tells more than belongs to the span.
            cpu_ns: nanos(cpu.saturating_sub(cpu_before).min(span)),
            rows: since,
            share: self.sampler.site_cpu.unwrap_or(1.0),
            dropped: dropped.saturating_sub(dropped_before) + left_out,
            samples,
        })
    }
}

fn nanos(of: Duration) -> u64 {
    u64::try_from(of.as_nanos()).unwrap_or(u64::MAX)
}
