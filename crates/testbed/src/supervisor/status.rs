//! Present state of running testbeds. The kernel is queried for each process, and each server for its state; the
//! registry only lists them.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use serde::Serialize;

use crate::cassandra;
use crate::cluster::{NodeInfo, Role};
use crate::content::ContentSpec;
use crate::process::Liveness;
use crate::redis_cluster;
use crate::supervisor::registry::{Phase, RegistryEntry};
use crate::wire;

const PROBE_BOUND: Duration = Duration::from_secs(3);

/// Summary of the states of a testbed's supervisor and nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// The supervisor is still starting the servers.
    Starting,
    /// Every node replies, every replica set has a primary, and every node of a Redis Cluster is a master or linked
    /// replica.
    Up,
    /// The supervisor is running, but a node does not reply or is neither primary nor secondary, a replica set has no
    /// primary, or a node of a Redis Cluster is unsettled.
    Impaired,
    /// The supervisor is suspended by a signal.
    Stopped,
    /// The supervisor has ended, and the servers with it; `down` removes the remains.
    Dead,
}

/// Present state of one node of a testbed.
#[derive(Debug, Clone, Serialize)]
pub struct NodeStatus {
    /// Description of the node.
    #[serde(flatten)]
    pub node: NodeInfo,
    /// State of the node's process according to the kernel.
    pub liveness: Liveness,
    /// State that the node reports: `primary`, `secondary`, `router`, `neither`; in a Redis Cluster `master`,
    /// `replica`, or `unsettled` if the cluster is not healthy or the node has no link to its master; `serving` for
    /// other databases; `None` if the node does not reply.
    pub state: Option<&'static str>,
}

/// Present state of a registered testbed and its nodes.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// Name of the testbed.
    pub name: String,
    /// Summary of the testbed's state.
    pub health: Health,
    /// Process id of the testbed's supervisor.
    pub supervisor_pid: u32,
    /// Name of the database product: `mongodb`, `redis`, `kafka` or `cassandra`.
    pub database: &'static str,
    /// Number of shards, or of masters of a Redis Cluster; `None` if the testbed is not sharded.
    pub shards: Option<u32>,
    /// Number of members of each MongoDB replica set with data, of nodes of Cassandra, or of a Redis master and its
    /// replicas together; 1 for a single server.
    pub members: u32,
    /// True if the testbed has users and a key file.
    pub auth: bool,
    /// Connection string for the application; empty while the testbed starts.
    pub uri: String,
    /// Connection string for the administrator; empty while the testbed starts.
    pub admin_uri: String,
    /// Present state of each node.
    pub nodes: Vec<NodeStatus>,
}

/// Queries the present state of the testbed with the registry entry `standing`: its supervisor, and each node.
#[crate::boxed]
pub async fn query(standing: &RegistryEntry) -> Status {
    let looked = standing.nodes.iter().map(|node| query_node(&standing.spec, node));
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

async fn query_node(spec: &ContentSpec, node: &NodeInfo) -> NodeStatus {
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
