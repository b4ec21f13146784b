//! The arguments of the benchmarks of configuration tuning.

use std::path::PathBuf;

use imago_bench::sophia::{buses, redis, rolling, scenarios};
use imago_plan::tune::roll::CostClass;
use imago_testbed::CassandraSpec;
use imago_tune::cassandra::{Cassandra, ClusterFile};
use imago_tune::cluster::Settings as _;
use imago_tune::configurations::{self, differences};

use super::drawn::Drawn;
use crate::cmd::cassandra_nodes::with_nodes;
use crate::cmd::process::process;
use crate::context::Context;
use crate::exit::{Exit, Failure, cluster_failure};

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
    /// Only show that the benchmark works: 24 intervals, 3 configurations, two runs.
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

/// The text after the options in the help of [`Scenarios`].
pub const SCENARIOS: &str = "\
Each figure but that of more data is computed several times: by what was measured here (or by --measurements), and by what \
the paper prints of its own configurations and restarts. `bases` says what each of these has.

Example: imago bench run sophia-scenarios --pictures figures --json";

/// Size of the replayed figures.
#[derive(Debug, clap::Args)]
pub struct Scenarios {
    /// Days of the portal; two thirds are learned from. Every twelve have all kinds of days.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(36..=1_000))]
    days: u32,
    /// Jobs of the batch queue.
    #[arg(long, value_name = "N", default_value_t = 600, value_parser = clap::value_parser!(u32).range(40..=100_000))]
    jobs: u32,
    /// Draws of each level of noise; figures are medians.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    draws: u32,
    /// The seed of all that is drawn.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// What the configurations serve, by `imago tune sample`; without it that of three nodes here, which is shipped.
    #[arg(long, value_name = "FILE")]
    measurements: Option<PathBuf>,
    #[command(flatten)]
    drawn: Drawn,
    /// Only show that the benchmark works: 36 days, sixty jobs, one draw.
    #[arg(long, conflicts_with_all = ["days", "jobs", "draws"])]
    quick: bool,
}

impl Scenarios {
    /// Replays the scenarios of the figures, draws them if a folder is given, and returns the report.
    pub async fn measure(&self) -> Result<scenarios::Report, Failure> {
        let &Self { days, jobs, draws, seed, quick, .. } = self;
        let (days, choosing_days, jobs, draws) =
            if quick { (36, 1, 60, 1) } else { (days, 12, jobs, draws) };
        let size = scenarios::Size { days, choosing_days, jobs, draws, seed };
        let own = self.measurements.as_deref().map(crate::cmd::tune::measurements).transpose()?;
        let pictures = self.drawn.pictures.clone();
        let replayed = tokio::task::spawn_blocking(move || {
            scenarios::run(size, own.as_ref(), pictures.as_deref())
        });
        let stopped = |cause| Failure::from_error(Exit::Failed, "benchmark", &cause);
        Ok(replayed.await.map_err(stopped)??)
    }
}

/// The text after the options in the help of [`Buses`].
pub const BUSES: &str = "\
Without --configurations two are compared that differ in what changes while nodes serve: how early data is merged. What \
needs a restart is refused, as phases of a minute leave no time for it.

Example: imago bench run sophia-buses --pictures figures --json";

/// Two configurations that can be changed while nodes serve, as TOML: one serves writes better, the other one scans.
const LIVE: &str = include_str!("../../../../tune/data/cassandra-5-live.toml");
/// Heap of each node in the benchmark of live changes, in MB.
const HEAP_MB: u32 = 256;
/// Heap of each node in the benchmark of rolling changes, in MB: more than in that of live changes, since these nodes
/// have many files to merge.
const ROLLED_HEAP_MB: u32 = 512;

/// Size of the benchmark of buses.
#[derive(Debug, clap::Args)]
pub struct Buses {
    /// Rounds in which each way serves all phases.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Phases, in which buses move and are searched for in turns.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=1_000))]
    phases: u32,
    /// Mean length of a phase, in seconds.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(10..=86_400))]
    phase: u32,
    /// Rows of 1 KB at the beginning.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1_000..=10_000_000))]
    rows: u64,
    /// Operations at once.
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    clients: u32,
    /// Nodes of the cluster, each in a rack of its own.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
    nodes: u8,
    /// What each node may use of the processors, in percent of one; 0: as much as it gets.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u16).range(0..=6_400))]
    cpu_percent: u16,
    /// The seed of the phases' lengths.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The file with the configurations, the default one first.
    #[arg(long, value_name = "FILE")]
    configurations: Option<PathBuf>,
    #[command(flatten)]
    drawn: Drawn,
    /// Only show that the benchmark works: one round, two phases of 15 s, 2,000 rows.
    #[arg(long, conflicts_with_all = ["rounds", "phases", "phase", "rows"])]
    quick: bool,
}

impl Buses {
    fn size(&self) -> buses::Size {
        let &Self {
            rounds, phases, phase: phase_s, rows, clients, nodes, cpu_percent, seed, ..
        } = self;
        let size = buses::Size { rounds, phases, phase_s, rows, clients, nodes, cpu_percent, seed };
        if self.quick {
            return buses::Size { rounds: 1, phases: 2, phase_s: 15, rows: 2_000, ..size };
        }
        size
    }

    /// Starts the Cassandra nodes, runs the benchmark of buses on them, and returns its report.
    pub async fn measure(&self, context: &Context) -> Result<buses::Report, Failure> {
        let configurations = match &self.configurations {
            Some(path) => configurations::read::<Cassandra>(path),
            None => configurations::parse::<Cassandra>(LIVE),
        };
        let configurations = configurations.map_err(|error| cluster_failure(&error))?;
        for other in &configurations[1..] {
            let differ = differences::<Cassandra>(&configurations[0], other);
            for name in differ.map_err(|error| cluster_failure(&error))? {
                let setting = Cassandra::find(&name).map_err(|error| cluster_failure(&error))?;
                if setting.class == CostClass::Restart {
                    let what = format!("{name} needs a restart, for which phases leave no time");
                    return Err(Failure::new(Exit::Usage, "usage", what));
                }
            }
        }
        let size = self.size();
        let folder = tempfile::tempdir().map_err(|cause| {
            Failure::new(Exit::Failed, "folder", "cannot make a temporary folder").because(&cause)
        })?;
        let spec = nodes("buses", size.nodes, size.cpu_percent, HEAP_MB);
        let measured = with_nodes(spec, context, async |file| {
            let setup = buses::Setup {
                file: ClusterFile::read(file).map_err(|error| cluster_failure(&error))?,
                configurations,
                process: &process(),
                folder: folder.path(),
                pictures: self.drawn.pictures.as_deref(),
            };
            let say = |what: String| eprintln!("{what}");
            let measured = Box::pin(buses::run(size, &setup, &context.cancel, &say)).await;
            measured.map_err(|error| cluster_failure(&error))
        });
        Box::pin(measured).await
    }
}

/// Returns the specification of `nodes` Cassandra nodes, each in a rack of its own; `cpu_percent` limits the
/// processor of each node, in percent of one, and 0 is no limit.
fn nodes(name: &str, nodes: u8, cpu_percent: u16, heap_mb: u32) -> CassandraSpec {
    eprintln!("starting {nodes} Cassandra nodes, one after the other");
    CassandraSpec {
        racks: nodes,
        heap_mb,
        cpu_percent: Some(cpu_percent).filter(|percent| *percent > 0),
        ..CassandraSpec::new(&format!("{name}-{}", std::process::id()), nodes)
    }
}

/// Size of the benchmark of rolls.
#[derive(Debug, clap::Args)]
pub struct Rolls {
    /// Operations that clients ask for in a second.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// Seconds before and behind each roll.
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(5..=3_600))]
    beside: u32,
    /// Rows of 1 KB at the beginning.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1_000..=10_000_000))]
    rows: u64,
    /// Nodes of the cluster, each in a rack of its own.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=9))]
    nodes: u8,
    /// What each node may use of the processors, in percent of one; 0: as much as it gets.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(0..=6_400))]
    cpu_percent: u16,
    #[command(flatten)]
    drawn: Drawn,
    /// Only show that the benchmark works: 1,000 rows, five seconds beside.
    #[arg(long, conflicts_with_all = ["beside", "rows"])]
    quick: bool,
}

impl Rolls {
    /// Starts the Cassandra nodes, runs the benchmark of rolls on them, and returns its report.
    pub async fn measure(&self, context: &Context) -> Result<rolling::Report, Failure> {
        let &Self { rate, beside, rows, nodes: of, cpu_percent, quick, .. } = self;
        let (beside_s, rows) = if quick { (5, 1_000) } else { (beside, rows) };
        let size = rolling::Size { nodes: of, cpu_percent, rate_per_s: rate, beside_s, rows };
        let pictures = self.drawn.pictures.as_deref();
        let measured =
            with_nodes(nodes("roll", of, cpu_percent, ROLLED_HEAP_MB), context, async |file| {
                let file = ClusterFile::read(file).map_err(|error| cluster_failure(&error))?;
                let say = |what: String| eprintln!("{what}");
                let process = process();
                let measured = rolling::run(size, &file, &process, pictures, &context.cancel, &say);
                Box::pin(measured).await.map_err(|error| cluster_failure(&error))
            });
        Box::pin(measured).await
    }
}

/// The text after the options in the help of [`Jobs`].
pub const JOBS: &str = "\
A job loads records into hashes of a thousand, and reads and updates them. Sizes are shares of what fits with the default of \
hash-max-listpack-entries (0.28, 0.56, 0.95, 1.11), between that and what fits when all hashes are compact, and beyond. Ways: the \
default, compact, and the tuner, which measures a sample, decides before each job, and changes the setting as `imago tune roll` \
does; the time of a job includes that. A job that is refused a write for want of memory has failed, and has no bar.

Example: imago bench run sophia-redis --pictures figures --json";

/// Size of the benchmark of jobs.
#[derive(Debug, clap::Args)]
pub struct Jobs {
    /// Rounds in which each way does each job.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Memory that each master may use (maxmemory), in MiB.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(8..=65_536))]
    memory_mb: u32,
    /// Operations of a job, behind its load.
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(100..=100_000_000))]
    operations: u64,
    /// Masters; one stands alone, three and more are a Redis Cluster.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    masters: u8,
    /// Replicas of each master of a cluster.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=4))]
    replicas: u8,
    /// The seed of all draws.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    drawn: Drawn,
    /// Only show that the benchmark works: one round, two kinds of jobs, three sizes, 8 MiB, 5,000 operations.
    #[arg(long, conflicts_with_all = ["rounds", "memory_mb", "operations"])]
    quick: bool,
}

impl Jobs {
    /// Starts the Redis servers, runs the benchmark of jobs on them, and returns its report.
    pub async fn measure(&self, context: &Context) -> Result<redis::Report, Failure> {
        let &Self { rounds, memory_mb, operations, masters, replicas, seed, quick, .. } = self;
        let size =
            redis::Size { rounds, memory_mb, operations, masters, replicas, seed, is_quick: quick };
        let quickest = redis::Size { rounds: 1, memory_mb: 8, operations: 5_000, ..size };
        let size = if quick { quickest } else { size };
        let pictures = self.drawn.pictures.as_deref();
        let say = |what: String| eprintln!("{what}");
        let process = process();
        let measured = redis::run(size, &process, pictures, &context.cancel, &say);
        Ok(Box::pin(measured).await?)
    }
}
