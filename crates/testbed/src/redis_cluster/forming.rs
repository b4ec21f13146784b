//! Forming a cluster of Redis servers by its own commands, and reading the state of its nodes.
//!
//! A node that reports a healthy cluster may have a replica that receives no data, so the state of the cluster and of
//! replication are both checked.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue, cmd};

use crate::error::{Error, Result};

/// Time allowed for the reply to one command.
const ANSWER_BOUND: Duration = Duration::from_secs(5);
/// Time allowed for each of two steps of forming a cluster: that all nodes know each other, and that all replicas are
/// in sync.
const FORM_BOUND: Duration = Duration::from_secs(90);
/// Time allowed for a replica to become master after CLUSTER FAILOVER.
const FAIL_OVER_BOUND: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);
/// Number of hash slots of a Redis Cluster.
const SLOTS: usize = 16_384;

/// An open connection to one node of a Redis Cluster.
struct Node {
    address: SocketAddr,
    connection: MultiplexedConnection,
}

impl Node {
    async fn connect(address: SocketAddr, bound: Duration) -> Result<Self> {
        let client = redis::Client::open(format!("redis://{address}"))
            .map_err(|error| unanswered(address, "connect", &error))?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(bound))
            .set_response_timeout(Some(bound));
        let connection = client.get_multiplexed_async_connection_with_config(&config).await;
        let connection = connection.map_err(|error| unanswered(address, "connect", &error))?;
        Ok(Self { address, connection })
    }

    async fn ask<T: FromRedisValue>(&self, words: &[&str]) -> Result<T> {
        let mut command = cmd(words[0]);
        command.arg(&words[1..]);
        let answer = command.query_async(&mut self.connection.clone()).await;
        answer.map_err(|error| unanswered(self.address, &words.join(" "), &error))
    }
}

fn unanswered(node: SocketAddr, command: &str, error: &redis::RedisError) -> Error {
    Error::Unanswered {
        node: node.to_string(),
        command: command.to_owned(),
        reason: error.to_string(),
    }
}

/// Forms a cluster of the empty servers `nodes`: the first `masters` of them share the hash slots, the others become
/// replicas of the masters in turn. `peers_port` is the port on which every node accepts other nodes.
pub(super) async fn form(nodes: &[SocketAddr], peers_port: u16, masters: usize) -> Result<()> {
    let mut connected = Vec::new();
    for (number, address) in (1..).zip(nodes) {
        let node = Node::connect(*address, ANSWER_BOUND).await?;
        // Distinct epochs avoid a conflict between the masters.
        let epoch = u32::to_string(&number);
        node.ask::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await?;
        connected.push(node);
    }
    for (number, node) in connected[..masters].iter().enumerate() {
        let first = (SLOTS * number / masters).to_string();
        let last = (SLOTS * (number + 1) / masters - 1).to_string();
        node.ask::<()>(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]).await?;
    }
    let peers_port = peers_port.to_string();
    for (number, node) in connected.iter().enumerate() {
        for other in &connected[number + 1..] {
            let (host, port) = (other.address.ip().to_string(), other.address.port().to_string());
            node.ask::<()>(&["CLUSTER", "MEET", &host, &port, &peers_port]).await?;
        }
    }
    let mut ids = Vec::new();
    for node in &connected {
        ids.push(node.ask::<String>(&["CLUSTER", "MYID"]).await?);
    }
    until(FORM_BOUND, "the nodes to know each other", async || {
        for node in &connected {
            let known: String = node.ask(&["CLUSTER", "NODES"]).await?;
            if let Some(id) = ids.iter().find(|id| !known.contains(&***id)) {
                return Ok(Some(format!("{} does not know the node {id}", node.address)));
            }
        }
        Ok(None)
    })
    .await?;
    for (number, node) in connected[masters..].iter().enumerate() {
        node.ask::<()>(&["CLUSTER", "REPLICATE", &ids[number % masters]]).await?;
    }
    let replicas = (nodes.len() - masters) / masters;
    until(FORM_BOUND, "the cluster to be well", async || {
        for (number, node) in connected.iter().enumerate() {
            let state = State::of(node).await?;
            let expected = if number < masters { "master" } else { "replica" };
            let replicates = number >= masters || state.replicas == replicas;
            if state.word() != expected || !replicates || state.known_nodes != nodes.len() {
                return Ok(Some(format!("{}: {state:?}", node.address)));
            }
            // Which nodes are replicas spreads by gossip, a second or more after they have become that.
            let known: String = node.ask(&["CLUSTER", "NODES"]).await?;
            let is_replica = |line: &&str| {
                line.split(' ')
                    .nth(2)
                    .is_some_and(|flags| flags.split(',').any(|flag| flag == "slave"))
            };
            let told = known.lines().filter(is_replica).count();
            if told != nodes.len() - masters {
                return Ok(Some(format!("{} knows {told} replicas", node.address)));
            }
        }
        Ok(None)
    })
    .await
}

/// Repeats the check `wrong` until it returns `None`, the absence of a problem; fails after `bound` with the last
/// problem. `what` describes the awaited condition.
async fn until(
    bound: Duration,
    what: &str,
    mut wrong: impl AsyncFnMut() -> Result<Option<String>>,
) -> Result<()> {
    let began = Instant::now();
    while let Some(last) = wrong().await? {
        if began.elapsed() > bound {
            let what = what.to_owned();
            return Err(Error::TimedOut { what, bound_s: bound.as_secs(), last });
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// State of a node and of its cluster, as the node reports it.
#[derive(Debug)]
struct State {
    cluster_is_well: bool,
    known_nodes: usize,
    is_master: bool,
    /// True for a replica whose link to its master is up (`master_link_status`).
    is_linked: bool,
    /// For a master, the number of its replicas that are in sync (`state=online`).
    replicas: usize,
}

impl State {
    async fn of(node: &Node) -> Result<Self> {
        let cluster: String = node.ask(&["CLUSTER", "INFO"]).await?;
        let replication: String = node.ask(&["INFO", "replication"]).await?;
        let known = line(&cluster, "cluster_known_nodes").and_then(|known| known.parse().ok());
        let online = |line: &&str| line.starts_with("slave") && line.contains("state=online");
        Ok(Self {
            cluster_is_well: line(&cluster, "cluster_state") == Some("ok"),
            known_nodes: known.unwrap_or(0),
            is_master: line(&replication, "role") == Some("master"),
            is_linked: line(&replication, "master_link_status") == Some("up"),
            replicas: replication.lines().filter(online).count(),
        })
    }

    fn word(&self) -> &'static str {
        match (self.cluster_is_well, self.is_master) {
            (false, _) => "unsettled",
            (true, true) => "master",
            (true, false) if self.is_linked => "replica",
            (true, false) => "unsettled",
        }
    }
}

/// Returns the value of the line `key:value` of `text`, or `None` if there is no such line.
fn line<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
}

/// Connects to a node within `bound` and returns its state: `master`, `replica`, or `unsettled` if its cluster is not
/// healthy or it is a replica without a link to its master.
pub(crate) async fn state_of(node: SocketAddr, bound: Duration) -> Result<&'static str> {
    let node = Node::connect(node, bound).await?;
    State::of(&node).await.map(|state| state.word())
}

/// Makes a replica of the node at `master` take over, if one is in sync, and returns the replica's address. `name` is
/// the master's name, for errors.
pub(super) async fn fail_over(name: &str, master: SocketAddr) -> Result<SocketAddr> {
    let refused = |state| Error::WrongState { action: "step down", node: name.to_owned(), state };
    let node = Node::connect(master, ANSWER_BOUND).await?;
    let id: String = node.ask(&["CLUSTER", "MYID"]).await?;
    if !State::of(&node).await?.is_master {
        return Err(refused("is a replica"));
    }
    let replicas: Vec<String> = node.ask(&["CLUSTER", "REPLICAS", &id]).await?;
    for replica in replicas {
        // ID IP:PORT@PORT[,HOST] FLAGS …
        let address = replica.split(' ').nth(1).and_then(|text| text.split('@').next());
        let Some(address) = address.and_then(|text| text.parse::<SocketAddr>().ok()) else {
            continue;
        };
        let Ok(replica) = Node::connect(address, ANSWER_BOUND).await else { continue };
        if !State::of(&replica).await?.is_linked {
            continue;
        }
        replica.ask::<()>(&["CLUSTER", "FAILOVER"]).await?;
        let what = format!("{address} to take the place of {name}");
        until(FAIL_OVER_BOUND, &what, async || {
            let state = State::of(&replica).await?;
            Ok((!state.is_master).then(|| format!("{state:?}")))
        })
        .await?;
        return Ok(address);
    }
    Err(refused("has no replica that has what it has"))
}
