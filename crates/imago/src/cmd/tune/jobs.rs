//! `imago tune jobs`, `explain`, `pause`, `go-on` and `cancel`: the changes of a cluster's configuration, from any machine.

use std::fmt::Write as _;

use imago_job::clock;
use imago_job::id::JobId;
use imago_job::journal::{Journal as _, Request};
use imago_job::record::{Owner, Record, Requested};
use imago_job::run::OwnerTiming;
use imago_tune::cassandra::journal::{Action, CassandraJournal};
use imago_tune::cassandra::{Error, Uri, roll};
use serde::Serialize;

use crate::cmd::load::cluster_failure;
use crate::cmd::process::process;
use crate::context::Context;
use crate::exit::Failure;
use crate::table::table;

/// The cluster that keeps the jobs.
#[derive(Debug, clap::Args)]
pub(super) struct Kept {
    /// The cluster: cassandra://NAME:PASSWORD@HOST:PORT,HOST:PORT.
    #[arg(long, value_name = "URI", hide_env_values = true)]
    pub(super) uri: Uri,
}

/// One job, or all that tuning does.
#[derive(Debug, clap::Args)]
pub(super) struct OneOrAll {
    /// The roll's id; without it `imago tune run` may make changes again.
    #[arg(value_name = "JOB")]
    job: Option<JobId>,
    #[command(flatten)]
    kept: Kept,
}

/// One job.
#[derive(Debug, clap::Args)]
pub(super) struct One {
    /// The job's id; `imago tune jobs` shows them.
    #[arg(value_name = "JOB")]
    job: JobId,
    #[command(flatten)]
    kept: Kept,
}

/// Lists the jobs.
pub(super) async fn list(kept: &Kept, context: &Context) -> Result<(), Failure> {
    let found = async {
        let journal = CassandraJournal::open(&kept.uri).await?;
        Ok(journal.list().await?)
    };
    let all: Vec<Record> = found.await.map_err(|error: Error| cluster_failure(&error))?;
    context.output.result(&all, |all| {
        if all.is_empty() {
            return "there are no jobs\n".into();
        }
        let row = |record: &Record| {
            let owner = record.owner.as_ref().map_or("-", |owner| &*owner.process);
            let changes = record.spec.get("changes").map(ToString::to_string).unwrap_or_default();
            [
                record.id.to_string(),
                record.kind.clone(),
                record.state.to_string(),
                owner.into(),
                changes,
            ]
        };
        table(&["JOB", "KIND", "STATE", "PROCESS", "CHANGES"], all.iter().map(row), &[])
    })
}

/// Prints what a job did, and why.
pub(super) async fn explain(one: &One, context: &Context) -> Result<(), Failure> {
    let read = async {
        let journal = CassandraJournal::open(&one.kept.uri).await?;
        let record = journal.load(&one.job).await?;
        Ok((record, journal.actions(&one.job).await?))
    };
    let (record, actions) = read.await.map_err(|error: Error| cluster_failure(&error))?;
    let explained = Explained { job: one.job.clone(), state: record.state.to_string(), actions };
    context.output.result(&explained, |explained| {
        let mut text = format!("{} is {}\n", explained.job, explained.state);
        let began_ms = explained.actions.first().map_or(0, |first| first.at_ms);
        for Action { at_ms, what, why } in &explained.actions {
            let after_s = (at_ms - began_ms) as f64 / 1_000.0;
            _ = writeln!(text, "{after_s:>8.1} s  {what}, because {why}");
        }
        text
    })
}

/// What a job did.
#[derive(Serialize)]
struct Explained {
    job: JobId,
    state: String,
    actions: Vec<Action>,
}

/// True if the process has given a sign of life lately, as far as the clocks of this machine and of the nodes agree.
fn is_alive(owner: &Owner) -> bool {
    let stale_after_ms = OwnerTiming::default().stale_after.as_millis();
    u128::from(clock::wall()().saturating_sub(owner.heartbeat_at_ms)) < stale_after_ms
}

/// The answer to a request.
#[derive(Serialize)]
struct Asked {
    job: JobId,
    requested: Requested,
    /// The process that is to do it, if one works at the job.
    process: Option<String>,
}

/// Has a roll go on, or controllers.
pub(super) async fn go_on(which: OneOrAll, context: &Context) -> Result<(), Failure> {
    let OneOrAll { job, kept } = which;
    match job {
        Some(job) => ask(&One { job, kept }, Requested::Run, context).await,
        None => super::decisions::hold(&kept, false, context).await,
    }
}

/// Ends a job before its next step, at once if no process works at it.
pub(super) async fn cancel(one: &One, context: &Context) -> Result<(), Failure> {
    let cancelled = roll::cancel(&one.kept.uri, &one.job, &process()).await;
    if !cancelled.map_err(|error| cluster_failure(&error))? {
        return ask(one, Requested::Cancel, context).await;
    }
    let asked = Asked { job: one.job.clone(), requested: Requested::Cancel, process: None };
    context.output.result(&asked, |asked| format!("{} is cancelled\n", asked.job))
}

/// Asks something of a job.
pub(super) async fn ask(one: &One, wanted: Requested, context: &Context) -> Result<(), Failure> {
    let asked = async {
        let journal = CassandraJournal::open(&one.kept.uri).await?;
        journal.request(&one.job, &Request::Control(wanted)).await?;
        let record = journal.load(&one.job).await?;
        Ok(Asked {
            job: one.job.clone(),
            requested: wanted,
            process: record.owner.filter(is_alive).map(|owner| owner.process),
        })
    };
    let asked = asked.await.map_err(|error: Error| cluster_failure(&error))?;
    context.output.result(&asked, |asked| match &asked.process {
        Some(process) => format!("{process} does that before its next step\n"),
        None => format!(
            "no process works at {}: `imago tune roll --resume {}` does that\n",
            asked.job, asked.job
        ),
    })
}
