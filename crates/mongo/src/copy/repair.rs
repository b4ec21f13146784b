//! Repair: copies again exactly the documents that a verification found different.
//!
//! The idea is that of the Mailbox migration ("Handling the unexpected", 2013): not every cause can be foreseen, but
//! every document that is wrong can be named, so a tool that copies named documents again repairs all of them. Each
//! document is read again from the source, the destination is made equal to it ([`crate::replicate::apply`]), and the
//! written documents are verified like any other copy.
//!
//! Invariants:
//! - Only documents that the mismatch file names are written, and those that conflict with them in a unique index.
//! - A document counts as repaired only after it was found equal.
//! - A document that the destination refuses does not prevent the repair of the others.
//! - Memory is bounded: the file is processed in parts of [`PART_LEN`] lines.
//!
//! A copy that follows the source may write the same documents at the same time. If the older state of a document is
//! written last, the verification finds it, and the document is repaired again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bson::{Document, RawDocumentBuf, rawdoc};
use imago_job::control::Control;
use imago_job::retry::{Budget, retry};
use imago_plan::copy::pending_changes::Change;
use imago_plan::pacing::backoff::Backoff;
use serde::Serialize;

use crate::bson::order::Id;
use crate::copy::preflight::key_fields;
use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::replicate::apply::{ReadAt, Tally, Want, apply};
use crate::replicate::pair::Pair;
use crate::server::collection::{Handle, Kind};
use crate::server::endpoint::Endpoint;
use crate::server::write;
use crate::verify::{
    Difference, Mismatch, MismatchFileError, Mode, Retries, Spec, Unwatched, verify,
};

/// Most lines of the mismatch file that are processed together.
const PART_LEN: usize = 10_000;
/// Most documents that one call makes equal at the destination.
const BATCH_LEN: usize = 500;
/// Most attempts to repair the documents of one part of the file that a verification still finds different.
const ATTEMPTS_MAX: u32 = 3;
/// Most rounds in which one batch, and then the documents that it displaced from a unique index, are written.
const DISPLACED_ROUNDS_MAX: u32 = 16;

/// Limits of the retries of one write of a batch.
const BUDGET: Budget = Budget {
    attempts_max: 60,
    elapsed_max: Duration::from_secs(120),
    backoff: Backoff { first_ms: 50, max_ms: 2_000 },
};

/// The filter, the retries and the limits of a repair.
#[derive(Clone, Debug)]
pub struct RepairSpec {
    /// Condition that the copied documents match: a document that does not match it counts as absent at the source.
    pub filter: Option<Document>,
    /// The retries of the verification that follows the writes.
    pub retries: Retries,
    /// Most refused documents, and most that still differ, that the whole report lists; it counts all of them.
    pub listed_max: usize,
}

impl Default for RepairSpec {
    fn default() -> Self {
        Self { filter: None, retries: Retries::default(), listed_max: 100 }
    }
}

/// A document that the destination refuses to store.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Refused {
    /// The document and its difference, as the mismatch file names them.
    #[serde(flatten)]
    pub mismatch: Mismatch,
    /// The error that the destination returned for the document, as text.
    pub cause: String,
    /// The remedy for the operator; `None` if none is known.
    pub help: Option<String>,
}

/// The result of a repair.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RepairReport {
    /// Number of documents that the mismatch file named.
    pub named: u64,
    /// Number of documents that were written at the destination.
    pub written: u64,
    /// Number of documents that were deleted at the destination, or found absent already.
    pub deleted: u64,
    /// Number of named documents that were found equal afterwards.
    pub repaired: u64,
    /// Number of named documents that the destination refuses.
    pub refused: u64,
    /// Number of named documents that were written or deleted and still differ.
    pub remaining: u64,
    /// The first documents that were refused, at most [`RepairSpec::listed_max`].
    pub refusals: Vec<Refused>,
    /// The first documents that still differ, at most [`RepairSpec::listed_max`].
    pub differences: Vec<Mismatch>,
}

impl RepairReport {
    /// Returns true if every named document now equals the source's.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.refused == 0 && self.remaining == 0
    }
}

/// The error that ended a repair early.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// The mismatch file cannot be used.
    #[error(transparent)]
    File(#[from] MismatchFileError),
    /// An error of a cluster, or of a collection that the mismatch file names.
    #[error(transparent)]
    Cluster(#[from] Error),
}

/// Copies the documents that `mismatches` names from `source` to `destination` again. `progress` receives the number
/// of documents processed so far.
///
/// # Errors
/// Fails on a line of the mismatch file that cannot be used, on a collection that does not exist, and on a server's
/// error that persists despite retries. Documents that were repaired before that stay repaired; it is safe to run the
/// repair again.
pub async fn repair(
    source: &Endpoint,
    destination: &Endpoint,
    mismatches: impl Iterator<Item = Result<Mismatch, MismatchFileError>>,
    spec: &RepairSpec,
    control: &Control,
    mut progress: impl FnMut(u64),
) -> Result<RepairReport, RepairError> {
    let mut report = RepairReport::default();
    let mut pairs: BTreeMap<(Namespace, Namespace), Pair> = BTreeMap::new();
    let mut mismatches = mismatches.peekable();
    while mismatches.peek().is_some() {
        let part: Vec<Mismatch> =
            mismatches.by_ref().take(PART_LEN).collect::<Result<_, MismatchFileError>>()?;
        let mut by_pair: BTreeMap<(Namespace, Namespace), Vec<Mismatch>> = BTreeMap::new();
        for mismatch in part {
            let names = (mismatch.ns.clone(), mismatch.destination().clone());
            by_pair.entry(names).or_default().push(mismatch);
        }
        for (names, mismatches) in by_pair {
            if !pairs.contains_key(&names) {
                let pair = pair(source, destination, &names, spec).await?;
                pairs.insert(names.clone(), pair);
            }
            report.named += mismatches.len() as u64;
            repair_part(&pairs[&names], &mismatches, spec, control, &mut report).await?;
            progress(report.named);
        }
    }
    Ok(report)
}

async fn pair(
    source: &Endpoint,
    destination: &Endpoint,
    (from, to): &(Namespace, Namespace),
    spec: &RepairSpec,
) -> Result<Pair> {
    let mut sides = Vec::new();
    for (endpoint, ns) in [(source, from), (destination, to)] {
        let mut handle = Handle::new(endpoint.clone(), ns.clone());
        let definition = handle.definition().await?;
        let role = endpoint.role();
        let definition =
            definition.filter(|found| found.kind == Kind::Collection).ok_or_else(|| {
                Error::precondition(
                    format!("{ns} at the {role} is no collection that could be repaired"),
                    "check the names in the file; views and time series have no documents",
                )
            })?;
        handle.bypass_validation = definition.is_validated();
        sides.push((handle, definition));
    }
    let (destination, to) = sides.pop().expect("two sides were asked");
    let (source, from) = sides.pop().expect("two sides were asked");
    Ok(Pair {
        source,
        destination,
        filter: spec.filter.clone(),
        is_collated: from.is_collated() || to.is_collated(),
        shard_key: key_fields(to.shard_key.as_ref()),
        // A document that has a unique index's value is removed only once it is known to be stale.
        has_foreign: true,
    })
}

async fn repair_part(
    pair: &Pair,
    mismatches: &[Mismatch],
    spec: &RepairSpec,
    control: &Control,
    report: &mut RepairReport,
) -> Result<()> {
    let named: BTreeSet<&Id> = mismatches.iter().map(|mismatch| &mismatch.id).collect();
    let mut differing: Vec<Mismatch> = mismatches.to_vec();
    let mut refused: BTreeMap<Id, Refused> = BTreeMap::new();
    for _ in 0..ATTEMPTS_MAX {
        if differing.is_empty() {
            break;
        }
        write_all(pair, &differing, control, report, &mut refused).await?;
        let ids = differing.iter().map(|mismatch| mismatch.id.clone());
        let to_check: Vec<Id> = ids.filter(|id| !refused.contains_key(id)).collect();
        differing = still_differing(pair, to_check, spec, control).await?;
    }
    report.refused += refused.len() as u64;
    report.remaining += differing.len() as u64;
    report.repaired += (named.len() - refused.len() - differing.len()) as u64;
    let room = |listed: usize| spec.listed_max.saturating_sub(listed);
    report.refusals.extend(refused.into_values().take(room(report.refusals.len())));
    report.differences.extend(differing.into_iter().take(room(report.differences.len())));
    Ok(())
}

async fn still_differing(
    pair: &Pair,
    ids: Vec<Id>,
    spec: &RepairSpec,
    control: &Control,
) -> Result<Vec<Mismatch>> {
    let verify_spec = Spec {
        listed_max: ids.len(),
        mode: Mode::Ids(ids),
        filter: spec.filter.clone(),
        retries: spec.retries,
        structure: false,
        ..Spec::default()
    };
    let (source, destination) = (&pair.source, &pair.destination);
    let found = verify(source, destination, &verify_spec, control, &mut Unwatched).await?;
    Ok(found.differences)
}

/// Makes the documents that `mismatches` names equal at the destination, in batches. If a document of a batch is
/// refused, the batch is written one by one, and the document is added to `refused`.
async fn write_all(
    pair: &Pair,
    mismatches: &[Mismatch],
    control: &Control,
    report: &mut RepairReport,
    refused: &mut BTreeMap<Id, Refused>,
) -> Result<()> {
    let duplicates: Vec<&Id> = mismatches
        .iter()
        .filter(|mismatch| mismatch.kind == Difference::Duplicate)
        .map(|mismatch| &mismatch.id)
        .collect();
    for ids in duplicates.chunks(BATCH_LEN) {
        let what = format!("remove duplicates from {}", pair.destination.ns);
        retry(&what, &BUDGET, control, Error::is_transient, |_| Box::pin(remove_all(pair, ids)))
            .await?;
    }
    for batch in mismatches.chunks(BATCH_LEN) {
        let ids: Vec<Id> = batch.iter().map(|mismatch| mismatch.id.clone()).collect();
        match write_batch(pair, &ids, control).await {
            Ok(tally) => add(report, tally),
            Err(Error::Document { .. }) => {
                for mismatch in batch {
                    write_one(pair, mismatch, control, report, refused).await?;
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn write_one(
    pair: &Pair,
    mismatch: &Mismatch,
    control: &Control,
    report: &mut RepairReport,
    refused: &mut BTreeMap<Id, Refused>,
) -> Result<()> {
    let id = mismatch.id.clone();
    match write_batch(pair, std::slice::from_ref(&id), control).await {
        Ok(tally) => add(report, tally),
        Err(error @ Error::Document { .. }) => {
            let cause = error.to_string();
            let help = error.help();
            refused.insert(id, Refused { mismatch: mismatch.clone(), cause, help });
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

fn add(report: &mut RepairReport, tally: Tally) {
    report.written += tally.written;
    report.deleted += tally.deleted;
}

/// Makes the documents of these `_id`s equal at the destination, and those that had to be displaced because of a
/// unique index.
async fn write_batch(pair: &Pair, ids: &[Id], control: &Control) -> Result<Tally> {
    let mut tally = Tally::default();
    let mut ids = ids.to_vec();
    for _ in 0..DISPLACED_ROUNDS_MAX {
        let mut stale = Vec::new();
        let done = write_once(pair, &ids, control, &mut stale).await;
        // Documents that were displaced must be written again even if another one was refused.
        let refusal = match done {
            Ok(more) => {
                tally.written += more.written;
                tally.deleted += more.deleted;
                None
            }
            Err(error) if stale.is_empty() => return Err(error),
            Err(error) => Some(error),
        };
        stale.sort_unstable();
        stale.dedup();
        match (refusal, stale.is_empty()) {
            (None, true) => return Ok(tally),
            (None, false) => ids = stale,
            (Some(error), _) => {
                write_once(pair, &stale, control, &mut Vec::new()).await?;
                return Err(error);
            }
        }
    }
    Err(Error::Document {
        ns: pair.destination.ns.to_string(),
        id: ids.first().map(ToString::to_string).unwrap_or_default(),
        cause: format!("unique values still collided after {DISPLACED_ROUNDS_MAX} rounds"),
        help: "repair again when the source changes these documents less often".into(),
    })
}

async fn write_once(
    pair: &Pair,
    ids: &[Id],
    control: &Control,
    stale: &mut Vec<Id>,
) -> Result<Tally> {
    let wants: Vec<Want> =
        ids.iter().map(|id| Want { id: id.clone(), change: Change::Any }).collect();
    let what = format!("repair documents of {}", pair.destination.ns);
    let mut attempt = 0;
    let began = std::time::Instant::now();
    loop {
        attempt += 1;
        // The read is repeated at each attempt, so that it includes all writes acknowledged before that.
        let tried = async {
            let now = pair.source.endpoint.cluster_time().await?;
            apply(pair, &wants, ReadAt::After(now), stale).await
        };
        let error = match control.or_stop(tried).await? {
            Ok(tally) => return Ok(tally),
            Err(error) if !error.is_transient() => return Err(error),
            Err(error) => error,
        };
        if attempt >= BUDGET.attempts_max || began.elapsed() >= BUDGET.elapsed_max {
            let tried = format!("cannot {what}: gave up after {attempt} attempts: {error}");
            return Err(Error::Exhausted { tried, cause: Box::new(error) });
        }
        let pause_ms = BUDGET.backoff.pause_ms(attempt, rand::random());
        control.sleep(Duration::from_millis(pause_ms)).await?;
    }
}

/// Deletes every copy of these `_id`s at the destination, on all shards.
async fn remove_all(pair: &Pair, ids: &[&Id]) -> Result<()> {
    let statements: Vec<RawDocumentBuf> =
        ids.iter().map(|id| rawdoc! {"q": {"_id": {"$eq": id.as_raw()}}, "limit": 0}).collect();
    let written = write::delete(&pair.destination, &statements).await?;
    match written.errors.into_iter().next() {
        None => Ok(()),
        Some(error) => Err(Error::Document {
            ns: pair.destination.ns.to_string(),
            id: ids.get(error.index).map(ToString::to_string).unwrap_or_default(),
            cause: format!("{} (code {})", error.message, error.code),
            help: "mend the cause at the destination and repair again".into(),
        }),
    }
}
