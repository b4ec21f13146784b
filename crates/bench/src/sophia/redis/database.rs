//! The server or cluster that a way has for itself, and the way of changing it that users have.

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

/// For a server to answer one question; it may have much to delete.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// Redis, with room for so much.
pub(super) struct Database {
    /// Fields drop in this order: connections first.
    pub(super) masters: Vec<Node>,
    file: ClusterFile,
    pub(super) names: Names,
    // They end with this.
    _alone: Option<Single>,
    _cluster: Option<RedisCluster>,
}

impl Database {
    /// Starts it. It keeps nothing on disk: a child process that writes a file would take a processor now and then.
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

    /// Changes a setting as `imago tune roll` does. Returns how long that took, in seconds.
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

    /// Deletes everything.
    pub(super) async fn flush(&self) -> Result<()> {
        for master in &self.masters {
            master.ask::<()>(&["FLUSHALL", "SYNC"]).await?;
        }
        Ok(())
    }

    /// The encoding of a hash, as its master tells it.
    pub(super) async fn encoding(&self, hash: u64) -> Result<String> {
        let master = &self.masters[self.names.master(hash)];
        Ok(master.ask(&["OBJECT", "ENCODING", &self.names.name(hash)]).await?)
    }

    /// The hashes that there are.
    pub(super) async fn count(&self) -> Result<u64> {
        let mut count = 0;
        for master in &self.masters {
            count += master.ask::<u64>(&["DBSIZE"]).await?;
        }
        Ok(count)
    }

    /// Connects to each master.
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

/// The masters, and which of them has each slot.
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

/// No node is restarted here.
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

/// Sends each client its requests, all at the same time. Returns the first refusal, if there is one.
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
