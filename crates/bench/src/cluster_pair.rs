//! The pair of replica sets on which benchmarks run, with one server each, and the CPU time of the servers.

use bson::doc;
use imago_mongo::server::endpoint::Endpoint;
use imago_testbed::{Cluster, ClusterSpec};

use crate::error::{Error, Result};
use crate::process::cpu_s;
use crate::subject::Ends;

/// Storage cache of each server, in MiB. It is so small that a collection of a gigabyte does not fit as a whole, and
/// so large that the servers wait for their processors and not for the disk.
pub(crate) const CACHE_MB: u32 = 1_024;
/// Size of the oplog of each server, in MB: room for all writes of one benchmark, so that no reader of changes falls
/// off its end.
const OPLOG_MB: u32 = 4_096;
/// Name of the collection that is copied, compared and followed; the collections of floors have the same name.
pub(crate) const COLL: &str = "reviews";
/// Name of the database of the collection that is copied.
pub(crate) const DB: &str = "bench";
/// Name of the database of floors.
pub(crate) const FLOOR_DB: &str = "floor";

/// Two replica sets of one server each.
pub(crate) struct ClusterPair {
    clusters: [Cluster; 2],
    pub source: Endpoint,
    pub destination: Endpoint,
}

impl ClusterPair {
    pub(crate) async fn start() -> Result<Self> {
        let spec = |name: &str| ClusterSpec {
            cache_mb: CACHE_MB,
            oplog_mb: Some(OPLOG_MB),
            ..ClusterSpec::replica_set(name, 1)
        };
        let starts = (
            Box::pin(Cluster::start(spec("bench-old"))),
            Box::pin(Cluster::start(spec("bench-new"))),
        );
        let (old, new) = tokio::try_join!(starts.0, starts.1)?;
        let source = Endpoint::connect(&old.uri(), "source").await?;
        let destination = Endpoint::connect(&new.uri(), "destination").await?;
        Ok(Self { clusters: [old, new], source, destination })
    }

    pub(crate) fn ends(&self) -> Ends {
        let [from, to] = &self.clusters;
        Ends { from: from.uri(), to: to.uri(), ns: format!("{DB}.{COLL}") }
    }

    /// Returns the CPU time of both servers so far, in seconds.
    pub(crate) fn servers_cpu_s(&self) -> Result<f64> {
        Ok(self.cpu_by_server_s()?.iter().sum())
    }

    /// Returns the CPU time of the source and that of the destination so far, in seconds.
    pub(crate) fn cpu_by_server_s(&self) -> Result<[f64; 2]> {
        let mut used_s = [0.0; 2];
        for (used_s, cluster) in used_s.iter_mut().zip(&self.clusters) {
            for node in cluster.nodes() {
                let used = node.process.and_then(|process| cpu_s(process.pid));
                *used_s += used.ok_or_else(|| Error::Wrong("a server is down".into()))?;
            }
        }
        Ok(used_s)
    }

    /// Drops a database of the destination and flushes both servers, so that each measurement starts alike.
    pub(crate) async fn clear(&self, db: &str) -> Result<()> {
        self.destination
            .run(db, doc! {"dropDatabase": 1, "writeConcern": {"w": "majority"}})
            .await?;
        self.rest().await
    }

    /// Flushes the pending writes of both servers to disk (`fsync`).
    pub(crate) async fn rest(&self) -> Result<()> {
        for endpoint in [&self.source, &self.destination] {
            endpoint.run("admin", doc! {"fsync": 1}).await?;
        }
        Ok(())
    }
}

/// Returns the number of documents in a collection, by counting them.
pub(crate) async fn count(endpoint: &Endpoint, db: &str) -> Result<u64> {
    let collection = endpoint.client().database(db).collection::<bson::Document>(COLL);
    let counting = Box::pin(collection.count_documents(doc! {}).into_future());
    let counted = counting.await;
    counted.map_err(|error| imago_mongo::error::Error::server("counting", error).into())
}

/// Returns an error unless a collection holds exactly this number of documents.
pub(crate) async fn require(endpoint: &Endpoint, db: &str, documents: u64) -> Result<()> {
    let found = count(endpoint, db).await?;
    if found == documents {
        return Ok(());
    }
    let role = endpoint.role();
    Err(Error::Wrong(format!("the {role}'s {db}.{COLL} has {found} documents, not {documents}")))
}
