//! Proving that a copy equals its source, while both may be changing.
//!
//! The idea is that of the Mailbox migration ("Verifying copied data", 2013): compare, and compare
//! again with growing pauses the documents that looked different, because a document that was
//! caught between a change and its copy is no difference; and compare the documents of the last
//! operations before clients move over. The gaps of that design are closed too: documents that
//! exist only at the destination, and order of fields.
//!
//! Invariants:
//! - "Equal" means the same bytes. Nothing is parsed but the `_id`, which aligns both sides.
//! - Writes that were acknowledged at either side before the verification began are seen by it:
//!   every read has majority read concern and waits for the cluster time at which the verification
//!   began.
//! - A difference is reported only after it was seen again in every retry, at the primaries.
//! - Servers that are away for a while, an election say, end nothing; none is waited for without end
//!   ([`patience`]).
//! - Memory is bounded: batches by the server's 16 MB, suspects by [`Spec::suspects_max`].
//!
//! A running verification cannot see a document that is written behind both readers after they
//! passed. [`Mode::LastOps`] after writes have stopped closes that gap.

use std::sync::Arc;

use bson::{Document, Timestamp};
use imago_job::control::Control;
use serde::{Deserialize, Serialize};

use crate::bson::order::Id;
use crate::error::{Error, Result};
use crate::replicate::route::Route;
use crate::server::collection::{Definition, Handle, Kind as CollectionKind};
use crate::server::shard::index_gaps;

mod duplicate_ids;
mod feed;
mod filter;
mod full;
mod last_ops;
mod lookup;
mod merge;
mod mismatch;
pub(crate) mod patience;
mod progress;
mod recheck;
mod sample;
mod schedule;
mod shards;
mod structure;
mod suspects;

pub(crate) use duplicate_ids::{counted_twice, held_twice};
pub use filter::check as check_filter;
pub use mismatch::{Difference, Mismatch, MismatchFileError, read_mismatches};
pub use schedule::Retries;
pub use structure::StructureDifference;
pub(crate) use structure::{indexes as index_differences, options as options_differences};

use lookup::{Lookup, Members};
use patience::retry_transient;
use recheck::Confirmed;
use suspects::Suspects;

/// Which documents are compared.
#[derive(Clone, Debug, PartialEq)]
pub enum Mode {
    /// All of both sides.
    Full,
    /// About this many, chosen at random from each side.
    Sample(u64),
    /// This share of each side, between 0 and 1, chosen at random.
    Fraction(f64),
    /// Those that the source's last operations wrote, this many operations.
    LastOps(u64),
    /// These.
    Ids(Vec<Id>),
}

/// The extent of a verification, and its patience.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Which documents.
    pub mode: Mode,
    /// Only documents that match it.
    pub filter: Option<Document>,
    /// The pauses before a difference is called one.
    pub retries: Retries,
    /// Ranges of a full verification that are read at the same time.
    pub workers: usize,
    /// More documents than this that look different end the search for more of them.
    pub suspects_max: usize,
    /// Most differences that the report lists; it counts all of them.
    pub listed_max: usize,
    /// Options and indexes are compared too.
    pub structure: bool,
    /// Past the router to the shards, where both sides are in one cluster and a full comparison
    /// wants it.
    pub route: Option<Arc<Route>>,
    /// Bounds of a full comparison's ranges; it finds them itself when there are none.
    pub cuts: Vec<Id>,
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
        }
    }
}

/// The last operations of the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastOps {
    /// Requested operations.
    pub wanted: u64,
    /// Operations that the source still remembers, at most the requested ones.
    pub found: u64,
    /// Different documents that they wrote.
    pub documents: u64,
    /// The place from which they were read: `oplog` or `change stream`.
    pub read_from: String,
}

/// The progress of a verification; handed to the caller now and then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Documents compared so far.
    pub compared: u64,
    /// About how many there are, where that is known.
    pub expected: Option<u64>,
    /// Documents that look different so far.
    pub suspects: u64,
    /// Which retry is running; 0 during the first comparison.
    pub retry: u32,
}

/// The result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The collection at the source.
    pub source: String,
    /// The collection at the destination.
    pub destination: String,
    /// Documents (different `_id`s) that were compared.
    pub compared: u64,
    /// Bytes of documents that were read from the source for that.
    pub compared_bytes: u64,
    /// True if the destination has no such collection: then all of the source's documents are
    /// missing, and none is listed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_missing: bool,
    /// Documents that are only at the source.
    pub missing: u64,
    /// Documents that are only at the destination.
    pub extra: u64,
    /// Documents that are at both sides with different bytes.
    pub different: u64,
    /// `_id`s that one side holds more than once (on different shards).
    pub duplicate: u64,
    /// Among the above, those that were still being changed at the last retry.
    pub unsettled: u64,
    /// Documents that looked different at first.
    pub suspected: u64,
    /// Those of them that a retry found equal.
    pub resolved: u64,
    /// Rounds of retries that were made.
    pub retries: u32,
    /// The first differences; the counts include all of them.
    pub differences: Vec<Mismatch>,
    /// Options that differ.
    pub options_differences: Vec<StructureDifference>,
    /// Indexes that differ.
    pub index_differences: Vec<StructureDifference>,
    /// The result of [`Mode::LastOps`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_ops: Option<LastOps>,
    /// The reason that not everything was compared, if so; the counts are exact for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
    /// Duration of the verification, in ms.
    pub elapsed_ms: u64,
}

impl Report {
    /// Differences between documents.
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

    /// Replaces the differences so far by the findings of a better look.
    pub(crate) fn keep(&mut self, differences: Vec<Mismatch>) {
        self.resolved += self.document_differences() - differences.len() as u64;
        (self.missing, self.extra, self.different, self.duplicate, self.unsettled) =
            Default::default();
        for mismatch in &differences {
            self.count(mismatch.kind);
        }
        self.differences = differences;
    }

    /// True if everything requested was compared and found equal.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        !self.is_missing
            && self.document_differences() == 0
            && self.options_differences.is_empty()
            && self.index_differences.is_empty()
            && self.incomplete.is_none()
    }
}

/// The reports of a verification while it runs.
pub trait Watch: Send {
    /// Receives the progress, from time to time.
    fn progress(&mut self, progress: Progress);

    /// Receives a difference that outlasted all retries.
    ///
    /// # Errors
    /// Fails if the difference cannot be recorded: that ends the verification.
    fn mismatch(&mut self, mismatch: &Mismatch) -> std::io::Result<()>;
}

/// A watch that does not look.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn progress(&mut self, _: Progress) {}

    fn mismatch(&mut self, _: &Mismatch) -> std::io::Result<()> {
        Ok(())
    }
}

/// Compares `source` with `destination`.
///
/// # Errors
/// Precondition if the source does not exist, either is a time series, or one is a view and the other is
/// not; usage if they are views, and nothing but documents shall be compared; a server's error that
/// retries did not mend; [`Error::Stopped`] when `control` says so.
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
        let collated = left.is_collated() || right.is_collated();
        documents(source, destination, collated, spec, control, watch, &mut report).await?;
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

/// Collections that cannot be compared are an error: a report on them would be clean.
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

/// Everything that the first comparison needs; the retries that follow need only the [`Lookup`].
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
    collated: bool,
    spec: &Spec,
    control: &Control,
    watch: &mut dyn Watch,
    report: &mut Report,
) -> Result<()> {
    let begin = || Lookup::new(source, destination, spec.filter.as_ref());
    let lookup = retry_transient("ask for the time", control, begin).await?;
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
            Some(format!("stopped looking after {} documents looked different", suspects.len()));
    }
    report.suspected += suspects.len() as u64;
    let settled = recheck::recheck(&search, suspects, watch, report).await?;
    record(source, destination, spec, settled, watch, report)
}

/// Compares the documents that `ids` names, the source as it was at exactly `at`: for a caller that knows
/// that the destination is just that, and does not change.
///
/// # Errors
/// A server's error that retries did not mend, also when the source no longer keeps that state;
/// [`Error::Stopped`] when `control` says so.
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
