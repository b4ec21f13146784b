//! What clients ask of a server or cluster, by its nodes' own counters (`INFO commandstats`, `INFO latencystats`).
//!
//! Each node counts the commands that it ran. A replica runs the writes of its master, too, so that writes are counted at
//! masters alone. Redis does not tell inserts from updates: all writes count as updates. Commands that read ranges count as
//! scans, and each of them once; what a scan then reads by name counts as reads.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use imago_plan::tune::workload::KINDS;

use super::connection::{Node, line};
use super::{ClusterFile, Uri};
use crate::cluster::error::chain;
pub use crate::cluster::observation::Observation;
use crate::cluster::observation::{READS, SCANS, UPDATES, since};
use crate::cluster::{Error, NodeAccess, Result};

/// For a node to answer one question.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// The commands that read ranges.
const RANGES: [&str; 24] = [
    "scan",
    "hscan",
    "sscan",
    "zscan",
    "keys",
    "lrange",
    "smembers",
    "sinter",
    "sunion",
    "sdiff",
    "zrange",
    "zrevrange",
    "zrangebyscore",
    "zrevrangebyscore",
    "zrangebylex",
    "zrevrangebylex",
    "zinter",
    "zunion",
    "zdiff",
    "xrange",
    "xrevrange",
    "xread",
    "geosearch",
    "sort_ro",
];

/// Counters of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Told {
    counts: [u64; KINDS],
    /// Weighted by the counts of the commands, in microseconds.
    median: [f64; KINDS],
    slowest: [f64; KINDS],
    /// The share of `maxmemory` in use; nothing without a limit.
    memory: Option<f64>,
}

/// A node, and what it told last.
struct Observed {
    access: NodeAccess,
    /// The commands that read, and those that write.
    commands: Option<(BTreeSet<String>, BTreeSet<String>)>,
    last: Option<[u64; KINDS]>,
}

/// Looks at the counters of all nodes.
pub struct Observer {
    uri: Uri,
    nodes: Vec<Observed>,
    looked: Instant,
}

impl Observer {
    /// Looks for the first time.
    ///
    /// # Errors
    /// No node answers.
    pub async fn begin(file: &ClusterFile) -> Result<Self> {
        let node =
            |access: &NodeAccess| Observed { access: access.clone(), commands: None, last: None };
        let nodes = file.nodes.iter().map(node).collect();
        let mut observer = Self { uri: file.uri.clone(), nodes, looked: Instant::now() };
        let first = observer.look().await;
        if first.missed.len() == observer.nodes.len() {
            let (name, why) = first.missed.into_iter().next().unwrap_or_default();
            return Err(Error::precondition(
                format!("no node tells what clients ask for; {name}: {why}"),
                "are the nodes up, and may this user run INFO?",
            ));
        }
        Ok(observer)
    }

    /// What was counted since the last look.
    pub async fn look(&mut self) -> Observation {
        let uri = &self.uri;
        let all = join_all(self.nodes.iter_mut().map(|node| told(node, uri))).await;
        let seconds = self.looked.elapsed().as_secs_f64();
        self.looked = Instant::now();
        let mut observation = Observation {
            seconds,
            operations: [0; KINDS],
            median: [None; KINDS],
            slowest: [None; KINDS],
            memory: None,
            nodes: BTreeMap::new(),
            missed: BTreeMap::new(),
        };
        let (mut medians, mut slowest) = ([0.0; KINDS], [0.0; KINDS]);
        for (node, told) in self.nodes.iter_mut().zip(all) {
            let name = node.access.name.clone();
            let told = match told {
                Ok(told) => told,
                Err(error) => {
                    observation.missed.insert(name, chain(&error));
                    continue;
                }
            };
            let last = node.last.replace(told.counts);
            let new = last.map_or([0; KINDS], |last| since(last, told.counts));
            observation.nodes.insert(name, new.iter().sum());
            for kind in 0..KINDS {
                observation.operations[kind] += new[kind];
                medians[kind] += new[kind] as f64 * told.median[kind];
                slowest[kind] += new[kind] as f64 * told.slowest[kind];
            }
            observation.memory = observation.memory.into_iter().chain(told.memory).reduce(f64::max);
        }
        let mean = |sums: [f64; KINDS]| {
            std::array::from_fn(|kind| {
                let count = observation.operations[kind] as f64;
                (count > 0.0).then(|| sums[kind] / count)
            })
        };
        let (median, slowest) = (mean(medians), mean(slowest));
        Observation { median, slowest, ..observation }
    }
}

async fn told(node: &mut Observed, uri: &Uri) -> Result<Told> {
    let at = Node::connect(&node.access.address.to_string(), uri, ANSWER_WAIT).await?;
    if node.commands.is_none() {
        let list = |category: &'static str| {
            let at = at.clone();
            async move {
                let words = ["COMMAND", "LIST", "FILTERBY", "ACLCAT", category];
                at.ask::<BTreeSet<String>>(&words).await
            }
        };
        node.commands = Some((list("read").await?, list("write").await?));
    }
    let stats: String =
        at.ask(&["INFO", "commandstats", "latencystats", "memory", "replication"]).await?;
    let (reads, writes) = node.commands.as_ref().expect("it was just asked for");
    Ok(understood(&stats, reads, writes))
}

/// What a node's answer tells.
fn understood(stats: &str, reads: &BTreeSet<String>, writes: &BTreeSet<String>) -> Told {
    let is_master = line(stats, "role") != Some("slave");
    let mut told = Told::default();
    for text in stats.lines() {
        let Some((name, fields)) =
            text.strip_prefix("cmdstat_").and_then(|rest| rest.split_once(':'))
        else {
            continue;
        };
        let Some(kind) = kind(name, reads, writes) else { continue };
        let calls = field(fields, "calls").unwrap_or(0.0);
        if calls < 1.0 || (kind == UPDATES && !is_master) {
            continue;
        }
        told.counts[kind] += calls as u64;
        let latencies =
            line(stats, &format!("latency_percentiles_usec_{name}")).unwrap_or_default();
        told.median[kind] += calls * field(latencies, "p50").unwrap_or(0.0);
        told.slowest[kind] += calls * field(latencies, "p99").unwrap_or(0.0);
    }
    for kind in 0..KINDS {
        let count = told.counts[kind].max(1) as f64;
        told.median[kind] /= count;
        told.slowest[kind] /= count;
    }
    let bytes = |name: &str| line(stats, name).and_then(|text| text.parse::<f64>().ok());
    if let (Some(used), Some(limit)) = (bytes("used_memory"), bytes("maxmemory"))
        && limit > 0.0
    {
        told.memory = Some(used / limit);
    }
    told
}

fn kind(name: &str, reads: &BTreeSet<String>, writes: &BTreeSet<String>) -> Option<usize> {
    if RANGES.contains(&name) {
        Some(SCANS)
    } else if writes.contains(name) {
        Some(UPDATES)
    } else if reads.contains(name) {
        Some(READS)
    } else {
        None
    }
}

/// The number of a field of `a=1,b=2`.
fn field(fields: &str, name: &str) -> Option<f64> {
    let mut pairs = fields.trim().split(',').filter_map(|pair| pair.split_once('='));
    pairs.find_map(|(key, value)| (key == name).then(|| value.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATS: &str = "# Commandstats\r\n\
        cmdstat_hgetall:calls=300,usec=900,usec_per_call=3.00,rejected_calls=0,failed_calls=0\r\n\
        cmdstat_hlen:calls=100,usec=90,usec_per_call=0.90,rejected_calls=0,failed_calls=0\r\n\
        cmdstat_hset:calls=40,usec=200,usec_per_call=5.00,rejected_calls=0,failed_calls=0\r\n\
        cmdstat_scan:calls=7,usec=900,usec_per_call=3.00,rejected_calls=0,failed_calls=0\r\n\
        cmdstat_config|get:calls=9,usec=9,usec_per_call=1.00,rejected_calls=0,failed_calls=0\r\n\
        # Latencystats\r\n\
        latency_percentiles_usec_hgetall:p50=3.007,p99=12.031,p99.9=20.095\r\n\
        latency_percentiles_usec_hlen:p50=1.003,p99=2.007,p99.9=2.007\r\n\
        # Memory\r\nused_memory:50\r\nmaxmemory:200\r\n# Replication\r\nrole:master\r\n";

    #[test]
    fn commands_are_counted_by_their_kind_and_writes_at_masters() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let (reads, writes) = (set(&["hgetall", "hlen", "scan"]), set(&["hset"]));
        let told = understood(STATS, &reads, &writes);
        assert_eq!((told.counts, told.memory), ([400, 40, 0, 7], Some(0.25)));
        assert!((told.slowest[READS] - (300.0 * 12.031 + 100.0 * 2.007) / 400.0).abs() < 1e-9);
        let replica = STATS.replace("role:master", "role:slave");
        assert_eq!(understood(&replica, &reads, &writes).counts, [400, 0, 0, 7]);
    }
}
