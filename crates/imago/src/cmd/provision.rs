//! `imago provision`: how many shards, replicas and how much cache a chained job needs.

mod measure;
mod plan;
mod probe;
pub mod record;
mod values;

pub(in crate::cmd) use measure::rows as measured_rows;

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
    /// Measure what a request of a chained job costs the client, the cache, the router and the shards.
    Probe(probe::Args),
    /// Advise from a trace which shape of a cluster meets a deadline, with the reasons; writes
    /// nothing.
    Plan(Box<plan::Args>),
    /// Run the chain on chosen shapes of real servers, and compare measured with predicted times.
    Measure(measure::Args),
}

/// Runs the chosen action of `imago provision`.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    match args.action {
        Action::Record(args) => Box::pin(record::run(args, context)).await,
        Action::Probe(args) => Box::pin(probe::run(args, context)).await,
        Action::Plan(args) => plan::run(&args, context),
        Action::Measure(args) => Box::pin(measure::run(&args, context)).await,
    }
}
