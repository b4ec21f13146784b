//! Observes the operations that clients request of a Cassandra cluster, by its nodes' own counters.
//!
//! Each node counts, per table, the operations that it coordinates, and exposes the counters in virtual tables, so that
//! each operation is counted by one node. Cassandra does not distinguish inserts from updates: both count as updates. A
//! restarted node counts from zero again; a node that does not answer is left out, and reported.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use imago_plan::tune::workload::KINDS;
use scylla::client::session::Session;

use super::ClusterFile;
use super::Uri;
use super::connection::{connect_to, rows};
use super::error::{Error, Result};
use super::journal;
use super::ring::{SYSTEM_KEYSPACES, chain};
use crate::cluster::NodeAccess;
pub use crate::cluster::observation::Observation;
use crate::cluster::observation::{READS, SCANS, UPDATES, since};

/// Timeout of reading one node's counters.
const NODE_BOUND: Duration = Duration::from_secs(10);
/// Minimum time between two reads of the memory in use, each of which starts a command on the node.
const MEMORY_EVERY: Duration = Duration::from_secs(5);

/// Minimum time between two reads of record sizes, which a node estimates anew every five minutes.
const DATA_EVERY: Duration = Duration::from_secs(60);
/// Timeout of reading the estimates of one node's record sizes.
const DATA_BOUND: Duration = Duration::from_secs(3);
/// Maximum number of size estimates (one per token range and table) read from each node: of many tables a part is
/// enough.
const ESTIMATES_MAX: usize = 5_000;

/// Virtual tables that count the operations that a node coordinates, each with the index of its kind of operations.
const VIEWS: [(&str, usize); 3] = [
    ("coordinator_read_latency", READS),
    ("coordinator_write_latency", UPDATES),
    ("coordinator_scan_latency", SCANS),
];

/// Script that prints the share (0 to 1) of a machine's memory that is not available to a program that requests more.
const MEMORY: &str = "awk '/^MemTotal:/ {t=$2} /^MemAvailable:/ {a=$2} END {if (t > 0) printf \"%.4f\", 1 - a / t}' /proc/meminfo\n";

/// Counters of one node for one kind of operations, since the node's start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counter {
    /// Number of operations since the node's start.
    count: u64,
    /// Median and 99th percentile of the latency, in ms: means over the tables, weighted by their counts.
    median: f64,
    slowest: f64,
}

/// Counters and memory of one node, as they were read at one time.
#[derive(Clone, Debug, Default, PartialEq)]
struct NodeReading {
    /// Counters of the node by kind of operations.
    counters: [Counter; KINDS],
    /// Share of the machine's memory in use, from 0 to 1; None if it was not read, or cannot be read.
    memory: Option<f64>,
}

/// An observed node, the connection to it, and its last reading.
struct Node {
    access: NodeAccess,
    /// Connection to the node; None before the first reading and after a failed one.
    session: Option<Session>,
    /// Operations of each kind at the last reading; None before it.
    last: Option<[u64; KINDS]>,
    /// True if the last reading failed.
    was_missed: bool,
    /// Time of the last read of the memory in use.
    memory_read_at: Option<Instant>,
    /// Time of the last read of the size of the node's data; and its result: bytes, and number of partitions.
    data_read_at: Option<Instant>,
    data: (f64, f64),
}

/// Reader of the counters of a Cassandra cluster's nodes.
pub struct Observer {
    uri: Uri,
    /// Keyspace and name of the table to observe; None: all tables except Cassandra's and Imago's own.
    table: Option<(String, String)>,
    nodes: Vec<Node>,
    /// Time of the last reading of all nodes.
    last_read_at: Instant,
}

impl Observer {
    /// Takes the first reading of all nodes; `table` is the keyspace and name of the only table to observe, and None
    /// observes all tables of clients.
    ///
    /// # Errors
    /// Fails if no node answers.
    #[crate::boxed]
    pub async fn begin(file: &ClusterFile, table: Option<(String, String)>) -> Result<Self> {
        let node = |access: &NodeAccess| Node {
            access: access.clone(),
            session: None,
            last: None,
            was_missed: false,
            memory_read_at: None,
            data_read_at: None,
            data: (0.0, 0.0),
        };
        let nodes = file.nodes.iter().map(node).collect();
        let last_read_at = Instant::now();
        let mut observer = Self { uri: file.uri.clone(), table, nodes, last_read_at };
        let first = observer.observe().await;
        if first.missed.len() == observer.nodes.len() {
            let (name, why) = first.missed.into_iter().next().unwrap_or_default();
            return Err(Error::precondition(
                format!("no node reports its operations; {name}: {why}"),
                "are the nodes up, and may this user read system_views?",
            ));
        }
        Ok(observer)
    }

    /// Reads each node, in the order of `nodes`. Returns each node's reading, and its operations of each kind since
    /// the previous one.
    async fn read_nodes(&mut self) -> Vec<Result<(NodeReading, [u64; KINDS])>> {
        let (uri, table) = (&self.uri, self.table.as_ref());
        let looks = self.nodes.iter_mut().map(|node| async move {
            let told = tokio::time::timeout(NODE_BOUND, read_node(node, uri, table)).await;
            let told = told.unwrap_or_else(|_| {
                Err(Error::Command {
                    node: node.access.name.clone(),
                    doing: "reading its counters".into(),
                    said: format!("no answer within {} s", NODE_BOUND.as_secs()),
                })
            });
            if told.is_err() {
                // The next reading connects anew: the address may belong to another process by then.
                node.session = None;
            }
            told
        });
        let all = join_all(looks).await;
        let counted = |(node, told): (&mut Node, Result<NodeReading>)| {
            let told = told?;
            let counts = told.counters.map(|counter| counter.count);
            let new = node.last.replace(counts).map_or([0; KINDS], |last| since(last, counts));
            Ok((told, new))
        };
        self.nodes.iter_mut().zip(all).map(counted).collect()
    }

    /// Reads the counters of all nodes, and returns the operations since the previous call.
    #[crate::boxed]
    pub async fn observe(&mut self) -> Observation {
        let all = self.read_nodes().await;
        let seconds = self.last_read_at.elapsed().as_secs_f64();
        self.last_read_at = Instant::now();
        let mut observation = Observation {
            seconds,
            operations: [0; KINDS],
            median: [None; KINDS],
            slowest: [None; KINDS],
            memory: None,
            record_bytes: None,
            nodes: BTreeMap::new(),
            missed: BTreeMap::new(),
            is_late: false,
        };
        let (mut bytes, mut partitions) = (0.0, 0.0);
        let (mut medians, mut slowest) = ([0.0; KINDS], [0.0; KINDS]);
        for (node, told) in self.nodes.iter_mut().zip(all) {
            let name = node.access.name.clone();
            let (told, new) = match told {
                Ok(told) => told,
                Err(error) => {
                    observation.missed.insert(name, chain(&error));
                    node.was_missed = true;
                    continue;
                }
            };
            observation.is_late |= std::mem::take(&mut node.was_missed);
            observation.nodes.insert(name, new.iter().sum());
            for kind in 0..KINDS {
                observation.operations[kind] += new[kind];
                let (count, counter) = (new[kind] as f64, told.counters[kind]);
                medians[kind] += count * counter.median;
                slowest[kind] += count * counter.slowest;
            }
            bytes += node.data.0;
            partitions += node.data.1;
            observation.memory = observation.memory.into_iter().chain(told.memory).reduce(f64::max);
        }
        observation.record_bytes = (partitions > 0.0).then(|| bytes / partitions);
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

/// Reads the counters of one node, and its memory and record sizes if they are due; connects first if necessary.
async fn read_node(
    node: &mut Node,
    uri: &Uri,
    table: Option<&(String, String)>,
) -> Result<NodeReading> {
    if node.session.is_none() {
        node.session = Some(connect_to(node.access.address, uri).await?);
    }
    let session = node.session.as_ref().expect("it is connected");
    let mut told = NodeReading::default();
    for (view, kind) in VIEWS {
        let statement = format!(
            "SELECT keyspace_name, table_name, count, p50th_ms, p99th_ms FROM system_views.{view}"
        );
        type Row = (String, String, i64, f64, f64);
        let all = rows::<Row>(session, "reading a node's counters", &statement, ()).await?;
        let is_asked = |(keyspace, name, ..): &&Row| match table {
            Some((of, table)) => (keyspace, name) == (of, table),
            None => !SYSTEM_KEYSPACES.contains(&&**keyspace) && *keyspace != journal::KEYSPACE,
        };
        let mut counter = Counter::default();
        for (_, _, count, median, slowest) in all.iter().filter(is_asked) {
            let count = u64::try_from(*count).unwrap_or(0);
            counter.count += count;
            counter.median += count as f64 * median;
            counter.slowest += count as f64 * slowest;
        }
        if counter.count > 0 {
            counter.median /= counter.count as f64;
            counter.slowest /= counter.count as f64;
        }
        told.counters[kind] = counter;
    }
    if node.data_read_at.is_none_or(|asked| asked.elapsed() >= DATA_EVERY) {
        node.data_read_at = Some(Instant::now());
        // A failed or late estimate does not fail the reading of the counters.
        let estimated = tokio::time::timeout(DATA_BOUND, data(session, table)).await;
        node.data = estimated.ok().and_then(Result::ok).unwrap_or_default();
    }
    if node.memory_read_at.is_some_and(|asked| asked.elapsed() < MEMORY_EVERY) {
        return Ok(told);
    }
    node.memory_read_at = Some(Instant::now());
    // The command fails on systems other than Linux.
    let memory = node.access.run("reading how much memory is in use", MEMORY, NODE_BOUND).await;
    told.memory = memory.ok().and_then(|text| text.trim().parse().ok());
    Ok(told)
}

/// Returns the size in bytes and the number of partitions of a node's data, by its own estimates for its token
/// ranges.
async fn data(session: &Session, table: Option<&(String, String)>) -> Result<(f64, f64)> {
    let of_table = if table.is_some() { "WHERE keyspace_name = ? AND table_name = ?" } else { "" };
    let statement = format!(
        "SELECT keyspace_name, table_name, mean_partition_size, partitions_count FROM system.size_estimates {of_table} \
         LIMIT {ESTIMATES_MAX}"
    );
    let doing = "reading how large records are";
    type Row = (String, String, i64, i64);
    let all = match table {
        None => rows::<Row>(session, doing, &statement, ()).await?,
        Some(of) => rows::<Row>(session, doing, &statement, of).await?,
    };
    let of_clients = |row: &&Row| {
        !SYSTEM_KEYSPACES.contains(&&*row.0) && row.0 != journal::KEYSPACE && row.3 > 0
    };
    let sums = all.iter().filter(of_clients).fold((0.0, 0.0), |(bytes, partitions), row| {
        (bytes + row.2 as f64 * row.3 as f64, partitions + row.3 as f64)
    });
    Ok(sums)
}
