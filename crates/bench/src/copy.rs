//! Benchmark of a copy: a collection is copied from one replica set to another until the copy has caught up.
//!
//! The floor is the last step of every copy: the same documents, already in memory, are inserted by two writers with
//! majority acknowledgement. The copy also reads the documents, cuts slices and leases them, persists its state,
//! follows the changes, and starts and ends a process; its time includes all of that.

use serde::Serialize;

use crate::cluster_pair::{ClusterPair, DB, FLOOR_DB, require};
use crate::competitor::{self, Competitor};
use crate::error::{Error, Result};
use crate::fill::{self, Commands};
use crate::process::Measured;
use crate::replay::job_of;
use crate::statistics::{CpuSeconds, Figure};
use crate::subject::{self, Subject};
use crate::{Header, Size, cluster_pair};

/// The measurements; seconds and ratios are medians of the runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// Time of the copy divided by the time of only inserting.
    pub ratio_to_floor: f64,
    /// CPU time of the copying process divided by the CPU time of both servers during its run.
    pub client_cpu_ratio: f64,
    /// Largest resident memory of the copying process in any run, in MB (1,000,000 bytes).
    pub client_rss_mb_max: f64,
    /// Time from the start of the copying process to its end, in seconds.
    pub seconds: f64,
    /// Time of inserting the same documents from memory, in seconds.
    pub floor_seconds: f64,
    /// CPU time by process, in seconds. Other load on the machine disturbs it less than elapsed time.
    pub cpu_seconds: CpuSeconds,
    /// What the machine's processors did during the copy.
    pub parts: Parts,
    /// The figures with their extremes over the runs.
    pub spread: Spread,
    /// The same copy by other programs, if they are on `PATH`.
    pub competitors: Vec<Competitor>,
}

/// What the machine's processors did during the copy, in seconds; together they are the time of the copy times the number of
/// processors.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Parts {
    /// Reading: CPU time of the source.
    pub source: f64,
    /// Writing: CPU time of the destination. Compare with `cpu_seconds.floor_servers`.
    pub destination: f64,
    /// CPU time of the copying process.
    pub client: f64,
    /// What is left: waiting, and other processes.
    pub waiting: f64,
}

impl Parts {
    fn median(runs: &[OneRun]) -> Self {
        let of =
            |part: fn(&Self) -> f64| Figure::of(runs.iter().map(|run| part(&run.parts))).median;
        Self {
            source: of(|parts| parts.source),
            destination: of(|parts| parts.destination),
            client: of(|parts| parts.client),
            waiting: of(|parts| parts.waiting),
        }
    }
}

/// The figures with their extremes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// See [`Report::ratio_to_floor`].
    pub ratio_to_floor: Figure,
    /// See [`Report::client_cpu_ratio`].
    pub client_cpu_ratio: Figure,
    /// See [`Report::seconds`].
    pub seconds: Figure,
    /// See [`Report::floor_seconds`].
    pub floor_seconds: Figure,
}

struct OneRun {
    floor_s: f64,
    copy_s: f64,
    cpu: CpuSeconds,
    parts: Parts,
    peak_mb: f64,
}

/// Runs the benchmark and returns its report.
///
/// # Errors
/// Returns an error if a cluster cannot be started, or the work that is measured fails or is wrong.
#[crate::boxed]
pub async fn run(size: Size, commands: &subject::Commands) -> Result<Report> {
    if size.documents < 2 || size.runs == 0 {
        return Err(Error::Size("a copy needs at least 2 documents and 1 run".into()));
    }
    let documents = fill::inserts(size)?;
    let clusters = ClusterPair::start().await?;
    fill::send(&clusters.source, DB, &documents).await?;
    let mut runs = Vec::new();
    for _ in 0..size.runs {
        runs.push(one(&clusters, size, &documents, commands).await?);
    }
    let floor_seconds = Figure::of(runs.iter().map(|run| run.floor_s));
    let competitors = competitor::copy(&clusters, size, floor_seconds.median).await?;
    let spread = Spread {
        ratio_to_floor: Figure::of(runs.iter().map(|run| run.copy_s / run.floor_s)),
        client_cpu_ratio: Figure::of(runs.iter().map(|run| run.cpu.client / run.cpu.servers)),
        seconds: Figure::of(runs.iter().map(|run| run.copy_s)),
        floor_seconds,
    };
    Ok(Report {
        header: Header::with_servers("copy", size, cluster_pair::CACHE_MB),
        ratio_to_floor: spread.ratio_to_floor.median,
        client_cpu_ratio: spread.client_cpu_ratio.median,
        client_rss_mb_max: Figure::of(runs.iter().map(|run| run.peak_mb)).max,
        cpu_seconds: CpuSeconds::median(runs.iter().map(|run| run.cpu)),
        parts: Parts::median(&runs),
        seconds: spread.seconds.median,
        floor_seconds: floor_seconds.median,
        spread,
        competitors,
    })
}

async fn one(
    clusters: &ClusterPair,
    size: Size,
    documents: &Commands,
    commands: &subject::Commands,
) -> Result<OneRun> {
    clusters.clear(FLOOR_DB).await?;
    let used_at_first = clusters.servers_cpu_s()?;
    let floor_s = fill::send(&clusters.destination, FLOOR_DB, documents).await?;
    let floor_cpu_s = clusters.servers_cpu_s()? - used_at_first;
    clusters.clear(FLOOR_DB).await?;

    let before = clusters.cpu_by_server_s()?;
    let command = commands(&Subject::Copy, &clusters.ends());
    let copied = Measured::start("a copy", command)?.end(0).await?;
    let after = clusters.cpu_by_server_s()?;
    let [source, destination] = [after[0] - before[0], after[1] - before[1]];
    let servers_s = source + destination;
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let busy_s = servers_s + copied.cpu_s;
    let waiting = (processors * copied.wall_s - busy_s).max(0.0);
    let parts = Parts { source, destination, client: copied.cpu_s, waiting };
    require(&clusters.destination, DB, size.documents).await?;
    // Two jobs cannot copy into one collection. Unless this job is cancelled, that of the next run is refused.
    let given_up = commands(&Subject::Cancel { job: job_of(&copied)? }, &clusters.ends());
    Measured::start("giving the copy up", given_up)?.end(0).await?;
    clusters.clear(DB).await?;
    tracing::info!(
        floor_s,
        floor_cpu_s,
        copy_s = copied.wall_s,
        client_cpu_s = copied.cpu_s,
        servers_cpu_s = servers_s,
        client_rss_mb = copied.peak_mb,
        "one run of the copy"
    );
    Ok(OneRun {
        floor_s,
        copy_s: copied.wall_s,
        cpu: CpuSeconds { floor_servers: floor_cpu_s, servers: servers_s, client: copied.cpu_s },
        parts,
        peak_mb: copied.peak_mb,
    })
}
