//! `imago bench` in a program that was built without its benchmarks (the feature `bench`), as an installed one is.

use std::ffi::OsString;

use crate::exit::{Exit, Failure};

/// The command's arguments, which are not interpreted.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<OsString>,
}

/// Returns the failure that says where the benchmarks are.
pub fn run(Args { arguments: _ }: Args) -> Result<(), Failure> {
    let message = "this program was built without its benchmarks";
    Err(Failure::new(Exit::Precondition, "without_bench", message)
        .help("`make build` in a checkout of Imago builds a program that has them, `target/release/imago`"))
}
