//! `imago tune jobs`, `explain`, `pause`, `go-on` and `cancel`: inspection and control of the jobs that change a
//! cluster's configuration, from any machine.

use std::fmt::Write as _;

use imago_job::clock;
use imago_job::id::JobId;
use imago_job::journal::Request;
use imago_job::record::{Owner, Record, Requested};
use imago_job::run::OwnerTiming;
use imago_tune::cassandra::Error;
use imago_tune::cluster::job::Action;
use serde::Serialize;

use super::cluster::ClusterArgs;
use crate::context::Context;
use crate::exit::{Failure, cluster_failure};
use crate::table::table;

/// One job, or all that tuning does.
#[derive(Debug, clap::Args)]
pub(super) struct JobOrAllArgs {
    /// The roll's id; without it `imago tune run` may make changes again.
    #[arg(value_name = "JOB")]
    job: Option<JobId>,
    #[command(flatten)]
    kept: ClusterArgs,
}

/// One job.
#[derive(Debug, clap::Args)]
pub(super) struct JobArgs {
    /// The job's id; `imago tune jobs` shows them.
    #[arg(value_name = "JOB")]
    job: JobId,
    #[command(flatten)]
    kept: ClusterArgs,
}

/// Runs `imago tune jobs`: prints the jobs of a cluster.
pub(super) async fn list(kept: &ClusterArgs, context: &Context) -> Result<(), Failure> {
    let found = async {
        let jobs = kept.jobs().await?;
        Ok(jobs.journal().list().await?)
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

/// A job, or the last decision.
#[derive(Debug, clap::Args)]
pub(super) struct JobOrLastArgs {
    /// The roll's id; without it the last decision of `imago tune run` is explained.
    #[arg(value_name = "JOB")]
    job: Option<JobId>,
    #[command(flatten)]
    kept: ClusterArgs,
}

/// Runs `imago tune explain`: prints the actions of a job and their reasons; without a job, the last decision and why
/// its alternatives were not chosen.
pub(super) async fn explain(which: JobOrLastArgs, context: &Context) -> Result<(), Failure> {
    let JobOrLastArgs { job, kept } = which;
    match job {
        Some(job) => explain_job(&JobArgs { job, kept }, context).await,
        None => super::decisions::explain(&kept, context).await,
    }
}

/// Prints the actions of a job and their reasons.
async fn explain_job(one: &JobArgs, context: &Context) -> Result<(), Failure> {
    let read = async {
        let jobs = one.kept.jobs().await?;
        let record = jobs.journal().load(&one.job).await?;
        let actions = jobs.actions(&record).await?;
        Ok((record, actions))
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

/// The actions of a job and their reasons, for programs.
#[derive(Serialize)]
struct Explained {
    /// Id of the job that is explained.
    job: JobId,
    /// State of the job when it was read, as text.
    state: String,
    /// The actions that the job has performed, in order, each with its time and reason.
    actions: Vec<Action>,
}

/// Returns true if the owner of a job has written a heartbeat recently. The clocks of this machine and of the owner's
/// must agree for that.
fn is_alive(owner: &Owner) -> bool {
    let stale_after_ms = OwnerTiming::default().stale_after.as_millis();
    u128::from(clock::wall()().saturating_sub(owner.heartbeat_at_ms)) < stale_after_ms
}

/// The reply to a request to a job (to pause, resume or cancel), for programs.
#[derive(Serialize)]
struct Asked {
    /// Id of the job to which the request was made.
    job: JobId,
    /// The action that was requested.
    requested: Requested,
    /// The process that will perform the request; `None` if no live process works at the job.
    process: Option<String>,
}

/// Runs `imago tune go-on`: resumes a paused roll or, without a job, allows the changes of controllers again.
pub(super) async fn go_on(which: JobOrAllArgs, context: &Context) -> Result<(), Failure> {
    let JobOrAllArgs { job, kept } = which;
    match job {
        Some(job) => ask(&JobArgs { job, kept }, Requested::Run, context).await,
        None => super::decisions::hold(&kept, false, context).await,
    }
}

/// Runs `imago tune cancel`: ends a job before its next step, or immediately if no process works at it.
pub(super) async fn cancel(one: &JobArgs, context: &Context) -> Result<(), Failure> {
    let cancelled = async { one.kept.jobs().await?.cancel(&one.job).await };
    if !cancelled.await.map_err(|error| cluster_failure(&error))? {
        return ask(one, Requested::Cancel, context).await;
    }
    let asked = Asked { job: one.job.clone(), requested: Requested::Cancel, process: None };
    context.output.result(&asked, |asked| format!("{} is cancelled\n", asked.job))
}

/// Records a request to a job, and prints the name of the process that will perform it.
pub(super) async fn ask(
    one: &JobArgs,
    wanted: Requested,
    context: &Context,
) -> Result<(), Failure> {
    let asked = async {
        let jobs = one.kept.jobs().await?;
        let journal = jobs.journal();
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
