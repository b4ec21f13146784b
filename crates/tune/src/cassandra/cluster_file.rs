//! How the nodes of a cluster are reached: a file that its operator writes once.
//!
//! ```toml
//! database = "cassandra"
//! uri = "cassandra://10.0.0.1:9042,10.0.0.2:9042"
//! # {name} and {host} stand for those of the node.
//! shell = "ssh {name} sudo sh"
//! configuration = "/etc/cassandra/cassandra.yaml"
//! nodetool = "nodetool"
//! stop = "systemctl stop cassandra"
//! start = "systemctl start cassandra"
//!
//! [[node]]
//! name = "cas-1"
//! address = "10.0.0.1:9042"
//! ```
//!
//! Everything is done by one program on the node, the `shell`: it reads a script from its standard input, which runs the
//! other commands. Each of them can be another one for a node, in its own table; so can `drain_max_s`, the time that a node
//! may take to write down what it has in memory only (180 s without it).

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use super::error::{Error, Result};
use super::uri::Uri;

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    database: String,
    uri: String,
    #[serde(flatten)]
    commands: Commands,
    #[serde(default, rename = "node")]
    nodes: Vec<WrittenNode>,
}

#[derive(Debug, Deserialize)]
struct WrittenNode {
    name: String,
    address: String,
    #[serde(flatten)]
    commands: Commands,
}

/// The commands, for all nodes or for one.
#[derive(Clone, Debug, Default, Deserialize)]
struct Commands {
    shell: Option<String>,
    configuration: Option<String>,
    nodetool: Option<String>,
    stop: Option<String>,
    start: Option<String>,
    drain_max_s: Option<u64>,
}

/// For a node to write down what it has in memory only, unless the file says otherwise.
const DRAIN_MAX_S: u64 = 180;

/// A cluster and how its nodes are reached.
#[derive(Clone, Debug)]
pub struct ClusterFile {
    /// The connection string.
    pub uri: Uri,
    /// The nodes, one at least.
    pub nodes: Vec<NodeAccess>,
}

/// How one node is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAccess {
    /// Its name, for people.
    pub name: String,
    /// Its address for clients.
    pub address: SocketAddr,
    /// The program that runs scripts on its machine.
    pub shell: String,
    /// The path of its `cassandra.yaml` there.
    pub configuration: String,
    /// Its `nodetool`.
    pub nodetool: String,
    /// The command that ends it, and returns when it has ended.
    pub stop: String,
    /// The command that starts it.
    pub start: String,
    /// For how long it may drain before it is stopped all the same.
    pub drain_max: Duration,
}

impl ClusterFile {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or says something that makes no sense: the message says what and where.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|cause| Error::Usage(format!("cannot read {}: {cause}", path.display())))?;
        Self::parse(&text).map_err(|error| match error {
            Error::Usage(why) => Error::Usage(format!("{}: {why}", path.display())),
            other => other,
        })
    }

    fn parse(text: &str) -> Result<Self> {
        let usage = |why: String| Error::Usage(why);
        let written: Written =
            toml::from_str(text).map_err(|error| usage(error.to_string().trim_end().to_owned()))?;
        if written.database != "cassandra" {
            return Err(usage(format!(
                "database is \"{}\", and it must be \"cassandra\"",
                written.database
            )));
        }
        let uri: Uri = written.uri.parse()?;
        let mut nodes: Vec<NodeAccess> = Vec::new();
        for WrittenNode { name, address, commands } in written.nodes {
            let at = address.parse::<SocketAddr>().map_err(|_| {
                usage(format!(
                    "the address of node {name} is \"{address}\", and it must be IP:PORT"
                ))
            })?;
            let twice = nodes.iter().any(|other| other.name == name || other.address == at);
            if twice {
                return Err(usage(format!("node {name}, or its address {at}, is there twice")));
            }
            let all = &written.commands;
            let host = at.ip().to_string();
            let filled = |own: Option<String>, all: &Option<String>, what: &str| {
                let text = own.or_else(|| all.clone());
                let text = text.ok_or_else(|| usage(format!("node {name} has no {what}")))?;
                Ok::<_, Error>(text.replace("{name}", &name).replace("{host}", &host))
            };
            let shell = all.shell.clone().or_else(|| Some("sh".into()));
            nodes.push(NodeAccess {
                shell: filled(commands.shell, &shell, "shell")?,
                configuration: filled(commands.configuration, &all.configuration, "configuration")?,
                nodetool: filled(commands.nodetool, &all.nodetool, "nodetool")?,
                stop: filled(commands.stop, &all.stop, "stop")?,
                start: filled(commands.start, &all.start, "start")?,
                drain_max: Duration::from_secs(
                    commands.drain_max_s.or(all.drain_max_s).unwrap_or(DRAIN_MAX_S),
                ),
                name,
                address: at,
            });
        }
        if nodes.is_empty() {
            return Err(usage("it names no [[node]]".into()));
        }
        Ok(Self { uri, nodes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
database = "cassandra"
uri = "cassandra://10.0.0.1:9042"
shell = "ssh {name} sudo sh"
configuration = "/etc/cassandra/cassandra.yaml"
nodetool = "nodetool -h {host}"
stop = "systemctl stop cassandra"
start = "systemctl start cassandra"

[[node]]
name = "cas-1"
address = "10.0.0.1:9042"

[[node]]
name = "cas-2"
address = "10.0.0.2:9042"
shell = "ssh -p 2222 ops@cas-2 sudo sh"
"#;

    #[test]
    fn commands_hold_for_all_nodes_unless_a_node_has_its_own() {
        let file = ClusterFile::parse(FILE).unwrap();
        let [first, second] = &file.nodes[..] else { panic!("{:?}", file.nodes) };
        assert_eq!(first.shell, "ssh cas-1 sudo sh");
        assert_eq!(first.nodetool, "nodetool -h 10.0.0.1");
        assert_eq!(second.shell, "ssh -p 2222 ops@cas-2 sudo sh");
        assert_eq!(second.address, "10.0.0.2:9042".parse().unwrap());
        let text =
            FILE.replacen("[[node]]", "drain_max_s = 900\n\n[[node]]", 1) + "drain_max_s = 60\n";
        let bounds =
            ClusterFile::parse(&text).unwrap().nodes.into_iter().map(|node| node.drain_max);
        assert_eq!(bounds.collect::<Vec<_>>(), [900, 60].map(Duration::from_secs));
        assert_eq!(first.drain_max, Duration::from_secs(180));
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let second_address = FILE.replace("10.0.0.2:9042", "10.0.0.1:9042");
        let no_port = FILE.replace("\"10.0.0.2:9042\"", "\"cas-2\"");
        for (text, said) in [
            ("database = ".to_owned(), "TOML"),
            (FILE.replace("\"cassandra\"", "\"mongodb\""), "must be \"cassandra\""),
            (FILE.replace("stop = ", "halt = "), "halt"),
            (FILE.replace("stop = \"systemctl stop cassandra\"", ""), "node cas-1 has no stop"),
            (FILE.replace("cassandra://", "http://"), "cassandra://host:port"),
            (second_address, "is there twice"),
            (no_port, "must be IP:PORT"),
            (FILE.split("[[node]]").next().unwrap().to_owned(), "no [[node]]"),
        ] {
            let error = ClusterFile::parse(&text).unwrap_err().to_string();
            assert!(error.contains(said), "{said}: {error}");
        }
    }
}
