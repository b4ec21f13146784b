//! Observes the operations that clients request of Redis, by its nodes' own counters (`INFO commandstats`,
//! `LATENCY HISTOGRAM`).
//!
//! Each node counts the commands that it executed. A replica executes the writes of its master, too, so that writes are
//! counted at masters only. Redis does not distinguish inserts from updates: all writes count as updates. Each command
//! that reads a range counts as one scan; reads by key that follow it count as reads.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use imago_plan::tune::workload::KINDS;

use super::connection::{Node, line};
use super::histogram::{self, Histogram};
use super::{ClusterFile, Uri};
use crate::cluster::error::chain;
pub use crate::cluster::observation::Observation;
use crate::cluster::observation::{READS, SCANS, UPDATES, since};
use crate::cluster::{Error, NodeAccess, Result};

/// Timeout of a node's reply while its counters are read.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// Names of the commands that read ranges, and count as scans.
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

/// Counters of one node, as they were read at one time.
#[derive(Clone, Debug, Default, PartialEq)]
struct NodeReading {
    /// True unless the node is a replica.
    is_master: bool,
    /// Number of commands of each kind since the node's start.
    counts: [u64; KINDS],
    /// Latencies of the commands of each kind since the node's start.
    times: [Histogram; KINDS],
    /// Share of the node's `maxmemory` in use, from 0 to 1; None without a limit.
    memory: Option<f64>,
}

/// An observed node and its last reading.
struct Observed {
    access: NodeAccess,
    /// Names of the node's commands that read, and of those that write; None before the first reading.
    commands: Option<(BTreeSet<String>, BTreeSet<String>)>,
    /// Last reading of the node; None before the first one.
    last: Option<NodeReading>,
    /// True if the last reading failed.
    was_missed: bool,
}

/// Reader of the counters of all nodes of a Redis Cluster, or of a server.
pub struct Observer {
    uri: Uri,
    nodes: Vec<Observed>,
    /// Time of the last reading of all nodes.
    last_read_at: Instant,
}

impl Observer {
    /// Takes the first reading of all nodes of the cluster file.
    ///
    /// # Errors
    /// Fails if no node answers.
    #[crate::boxed]
    pub async fn begin(file: &ClusterFile) -> Result<Self> {
        let node = |access: &NodeAccess| Observed {
            access: access.clone(),
            commands: None,
            last: None,
            was_missed: false,
        };
        let nodes = file.nodes.iter().map(node).collect();
        let mut observer = Self { uri: file.uri.clone(), nodes, last_read_at: Instant::now() };
        let first = observer.observe().await;
        if first.missed.len() == observer.nodes.len() {
            let (name, why) = first.missed.into_iter().next().unwrap_or_default();
            return Err(Error::precondition(
                format!("no node reports its operations; {name}: {why}"),
                "are the nodes up, and may this user run INFO, LATENCY and COMMAND?",
            ));
        }
        Ok(observer)
    }

    /// Reads the counters of all nodes, and returns the operations since the previous call.
    #[crate::boxed]
    pub async fn observe(&mut self) -> Observation {
        let uri = &self.uri;
        let all = join_all(self.nodes.iter_mut().map(|node| read_node(node, uri))).await;
        let seconds = self.last_read_at.elapsed().as_secs_f64();
        self.last_read_at = Instant::now();
        let mut observation = Observation {
            seconds,
            operations: [0; KINDS],
            median: [None; KINDS],
            slowest: [None; KINDS],
            memory: None,
            // The memory in use also depends on the encodings of keys.
            record_bytes: None,
            nodes: BTreeMap::new(),
            missed: BTreeMap::new(),
            is_late: false,
        };
        let mut times: [Histogram; KINDS] = Default::default();
        for (node, told) in self.nodes.iter_mut().zip(all) {
            let name = node.access.name.clone();
            let told = match told {
                Ok(told) => told,
                Err(error) => {
                    observation.missed.insert(name, chain(&error));
                    node.was_missed = true;
                    continue;
                }
            };
            observation.is_late |= std::mem::take(&mut node.was_missed);
            observation.memory = observation.memory.into_iter().chain(told.memory).reduce(f64::max);
            let (counts, new) =
                node.last.as_ref().map_or_else(Default::default, |last| told.since(last));
            observation.nodes.insert(name, counts.iter().sum());
            for kind in 0..KINDS {
                observation.operations[kind] += counts[kind];
                times[kind].add(&new[kind]);
            }
            node.last = Some(told);
        }
        let quantile = |share| std::array::from_fn(|kind| times[kind].quantile(share));
        Observation { median: quantile(0.5), slowest: quantile(0.99), ..observation }
    }
}

impl NodeReading {
    /// Returns the commands of each kind, and their latencies, since an earlier reading. Writes count at the present
    /// master: those that it executed shortly before as a replica were counted by its old master, whose writes no
    /// longer count.
    fn since(&self, last: &Self) -> ([u64; KINDS], [Histogram; KINDS]) {
        let mut counts = since(last.counts, self.counts);
        let mut times = std::array::from_fn(|kind| self.times[kind].since(&last.times[kind]));
        if !self.is_master {
            counts[UPDATES] = 0;
            times[UPDATES] = Histogram::default();
        }
        (counts, times)
    }
}

/// Connects to one node, and reads its counters; also its lists of commands at the first reading.
async fn read_node(node: &mut Observed, uri: &Uri) -> Result<NodeReading> {
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
    let stats: String = at.ask(&["INFO", "commandstats", "memory", "replication"]).await?;
    let times: redis::Value = at.ask(&["LATENCY", "HISTOGRAM"]).await?;
    let times = histogram::parse(&times).ok_or_else(|| {
        let what = format!("LATENCY HISTOGRAM of {} is not understood", node.access.name);
        Error::failed(what, "is it a server of Redis 7?")
    })?;
    let (reads, writes) = node.commands.as_ref().expect("it was just asked for");
    Ok(understood(&stats, &times, reads, writes))
}

/// Parses a node's replies: `stats` of INFO, `times` of LATENCY HISTOGRAM by command; `reads` and `writes` are the
/// names of the commands that read and write.
fn understood(
    stats: &str,
    times: &BTreeMap<String, Histogram>,
    reads: &BTreeSet<String>,
    writes: &BTreeSet<String>,
) -> NodeReading {
    let is_master = line(stats, "role") != Some("slave");
    let mut told = NodeReading { is_master, ..NodeReading::default() };
    for text in stats.lines() {
        let Some((name, fields)) =
            text.strip_prefix("cmdstat_").and_then(|rest| rest.split_once(':'))
        else {
            continue;
        };
        let Some(kind) = kind(name, reads, writes) else { continue };
        let calls = field(fields, "calls").unwrap_or(0.0);
        if calls < 1.0 {
            continue;
        }
        told.counts[kind] += calls as u64;
        if let Some(of_command) = times.get(name) {
            told.times[kind].add(of_command);
        }
    }
    let bytes = |name: &str| line(stats, name).and_then(|text| text.parse::<f64>().ok());
    if let (Some(used), Some(limit)) = (bytes("used_memory"), bytes("maxmemory"))
        && limit > 0.0
    {
        told.memory = Some(used / limit);
    }
    told
}

/// Returns the index of the kind of operations that a command counts as; None if it is no read or write of keys.
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

/// Returns the number in a field of `a=1,b=2`; None if there is no such field.
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
        # Memory\r\nused_memory:50\r\nmaxmemory:200\r\n# Replication\r\nrole:master\r\n";

    #[test]
    fn commands_are_counted_by_their_kind_and_writes_at_masters() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let (reads, writes) = (set(&["hgetall", "hlen", "scan"]), set(&["hset"]));
        let times = BTreeMap::from([
            ("hgetall".to_owned(), Histogram::of(&[(4, 290), (16, 10)])),
            ("hlen".to_owned(), Histogram::of(&[(2, 100)])),
            ("hset".to_owned(), Histogram::of(&[(8, 40)])),
        ]);
        let told = understood(STATS, &times, &reads, &writes);
        assert_eq!((told.counts, told.memory), ([400, 40, 0, 7], Some(0.25)));
        assert_eq!(told.times[READS], Histogram::of(&[(2, 100), (4, 290), (16, 10)]));

        // A replica counts no writes, and from the moment on in which it is a master those that it ran before.
        let read = |stats: &str| understood(stats, &times, &reads, &writes);
        let replica = STATS.replace("role:master", "role:slave");
        let later = STATS.replace("hset:calls=40", "hset:calls=55");
        let (counts, _) = read(&later.replace("role:master", "role:slave")).since(&read(&replica));
        assert_eq!(counts, [0; KINDS]);
        let (counts, _) = read(&later).since(&read(&replica));
        assert_eq!(counts, [0, 15, 0, 0]);
    }
}
