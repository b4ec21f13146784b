//! The Redis server or cluster of one method. Its setting is changed in the way in which users change it.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use imago_job::reporter::Events;
use imago_testbed::{
    NodeInfo, RedisCluster, RedisClusterSpec, Single, SingleSpec, redis_configuration_of,
};
use imago_tune::cluster::NodeAccess;
use imago_tune::redis::connection::Node;
use imago_tune::redis::roll::{Roller, Spec};
use imago_tune::redis::topology::{Part, SLOTS, Topology};
use imago_tune::redis::{ClusterFile, Uri};
use tokio_util::sync::CancellationToken;

use super::Size;
use super::client::Client;
use super::requests::{Batch, Names};
use crate::error::{Error, Result};

/// Timeout of a reply; a server may have many keys to delete.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// A Redis server or cluster with a memory limit.
pub(super) struct Database {
    /// Connections to the masters. Fields are dropped in their order, so the connections close before the servers
    /// end.
    pub(super) masters: Vec<Node>,
    file: ClusterFile,
    pub(super) names: Names,
    // The servers end when these fields are dropped.
    _alone: Option<Single>,
    _cluster: Option<RedisCluster>,
}

impl Database {
    /// Starts the servers. They persist nothing to disk, because a child process that writes a file would occupy a
    /// processor from time to time.
    pub(super) async fn start(name: &str, size: &Size) -> Result<Self> {
        let (alone, cluster, nodes, uri, folder) = if size.masters == 1 {
            let spec = SingleSpec { memory_mb: size.memory_mb, ..SingleSpec::redis(name) };
            let server = Single::start(spec).await?;
            let (nodes, uri, folder) =
                (vec![server.node()], server.uri(), server.folder().to_owned());
            (Some(server), None, nodes, uri, folder)
        } else {
            let spec = RedisClusterSpec {
                replicas: size.replicas,
                memory_mb: size.memory_mb,
                ..RedisClusterSpec::new(name, size.masters)
            };
            let cluster = RedisCluster::start(spec).await?;
            let (nodes, uri, folder) =
                (cluster.nodes(), cluster.uri(), cluster.folder().to_owned());
            (None, Some(cluster), nodes, uri, folder)
        };
        let uri: Uri = uri.parse()?;
        for node in &uri.nodes {
            let node = Node::connect(node, &uri, ANSWER_WAIT).await?;
            node.ask::<()>(&["CONFIG", "SET", "appendonly", "no"]).await?;
        }
        let (addresses, master) = masters(&uri, size.masters == 1).await?;
        let mut masters = Vec::new();
        for address in &addresses {
            masters.push(Node::connect(address, &uri, ANSWER_WAIT).await?);
        }
        let names = Names::new(masters.len(), |slot| master[usize::from(slot)]);
        let names = names.ok_or_else(|| Error::Wrong("a master has no slot".into()))?;
        let file =
            ClusterFile { uri, nodes: nodes.iter().map(|node| access(node, &folder)).collect() };
        Ok(Self { masters, file, names, _alone: alone, _cluster: cluster })
    }

    /// Changes a setting as `imago tune roll` does. Returns the time of the change, in seconds.
    pub(super) async fn roll(
        &self,
        (name, value): (&str, &str),
        folder: &Path,
        process: &str,
        cancel: &CancellationToken,
    ) -> Result<f64> {
        let begin = Instant::now();
        let changes = [(name.to_owned(), Some(value.to_owned()))].into();
        let spec = Spec { changes, tolerate: 0, unserved: false, is_of_controller: false };
        let roller = Roller::new(self.file.clone(), spec)?;
        let beside = folder.join("cluster.toml");
        let events = Events::default();
        let rolled = roller.begin(&beside, process, &events, cancel.clone());
        Box::pin(rolled).await?;
        Ok(begin.elapsed().as_secs_f64())
    }

    /// Deletes all keys.
    pub(super) async fn flush(&self) -> Result<()> {
        for master in &self.masters {
            master.ask::<()>(&["FLUSHALL", "SYNC"]).await?;
        }
        Ok(())
    }

    /// Returns the encoding of a hash, as reported by its master.
    pub(super) async fn encoding(&self, hash: u64) -> Result<String> {
        let master = &self.masters[self.names.master(hash)];
        Ok(master.ask(&["OBJECT", "ENCODING", &self.names.name(hash)]).await?)
    }

    /// Returns the number of hashes on all masters.
    pub(super) async fn count(&self) -> Result<u64> {
        let mut count = 0;
        for master in &self.masters {
            count += master.ask::<u64>(&["DBSIZE"]).await?;
        }
        Ok(count)
    }

    /// Opens a connection to each master.
    pub(super) fn clients(&self) -> Result<Vec<Client>> {
        let client = |master: &Node| {
            let address: SocketAddr = master
                .address
                .parse()
                .map_err(|_| Error::Wrong(format!("{} is no address and port", master.address)))?;
            Client::connect(address)
        };
        self.masters.iter().map(client).collect()
    }
}

/// Returns the addresses of the masters, and for each slot the index of its master.
async fn masters(uri: &Uri, is_alone: bool) -> Result<(Vec<String>, Vec<Option<usize>>)> {
    if is_alone {
        return Ok((uri.nodes.clone(), vec![Some(0); SLOTS]));
    }
    let node = Node::connect_to_any(uri, ANSWER_WAIT).await?;
    let told: String = node.ask(&["CLUSTER", "NODES"]).await?;
    let topology = Topology::parse(&told).map_err(|error| Error::Wrong(error.to_string()))?;
    let (mut addresses, mut master) = (Vec::new(), vec![None; SLOTS]);
    for member in topology.masters() {
        let Part::Master(slots) = &member.part else { continue };
        for slot in slots.iter().cloned().flatten() {
            master[usize::from(slot)] = Some(addresses.len());
        }
        addresses.push(member.address.clone());
    }
    Ok((addresses, master))
}

/// Returns the access data of a node. `stop` and `start` are commands that fail, because no node is restarted here.
fn access(node: &NodeInfo, folder: &Path) -> NodeAccess {
    NodeAccess {
        name: node.name.clone(),
        address: SocketAddr::from((node.host, node.port)),
        shell: "sh".into(),
        configuration: redis_configuration_of(folder, &node.name).display().to_string(),
        nodetool: None,
        jvm_options: None,
        stop: "false".into(),
        start: "false".into(),
        drain_max: Duration::ZERO,
        look_max: None,
    }
}

/// Sends each client its requests, all clients in parallel. Returns the first error reply, if there is one.
pub(super) fn send<'b>(
    clients: &mut [Client],
    requests: impl Iterator<Item = &'b [Batch]>,
) -> Result<Option<String>> {
    let told: Vec<Result<Option<String>>> = std::thread::scope(|scope| {
        let sending = clients.iter_mut().zip(requests);
        let sending = sending.map(|(client, batches)| scope.spawn(move || client.send(batches)));
        let sending: Vec<_> = sending.collect();
        sending.into_iter().map(|one| one.join().expect("a client does not panic")).collect()
    });
    told.into_iter().try_fold(None, |first: Option<String>, one| Ok(first.or(one?)))
}
