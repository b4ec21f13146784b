//! Progress reports of a copy.

use std::time::{Duration, Instant};

use imago_job::eta::Meter;
use imago_job::event::{Flow, Progress};
use imago_job::prediction::Interval;
use imago_job::throttle::Throttle;

use super::follow::CAUGHT_UP_MS;
use super::forecast::{self, Phase, Spared, Work};
use super::{CopyJob, KIND};
use crate::replicate::route::{Reader, Route};

/// Most flows between two shards that a progress report shows: with more, the line is too long to read and the record
/// slow to write.
const FLOWS_SHOWN: usize = 6;

/// Interval of progress reports.
const REPORT_EVERY: Duration = Duration::from_millis(250);

/// The progress of a copy, over all processes of its job.
pub(super) struct CopyProgress {
    /// Estimated number of documents to copy, and their size in bytes.
    pub(super) total: (u64, u64),
    /// Number of documents that earlier processes of the job copied, and their size in bytes.
    pub(super) copied_before: (u64, u64),
    /// Number of changes that earlier processes of the job applied.
    pub(super) applied_before: u64,
    /// Number of index entries that are built after the bulk.
    pub(super) entries: u64,
    pub(super) meter: Meter,
    pub(super) reported: Instant,
    pub(super) began: Instant,
    /// Time for which this process has copied the bulk.
    pub(super) copied_for: Duration,
    /// Time at which the build of indexes began, and that at which the comparison of documents began.
    pub(super) index_began: Option<Instant>,
    pub(super) compare_began: Option<Instant>,
    /// True if all documents are compared after the copy has caught up.
    pub(super) compares: bool,
    /// True once the copy has caught up: it then follows the source, without an end.
    pub(super) is_caught_up: bool,
    /// Factor by which the interval of the end is widened, on a logarithmic scale.
    pub(super) widening: f64,
}

impl CopyProgress {
    /// Creates the progress of a process that copies `total` (estimated documents and bytes), of which
    /// `copied_before` are copied already, and then builds `entries` entries of indexes.
    pub fn new(
        total: (u64, u64),
        copied_before: (u64, u64),
        applied_before: u64,
        entries: u64,
    ) -> Self {
        let now = Instant::now();
        Self {
            total,
            copied_before,
            applied_before,
            entries,
            meter: Meter::new(5_000),
            reported: now,
            began: now,
            copied_for: Duration::ZERO,
            index_began: None,
            compare_began: None,
            compares: false,
            is_caught_up: false,
            widening: 1.0,
        }
    }

    /// Returns the time that is left of a bulk that is larger than was estimated, in milliseconds: a small share of what has
    /// passed.
    fn beyond_total_ms(&self) -> Interval {
        let copied_ms = 1_000.0 * self.copied_for.as_secs_f64();
        Interval::new(0.0, 0.02 * copied_ms, 0.2 * copied_ms)
    }

    /// Returns the time until the work is done, in seconds; `None` if it cannot be estimated, or if the job follows the
    /// source without an end. `done` is the number of bytes copied, `lag_ms` the lag of the applied changes, in
    /// milliseconds, and `throttle` what holds the bulk back.
    fn left_s(
        &self,
        done: u64,
        (is_copied, is_indexed): (bool, bool),
        lag_ms: u64,
        throttle: &Throttle,
    ) -> Option<Interval> {
        let passed_s = |since: Instant| since.elapsed().as_secs_f64();
        let phase = match (self.compare_began, self.index_began) {
            (Some(since), _) => Phase::Compare(passed_s(since)),
            _ if self.is_caught_up => return None,
            _ if !is_copied => {
                let beyond = || (done >= self.total.1).then(|| self.beyond_total_ms());
                Phase::Copy(self.meter.left_ms(Some(self.total.1)).or_else(beyond))
            }
            (None, Some(since)) if !is_indexed => Phase::Index(passed_s(since)),
            _ if !is_indexed => Phase::Index(0.0),
            _ => Phase::CatchUp,
        };
        let compared_s = self.compares.then_some(self.copied_for.as_secs_f64());
        let left_bytes = self.total.1.saturating_sub(done);
        let limits = throttle.limits();
        // A pace that does not hold the bulk back, and a limit that will, are no reason to expect it sooner.
        let is_held = !throttle.is_below_pace() && limits.documents_s.is_none();
        let spared = throttle.paced_for().filter(|_| is_held).map(|time| Spared {
            for_s: time.as_secs_f64(),
            left_bytes,
            limit_s: limits.bytes_s,
        });
        forecast::left_s(phase, Work { entries: self.entries, lag_ms, compared_s, spared })
    }

    /// Returns true if the next report is due.
    pub fn is_due(&self) -> bool {
        self.reported.elapsed() > REPORT_EVERY
    }
}

impl CopyJob<'_> {
    fn report_readers(&self) {
        let readers = self.route.iter().flat_map(|route| &route.readers);
        for replaced in readers.filter_map(Reader::replaced) {
            let help = "no action is needed if it comes back; otherwise check that server";
            self.run.reporter().warning("reader_replaced", replaced, help);
        }
    }

    pub(super) fn report(&mut self) {
        self.progress.reported = Instant::now();
        self.report_readers();
        let progress = self.coordinator.progress();
        let (documents, bytes) = self.counters.copied();
        let done =
            (documents + self.progress.copied_before.0, bytes + self.progress.copied_before.1);
        let now_ms = u64::try_from(self.progress.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.progress.meter.observe(now_ms, done.1);
        let is_copied = self.coordinator.is_copied();
        if !is_copied {
            self.progress.copied_for = self.progress.began.elapsed();
        }
        // A copy that may be cut over has no end that it could predict: not even in its first report of that.
        let is_copy = self.run.record().kind == KIND;
        if is_copied && self.state.is_indexed && is_copy && progress.behind_ms <= CAUGHT_UP_MS {
            self.realize_end();
        }
        let phases = (is_copied, self.state.is_indexed);
        let left =
            self.progress.left_s(done.1, phases, progress.behind_ms, self.run.control().throttle());
        let left = left.map(|left| left.widened(self.progress.widening));
        self.predict_end(done.1, left);
        let mut obstacles = Vec::new();
        if !is_copied {
            obstacles.push("the bulk is not copied yet".to_owned());
        } else if !self.state.is_indexed {
            obstacles.push("the indexes are not built yet".to_owned());
        } else if progress.behind_ms > CAUGHT_UP_MS {
            let cause = self.run.control().slowed_by().map(|cause| format!(": {cause}"));
            let behind = format!("the destination is {} ms behind", progress.behind_ms);
            obstacles.push(behind + &cause.unwrap_or_default());
        }
        if is_copied {
            obstacles.extend(self.catalog_obstacles());
        }
        if !self.has_last_writes {
            obstacles.push(
                "the source is a single secondary: the cut-over needs the whole replica set".into(),
            );
        }
        // The lag dates from the last reply, which may be older than the obstacle.
        let blocked_by = self.run.control().blocked_by();
        let is_slowed = blocked_by == self.run.control().slowed_by();
        obstacles.extend(blocked_by.clone().filter(|_| is_copied && !is_slowed));
        let job = &self.run.record().id;
        let rate = self.progress.meter.rate_s().filter(|_| !is_copied);
        let held = format!("{} changes held, {} read", progress.dirty_keys, progress.changes_read);
        let wait = format!("wait, or imago job pause {job}");
        let shown = Progress {
            documents_done: done.0,
            documents_total: Some(self.progress.total.0.max(done.0)),
            bytes_done: done.1,
            bytes_total: Some(self.progress.total.1.max(done.1)),
            changes_applied: self.progress.applied_before + progress.changes_applied,
            lag_ms: Some(progress.lag_ms),
            eta_ms: left.map(|left| whole_ms(left.expected)),
            eta_interval_ms: left.map(|left| (whole_ms(left.low), whole_ms(left.high))),
            rate_bytes_s: rate,
            rate_documents_s: rate.map(|rate| rate * ratio(done.0, done.1)),
            blocked_by,
            doing: held,
            ..Progress::default()
        };
        if self.run.record().kind != KIND {
            // A reshard job compares, and takes the collection's name, by itself.
            let flows = self.route.as_ref().map(|route| flows(route)).unwrap_or_default();
            let is_told = !is_copied && !flows.is_empty();
            let doing = if is_told { format_flows(&flows) } else { shown.doing };
            self.run.reporter().progress(Progress { doing, flows, next: wait, ..shown });
            return;
        }
        self.run.reporter().progress(Progress {
            cutover_ready: Some(obstacles.is_empty()),
            next: if obstacles.is_empty() {
                match self.state.reverse_job_state() {
                    None => format!("imago verify, then imago cutover {job}"),
                    // The new cluster's indexes, including the index of its shard key, are its own.
                    Some(back) => format!(
                        "imago verify --documents-only, then imago cutover {} --rollback",
                        back.from
                    ),
                }
            } else {
                wait
            },
            cutover_obstacles: obstacles,
            ..shown
        });
    }
}

/// Returns seconds as whole milliseconds, at least one.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a bounded time")]
fn whole_ms(s: f64) -> u64 {
    ((s * 1_000.0) as u64).max(1)
}

/// Returns the number of bytes that this process sent from each shard to each other one, the largest flows first, at
/// most [`FLOWS_SHOWN`].
fn flows(route: &Route) -> Vec<Flow> {
    let mut sent: Vec<(usize, usize, u64)> =
        route.sent().filter(|(from, to, bytes)| from != to && *bytes > 0).collect();
    sent.sort_unstable_by_key(|(_, _, bytes)| std::cmp::Reverse(*bytes));
    let flow = |&(from, to, bytes): &(usize, usize, u64)| Flow {
        from: route.names[from].clone(),
        to: route.names[to].clone(),
        bytes,
    };
    sent.iter().take(FLOWS_SHOWN).map(flow).collect()
}

/// Formats flows between shards as one line of text, in MB.
fn format_flows(flows: &[Flow]) -> String {
    let one = |Flow { from, to, bytes }: &Flow| format!("{from} to {to}: {} MB", bytes / 1_000_000);
    flows.iter().map(one).collect::<Vec<String>>().join(", ")
}

#[expect(clippy::cast_precision_loss, reason = "a rate to look at")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}
