//! `imago chain keys`: draws the keys with which a chain begins.

use std::io::{BufWriter, Write as _};

use imago_provision::chain::Error;
use imago_provision::chain::run::Start;

use super::failure;
use super::reading::AllKeys;
use crate::exit::Failure;

/// The arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
They are those with which `imago chain run --keys COUNT` begins, sorted by their bytes.

Example:
  imago chain keys 20000 --modulo 1000000 >keys")]
pub(super) struct Args {
    /// Number of different keys.
    #[arg(value_name = "COUNT")]
    count: u64,
    #[command(flatten)]
    all: AllKeys,
    /// Seed of the draw.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
}

/// Draws the keys and writes them to stdout, one per line.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let drawn = || {
        let keys = args.all.keys()?;
        let mut output = BufWriter::new(std::io::stdout());
        let mut line = Vec::new();
        for rank in Start::drawn(&keys, args.count, args.seed)? {
            line.clear();
            keys.write(rank, &mut line);
            line.push(b'\n');
            output.write_all(&line).map_err(Error::Write)?;
        }
        output.flush().map_err(Error::Write)
    };
    drawn().map_err(failure)
}
