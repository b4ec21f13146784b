//! A job as shown to an operator: its record, and the state derived from it at a given time.

use imago_job::id::JobId;
use imago_job::record::{Limits, Record, Requested};
use imago_job::state::State;
use imago_mongo::copy::{CatalogChanges, SourceBlock, state_of};
use serde::Serialize;

use crate::render::{bytes, duration, eta, grouped, line};

/// A job's record, with the state derived from it at a given time.
#[derive(Debug, Serialize)]
pub struct View {
    /// The job's record, serialized without its checkpoint, which is internal to the operation.
    #[serde(serialize_with = "flat", flatten)]
    pub record: Record,
    /// Time since the job was created, in milliseconds by the servers' clock.
    age_ms: u64,
    /// Time since the last heartbeat of the job's owner, in milliseconds by the servers' clock; `None` without an
    /// owner.
    silent_ms: Option<u64>,
    /// True if a process that still sends heartbeats runs the job.
    is_worked_at: bool,
    /// Current activity of the job, in words.
    doing: String,
    /// The condition that the job waits for, or the error with which it failed, in words; `None` if there is none.
    blocked_by: Option<String>,
    /// State of the write block that the job itself set at its source.
    write_block: WriteBlock,
    /// True if a cut-over hook has started and its end is not recorded: clients may be at either cluster.
    hook_begun: bool,
    /// True if a reshard requested the rename of its collection and the outcome is not recorded.
    rename_requested: bool,
    /// Collections that joined the job since it was planned, and those that the source no longer has.
    #[serde(flatten)]
    catalog: CatalogChanges,
    /// Recommended next step of the operator, in words.
    next: String,
}

/// State of the write block that a job itself set at its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum WriteBlock {
    /// The job has set no write block, or has lifted it.
    None,
    /// The job is setting a write block, or its process died before lifting it: the next process that runs the job
    /// lifts it.
    MayStand,
    /// The cut-over left the write block in place, for the operator to lift.
    Stands,
}

impl WriteBlock {
    fn in_words(self, id: &JobId, is_worked_at: bool) -> String {
        match self {
            Self::None => "not blocked by this job".to_owned(),
            Self::MayStand if is_worked_at => "blocked for the moment of the cut-over".to_owned(),
            Self::MayStand => {
                "may still be blocked: its process died during the write block".to_owned()
            }
            Self::Stands => format!(
                "blocked since the cut-over; once no client reaches the old cluster any more, \
                 `imago cutover {id} --unblock` lifts the block"
            ),
        }
    }
}

/// Serializes a record without its checkpoint, with the fields of the state on the top level.
fn flat<S: serde::Serializer>(record: &Record, to: S) -> Result<S::Ok, S::Error> {
    let mut json = serde_json::to_value(record).map_err(serde::ser::Error::custom)?;
    if let Some(fields) = json.as_object_mut() {
        fields.remove("checkpoint");
        if let Some(serde_json::Value::Object(state)) = fields.remove("state") {
            fields.extend(state);
        }
    }
    json.serialize(to)
}

impl View {
    /// Creates the view of a record at the time `now_ms` by the servers' clock, in ms since the Unix epoch. An owner
    /// without a heartbeat for `stale_after_ms` ms counts as dead.
    pub fn new(record: Record, now_ms: u64, stale_after_ms: u64) -> Self {
        let silent = |since_ms: u64| now_ms.saturating_sub(since_ms);
        let silent_ms = record.owner.as_ref().map(|owner| silent(owner.heartbeat_at_ms));
        let is_worked_at = silent_ms.is_some_and(|silent_ms| silent_ms < stale_after_ms);
        // The record of another kind of job has no such state, and no block.
        let kept = state_of(&record).unwrap_or_default();
        let (cut_over, commit) = (kept.cut_over(), kept.commit());
        let write_block = match cut_over.map(|cut_over| cut_over.block) {
            Some(SourceBlock::MayStand { .. }) => WriteBlock::MayStand,
            Some(SourceBlock::Left) => WriteBlock::Stands,
            None if commit.is_some_and(|commit| commit.is_blocked) => WriteBlock::MayStand,
            Some(SourceBlock::None) | None => WriteBlock::None,
        };
        let hook_begun = cut_over.is_some_and(|cut_over| cut_over.hook_begun);
        // A job that is done still has the request in its record, but its outcome is known.
        let rename_requested =
            commit.is_some_and(|commit| commit.rename_requested) && !record.state.is_final();
        Self {
            age_ms: silent(record.created_at_ms),
            silent_ms,
            is_worked_at,
            doing: doing(&record, is_worked_at),
            blocked_by: if hook_begun && is_worked_at {
                Some("the hook of its cut-over is running".into())
            } else if hook_begun {
                Some(
                    "its cut-over died while its hook ran: clients may be at either cluster".into(),
                )
            } else if rename_requested && !is_worked_at {
                Some("its process died after it had requested the rename".into())
            } else {
                blocked_by(&record, is_worked_at)
            },
            write_block,
            hook_begun,
            rename_requested,
            catalog: CatalogChanges::of(&record).unwrap_or_default(),
            next: if hook_begun {
                let back = kept.reverse_job_state();
                let of =
                    back.map_or(record.id.to_string(), |back| format!("{} --rollback", back.from));
                format!(
                    "wait for the hook's end; if its cut-over died, find out where the clients are, then `imago cutover {of} --clients-at source` \
                     or `--clients-at destination`"
                )
            } else {
                next(&record, is_worked_at)
            },
            record,
        }
    }

    /// Returns the name of the live process that runs the job; `None` if there is none.
    pub fn living_owner(&self) -> Option<&str> {
        self.record.owner.as_ref().filter(|_| self.is_worked_at).map(|owner| &*owner.process)
    }

    /// Returns the time of the owner's last heartbeat by the servers' clock, in ms since the Unix epoch; `None`
    /// without an owner.
    pub fn beat(&self) -> Option<u64> {
        self.record.owner.as_ref().map(|owner| owner.heartbeat_at_ms)
    }

    /// Returns the state of the job, as its record has it.
    pub fn state(&self) -> &State {
        &self.record.state
    }

    /// Formats all facts about the job for a person, one per line.
    pub fn in_words(&self) -> String {
        let Record { id, kind, state, progress, control, limits: limited, .. } = &self.record;
        let mut facts = vec![
            ("job", format!("{id} ({kind}), made {} ago", duration(self.age_ms))),
            ("state", self.state_in_words()),
            ("activity", self.doing.clone()),
        ];
        if *control != Requested::Run && !state.is_final() {
            facts.push(("requested", requested(*control).to_owned()));
        }
        facts.push(("owner", self.owner_in_words()));
        if let Some(progress) = progress {
            facts.push(("progress", line(progress)));
            facts.push(("lag", or_unknown(progress.lag_ms)));
            // An estimate is valid only while the process that made it runs the job.
            let eta = eta(progress).filter(|_| self.is_worked_at && !state.is_final());
            facts.push(("ETA", eta.unwrap_or_else(|| "unknown".to_owned())));
            let obstacles = progress.cutover_obstacles.join("; ");
            match progress.cutover_ready.filter(|_| self.is_worked_at) {
                Some(true) => facts.push(("cut-over", "may be done now".to_owned())),
                Some(false) if obstacles.is_empty() => {
                    facts.push(("cut-over", "not yet".to_owned()));
                }
                Some(false) => facts.push(("cut-over", format!("not yet: {obstacles}"))),
                None => {}
            }
        }
        facts.extend(self.catalog.in_words().into_iter().map(|line| ("catalog", line)));
        facts.push(("limits", limits(limited)));
        facts.push(("writes", self.write_block.in_words(id, self.is_worked_at)));
        let blocked = self.blocked_by.as_deref().unwrap_or("nothing");
        facts.push(("blocked", blocked.to_owned()));
        facts.push(("next", self.next.clone()));
        facts.iter().map(|(name, fact)| format!("{name:9} {fact}\n")).collect()
    }

    fn owner_in_words(&self) -> String {
        match (&self.record.owner, self.silent_ms) {
            (Some(owner), Some(ms)) if self.is_worked_at => {
                format!("{}, alive {} ago", owner.process, duration(ms))
            }
            (Some(owner), Some(ms)) => {
                format!("none: {} has been silent for {}", owner.process, duration(ms))
            }
            _ => "none".to_owned(),
        }
    }

    /// Formats the job's state in words. A record says "running" until a process changes it, even if its owner is
    /// dead.
    fn state_in_words(&self) -> String {
        let Record { id, state, .. } = &self.record;
        match (state, self.silent_ms) {
            (State::Running { .. }, Some(ms)) if !self.is_worked_at => format!(
                "{state}, but no process has worked at it for {}: `imago job resume {id}`",
                duration(ms)
            ),
            (State::Running { .. }, None) => {
                format!("{state}, but no process works at it: `imago job resume {id}`")
            }
            _ => state.to_string(),
        }
    }

    fn row(&self) -> [String; 7] {
        let Record { id, kind, state, progress, .. } = &self.record;
        let progress = progress.as_ref();
        // A job that failed or was cancelled shows its last phase; one that is done has no phase.
        let last = progress.filter(|_| *state != State::Done).map(|progress| &*progress.phase);
        let phase = state.phase().or(last);
        let done = progress.and_then(|progress| {
            let (done, total) = (progress.documents_done, progress.documents_total?);
            Some(format!("{} %", (done * 100).checked_div(total).unwrap_or(100)))
        });
        let is_left = matches!(state, State::Running { .. }) && !self.is_worked_at;
        let lag = progress.and_then(|progress| progress.lag_ms).map(duration);
        let cell = |text: Option<String>| {
            text.filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned())
        };
        [
            id.to_string(),
            kind.clone(),
            if is_left { "interrupted".to_owned() } else { state.word().to_owned() },
            cell(phase.map(str::to_owned)),
            cell(done),
            cell(lag),
            duration(self.age_ms),
        ]
    }
}

/// Formats jobs as a table with headings, one line per job, within 80 columns.
pub fn table(views: &[View]) -> String {
    let headings = ["ID", "KIND", "STATE", "PHASE", "DONE", "LAG", "AGE"];
    crate::table::table(&headings, views.iter().map(View::row), &[])
}

/// Formats the speed limits of a job in words.
pub fn limits(limits: &Limits) -> String {
    let parts = [
        limits.documents_s.map(|rate| format!("{} documents/s", grouped(rate))),
        limits.bytes_s.map(|rate| format!("{}/s", bytes(rate as f64))),
        limits.secondary_lag_ms.map(|ms| format!("lag of secondaries up to {}", duration(ms))),
        limits.is_paced.then(|| match limits.slowdown_percent {
            None => "at a pace that clients hardly notice".to_owned(),
            Some(percent) => {
                format!(
                    "at a pace at which the slowest replies to clients take at most {percent} % of \
                     their usual time"
                )
            }
        }),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "any speed".to_owned() } else { parts.join(", ") }
}

fn or_unknown(ms: Option<u64>) -> String {
    ms.map_or_else(|| "unknown".to_owned(), duration)
}

fn requested(control: Requested) -> &'static str {
    match control {
        Requested::Run => "to run",
        Requested::Pause => "to pause",
        Requested::Cancel => "to be cancelled",
        Requested::HandOver => "to be handed over",
    }
}

fn doing(record: &Record, is_worked_at: bool) -> String {
    let said = record.progress.as_ref().map(|progress| &*progress.doing);
    match &record.state {
        State::Done => "nothing more: everything is done".to_owned(),
        State::Cancelled => "nothing more: it was given up".to_owned(),
        State::Failed { .. } => "nothing: it failed".to_owned(),
        State::Planned if !is_worked_at => "nothing yet: not started".to_owned(),
        _ if !is_worked_at => "nothing: no process works at it".to_owned(),
        State::Paused { .. } => "waits: paused by the operator".to_owned(),
        State::Planned | State::Running { .. } => match said {
            Some(said) if !said.is_empty() => said.to_owned(),
            _ => record.state.phase().unwrap_or("begins").to_owned(),
        },
    }
}

fn blocked_by(record: &Record, is_worked_at: bool) -> Option<String> {
    match &record.state {
        State::Done | State::Cancelled => None,
        State::Failed { error } => Some(error.clone()),
        _ if !is_worked_at => Some("no process works at it".to_owned()),
        State::Paused { .. } => Some("paused by the operator".to_owned()),
        State::Planned | State::Running { .. } => {
            record.progress.as_ref().and_then(|progress| progress.blocked_by.clone())
        }
    }
}

fn next(record: &Record, is_worked_at: bool) -> String {
    let (id, said) = (&record.id, record.progress.as_ref().map(|progress| &*progress.next));
    match &record.state {
        State::Done | State::Cancelled => "nothing; it never changes again".to_owned(),
        State::Failed { .. } => {
            format!("mend the cause, then `imago job resume {id}`; or `imago job cancel {id}`")
        }
        State::Paused { .. } => format!("`imago job resume {id}` or `imago job cancel {id}`"),
        _ if !is_worked_at => format!("`imago job resume {id}` or `imago job cancel {id}`"),
        State::Planned | State::Running { .. } => match said {
            Some(said) if !said.is_empty() => said.to_owned(),
            _ => format!("`imago job pause {id}` or `imago job cancel {id}`"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use imago_job::event::Progress;
    use serde_json::{Value, json};

    const STALE_AFTER_MS: u64 = 30_000;

    fn running() -> Record {
        let mut record = Record::new("copy", json!({"ns": ["a.b"]}), 1_000);
        record.claim("host/7", STALE_AFTER_MS, 61_000).unwrap();
        record.state = State::Running { phase: "replay".to_owned() };
        record.progress = Some(Progress {
            phase: "replay".to_owned(),
            documents_done: 200_000,
            documents_total: Some(200_000),
            lag_ms: Some(1_500),
            eta_ms: Some(42_000),
            cutover_ready: Some(false),
            cutover_obstacles: vec!["lag 1.5 s over 1 s".to_owned()],
            doing: "applies changes".to_owned(),
            ..Progress::default()
        });
        record.checkpoint = json!({"token": "t"});
        record
    }

    fn at(record: Record, now_ms: u64) -> View {
        View::new(record, now_ms, STALE_AFTER_MS)
    }

    fn fact(view: &View, name: &str) -> String {
        let words = view.in_words();
        let found = words.lines().find_map(|line| line.strip_prefix(name));
        found.unwrap_or_else(|| panic!("no {name} in:\n{words}")).trim().to_owned()
    }

    #[test]
    fn a_running_job_says_everything() {
        let view = at(running(), 63_000);
        assert_eq!(fact(&view, "state"), "running (replay)");
        assert_eq!(fact(&view, "activity"), "applies changes");
        assert_eq!(fact(&view, "owner"), "host/7, alive 2.0 s ago");
        assert_eq!(fact(&view, "lag"), "1.5 s");
        assert_eq!(fact(&view, "ETA"), "42 s");
        assert_eq!(fact(&view, "cut-over"), "not yet: lag 1.5 s over 1 s");
        assert_eq!(fact(&view, "blocked"), "nothing");
        assert!(fact(&view, "next").contains("imago job pause"));
    }

    #[test]
    fn a_silent_owner_does_not_work_any_more() {
        let view = at(running(), 61_000 + STALE_AFTER_MS);
        assert_eq!(view.living_owner(), None);
        let state = fact(&view, "state");
        let id = view.record.id.as_str();
        assert!(state.starts_with("running (replay), but no process has worked at it for 30 s"));
        assert!(state.contains(&format!("imago job resume {id}")), "{state}");
        assert_eq!(view.row()[2], "interrupted");
        assert_eq!(fact(&view, "owner"), "none: host/7 has been silent for 30 s");
        assert_eq!(fact(&view, "ETA"), "unknown");
        assert_eq!(fact(&view, "blocked"), "no process works at it");
        assert!(fact(&view, "next").contains("imago job resume"));
    }

    #[test]
    fn a_failed_job_says_why() {
        let mut record = running();
        record.state = State::Failed { error: "the disk is full".to_owned() };
        assert_eq!(fact(&at(record, 61_000), "blocked"), "the disk is full");
    }

    #[test]
    fn where_a_job_has_ended_is_told_unless_it_is_done() {
        let phase = |state| at(Record { state, ..running() }, 63_000).row()[3].clone();
        assert_eq!(phase(State::Failed { error: "the disk is full".to_owned() }), "replay");
        assert_eq!(phase(State::Cancelled), "replay");
        assert_eq!(phase(State::Done), "-");
    }

    #[test]
    fn the_table_has_a_line_a_job_in_columns() {
        let planned = Record::new("copy", Value::Null, 1_000);
        let id = planned.id.to_string();
        let text = table(&[at(running(), 63_000), at(planned, 63_000)]);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines.len(), 3, "{text}");
        let shown = ["copy", "running", "replay", "100", "%", "1.5", "s"];
        assert_eq!(lines[1][1..8], shown, "{text}");
        assert_eq!(lines[2][..6], [&*id, "copy", "planned", "-", "-", "-"], "{text}");
    }

    #[test]
    fn the_longest_line_of_the_table_has_80_columns() {
        let mut record = running();
        record.kind = "reshard".to_owned();
        record.state = State::Running { phase: "catch-up".to_owned() };
        record.owner.as_mut().unwrap().process = "ip-10-0-12-117.ec2.internal/184467".to_owned();
        let progress = record.progress.as_mut().unwrap();
        progress.documents_total = Some(1_234_567_890_123);
        progress.documents_done = 1_234_567_890_123;
        progress.lag_ms = Some(59 * 60_000 + 59_000);
        let text = table(&[at(record, 999 * 3_600_000 + 59 * 60_000)]);
        let longest = text.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(80), "{text}");
        assert!(text.contains("interrupted") && text.contains("999 h"), "{text}");
    }

    #[test]
    fn for_a_program_the_checkpoint_is_left_out_and_the_state_is_a_word() {
        let json = serde_json::to_value(at(running(), 63_000)).unwrap();
        assert_eq!(json.get("checkpoint"), None);
        assert_eq!(json["state"], "running");
        assert_eq!(json["phase"], "replay");
        assert_eq!(json["is_worked_at"], true);
        assert_eq!(json["silent_ms"], 2_000);
        assert_eq!(json["progress"]["lag_ms"], 1_500);
    }

    #[test]
    fn limits_are_told_in_words() {
        assert_eq!(limits(&Limits::default()), "any speed");
        let all = Limits {
            documents_s: Some(5_000),
            bytes_s: Some(2_500_000),
            secondary_lag_ms: Some(10_000),
            is_paced: true,
            slowdown_percent: None,
        };
        let told = "5,000 documents/s, 2.5 MB/s, lag of secondaries up to 10 s, at a pace that \
                    clients hardly notice";
        assert_eq!(limits(&all), told);
    }
}
