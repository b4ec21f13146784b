//! Cluster files, written by the operator: they describe how the nodes of a cluster are reached.
//!
//! ```toml
//! database = "cassandra"
//! uri = "cassandra://10.0.0.1:9042,10.0.0.2:9042"
//! # {name} and {host} stand for those of the node.
//! shell = "ssh {name} sudo sh"
//! configuration = "/etc/cassandra/cassandra.yaml"
//! nodetool = "nodetool"
//! # Only to change the heap.
//! jvm_options = "/etc/cassandra/jvm-server.options"
//! stop = "systemctl stop cassandra"
//! start = "systemctl start cassandra"
//!
//! [[node]]
//! name = "cas-1"
//! address = "10.0.0.1:9042"
//! ```
//!
//! For Redis: `database = "redis"`, `redis://`, the path of `redis.conf`, and neither `nodetool` nor `jvm_options`.
//!
//! Every operation on a node goes through one program, the `shell`: it executes a script from its standard input, which
//! runs the other commands. Each command can be overridden for a node in its own table, and so can two limits:
//! `drain_max_s`, the time that a node may take to flush its memtables (180 s by default), and `look_max_s`, the time
//! allowed for an inspection of a node (by default 20 s for Cassandra and 3 s for Redis; six times that for nodes that
//! answer slowly).

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use super::Database;
use super::error::{Error, Result};
use super::uri::Uri;

/// Content of a cluster file, before validation.
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

/// One table `[[node]]` of a cluster file, before validation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenNode {
    name: String,
    address: String,
    #[serde(flatten)]
    commands: Commands,
}

/// Commands and limits of a cluster file, for all nodes or, in a node's own table, for that node.
#[derive(Clone, Debug, Default, Deserialize)]
struct Commands {
    shell: Option<String>,
    configuration: Option<String>,
    nodetool: Option<String>,
    jvm_options: Option<String>,
    stop: Option<String>,
    start: Option<String>,
    drain_max_s: Option<u64>,
    look_max_s: Option<u64>,
}

/// Default of a cluster file's `drain_max_s` (the time that a node may take to flush its memtables), in seconds.
const DRAIN_MAX_S: u64 = 180;

/// Validated content of a cluster file: a cluster, and how its nodes are reached.
#[derive(Clone, Debug)]
pub struct ClusterFile<D: Database> {
    /// Connection string of the cluster, for clients.
    pub uri: Uri<D>,
    /// Nodes of the cluster in the file's order, at least one.
    pub nodes: Vec<NodeAccess>,
}

/// How one node of a cluster, and the machine it runs on, are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAccess {
    /// Name of the node in the cluster file, for messages and for its commands.
    pub name: String,
    /// Address at which the node accepts clients.
    pub address: SocketAddr,
    /// Command that executes a script, from its standard input, on the node's machine.
    pub shell: String,
    /// Path of `cassandra.yaml` or `redis.conf` on the node's machine.
    pub configuration: String,
    /// Command of Cassandra's administration tool on the node's machine; None for Redis.
    pub nodetool: Option<String>,
    /// Path of the JVM's options file on the node's machine; required only to change the heap size.
    pub jvm_options: Option<String>,
    /// Shell command that stops the node, and returns when it has stopped.
    pub stop: String,
    /// Shell command that starts the node.
    pub start: String,
    /// Maximum time for which the node may flush its memtables before it is stopped; it is stopped afterwards in any
    /// case.
    pub drain_max: Duration,
    /// Minimum time allowed for an inspection of the node, which is extended if the node answers slowly (Cassandra);
    /// None: the database's default.
    pub look_max: Option<Duration>,
}

/// Returns the name of the database that a cluster file is for.
///
/// # Errors
/// Fails if the file cannot be read, or does not name a database.
pub fn database(path: &Path) -> Result<String> {
    #[derive(Deserialize)]
    struct Named {
        database: String,
    }
    let named: Result<Named> = toml::from_str(&text_of(path)?)
        .map_err(|error| Error::Usage(error.to_string().trim_end().to_owned()));
    named.map(|named| named.database).map_err(|error| in_file(path, error))
}

fn text_of(path: &Path) -> Result<String> {
    std::fs::read_to_string(path)
        .map_err(|cause| Error::Usage(format!("cannot read {}: {cause}", path.display())))
}

/// Adds the path of the cluster file to an error of the user.
fn in_file(path: &Path, error: Error) -> Error {
    match error {
        Error::Usage(why) => Error::Usage(format!("{}: {why}", path.display())),
        other => other,
    }
}

impl<D: Database> ClusterFile<D> {
    /// Reads a cluster file, and validates it for the database `D`.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is invalid; the message has the place and the reason.
    pub fn read(path: &Path) -> Result<Self> {
        Self::parse(&text_of(path)?).map_err(|error| in_file(path, error))
    }

    fn parse(text: &str) -> Result<Self> {
        let usage = |why: String| Error::Usage(why);
        let written: Written =
            toml::from_str(text).map_err(|error| usage(error.to_string().trim_end().to_owned()))?;
        if written.database != D::NAME {
            return Err(usage(format!(
                "database is \"{}\", and it must be \"{}\"",
                written.database,
                D::NAME
            )));
        }
        let uri: Uri<D> = written.uri.parse()?;
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
            let nodetool = match D::HAS_NODETOOL {
                true => Some(filled(commands.nodetool, &all.nodetool, "nodetool")?),
                false => None,
            };
            let jvm_options = commands.jvm_options.or_else(|| all.jvm_options.clone());
            if jvm_options.is_some() && !D::HAS_NODETOOL {
                return Err(usage(format!("jvm_options is not an option for {}", D::NAME)));
            }
            let jvm_options =
                jvm_options.map(|path| path.replace("{name}", &name).replace("{host}", &host));
            let shell = all.shell.clone().or_else(|| Some("sh".into()));
            nodes.push(NodeAccess {
                shell: filled(commands.shell, &shell, "shell")?,
                configuration: filled(commands.configuration, &all.configuration, "configuration")?,
                nodetool,
                jvm_options,
                stop: filled(commands.stop, &all.stop, "stop")?,
                start: filled(commands.start, &all.start, "start")?,
                drain_max: Duration::from_secs(
                    commands.drain_max_s.or(all.drain_max_s).unwrap_or(DRAIN_MAX_S),
                ),
                look_max: look_max(commands.look_max_s.or(all.look_max_s), &name)?,
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

/// Checks that the time limit for inspections of the node `name` is between a second and an hour.
fn look_max(seconds: Option<u64>, name: &str) -> Result<Option<Duration>> {
    match seconds {
        Some(seconds) if !(1..=3_600).contains(&seconds) => Err(Error::Usage(format!(
            "look_max_s of node {name} is {seconds}, and it must be from 1 to 3600"
        ))),
        seconds => Ok(seconds.map(Duration::from_secs)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cassandra::Cassandra;
    use crate::redis::Redis;

    fn parse(text: &str) -> Result<ClusterFile<Cassandra>> {
        ClusterFile::parse(text)
    }

    const FILE: &str = r#"
database = "cassandra"
uri = "cassandra://10.0.0.1:9042"
shell = "ssh {name} sudo sh"
configuration = "/etc/cassandra/cassandra.yaml"
nodetool = "nodetool -h {host}"
jvm_options = "/etc/cassandra/{name}/jvm-server.options"
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
        let file = parse(FILE).unwrap();
        let [first, second] = &file.nodes[..] else { panic!("{:?}", file.nodes) };
        assert_eq!(first.shell, "ssh cas-1 sudo sh");
        assert_eq!(first.nodetool.as_deref(), Some("nodetool -h 10.0.0.1"));
        assert_eq!(second.jvm_options.as_deref(), Some("/etc/cassandra/cas-2/jvm-server.options"));
        assert_eq!(second.shell, "ssh -p 2222 ops@cas-2 sudo sh");
        assert_eq!(second.address, "10.0.0.2:9042".parse().unwrap());
        let text =
            FILE.replacen("[[node]]", "drain_max_s = 900\n\n[[node]]", 1) + "drain_max_s = 60\n";
        let bounds = ClusterFile::<Cassandra>::parse(&text)
            .unwrap()
            .nodes
            .into_iter()
            .map(|node| node.drain_max);
        assert_eq!(bounds.collect::<Vec<_>>(), [900, 60].map(Duration::from_secs));
        assert_eq!((first.drain_max, first.look_max), (Duration::from_secs(180), None));
        let text = FILE.replacen("[[node]]", "look_max_s = 90\n\n[[node]]", 1);
        assert_eq!(parse(&text).unwrap().nodes[0].look_max, Some(Duration::from_secs(90)));
    }

    #[test]
    fn a_cluster_of_redis_needs_no_nodetool() {
        let text = FILE.replace("\"cassandra\"", "\"redis\"").replace("cassandra://", "redis://");
        let text = text.replace("nodetool = \"nodetool -h {host}\"\n", "");
        let error = ClusterFile::<Redis>::parse(&text).unwrap_err().to_string();
        assert!(error.contains("jvm_options is not an option for redis"), "{error}");
        let text: Vec<&str> =
            text.lines().filter(|line| !line.starts_with("jvm_options")).collect();
        let file: ClusterFile<Redis> = ClusterFile::parse(&text.join("\n")).unwrap();
        assert_eq!(file.nodes[1].stop, "systemctl stop cassandra");
        assert!(file.nodes[1].nodetool.is_none());
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let misspelt = format!("{FILE}strat = \"systemctl start cassandra\"\n");
        let second_address = FILE.replace("10.0.0.2:9042", "10.0.0.1:9042");
        let no_port = FILE.replace("\"10.0.0.2:9042\"", "\"cas-2\"");
        for (text, said) in [
            ("database = ".to_owned(), "TOML"),
            (FILE.replace("\"cassandra\"", "\"mongodb\""), "must be \"cassandra\""),
            (FILE.replace("stop = ", "halt = "), "halt"),
            (FILE.replace("stop = \"systemctl stop cassandra\"", ""), "node cas-1 has no stop"),
            (FILE.replace("cassandra://", "http://"), "cassandra://host:port"),
            (second_address, "is there twice"),
            (misspelt, "strat"),
            (format!("{FILE}look_max_s = 0\n"), "look_max_s of node cas-2 is 0"),
            (no_port, "must be IP:PORT"),
            (FILE.split("[[node]]").next().unwrap().to_owned(), "no [[node]]"),
        ] {
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(said), "{said}: {error}");
        }
    }
}
