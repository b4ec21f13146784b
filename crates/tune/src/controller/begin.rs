//! What a controller finds when it begins: the past, and what came of earlier changes.

use std::collections::BTreeMap;
use std::fs::File;

use imago_job::reporter::Events;
use imago_plan::tune::workload::{Interval, Mix};
use tokio_util::sync::CancellationToken;

use super::cluster::Cluster;
use super::event::{Change, Judged};
use super::{BARRED_S, Request, now_s};
use crate::cluster::job::holds_on;
use crate::cluster::{Error, Result};
use crate::decisions::{DecisionLog, Entry, Kind};
use crate::lines;
use crate::trace::Trace;

/// The intervals that the trace has.
pub(super) fn past(request: &Request) -> Result<Vec<Interval>> {
    let path = &request.trace;
    let shown = path.display().to_string();
    let has_start = |first: &str| first.split(',').any(|column| column.trim() == "start");
    lines::mend(path, has_start)
        .map_err(|cause| Error::Usage(format!("cannot mend {shown}: {cause}")))?;
    let file = match File::open(path) {
        Ok(file) if file.metadata().is_ok_and(|of| of.len() > 0) => file,
        Ok(_) => return Ok(Vec::new()),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(Error::Usage(format!("cannot read {shown}: {cause}"))),
    };
    let trace = Trace::read_to_add(&shown, file, request.interval.as_secs());
    let trace = trace.map_err(|error| Error::Usage(error.to_string()))?;
    // No database tells an insert from an update.
    let told = |one: Interval| Interval { mix: one.mix.map(Mix::with_inserts_as_updates), ..one };
    Ok(trace.intervals.into_iter().map(told).collect())
}

/// Why nothing may be changed from the beginning on, not even finished.
pub(super) async fn held(request: &Request, log: &impl DecisionLog) -> Result<Option<String>> {
    if request.is_advising {
        return Ok(Some("this one only advises".into()));
    }
    Ok(log.held_by().await?.map(|process| format!("{process} holds changes back")))
}

/// Goes on with rolls that a dead controller left. One that was begun by hand, or any if nothing may be changed for a reason,
/// is refused with its job's name: it would be changed against an operator's will.
pub(super) async fn finish_rolls<C: Cluster>(
    cluster: &C,
    held: Option<&str>,
    process: &str,
    events: &Events,
    cancel: &CancellationToken,
) -> Result<()> {
    for roll in cluster.rolls().await?.iter().filter(|roll| holds_on(roll)) {
        let is_of_controller = roll.spec["is_of_controller"] == true;
        let by_hand = (!is_of_controller).then_some("no controller began it");
        if let Some(why) = held.or(by_hand) {
            let job = &roll.id;
            return Err(Error::precondition(
                format!(
                    "job {job} has begun to change the configuration and has not ended, and {why}"
                ),
                format!(
                    "go on with it (`imago tune roll --resume {job}`), or give it up (`imago tune cancel {job}`)"
                ),
            ));
        }
        Box::pin(cluster.resume(&roll.id, process, events, cancel.clone())).await?;
    }
    Ok(())
}

/// What the last day's decisions tell.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Remembered {
    /// Changes that are left alone until a moment: they were undone, or failed.
    pub(super) barred: BTreeMap<(usize, usize), u64>,
    /// The moments of changes.
    pub(super) changes: Vec<u64>,
    /// What undoes a change that was worse, if that has not been done.
    pub(super) worse: Option<Change>,
}

/// What was decided within the last day.
pub(super) async fn remembered(request: &Request, log: &impl DecisionLog) -> Result<Remembered> {
    Ok(told(log.decisions(now_s(), 2).await?, &request.measurements.names))
}

/// What entries tell, the oldest first.
fn told(entries: Vec<Entry>, names: &[String]) -> Remembered {
    let mut told = Remembered::default();
    let numbers = |change: &Change| {
        let number = |name: &String| names.iter().position(|one| one == name);
        Some((number(&change.from)?, number(&change.to)?))
    };
    for Entry { at_ms, kind, detail, .. } in entries {
        let at_s = u64::try_from(at_ms / 1_000).unwrap_or(0);
        let change = || serde_json::from_value::<Change>(detail["change"].clone()).ok();
        let is_undoing = detail["is_undoing"] == true;
        match kind {
            Kind::Changing => told.changes.push(at_s),
            Kind::Judged => {
                let Ok(judged) = serde_json::from_value::<Judged>(detail) else { continue };
                if judged.worse.is_some() {
                    let Change { from, to, .. } = judged.change.clone();
                    told.worse = Some(Change { from: to, to: from, predicted: 0.0 });
                    let numbers = numbers(&judged.change);
                    told.barred.extend(numbers.map(|numbers| (numbers, at_s + BARRED_S)));
                }
            }
            Kind::Changed if detail["event"] == "failed" => {
                let numbers = change().as_ref().and_then(numbers);
                told.barred.extend(numbers.map(|numbers| (numbers, at_s + BARRED_S)));
            }
            Kind::Changed if is_undoing => told.worse = None,
            Kind::Decided | Kind::Changed => {}
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::super::event::Event;
    use super::*;

    fn entry(at_s: u64, kind: Kind, detail: Json) -> Entry {
        Entry { at_ms: i64::try_from(at_s).unwrap() * 1_000, kind, what: String::new(), detail }
    }

    fn change(from: &str, to: &str) -> Change {
        Change { from: from.into(), to: to.into(), predicted: 0.1 }
    }

    fn changed(change: Change, is_undoing: bool) -> Json {
        let job = "roll-2026-11-27".into();
        let event = Event::Changed { change, is_undoing, elapsed_s: 117.0, job };
        serde_json::to_value(event).unwrap()
    }

    /// What was judged to be worse, of a change to leveled.
    fn worse() -> Json {
        let nothing = json!(null);
        let change = change("size-tiered", "leveled");
        let mut judged = json!({ "change": change, "worse": "memory runs short" });
        for name in ["predicted", "realised", "noise", "median_times", "slowest_times", "memory"] {
            judged[name] = nothing.clone();
        }
        judged
    }

    #[test]
    fn what_was_worse_or_failed_is_left_alone_and_what_was_not_undone_is_known() {
        let names = ["size-tiered".to_owned(), "leveled".to_owned(), "unified".to_owned()];
        let to = change("size-tiered", "leveled");
        let mut entries = vec![
            entry(1_795_737_600, Kind::Changing, json!({})),
            entry(1_795_737_700, Kind::Changed, changed(to.clone(), false)),
            entry(1_795_738_000, Kind::Judged, worse()),
        ];
        let known = told(entries.clone(), &names);
        assert_eq!(known.changes, [1_795_737_600]);
        assert_eq!(known.barred, BTreeMap::from([((0, 1), 1_795_738_000 + BARRED_S)]));
        let back = Change { predicted: 0.0, ..change("leveled", "size-tiered") };
        assert_eq!(known.worse.as_ref(), Some(&back));

        let failed =
            Event::Failed { change: change("size-tiered", "unified"), why: "no disk".into() };
        entries.push(entry(1_795_738_100, Kind::Changed, changed(back, true)));
        let failed = serde_json::to_value(failed).unwrap();
        entries.push(entry(1_795_738_200, Kind::Changed, failed));
        let known = told(entries, &names);
        assert_eq!(known.worse, None);
        assert_eq!(known.barred.get(&(0, 2)), Some(&(1_795_738_200 + BARRED_S)));
        assert_eq!(known.barred.len(), 2);
    }
}
