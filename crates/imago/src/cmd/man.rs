//! `imago man FOLDER`: manual pages, generated from the same definitions as the help.

use std::path::PathBuf;

use clap::Command;

use crate::exit::{Exit, Failure};

/// The command's arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The folder that gets the pages; it is made if it is not there.
    folder: PathBuf,
}

/// Writes the manual pages `imago.1`, `imago-copy.1` and so on into the folder of the arguments; `command` is the
/// grammar of the command line.
pub fn run(args: &Args, command: Command) -> Result<(), Failure> {
    let written = std::fs::create_dir_all(&args.folder)
        .and_then(|()| clap_mangen::generate_to(command, &args.folder));
    written.map_err(|cause| {
        let what = format!("cannot write manual pages into {}", args.folder.display());
        Failure::new(Exit::Failed, "man", what).because(&cause)
    })
}
