//! The arguments of the benchmark of miss-ratio curves.

use imago_bench::cache_hits;
use imago_bench::reuse::Size;

/// Size of a trace.
#[derive(Debug, clap::Args)]
pub struct References {
    /// References of the trace.
    #[arg(long, value_name = "N", default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1_000..=1_000_000_000))]
    references: u64,
    /// Keys that there are.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(100..=1_000_000_000))]
    keys: u64,
    /// The exponent of Zipf's law, by which keys are drawn.
    #[arg(long, value_name = "X", default_value_t = 0.9, value_parser = skew)]
    skew: f64,
    /// Keys of a sample.
    #[arg(long, value_name = "N", default_value_t = 8_192, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    samples: u32,
    /// Traces, each with a draw of its own; figures are medians.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    runs: u32,
    /// Only show that the benchmark works: 200,000 references to 50,000 keys, twice.
    #[arg(long, conflicts_with_all = ["references", "keys", "skew", "samples", "runs"])]
    quick: bool,
}

impl References {
    /// Returns the size of the benchmark: its trace, the sample, and the number of runs.
    pub fn size(&self) -> Size {
        let &Self { references, keys, skew, samples, runs, quick } = self;
        if quick {
            return Size { references: 200_000, keys: 50_000, skew: 0.9, samples: 8_192, runs: 2 };
        }
        Size { references, keys, skew, samples: samples as usize, runs }
    }
}

/// Size of the loads on Redis.
#[derive(Debug, clap::Args)]
pub struct Loads {
    /// References of each load.
    #[arg(long, value_name = "N", default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    references: u64,
    /// Keys of each load; the one with entries of mixed sizes has a tenth.
    #[arg(long, value_name = "N", default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(100..=1_000_000))]
    keys: u64,
    /// Only show that the benchmark works: 30,000 references to 5,000 keys.
    #[arg(long, conflicts_with_all = ["references", "keys"])]
    quick: bool,
}

impl Loads {
    /// Returns the size of the benchmark.
    pub fn size(&self) -> cache_hits::Size {
        let &Self { references, keys, quick } = self;
        match quick {
            true => cache_hits::Size { references: 30_000, keys: 5_000 },
            false => cache_hits::Size { references, keys },
        }
    }
}

fn skew(text: &str) -> Result<f64, String> {
    let skew: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if (0.0..=5.0).contains(&skew) {
        Ok(skew)
    } else {
        Err("give an exponent from 0 to 5".to_owned())
    }
}
