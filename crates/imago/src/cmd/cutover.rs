//! `imago cutover`: moves clients to the copy, and back.

use std::process::Stdio;
use std::time::Duration;

use imago_job::id::JobId;
use imago_mongo::copy::cutover::{self, Block, ClientsAt, Outcome};
use imago_mongo::copy::{self, Clusters};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Command;

use crate::cmd::copy::{Ends, connect, options, work};
use crate::cmd::process::process;
use crate::context::Context;
use crate::exit::Failure;

/// The command's arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "The write block is the server's setUserWriteBlockMode: cluster-wide, and \
                        only for users without bypassWriteBlockingMode. It stays after the hook, \
                        because an operation that was under way to the old cluster would \
                        otherwise be acknowledged there and lost; --unblock lifts it once no \
                        client reaches the old cluster any more. A cut-over that fails lifts it.")]
pub struct Args {
    /// The job's id; `imago job list` shows them.
    #[arg(value_name = "JOB")]
    id: JobId,
    /// The clusters of the job: its record holds no passwords.
    #[command(flatten)]
    ends: Ends,
    /// Method that blocks writes at the source while the last changes are applied.
    #[arg(long, value_enum, default_value = "user-writes", value_name = "HOW")]
    block: BlockBy,
    /// Afterwards keep the old cluster following the new one, so that --rollback loses nothing.
    #[arg(long, conflicts_with = "rollback")]
    reverse: bool,
    /// Go back to the old cluster, of a job that was cut over with --reverse.
    #[arg(long)]
    rollback: bool,
    /// A shell command that moves the clients; the cut-over fails if it does.
    #[arg(long, value_name = "CMD")]
    on_cutover: Option<String>,
    /// Lift the block as soon as the hook has ended: it must then have waited until no operation
    /// is under way to the old cluster.
    #[arg(long, conflicts_with = "reverse")]
    lift_block: bool,
    /// Lift the block that this job's cut-over left at the source, and do nothing else. A block that is
    /// not this job's is left alone.
    #[arg(long)]
    unblock: bool,
    /// With --unblock: lift any block of the source, and say whose it was not.
    #[arg(long, requires = "unblock")]
    force: bool,
    /// Say where the clients are, after a cut-over that died while its hook ran, and do nothing
    /// else: at the source, the block is lifted and the job can go on; at the destination, it is
    /// done.
    #[arg(long, value_enum, value_name = "WHERE", conflicts_with = "unblock")]
    clients_at: Option<End>,
    /// Cut over even if the source has new collections that cannot join the job; these are not
    /// copied.
    #[arg(long)]
    ignore_new: bool,
    /// Abort, and lift the block, if drain, last comparison and hook together take longer.
    #[arg(
        long, value_name = "MS", default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(1..)
    )]
    max_block_ms: u64,
    /// Number of last changes whose documents are compared under the block.
    #[arg(long, value_name = "N", default_value_t = 2_000)]
    last_changes: usize,
    /// Number of documents, drawn at random, that are compared before the block.
    #[arg(long, value_name = "N", default_value_t = 2_000)]
    sample: u64,
}

/// Means by which writes are kept from the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum BlockBy {
    /// The server refuses them.
    UserWrites,
    /// You have stopped the writers.
    None,
}

/// An end of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum End {
    /// The cluster that it reads.
    Source,
    /// The cluster that it writes.
    Destination,
}

/// Cuts the job over, rolls it back, lifts its write block, or records where the clients are, as the arguments say.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let mut clusters = connect(&args.ends).await?;
    let mut id = args.id.clone();
    if args.rollback {
        id = cutover::reverse_of(&clusters, &args.id).await?;
        clusters = cutover::reversed(&clusters);
    }
    if args.unblock {
        let lifted = cutover::unblock(&clusters, &id, &process(), args.force).await?;
        return context.output.result(&lifted, |lifted| {
            let source = clusters.source.redacted();
            let forced = lifted.overridden.as_ref().map(|why| format!("forced, although {why}\n"));
            format!(
                "{source} accepts the writes of its users again\n{}",
                forced.unwrap_or_default()
            )
        });
    }
    let options = cutover::Options {
        block: match args.block {
            BlockBy::UserWrites => Block::UserWrites,
            BlockBy::None => Block::None,
        },
        reverse: args.reverse,
        keep_block: !args.lift_block,
        block_max: Duration::from_millis(args.max_block_ms),
        last_changes: args.last_changes,
        sample: args.sample,
        ignore_new: args.ignore_new,
    };
    let process = process();
    if let Some(end) = args.clients_at {
        return decide(&clusters, &id, &args, end, context).await;
    }
    let (events, cancel) = (context.events(), &context.cancel);
    let claim = cutover::take_over(&clusters, &id, &options, &process, events, cancel);
    let run = claim.await?;
    let hook = async || match &args.on_cutover {
        Some(command) => hook(command, &id).await,
        None => Ok(()),
    };
    let done = Box::pin(cutover::cutover(&clusters, run, &process, &options, hook)).await?;
    context.output.result(&done, |done| describe(done, &args))?;
    follow_back(&clusters, done.reverse_job.as_ref(), context).await
}

/// Runs the reverse job `back`, if there is one, until it is stopped or another process takes it over for a rollback.
async fn follow_back(
    clusters: &Clusters,
    back: Option<&JobId>,
    context: &Context,
) -> Result<(), Failure> {
    let Some(back) = back else { return Ok(()) };
    let options = options(&crate::cmd::copy::WorkArgs::default());
    work(&cutover::reversed(clusters), back, &options, context).await
}

/// Returns the arguments for a further `imago cutover` of the same job in the same direction.
fn again(args: &Args) -> String {
    let id = &args.id;
    if args.rollback { format!("{id} --rollback") } else { id.to_string() }
}

async fn decide(
    clusters: &Clusters,
    id: &JobId,
    args: &Args,
    end: End,
    context: &Context,
) -> Result<(), Failure> {
    let process = process();
    let claim = copy::claim(clusters, id, &process, context.events(), &context.cancel);
    let run = claim.await?;
    let (clients, state, next) = match end {
        End::Source if args.rollback => {
            (ClientsAt::Source, "not_cut_over", format!("imago cutover {}", again(args)))
        }
        End::Source => (ClientsAt::Source, "not_cut_over", format!("imago job resume {id}")),
        End::Destination => {
            (ClientsAt::Destination, "done", format!("imago cutover {} --unblock", again(args)))
        }
    };
    let back = cutover::decide(clusters, run, clients).await?;
    let result = serde_json::json!({"job": id, "state": state, "next": &next, "reverse_job": back});
    context.output.result(&result, |_| match (end, &back) {
        (End::Source, _) => format!("{id} is not cut over; to go on: {next}\n"),
        (End::Destination, None) => {
            format!("{id} is cut over; once no client reaches the old cluster any more: {next}\n")
        }
        (End::Destination, Some(back)) => format!(
            "{id} is cut over; the old cluster follows as job {back}; to go back: imago cutover {id} \
             --rollback\n"
        ),
    })?;
    follow_back(clusters, back.as_ref(), context).await
}

async fn hook(command: &str, id: &JobId) -> Result<(), String> {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command).env("IMAGO_JOB", id.to_string());
    shell.stdin(Stdio::null()).process_group(0);
    // The output of a hook is not part of the result.
    shell.stdout(Stdio::null());
    let failed = |error| format!("sh cannot be run: {error}");
    let mut shell = shell.spawn().map_err(failed)?;
    let group = HookGroup(shell.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));
    let status = shell.wait().await.map_err(failed)?;
    if status.success() {
        group.leave();
        return Ok(());
    }
    Err(format!("{command:?} ended with {status}"))
}

/// The process group of a running hook. A hook that fails or times out is killed with its children:
/// the write block is then lifted, and none of these processes may still move clients.
struct HookGroup(Option<Pid>);

impl HookGroup {
    /// Releases the process group: processes that a successful hook started on purpose continue to run.
    fn leave(mut self) {
        self.0 = None;
    }
}

impl Drop for HookGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // An empty process group is no failure.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

fn describe(done: &Outcome, args: &Args) -> String {
    let mut text = format!(
        "{} is cut over\n  writes were blocked for {} ms, of which the drain took {} ms\n  \
         {} documents compared before, {} of the last changes compared under the block\n",
        done.job, done.write_block_ms, done.drain_ms, done.sampled, done.last_verified
    );
    for line in done.catalog.in_words() {
        text += &format!("  {line}\n");
    }
    if done.is_blocked {
        text += &format!(
            "  the cluster that the clients left still refuses the writes of its users; imago \
             cutover {} --unblock lifts the block\n",
            again(args)
        );
    }
    if let Some(back) = &done.reverse_job {
        text += &format!(
            "  the old cluster follows as job {back}; to go back: imago cutover {} --rollback\n",
            done.job
        );
    }
    text
}
