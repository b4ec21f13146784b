//! `imago chain reduce`: the reduce of a chained job, from sorted lines on stdin to stdout.

use std::io::{BufReader, BufWriter};

use imago_provision::chain::reduce::{Level, pairs, unique};
use imago_provision::chain::{Error, Job};
use serde_json::json;

use super::map::BUFFER_BYTES;
use super::{failure, report_hadoop_counters};
use crate::context::Context;
use crate::exit::Failure;

/// The arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The input has to be sorted by its bytes (LC_ALL=C sort); a line that is not is an error. Memory is that of one line.

Example:
  LC_ALL=C sort mapped | imago chain reduce >next
  LC_ALL=C sort mapped | imago chain reduce --job merkle --leaves 1000 --level 1 >nodes")]
pub(super) struct Args {
    /// The job of the map.
    #[arg(long, value_name = "JOB", default_value = "hash")]
    job: Job,
    /// The leaves of a Merkle tree.
    #[arg(long, value_name = "N", required_if_eq("job", "merkle"), value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    leaves: Option<u64>,
    /// The level of a Merkle tree that is written; 1 is the one above the leaves.
    #[arg(long, value_name = "L", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=41))]
    level: u32,
}

/// Runs `imago chain reduce`: writes each line once, or combines the nodes of a level of a Merkle tree.
pub(super) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let reducing = tokio::task::spawn_blocking(move || {
        let input = BufReader::with_capacity(BUFFER_BYTES, std::io::stdin());
        let mut output = BufWriter::with_capacity(BUFFER_BYTES, std::io::stdout());
        match (args.job, args.leaves) {
            (Job::Merkle, Some(leaves)) => {
                pairs(input, &mut output, Level { leaves, level: args.level })
            }
            _ => unique(input, &mut output),
        }
    });
    let reduced = tokio::select! {
        reduced = reducing => reduced.unwrap_or_else(|error| Err(Error::Task(error.to_string()))),
        () = context.cancel.cancelled() => Err(Error::Interrupted),
    };
    let reduced = reduced.map_err(failure)?;
    report_hadoop_counters(&[("lines", reduced.lines), ("unique", reduced.written)]);
    if context.output.is_json() {
        eprintln!("{}", json!({"reduce": reduced}));
    }
    Ok(())
}
