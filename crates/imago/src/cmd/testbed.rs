//! `imago testbed`: real servers on this machine, which are started, inspected, given faults and
//! ended by name.

mod cluster_file;
mod up;

pub(in crate::cmd) use cluster_file::write_cluster_file;
pub(in crate::cmd) use up::cpu_percent;

use std::fmt::Write as _;

use clap::{Subcommand, ValueEnum};
use imago_testbed::Error;
use imago_testbed::supervisor::control::{self, Fault};
use imago_testbed::supervisor::launch::{self, Ended};
use imago_testbed::supervisor::registry::Registry;
use imago_testbed::supervisor::status::{self, Health, NodeStatus, Status};
use serde::Serialize;

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::table::table;

/// The command's arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Start a cluster or a server, and wait until it can be used.
    #[command(after_help = "\
The testbed runs in the background until `imago testbed down NAME`; with --foreground, until Ctrl-C. Servers listen on \
loopback addresses only, at ports that were free.

Examples:
  imago testbed up mongodb --name old --members 3 --auth
  imago testbed up mongodb --name new --shards 2
  imago testbed up redis --name cache
  imago testbed up redis --name slots --masters 3 --replicas 1
  imago testbed up kafka --name log --heap-mb 512
  imago testbed up postgres --name sql
  imago testbed up cassandra --name ring --nodes 3")]
    Up {
        #[command(subcommand)]
        database: up::Database,
    },
    /// Stop testbeds, and remove their data.
    #[command(
        after_help = "A testbed whose supervisor was killed is dead already; this removes what \
                            it left."
    )]
    Down(Down),
    /// Show one testbed: its connection strings, and each node as it is now.
    Status {
        /// The testbed's name.
        name: String,
    },
    /// List the running testbeds.
    List,
    /// Kill, stop, step down or restart a node of a testbed.
    Inject(Inject),
    /// Supervise a testbed for `up`, which runs this in the background.
    #[command(hide = true)]
    Keep {
        /// The specification, as JSON.
        #[arg(long)]
        spec: String,
    },
}

#[derive(Debug, clap::Args)]
struct Down {
    /// The testbed's name.
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    name: Option<String>,
    /// End all of them.
    #[arg(long)]
    all: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example: imago testbed inject old kill --node old-0")]
struct Inject {
    /// The testbed's name.
    name: String,
    /// The fault.
    #[arg(value_enum)]
    fault: FaultArg,
    /// To which node; `imago testbed status NAME` lists them.
    #[arg(long, value_name = "NODE")]
    node: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FaultArg {
    /// Kill it at once (kill -9).
    Kill,
    /// Ask it to end (SIGTERM), and wait until it is gone.
    Terminate,
    /// Stop it where it is (SIGSTOP): connections stay open and silent.
    Stop,
    /// Continue a stopped process (SIGCONT).
    Cont,
    /// Step down the primary of its replica set; for Redis, fail over to a replica.
    Stepdown,
    /// Start a killed one again, on the same port and data.
    Restart,
}

/// Runs the chosen action of `imago testbed`.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let registry = Registry::of_user();
    match args.action {
        Action::Up { database } => up::start(database, &registry, context).await,
        Action::Down(which) => end(which, &registry, context).await,
        Action::Status { name } => {
            let standing = registry.get(&name).map_err(failure)?;
            let status = status::query(&standing).await;
            context.output.result(&status, status_text)
        }
        Action::List => {
            let mut all = Vec::new();
            for name in registry.names().map_err(failure)? {
                // A testbed that ended meanwhile is left out.
                if let Some(standing) = registry.find(&name).map_err(failure)? {
                    all.push(status::query(&standing).await);
                }
            }
            context.output.result(&all, |all| list_text(all))
        }
        Action::Inject(inject) => inject_fault(inject, &registry, context).await,
        Action::Keep { spec } => up::keep(&spec, &registry, context).await,
    }
}

/// The outcome of stopping one testbed.
#[derive(Serialize)]
struct StoppedTestbed {
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
        match launch::down(&name, registry).await {
            Ok(ended) => all.push(StoppedTestbed { name, ended }),
            // With --all, a testbed that ended by itself meanwhile is no failure.
            Err(Error::NoSuchTestbed { .. }) if which.all => {}
            Err(error) => return Err(failure(error)),
        }
    }
    context.output.result(&all, |all| all.iter().map(downed_text).collect())
}

fn downed_text(downed: &StoppedTestbed) -> String {
    let how = match downed.ended {
        Ended::Orderly => "is down",
        Ended::Killed => "did not answer and was killed; what it left is removed",
        Ended::Removed => "was dead already; what it left is removed",
    };
    format!("{} {how}\n", downed.name)
}

/// The outcome of an injected fault: the testbed, its node, and the action in words.
#[derive(Serialize)]
struct InjectedFault {
    name: String,
    node: String,
    done: String,
}

async fn inject_fault(
    inject: Inject,
    registry: &Registry,
    context: &Context,
) -> Result<(), Failure> {
    let standing = registry.get(&inject.name).map_err(failure)?;
    let fault = match inject.fault {
        FaultArg::Kill => Fault::Kill,
        FaultArg::Terminate => Fault::Terminate,
        FaultArg::Stop => Fault::Stop,
        FaultArg::Cont => Fault::Cont,
        FaultArg::Stepdown => Fault::StepDown,
        FaultArg::Restart => Fault::Restart,
    };
    let done = control::inject(&standing, fault, &inject.node).await.map_err(failure)?;
    let harmed = InjectedFault { name: inject.name, node: inject.node, done };
    context.output.result(&harmed, |harmed| harmed.done.clone())
}

fn shape(database: &str, shards: Option<u32>, members: u32, auth: bool) -> String {
    let plural = |count: u32| if count == 1 { "" } else { "s" };
    match database {
        "mongodb" => {}
        "cassandra" => return format!("cassandra, {members} node{}", plural(members)),
        "redis" if let Some(masters) = shards => {
            let replicas = members - 1;
            let each = format!("{replicas} replica{} each", plural(replicas));
            return format!("redis cluster of {masters} masters, {each}");
        }
        _ => return format!("{database} server"),
    }
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
        shape(status.database, status.shards, status.members, status.auth),
        status.supervisor_pid,
        status.uri
    );
    if status.auth {
        _ = writeln!(text, "  admin uri  {}", status.admin_uri);
    }
    let rows = status.nodes.iter().map(node_row);
    text.push_str(&table(&["NODE", "STATE", "ADDRESS", "PID", "LOG"], rows, &[]));
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
    let address = std::net::SocketAddr::from((status.node.host, status.node.port)).to_string();
    [status.node.name.clone(), state.into(), address, pid, log]
}

fn list_text(all: &[Status]) -> String {
    if all.is_empty() {
        return "no testbed is up\n".into();
    }
    let rows = all.iter().map(|status| {
        [
            status.name.clone(),
            health_word(status.health).into(),
            shape(status.database, status.shards, status.members, status.auth),
            status.supervisor_pid.to_string(),
        ]
    });
    table(&["NAME", "STATE", "SHAPE", "SUPERVISOR"], rows, &[])
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

pub(super) fn failure(error: Error) -> Failure {
    let (exit, code) = match &error {
        Error::BadName { .. } | Error::Spec(_) => (Exit::Usage, "testbed_spec"),
        Error::NoProgram { .. } | Error::BadProgram { .. } => (Exit::Precondition, "no_server"),
        Error::NameTaken { .. } => (Exit::Precondition, "testbed_exists"),
        Error::NoSuchTestbed { .. } => (Exit::Precondition, "no_testbed"),
        _ => (Exit::Failed, "testbed"),
    };
    Failure::from_error(exit, code, &error)
}
