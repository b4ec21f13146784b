//! A sharded cluster in which shard keys are changed: its start, its data, its shards, and the changes of the key by
//! Imago.
//!
//! Every collection starts alike: the keys `0..documents`, evenly distributed over the shards by the old shard key,
//! and all of them flushed to disk by the servers.

use std::path::Path;

use bson::doc;
use imago_load::Schema;
use imago_load::mongo::{MongoTarget, preload};
use imago_mongo::namespace::Namespace;
use imago_mongo::reshard::plan::{Placing, Plan};
use imago_mongo::server::collection::Handle;
use imago_mongo::server::endpoint::Endpoint;
use imago_mongo::server::shard::spread;
use imago_testbed::{Cluster, ClusterSpec};
use imago_workload::history::IdForm;
use imago_workload::review::Reviews;

use crate::cluster_pair::{COLL, DB};
use crate::error::{Error, Result, process};
use crate::process::{Ended, Measured};
use crate::subject::{Commands, Ends, Subject};
use crate::traffic::{Load, Traffic};

pub(crate) mod places;

/// The two fields that alternate as shard key.
pub(crate) const KEYS: [&str; 2] = ["productID", "userID"];
/// Name of a parameter of the config server: the minimum duration of the server's own change of a shard key, in ms.
/// It is set to 0 here, so that the measured programs are compared with the work alone.
pub(crate) const NATIVE_FLOOR: &str = "reshardingMinimumOperationDurationMillis";

/// The shape of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub shards: u32,
    /// Number of members of each shard.
    pub members: u32,
    /// Storage cache of each member, in MiB.
    pub cache_mb: u32,
}

/// The division of a collection into chunks, and the placement of the chunks on shards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub placing: Placing,
    /// Size of chunks, in MiB; the cluster's setting if absent.
    pub chunk_mb: Option<u32>,
}

/// A sharded cluster, and its data.
pub(crate) struct ShardedCluster {
    pub cluster: Cluster,
    pub router: Endpoint,
    pub ns: Namespace,
    pub schema: Schema,
}

impl ShardedCluster {
    pub(crate) async fn start(shape: Shape, reviews: Reviews) -> Result<Self> {
        reviews.validate().map_err(|error| Error::Size(error.to_string()))?;
        let Shape { shards, members, cache_mb } = shape;
        let spec = ClusterSpec { cache_mb, members, ..ClusterSpec::sharded("bench", shards) };
        let spec = spec.with_parameter(NATIVE_FLOOR, "0");
        // A write block stops only the writes of users, and a cluster without authorization has no users.
        let cluster = Cluster::start(spec.with_auth()).await?;
        let router = Endpoint::connect(&cluster.admin_uri(), "cluster").await?;
        // Moves by the balancer would count as moves of the measured program.
        router.run("admin", doc! {"balancerStop": 1}).await?;
        let schema = Schema { id_form: IdForm::Integer, reviews };
        let ns = Namespace::new(DB, COLL);
        Ok(Self { cluster, router, ns, schema })
    }

    /// Recreates the collection with the keys `0..documents`, evenly distributed over the shards by the old key.
    pub(crate) async fn fill(&self, documents: u64) -> Result<()> {
        let drop = doc! {"dropDatabase": 1, "writeConcern": {"w": "majority"}};
        self.router.run_at_length(DB, drop).await?;
        let reviews = &self.schema.reviews;
        let sample = (0..documents.min(20_000)).map(|key| reviews.shard_keys(key).0).collect();
        let handle = Handle::new(self.router.clone(), self.ns.clone());
        spread(&handle, KEYS[0], sample).await?;
        let target = MongoTarget::connect(&self.cluster.uri(), &self.ns, self.schema).await?;
        preload(&target, documents, |_| ()).await?;
        self.rest().await
    }

    /// Flushes the pending writes of all shards to disk (`fsync`).
    async fn rest(&self) -> Result<()> {
        for shard in self.shards().await? {
            shard.run("admin", doc! {"fsync": 1}).await?;
        }
        Ok(())
    }

    /// Connects to all shards directly, without the router. Returns them in the order of their names.
    pub(crate) async fn shards(&self) -> Result<Vec<Endpoint>> {
        let mut shards = Vec::new();
        for name in self.shard_names() {
            shards.push(self.set(&name).await?);
        }
        Ok(shards)
    }

    /// Connects to one of the replica sets directly, without the router.
    pub(crate) async fn set(&self, name: &str) -> Result<Endpoint> {
        let missing = || Error::Wrong(format!("there is no {name}, or no administrator of it"));
        let seed = self.cluster.seed(name).ok_or_else(missing)?;
        let hosts = seed.split_once('/').map_or(seed.as_str(), |(_, hosts)| hosts);
        let admin = &self.cluster.credentials().ok_or_else(missing)?.admin;
        let login = format!("{}:{}", admin.name, admin.password);
        let uri = format!("mongodb://{login}@{hosts}/?replicaSet={name}&authSource=admin");
        Ok(Endpoint::connect(&uri, "shard").await?)
    }

    pub(crate) fn shard_names(&self) -> Vec<String> {
        let mut sets: Vec<String> = self.cluster.set_names().map(str::to_owned).collect();
        // The last set is that of the config server.
        sets.pop();
        sets
    }

    fn ends(&self) -> Ends {
        Ends { from: String::new(), to: self.cluster.admin_uri(), ns: self.ns.to_string() }
    }

    /// Plans the change to the new key. Returns the plan, and the time that planning took, in seconds.
    pub(crate) async fn plan(&self, cut: Cut, commands: &Commands) -> Result<(Plan, f64)> {
        let Cut { placing, chunk_mb } = cut;
        let subject = Subject::PlanReshard { key: KEYS[1].to_owned(), placing, chunk_mb };
        let command = commands(&subject, &self.ends());
        let planned = Measured::start("a plan", command)?.end(0).await?;
        let plan = serde_json::from_slice(&planned.output)
            .map_err(|error| Error::Wrong(format!("the plan cannot be read: {error}")))?;
        Ok((plan, planned.wall_s))
    }

    /// Executes a plan.
    pub(crate) async fn change(&self, plan: &Plan, commands: &Commands) -> Result<Ended> {
        let file = self.cluster.folder().join("plan.json");
        let text = serde_json::to_vec(plan).expect("a plan is plain data");
        write(&file, &text)?;
        let command = commands(&Subject::Reshard { plan: file }, &self.ends());
        Measured::start("a change of the key", command)?.end(0).await
    }

    /// Plans and executes a change of the key, in one process.
    pub(crate) async fn reshard(&self, key: &str, commands: &Commands) -> Result<Ended> {
        let subject = Subject::ReshardBy { key: key.to_owned() };
        let command = commands(&subject, &self.ends());
        let ended = Box::pin(Measured::start("a change of the key under load", command)?.end(0));
        let ended = ended.await?;
        let said = String::from_utf8_lossy(&ended.output);
        tracing::info!(%said, "one change under load");
        Ok(ended)
    }

    /// Fills the collection, and starts a load on it.
    pub(crate) async fn traffic(&self, documents: u64, load: Load) -> Result<Traffic> {
        self.fill(documents).await?;
        let (uri, folder) = (self.cluster.uri(), self.cluster.folder());
        Traffic::start(&uri, &self.ns, self.schema, documents, load, folder).await
    }
}

fn write(file: &Path, text: &[u8]) -> Result<()> {
    std::fs::write(file, text).map_err(process(format!("write {}", file.display())))
}
