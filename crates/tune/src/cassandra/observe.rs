//! What clients ask of a cluster, by its nodes' own counters.
//!
//! Each node counts the operations that it coordinates, table by table, in virtual tables, so that each operation is
//! counted by one node. Cassandra does not tell an insert from an update: both count as updates. A node that has restarted
//! counts from zero again, and one that does not answer is missed, and said.

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
use super::ring::{OWN, chain};
use crate::cluster::NodeAccess;
pub use crate::cluster::observation::Observation;
use crate::cluster::observation::{READS, SCANS, UPDATES, since};

/// For one node to tell its counters.
const NODE_BOUND: Duration = Duration::from_secs(10);
/// The least time between two questions for a node's memory, each of which starts a command on the node.
const MEMORY_EVERY: Duration = Duration::from_secs(5);

/// The least time between two questions for how large records are, which a node estimates anew every five minutes.
const DATA_EVERY: Duration = Duration::from_secs(60);
/// For a node to tell that.
const DATA_BOUND: Duration = Duration::from_secs(3);
/// Ranges whose estimates are looked at, of each node: of those of many tables some are enough.
const ESTIMATES_MAX: usize = 5_000;

/// The views of operations that a node coordinates, and the kind that each counts: each operation is counted by one node.
const VIEWS: [(&str, usize); 3] = [
    ("coordinator_read_latency", READS),
    ("coordinator_write_latency", UPDATES),
    ("coordinator_scan_latency", SCANS),
];

/// The share of a machine's memory that is not available to a program that asks for more.
const MEMORY: &str = "awk '/^MemTotal:/ {t=$2} /^MemAvailable:/ {a=$2} END {if (t > 0) printf \"%.4f\", 1 - a / t}' /proc/meminfo\n";

/// Counters of one node for one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counter {
    count: u64,
    /// Weighted by the counts of the tables.
    median: f64,
    slowest: f64,
}

/// What one node told.
#[derive(Clone, Debug, Default, PartialEq)]
struct Told {
    counters: [Counter; KINDS],
    memory: Option<f64>,
}

/// A node, and what it told last.
struct Node {
    access: NodeAccess,
    session: Option<Session>,
    last: Option<[u64; KINDS]>,
    was_missed: bool,
    /// When it was asked for its memory last.
    asked_memory: Option<Instant>,
    /// When it was asked how much data it has last, and what it told: bytes, and partitions.
    asked_data: Option<Instant>,
    data: (f64, f64),
}

/// Looks at the counters of a cluster's nodes.
pub struct Observer {
    uri: Uri,
    /// The table that is looked at, as keyspace and name; without it all tables of clients.
    table: Option<(String, String)>,
    nodes: Vec<Node>,
    looked: Instant,
}

impl Observer {
    /// Looks for the first time.
    ///
    /// # Errors
    /// No node answers.
    pub async fn begin(file: &ClusterFile, table: Option<(String, String)>) -> Result<Self> {
        let node = |access: &NodeAccess| Node {
            access: access.clone(),
            session: None,
            last: None,
            was_missed: false,
            asked_memory: None,
            asked_data: None,
            data: (0.0, 0.0),
        };
        let nodes = file.nodes.iter().map(node).collect();
        let looked = Instant::now();
        let mut observer = Self { uri: file.uri.clone(), table, nodes, looked };
        let first = observer.look().await;
        if first.missed.len() == observer.nodes.len() {
            let (name, why) = first.missed.into_iter().next().unwrap_or_default();
            return Err(Error::precondition(
                format!("no node tells what clients ask for; {name}: {why}"),
                "are the nodes up, and may this user read system_views?",
            ));
        }
        Ok(observer)
    }

    /// What each node tells, in their order, and what it counted since the last look.
    async fn each(&mut self) -> Vec<Result<(Told, [u64; KINDS])>> {
        let (uri, table) = (&self.uri, self.table.as_ref());
        let looks = self.nodes.iter_mut().map(|node| async move {
            let told = tokio::time::timeout(NODE_BOUND, told(node, uri, table)).await;
            let told = told.unwrap_or_else(|_| {
                Err(Error::Command {
                    node: node.access.name.clone(),
                    doing: "reading its counters".into(),
                    said: format!("no answer within {} s", NODE_BOUND.as_secs()),
                })
            });
            if told.is_err() {
                // It is connected to anew: its address may belong to another process by then.
                node.session = None;
            }
            told
        });
        let all = join_all(looks).await;
        let counted = |(node, told): (&mut Node, Result<Told>)| {
            let told = told?;
            let counts = told.counters.map(|counter| counter.count);
            let new = node.last.replace(counts).map_or([0; KINDS], |last| since(last, counts));
            Ok((told, new))
        };
        self.nodes.iter_mut().zip(all).map(counted).collect()
    }

    /// What was counted since the last look.
    pub async fn look(&mut self) -> Observation {
        let all = self.each().await;
        let seconds = self.looked.elapsed().as_secs_f64();
        self.looked = Instant::now();
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

async fn told(node: &mut Node, uri: &Uri, table: Option<&(String, String)>) -> Result<Told> {
    if node.session.is_none() {
        node.session = Some(connect_to(node.access.address, uri).await?);
    }
    let session = node.session.as_ref().expect("it is connected");
    let mut told = Told::default();
    for (view, kind) in VIEWS {
        let statement = format!(
            "SELECT keyspace_name, table_name, count, p50th_ms, p99th_ms FROM system_views.{view}"
        );
        type Row = (String, String, i64, f64, f64);
        let all = rows::<Row>(session, "reading a node's counters", &statement, ()).await?;
        let is_asked = |(keyspace, name, ..): &&Row| match table {
            Some((of, table)) => (keyspace, name) == (of, table),
            None => !OWN.contains(&&**keyspace) && *keyspace != journal::KEYSPACE,
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
    if node.asked_data.is_none_or(|asked| asked.elapsed() >= DATA_EVERY) {
        node.asked_data = Some(Instant::now());
        // A node that tells none, or late, counts operations all the same.
        let estimated = tokio::time::timeout(DATA_BOUND, data(session, table)).await;
        node.data = estimated.ok().and_then(Result::ok).unwrap_or_default();
    }
    if node.asked_memory.is_some_and(|asked| asked.elapsed() < MEMORY_EVERY) {
        return Ok(told);
    }
    node.asked_memory = Some(Instant::now());
    // Another system than Linux does not tell it so.
    let memory = node.access.run("reading how much memory is in use", MEMORY, NODE_BOUND).await;
    told.memory = memory.ok().and_then(|text| text.trim().parse().ok());
    Ok(told)
}

/// The bytes of the data that a node has files of, and its partitions, as it estimates them range by range.
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
    let of_clients =
        |row: &&Row| !OWN.contains(&&*row.0) && row.0 != journal::KEYSPACE && row.3 > 0;
    let sums = all.iter().filter(of_clients).fold((0.0, 0.0), |(bytes, partitions), row| {
        (bytes + row.2 as f64 * row.3 as f64, partitions + row.3 as f64)
    });
    Ok(sums)
}
