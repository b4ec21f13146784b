//! `imago testbed up`: the options for each database, and the start of its servers.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use imago_testbed::supervisor;
use imago_testbed::supervisor::launch;
use imago_testbed::supervisor::registry::{Registry, RegistryEntry};
use imago_testbed::{CassandraSpec, ClusterSpec, ContentSpec, Error, RedisClusterSpec, SingleSpec};
use serde::Serialize;

use super::cluster_file::write_cluster_file;
use super::{failure, shape};
use crate::context::Context;
use crate::exit::{Exit, Failure};

/// The database, with its options.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Database {
    /// MongoDB: a replica set, or a sharded cluster.
    Mongodb(Mongodb),
    /// Redis: one server, or a Redis Cluster; with an append-only file.
    Redis(Redis),
    /// Kafka: one server, broker and controller (KRaft) in one.
    Kafka(Kafka),
    /// PostgreSQL: one server.
    Postgres(Postgres),
    /// Cassandra: a cluster of nodes, in racks if asked for.
    Cassandra(Cassandra),
}

/// The options that all of them share.
#[derive(Debug, clap::Args)]
struct LaunchArgs {
    /// The testbed's name: a–z, 0–9 and `-`, beginning with a letter, at most 32.
    #[arg(long, value_name = "NAME")]
    name: String,
    /// Put data and logs below this folder instead of the system's temporary one.
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Stay in the foreground and end everything at Ctrl-C.
    #[arg(long)]
    foreground: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without --shards: one replica set. With it: a config replica set, S shards of M members, and a \
router; a real mongos where PATH or IMAGO_MONGOS has one, else Imago's own stand-in.

With --auth two users exist: an administrator (root), and an application user who is not root, so \
that a write block stops it. Both connection strings are printed, with their passwords.

Example: imago testbed up mongodb --name old --members 3 --auth")]
pub(super) struct Mongodb {
    #[command(flatten)]
    kept: LaunchArgs,
    /// Make a sharded cluster of this many shards.
    #[arg(long, value_name = "S")]
    shards: Option<u32>,
    /// Members of the replica set, or of each shard.
    #[arg(long, value_name = "M", default_value_t = 1)]
    members: u32,
    /// Require authorisation: a key file, an administrator, and a user who is not root.
    #[arg(long)]
    auth: bool,
    /// The cache of each member, in MB; at least 256.
    #[arg(long, value_name = "MB", default_value_t = 256)]
    cache_mb: u32,
    /// The oplog of each member, in MB; by default the server decides.
    #[arg(long, value_name = "MB")]
    oplog_mb: Option<u32>,
    /// Set a server parameter on each member, for example ttlMonitorSleepSecs=1.
    #[arg(long = "parameter", value_name = "NAME=VALUE", value_parser = parameter)]
    parameters: Vec<(String, String)>,
    /// CPU limit of each member with data, in processors, for example 0.3, by a control group; by
    /// default none.
    #[arg(long, value_name = "SHARE", value_parser = cpu_percent)]
    cpu_share: Option<u16>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The server is the one named by IMAGO_REDIS, else the redis-server on PATH. A killed one comes back \
with everything that it acknowledged.

With --masters: a Redis Cluster, each node on a loopback address of its own. The first nodes are the \
masters. A master that is killed is replaced by a replica within about five seconds; what no replica \
had yet is lost then, as Redis acknowledges a write before replicas have it.

With --cpu-share a server is slower than the clients that load it. It needs control groups, and a user \
who may make them (root); the output says if the servers have no share.

Examples:
  imago testbed up redis --name cache --memory-mb 64 --cpu-share 0.3
  imago testbed up redis --name slots --masters 3 --replicas 1")]
pub(super) struct Redis {
    #[command(flatten)]
    kept: LaunchArgs,
    /// Make a Redis Cluster of this many masters, 3 at least.
    #[arg(long, value_name = "M")]
    masters: Option<u8>,
    /// Replicas of each master of a cluster.
    #[arg(long, value_name = "R", default_value_t = 1, requires = "masters")]
    replicas: u8,
    /// Limit of the data of each server, in MB; writes are refused beyond.
    #[arg(long, value_name = "MB", default_value_t = SingleSpec::MEMORY_MB)]
    memory_mb: u32,
    /// CPU limit of each server, in processors, for example 0.3, by a control group; by default
    /// none.
    #[arg(long, value_name = "SHARE", value_parser = cpu_percent)]
    cpu_share: Option<u16>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The server is the one whose jars lie in IMAGO_KAFKA, else the one that `make setup` fetched; the \
Java (17 or newer) is the one named by IMAGO_JAVA, else that on PATH. The connection string is what \
clients call bootstrap servers.

Example: imago testbed up kafka --name log")]
pub(super) struct Kafka {
    #[command(flatten)]
    kept: LaunchArgs,
    /// The heap, in MB.
    #[arg(long, value_name = "MB", default_value_t = SingleSpec::MEMORY_MB)]
    heap_mb: u32,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The server is the `postgres` that IMAGO_POSTGRES names, else the one on PATH, else the newest of Debian's packages. It \
asks local users for no password. Where the testbed runs as root, the server runs as the user postgres.

Example: imago testbed up postgres --name sql")]
pub(super) struct Postgres {
    #[command(flatten)]
    kept: LaunchArgs,
    /// Shared buffers, in MB.
    #[arg(long, value_name = "MB", default_value_t = SingleSpec::MEMORY_MB)]
    shared_buffers_mb: u32,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The server is the one whose jars lie in IMAGO_CASSANDRA, else the one that `make setup` fetched; the \
Java (17 or newer) is the one named by IMAGO_JAVA, else that on PATH. Nodes have the same ports, each \
on a loopback address of its own, and start one after the other: about ten seconds each.

With --cpu-share a node that restarts does not starve the others. It needs control groups, and a user \
who may make them (root); the output says if the nodes have no share.

Example: imago testbed up cassandra --name ring --nodes 3 --racks 3 --cpu-share 0.6")]
pub(super) struct Cassandra {
    #[command(flatten)]
    kept: LaunchArgs,
    /// The number of nodes.
    #[arg(long, value_name = "N", default_value_t = 3)]
    nodes: u8,
    /// The number of racks, to which the nodes belong in turn.
    #[arg(long, value_name = "R", default_value_t = 1)]
    racks: u8,
    /// The heap of each node, in MB.
    #[arg(long, value_name = "MB", default_value_t = CassandraSpec::HEAP_MB)]
    heap_mb: u32,
    /// CPU limit of each node, in processors, for example 0.5, by a control group; by default none.
    #[arg(long, value_name = "SHARE", value_parser = cpu_percent)]
    cpu_share: Option<u16>,
}

/// Parses a number of processors, such as 0.5, and returns it in percent of one processor.
pub(in crate::cmd) fn cpu_percent(typed: &str) -> Result<u16, String> {
    let share: Option<f64> = typed.parse().ok().filter(|share| (0.0..=256.0).contains(share));
    let percent = share.map(|share| (share * 100.0).round() as u16);
    percent.ok_or_else(|| "it must be a number of processors, for example 0.5".into())
}

fn parameter(typed: &str) -> Result<(String, String), String> {
    match typed.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("it must be NAME=VALUE".into()),
    }
}

impl Database {
    /// Returns the specification of the testbed to start, and true if it runs in the foreground.
    fn spec(self) -> Result<(ContentSpec, bool), Failure> {
        Ok(match self {
            Self::Mongodb(up) => {
                let spec = ClusterSpec {
                    folder: up.kept.folder()?,
                    name: up.kept.name,
                    shards: up.shards,
                    members: up.members,
                    auth: up.auth,
                    cache_mb: up.cache_mb,
                    oplog_mb: up.oplog_mb,
                    parameters: up.parameters,
                    cpu_percent: up.cpu_share,
                    ..ClusterSpec::default()
                };
                (spec.into(), up.kept.foreground)
            }
            Self::Redis(Redis { kept, masters, replicas, memory_mb, cpu_share: cpu_percent }) => {
                let (folder, name) = (kept.folder()?, kept.name);
                let spec = match masters {
                    Some(masters) => {
                        RedisClusterSpec { name, masters, replicas, memory_mb, cpu_percent, folder }
                            .into()
                    }
                    None => {
                        let alone = SingleSpec::redis(&name);
                        SingleSpec { memory_mb, cpu_percent, folder, ..alone }.into()
                    }
                };
                (spec, kept.foreground)
            }
            Self::Kafka(up) => {
                let (folder, memory_mb) = (up.kept.folder()?, up.heap_mb);
                let spec = SingleSpec { folder, memory_mb, ..SingleSpec::kafka(&up.kept.name) };
                (spec.into(), up.kept.foreground)
            }
            Self::Postgres(up) => {
                let (folder, memory_mb) = (up.kept.folder()?, up.shared_buffers_mb);
                let spec = SingleSpec { folder, memory_mb, ..SingleSpec::postgres(&up.kept.name) };
                (spec.into(), up.kept.foreground)
            }
            Self::Cassandra(up) => {
                let (nodes, racks, heap_mb) = (up.nodes, up.racks, up.heap_mb);
                let folder = up.kept.folder()?;
                let (name, cpu_percent) = (up.kept.name, up.cpu_share);
                let spec = CassandraSpec { name, nodes, racks, heap_mb, cpu_percent, folder };
                (spec.into(), up.kept.foreground)
            }
        })
    }
}

impl LaunchArgs {
    fn folder(&self) -> Result<Option<PathBuf>, Failure> {
        let absolute = self.folder.as_ref().map(std::path::absolute).transpose();
        absolute.map_err(|cause| {
            Failure::new(Exit::Usage, "folder", "the folder has no absolute path").because(&cause)
        })
    }
}

/// Starts the requested servers, in the background or until Ctrl-C, and prints where they are.
pub(super) async fn start(
    database: Database,
    registry: &Registry,
    context: &Context,
) -> Result<(), Failure> {
    let (spec, foreground) = database.spec()?;
    // The caller can fix these errors, so they are reported before any server is started.
    spec.check().map_err(failure)?;
    spec.find_programs().map_err(failure)?;
    if foreground {
        let ready = |standing: &RegistryEntry| {
            let cluster_file = write_cluster_file(standing)?;
            let summary = Summary::of(standing, cluster_file.as_deref());
            let printed = context.output.result(&summary, summary_text);
            printed.map_err(|cause| Error::Io {
                doing: "print where the servers are".into(),
                source: std::io::Error::other(cause.to_string()),
            })
        };
        let stop = context.cancel.cancelled();
        return supervisor::supervise(spec, registry, ready, stop).await.map_err(failure);
    }
    let command = supervisor_command(&spec)?;
    let standing = tokio::select! {
        standing = Box::pin(launch::up(&spec, registry, command)) => standing.map_err(failure)?,
        () = context.cancel.cancelled() => return Err(Failure::new(
            Exit::Interrupted,
            "interrupted",
            format!("interrupted: the testbed {} takes down what it had started", spec.name()),
        )),
    };
    let cluster_file = write_cluster_file(&standing).map_err(failure)?;
    context.output.result(&Summary::of(&standing, cluster_file.as_deref()), summary_text)
}

fn supervisor_command(spec: &ContentSpec) -> Result<tokio::process::Command, Failure> {
    let cannot = |cause: &(dyn std::error::Error + 'static)| {
        Failure::new(Exit::Failed, "supervisor", "cannot start a supervisor").because(cause)
    };
    let program = std::env::current_exe().map_err(|cause| cannot(&cause))?;
    let spec = serde_json::to_string(spec).map_err(|cause| cannot(&cause))?;
    let mut command = tokio::process::Command::new(program);
    command.args(["testbed", "keep", "--spec", &spec]);
    Ok(command)
}

/// Runs, as the supervisor process, the testbed that [`start`] requested in another process; `spec` is its
/// specification as JSON.
pub(super) async fn keep(
    spec: &str,
    registry: &Registry,
    context: &Context,
) -> Result<(), Failure> {
    let spec: ContentSpec = serde_json::from_str(spec).map_err(|cause| {
        Failure::new(Exit::Usage, "spec", "--spec holds no specification").because(&cause)
    })?;
    let stop = context.cancel.cancelled();
    launch::supervise_launched(spec, registry, stop).await.map_err(failure)
}

/// The description of a testbed that has just started.
#[derive(Serialize)]
struct Summary<'a> {
    name: &'a str,
    database: &'a str,
    uri: &'a str,
    admin_uri: &'a str,
    shards: Option<u32>,
    members: u32,
    auth: bool,
    supervisor_pid: u32,
    nodes: Vec<&'a str>,
    /// The reason why the requested CPU limits are not applied; `None` if they are.
    cpu_share_missing: Option<&'a str>,
    /// The cluster file to pass to `imago tune roll`; `None` for a database that cannot be tuned.
    cluster_file: Option<&'a Path>,
}

impl<'a> Summary<'a> {
    fn of(standing: &'a RegistryEntry, cluster_file: Option<&'a Path>) -> Self {
        let spec = &standing.spec;
        Self {
            name: spec.name(),
            database: spec.database(),
            uri: &standing.uri,
            admin_uri: &standing.admin_uri,
            shards: spec.shards(),
            members: spec.members(),
            auth: spec.auth(),
            supervisor_pid: standing.supervisor.pid,
            nodes: standing.nodes.iter().map(|node| &*node.name).collect(),
            cpu_share_missing: standing.unshared.as_deref(),
            cluster_file,
        }
    }
}

fn summary_text(summary: &Summary<'_>) -> String {
    let mut text = format!(
        "{} is up: {}\n  uri        {}\n",
        summary.name,
        shape(summary.database, summary.shards, summary.members, summary.auth),
        summary.uri
    );
    if summary.auth {
        _ = writeln!(text, "  admin uri  {}", summary.admin_uri);
    }
    _ = writeln!(text, "  nodes      {}", summary.nodes.join(", "));
    if let Some(why) = summary.cpu_share_missing {
        _ = writeln!(text, "  CPU limits unavailable: {why}");
    }
    if let Some(file) = summary.cluster_file {
        _ = writeln!(text, "  file       {}", file.display());
    }
    text
}
