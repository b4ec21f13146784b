//! `imago provision`: how many shards, replicas and how much cache a chained job needs.

mod record;

use crate::context::Context;
use crate::exit::Failure;

/// The command's arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Run a job, and record the keys that it reads from a database.
    Record(record::Args),
}

/// Runs the command.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    match args.action {
        Action::Record(args) => Box::pin(record::run(args, context)).await,
    }
}
