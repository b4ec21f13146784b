//! Verification that a copy equals its source, while both may be changing.
//!
//! The method is that of the Mailbox migration ("Verifying copied data", 2013). Documents that differed are compared
//! again with growing pauses, because a document that was read between a change and its copy is not a difference. The
//! documents of the last operations are compared before clients move to the destination. Two gaps of that method are
//! closed: documents that exist only at the destination, and the order of fields.
//!
//! Invariants:
//! - "Equal" means the same bytes. Only the `_id` of a document, which aligns both sides, is parsed.
//! - Writes that were acknowledged at either side before the verification began are included: every read has
//!   majority read concern and waits for the cluster time at which the verification began.
//! - A difference is reported only after every retry, at the primaries, found it again.
//! - Servers that are unavailable for a while, such as during an election, do not end the verification, and the
//!   wait for each is bounded ([`read_retry`]).
//! - Memory is bounded: batches by the server's 16 MB, suspects by [`Spec::suspects_max`].
//!
//! A running verification does not detect a document that is written at a position that both readers have passed.
//! [`Mode::LastOps`] after writes have stopped closes that gap.

use std::sync::Arc;

use bson::{Document, Timestamp};
use imago_job::control::Control;
use serde::{Deserialize, Serialize};

use crate::bson::order::Id;
use crate::error::{Error, Result};
use crate::replicate::route::Route;
use crate::server::collection::{Definition, Handle, Kind as CollectionKind};
use crate::server::retention::Suspension;
use crate::server::shard::index_gaps;

mod duplicate_ids;
mod expiry;
mod feed;
mod filter;
mod full;
mod last_ops;
mod lookup;
mod merge;
mod mismatch;
mod progress;
pub(crate) mod read_retry;
mod recheck;
mod sample;
mod schedule;
mod shards;
mod structure;
mod suspects;

pub(crate) use duplicate_ids::find_duplicate;
pub use filter::check as check_filter;
pub use mismatch::{Difference, Mismatch, MismatchFileError, read_mismatches};
pub use schedule::Retries;
pub use structure::StructureDifference;
pub(crate) use structure::{indexes as index_differences, options as options_differences};

use expiry::Expiry;
use lookup::{Lookup, Members};
use read_retry::retry_transient;
use recheck::Confirmed;
use suspects::Suspects;

/// The documents that a verification compares.
#[derive(Clone, Debug, PartialEq)]
pub enum Mode {
    /// All documents of both sides.
    Full,
    /// About this many documents, drawn at random from each side.
    Sample(u64),
    /// This share (between 0 and 1) of each side's documents, drawn at random.
    Fraction(f64),
    /// The documents that the source's last operations wrote; contains the number of operations.
    LastOps(u64),
    /// The documents with these `_id`s.
    Ids(Vec<Id>),
}

/// Extent of a verification, its retries and its limits.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The documents that are compared.
    pub mode: Mode,
    /// Query filter; only documents that match it are compared. `None` compares all documents.
    pub filter: Option<Document>,
    /// Rounds and pauses of the retries before a difference is reported.
    pub retries: Retries,
    /// Number of ranges of `_id`s that a full verification reads concurrently; one range at a time while the job is
    /// paced.
    pub workers: usize,
    /// Maximum number of suspects, documents that differed once; the search for more ends when it would be exceeded.
    pub suspects_max: usize,
    /// Maximum number of differences that the report lists; its counts include all differences.
    pub listed_max: usize,
    /// True if the options and indexes of the collections are compared too.
    pub structure: bool,
    /// The route past the router to the shards, for a full comparison within one cluster; `None` reads through the
    /// router.
    pub route: Option<Arc<Route>>,
    /// The `_id`s at which a full comparison divides the collection into ranges. If the list is empty, the
    /// verification determines them itself.
    pub cuts: Vec<Id>,
    /// True if a job replicates to the destination and has suspended the retention rules (expiry and limits) there.
    pub is_retention_suspended: bool,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            mode: Mode::Full,
            filter: None,
            retries: Retries::default(),
            workers: 2,
            suspects_max: 1_000_000,
            listed_max: 100,
            structure: true,
            route: None,
            cuts: Vec::new(),
            is_retention_suspended: false,
        }
    }
}

/// Counts of the source's last operations, as [`Mode::LastOps`] read them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastOps {
    /// Number of operations that were requested.
    pub wanted: u64,
    /// Number of operations that the source's log still contains, at most the requested number.
    pub found: u64,
    /// Number of distinct documents that the found operations wrote.
    pub documents: u64,
    /// The log that was read: `oplog` or `change stream`.
    pub read_from: String,
}

/// Progress of a verification, passed to [`Watch::progress`] from time to time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of documents compared so far.
    pub compared: u64,
    /// Estimated number of documents to compare; `None` if unknown.
    pub expected: Option<u64>,
    /// Number of documents that differed at their last comparison.
    pub suspects: u64,
    /// Number of the round of retries that is running, from 1; 0 during the first comparison.
    pub retry: u32,
}

/// Result of the verification of one collection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Full name of the collection at the source.
    pub source: String,
    /// Full name of the collection at the destination.
    pub destination: String,
    /// Number of documents (distinct `_id`s) that were compared.
    pub compared: u64,
    /// Size of the documents that were read from the source for the comparison, in bytes.
    pub compared_bytes: u64,
    /// True if the destination has no such collection. All of the source's documents are then counted as missing, and
    /// none is listed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_missing: bool,
    /// Number of documents that only the source has.
    pub missing: u64,
    /// Number of documents that only the destination has.
    pub extra: u64,
    /// Number of documents that both sides have with different bytes.
    pub different: u64,
    /// Number of `_id`s that one side has more than once (on different shards).
    pub duplicate: u64,
    /// Number of differences included in the counts above whose source document still changed between the last two
    /// rounds of retries.
    pub unsettled: u64,
    /// Number of documents that differed at the first comparison.
    pub suspected: u64,
    /// Number of suspected documents that a later comparison found equal.
    pub resolved: u64,
    /// Number of suspected documents that are due for deletion by a TTL index and that one side's server has deleted
    /// already. They are not differences.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub expired: u64,
    /// Number of rounds in which suspected documents were compared again.
    pub retries: u32,
    /// The first differences, at most [`Spec::listed_max`]; the counts include all differences.
    pub differences: Vec<Mismatch>,
    /// The collection's options that differ.
    pub options_differences: Vec<StructureDifference>,
    /// The collection's indexes that differ.
    pub index_differences: Vec<StructureDifference>,
    /// Counts of the last operations; `None` unless the mode was [`Mode::LastOps`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_ops: Option<LastOps>,
    /// Reason why not all requested documents were compared; `None` if all were. The counts are exact for the
    /// documents that were compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
    /// Duration of the verification, in milliseconds.
    pub elapsed_ms: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl Report {
    /// Returns the number of documents that differ, of all kinds.
    #[must_use]
    pub fn document_differences(&self) -> u64 {
        self.missing + self.extra + self.different + self.duplicate
    }

    fn count(&mut self, kind: Difference) {
        *match kind {
            Difference::Missing => &mut self.missing,
            Difference::Extra => &mut self.extra,
            Difference::Different => &mut self.different,
            Difference::Duplicate => &mut self.duplicate,
        } += 1;
    }

    /// Replaces the differences by `differences`, those that a later comparison confirmed, and counts the others as
    /// resolved.
    pub(crate) fn keep(&mut self, differences: Vec<Mismatch>) {
        self.resolved += self.document_differences() - differences.len() as u64;
        (self.missing, self.extra, self.different, self.duplicate, self.unsettled) =
            Default::default();
        for mismatch in &differences {
            self.count(mismatch.kind);
        }
        self.differences = differences;
    }

    /// Returns true if all that was requested was compared and found equal.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        !self.is_missing
            && self.document_differences() == 0
            && self.options_differences.is_empty()
            && self.index_differences.is_empty()
            && self.incomplete.is_none()
    }
}

/// Receiver of the reports of a running verification.
pub trait Watch: Send {
    /// Receives the verification's progress from time to time.
    fn progress(&mut self, progress: Progress);

    /// Receives a difference that every retry confirmed.
    ///
    /// # Errors
    /// Fails if the difference cannot be recorded, which ends the verification.
    fn mismatch(&mut self, mismatch: &Mismatch) -> std::io::Result<()>;
}

/// A [`Watch`] that ignores all reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn progress(&mut self, _: Progress) {}

    fn mismatch(&mut self, _: &Mismatch) -> std::io::Result<()> {
        Ok(())
    }
}

/// Compares the collection `source` with `destination` as `spec` requests, and returns a report of the differences.
///
/// # Errors
/// Returns a precondition error if the source does not exist, if either side is a time series, or if one is a view
/// and the other is not; a usage error if both are views and only documents are to be compared, or if a mismatch
/// cannot be recorded; a server's error that retries did not remedy; [`Error::Stopped`] when `control` stops the
/// verification.
#[crate::boxed]
pub async fn verify(
    source: &Handle,
    destination: &Handle,
    spec: &Spec,
    control: &Control,
    watch: &mut dyn Watch,
) -> Result<Report> {
    let began = std::time::Instant::now();
    if let Some(filter) = &spec.filter {
        let check = || filter::check(source, filter);
        retry_transient("check the filter", control, check).await?;
    }
    let mut report = Report {
        source: source.ns.to_string(),
        destination: destination.ns.to_string(),
        ..Report::default()
    };
    let left = retry_transient("look at the source", control, || defined(source)).await?;
    let left = left.ok_or_else(|| {
        Error::precondition(
            format!("there is no collection {} at the source", source.ns),
            "check the name; collections are named database.collection",
        )
    })?;
    let right =
        retry_transient("look at the destination", control, || defined(destination)).await?;
    let Some(right) = right else {
        report.is_missing = true;
        if left.kind == CollectionKind::Collection {
            report.missing =
                retry_transient("count the documents", control, || source.size()).await?.documents;
        }
        report.elapsed_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        return Ok(report);
    };
    check_kinds(source, &left, destination, &right, spec)?;
    if spec.structure {
        let suspension = Suspension::between(&source.endpoint, &destination.endpoint);
        let plain = |of: &Definition| match spec.is_retention_suspended {
            true => suspension.applied_to(of),
            false => of.clone(),
        };
        let (left, right) = (plain(&left), plain(&right));
        report.options_differences = structure::options(&left, &right);
        report.index_differences = structure::indexes(&left, &right);
        for (side, is_source) in [(source, true), (destination, false)] {
            let look = || index_gaps(side);
            let gaps = retry_transient("compare the shards' indexes", control, look).await?;
            report.index_differences.extend(gaps.into_iter().map(|gap| {
                let told = Some(gap.to_string());
                let (source, destination) = if is_source { (told, None) } else { (None, told) };
                StructureDifference { name: gap.index, source, destination }
            }));
        }
    }
    if left.kind == CollectionKind::Collection {
        documents(source, destination, (&left, &right), spec, control, watch, &mut report).await?;
    }
    report.elapsed_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(report)
}

async fn defined(side: &Handle) -> Result<Option<Definition>> {
    let definition = side.definition().await?;
    if definition.as_ref().is_some_and(|found| found.kind == CollectionKind::TimeSeries) {
        return Err(Error::precondition(
            format!("{} at the {} is a time series collection", side.ns, side.endpoint.role()),
            "time series are not copied and cannot be verified",
        ));
    }
    Ok(definition)
}

/// Refuses two objects that cannot be compared, because a report on them would be clean.
fn check_kinds(
    source: &Handle,
    left: &Definition,
    destination: &Handle,
    right: &Definition,
    spec: &Spec,
) -> Result<()> {
    let is_view = |definition: &Definition| definition.kind == CollectionKind::View;
    if is_view(left) != is_view(right) {
        let word = |definition| if is_view(definition) { "view" } else { "collection" };
        return Err(Error::precondition(
            format!(
                "{} at the source is a {}, but {} at the destination is a {}",
                source.ns,
                word(left),
                destination.ns,
                word(right)
            ),
            "name what belongs together with --ns a.b=c.d, or drop the wrong one and copy it anew",
        ));
    }
    if is_view(left) && !spec.structure {
        return Err(Error::usage(
            format!("{} is a view, which has no documents of its own", source.ns),
            "compare its definition: leave out --documents-only",
        ));
    }
    Ok(())
}

/// Inputs that all comparisons of documents of one verification share.
struct Search<'a> {
    lookup: &'a Lookup,
    spec: &'a Spec,
    control: &'a Control,
    /// True if a collation orders the `_id`s of either side.
    collated: bool,
}

async fn documents(
    source: &Handle,
    destination: &Handle,
    (left, right): (&Definition, &Definition),
    spec: &Spec,
    control: &Control,
    watch: &mut dyn Watch,
    report: &mut Report,
) -> Result<()> {
    let begin = || Lookup::new(source, destination, spec.filter.as_ref());
    let lookup = retry_transient("ask for the time", control, begin).await?;
    let collated = left.is_collated() || right.is_collated();
    let search = Search { lookup: &lookup, spec, control, collated };
    let mut suspects = Suspects::new(spec.suspects_max);
    match &spec.mode {
        Mode::Full => full::compare(&search, &mut suspects, watch, report).await?,
        Mode::Sample(_) | Mode::Fraction(_) => {
            sample::compare(&search, &mut suspects, watch, report).await?;
        }
        Mode::LastOps(wanted) => {
            let (ids, found) = last_ops::read(source, *wanted, control).await?;
            report.last_ops = Some(found);
            sample::compare_ids(&search, &ids, &mut suspects, watch, report).await?;
        }
        Mode::Ids(ids) => {
            sample::compare_ids(&search, ids, &mut suspects, watch, report).await?;
        }
    }
    if suspects.is_full() {
        report.incomplete =
            Some(format!("stopped after {} documents seemed different", suspects.len()));
    }
    report.suspected += suspects.len() as u64;
    let mut settled = recheck::recheck(&search, suspects, watch, report).await?;
    let before = settled.len();
    settled = Expiry::of(left, right).unexpired(source, destination, settled, control).await?;
    report.expired += (before - settled.len()) as u64;
    record(source, destination, spec, settled, watch, report)
}

/// Compares the documents with these `ids`, reading the source as of exactly the cluster time `at`. The caller
/// guarantees that the destination has that state and does not change. Returns the differences.
///
/// # Errors
/// Returns a server's error that retries did not remedy, including that the source no longer has the state as of
/// `at`; [`Error::Stopped`] when `control` stops the comparison.
pub(crate) async fn verify_as_of(
    at: Timestamp,
    source: &Handle,
    destination: &Handle,
    filter: Option<&Document>,
    ids: &[Id],
    control: &Control,
) -> Result<Vec<Mismatch>> {
    let begin = || Lookup::as_of(at, source, destination, filter);
    let lookup = retry_transient("ask for the time", control, begin).await?;
    let examined = lookup.examine(ids, Members::Primary, control).await?;
    let differing = examined.differing.into_iter();
    Ok(differing.map(|d| Mismatch::new(&source.ns, &destination.ns, d.id, d.kind)).collect())
}

fn record(
    source: &Handle,
    destination: &Handle,
    spec: &Spec,
    settled: Vec<Confirmed>,
    watch: &mut dyn Watch,
    report: &mut Report,
) -> Result<()> {
    for Confirmed { id, kind, is_changing } in settled {
        report.count(kind);
        report.unsettled += u64::from(is_changing);
        let mismatch = Mismatch::new(&source.ns, &destination.ns, id, kind);
        watch.mismatch(&mismatch).map_err(|cause| {
            Error::usage(
                format!("the file of mismatches cannot be written: {cause}"),
                "name a file on a disk with room that this user may write",
            )
        })?;
        if report.differences.len() < spec.listed_max {
            report.differences.push(mismatch);
        }
    }
    Ok(())
}
