//! The present state of testbeds: the kernel is asked about each process and each server about its
//! state; the registry only says where to look.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use serde::Serialize;

use crate::cassandra;
use crate::cluster::{NodeInfo, Role};
use crate::content::ContentSpec;
use crate::process::Liveness;
use crate::redis_cluster;
use crate::supervisor::registry::{Phase, Standing};
use crate::wire;

const PROBE_BOUND: Duration = Duration::from_secs(3);

/// A testbed's state in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// Its servers are being started.
    Starting,
    /// Every node answers, and every replica set has a primary.
    Up,
    /// The supervisor lives, but not every node answers or a replica set has no primary.
    Impaired,
    /// The supervisor is stopped by a signal.
    Stopped,
    /// The supervisor is gone, and the servers with it; `down` removes the remains.
    Dead,
}

/// One node as it is now.
#[derive(Debug, Clone, Serialize)]
pub struct NodeStatus {
    /// Which one.
    #[serde(flatten)]
    pub node: NodeInfo,
    /// The kernel's view of its process.
    pub liveness: Liveness,
    /// Its own state: `primary`, `secondary`, `router`, `neither`; in a Redis Cluster `master`, `replica`, or
    /// `unsettled` if the cluster is not well or the node has no link to its master; `serving` of another database;
    /// `None` if it does not answer.
    pub state: Option<&'static str>,
}

/// A standing testbed as it is now.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// Its state in one word.
    pub health: Health,
    /// The supervisor's process id.
    pub supervisor_pid: u32,
    /// Its database: `mongodb`, `redis`, `kafka`, `cassandra`.
    pub database: &'static str,
    /// Shards; `None` without any.
    pub shards: Option<u32>,
    /// Members of each replica set that holds data.
    pub members: u32,
    /// True if it has users and a key file.
    pub auth: bool,
    /// The application's connection string.
    pub uri: String,
    /// The administrator's connection string.
    pub admin_uri: String,
    /// Its nodes.
    pub nodes: Vec<NodeStatus>,
}

/// Looks at a standing testbed.
pub async fn look(standing: &Standing) -> Status {
    let looked = standing.nodes.iter().map(|node| look_at_node(&standing.spec, node));
    let nodes = join_all(looked).await;
    Status {
        name: standing.spec.name().to_owned(),
        health: health(standing.supervisor.liveness(), standing.phase, &nodes),
        supervisor_pid: standing.supervisor.pid,
        database: standing.spec.database(),
        shards: standing.spec.shards(),
        members: standing.spec.members(),
        auth: standing.spec.auth(),
        uri: standing.uri.clone(),
        admin_uri: standing.admin_uri.clone(),
        nodes,
    }
}

async fn look_at_node(spec: &ContentSpec, node: &NodeInfo) -> NodeStatus {
    let liveness = node.process.map_or(Liveness::Gone, |process| process.liveness());
    let state = match (liveness, spec) {
        (Liveness::Stopped | Liveness::Gone, _) => None,
        (Liveness::Running, ContentSpec::Cluster(_)) => {
            let hello = wire::hello(node.port, PROBE_BOUND).await.ok();
            let is_router = node.role == Role::Router;
            hello.map(|hello| if is_router { "router" } else { hello.state_name() })
        }
        (Liveness::Running, ContentSpec::Cassandra(_)) => {
            let address = SocketAddr::from((node.host, node.port));
            cassandra::ask_options(address, PROBE_BOUND).await.ok().map(|()| "serving")
        }
        (Liveness::Running, ContentSpec::Redis(_)) => {
            let address = SocketAddr::from((node.host, node.port));
            redis_cluster::state_of(address, PROBE_BOUND).await.ok()
        }
        (Liveness::Running, ContentSpec::Single(spec)) => {
            spec.engine.probe(node.port, PROBE_BOUND).await.ok().map(|()| "serving")
        }
    };
    NodeStatus { node: node.clone(), liveness, state }
}

fn health(supervisor: Liveness, phase: Phase, nodes: &[NodeStatus]) -> Health {
    let silent =
        |node: &NodeStatus| node.state.is_none_or(|state| matches!(state, "neither" | "unsettled"));
    let led =
        |set: &str| nodes.iter().any(|node| node.node.set == set && node.state == Some("primary"));
    let leaderless = |node: &NodeStatus| {
        matches!(node.node.role, Role::Member | Role::Config) && !led(&node.node.set)
    };
    match (supervisor, phase) {
        (Liveness::Gone, _) => Health::Dead,
        (Liveness::Stopped, _) => Health::Stopped,
        (Liveness::Running, Phase::Starting) => Health::Starting,
        (Liveness::Running, Phase::Ready) => {
            let impaired = nodes.iter().any(|node| silent(node) || leaderless(node));
            if impaired { Health::Impaired } else { Health::Up }
        }
    }
}
