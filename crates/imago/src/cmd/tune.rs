//! `imago tune`: when a database's configuration should change, and to what.

mod plan;

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
    /// Say from a trace whether the configuration should change, when and to what; changes nothing.
    Plan(plan::Args),
}

/// Runs the command.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    match args.action {
        Action::Plan(args) => plan::run(args, context),
    }
}
