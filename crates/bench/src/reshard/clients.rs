//! The effect of a change of the shard key on clients.

use std::collections::BTreeMap;

use imago_workload::check::Verdict;
use imago_workload::keys::Distribution;
use serde::Serialize;
use serde_json::Value;

use super::Size;
use crate::error::{Error, Result};
use crate::sharded_cluster::{KEYS, ShardedCluster};
use crate::statistics::{Figure, medians};
use crate::subject::Commands;
use crate::traffic::{Load, Traffic, TrafficResult, Window};

/// Operations per second of the busy load; half of them are writes.
const BUSY_PER_S: u32 = 1_000;
const BUSY_MIX: &str = "read=50,update=35,insert=10,delete=5";
/// Operations per second of the calm load, under which latencies are compared.
const CALM_PER_S: u32 = 300;
const CALM_MIX: &str = "read=40,update=40,insert=15,delete=5";
/// Divisors of the number of documents: the collections of the two loads are smaller than that of the benchmark,
/// because the duration of a cut-over does not depend on the size.
const BUSY_PART: u64 = 100;
const CALM_PART: u64 = 10;

/// The effect on clients.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Clients {
    /// Longest time without an answered write during any of the changes, in ms, at 500 writes/s.
    pub write_gap_ms_max: f64,
    /// Longest time without an answered read during any of the changes, in ms, at 500 reads/s.
    pub read_gap_ms_max: f64,
    /// Median over the changes of the longest time without an answered write, in ms.
    pub write_gap_ms_median: f64,
    /// Median over the changes of the longest time without an answered read, in ms.
    pub read_gap_ms_median: f64,
    /// Duration of each step of the write block, in ms, as Imago measured it; medians over the changes.
    pub block_steps_ms: BTreeMap<String, f64>,
    /// Duration of a bare rename of an empty collection onto another one, which is tried before each cut-over, in ms;
    /// the median.
    pub bare_rename_ms_median: f64,
    /// Predicted duration of the write block, in ms; the median.
    pub predicted_block_ms_median: f64,
    /// Number of acknowledged writes that are missing, under both loads.
    pub lost: u64,
    /// Number of deleted documents that exist again.
    pub resurrected: u64,
    /// Number of documents that exist twice.
    pub duplicated: u64,
    /// Number of documents that are older than an acknowledged write.
    pub stale: u64,
    /// Number of acknowledged writes, under both loads.
    pub acknowledged: u64,
    /// Reads before and during a change, at 300 operations/s.
    pub reads: ClientImpact,
    /// Writes before and during a change, at 300 operations/s.
    pub writes: ClientImpact,
    /// Latencies in each phase of the last change under the calm load, in the order of the phases.
    pub noticed_in: Vec<PhaseLatencies>,
}

/// Latencies of the calm load in one phase of a change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PhaseLatencies {
    /// Name of the phase.
    pub phase: String,
    /// Duration of the phase, in s.
    pub seconds: f64,
    /// 99th percentile of the latencies of reads in the phase, in ms; absent if no read was due.
    pub reads_p99_ms: Option<f64>,
    /// 99th percentile of the latencies of writes in the phase, in ms; absent if no write was due.
    pub writes_p99_ms: Option<f64>,
}

/// The reads or the writes of the calm load; medians of the runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClientImpact {
    /// 99th percentile of latencies before the change, in ms.
    pub p99_ms_idle: f64,
    /// 99th percentile of latencies during the change, in ms.
    pub p99_ms_during: f64,
    /// Percentile during the change divided by the percentile before it.
    pub p99_ratio: f64,
    /// The largest such ratio of a run.
    pub p99_ratio_max: f64,
    /// Share of the operations that were answered during the change, in percent.
    pub succeeded_percent: f64,
}

pub(super) async fn measure(
    cluster: &ShardedCluster,
    size: Size,
    commands: &Commands,
) -> Result<Clients> {
    let (busy, changes) = change_key_and_back(cluster, size, commands).await?;
    let cutovers: Vec<Window> = changes.iter().map(|change| change.window).collect();
    let blocks: Vec<Block> =
        changes.iter().map(|change| Block::of(&change.output)).collect::<Result<_>>()?;
    let gaps_ms = |reads| cutovers.iter().map(|at| busy.gap_ms(reads, *at)).collect::<Vec<_>>();
    tracing::info!(write_ms = ?gaps_ms(false), read_ms = ?gaps_ms(true), "cut-overs under load");
    let mut calm = Vec::new();
    for _ in 0..size.runs {
        let run = change_under_load(cluster, size, commands).await?;
        let (reads, writes) = (run.noticed(true), run.noticed(false));
        tracing::info!(?reads, ?writes, "one change beside a calm load");
        calm.push(run);
    }
    let gap = |reads| Figure::of(gaps_ms(reads));
    let (writes, reads) = (gap(false), gap(true));
    let sum = |of: fn(&Verdict) -> u64| {
        of(&busy.verdict) + calm.iter().map(|run| of(&run.result.verdict)).sum::<u64>()
    };
    let noticed =
        |reads| ClientImpact::medians(calm.iter().map(|run| run.noticed(reads)).collect());
    Ok(Clients {
        block_steps_ms: medians(blocks.iter().flat_map(|block| &block.steps)),
        bare_rename_ms_median: Figure::of(blocks.iter().map(|block| block.bare_rename_ms)).median,
        predicted_block_ms_median: Figure::of(blocks.iter().map(|block| block.predicted_ms)).median,
        write_gap_ms_max: writes.max,
        read_gap_ms_max: reads.max,
        write_gap_ms_median: writes.median,
        read_gap_ms_median: reads.median,
        lost: sum(|verdict| verdict.counts.lost),
        resurrected: sum(|verdict| verdict.counts.resurrected),
        duplicated: sum(|verdict| verdict.counts.duplicated),
        stale: sum(|verdict| verdict.counts.stale),
        acknowledged: sum(|verdict| verdict.writes_acknowledged),
        reads: noticed(true),
        writes: noticed(false),
        noticed_in: calm.pop().map(Calm::in_phases).unwrap_or_default(),
    })
}

/// One change under the calm load.
struct Calm {
    result: TrafficResult,
    before: Window,
    during: Window,
    phases: Vec<(String, f64)>,
}

impl Calm {
    fn noticed(&self, reads: bool) -> ClientImpact {
        let p99 = |window| self.result.p99_ms(reads, window).unwrap_or(f64::NAN);
        let (p99_ms_idle, p99_ms_during) = (p99(self.before), p99(self.during));
        let succeeded = self.result.succeeded_percent(reads, self.during);
        let p99_ratio = p99_ms_during / p99_ms_idle;
        ClientImpact {
            p99_ms_idle,
            p99_ms_during,
            p99_ratio,
            p99_ratio_max: p99_ratio,
            succeeded_percent: succeeded.unwrap_or(f64::NAN),
        }
    }

    /// Returns the latencies by phase. The last phase ends with the change; the time before the first phase is the
    /// start of the process.
    fn in_phases(self) -> Vec<PhaseLatencies> {
        let Self { result, during, phases, .. } = self;
        let mut to_ns = during.to_ns;
        let mut noticed: Vec<PhaseLatencies> = Vec::new();
        for (phase, seconds) in phases.into_iter().rev() {
            let from_ns = to_ns.saturating_sub((seconds * 1e9) as u64).max(during.from_ns);
            let p99 = |reads| result.p99_ms(reads, Window { from_ns, to_ns });
            let (reads_p99_ms, writes_p99_ms) = (p99(true), p99(false));
            noticed.push(PhaseLatencies { phase, seconds, reads_p99_ms, writes_p99_ms });
            to_ns = from_ns;
        }
        noticed.reverse();
        noticed
    }
}

impl ClientImpact {
    fn medians(runs: Vec<Self>) -> Self {
        let figure = |of: fn(&Self) -> f64| Figure::of(runs.iter().map(of));
        let ratio = figure(|run| run.p99_ratio);
        Self {
            p99_ms_idle: figure(|run| run.p99_ms_idle).median,
            p99_ms_during: figure(|run| run.p99_ms_during).median,
            p99_ratio: ratio.median,
            p99_ratio_max: ratio.max,
            succeeded_percent: figure(|run| run.succeeded_percent).median,
        }
    }
}

/// Changes the key several times, there and back, under the busy load.
async fn change_key_and_back(
    cluster: &ShardedCluster,
    size: Size,
    commands: &Commands,
) -> Result<(TrafficResult, Vec<Changed>)> {
    let documents = (size.documents / BUSY_PART).max(1_000);
    let traffic = start(cluster, size, documents, BUSY_MIX, BUSY_PER_S).await?;
    traffic.pass(3).await;
    let mut cutovers = Vec::new();
    for n in 0..size.cutovers.max(1) {
        let key = KEYS[(n as usize + 1) % KEYS.len()];
        cutovers.push(change(cluster, key, commands, &traffic).await?);
        traffic.pass(1).await;
    }
    Ok((traffic.end().await?, cutovers))
}

/// Changes the key once under the calm load, which leaves the servers spare capacity.
async fn change_under_load(
    cluster: &ShardedCluster,
    size: Size,
    commands: &Commands,
) -> Result<Calm> {
    let documents = (size.documents / CALM_PART).max(1_000);
    let traffic = start(cluster, size, documents, CALM_MIX, CALM_PER_S).await?;
    // Connections are opened and caches filled in this time.
    traffic.pass(3).await;
    let before = traffic.pass(size.idle_s).await;
    let Changed { window: during, phases, .. } =
        change(cluster, KEYS[1], commands, &traffic).await?;
    Ok(Calm { result: traffic.end().await?, before, during, phases })
}

async fn start(
    cluster: &ShardedCluster,
    size: Size,
    documents: u64,
    mix: &str,
    rate_per_s: u32,
) -> Result<Traffic> {
    let mix = mix.parse().expect("a mix");
    let rate_per_s = (rate_per_s * size.rate_percent / 100).max(1);
    let load = Load { mix, keys: Distribution::Uniform, rate_per_s };
    cluster.traffic(documents, load).await
}

async fn change(
    cluster: &ShardedCluster,
    key: &str,
    commands: &Commands,
    traffic: &Traffic,
) -> Result<Changed> {
    let (window, changed) = traffic.during(Box::pin(cluster.reshard(key, commands))).await?;
    Ok(Changed { window, phases: changed.phases, output: changed.output })
}

/// A change under a load.
struct Changed {
    window: Window,
    phases: Vec<(String, f64)>,
    /// The result of the change, as JSON.
    output: Vec<u8>,
}

/// A write block, as the result of its change reports it.
struct Block {
    steps: Vec<(String, f64)>,
    bare_rename_ms: f64,
    predicted_ms: f64,
}

impl Block {
    fn of(output: &[u8]) -> Result<Self> {
        let wrong = |what: &str| {
            Error::Wrong(format!(
                "the change's result has no {what}: {}",
                String::from_utf8_lossy(output)
            ))
        };
        let result: Value = serde_json::from_slice(output).map_err(|_| wrong("JSON"))?;
        let figure = |name: &str| result[name].as_f64().ok_or_else(|| wrong(name));
        let steps = result["block_steps"].as_array().into_iter().flatten();
        let steps =
            steps.filter_map(|at| Some((at["step"].as_str()?.to_owned(), at["ms"].as_f64()?)));
        Ok(Self {
            steps: steps.collect(),
            bare_rename_ms: figure("bare_rename_ms")?,
            predicted_ms: figure("predicted_block_ms")?,
        })
    }
}
