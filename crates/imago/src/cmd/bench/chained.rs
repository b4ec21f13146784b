//! The options of `imago bench run chained-mr`.

use std::path::PathBuf;

use imago_bench::provision::report::{self, Report, Size};

use super::drawn::Drawn;
use crate::cmd::process::program;
use crate::context::Context;
use crate::exit::{Exit, Failure};

/// The text after the options in the help of [`Chained`].
pub const CHAINED: &str = "\
Servers are started, filled with messages of a hundred characters, and held to a share of the processors each, which needs \
control groups. Each run begins with restarted servers and an empty cache. Predictions come from one probe of the first shape, \
and from the keys that one chain read there. With --out the runs stay in a file, and the same command goes on with what is \
missing.

Example: imago bench run chained-mr --quick --pictures figures --json";

/// Size of the benchmark of chained jobs.
#[derive(Debug, clap::Args)]
pub struct Chained {
    /// Documents of a hundred characters; about 600,000 fit into the storage cache of one shard, which is 256 MB.
    #[arg(long, value_name = "N", default_value_t = 400_000, value_parser = clap::value_parser!(u64).range(10_000..=100_000_000))]
    documents: u64,
    /// Keys with which a chain begins.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(100..=1_000_000))]
    keys: u64,
    /// Runs of each cell.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Members of a shard, each number of them.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2", value_parser = clap::value_parser!(u32).range(1..=5))]
    members: Vec<u32>,
    /// Processors of each member with data, in percent of one.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u16).range(10..=6_400))]
    cpu_percent: u16,
    /// The seed of the first keys.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// A file that gets the runs, and keeps them.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    drawn: Drawn,
    /// Twelve cells: one member, no uneven shards, one run, chains of four phases, 100,000 documents.
    #[arg(long, conflicts_with_all = ["documents", "keys", "runs", "members"])]
    quick: bool,
}

impl Chained {
    fn size(&self) -> Size {
        let &Self { documents, keys, runs, cpu_percent, seed, .. } = self;
        let size = Size {
            documents,
            keys,
            length: 8,
            runs,
            shards: vec![1, 2, 4],
            members: self.members.clone(),
            cache_eighths: vec![0, 1, 2, 8, 16],
            has_uneven: true,
            workers: 4,
            batch: 512,
            cpu_percent,
            probe_s: 60,
            seed,
        };
        if self.quick {
            return Size {
                documents: 100_000,
                keys: 10_000,
                length: 4,
                runs: 1,
                members: vec![1],
                cache_eighths: vec![0, 1, 2, 8],
                has_uneven: false,
                probe_s: 30,
                ..size
            };
        }
        size
    }

    /// Runs the benchmark of chained jobs on servers that it starts, and returns the measurements, compared with
    /// their predictions.
    pub async fn measure(&self, context: &Context) -> Result<Report, Failure> {
        let folder = tempfile::tempdir().map_err(|cause| {
            Failure::new(Exit::Failed, "folder", "cannot make a temporary folder").because(&cause)
        })?;
        let temporary = folder.path().join("cells.jsonl");
        let (out, program) = (self.out.as_ref().unwrap_or(&temporary), program()?);
        let pictures = self.drawn.pictures.as_deref();
        let say = |what: String| eprintln!("{what}");
        let measured = report::run(self.size(), &program, out, pictures, &context.cancel, &say);
        Ok(Box::pin(measured).await?)
    }
}
