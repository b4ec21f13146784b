//! `imago tune jobs`, `explain`, `pause`, `go-on` and `cancel`: the changes of a cluster's configuration, from any machine.

use std::fmt::Write as _;
use std::path::PathBuf;

use imago_job::clock;
use imago_job::file::FileJournal;
use imago_job::id::JobId;
use imago_job::journal::{Journal, Request};
use imago_job::record::{Owner, Record, Requested};
use imago_job::run::OwnerTiming;
use imago_tune::cassandra::journal::CassandraJournal;
use imago_tune::cassandra::{ClusterFile, Error, Uri, roll};
use imago_tune::cluster::job::Action;
use imago_tune::cluster::{self, Database as _};
use imago_tune::redis;
use imago_tune::redis::decisions::RedisDecisions;
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
    #[arg(long, value_name = "URI", hide_env_values = true, required_unless_present = "cluster")]
    uri: Option<Uri>,
    /// The cluster file in its place. Jobs and decisions of Redis are kept beside that.
    #[arg(long, value_name = "FILE", conflicts_with = "uri")]
    cluster: Option<PathBuf>,
}

/// What keeps the jobs of a cluster, and the decisions.
pub(super) enum Jobs {
    Cassandra { journal: CassandraJournal, uri: Uri },
    Redis { journal: FileJournal, decisions: RedisDecisions, uri: redis::Uri },
}

impl Kept {
    pub(super) async fn jobs(&self) -> Result<Jobs, Error> {
        let file = self.cluster.as_deref();
        if let Some(file) = file
            && cluster::file::database(file)? == redis::Redis::NAME
        {
            let uri = redis::ClusterFile::read(file)?.uri;
            let decisions = RedisDecisions::open(file, uri.clone())?;
            return Ok(Jobs::Redis { journal: redis::roll::jobs(file)?, decisions, uri });
        }
        let uri = match (file, &self.uri) {
            (Some(file), _) => ClusterFile::read(file)?.uri,
            (None, Some(uri)) => uri.clone(),
            (None, None) => unreachable!("one of both is needed"),
        };
        Ok(Jobs::Cassandra { journal: CassandraJournal::open(&uri).await?, uri })
    }
}

impl Jobs {
    fn journal(&self) -> &dyn Journal {
        match self {
            Self::Cassandra { journal, .. } => journal,
            Self::Redis { journal, .. } => journal,
        }
    }

    async fn actions(&self, record: &Record) -> Result<Vec<Action>, Error> {
        match self {
            Self::Cassandra { journal, .. } => journal.actions(&record.id).await,
            Self::Redis { .. } => redis::roll::actions(record),
        }
    }

    async fn cancel(&self, id: &JobId) -> Result<bool, Error> {
        match self {
            Self::Cassandra { uri, .. } => roll::cancel(uri, id, &process()).await,
            Self::Redis { journal, uri, .. } => {
                redis::roll::cancel(journal, uri, id, &process()).await
            }
        }
    }
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
pub(super) struct OneOrLast {
    /// The roll's id; without it the last decision of `imago tune run` is explained.
    #[arg(value_name = "JOB")]
    job: Option<JobId>,
    #[command(flatten)]
    kept: Kept,
}

/// Prints what a job did, and why; or what was decided last, and why nothing else.
pub(super) async fn explain(which: OneOrLast, context: &Context) -> Result<(), Failure> {
    let OneOrLast { job, kept } = which;
    match job {
        Some(job) => explain_job(&One { job, kept }, context).await,
        None => super::decisions::explain(&kept, context).await,
    }
}

async fn explain_job(one: &One, context: &Context) -> Result<(), Failure> {
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
    let cancelled = async { one.kept.jobs().await?.cancel(&one.job).await };
    if !cancelled.await.map_err(|error| cluster_failure(&error))? {
        return ask(one, Requested::Cancel, context).await;
    }
    let asked = Asked { job: one.job.clone(), requested: Requested::Cancel, process: None };
    context.output.result(&asked, |asked| format!("{} is cancelled\n", asked.job))
}

/// Asks something of a job.
pub(super) async fn ask(one: &One, wanted: Requested, context: &Context) -> Result<(), Failure> {
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
