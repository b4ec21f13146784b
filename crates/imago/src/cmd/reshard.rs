//! `imago reshard …`: changes the shard key, chunks or shards of a live collection.

use crate::context::Context;
use crate::exit::Failure;

mod advise;
pub mod plan;
mod record;
mod report;
mod revert;
pub mod run;
pub mod speed;

/// The command's arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Compare the shard keys that suit what clients do; leaves the collection as it is.
    Advise(advise::Args),
    /// Record the operations of clients, as advice on shard keys needs them.
    Record(record::Args),
    /// Compare what advice predicted of a change of the shard key with what clients do after it.
    Report(report::Args),
    /// Show which data a change would move, how long it would take and what prevents it; writes
    /// nothing.
    Plan(plan::Args),
    /// Change the shape of a collection while it serves.
    Run(run::Args),
    /// Resume a change of shape that no process works at: it died, was interrupted, or failed.
    Resume(run::Resume),
    /// Restore the old shard key of a collection, after a job that changed it.
    Revert(revert::Args),
}

/// Runs the chosen action of `imago reshard`.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    match args.action {
        Action::Advise(args) => advise::run(args, context).await,
        Action::Record(args) => record::run(args, context).await,
        Action::Report(args) => report::run(args, context).await,
        Action::Plan(args) => plan::run(args, context).await,
        Action::Run(args) => run::run(args, context).await,
        Action::Resume(args) => run::resume(args, context).await,
        Action::Revert(args) => revert::run(args, context).await,
    }
}
