//! What a copy says of itself while it runs.

use std::time::Instant;

use imago_job::event::Progress;

use super::follow::CAUGHT_UP_MS;
use super::{Copying, KIND};
use crate::route::Route;

/// More flows than this make a line that nobody reads.
const FLOWS_SHOWN: usize = 6;

impl Copying<'_> {
    pub(super) fn report(&mut self) {
        self.reported = Instant::now();
        let standing = self.lead.standing();
        let (documents, bytes) = crate::lead::copied(&self.counters);
        let done = (documents + self.copied_before.0, bytes + self.copied_before.1);
        let now_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.meter.observe(now_ms, done.1);
        let is_copied = self.lead.is_copied();
        let mut obstacles = Vec::new();
        if !is_copied {
            obstacles.push("the bulk is not copied yet".to_owned());
        } else if !self.state.is_indexed {
            obstacles.push("the indexes are not built yet".to_owned());
        } else if standing.behind_ms > CAUGHT_UP_MS {
            obstacles.push(format!("the destination is {} ms behind", standing.behind_ms));
        }
        let job = &self.run.record().id;
        let rate = self.meter.rate_s().filter(|_| !is_copied);
        let held = format!("{} changes held, {} read", standing.held, standing.changes_read);
        let wait = format!("wait, or imago job pause {job}");
        let shown = Progress {
            documents_done: done.0,
            documents_total: Some(self.total.0.max(done.0)),
            bytes_done: done.1,
            bytes_total: Some(self.total.1.max(done.1)),
            changes_applied: standing.changes_applied,
            lag_ms: Some(standing.lag_ms),
            eta_ms: if is_copied { None } else { self.meter.eta_ms(Some(self.total.1)) },
            rate_bytes_s: rate,
            rate_documents_s: rate.map(|rate| rate * ratio(done.0, done.1)),
            blocked_by: self.run.control().blocked_by(),
            doing: held,
            ..Progress::default()
        };
        if self.run.record().kind != KIND {
            // It compares, and takes the collection's name, by itself.
            let flows = self.route.as_ref().filter(|_| !is_copied).map(|route| flows(route));
            let doing = flows.unwrap_or(shown.doing);
            self.run.reporter().progress(Progress { doing, next: wait, ..shown });
            return;
        }
        self.run.reporter().progress(Progress {
            cutover_ready: Some(obstacles.is_empty()),
            next: if obstacles.is_empty() {
                format!("imago verify, then imago cutover {job}")
            } else {
                wait
            },
            cutover_obstacles: obstacles,
            ..shown
        });
    }
}

/// What went from which shard to which, the largest flows first.
fn flows(route: &Route) -> String {
    let mut sent: Vec<(usize, usize, u64)> =
        route.sent().filter(|(from, to, bytes)| from != to && *bytes > 0).collect();
    sent.sort_unstable_by_key(|(_, _, bytes)| std::cmp::Reverse(*bytes));
    let left_out = sent.len().saturating_sub(FLOWS_SHOWN);
    let shown = sent.iter().take(FLOWS_SHOWN).map(|&(from, to, bytes)| {
        format!("{} to {}: {} MB", route.names[from], route.names[to], bytes / 1_000_000)
    });
    let mut shown: Vec<String> = shown.collect();
    if left_out > 0 {
        shown.push(format!("{left_out} smaller flows"));
    }
    shown.join(", ")
}

#[expect(clippy::cast_precision_loss, reason = "a rate to look at")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}
