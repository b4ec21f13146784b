//! `imago completions SHELL`: a shell completion script, generated from the same definitions as the
//! help.

use clap::Command;
use clap_complete::Shell;

use crate::context::Context;
use crate::exit::Failure;

/// The command's arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell that the script is for.
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the completion script of the chosen shell on stdout; `command` is the grammar of the command line.
pub fn run(args: &Args, mut command: Command, context: &Context) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "imago", &mut script);
    context.output.bytes(&script)
}
