//! The arguments of the benchmarks that decide when a configuration changes.

use std::path::PathBuf;

/// Size of a benchmark of schedules.
#[derive(Debug, clap::Args)]
pub struct Schedules {
    /// Intervals of the look-ahead.
    #[arg(long, value_name = "N", default_value_t = 180, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub intervals: u32,
    /// Configurations to choose from.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..=200))]
    pub configurations: u32,
    /// Workloads, each with a draw of its own; figures are medians.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub runs: u32,
    /// Only show that the benchmark works: 24 intervals, 3 configurations, one run.
    #[arg(long, conflicts_with_all = ["intervals", "configurations", "runs"])]
    pub quick: bool,
}

/// Size of the traces.
#[derive(Debug, clap::Args)]
pub struct Traces {
    /// Days of the traces that have days; two thirds are learned from.
    #[arg(long, value_name = "N", default_value_t = 58, value_parser = clap::value_parser!(u32).range(6..=1_000))]
    pub days: u32,
    /// Jobs of the batch queue.
    #[arg(long, value_name = "N", default_value_t = 600, value_parser = clap::value_parser!(u32).range(20..=100_000))]
    pub jobs: u32,
    /// The seed of all traces.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// What the configurations serve, by `imago tune sample`; without it that of three nodes here, which is shipped.
    #[arg(long, value_name = "FILE")]
    pub measurements: Option<PathBuf>,
    /// Only show that the benchmark works: six days, forty jobs.
    #[arg(long, conflicts_with_all = ["days", "jobs"])]
    pub quick: bool,
}
