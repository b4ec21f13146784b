//! Table 1 and Figs. 4 to 6: the operations that succeed while the shard key changes, and their latencies.
//!
//! There are four loads, each on its own collection: reads only, and the paper's mix on uniform, latest and Zipf
//! keys. Each is observed before the change, during it and after it; "no reconfiguration" is the uniform load before
//! its change, as in the paper. An operation succeeds if it does the requested work. A read of a document whose
//! insert failed does not succeed, which is why the paper's latest load does worst. No operation is retried, and
//! latencies begin when an operation was due.

mod drawing;

use std::path::{Path, PathBuf};

use imago_plan::statistics::percentile;
use imago_workload::check::Verdict;
use imago_workload::keys::{Distribution, PAPER_SHAPE};
use imago_workload::mix::Mix;
use imago_workload::review::Reviews;
use serde::Serialize;

use crate::Header;
use crate::cluster_pair::CACHE_MB;
use crate::error::{Error, Result};
use crate::sharded_cluster::{KEYS, Shape, ShardedCluster};
use crate::subject::Commands;
use crate::traffic::{Load, Sample, TrafficResult, Window};
use imago_chart::save;

/// Time for opening connections and filling caches, in s.
const WARM_S: u64 = 3;

/// Size of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Number of documents.
    pub documents: u64,
    /// Size of one document as stored, in bytes.
    pub size_bytes: u32,
    /// Number of shards.
    pub shards: u32,
    /// Number of members of each shard.
    pub members: u32,
    /// Operations per second.
    pub rate_per_s: u32,
    /// Time for which clients are observed before the change, and after it, in s.
    pub around_s: u64,
    /// Number of loads that are measured, in the order of Table 1: 2 to 4.
    pub loads: u32,
}

/// The paper's loads, in the order of Table 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    ReadOnly,
    Uniform,
    Latest,
    Zipf,
}

impl Kind {
    const ALL: [Self; 4] = [Self::ReadOnly, Self::Uniform, Self::Latest, Self::Zipf];

    fn watched(size: Size) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().take(size.loads as usize)
    }

    fn load(self, rate_per_s: u32) -> Load {
        let shape = PAPER_SHAPE;
        let (mix, keys) = match self {
            Self::ReadOnly => {
                let mix = Mix { read: 100.0, update: 0.0, insert: 0.0, delete: 0.0, scan: 0.0 };
                (mix, Distribution::Uniform)
            }
            Self::Uniform => (Mix::default(), Distribution::Uniform),
            Self::Latest => (Mix::default(), Distribution::Latest { shape }),
            Self::Zipf => (Mix::default(), Distribution::Zipf { shape }),
        };
        Load { mix, keys, rate_per_s }
    }

    fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::Uniform => "uniform",
            Self::Latest => "latest",
            Self::Zipf => "zipf",
        }
    }

    /// Returns the percentages of Table 1: of reads, and of writes if the load has any.
    fn paper_percent(self) -> (f64, Option<f64>) {
        match self {
            Self::ReadOnly => (99.9, None),
            Self::Uniform => (99.9, Some(98.5)),
            Self::Latest => (97.2, Some(96.8)),
            Self::Zipf => (99.9, Some(98.3)),
        }
    }
}

/// The measurements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// Number of acknowledged writes that are missing, under all loads.
    pub lost: u64,
    /// Number of deleted documents that exist again.
    pub resurrected: u64,
    /// Number of documents that exist twice.
    pub duplicated: u64,
    /// Number of documents that are older than an acknowledged write.
    pub stale: u64,
    /// Number of acknowledged writes.
    pub acknowledged: u64,
    /// True if every share of Table 1 is at least the paper's.
    pub is_as_available: bool,
    /// The rows of Table 1, with the latencies of Figs. 4 to 6.
    pub loads: Vec<Row>,
    /// Files with Figs. 4, 5 and 6.
    pub pictures: Vec<PathBuf>,
}

/// A row of Table 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// `none` for no reconfiguration; otherwise the load under which the key changed.
    pub load: &'static str,
    /// Duration of the change, planning included, in s; absent without a change.
    pub change_s: Option<f64>,
    /// Duration of the last phase of the change, which contains the write block, in s; absent without a change.
    pub commit_s: Option<f64>,
    /// The reads of the load.
    pub reads: Side,
    /// The writes of the load; absent if it only reads.
    pub writes: Option<Side>,
}

/// The reads or the writes of a load while the key changed; without reconfiguration, before the change.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Side {
    /// Number of operations that were due.
    pub operations: u64,
    /// Share of these operations that succeeded, in percent.
    pub percent: f64,
    /// This share in the paper's Table 1, in percent.
    pub paper_percent: Option<f64>,
    /// Median latency of the operations that succeeded, in ms.
    pub p50_ms: f64,
    /// 96th percentile of these latencies, which the paper compares, in ms.
    pub p96_ms: f64,
    /// 99th percentile of these latencies, in ms.
    pub p99_ms: f64,
}

/// A load, the observations of its clients, and the windows of the measurement.
struct Watched {
    kind: Kind,
    result: TrafficResult,
    before: Window,
    during: Window,
    after: Window,
    commit_s: f64,
}

/// Runs the benchmark, and draws pictures into `folder` if one is given.
///
/// # Errors
/// Returns an error if the cluster cannot be started, the change fails, or the pictures cannot be written.
#[crate::boxed]
pub async fn run(size: Size, folder: Option<&Path>, commands: &Commands) -> Result<Report> {
    let is_small = size.documents < 1_000 || size.shards < 2 || size.loads < 2;
    if is_small || size.around_s == 0 || size.rate_per_s == 0 {
        let needs =
            "at least 1,000 documents, 2 shards, 2 loads, 1 operation/s, and 1 s around the change";
        return Err(Error::Size(format!("Table 1 needs {needs}")));
    }
    let reviews = Reviews { size_bytes: size.size_bytes, ..Reviews::default() };
    let shape = Shape { shards: size.shards, members: size.members, cache_mb: CACHE_MB };
    let cluster = ShardedCluster::start(shape, reviews).await?;
    let mut all = Vec::new();
    for kind in Kind::watched(size) {
        all.push(watch(&cluster, kind, size, commands).await?);
    }
    let pictures = save(&drawing::pictures(&all), folder)?;
    let mut loads = vec![idle(&all)?];
    for watched in &all {
        loads.push(watched.row()?);
    }
    let sides = loads.iter().flat_map(|row| [Some(row.reads), row.writes]).flatten();
    let is_as_available =
        sides.into_iter().all(|side| side.paper_percent.is_none_or(|paper| side.percent >= paper));
    let sum = |of: fn(&Verdict) -> u64| all.iter().map(|one| of(&one.result.verdict)).sum();
    Ok(Report {
        header: Header::with_servers("morphus-table1", size, CACHE_MB),
        lost: sum(|verdict| verdict.counts.lost),
        resurrected: sum(|verdict| verdict.counts.resurrected),
        duplicated: sum(|verdict| verdict.counts.duplicated),
        stale: sum(|verdict| verdict.counts.stale),
        acknowledged: sum(|verdict| verdict.writes_acknowledged),
        is_as_available,
        loads,
        pictures,
    })
}

async fn watch(
    cluster: &ShardedCluster,
    kind: Kind,
    size: Size,
    commands: &Commands,
) -> Result<Watched> {
    let load = kind.load(size.rate_per_s);
    let traffic = cluster.traffic(size.documents, load).await?;
    traffic.pass(WARM_S).await;
    let before = traffic.pass(size.around_s).await;
    let change = Box::pin(cluster.reshard(KEYS[1], commands));
    let (during, changed) = traffic.during(change).await?;
    let after = traffic.pass(size.around_s).await;
    let result = traffic.end().await?;
    let last = changed.phases.last().filter(|(name, _)| name == "commit");
    let commit_s = last.map(|(_, seconds)| *seconds);
    let commit_s = commit_s.ok_or_else(|| Error::Wrong("the change never committed".into()))?;
    Ok(Watched { kind, result, before, during, after, commit_s })
}

/// Returns the row of the uniform load before its change.
fn idle(all: &[Watched]) -> Result<Row> {
    let uniform = all.iter().find(|watched| watched.kind == Kind::Uniform);
    let uniform = uniform.expect("it is one of the loads");
    let side = |reads| Side::of(&uniform.result.samples(reads, uniform.before), None);
    let (reads, writes) = (side(true)?, Some(side(false)?));
    Ok(Row { load: "none", change_s: None, commit_s: None, reads, writes })
}

impl Watched {
    fn change_s(&self) -> f64 {
        self.during.seconds()
    }

    fn row(&self) -> Result<Row> {
        let (paper_reads, paper_writes) = self.kind.paper_percent();
        let side = |reads, paper| Side::of(&self.result.samples(reads, self.during), Some(paper));
        Ok(Row {
            load: self.kind.name(),
            change_s: Some(self.change_s()),
            commit_s: Some(self.commit_s),
            reads: side(true, paper_reads)?,
            writes: paper_writes.map(|paper| side(false, paper)).transpose()?,
        })
    }
}

impl Side {
    fn of(samples: &[Sample], paper_percent: Option<f64>) -> Result<Self> {
        let latencies: Vec<f64> = succeeded(samples).collect();
        let at = |percent| percentile(latencies.iter().copied(), percent);
        let (Some(p50_ms), Some(p96_ms), Some(p99_ms)) = (at(50), at(96), at(99)) else {
            let due = samples.len();
            return Err(Error::Wrong(format!("of {due} operations none succeeded: no latencies")));
        };
        Ok(Self {
            operations: samples.len() as u64,
            percent: 100.0 * latencies.len() as f64 / samples.len() as f64,
            paper_percent,
            p50_ms,
            p96_ms,
            p99_ms,
        })
    }
}

/// Returns the latencies of the operations that succeeded, in ms.
fn succeeded(samples: &[Sample]) -> impl Iterator<Item = f64> {
    samples.iter().filter(|sample| sample.is_acknowledged).map(|sample| sample.latency_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_lowers_the_share_and_is_in_no_latency() {
        let sample =
            |latency_ms, is_acknowledged| Sample { due_s: 0.0, latency_ms, is_acknowledged };
        let samples =
            [sample(1.0, true), sample(900.0, false), sample(3.0, true), sample(2.0, true)];
        let side = Side::of(&samples, Some(99.9)).unwrap();
        assert_eq!((side.operations, side.percent.to_bits()), (4, 75.0_f64.to_bits()));
        assert_eq!(
            (side.p50_ms.to_bits(), side.p99_ms.to_bits()),
            (2.0_f64.to_bits(), 3.0_f64.to_bits())
        );
        assert!(Side::of(&samples[1..2], None).is_err());
    }
}
