//! The content of a testbed: a cluster of MongoDB, Cassandra or Redis, or a single server.
//!
//! Only this module distinguishes the databases; the [`supervisor`](crate::supervisor) treats all contents alike.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::binary;
use crate::cassandra_cluster::{CassandraCluster, CassandraSpec};
use crate::cluster::{Cluster, ClusterSpec, NodeInfo};
use crate::error::{Error, Result};
use crate::redis_cluster::{RedisCluster, RedisClusterSpec};
use crate::single::{Engine, Single, SingleSpec};

/// Specification of the servers that a testbed consists of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContentSpec {
    /// A MongoDB replica set or sharded cluster.
    Cluster(ClusterSpec),
    /// A Cassandra cluster.
    Cassandra(CassandraSpec),
    /// A Redis Cluster of masters and replicas.
    Redis(RedisClusterSpec),
    /// A single server of Redis, Kafka or PostgreSQL.
    Single(SingleSpec),
}

impl From<CassandraSpec> for ContentSpec {
    fn from(spec: CassandraSpec) -> Self {
        Self::Cassandra(spec)
    }
}

impl From<RedisClusterSpec> for ContentSpec {
    fn from(spec: RedisClusterSpec) -> Self {
        Self::Redis(spec)
    }
}

impl From<ClusterSpec> for ContentSpec {
    fn from(spec: ClusterSpec) -> Self {
        Self::Cluster(spec)
    }
}

impl From<SingleSpec> for ContentSpec {
    fn from(spec: SingleSpec) -> Self {
        Self::Single(spec)
    }
}

impl ContentSpec {
    /// Returns the name of the testbed, which prefixes the names of its nodes.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Cluster(spec) => &spec.name,
            Self::Cassandra(spec) => &spec.name,
            Self::Redis(spec) => &spec.name,
            Self::Single(spec) => &spec.name,
        }
    }

    /// Returns the name of the database product as command lines use it: `mongodb`, `cassandra`, `redis`,
    /// `kafka` or `postgres`.
    #[must_use]
    pub fn database(&self) -> &'static str {
        match self {
            Self::Cluster(_) => "mongodb",
            Self::Cassandra(_) => "cassandra",
            Self::Redis(_) => "redis",
            Self::Single(spec) => spec.engine.name(),
        }
    }

    /// Returns the number of shards, or of masters of a Redis Cluster; `None` if the content is not sharded.
    #[must_use]
    pub fn shards(&self) -> Option<u32> {
        match self {
            Self::Redis(spec) => Some(spec.masters.into()),
            _ => self.cluster().and_then(|spec| spec.shards),
        }
    }

    /// Returns the number of members of each MongoDB replica set with data, of nodes of Cassandra, or of a Redis
    /// master and its replicas together; 1 for a single server.
    #[must_use]
    pub fn members(&self) -> u32 {
        match self {
            Self::Cluster(spec) => spec.members,
            Self::Cassandra(spec) => spec.nodes.into(),
            Self::Redis(spec) => 1 + u32::from(spec.replicas),
            Self::Single(_) => 1,
        }
    }

    /// Returns true if the servers run with authorization, so that the testbed has users and a key file.
    #[must_use]
    pub fn auth(&self) -> bool {
        self.cluster().is_some_and(|spec| spec.auth)
    }

    fn cluster(&self) -> Option<&ClusterSpec> {
        match self {
            Self::Cluster(spec) => Some(spec),
            Self::Cassandra(_) | Self::Redis(_) | Self::Single(_) => None,
        }
    }

    /// Checks that the servers can be started from this specification. The error names the value to change.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Cluster(spec) => spec.check(),
            Self::Cassandra(spec) => spec.check(),
            Self::Redis(spec) => spec.check(),
            Self::Single(spec) => spec.check(),
        }
    }

    /// Checks that the server programs that this content requires are installed. The error states how to install
    /// them.
    pub fn find_programs(&self) -> Result<()> {
        match self {
            Self::Cluster(_) => binary::find_mongod().map(drop),
            Self::Cassandra(_) => binary::find_cassandra().map(drop),
            Self::Redis(_) | Self::Single(SingleSpec { engine: Engine::Redis, .. }) => {
                binary::find_redis().map(drop)
            }
            Self::Single(SingleSpec { engine: Engine::Kafka, .. }) => {
                binary::find_kafka().map(drop)
            }
            Self::Single(SingleSpec { engine: Engine::Postgres, .. }) => {
                binary::find_postgres().map(drop)
            }
        }
    }
}

/// The servers of a testbed; dropping it kills them and removes their data.
#[derive(Debug)]
pub(crate) enum Content {
    Cluster(Box<Cluster>),
    Cassandra(CassandraCluster),
    Redis(RedisCluster),
    Single(Box<Single>),
}

impl Content {
    /// Starts the servers that `spec` describes and waits until clients can use them.
    pub(crate) async fn start(spec: ContentSpec) -> Result<Self> {
        match spec {
            ContentSpec::Cluster(spec) => {
                Cluster::start(spec).await.map(Box::new).map(Self::Cluster)
            }
            ContentSpec::Cassandra(spec) => {
                CassandraCluster::start(spec).await.map(Self::Cassandra)
            }
            ContentSpec::Redis(spec) => RedisCluster::start(spec).await.map(Self::Redis),
            ContentSpec::Single(spec) => Single::start(spec).await.map(Box::new).map(Self::Single),
        }
    }

    /// Returns the connection string for the application's user.
    pub(crate) fn uri(&self) -> String {
        match self {
            Self::Cluster(cluster) => cluster.uri(),
            Self::Cassandra(cluster) => cluster.uri(),
            Self::Redis(cluster) => cluster.uri(),
            Self::Single(single) => single.uri(),
        }
    }

    /// Returns the connection string for the administrator; the same as [`Self::uri`] if the content has no users.
    pub(crate) fn admin_uri(&self) -> String {
        match self {
            Self::Cluster(cluster) => cluster.admin_uri(),
            Self::Cassandra(cluster) => cluster.uri(),
            Self::Redis(cluster) => cluster.uri(),
            Self::Single(single) => single.uri(),
        }
    }

    /// Returns the reason why CPU limits were requested but are unavailable; `None` if they are in force or were not
    /// requested.
    pub(crate) fn unshared(&self) -> Option<String> {
        match self {
            Self::Cluster(cluster) => cluster.unshared().map(str::to_owned),
            Self::Cassandra(cluster) => cluster.unshared().map(str::to_owned),
            Self::Redis(cluster) => cluster.unshared().map(str::to_owned),
            Self::Single(single) => single.unshared().map(str::to_owned),
        }
    }

    pub(crate) fn nodes(&self) -> Vec<NodeInfo> {
        match self {
            Self::Cluster(cluster) => cluster.nodes(),
            Self::Cassandra(cluster) => cluster.nodes(),
            Self::Redis(cluster) => cluster.nodes(),
            Self::Single(single) => vec![single.node()],
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        match self {
            Self::Cluster(cluster) => cluster.folder(),
            Self::Cassandra(cluster) => cluster.folder(),
            Self::Redis(cluster) => cluster.folder(),
            Self::Single(single) => single.folder(),
        }
    }

    pub(crate) fn kill(&self, node: &str) -> Result<()> {
        match self {
            Self::Cluster(cluster) => cluster.kill(node),
            Self::Cassandra(cluster) => cluster.servers().kill(node),
            Self::Redis(cluster) => cluster.servers().kill(node),
            Self::Single(single) => named(single, node)?.kill(),
        }
    }

    pub(crate) async fn terminate(&self, node: &str) -> Result<()> {
        match self {
            Self::Cluster(cluster) => cluster.terminate(node).await,
            Self::Cassandra(cluster) => cluster.servers().terminate(node).await,
            Self::Redis(cluster) => cluster.servers().terminate(node).await,
            Self::Single(single) => named(single, node)?.terminate().await,
        }
    }

    pub(crate) fn stop(&self, node: &str) -> Result<()> {
        match self {
            Self::Cluster(cluster) => cluster.stop(node),
            Self::Cassandra(cluster) => cluster.servers().stop(node),
            Self::Redis(cluster) => cluster.servers().stop(node),
            Self::Single(single) => named(single, node)?.stop(),
        }
    }

    pub(crate) fn resume(&self, node: &str) -> Result<()> {
        match self {
            Self::Cluster(cluster) => cluster.resume(node),
            Self::Cassandra(cluster) => cluster.servers().resume(node),
            Self::Redis(cluster) => cluster.servers().resume(node),
            Self::Single(single) => named(single, node)?.resume(),
        }
    }

    pub(crate) async fn restart(&self, node: &str) -> Result<()> {
        match self {
            Self::Cluster(cluster) => cluster.restart(node).await,
            Self::Cassandra(cluster) => cluster.servers().restart(node).await,
            Self::Redis(cluster) => cluster.servers().restart(node).await,
            Self::Single(single) => named(single, node)?.restart().await,
        }
    }

    /// Makes the primary of the replica set of `node` step down, or a replica take over from the Redis master `node`.
    /// Returns the name of the replica set or the old master, and the name of the new primary or master.
    pub(crate) async fn step_down(&self, node: &str) -> Result<(String, String)> {
        match self {
            Self::Cluster(cluster) => {
                let set = cluster.set_name_of(node)?;
                let primary = cluster.step_down(&set).await?;
                Ok((set, primary))
            }
            Self::Cassandra(cluster) => Err(Error::WrongState {
                action: "step down",
                node: cluster.servers().named(node)?.name().to_owned(),
                state: "has no primary, as all nodes are equals",
            }),
            Self::Redis(cluster) => Ok((node.to_owned(), cluster.step_down(node).await?)),
            Self::Single(single) => Err(Error::WrongState {
                action: "step down",
                node: named(single, node)?.node().name,
                state: "stands alone",
            }),
        }
    }
}

/// Returns `single` if `node` is the name of its only node, else an error.
fn named<'a>(single: &'a Single, node: &str) -> Result<&'a Single> {
    let known = single.node().name;
    if known == node {
        return Ok(single);
    }
    let (cluster, name) = (single.spec().name.clone(), node.to_owned());
    Err(Error::Unknown { cluster, what: "node", name, known })
}
