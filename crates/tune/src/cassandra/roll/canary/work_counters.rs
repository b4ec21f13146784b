//! The work that each Cassandra node has executed, by counters of its JMX interface: number and total duration of
//! operations.
//!
//! Both only grow after the node's start, so that the work of a window is the difference of two readings. (The
//! percentiles in the node's own tables cover the past minutes, and hardly change from one reading to the next.)

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::try_join_all;
use imago_plan::tune::canary::{Window, Work};

use super::super::super::ClusterFile;
use super::super::super::error::{Error, Result};
use super::super::super::journal;
use super::super::super::nodetool::nodetool;
use super::super::super::ring::SYSTEM_KEYSPACES;
use crate::cluster::NodeAccess;

/// Timeout of one reading of a node's work, which starts a Java program on the node: half a minute was exceeded on
/// processors that other programs used.
const READING_BOUND: Duration = Duration::from_secs(120);
/// `nodetool` command that reads a node's work counters of all keyspaces.
const READ: &str = "sjk mx -mg -all -b 'org.apache.cassandra.metrics:type=Keyspace,keyspace=*,name=*Latency' -f Count";
/// Kinds of work on a node's own data, as prefixes of the counters' names.
const KINDS: [&str; 3] = ["Read", "Write", "Range"];

/// Work of one node since the node's start, by the kinds of work of [`KINDS`].
type Done = [Work; KINDS.len()];

/// Reads the work of all nodes since their start, in the order of the cluster file.
async fn all(file: &ClusterFile) -> Result<Vec<Done>> {
    let read = |node: &NodeAccess| {
        let node = node.clone();
        async move { done(&node, &nodetool(&node, READ, READING_BOUND).await?) }
    };
    try_join_all(file.nodes.iter().map(read)).await
}

/// Parses the work counters of one node, and sums them over the keyspaces of clients.
fn done(node: &NodeAccess, text: &str) -> Result<Done> {
    let unreadable = |line: &str| Error::Command {
        node: node.name.clone(),
        doing: "reading what it has done".into(),
        said: format!("\"{line}\" is not a counter"),
    };
    let mut done = Done::default();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    while let Some(bean) = lines.next() {
        let properties: BTreeMap<&str, &str> = bean
            .split_once(':')
            .map(|(_, properties)| properties.split(',').filter_map(|one| one.split_once('=')))
            .into_iter()
            .flatten()
            .collect();
        let (Some(keyspace), Some(name)) = (properties.get("keyspace"), properties.get("name"))
        else {
            return Err(unreadable(bean));
        };
        let count = lines.next().ok_or_else(|| unreadable(bean))?;
        let count: u64 = count.parse().map_err(|_| unreadable(count))?;
        if SYSTEM_KEYSPACES.contains(keyspace) || *keyspace == journal::KEYSPACE {
            continue;
        }
        for (kind, done) in KINDS.iter().zip(&mut done) {
            match name.strip_prefix(kind) {
                Some("Latency") => done.count += count,
                Some("TotalLatency") => done.total_us += count,
                _ => {}
            }
        }
    }
    Ok(done)
}

/// Reader of the work of all nodes, window by window.
pub(super) struct Reader<'f> {
    file: &'f ClusterFile,
    last: Vec<Done>,
}

impl<'f> Reader<'f> {
    /// Takes the first reading of all nodes' work.
    ///
    /// # Errors
    /// Fails if a node does not answer.
    pub(super) async fn begin(file: &'f ClusterFile) -> Result<Self> {
        Ok(Self { file, last: all(file).await? })
    }

    /// Reads the work of all nodes, and returns the work of each since the previous reading.
    ///
    /// # Errors
    /// Fails if a node does not answer, or was restarted since the previous reading.
    pub(super) async fn window(&mut self) -> Result<Window> {
        let now = all(self.file).await?;
        let mut window = Vec::new();
        for ((node, now), last) in self.file.nodes.iter().zip(&now).zip(&self.last) {
            let since = |(now, last): (&Work, &Work)| {
                Some(Work {
                    count: now.count.checked_sub(last.count)?,
                    total_us: now.total_us.checked_sub(last.total_us)?,
                })
            };
            let work: Option<Vec<Work>> = now.iter().zip(last).map(since).collect();
            window.push(work.ok_or_else(|| {
                Error::failed(
                    format!("{} was restarted while it was compared with the others", node.name),
                    "find out why, and roll again",
                )
            })?);
        }
        self.last = now;
        Ok(window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> NodeAccess {
        let [name, address] = ["cassandra-1", "10.4.0.1:9042"];
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = format!(
            "database = \"cassandra\"\nuri = \"cassandra://{address}\"\n\
             configuration = \"/etc/cassandra/cassandra.yaml\"\nnodetool = \"nodetool\"\n\
             stop = \"true\"\nstart = \"true\"\n[[node]]\nname = \"{name}\"\naddress = \"{address}\"\n"
        );
        std::fs::write(file.path(), text).unwrap();
        ClusterFile::read(file.path()).unwrap().nodes.remove(0)
    }

    #[test]
    fn counters_of_clients_keyspaces_are_added_up_by_kind() {
        let bean = |keyspace: &str, name: &str, count: u64| {
            format!(
                "org.apache.cassandra.metrics:type=Keyspace,keyspace={keyspace},name={name}\n{count}\n"
            )
        };
        let text = [
            bean("shop", "ReadLatency", 8_137),
            bean("shop", "ReadTotalLatency", 6_058_715),
            bean("orders", "ReadLatency", 3),
            bean("shop", "CasCommitTotalLatency", 77),
            bean("shop", "IdealCLWriteTotalLatency", 99),
            bean("shop", "WriteTotalLatency", 12_270_300),
            bean("system", "ReadLatency", 40_000),
        ]
        .concat();
        let found = done(&node(), &text).unwrap();
        assert_eq!(found[0], Work { count: 8_140, total_us: 6_058_715 });
        assert_eq!(found[1], Work { count: 0, total_us: 12_270_300 });
        assert_eq!(found[2], Work::default());
    }

    #[test]
    fn what_is_no_counter_is_said() {
        for text in ["Unexpected error\n1\n", "a:keyspace=shop,name=ReadLatency\nmany\n"] {
            let error = done(&node(), text).unwrap_err().to_string();
            assert!(error.contains("cassandra-1"), "{error}");
        }
    }
}
