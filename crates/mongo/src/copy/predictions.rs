//! The predictions that a copy keeps in its job's record beside what came of them ([`imago_job::prediction`]):
//!
//! - [`COPY_S`]: the time from the first report after a tenth of the bulk until the destination has caught up, or, for a
//!   reshard, until it has committed;
//! - [`INDEX_S`]: the time of building the indexes, predicted when it begins;
//! - [`BYTES`]: the size of the bulk, predicted before it begins;
//! - [`RESHARD_S`]: the time of a reshard, which its plan predicted.

use imago_job::clock::now_ms;
use imago_job::journal::Journal;
use imago_job::prediction::{Interval, Prediction, Quality};
use imago_job::record::Record;
use imago_job::run::Run;

use super::CopyJob;
use super::forecast::index_s;
use crate::state::journal::MongoJournal;

/// The time from a tenth of the bulk until the end, in seconds.
pub const COPY_S: &str = "copy_s";
/// The time of building the indexes, in seconds.
pub const INDEX_S: &str = "index_s";
/// The size of the bulk's documents, in bytes.
pub const BYTES: &str = "bytes";

/// The time of a whole reshard, from its start until it has committed, in seconds.
pub const RESHARD_S: &str = "reshard_s";

/// Factor by which the size of the documents that are copied may differ from the size that the server tells, which is older,
/// and includes documents that a filter leaves out.
const BYTES_FACTOR: f64 = 1.05;

/// Returns the factor by which intervals of [`COPY_S`] are widened, on a logarithmic scale: by what came of those of the
/// other jobs in the journal.
pub(super) async fn widening(journal: &MongoJournal) -> f64 {
    let records = earlier(journal).await;
    let all: Vec<Prediction> = records.into_iter().flat_map(|record| record.predictions).collect();
    Quality::by_name(all.iter().filter(|one| one.name == COPY_S))
        .first()
        .map_or(1.0, |quality| quality.widening)
}

/// Returns the records of all jobs, the oldest first, or none if they cannot be read: predictions do without them.
async fn earlier(journal: &MongoJournal) -> Vec<Record> {
    journal.list().await.unwrap_or_else(|error| {
        tracing::debug!(%error, "earlier predictions are not known");
        Vec::new()
    })
}

impl CopyJob<'_> {
    /// Records the prediction of the end once a tenth of the bulk is copied. `left` is the time that is left, in seconds.
    pub(super) fn predict_end(&self, bytes_done: u64, left: Option<Interval>) {
        let is_tenth = bytes_done >= self.progress.total.1 / 10;
        if let Some(left) = left.filter(|_| is_tenth && !self.coordinator.is_copied()) {
            self.run.predict(COPY_S, left, now_ms());
        }
    }

    /// Records the size of the bulk that is expected.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub(super) fn predict_bytes(&self) {
        let expected = self.progress.total.1 as f64;
        self.run.predict(BYTES, Interval::within(expected, BYTES_FACTOR), now_ms());
    }

    /// Records the size of the bulk that was copied.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub(super) fn realize_bytes(&self) {
        let (_, bytes) = self.counters.copied();
        self.run.realize(BYTES, |_| (bytes + self.progress.copied_before.1) as f64);
    }

    /// Records that the build of indexes begins, and how long it is expected to take.
    pub(super) fn predict_indexes(&mut self) {
        self.progress.index_began = Some(std::time::Instant::now());
        if let Some(time) = index_s(self.progress.entries) {
            self.run.predict(INDEX_S, time, now_ms());
        }
    }

    /// Records that the indexes are built.
    pub(super) fn realize_indexes(&self) {
        self.run.realize(INDEX_S, seconds_since);
    }

    /// Records that the copy has caught up, and follows the source from now on without an end.
    pub(super) fn realize_end(&mut self) {
        self.progress.is_caught_up = true;
        realize_end(self.run);
    }

    /// Says that all documents are compared after the copy has caught up, and that the end comes after that.
    pub(crate) fn expect_comparison(&mut self) {
        self.progress.compares = true;
    }

    /// Says that the comparison begins.
    pub(crate) fn begin_comparison(&mut self) {
        self.progress.compare_began = Some(std::time::Instant::now());
    }
}

/// Factor by which a plan may be wrong about the time of a reshard, where none has been made yet.
const RESHARD_FACTOR: f64 = 2.0;

/// Records how long a reshard is expected to take, by its plan and by what came of the plans of the cluster's earlier ones at such a pace, which
/// `planned_s` returns of their records: `predicted_s` without load from clients, and `paced_s` at the least pace, all in seconds. A
/// later process of a job does not begin from the start, and records nothing.
pub(crate) async fn predict_reshard(
    run: &Run,
    journal: &MongoJournal,
    (predicted_s, paced_s): (f64, Option<f64>),
    planned_s: impl Fn(&Record) -> Option<f64>,
) {
    if run.epoch() > 1 {
        return;
    }
    let records = earlier(journal).await;
    // Jobs at full pace say little of those that spare clients.
    let is_alike = |record: &Record| record.limits.is_paced == run.record().limits.is_paced;
    let came = |record: &Record| {
        let took = record.predictions.iter().find(|one| one.name == RESHARD_S)?.realized?;
        Some(took / planned_s(record)?)
    };
    let ratios: Vec<f64> =
        records.iter().filter(|record| is_alike(record)).filter_map(came).collect();
    let time = Interval::corrected(predicted_s, &ratios, RESHARD_FACTOR);
    let high = paced_s.unwrap_or(0.0).max(time.high);
    run.predict(RESHARD_S, Interval::new(time.low, time.expected, high), now_ms());
}

/// Records that the work of a job is done whose end was predicted.
pub(crate) fn realize_end(run: &Run) {
    run.realize(COPY_S, seconds_since);
    run.realize(RESHARD_S, seconds_since);
}

#[expect(clippy::cast_precision_loss, reason = "a time")]
fn seconds_since(at_ms: u64) -> f64 {
    now_ms().saturating_sub(at_ms) as f64 / 1_000.0
}
