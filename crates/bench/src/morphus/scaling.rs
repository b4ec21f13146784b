//! Fig. 8: the growth of the duration of a change of the shard key with (a) the data, (b) the rate of concurrent
//! operations, (c) the number of replica sets, (d) the number of members of each.
//!
//! Each part varies one of these four and leaves the others at the values of the base. A setup can therefore belong
//! to several parts; it is measured once. Each setup is measured with greedy and with balanced placement, as in the
//! paper. The setups are ordered by cluster, so that each cluster is started once.

mod drawing;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use imago_mongo::reshard::plan::Placing;
use imago_workload::keys::Distribution;
use imago_workload::mix::Mix;
use imago_workload::review::Reviews;
use serde::Serialize;

use super::{Change, change};
use crate::Header;
use crate::error::{Error, Result};
use crate::sharded_cluster::{Cut, Shape, ShardedCluster};
use crate::statistics::{Figure, medians};
use crate::subject::Commands;
use crate::traffic::Load;
use imago_chart::save;

/// Storage cache of each member, in MiB: the minimum that mongod accepts, because up to sixteen members run at once.
const CACHE_MB: u32 = 256;
const PLACINGS: [Placing; 2] = [Placing::Greedy, Placing::Balanced];
/// Time for opening connections, in s.
const WARM_S: u64 = 2;

/// The varied parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Fig. 8a: documents.
    A,
    /// Fig. 8b: operations per second.
    B,
    /// Fig. 8c: replica sets.
    C,
    /// Fig. 8d: members of each replica set.
    D,
}

/// One cluster with its data and its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Setup {
    /// Number of members of each shard.
    pub members: u32,
    /// Number of shards.
    pub shards: u32,
    /// Number of documents.
    pub documents: u64,
    /// Operations per second during the change; 0 for no load.
    pub rate_per_s: u32,
}

/// Size of the benchmark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Size {
    /// The setup of which each part varies one parameter.
    pub base: Setup,
    /// The parts that are measured, with the values of the varied parameter.
    pub parts: Vec<(Part, Vec<u32>)>,
    /// Size of one document as stored, in bytes.
    pub size_bytes: u32,
    /// Size of new chunks, in MiB.
    pub chunk_mb: u32,
    /// Number of runs of each measurement; figures are medians.
    pub runs: u32,
}

/// The part of the size that all points share.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Shared {
    /// Size of one document as stored, in bytes.
    pub size_bytes: u32,
    /// Size of new chunks, in MiB.
    pub chunk_mb: u32,
    /// Number of runs of each measurement; figures are medians.
    pub runs: u32,
}

/// The measurements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, the part of its size that all points share, and the machine.
    #[serde(flatten)]
    pub header: Header<Shared>,
    /// Results of each value of each part, with each placement.
    pub points: Vec<Measured>,
    /// Files with Figs. 8a to 8d.
    pub pictures: Vec<PathBuf>,
}

/// One point of a chart.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// The part, and thereby the chart.
    pub part: Part,
    /// The parameters of the measurement.
    #[serde(flatten)]
    pub setup: Setup,
    /// Rule by which new chunks were placed.
    pub placement: Placing,
    /// Number of new chunks.
    pub chunks: usize,
    /// Time from the start of planning to the end of the change, in seconds.
    pub seconds: Figure,
    /// Median duration of `plan` and of each phase of the job, in seconds.
    pub phases: BTreeMap<String, f64>,
}

impl Part {
    /// Returns the base with the varied parameter set to a value.
    fn at(self, base: Setup, value: u32) -> Setup {
        match self {
            Self::A => Setup { documents: u64::from(value), ..base },
            Self::B => Setup { rate_per_s: value, ..base },
            Self::C => Setup { shards: value, ..base },
            Self::D => Setup { members: value, ..base },
        }
    }
}

impl Size {
    /// Returns each setup once, ordered by cluster.
    fn setups(&self) -> BTreeSet<Setup> {
        let values = |(part, values): &(Part, Vec<u32>)| -> Vec<Setup> {
            values.iter().map(|value| part.at(self.base, *value)).collect()
        };
        self.parts.iter().flat_map(values).collect()
    }

    fn check(&self) -> Result<()> {
        let setups = self.setups();
        let is_too_small =
            |setup: &Setup| setup.documents < 1_000 || setup.shards < 2 || setup.members == 0;
        if self.runs == 0 || setups.is_empty() || setups.iter().any(is_too_small) {
            let needs = "at least one part, 1,000 documents, 2 shards, 1 member and 1 run";
            return Err(Error::Size(format!("Fig. 8 needs {needs}")));
        }
        Ok(())
    }
}

/// Runs the benchmark, and draws pictures into `folder` if one is given.
///
/// # Errors
/// Returns an error if a cluster cannot be started, a change fails or loses a document, or the pictures cannot be
/// written.
#[crate::boxed]
pub async fn run(size: &Size, folder: Option<&Path>, commands: &Commands) -> Result<Report> {
    size.check()?;
    let mut measured = BTreeMap::new();
    let mut cluster: Option<(Shape, ShardedCluster)> = None;
    for setup in size.setups() {
        let shape = Shape { shards: setup.shards, members: setup.members, cache_mb: CACHE_MB };
        let known = cluster.take().filter(|(known, _)| *known == shape);
        let (_, cluster) = match known {
            Some(known) => cluster.insert(known),
            None => {
                let reviews = Reviews { size_bytes: size.size_bytes, ..Reviews::default() };
                cluster.insert((shape, ShardedCluster::start(shape, reviews).await?))
            }
        };
        measured.insert(setup, both(cluster, setup, size, commands).await?);
    }
    let points = points(size, &measured);
    let pictures = save(&drawing::pictures(&points), folder)?;
    let Size { size_bytes, chunk_mb, runs, .. } = *size;
    let shared = Shared { size_bytes, chunk_mb, runs };
    let header = Header::with_servers("morphus-fig8", shared, CACHE_MB);
    Ok(Report { header, points, pictures })
}

/// The changes of one setup, by placement.
type Changes = [Vec<Change>; PLACINGS.len()];

async fn both(
    cluster: &ShardedCluster,
    setup: Setup,
    size: &Size,
    commands: &Commands,
) -> Result<Changes> {
    let mut changes = Changes::default();
    for _ in 0..size.runs {
        for (placing, changes) in PLACINGS.into_iter().zip(&mut changes) {
            let cut = Cut { placing, chunk_mb: Some(size.chunk_mb) };
            let one = one(cluster, setup, cut, commands).await?;
            tracing::info!(?setup, ?placing, seconds = one.seconds, "one change of the key");
            changes.push(one);
        }
    }
    Ok(changes)
}

async fn one(
    cluster: &ShardedCluster,
    setup: Setup,
    cut: Cut,
    commands: &Commands,
) -> Result<Change> {
    let Setup { documents, rate_per_s, .. } = setup;
    if rate_per_s == 0 {
        cluster.fill(documents).await?;
        return change(cluster, cut, commands).await;
    }
    let load = Load { mix: Mix::default(), keys: Distribution::Uniform, rate_per_s };
    let traffic = cluster.traffic(documents, load).await?;
    traffic.pass(WARM_S).await;
    let changed = change(cluster, cut, commands).await?;
    let verdict = traffic.end().await?.verdict;
    if verdict.counts.anomalies() > 0 {
        return Err(Error::Wrong(format!("the change harmed documents: {:?}", verdict.counts)));
    }
    Ok(changed)
}

fn points(size: &Size, measured: &BTreeMap<Setup, Changes>) -> Vec<Measured> {
    let mut points = Vec::new();
    for (part, values) in &size.parts {
        for value in values {
            let setup = part.at(size.base, *value);
            for (placement, changes) in PLACINGS.into_iter().zip(&measured[&setup]) {
                points.push(point(*part, setup, placement, changes));
            }
        }
    }
    points
}

fn point(part: Part, setup: Setup, placement: Placing, changes: &[Change]) -> Measured {
    Measured {
        part,
        setup,
        placement,
        chunks: changes.last().map_or(0, |change| change.chunks),
        seconds: Figure::of(changes.iter().map(|change| change.seconds)),
        phases: medians(changes.iter().flat_map(|change| &change.phases)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setup_of_several_parts_is_measured_once_and_each_cluster_starts_once() {
        let base = Setup { members: 1, shards: 3, documents: 2_000, rate_per_s: 0 };
        let parts = vec![
            (Part::A, vec![1_000, 2_000]),
            (Part::B, vec![0, 100]),
            (Part::C, vec![2, 3, 4]),
            (Part::D, vec![1, 3]),
        ];
        let size = Size { base, parts, size_bytes: 1_000, chunk_mb: 1, runs: 1 };
        let setups: Vec<Setup> = size.setups().into_iter().collect();
        assert_eq!(setups.len(), 6, "the base belongs to all four parts: {setups:?}");
        let shapes: Vec<_> = setups.iter().map(|setup| (setup.members, setup.shards)).collect();
        let starts = 1 + shapes.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert_eq!(starts, 4, "{shapes:?}");
    }
}
