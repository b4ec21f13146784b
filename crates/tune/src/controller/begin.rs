//! The start of a controller: it restores its state from the trace and from the log of decisions.

use std::collections::BTreeMap;
use std::fs::File;

use imago_job::reporter::Events;
use imago_plan::tune::judge::Window;
use imago_plan::tune::workload::{Interval, Mix};
use serde_json::Value as Json;
use tokio_util::sync::CancellationToken;

use super::cluster::Cluster;
use super::event::{Change, Event, Judged};
use super::trial::PersistedSample;
use super::{BARRED_S, QUIET_MAX_S, Request, now_s};
use crate::cluster::job::needs_lock;
use crate::cluster::{Error, Result};
use crate::decisions::{DecisionLog, Entry, Kind};
use crate::lines;
use crate::trace::{self, Trace};

/// Maximum age, in seconds, of a change (unless made under low load) that a new controller still judges by the
/// samples before the change.
const UNJUDGED_MAX_S: u64 = 3_600;

/// Repairs the trace and reads its intervals; inserts count as updates. Empty if there is no trace yet.
pub(super) fn read_history(request: &Request) -> Result<Vec<Interval>> {
    let path = &request.trace;
    let shown = path.display().to_string();
    let has_start = |first: &str| {
        first.split(',').any(|column| column.trim().trim_matches('"').eq_ignore_ascii_case("start"))
    };
    lines::repair_torn_tail(path, has_start)
        .map_err(|cause| Error::Usage(format!("cannot mend {shown}: {cause}")))?;
    trace::require_columns(path).map_err(|error| Error::Usage(error.to_string()))?;
    let file = match File::open(path) {
        Ok(file) if file.metadata().is_ok_and(|of| of.len() > 0) => file,
        Ok(_) => return Ok(Vec::new()),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(Error::Usage(format!("cannot read {shown}: {cause}"))),
    };
    let trace = Trace::read_to_add(&shown, file, request.interval.as_secs());
    let trace = trace.map_err(|error| Error::Usage(error.to_string()))?;
    // Databases do not distinguish inserts from updates.
    let told = |one: Interval| Interval { mix: one.mix.map(Mix::with_inserts_as_updates), ..one };
    Ok(trace.intervals.into_iter().map(told).collect())
}

/// Returns why the controller must not change the cluster from the start, not even complete an unfinished roll; None
/// if changes are allowed.
pub(super) async fn initial_block(
    request: &Request,
    log: &impl DecisionLog,
) -> Result<Option<String>> {
    if request.is_advising {
        return Ok(Some("this one only advises".into()));
    }
    Ok(log.suspended_by().await?.map(|process| format!("{process} has suspended changes")))
}

/// Resumes the rolls that a dead controller left, and returns true if there was one. Fails with the job's ID for a
/// roll that was started by hand, and for any roll while changes are not allowed (`blocked_by` has the reason): to
/// complete such a roll would be against an operator's will.
pub(super) async fn finish_rolls<C: Cluster>(
    cluster: &C,
    blocked_by: Option<&str>,
    process: &str,
    events: &Events,
    cancel: &CancellationToken,
) -> Result<bool> {
    let mut has_finished = false;
    for roll in cluster.rolls().await?.iter().filter(|roll| needs_lock(roll)) {
        let is_of_controller = roll.spec["is_of_controller"] == true;
        let by_hand = (!is_of_controller).then_some("no controller began it");
        if let Some(why) = blocked_by.or(by_hand) {
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
        has_finished = true;
    }
    Ok(has_finished)
}

/// State that a controller restores from the decisions of the present and the previous day (UTC).
#[derive(Debug, Default, PartialEq)]
pub(super) struct Remembered {
    /// Changes that must not be made because they were reverted or failed, by the indices of the old and the new
    /// configuration, with the end of the bar in seconds since 1970.
    pub(super) barred: BTreeMap<(usize, usize), u64>,
    /// Start times of changes, without reversions, in seconds since 1970.
    pub(super) changes: Vec<u64>,
    /// Change that reverts one that was judged worse, if it is still to be made.
    pub(super) rollback_due: Option<Change>,
    /// The last change, if it has ended or is in progress and has not been judged.
    pub(super) unjudged: Option<Unjudged>,
}

/// A change that was started, but not judged before its controller ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Unjudged {
    /// The change from one configuration to another that is to be judged.
    pub(super) change: Change,
    /// Time of the change's end, or of its start if the end was not persisted, in seconds since 1970.
    pub(super) at_s: u64,
    /// Samples from before the change, as they were persisted.
    pub(super) before: Vec<Window>,
    /// True if the load was low when the change started.
    pub(super) is_quiet: bool,
}

impl Unjudged {
    /// Decodes a persisted start of a change; None if the entry is of an incompatible version.
    fn of(at_s: u64, detail: &Json) -> Option<Self> {
        let kept = serde_json::from_value::<Vec<PersistedSample>>(detail["before"].clone()).ok()?;
        Some(Self {
            change: serde_json::from_value(detail["change"].clone()).ok()?,
            at_s,
            before: kept.into_iter().filter_map(PersistedSample::window).collect(),
            is_quiet: detail["is_quiet"] == true,
        })
    }

    /// Returns true if samples from `now_s` (in seconds since 1970) on are comparable with those before the change.
    pub(super) fn is_recent(&self, now_s: u64) -> bool {
        let within_s = if self.is_quiet { QUIET_MAX_S as u64 } else { UNJUDGED_MAX_S };
        now_s.saturating_sub(self.at_s) <= within_s
    }
}

/// Restores a controller's state from the decisions of the present and the previous day (UTC).
pub(super) async fn remembered(request: &Request, log: &impl DecisionLog) -> Result<Remembered> {
    Ok(replay(log.decisions(now_s(), 2).await?, &request.measurements.names))
}

/// Derives a controller's state from entries of the log of decisions, the oldest first; `names` are those of the
/// configurations, by index.
fn replay(entries: Vec<Entry>, names: &[String]) -> Remembered {
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
            Kind::Changing => {
                told.changes.push(at_s);
                // A controller changes nothing while a reversion is due: that one has been made, or is not needed any more.
                told.rollback_due = None;
                told.unjudged = Unjudged::of(at_s, &detail);
            }
            Kind::Judged => {
                told.unjudged = None;
                let Ok(judged) = serde_json::from_value::<Judged>(detail) else { continue };
                if judged.worse.is_some() {
                    let Change { from, to, .. } = judged.change.clone();
                    told.rollback_due = Some(Change { from: to, to: from, predicted: 0.0 });
                    let numbers = numbers(&judged.change);
                    told.barred.extend(numbers.map(|numbers| (numbers, at_s + BARRED_S)));
                }
            }
            Kind::Changed if detail["event"] == "failed" => {
                told.unjudged = None;
                let numbers = change().as_ref().and_then(numbers);
                told.barred.extend(numbers.map(|numbers| (numbers, at_s + BARRED_S)));
            }
            Kind::Changed if is_undoing => {
                told.rollback_due = None;
                told.unjudged = None;
            }
            Kind::Changed => {
                if let Some(unjudged) = &mut told.unjudged {
                    unjudged.at_s = at_s;
                }
            }
            Kind::Decided => {}
        }
    }
    told
}

/// Maximum number of samples that are persisted with the start of a change; of more samples, every second, third and
/// so on is persisted.
const PERSISTED_SAMPLES_MAX: usize = 100;

/// Builds the details of a started change for the log of decisions, with the samples before the change; `is_quiet` is
/// true if the load is low.
pub(super) fn persisted_start(event: &Event, before: &[Window], is_quiet: bool) -> Json {
    let every = before.len().div_ceil(PERSISTED_SAMPLES_MAX).max(1);
    let samples: Vec<PersistedSample> =
        before.iter().step_by(every).copied().map(PersistedSample::from).collect();
    let mut detail = serde_json::to_value(event).expect("texts and numbers");
    detail["before"] = serde_json::to_value(samples).expect("numbers");
    detail["is_quiet"] = is_quiet.into();
    detail
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
        let known = replay(entries.clone(), &names);
        assert_eq!(known.changes, [1_795_737_600]);
        assert_eq!(known.barred, BTreeMap::from([((0, 1), 1_795_738_000 + BARRED_S)]));
        let back = Change { predicted: 0.0, ..change("leveled", "size-tiered") };
        assert_eq!(known.rollback_due.as_ref(), Some(&back));

        assert_eq!(known.unjudged, None, "it was judged");
        // Rolled back by hand, or judged in the turn of the old configuration, and changed again since.
        let later = [&entries[..], &[entry(1_795_738_050, Kind::Changing, json!({}))]].concat();
        assert_eq!(replay(later, &names).rollback_due, None);

        let failed =
            Event::Failed { change: change("size-tiered", "unified"), why: "no disk".into() };
        entries.push(entry(1_795_738_100, Kind::Changed, changed(back, true)));
        let failed = serde_json::to_value(failed).unwrap();
        entries.push(entry(1_795_738_200, Kind::Changed, failed));
        let known = replay(entries, &names);
        assert_eq!(known.rollback_due, None);
        assert_eq!(known.barred.get(&(0, 2)), Some(&(1_795_738_200 + BARRED_S)));
        assert_eq!(known.barred.len(), 2);
    }
    #[test]
    fn a_change_of_a_dead_controller_is_known_with_what_was_seen_before_it() {
        let names = ["size-tiered".to_owned(), "leveled".to_owned()];
        let window = |rate_s: f64| Window {
            mix: Mix::of_reads(0.9),
            rate_s,
            median: [Some(1.25), Some(0.5), None, None],
            slowest: [Some(9.5), Some(4.0), None, None],
            memory: Some(0.42),
        };
        let before: Vec<Window> = (0..6).map(|n| window(9_000.0 + f64::from(n))).collect();
        let to = change("size-tiered", "leveled");
        let event = Event::Changing { change: to.clone(), is_undoing: false };
        let detail = persisted_start(&event, &before, false);
        let begun = [entry(1_795_737_600, Kind::Changing, detail)];
        let known = replay(begun.to_vec(), &names).unjudged.unwrap();
        let expected =
            Unjudged { change: to.clone(), at_s: 1_795_737_600, before, is_quiet: false };
        assert_eq!(known, expected);
        assert!(known.is_recent(1_795_737_600 + 3_600) && !known.is_recent(1_795_737_600 + 3_601));
        let quiet = Unjudged { is_quiet: true, ..known };
        assert!(quiet.is_recent(1_795_737_600 + 80_000));

        let ended = entry(1_795_737_700, Kind::Changed, changed(to.clone(), false));
        let judged = entry(1_795_738_000, Kind::Judged, worse());
        let failed = Event::Failed { change: to, why: "no disk".into() };
        let failed = entry(1_795_737_700, Kind::Changed, serde_json::to_value(failed).unwrap());
        let at_s = |entries: &[Entry]| {
            replay(entries.to_vec(), &names).unjudged.map(|unjudged| unjudged.at_s)
        };
        assert_eq!(at_s(&[begun[0].clone(), ended.clone()]), Some(1_795_737_700));
        assert_eq!(at_s(&[begun[0].clone(), failed]), None);
        assert_eq!(at_s(&[begun[0].clone(), ended, judged]), None);
        // As earlier versions kept it.
        let event = Event::Changing { change: change("size-tiered", "leveled"), is_undoing: false };
        let detail = serde_json::to_value(&event).unwrap();
        assert_eq!(at_s(&[entry(1_795_737_600, Kind::Changing, detail)]), None);
    }

    #[test]
    fn of_many_looks_before_a_change_some_are_kept() {
        let window = Window {
            mix: Mix::of_reads(0.9),
            rate_s: 9_000.0,
            median: [None; 4],
            slowest: [None; 4],
            memory: None,
        };
        let event = Event::Changing { change: change("a", "b"), is_undoing: false };
        let kept = |samples: usize| {
            let detail = persisted_start(&event, &vec![window; samples], true);
            detail["before"].as_array().unwrap().len()
        };
        assert_eq!([24, 100, 101, 2_000].map(kept), [24, 100, 51, 100]);
    }
}
