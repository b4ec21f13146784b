//! The conditions for a job's cut-over.

use std::collections::HashSet;
use std::sync::Arc;

use bson::Timestamp;
use imago_job::record::{Record, Requested};
use imago_job::run::Run;

use super::{Block, Options};
use crate::bson::order::Id;
use crate::copy::preflight::Plan;
use crate::copy::{Clusters, Copying, KIND, News, news, plan_of, state_of};
use crate::error::{Error, Result};
use crate::replicate::route::Route;
use crate::server::block;
use crate::verify::{Mode, Report, Retries, Spec, Unwatched, verify, verify_as_of};

/// The checks that do not disturb the job's coordinator.
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
    // Collections that joined are completed first.
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
    if options.block == Block::UserWrites {
        block::check(&clusters.source).await?;
    }
    if !options.ignore_new {
        nothing_left_out(&news(clusters, &plan).await?)?;
    }
    Ok(())
}

/// Collections that the plan's patterns match and that cannot join the job would be left behind.
fn nothing_left_out(news: &News) -> Result<()> {
    if news.left_out.is_empty() {
        return Ok(());
    }
    let named = news.left_out.iter().map(|(ns, why)| format!("{ns} ({why})"));
    let named: Vec<String> = named.collect();
    Err(Error::precondition(
        format!("the source has what does not join the job: {}", named.join(", ")),
        "mend that, or leave it behind: --ignore-new",
    ))
}

/// True if the job has every collection that its patterns match. Fails if the source has
/// collections that cannot join, unless `ignore_new` is set.
pub(super) async fn has_all(clusters: &Clusters, plan: &Plan, options: &Options) -> Result<bool> {
    let news = news(clusters, plan).await?;
    if !options.ignore_new {
        nothing_left_out(&news)?;
    }
    Ok(news.is_empty())
}

/// Most documents that look different and are remembered for the exact look.
const SUSPECTS_MAX: usize = 100_000;
/// Most documents that look different were caught in mid-change. Those that change all the time, or
/// while the copy is behind, are compared exactly.
const FIRST_LOOKS: Retries = Retries { rounds: 2, first_ms: 100, pause_ms_max: 500 };

/// Options, indexes, and documents, while changes go on being applied.
///
/// A document that still differs after a moment may be wrong, or only be ahead of its copy. No
/// number of retries tells the one from the other, so the coordinator is settled: then the destination has
/// to be the source as of one time, byte for byte.
pub(crate) async fn check(
    copying: &mut Copying<'_>,
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
        let mut reports = Vec::new();
        for ((pair, planned), cuts) in pairs.iter().zip(planned).zip(cuts) {
            if planned.gone.is_some() {
                reports.push(Report::default());
                continue;
            }
            let spec = Spec {
                mode: mode.clone(),
                filter: pair.filter.clone(),
                retries: FIRST_LOOKS,
                suspects_max: SUSPECTS_MAX,
                listed_max: SUSPECTS_MAX,
                route: route.clone(),
                cuts,
                ..Spec::default()
            };
            let mut watch = Unwatched;
            let looked = verify(&pair.source, &pair.destination, &spec, &control, &mut watch);
            let report = looked.await?;
            if report.is_missing {
                return Err(Error::precondition(
                    format!("{} may not be cut over: the destination does not have it", pair.source.ns),
                    "the copy was dropped: give the job up (`imago job cancel`), and begin a new one",
                ));
            }
            // On the way back the new cluster's shape is its own.
            if !is_reverse {
                refuse_structure(&report, planned.creates)?;
            }
            reports.push(report);
        }
        Ok::<_, Error>(reports)
    });
    let mut reports = loop {
        copying.step().await?;
        if let Some(checked) = checks.try_join_next() {
            break checked.expect("a check neither panics nor is aborted")?;
        }
    };
    if reports.iter().any(|report| !report.differences.is_empty()) {
        look_exactly(copying, &mut reports).await?;
    }
    for report in &reports {
        refuse(report)?;
    }
    Ok(reports.iter().map(|report| report.compared).sum())
}

/// Keeps, of the differences in `reports`, those that the source has to the settled destination.
async fn look_exactly(copying: &mut Copying<'_>, reports: &mut [Report]) -> Result<()> {
    let at = copying.coordinator.settle().await?;
    let control = copying.control();
    for (pair, report) in copying.pairs.iter().zip(reports) {
        let ids: Vec<Id> = report.differences.drain(..).map(|mismatch| mismatch.id).collect();
        assert!(ids.len() as u64 == report.document_differences(), "all are listed");
        let (source, destination) = (&pair.source, &pair.destination);
        let looked = verify_as_of(at, source, destination, pair.filter.as_ref(), &ids, &control);
        report.keep(looked.await?);
    }
    copying.coordinator.go_on()
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

/// The source's indexes must be there too; further ones at the destination are its users'. Options
/// count where the job created the collection.
fn refuse_structure(report: &Report, is_made: bool) -> Result<()> {
    let options = report.options_differences.iter().filter(|_| is_made).map(|o| ("option", o));
    let indexes = report.index_differences.iter().filter(|index| index.source.is_some());
    let Some((what, differs)) = indexes.map(|i| ("index", i)).chain(options).next() else {
        return Ok(());
    };
    let none = "none".to_owned();
    Err(Error::precondition(
        format!(
            "{} may not be cut over: its {what} {} is {} at the source, and {} at the destination",
            report.source,
            differs.name,
            differs.source.as_ref().unwrap_or(&none),
            differs.destination.as_ref().unwrap_or(&none),
        ),
        "a running job follows such changes: `imago job resume` it and try again, or make them \
         equal by hand",
    ))
}

/// The documents of the last changes, of each collection.
fn last_of(copying: &Copying<'_>, last_changes: usize) -> Vec<HashSet<Id>> {
    let mut ids: Vec<HashSet<Id>> = vec![HashSet::new(); copying.pairs.len()];
    for (ns, id) in copying.coordinator.recent().rev().take(last_changes) {
        if !copying.coordinator.is_gone(*ns) {
            ids[*ns].insert(id.clone());
        }
    }
    ids
}

pub(crate) async fn last_look(
    run: &Run,
    copying: &Copying<'_>,
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

/// As [`last_look`], with the source as it was when the coordinator was settled at `at`: one look, with no
/// retries, also at a source whose documents may still be deleted.
pub(crate) async fn last_look_as_of(
    at: Timestamp,
    run: &Run,
    copying: &Copying<'_>,
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
