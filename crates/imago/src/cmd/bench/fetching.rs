//! The options of `imago bench run chain-fetch`.

use imago_bench::chain_fetch;

/// Size of a benchmark of fetching.
#[derive(Debug, clap::Args)]
pub struct Fetching {
    /// Messages of a hundred characters.
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(10..=50_000_000))]
    pub documents: u64,
    /// Keys that are fetched, no more than documents.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub keys: u64,
    /// Keys of a batch.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub batch: u32,
    /// Batches under way at once.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub workers: u32,
    /// Runs of each measurement; figures are medians.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// Only show that the benchmark works: 2,000 messages, 500 keys, two runs.
    #[arg(long, conflicts_with_all = ["documents", "keys", "runs"])]
    pub quick: bool,
}

impl Fetching {
    pub fn size(&self) -> chain_fetch::Size {
        let Self { documents, keys, batch, workers, runs, quick } = *self;
        match quick {
            true => chain_fetch::Size { documents: 2_000, keys: 500, batch, workers, runs: 2 },
            false => chain_fetch::Size { documents, keys, batch, workers, runs },
        }
    }
}
