//! The conditions for a job's cut-over.

use std::collections::HashSet;
use std::sync::Arc;

use bson::Timestamp;
use futures_util::{StreamExt, TryStreamExt, stream};
use imago_job::record::{Record, Requested};
use imago_job::run::Run;

use super::{Block, Options};
use crate::bson::order::Id;
use crate::copy::catalog::all_gone;
use crate::copy::preflight::Plan;
use crate::copy::{CatalogDiff, Clusters, CopyJob, KIND, news, plan_of, state_of};
use crate::error::{Error, Result};
use crate::replicate::route::Route;
use crate::server::block;
use crate::server::endpoint::Endpoint;
use crate::verify::{Mode, Report, Retries, Spec, Unwatched, verify, verify_as_of};

/// Checks the conditions of a cut-over that can be checked without disturbing the job's coordinator.
pub(super) async fn before(clusters: &Clusters, record: &Record, options: &Options) -> Result<()> {
    let (state, plan, id) = (state_of(record)?, plan_of(record)?, &record.id);
    if record.kind != KIND {
        return Err(Error::precondition(
            format!("job {id} is a {}, which cuts over by itself", record.kind),
            "`imago reshard resume` goes on with it",
        ));
    }
    state.refuse_undecided(id)?;
    if record.control == Requested::Pause {
        return Err(Error::precondition(
            format!("job {id} may not be cut over: it is paused, and so never catches up"),
            format!("`imago job resume {id}` first"),
        ));
    }
    // If collections have joined, their copy is completed first.
    if !state.is_indexed && state.joined.is_empty() {
        return Err(Error::precondition(
            format!("job {id} may not be cut over: the copy is not complete"),
            "wait until it follows (`imago job status`); `imago job resume` it if no process works \
             at it",
        ));
    }
    if options.reverse && (plan.filter.is_some() || plan.into_existing) {
        return Err(Error::precondition(
            format!("job {id} cannot be cut over with --reverse: it copies only a part"),
            "with --filter or --into-existing the old cluster holds documents that the new one \
             does not, so it cannot follow it: cut over without --reverse",
        ));
    }
    has_last_writes(&clusters.source).await?;
    if options.block == Block::UserWrites {
        block::check(&clusters.source).await?;
    }
    let news = news(clusters, &plan).await?;
    if plan.is_all_gone() && news.new.is_empty() && news.freed.is_empty() {
        return Err(Error::precondition(
            format!("job {id} may not be cut over: {}", all_gone(&plan)),
            format!(
                "the job takes in the next collection that its patterns match; or give it up with \
                 `imago job cancel {id}`"
            ),
        ));
    }
    if options.ignore_new { Ok(()) } else { nothing_left_out(&news) }
}

/// Returns a precondition error if the source may lack the last writes of its replica set: they would be lost.
pub(super) async fn has_last_writes(source: &Endpoint) -> Result<()> {
    if source.has_last_writes().await? {
        return Ok(());
    }
    Err(Error::precondition(
        format!(
            "the source {} is a single member of its replica set and not the primary: it may lack the last writes",
            source.redacted()
        ),
        "name the whole replica set with --from: its members, and replicaSet=NAME",
    ))
}

/// Returns a precondition error if source collections match the plan's patterns and cannot join the job.
fn nothing_left_out(news: &CatalogDiff) -> Result<()> {
    if news.left_out.is_empty() {
        return Ok(());
    }
    let named = news.left_out.iter().map(|(ns, why)| format!("{ns} ({why})"));
    let named: Vec<String> = named.collect();
    Err(Error::precondition(
        format!("the source has collections that cannot join the job: {}", named.join(", ")),
        "correct that, or cut over without them: --ignore-new",
    ))
}

/// Returns true if the job has every collection that its patterns match, and its views and functions are up to date.
/// Fails if the source has collections that cannot join, unless `ignore_new` is set.
pub(super) async fn has_all(clusters: &Clusters, plan: &Plan, options: &Options) -> Result<bool> {
    let news = news(clusters, plan).await?;
    if !options.ignore_new {
        nothing_left_out(&news)?;
    }
    Ok(news.is_empty() && !plan.is_all_gone())
}

/// Most differing documents of one collection that the first comparison records for the exact one.
const SUSPECTS_MAX: usize = 100_000;
/// Retries of the first comparison: most documents that differ in it were being changed. Those that change all the
/// time, or while the copy lags, are compared exactly afterwards.
const FIRST_RETRIES: Retries = Retries { rounds: 2, first_ms: 100, pause_ms_max: 500 };

/// Most collections that are compared at the same time: each comparison takes some round trips.
const CHECKS_AT_ONCE: usize = 8;

/// Compares options, indexes and documents (those that `mode` selects) while changes are applied, and returns the
/// number of documents compared. With a `route`, the shards are read past the router.
///
/// A document that still differs after the retries may be wrong, or its copy may only lag. No number of retries can
/// distinguish the two, so the coordinator is settled: then the destination must equal the source as of one time, byte
/// for byte.
pub(crate) async fn check(
    copying: &mut CopyJob<'_>,
    mode: &Mode,
    route: Option<Arc<Route>>,
) -> Result<u64> {
    let mode = mode.clone();
    let pairs = copying.pairs.clone();
    let cuts = copying.coordinator.cuts().to_vec();
    let planned = copying.plan.collections.clone();
    let is_reverse = copying.plan.is_reverse;
    let control = copying.control();
    let mut checks = tokio::task::JoinSet::new();
    checks.spawn(async move {
        let (mode, control, route) = (&mode, &control, &route);
        let each = pairs.iter().zip(&planned).zip(cuts).map(|((pair, planned), cuts)| async move {
            if planned.gone.is_some() {
                return Ok(Report::default());
            }
            let spec = Spec {
                mode: mode.clone(),
                filter: pair.filter.clone(),
                retries: FIRST_RETRIES,
                suspects_max: SUSPECTS_MAX,
                listed_max: SUSPECTS_MAX,
                route: route.clone(),
                cuts,
                is_retention_suspended: true,
                ..Spec::default()
            };
            let mut watch = Unwatched;
            let looked = verify(&pair.source, &pair.destination, &spec, control, &mut watch);
            let report = looked.await?;
            if report.is_missing {
                return Err(Error::precondition(
                    format!("{} may not be cut over: the destination does not have it", pair.source.ns),
                    "the copy was dropped: give the job up (`imago job cancel`), and begin a new one",
                ));
            }
            // For a reverse job, the new cluster's indexes and options are its own.
            if !is_reverse {
                refuse_structure(&report, planned.creates)?;
            }
            Ok(report)
        });
        let each: Vec<_> = each.collect();
        stream::iter(each).buffered(CHECKS_AT_ONCE).try_collect::<Vec<Report>>().await
    });
    let mut reports = loop {
        copying.step().await?;
        if let Some(checked) = checks.try_join_next() {
            break checked.expect("a check neither panics nor is aborted")?;
        }
    };
    if reports.iter().any(|report| !report.differences.is_empty()) {
        recheck_exactly(copying, &mut reports).await?;
    }
    for report in &reports {
        refuse(report)?;
    }
    Ok(reports.iter().map(|report| report.compared).sum())
}

/// Settles the coordinator (the destination then equals the source as of one time), and removes from `reports` the
/// differences that do not remain at the settled point.
async fn recheck_exactly(copying: &mut CopyJob<'_>, reports: &mut [Report]) -> Result<()> {
    let at = copying.coordinator.settle().await?;
    let control = copying.control();
    for (pair, report) in copying.pairs.iter().zip(reports) {
        let ids: Vec<Id> = report.differences.drain(..).map(|mismatch| mismatch.id).collect();
        assert!(ids.len() as u64 == report.document_differences(), "all are listed");
        let (source, destination) = (&pair.source, &pair.destination);
        let looked = verify_as_of(at, source, destination, pair.filter.as_ref(), &ids, &control);
        report.keep(looked.await?);
    }
    copying.coordinator.leave_settled()
}

fn refuse(report: &Report) -> Result<()> {
    if report.document_differences() == 0 && report.incomplete.is_none() {
        return Ok(());
    }
    let first = report.differences.first();
    let first = first.map(|d| format!(", the first is {}: {}", d.kind.word(), d.id));
    let incomplete = report.incomplete.as_ref().map(|why| format!("; {why}"));
    Err(Error::precondition(
        format!(
            "{} may not be cut over: {} of {} documents differ{}{}",
            report.source,
            report.document_differences(),
            report.compared,
            first.unwrap_or_default(),
            incomplete.unwrap_or_default()
        ),
        "`imago verify --mismatches FILE` names them all, `imago repair` mends them",
    ))
}

/// Returns a precondition error if the destination lacks an index of the source; further indexes at the destination
/// are its users'. Different options count if the job created the collection (`is_made`).
fn refuse_structure(report: &Report, is_made: bool) -> Result<()> {
    let options = report.options_differences.iter().filter(|_| is_made).map(|o| ("option", o));
    let indexes = report.index_differences.iter().filter(|index| index.source.is_some());
    let Some((what, differs)) = indexes.map(|i| ("index", i)).chain(options).next() else {
        return Ok(());
    };
    Err(Error::precondition(
        format!("{} may not be cut over: its {what} {}", report.source, differs.in_words()),
        format!(
            "the job could not make it at the destination: build or change it there by hand \
             (createIndexes, collMod on {}), then try again",
            report.destination
        ),
    ))
}

/// Returns, for each collection by its number, the `_id`s that the last `last_changes` changes over all collections
/// wrote.
fn last_of(copying: &CopyJob<'_>, last_changes: usize) -> Vec<HashSet<Id>> {
    let mut ids: Vec<HashSet<Id>> = vec![HashSet::new(); copying.pairs.len()];
    for (ns, id) in copying.coordinator.recent().rev().take(last_changes) {
        if !copying.coordinator.is_gone(*ns) {
            ids[*ns].insert(id.clone());
        }
    }
    ids
}

/// Compares the documents of the last `last_changes` changes under the write block, and returns the number of
/// documents compared. Fails if one of them differs.
pub(crate) async fn compare_last_changes(
    run: &Run,
    copying: &CopyJob<'_>,
    last_changes: usize,
) -> Result<u64> {
    let mut compared = 0;
    for (pair, ids) in copying.pairs.iter().zip(last_of(copying, last_changes)) {
        if ids.is_empty() {
            continue;
        }
        let spec = Spec {
            mode: Mode::Ids(ids.into_iter().collect()),
            filter: pair.filter.clone(),
            retries: Retries { rounds: 2, first_ms: 20, pause_ms_max: 50 },
            structure: false,
            ..Spec::default()
        };
        let mut watch = Unwatched;
        let looked = verify(&pair.source, &pair.destination, &spec, run.control(), &mut watch);
        let report = looked.await?;
        refuse(&report)?;
        compared += report.compared;
    }
    Ok(compared)
}

/// Compares as [`compare_last_changes`] does, but with the source as it was at the cluster time `at`, when the
/// coordinator was settled: once, without retries. It also works for a source whose documents may still be deleted.
pub(crate) async fn compare_last_changes_as_of(
    at: Timestamp,
    run: &Run,
    copying: &CopyJob<'_>,
    last_changes: usize,
) -> Result<u64> {
    let mut compared = 0;
    for (pair, ids) in copying.pairs.iter().zip(last_of(copying, last_changes)) {
        let ids: Vec<Id> = ids.into_iter().collect();
        let (source, destination) = (&pair.source, &pair.destination);
        let filter = pair.filter.as_ref();
        let looked = verify_as_of(at, source, destination, filter, &ids, run.control());
        let differing = looked.await?;
        let mut report = Report {
            source: source.ns.to_string(),
            compared: ids.len() as u64,
            different: differing.len() as u64,
            ..Report::default()
        };
        report.keep(differing);
        refuse(&report)?;
        compared += report.compared;
    }
    Ok(compared)
}
