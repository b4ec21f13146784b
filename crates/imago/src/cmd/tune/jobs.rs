//! `imago tune jobs`, `pause`, `go-on` and `cancel`: the changes of a cluster's configuration, from any machine.

use imago_job::id::JobId;
use imago_job::journal::{Journal as _, Request};
use imago_job::record::{Record, Requested};
use imago_tune::cassandra::journal::CassandraJournal;
use imago_tune::cassandra::{Error, Uri};
use serde::Serialize;

use crate::cmd::load::cassandra_failure;
use crate::context::Context;
use crate::exit::Failure;
use crate::table::table;

/// The cluster that keeps the jobs.
#[derive(Debug, clap::Args)]
pub(super) struct Kept {
    /// The cluster: cassandra://NAME:PASSWORD@HOST:PORT,HOST:PORT.
    #[arg(long, value_name = "URI", hide_env_values = true)]
    uri: Uri,
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
    let all: Vec<Record> = found.await.map_err(|error: Error| cassandra_failure(&error))?;
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

/// The answer to a request.
#[derive(Serialize)]
struct Asked {
    job: JobId,
    requested: Requested,
    /// The process that is to do it, if one works at the job.
    process: Option<String>,
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
            process: record.owner.map(|owner| owner.process),
        })
    };
    let asked = asked.await.map_err(|error: Error| cassandra_failure(&error))?;
    context.output.result(&asked, |asked| match &asked.process {
        Some(process) => format!("{process} does that before its next step\n"),
        None => format!(
            "no process works at {}: `imago tune roll --resume {}` does that\n",
            asked.job, asked.job
        ),
    })
}
