//! What a controller finds when it begins: the past, rolls that were left undone, the configuration that the cluster has,
//! and what came of earlier changes.

use std::collections::BTreeMap;
use std::fs::File;

use imago_job::journal::Journal as _;
use imago_job::reporter::Events;
use imago_plan::tune::workload::{Interval, Mix};
use tokio_util::sync::CancellationToken;

use super::super::decisions::Kind;
use super::super::error::{Error, Result};
use super::super::journal::{CassandraJournal, holds_on};
use super::super::roll::{self, Roller, Spec};
use super::event::Judged;
use super::{BARRED_S, Request, now_s};
use crate::trace::Trace;

/// What makes no sense is found before anything is asked.
pub(super) fn check(request: &Request) -> Result<()> {
    let names = &request.measurements.names;
    let same = request.configurations.iter().map(|one| &one.name).eq(names);
    assert!(same, "configurations are in the order of their measurements");
    for number in 0..request.configurations.len() {
        spec_of(request, number).parsed()?;
    }
    Ok(())
}

/// The roll that gives the cluster a configuration, while it serves.
pub(super) fn spec_of(request: &Request, number: usize) -> Spec {
    let table = format!("{}.{}", request.table.0, request.table.1);
    Spec {
        consistency: request.consistency.clone(),
        tolerate: request.tolerate,
        is_at_once: false,
        ..Spec::of(&request.configurations, number, &table)
    }
}

/// The roll that brings the cluster from one configuration to another, while it serves.
pub(super) fn change_of(request: &Request, from: usize, to: usize) -> Result<Spec> {
    let table = format!("{}.{}", request.table.0, request.table.1);
    let (consistency, tolerate) = (request.consistency.clone(), request.tolerate);
    let change = Spec::between(&request.configurations, (from, to), &table)?;
    let canary_s = request.canary.as_secs();
    Ok(Spec { consistency, tolerate, is_at_once: false, canary_s, ..change })
}

/// The intervals that the trace has.
pub(super) fn past(request: &Request) -> Result<Vec<Interval>> {
    let path = &request.trace;
    let shown = path.display().to_string();
    let file = match File::open(path) {
        Ok(file) if file.metadata().is_ok_and(|of| of.len() > 0) => file,
        Ok(_) => return Ok(Vec::new()),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(Error::Usage(format!("cannot read {shown}: {cause}"))),
    };
    let trace = Trace::read_to_add(&shown, file, request.interval.as_secs());
    let trace = trace.map_err(|error| Error::Usage(error.to_string()))?;
    // Cassandra tells no insert from an update.
    let told = |one: Interval| Interval { mix: one.mix.map(Mix::with_inserts_as_updates), ..one };
    Ok(trace.intervals.into_iter().map(told).collect())
}

/// Goes on with rolls that a dead controller left.
pub(super) async fn finish_rolls(
    request: &Request,
    journal: &CassandraJournal,
    process: &str,
    events: &Events,
    cancel: &CancellationToken,
) -> Result<()> {
    for record in journal.list().await? {
        if record.kind == roll::KIND && holds_on(&record) {
            let file = request.file.clone();
            Box::pin(roll::resume(file, &record.id, process, events, cancel.clone())).await?;
        }
    }
    Ok(())
}

/// The configuration that the cluster has, and the nodes that may be stopped together.
pub(super) async fn present(request: &Request) -> Result<(usize, usize)> {
    let mut differences = Vec::new();
    for (number, configuration) in request.configurations.iter().enumerate() {
        let roller = Roller::connect(request.file.clone(), spec_of(request, number)).await?;
        let preview = roller.preview().await?;
        let nodes = preview.nodes.iter().filter(|node| !node.changes.is_empty()).count();
        if nodes == 0 && preview.tables.is_empty() {
            let at_once = preview.steps.iter().map(Vec::len).max().unwrap_or(1);
            return Ok((number, if preview.restarts { at_once } else { 1 }));
        }
        let tables = if preview.tables.is_empty() { "" } else { ", and the table's compaction" };
        differences.push(format!("{} differs on {nodes} nodes{tables}", configuration.name));
    }
    Err(Error::precondition(
        format!("the cluster has none of the configurations: {}", differences.join("; ")),
        "roll one of them out (`imago tune roll`), or add the present one to the file and measure it",
    ))
}

/// Changes that were undone within the last day, and the moments of all changes.
pub(super) async fn remembered(
    request: &Request,
    journal: &CassandraJournal,
) -> Result<(BTreeMap<(usize, usize), u64>, Vec<u64>)> {
    let (mut barred, mut changes) = (BTreeMap::new(), Vec::new());
    let number = |name: &str| request.measurements.names.iter().position(|one| one == name);
    for entry in journal.decisions(now_s(), 2).await? {
        let at_s = u64::try_from(entry.at_ms / 1_000).unwrap_or(0);
        match entry.kind {
            Kind::Changing => changes.push(at_s),
            Kind::Judged => {
                let Ok(judged) = serde_json::from_value::<Judged>(entry.detail) else { continue };
                if let (Some(from), Some(to), Some(_)) =
                    (number(&judged.change.from), number(&judged.change.to), &judged.worse)
                {
                    barred.insert((from, to), at_s + BARRED_S);
                }
            }
            Kind::Decided | Kind::Changed => {}
        }
    }
    Ok((barred, changes))
}
