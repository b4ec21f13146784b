//! Benchmark of replay: a job that was down while clients wrote to its source catches up; then it follows a steady
//! load, and its lag is measured.
//!
//! The floor of catching up is the same operations, already in memory, sent in bulk to an equal collection by two
//! writers. The job has only the change stream of the source: it reads each changed document again and writes its
//! present state. Several changes of one document that wait together cost one write. A run has half as many updates
//! as there are documents, uniformly distributed, so this saves about a tenth of its writes at most.

use serde::Serialize;

use crate::cluster_pair::{ClusterPair, DB, FLOOR_DB, require};
use crate::error::{Error, Result};
use crate::fill;
use crate::lag;
pub use crate::lag::Steady;
use crate::operations::Operations;
use crate::process::{Ended, Measured};
use crate::statistics::{CpuSeconds, Figure};
use crate::subject::{Commands, Subject};
use crate::{Header, Size, cluster_pair};

/// The measurements; seconds, rates and ratios are medians of the runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// Number of updates and inserts in one run.
    pub operations: u64,
    /// Rate of catching up divided by the rate of bulk writes from memory; more is better.
    pub ratio_to_bulk_apply: f64,
    /// Time from the start of the resumed process to its end, in seconds.
    pub seconds: f64,
    /// Time of the same operations in bulk from memory, in seconds.
    pub bulk_apply_seconds: f64,
    /// Operations per second while catching up.
    pub rate_per_s: f64,
    /// CPU time of the process divided by the CPU time of both servers during its run.
    pub client_cpu_ratio: f64,
    /// Largest resident memory of the process in any run, in MB (1,000,000 bytes).
    pub client_rss_mb_max: f64,
    /// Largest lag under the steady load, in ms: the maximum of the lags that the job reports and of the delays of
    /// markers.
    pub lag_ms_max: f64,
    /// The measured lag, and the load under which it was measured.
    pub lag: lag::Lag,
    /// CPU time by process, in seconds. Other load on the machine disturbs it less than elapsed time.
    pub cpu_seconds: CpuSeconds,
    /// The figures with their extremes over the runs.
    pub spread: Spread,
}

/// The figures with their extremes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// See [`Report::ratio_to_bulk_apply`].
    pub ratio_to_bulk_apply: Figure,
    /// See [`Report::seconds`].
    pub seconds: Figure,
    /// See [`Report::bulk_apply_seconds`].
    pub bulk_apply_seconds: Figure,
}

struct OneRun {
    floor_s: f64,
    replay_s: f64,
    cpu: CpuSeconds,
    peak_mb: f64,
}

/// Runs the benchmark with `size.documents` documents, and as many operations in each run.
///
/// # Errors
/// Returns an error if a cluster cannot be started, or the work that is measured fails or is wrong.
#[crate::boxed]
pub async fn run(size: Size, steady: Steady, commands: &Commands) -> Result<Report> {
    if size.documents < 2 || size.runs == 0 {
        return Err(Error::Size("a replay needs at least 2 documents and 1 run".into()));
    }
    let documents = fill::inserts(size)?;
    let clusters = ClusterPair::start().await?;
    fill::send(&clusters.source, DB, &documents).await?;
    fill::send(&clusters.destination, FLOOR_DB, &documents).await?;
    drop(documents);
    let command = commands(&Subject::Copy, &clusters.ends());
    let job = job_of(&Measured::start("a copy", command)?.end(0).await?)?;

    let mut operations = Operations::new(fill::schema(size.size_bytes)?, size.documents);
    let mut runs = Vec::new();
    for _ in 0..size.runs {
        runs.push(one(&clusters, size, &mut operations, &job, commands).await?);
    }
    let lag = lag::measure(&clusters, &mut operations, &job, steady, commands).await?;
    let spread = Spread {
        ratio_to_bulk_apply: Figure::of(runs.iter().map(|run| run.floor_s / run.replay_s)),
        seconds: Figure::of(runs.iter().map(|run| run.replay_s)),
        bulk_apply_seconds: Figure::of(runs.iter().map(|run| run.floor_s)),
    };
    Ok(Report {
        header: Header::with_servers("replay", size, cluster_pair::CACHE_MB),
        operations: size.documents,
        ratio_to_bulk_apply: spread.ratio_to_bulk_apply.median,
        seconds: spread.seconds.median,
        bulk_apply_seconds: spread.bulk_apply_seconds.median,
        rate_per_s: size.documents as f64 / spread.seconds.median,
        client_cpu_ratio: Figure::of(runs.iter().map(|run| run.cpu.client / run.cpu.servers))
            .median,
        client_rss_mb_max: Figure::of(runs.iter().map(|run| run.peak_mb)).max,
        cpu_seconds: CpuSeconds::median(runs.iter().map(|run| run.cpu)),
        lag_ms_max: lag.told_ms_max.max(lag.marker_ms_max),
        lag,
        spread,
    })
}

async fn one(
    clusters: &ClusterPair,
    size: Size,
    operations: &mut Operations,
    job: &str,
    commands: &Commands,
) -> Result<OneRun> {
    let bulk = operations.bulk(size.documents);
    fill::send(&clusters.source, DB, &bulk).await?;
    clusters.rest().await?;
    let used_at_first = clusters.servers_cpu_s()?;
    let floor_s = fill::send(&clusters.destination, FLOOR_DB, &bulk).await?;
    let floor_cpu_s = clusters.servers_cpu_s()? - used_at_first;
    clusters.rest().await?;

    let used_before = clusters.servers_cpu_s()?;
    let subject = Subject::CatchUp { job: job.to_owned() };
    let command = commands(&subject, &clusters.ends());
    let replayed = Measured::start("catching up", command)?.end(0).await?;
    let servers_s = clusters.servers_cpu_s()? - used_before;
    require(&clusters.destination, DB, operations.documents()).await?;
    clusters.rest().await?;
    tracing::info!(
        floor_s,
        floor_cpu_s,
        replay_s = replayed.wall_s,
        client_cpu_s = replayed.cpu_s,
        servers_cpu_s = servers_s,
        client_rss_mb = replayed.peak_mb,
        "one run of the replay"
    );
    Ok(OneRun {
        floor_s,
        replay_s: replayed.wall_s,
        cpu: CpuSeconds { floor_servers: floor_cpu_s, servers: servers_s, client: replayed.cpu_s },
        peak_mb: replayed.peak_mb,
    })
}

/// Returns the id of the job that the process of a copy names in its result.
pub(crate) fn job_of(ended: &Ended) -> Result<String> {
    let result: Option<serde_json::Value> = serde_json::from_slice(&ended.output).ok();
    let job = result.as_ref().and_then(|result| result["job"].as_str());
    job.map(str::to_owned).ok_or_else(|| {
        let said = String::from_utf8_lossy(&ended.output).into_owned();
        Error::Wrong(format!("the copy did not name its job: {said:?}"))
    })
}
