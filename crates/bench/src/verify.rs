//! Benchmark of a verification: every document of both sides is compared, byte for byte.
//!
//! The floor is only reading both sides, at the same time, without comparing the documents.

use serde::Serialize;

use crate::cluster_pair::{ClusterPair, DB};
use crate::error::{Error, Result};
use crate::fill;
use crate::process::Measured;
use crate::scan;
use crate::statistics::{CpuSeconds, Figure};
use crate::subject::{Commands, Subject};
use crate::{Header, Size, cluster_pair};

/// The measurements; seconds and ratios are medians of the runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// Time of the verification divided by the time of only reading both sides.
    pub ratio_to_read_floor: f64,
    /// Time from the start of the verifying process to its end, in seconds.
    pub seconds: f64,
    /// Time of only reading both sides, in seconds.
    pub floor_seconds: f64,
    /// CPU time of the verifying process divided by the CPU time of both servers during its run.
    pub client_cpu_ratio: f64,
    /// Largest resident memory of the verifying process in any run, in MB (1,000,000 bytes).
    pub client_rss_mb_max: f64,
    /// CPU time by process, in seconds. Other load on the machine disturbs it less than elapsed time.
    pub cpu_seconds: CpuSeconds,
    /// The figures with their extremes over the runs.
    pub spread: Spread,
}

/// The figures with their extremes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// See [`Report::ratio_to_read_floor`].
    pub ratio_to_read_floor: Figure,
    /// See [`Report::seconds`].
    pub seconds: Figure,
    /// See [`Report::floor_seconds`].
    pub floor_seconds: Figure,
}

struct OneRun {
    floor_s: f64,
    verify_s: f64,
    cpu: CpuSeconds,
    peak_mb: f64,
}

/// Runs the benchmark and returns its report.
///
/// # Errors
/// Returns an error if a cluster cannot be started, or the work that is measured fails or is wrong.
#[crate::boxed]
pub async fn run(size: Size, commands: &Commands) -> Result<Report> {
    if size.documents < 2 || size.runs == 0 {
        return Err(Error::Size("a verification needs at least 2 documents and 1 run".into()));
    }
    let documents = fill::inserts(size)?;
    let bytes = documents.iter().flatten().map(|command| command.body.as_bytes().len() as u64);
    // The sum includes the fields of the commands themselves, which are less than a thousandth of it.
    let bytes_min = bytes.sum::<u64>() / 1_000 * 999;
    let clusters = ClusterPair::start().await?;
    for side in [&clusters.source, &clusters.destination] {
        fill::send(side, DB, &documents).await?;
    }
    drop(documents);
    clusters.rest().await?;
    // The content of the caches after filling is unknown. A first read makes all runs start alike.
    scan::both(&clusters, bytes_min).await?;
    let mut runs = Vec::new();
    for _ in 0..size.runs {
        runs.push(one(&clusters, size, bytes_min, commands).await?);
    }
    let spread = Spread {
        ratio_to_read_floor: Figure::of(runs.iter().map(|run| run.verify_s / run.floor_s)),
        seconds: Figure::of(runs.iter().map(|run| run.verify_s)),
        floor_seconds: Figure::of(runs.iter().map(|run| run.floor_s)),
    };
    Ok(Report {
        header: Header::with_servers("verify", size, cluster_pair::CACHE_MB),
        ratio_to_read_floor: spread.ratio_to_read_floor.median,
        seconds: spread.seconds.median,
        floor_seconds: spread.floor_seconds.median,
        client_cpu_ratio: Figure::of(runs.iter().map(|run| run.cpu.client / run.cpu.servers))
            .median,
        client_rss_mb_max: Figure::of(runs.iter().map(|run| run.peak_mb)).max,
        cpu_seconds: CpuSeconds::median(runs.iter().map(|run| run.cpu)),
        spread,
    })
}

async fn one(
    clusters: &ClusterPair,
    size: Size,
    bytes_min: u64,
    commands: &Commands,
) -> Result<OneRun> {
    let used_at_first = clusters.servers_cpu_s()?;
    let floor_s = scan::both(clusters, bytes_min).await?;
    let floor_cpu_s = clusters.servers_cpu_s()? - used_at_first;
    let used_before = clusters.servers_cpu_s()?;
    let command = commands(&Subject::Verify, &clusters.ends());
    let verified = Measured::start("a verification", command)?.end(0).await?;
    let servers_s = clusters.servers_cpu_s()? - used_before;
    let compared = compared(&verified.output);
    if compared != Some(size.documents) {
        let wanted = size.documents;
        return Err(Error::Wrong(format!("{compared:?} documents were compared, not {wanted}")));
    }
    tracing::info!(
        floor_s,
        floor_cpu_s,
        verify_s = verified.wall_s,
        client_cpu_s = verified.cpu_s,
        servers_cpu_s = servers_s,
        client_rss_mb = verified.peak_mb,
        "one run of the verification"
    );
    Ok(OneRun {
        floor_s,
        verify_s: verified.wall_s,
        cpu: CpuSeconds { floor_servers: floor_cpu_s, servers: servers_s, client: verified.cpu_s },
        peak_mb: verified.peak_mb,
    })
}

fn compared(output: &[u8]) -> Option<u64> {
    let result: serde_json::Value = serde_json::from_slice(output).ok()?;
    result["collections"].as_array()?.iter().map(|one| one["compared"].as_u64()).sum()
}
