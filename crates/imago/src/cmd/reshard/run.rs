//! `imago reshard run` and `resume`: execute a plan.

use std::path::{Path, PathBuf};
use std::time::Duration;

use imago_job::id::JobId;
use imago_job::record::Limits;
use imago_mongo::copy;
use imago_mongo::namespace::Namespace;
use imago_mongo::reshard::plan::{Engine, Finding, Plan};
use imago_mongo::reshard::{self, Block, Outcome};
use imago_mongo::server::endpoint::Endpoint;
use imago_mongo::verify::Mode;

use super::plan::{By, Shape, unobstructed};
use super::speed;
use crate::cmd::process::process;
use crate::cmd::speed::Speed;
use crate::context::Context;
use crate::exit::{Exit, Failure};

/// The arguments of `run`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The documents are copied into a shadow, a collection of the same database \
                        with the new shape, which takes the collection's name at last. Until then \
                        the collection is as it was: `imago job cancel` drops the shadow. The job's \
                        state is in the cluster (database `imago`), so that any machine can go on \
                        with it.\n\nWith --engine native the server copies, follows and commits by \
                        itself, and goes on when Imago dies: workers, verification, block and \
                        limits are not Imago's to set then, and it cannot be paused. It takes five \
                        minutes at least unless the config server is set otherwise."
)]
pub struct Args {
    /// The cluster's router: mongodb://[user:password@]host:port[,…]/[?options].
    #[arg(long, value_name = "URI", hide_env_values = true)]
    uri: String,
    /// The collection, as db.coll; the plan is made first.
    #[arg(long, value_name = "NS", required_unless_present = "plan")]
    ns: Option<Namespace>,
    /// Execute the plan in this file, as printed by `imago reshard plan --json`, instead of making
    /// one.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = [
            "ns", "key", "chunks", "chunk_size_mb", "placement", "flows", "sockets", "sample",
            "add_shard", "drain_shard",
        ]
    )]
    plan: Option<PathBuf>,
    /// The new shape of the collection.
    #[command(flatten)]
    shape: Shape,
    /// Engine that changes the shape.
    #[arg(long, value_enum, default_value = "shadow", value_name = "HOW")]
    engine: By,
    #[command(flatten)]
    work: WorkArgs,
    #[command(flatten)]
    speed: Speed,
}

/// The arguments of `resume`.
#[derive(Debug, clap::Args)]
pub struct Resume {
    /// The job's id; `imago job list` shows them.
    #[arg(value_name = "JOB")]
    id: JobId,
    /// The cluster's router: the job's record holds no passwords.
    #[arg(long, value_name = "URI", hide_env_values = true)]
    uri: String,
    #[command(flatten)]
    work: WorkArgs,
}

/// The work of a process at a change of shape.
#[derive(Debug, clap::Args)]
pub struct WorkArgs {
    /// Slices that this process copies at the same time.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    workers: u8,
    /// Documents that are compared before the shadow takes the collection's name.
    #[arg(long, value_enum, default_value = "full", value_name = "WHICH")]
    verify: Verify,
    /// Method that blocks writes to the collection while the last changes are applied; by default
    /// user-writes, or the method with which the job was started.
    #[arg(long, value_enum, value_name = "HOW")]
    block: Option<BlockBy>,
    /// Lift the block, and try again later, if applying the last changes takes longer.
    #[arg(
        long, value_name = "MS", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..)
    )]
    max_block_ms: u64,
}

/// Documents that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Verify {
    /// All of them.
    Full,
    /// 10,000, drawn at random.
    Sample,
    /// None but those of the last changes.
    None,
}

/// Means by which writes are kept from the collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum BlockBy {
    /// The server refuses those of all users without bypassWriteBlockingMode, deletes too, in the
    /// whole cluster: error 371. Needs authorisation.
    UserWrites,
    /// A validator refuses inserts and updates of this collection only, with or without
    /// authorisation: error 121. Deletes are not blocked, and are applied right after the rename:
    /// until then the deleted documents can be read again. Writes with bypassDocumentValidation are
    /// not refused: an update between the last check and the rename is lost, and reported.
    Validator,
    /// You have stopped the writers.
    None,
}

impl WorkArgs {
    /// Returns the options with which `imago job resume` continues a reshard.
    pub fn usual() -> Self {
        Self { workers: 4, verify: Verify::Full, block: None, max_block_ms: 5_000 }
    }

    /// Converts the arguments into the library's options for a new reshard.
    pub fn parsed(&self) -> reshard::Options {
        self.parsed_after(Block::default())
    }

    /// Converts the arguments into the library's options for a reshard that was started with the write block `begun`.
    fn parsed_after(&self, begun: Block) -> reshard::Options {
        reshard::Options {
            workers: usize::from(self.workers),
            process: process(),
            verify: match self.verify {
                Verify::Full => Some(Mode::Full),
                Verify::Sample => Some(Mode::Sample(10_000)),
                Verify::None => None,
            },
            block: match self.block {
                Some(BlockBy::UserWrites) => Block::UserWrites,
                Some(BlockBy::Validator) => Block::Validator,
                Some(BlockBy::None) => Block::None,
                None => begun,
            },
            block_max: Duration::from_millis(self.max_block_ms),
        }
    }
}

/// Connects to the cluster at the connection string `uri`.
pub async fn connect(uri: &str) -> Result<Endpoint, Failure> {
    Ok(Endpoint::connect(uri, "cluster").await?)
}

fn read(path: &Path) -> Result<Plan, Failure> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|cause| {
        Failure::new(Exit::Usage, "plan", format!("the plan {shown} cannot be read"))
            .because(&cause)
            .help("write it with `imago reshard plan --json`")
    })?;
    serde_json::from_str(&text).map_err(|cause| {
        Failure::new(Exit::Usage, "plan", format!("{shown} is not a plan"))
            .because(&cause)
            .help("write it with `imago reshard plan --json`")
    })
}

/// Plans a reshard or reads its plan from a file, creates a job for it and runs the job.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let limits: Limits = args.speed.parsed()?;
    let read = args.plan.as_deref().map(read).transpose()?;
    let (cluster, engine) = (connect(&args.uri).await?, args.engine.parsed());
    reshard::check(&cluster, &args.work.parsed(), engine).await?;
    let mut plan = match (read, args.ns) {
        (Some(plan), _) => plan,
        (None, Some(ns)) => speed::plan(&cluster, &args.shape.request(ns), limits, context).await?,
        (None, None) => unreachable!("clap wants one of them"),
    };
    args.engine.warn_in(&mut plan)?;
    begin(&cluster, &plan, engine, limits, &args.work, context).await
}

/// Creates a job from the plan of a reshard, unless the plan has obstacles, and runs the job.
pub async fn begin(
    cluster: &Endpoint,
    plan: &Plan,
    engine: Engine,
    limits: Limits,
    work: &WorkArgs,
    context: &Context,
) -> Result<(), Failure> {
    unobstructed(plan)?;
    let id = reshard::create(cluster, plan, engine, limits).await?;
    work_at(cluster, &id, &work.parsed(), context, &plan.findings).await
}

/// Resumes the job of a reshard in this process.
pub async fn resume(args: Resume, context: &Context) -> Result<(), Failure> {
    let cluster = connect(&args.uri).await?;
    work(&cluster, &args.id, &args.work, context).await
}

/// Runs an existing job of a reshard in this process until it ends.
pub async fn work(
    cluster: &Endpoint,
    id: &JobId,
    work: &WorkArgs,
    context: &Context,
) -> Result<(), Failure> {
    let (engine, block) = reshard::engine_and_block(cluster, id).await?;
    let options = work.parsed_after(block);
    reshard::check(cluster, &options, engine).await?;
    work_at(cluster, id, &options, context, &[]).await
}

/// Runs the job of a reshard as [`work`] does, after reporting the findings of its plan, and prints the outcome.
async fn work_at(
    cluster: &Endpoint,
    id: &JobId,
    options: &reshard::Options,
    context: &Context,
    found: &[Finding],
) -> Result<(), Failure> {
    let clusters = reshard::both_roles(cluster);
    let claimed = copy::claim(&clusters, id, &options.process, context.events(), &context.cancel);
    let run = claimed.await?;
    for Finding { code, what, help, .. } in found {
        run.reporter().warning(code.as_str(), what.as_str(), help.as_str());
    }
    let done = reshard::run(cluster, run, options).await?;
    context.output.result(&done, describe)
}

fn describe(done: &Outcome) -> String {
    let mut text = format!("{} is done: the collection has its new shape\n", done.job);
    if done.engine == Engine::Native {
        return text + "  the server made the change by itself; no documents were compared\n";
    }
    if let (Some(block), Some(drain), Some(rename)) =
        (done.write_block_ms, done.drain_ms, done.rename_ms)
    {
        text += &format!(
            "  writes were blocked for {block} ms, of which the drain took {drain} ms and the \
             rename {rename} ms\n"
        );
        let steps: Vec<String> =
            done.block_steps.iter().map(|at| format!("{} {}", at.step, at.ms)).collect();
        text += &format!("  its steps, in ms: {}\n", steps.join(", "));
        if let (Some(predicted), Some(bare)) = (done.predicted_block_ms, done.bare_rename_ms) {
            text += &format!(
                "  {predicted} ms were predicted; a bare rename took {bare} ms before it\n"
            );
        }
    }
    text += &format!(
        "  {} documents compared before, {} of the last changes under the block\n",
        done.verified,
        done.last_verified.unwrap_or(0)
    );
    let late_writes = &done.late_writes;
    if late_writes.deleted + late_writes.written > 0 {
        text += &format!(
            "  {} deletes and {} writes just before the rename were applied after it\n",
            late_writes.deleted, late_writes.written
        );
    }
    if late_writes.unknown {
        text +=
            "  UNKNOWN: deletes just before the rename; documents that they removed exist again\n";
    }
    if !late_writes.lost.is_empty() {
        text += &format!(
            "  LOST: updates that bypassed the validator, of {}\n",
            late_writes.lost.join(", ")
        );
    }
    text
}
