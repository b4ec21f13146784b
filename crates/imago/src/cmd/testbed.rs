//! `imago testbed`: real clusters on this machine, started, looked at, hurt and ended by name.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use imago_testbed::keeper;
use imago_testbed::keeper::control::{self, Fault};
use imago_testbed::keeper::launch::{self, Ended};
use imago_testbed::keeper::registry::{Registry, Standing};
use imago_testbed::keeper::status::{self, Health, NodeStatus, Status};
use imago_testbed::{ClusterSpec, Error};
use serde::Serialize;

use crate::context::Context;
use crate::exit::{Exit, Failure};

/// What may be typed.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Start a cluster and wait until it takes majority writes.
    Up(Up),
    /// End clusters: processes, data and all.
    #[command(after_help = "A cluster whose keeper was killed is dead already; this removes what \
                            it left.")]
    Down(Down),
    /// Show one cluster: its connection strings, and each node as it is now.
    Status {
        /// The cluster's name.
        name: String,
    },
    /// List the clusters that stand.
    List,
    /// Kill, stop, step down or restart a node of a cluster.
    Hurt(Hurt),
    /// Keep a cluster for `up`, which runs this in the background.
    #[command(hide = true)]
    Keep {
        /// What to build, as JSON.
        #[arg(long)]
        spec: String,
    },
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without --shards: one replica set. With it: a config replica set, S shards of M members, and a \
router; a real mongos where PATH or IMAGO_MONGOS has one, else Imago's own stand-in.

With --auth two users exist: an administrator (root), and an application user who is not root, so \
that a write block stops it. Both connection strings are printed, with their passwords.

The cluster stands in the background until `imago testbed down NAME`; with --foreground, until \
Ctrl-C. Servers listen on 127.0.0.1 only.

Example: imago testbed up mongodb --name old --members 3 --auth")]
struct Up {
    /// Which database.
    #[arg(value_enum)]
    database: Database,
    /// The cluster's name: a–z, 0–9 and `-`, beginning with a letter, at most 32.
    #[arg(long, value_name = "NAME")]
    name: String,
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
    /// Put data and logs below this folder instead of the system's temporary one.
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Stay in the foreground and end the cluster at Ctrl-C.
    #[arg(long)]
    foreground: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Database {
    /// MongoDB: a replica set or a sharded cluster.
    Mongodb,
}

#[derive(Debug, clap::Args)]
struct Down {
    /// The cluster's name.
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    name: Option<String>,
    /// End all clusters.
    #[arg(long)]
    all: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example: imago testbed hurt old kill --node old-0")]
struct Hurt {
    /// The cluster's name.
    name: String,
    /// What to do.
    #[arg(value_enum)]
    fault: Harm,
    /// To which node; `imago testbed status NAME` lists them.
    #[arg(long, value_name = "NODE")]
    node: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Harm {
    /// Kill it at once (kill -9).
    Kill,
    /// Stop it where it is (SIGSTOP): connections stay open and silent.
    Stop,
    /// Let a stopped one go on (SIGCONT).
    Cont,
    /// Have the primary of its replica set step down.
    Stepdown,
    /// Start a killed one again, on the same port and data.
    Restart,
}

fn parameter(typed: &str) -> Result<(String, String), String> {
    match typed.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("it must be NAME=VALUE".into()),
    }
}

/// Does what was asked.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let registry = Registry::of_user();
    match args.action {
        Action::Up(up) => Box::pin(start(up, &registry, context)).await,
        Action::Down(which) => Box::pin(end(which, &registry, context)).await,
        Action::Status { name } => {
            let standing = registry.get(&name).map_err(failure)?;
            let status = Box::pin(status::look(&standing)).await;
            context.output.result(&status, status_text)
        }
        Action::List => {
            let mut all = Vec::new();
            for name in registry.names().map_err(failure)? {
                // One that ends meanwhile does not stand any more.
                if let Some(standing) = registry.find(&name).map_err(failure)? {
                    all.push(Box::pin(status::look(&standing)).await);
                }
            }
            context.output.result(&all, |all| list_text(all))
        }
        Action::Hurt(hurt) => Box::pin(harm(hurt, &registry, context)).await,
        Action::Keep { spec } => Box::pin(keep(&spec, &registry, context)).await,
    }
}

async fn start(up: Up, registry: &Registry, context: &Context) -> Result<(), Failure> {
    let Database::Mongodb = up.database;
    let foreground = up.foreground;
    let spec = ClusterSpec {
        name: up.name,
        shards: up.shards,
        members: up.members,
        auth: up.auth,
        cache_mb: up.cache_mb,
        oplog_mb: up.oplog_mb,
        parameters: up.parameters,
        folder: up.folder.map(std::path::absolute).transpose().map_err(|cause| {
            Failure::new(Exit::Usage, "folder", "the folder has no absolute path").because(&cause)
        })?,
        ..ClusterSpec::default()
    };
    // What is wrong with these is the caller's to mend: find it before anything is started.
    spec.check().map_err(failure)?;
    imago_testbed::find_mongod().map_err(failure)?;
    if foreground {
        let ready = |standing: &Standing| {
            let printed = context.output.result(&Summary::of(standing), summary_text);
            printed.map_err(|cause| Error::Io {
                doing: "print where the cluster is".into(),
                source: std::io::Error::other(cause.to_string()),
            })
        };
        let stop = context.cancel.cancelled();
        return Box::pin(keeper::keep(spec, registry, ready, stop)).await.map_err(failure);
    }
    let command = keeper_command(&spec)?;
    let standing = tokio::select! {
        standing = Box::pin(launch::up(&spec, registry, command)) => standing.map_err(failure)?,
        () = context.cancel.cancelled() => return Err(Failure::new(
            Exit::Interrupted,
            "interrupted",
            format!("interrupted: the testbed {} takes down what it had started", spec.name),
        )),
    };
    context.output.result(&Summary::of(&standing), summary_text)
}

fn keeper_command(spec: &ClusterSpec) -> Result<tokio::process::Command, Failure> {
    let cannot = |cause: &(dyn std::error::Error + 'static)| {
        Failure::new(Exit::Failed, "keeper", "cannot start a keeper").because(cause)
    };
    let program = std::env::current_exe().map_err(|cause| cannot(&cause))?;
    let spec = serde_json::to_string(spec).map_err(|cause| cannot(&cause))?;
    let mut command = tokio::process::Command::new(program);
    command.args(["testbed", "keep", "--spec", &spec]);
    Ok(command)
}

async fn keep(spec: &str, registry: &Registry, context: &Context) -> Result<(), Failure> {
    let spec: ClusterSpec = serde_json::from_str(spec).map_err(|cause| {
        Failure::new(Exit::Usage, "spec", "--spec holds no specification").because(&cause)
    })?;
    let stop = context.cancel.cancelled();
    Box::pin(launch::keep_launched(spec, registry, stop)).await.map_err(failure)
}

/// What became of one cluster.
#[derive(Serialize)]
struct Downed {
    name: String,
    ended: Ended,
}

async fn end(which: Down, registry: &Registry, context: &Context) -> Result<(), Failure> {
    let names = match which.name {
        Some(name) => vec![name],
        None => registry.names().map_err(failure)?,
    };
    let mut all = Vec::new();
    for name in names {
        match Box::pin(launch::down(&name, registry)).await {
            Ok(ended) => all.push(Downed { name, ended }),
            // With --all, one that ended by itself meanwhile is no failure.
            Err(Error::NoSuchTestbed { .. }) if which.all => {}
            Err(error) => return Err(failure(error)),
        }
    }
    context.output.result(&all, |all| all.iter().map(downed_text).collect())
}

fn downed_text(downed: &Downed) -> String {
    let how = match downed.ended {
        Ended::Orderly => "is down",
        Ended::Killed => "did not answer and was killed; what it left is removed",
        Ended::Removed => "was dead already; what it left is removed",
    };
    format!("{} {how}\n", downed.name)
}

/// What came of a fault.
#[derive(Serialize)]
struct Harmed {
    name: String,
    node: String,
    done: String,
}

async fn harm(hurt: Hurt, registry: &Registry, context: &Context) -> Result<(), Failure> {
    let standing = registry.get(&hurt.name).map_err(failure)?;
    let fault = match hurt.fault {
        Harm::Kill => Fault::Kill,
        Harm::Stop => Fault::Stop,
        Harm::Cont => Fault::Cont,
        Harm::Stepdown => Fault::StepDown,
        Harm::Restart => Fault::Restart,
    };
    let done = Box::pin(control::hurt(&standing, fault, &hurt.node)).await.map_err(failure)?;
    let harmed = Harmed { name: hurt.name, node: hurt.node, done };
    context.output.result(&harmed, |harmed| harmed.done.clone())
}

/// A cluster that has just come up.
#[derive(Serialize)]
struct Summary<'a> {
    name: &'a str,
    uri: &'a str,
    admin_uri: &'a str,
    shards: Option<u32>,
    members: u32,
    auth: bool,
    keeper_pid: u32,
    nodes: Vec<&'a str>,
}

impl<'a> Summary<'a> {
    fn of(standing: &'a Standing) -> Self {
        Self {
            name: &standing.spec.name,
            uri: &standing.uri,
            admin_uri: &standing.admin_uri,
            shards: standing.spec.shards,
            members: standing.spec.members,
            auth: standing.spec.auth,
            keeper_pid: standing.keeper.pid,
            nodes: standing.nodes.iter().map(|node| &*node.name).collect(),
        }
    }
}

fn summary_text(summary: &Summary<'_>) -> String {
    let mut text = format!(
        "{} is up: {}\n  uri        {}\n",
        summary.name,
        shape(summary.shards, summary.members, summary.auth),
        summary.uri
    );
    if summary.auth {
        _ = writeln!(text, "  admin uri  {}", summary.admin_uri);
    }
    _ = writeln!(text, "  nodes      {}", summary.nodes.join(", "));
    text
}

fn shape(shards: Option<u32>, members: u32, auth: bool) -> String {
    let plural = |count: u32| if count == 1 { "" } else { "s" };
    let set = format!("{members} member{}", plural(members));
    let shape = match shards {
        None => format!("replica set of {set}"),
        Some(shards) => format!("{shards} shard{} of {set}, config, router", plural(shards)),
    };
    if auth { format!("{shape}, with authorisation") } else { shape }
}

fn status_text(status: &Status) -> String {
    let mut text = format!(
        "{} is {}: {}, kept by process {}\n  uri        {}\n",
        status.name,
        health_word(status.health),
        shape(status.shards, status.members, status.auth),
        status.keeper_pid,
        status.uri
    );
    if status.auth {
        _ = writeln!(text, "  admin uri  {}", status.admin_uri);
    }
    let rows = status.nodes.iter().map(node_row).collect();
    text.push_str(&table(["NODE", "STATE", "PORT", "PID", "LOG"], rows));
    text
}

fn node_row(status: &NodeStatus) -> [String; 5] {
    use imago_testbed::process::Liveness;
    let state = match (status.liveness, status.state) {
        (Liveness::Gone, _) => "down",
        (Liveness::Stopped, _) => "stopped",
        (Liveness::Running, None) => "silent",
        (Liveness::Running, Some("neither")) => "no role yet",
        (Liveness::Running, Some(state)) => state,
    };
    let pid = status.node.process.map_or_else(|| "-".into(), |process| process.pid.to_string());
    let log = status.node.log.as_ref().map_or_else(|| "-".into(), |log| log.display().to_string());
    [status.node.name.clone(), state.into(), status.node.port.to_string(), pid, log]
}

fn list_text(all: &[Status]) -> String {
    if all.is_empty() {
        return "no testbed is up\n".into();
    }
    let rows = all.iter().map(|status| {
        [
            status.name.clone(),
            health_word(status.health).into(),
            shape(status.shards, status.members, status.auth),
            status.keeper_pid.to_string(),
        ]
    });
    table(["NAME", "STATE", "SHAPE", "KEEPER"], rows.collect())
}

fn health_word(health: Health) -> &'static str {
    match health {
        Health::Starting => "starting",
        Health::Up => "up",
        Health::Impaired => "impaired",
        Health::Stopped => "stopped",
        Health::Dead => "dead",
    }
}

/// Columns as wide as their widest cell; the last one is not padded.
fn table<const COLUMNS: usize>(head: [&str; COLUMNS], rows: Vec<[String; COLUMNS]>) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..COLUMNS).map(width).collect();
    let line = |cells: [&str; COLUMNS]| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        format!("{}\n", padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    let body = rows.iter().map(|row| line(std::array::from_fn(|column| &*row[column])));
    std::iter::once(line(head)).chain(body).collect()
}

fn failure(error: Error) -> Failure {
    let (exit, code) = match &error {
        Error::BadName { .. } | Error::Spec(_) => (Exit::Usage, "testbed_spec"),
        Error::NoProgram { .. } | Error::BadProgram { .. } => (Exit::Precondition, "no_server"),
        Error::NameTaken { .. } => (Exit::Precondition, "testbed_exists"),
        Error::NoSuchTestbed { .. } => (Exit::Precondition, "no_testbed"),
        _ => (Exit::Failed, "testbed"),
    };
    Failure::from_error(exit, code, &error)
}
