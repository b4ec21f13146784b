//! `imago copy`: copies live collections to another cluster, and applies their changes there.

use imago_job::id::JobId;
use imago_job::journal::Journal;
use imago_mongo::copy::preflight::{self, Plan, Planned, Request};
use imago_mongo::copy::{self, CatalogChanges, Clusters, Options, RunOutcome, StopWhen};
use imago_mongo::namespace::Selector;
use imago_mongo::server::endpoint::Endpoint;
use imago_mongo::state::journal::MongoJournal;
use serde::Serialize;

use crate::cmd::process::process;
use crate::cmd::speed::Speed;
use crate::context::Context;
use crate::exit::Failure;

/// The command's arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "The job's state is stored in the destination (database `imago`), so that \
                        any machine can resume the job: see `imago job`. The job follows the \
                        source until `imago cutover`, or until it is interrupted (exit code 5: \
                        `imago job resume`).")]
pub struct Args {
    /// The clusters.
    #[command(flatten)]
    pub ends: Ends,
    /// A collection, renamed as db.coll=db2.coll2; a pattern such as shop.*, which also matches
    /// collections that are created later; or all. Stored functions are copied only if db.system.js
    /// is named. Repeatable.
    #[arg(long, value_name = "NS", required = true)]
    ns: Vec<Selector>,
    /// Copy only documents that match; extended JSON.
    #[arg(long, value_name = "JSON")]
    filter: Option<String>,
    /// Copy into collections that hold documents already: those with the same _id are replaced.
    #[arg(long)]
    into_existing: bool,
    /// Shard the collections at the destination by this key, split for even shares; extended JSON.
    #[arg(long, value_name = "JSON")]
    shard_key: Option<String>,
    /// Leave out collections that are created at the source later, even if a pattern matches them.
    #[arg(long)]
    no_new: bool,
    /// Say what would be done, and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// The work of its process.
    #[command(flatten)]
    pub work: WorkArgs,
    /// Limits on its speed; `imago job set` changes them while it runs.
    #[command(flatten)]
    speed: Speed,
}

/// The two clusters.
#[derive(Debug, clap::Args)]
pub struct Ends {
    /// The cluster to read: mongodb://[user:password@]host:port[,…]/[?options].
    #[arg(long, value_name = "URI", hide_env_values = true)]
    pub from: String,
    /// The cluster to write.
    #[arg(long, value_name = "URI", hide_env_values = true)]
    pub to: String,
}

/// The work of a process at a copy.
#[derive(Debug, clap::Args)]
pub struct WorkArgs {
    /// Slices that this process copies at the same time.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub workers: u8,
    /// Condition on which this process ends by itself.
    #[arg(long, value_enum, default_value = "handed-over", value_name = "WHEN")]
    pub until: When,
    /// Size of a slice of a collection, in MiB, about.
    #[arg(long, value_name = "N", default_value_t = 64, hide = true, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub slice_mb: u32,
}

impl Default for WorkArgs {
    fn default() -> Self {
        Self { workers: 4, until: When::HandedOver, slice_mb: 64 }
    }
}

/// Condition on which a copy's process ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum When {
    /// Once the destination has caught up; the job can then be resumed or cut over.
    CaughtUp,
    /// Once another process takes the job over, as `imago cutover` does.
    HandedOver,
}

/// Connects to the source and to the destination of a job.
pub async fn connect(ends: &Ends) -> Result<Clusters, Failure> {
    let source = Endpoint::connect(&ends.from, "source").await?;
    let destination = Endpoint::connect(&ends.to, "destination").await?;
    Ok(Clusters { source, destination })
}

/// Converts the arguments into the options of the copy library.
pub fn options(work: &WorkArgs) -> Options {
    let stop_when = match work.until {
        When::CaughtUp => StopWhen::CaughtUp,
        When::HandedOver => StopWhen::HandedOver,
    };
    Options {
        workers: usize::from(work.workers),
        stop_when,
        process: process(),
        await_max: imago_mongo::replicate::changes::AWAIT_MAX,
        slice_bytes: u64::from(work.slice_mb) * 1024 * 1024,
        route: None,
    }
}

#[derive(Serialize)]
struct Ended {
    job: JobId,
    state: &'static str,
    #[serde(flatten)]
    catalog: CatalogChanges,
}

/// Plans a copy job, creates it and runs it in this process; with `--dry-run`, prints the plan instead.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let limits = args.speed.parsed()?;
    let clusters = connect(&args.ends).await?;
    let request = Request {
        selectors: args.ns,
        filter: args.filter,
        into_existing: args.into_existing,
        shard_key: args.shard_key,
        no_new: args.no_new,
    };
    let plan = preflight::plan(&clusters.source, &clusters.destination, &request).await?;
    if args.dry_run {
        return context.output.result(&plan, describe);
    }
    let id = copy::create(&clusters, &plan, limits).await?;
    let reporter = context.reporter(id.clone(), "copy");
    for left_out in &plan.left_out {
        reporter.warning(
            "left_out",
            left_out.to_string(),
            "no action is needed if it is not to be copied",
        );
    }
    for note in &plan.notes {
        reporter.warning(
            "note",
            note.as_str(),
            "no action is needed if this is expected; the copy goes on",
        );
    }
    work(&clusters, &id, &options(&args.work), context).await
}

/// Runs the copy job `id` in this process as its coordinator, until it has caught up or another process takes it
/// over, and prints the result.
pub async fn work(
    clusters: &Clusters,
    id: &JobId,
    options: &Options,
    context: &Context,
) -> Result<(), Failure> {
    let led = copy::coordinate(clusters, id, options, context.events(), &context.cancel);
    let state = match led.await? {
        RunOutcome::CaughtUp => "caught_up",
        RunOutcome::HandedOver => "handed_over",
    };
    let record = MongoJournal::new(clusters.destination.clone()).load(id).await?;
    let ended = Ended { job: id.clone(), state, catalog: CatalogChanges::of(&record)? };
    context.output.result(&ended, |ended| {
        let Ended { job, state, catalog } = ended;
        let changes: String = catalog.in_words().iter().map(|line| format!("{line}\n")).collect();
        match *state {
            "caught_up" => format!(
                "{changes}{job} has caught up; next: imago verify, then imago cutover {job}\n"
            ),
            _ => format!("{job} goes on in another process\n"),
        }
    })
}

fn describe(plan: &Plan) -> String {
    let mut text = format!("from {}\n  to {}\n", plan.source, plan.destination);
    for planned in &plan.collections {
        text += &line(planned);
    }
    for view in &plan.views {
        text += &format!("  {} → {}  view\n", view.from, view.to);
    }
    for functions in &plan.functions {
        text += &format!("  {} → {}  stored functions\n", functions.from, functions.to);
    }
    for left_out in &plan.left_out {
        text += &format!("  {left_out}\n");
    }
    for note in &plan.notes {
        text += &format!("note: {note}\n");
    }
    text + "nothing was written\n"
}

fn line(planned: &Planned) -> String {
    let place = if planned.creates { "new" } else { "exists" };
    let Planned { from, to, size, indexes, .. } = planned;
    format!(
        "  {from} → {to} ({place})  {} documents, {} bytes, {indexes} indexes besides _id\n",
        size.documents, size.bytes
    )
}
