//! `imago reshard revert`: reverses a reshard that is done by another one.

use imago_job::id::JobId;
use imago_job::record::Limits;
use imago_mongo::reshard;
use imago_mongo::reshard::plan::{Engine, Finding, Weight};

use super::run::{WorkArgs, begin, connect};
use super::speed;
use crate::cmd::speed::Speed;
use crate::context::Context;
use crate::exit::Failure;

/// The command's arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A job of its own, as `imago reshard run` with the old key: planned for the \
                        documents as they are now, so that what was written since is kept. Exit \
                        code 4 when the job did not end with another key, or the collection was \
                        changed since."
)]
pub struct Args {
    /// The job that changed the key, and is done; `imago job list` shows them.
    #[arg(value_name = "JOB")]
    id: JobId,
    /// The cluster's router: the job's record holds no passwords.
    #[arg(long, value_name = "URI", hide_env_values = true)]
    uri: String,
    #[command(flatten)]
    work: WorkArgs,
    #[command(flatten)]
    speed: Speed,
}

/// Plans the reverse of a reshard that is done, creates a job for it and runs the job.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let limits: Limits = args.speed.parsed()?;
    let cluster = connect(&args.uri).await?;
    reshard::check(&cluster, &args.work.parsed(), Engine::Shadow).await?;
    let way = reshard::revert(&cluster, &args.id).await?;
    let mut plan = speed::plan(&cluster, &way.request, limits, context).await?;
    if !way.is_same_collection {
        plan.findings.push(known_by_key(&args.id));
    }
    begin(&cluster, &plan, Engine::Shadow, limits, &args.work, context).await
}

/// Returns the warning for the revert of job `id`, which was created before jobs recorded the UUID of their
/// collection.
fn known_by_key(id: &JobId) -> Finding {
    Finding {
        weight: Weight::Warning,
        code: "known_by_key".into(),
        what: format!(
            "job {id} did not record the UUID of its collection: this collection is assumed to be \
             its result, by name and shard key"
        ),
        help:
            "cancel the new job (`imago job cancel`) if the collection was dropped and recreated \
             since"
                .into(),
    }
}
