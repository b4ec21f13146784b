//! Fig. 7: the duration of a change of the shard key, and the bytes that it moves, with random (Morphus-R), greedy
//! (Morphus-G) and balanced (Morphus-H) placement of chunks.
//!
//! There are two data sets: new keys that are independent of the old ones, and new keys that are the old ones in
//! reverse order. To find the moved bytes, every shard is asked for its documents before and after the change. Each
//! round goes through all placements, so that a machine that becomes slower affects all of them alike.

use std::path::{Path, PathBuf};

use imago_mongo::reshard::plan::Placing;
use imago_workload::review::Reviews;
use serde::Serialize;

use super::{Change, change, name};
use crate::Header;
use crate::cluster_pair::CACHE_MB;
use crate::error::{Error, Result};
use crate::sharded_cluster::places::Places;
use crate::sharded_cluster::{Cut, Shape, ShardedCluster};
use crate::statistics::Figure;
use crate::subject::Commands;
use imago_chart::{Axis, Chart, Form, Picture, Point, Series, save};

/// The paper's data sets, and the share of documents whose new key is the old one in reverse.
const DATA: [(&str, f64); 2] = [("uncorrelated", 0.0), ("correlated", 1.0)];
const PLACINGS: [Placing; 3] = [Placing::Random, Placing::Greedy, Placing::Balanced];

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
    /// Size of new chunks, in MiB.
    pub chunk_mb: u32,
    /// Number of runs of each measurement; figures are medians.
    pub runs: u32,
}

/// The measurements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// Results of each data set with each placement.
    pub bars: Vec<Bar>,
    /// The file with Fig. 7.
    pub pictures: Vec<PathBuf>,
}

/// Results of a data set with a placement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bar {
    /// `uncorrelated` or `correlated`.
    pub keys: &'static str,
    /// Rule by which new chunks were placed.
    pub placement: Placing,
    /// Time from the start of planning to the end of the change, in seconds.
    pub seconds: Figure,
    /// Time divided by the time with the balanced placement of the same data.
    pub ratio_to_balanced: f64,
    /// Bytes of documents that were moved to another shard.
    pub moved_bytes: Figure,
    /// The fullest shard's load after the change, as a ratio to its share, as planned; 1 is even.
    pub imbalance: f64,
}

/// One change, and the bytes that it moved.
struct Moved {
    change: Change,
    bytes: u64,
}

/// Runs the benchmark, and draws the picture into `folder` if one is given.
///
/// # Errors
/// Returns an error if the cluster cannot be started, a change fails, or the picture cannot be written.
#[crate::boxed]
pub async fn run(size: Size, folder: Option<&Path>, commands: &Commands) -> Result<Report> {
    if size.documents < 1_000 || size.shards < 2 || size.runs == 0 {
        return Err(Error::Size(
            "Fig. 7 needs at least 1,000 documents, 2 shards and 1 run".into(),
        ));
    }
    let reviews = Reviews { size_bytes: size.size_bytes, ..Reviews::default() };
    let shape = Shape { shards: size.shards, members: size.members, cache_mb: CACHE_MB };
    let mut cluster = ShardedCluster::start(shape, reviews).await?;
    let mut bars = Vec::new();
    for (keys, correlation) in DATA {
        cluster.schema.reviews.correlation = correlation;
        let mut runs: [Vec<Moved>; PLACINGS.len()] = Default::default();
        for _ in 0..size.runs {
            for (placing, runs) in PLACINGS.into_iter().zip(&mut runs) {
                runs.push(one(&cluster, size, placing, commands).await?);
            }
        }
        bars.extend(of(keys, &runs));
    }
    let pictures = save(&[picture(&bars)], folder)?;
    let header = Header::with_servers("morphus-fig7", size, CACHE_MB);
    Ok(Report { header, bars, pictures })
}

async fn one(
    cluster: &ShardedCluster,
    size: Size,
    placing: Placing,
    commands: &Commands,
) -> Result<Moved> {
    cluster.fill(size.documents).await?;
    let before = Places::snapshot(cluster).await?;
    let cut = Cut { placing, chunk_mb: Some(size.chunk_mb) };
    let change = change(cluster, cut, commands).await?;
    let after = Places::snapshot(cluster).await?;
    let bytes = before.moved(&after)?;
    tracing::info!(?placing, seconds = change.seconds, bytes, "one placement");
    Ok(Moved { change, bytes })
}

/// Returns the bars of one data set.
fn of(keys: &'static str, runs: &[Vec<Moved>; PLACINGS.len()]) -> Vec<Bar> {
    let seconds = runs.each_ref().map(|runs| Figure::of(runs.iter().map(|run| run.change.seconds)));
    let balanced = PLACINGS.iter().position(|placing| *placing == Placing::Balanced);
    let balanced = seconds[balanced.expect("it is one of them")];
    let bar = |((placement, seconds), runs): ((Placing, Figure), &Vec<Moved>)| Bar {
        keys,
        placement,
        seconds,
        ratio_to_balanced: seconds.median / balanced.median,
        moved_bytes: Figure::of(runs.iter().map(|run| run.bytes as f64)),
        imbalance: Figure::of(runs.iter().map(|run| run.change.imbalance)).median,
    };
    PLACINGS.into_iter().zip(seconds).zip(runs).map(bar).collect()
}

/// Returns the paper's chart of the times, and next to it a chart of the moved bytes.
fn picture(bars: &[Bar]) -> Picture {
    let chart = |title: &str, y, value: fn(&Bar) -> Figure| {
        let series = PLACINGS.into_iter().enumerate().map(|(index, placing)| {
            let own = bars.iter().filter(|bar| bar.placement == placing);
            let point = |bar: &Bar| {
                let group = DATA.iter().position(|(keys, _)| *keys == bar.keys).unwrap_or(0);
                let Figure { median, min, max } = value(bar);
                let x = group as f64 + (index as f64 - 1.0) * 0.25;
                Point { x, y: median, y_min: min, y_max: max }
            };
            let points = own.map(point).collect();
            Series { name: name(placing).to_owned(), form: Form::Bars(0.22), points }
        });
        let x = Axis::Words(DATA.iter().map(|(keys, _)| *keys).collect());
        Chart { title: title.to_owned(), x, y, series: series.collect(), marks: Vec::new() }
    };
    let megabytes = |bar: &Bar| {
        let Figure { median, min, max } = bar.moved_bytes;
        Figure { median: median / 1e6, min: min / 1e6, max: max / 1e6 }
    };
    let seconds = chart("Time of the change", "seconds", |bar| bar.seconds);
    let moved = chart("Documents moved to another shard", "MB", megabytes);
    Picture { name: "morphus-fig7", columns: 2, charts: vec![seconds, moved] }
}
