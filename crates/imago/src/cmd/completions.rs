//! `imago completions SHELL`: a completion script, made from the same table as the help.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::context::Context;
use crate::exit::Failure;

/// The command's arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell that the script is for.
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the script on stdout.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "imago", &mut script);
    context.output.bytes(&script)
}
