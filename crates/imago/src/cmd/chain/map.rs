//! `imago chain map`: the map of a chained job, from keys on stdin to the next keys on stdout.

use std::io::{BufReader, BufWriter};

use imago_provision::chain::map::{Work, map, map_nodes};
use imago_provision::chain::{Error, Job};
use serde_json::json;

use super::reading::{Drawing, Reading};
use super::{failure, report_hadoop_counters};
use crate::context::Context;
use crate::exit::Failure;

/// Size of the buffers for stdin and stdout, in bytes.
pub(super) const BUFFER_BYTES: usize = 1 << 16;

/// The arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Keys come one a line: a decimal integer, or extended JSON, as \"B00005N7OJ\" or {\"$oid\":\"65f0c1d2e3f405162738495a\"}. A tab at \
the end of a line, as Hadoop writes it, is dropped. Results are in the order of the keys.

The SHA-256 is that of the whole document, of its BSON as the collection has it; read as one big-endian integer, modulo the \
number of keys, it is the next key. So results do not depend on a cache, batches, workers or shards.

For a Merkle tree lines are INDEX<TAB>KEY, INDEX from 0 on, and a line INDEX<TAB>HASH of `reduce` with --level 1 and on.

Example:
  imago chain map --uri \"$ROUTER\" --ns shop.messages --modulo 1000000 --cache redis://127.0.0.1:6379 <keys \\
    | LC_ALL=C sort | imago chain reduce >next")]
pub(super) struct Args {
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    drawing: Drawing,
    /// The level of a Merkle tree whose nodes are on stdin; at 0 they are leaves, whose documents are fetched.
    #[arg(long, value_name = "L", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=40))]
    level: u32,
}

/// Runs `imago chain map`: a map that fetches documents, or one level of a Merkle tree above its leaves.
pub(super) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let input = BufReader::with_capacity(BUFFER_BYTES, std::io::stdin());
    if args.level > 0 {
        if args.drawing.job != Job::Merkle {
            return Err(failure(Error::Usage("--level is of --job merkle".into())));
        }
        let made = tokio::task::spawn_blocking(move || {
            map_nodes(input, &mut BufWriter::with_capacity(BUFFER_BYTES, std::io::stdout()))
        });
        let nodes = tokio::select! {
            made = made => made.unwrap_or_else(|error| Err(Error::Task(error.to_string()))),
            () = context.cancel.cancelled() => Err(Error::Interrupted),
        };
        let nodes = nodes.map_err(failure)?;
        report_hadoop_counters(&[("nodes", nodes)]);
        return Ok(());
    }
    let work = match args.drawing.job {
        Job::Merkle => Work::Leaves,
        Job::Hash | Job::Zipf => Work::Draw(args.drawing.next().map_err(failure)?),
    };
    let fetcher = args.reading.fetcher().await.map_err(failure)?;
    let mut output = BufWriter::with_capacity(BUFFER_BYTES, std::io::stdout());
    let options = args.reading.options();
    let counts = map(input, &mut output, work, &fetcher, &options, &context.cancel).await;
    let counts = counts.map_err(failure)?;
    report_hadoop_counters(&[
        ("keys", counts.keys),
        ("hits", counts.hits),
        ("misses", counts.misses),
        ("missing", counts.missing),
        ("refused", counts.refused),
        ("document_bytes", counts.document_bytes),
    ]);
    if counts.missing > 0 {
        eprintln!("{} keys have no document and were left out", counts.missing);
    }
    if context.output.is_json() {
        let cache_failure = fetcher.cache().and_then(|cache| cache.failure());
        eprintln!("{}", json!({"map": counts, "cache_failure": cache_failure}));
    }
    Ok(())
}
