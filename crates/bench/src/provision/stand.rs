//! A stand: the servers of a cell, which are shards with their members, filled with messages, and a cache.
//!
//! Every stand has the same documents: `_id` from 0 on, each with a message of 100 characters, as in the paper (Wong
//! and others, §3.2.1). Each shard has one contiguous range of `_id`s. The CPU limits of the members are suspended
//! while the stand is filled, and enforced afterwards, as if each member ran on a machine of its own. Between two
//! runs, all members are restarted and the cache is emptied (§5.1). Then each member reads its documents once: a
//! database that has run for a long time has them in memory, and the first reads of a cold one would depend on its
//! disk.

use bson::raw::RawArrayBuf;
use bson::{Document, doc, rawdoc};
use imago_mongo::namespace::Namespace;
use imago_mongo::server::collection::Handle;
use imago_mongo::server::endpoint::Endpoint;
use imago_mongo::server::shard::spread_at;
use imago_testbed::{Cluster, ClusterSpec, NodeInfo, Role, Single, SingleSpec};
use mongodb::Client;
use mongodb::options::{Hint, ReadPreference, SelectionCriteria};
use rand::SeedableRng as _;
use rand::distr::{Alphanumeric, SampleString as _};
use rand::rngs::StdRng;

use crate::error::{Error, Result};
use crate::fill::{Command, WRITERS, send_one};

/// Database and collection of the documents.
pub(crate) const DB: &str = "messages";
pub(crate) const COLL: &str = "sampled";
/// Length of a message, in characters.
const MESSAGE: usize = 100;
/// Number of documents in one insert command.
const BATCH: u64 = 5_000;
/// Memory limit of Redis when it is started, in MiB; each run sets its own limit.
const CACHE_MB: u32 = 4_096;
/// Memory for cache entries during the probe, in bytes: slightly less than [`CACHE_MB`], which includes Redis's own
/// memory.
pub(crate) const CACHE_BYTES: u64 = 4_000 << 20;

/// Documents and servers of a stand.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StandSpec {
    /// Number of documents.
    pub documents: u64,
    /// Share of the documents on each shard, in percent.
    pub shares: Vec<u32>,
    /// Number of members of each shard.
    pub members: u32,
    /// Size of each member's storage cache, in MiB.
    pub cache_mb: u32,
    /// CPU limit of each member, in percent of one processor.
    pub cpu_percent: u16,
}

/// The running servers; see the module's documentation.
pub(crate) struct Stand {
    pub(crate) cluster: Cluster,
    pub(crate) cache: Single,
    pub(crate) spec: StandSpec,
}

impl Stand {
    /// Starts the servers, and fills them with documents.
    pub(crate) async fn start(spec: StandSpec) -> Result<Self> {
        let shards = u32::try_from(spec.shares.len()).unwrap_or(u32::MAX);
        let cluster = Cluster::start(ClusterSpec {
            members: spec.members,
            cache_mb: spec.cache_mb,
            cpu_percent: Some(spec.cpu_percent),
            ..ClusterSpec::sharded("cells", shards)
        })
        .await?;
        let cache =
            Single::start(SingleSpec { memory_mb: CACHE_MB, ..SingleSpec::redis("cells-cache") })
                .await?;
        let stand = Self { cluster, cache, spec };
        stand.cluster.enforce_cpu_limits(false)?;
        stand.fill().await?;
        stand.cluster.enforce_cpu_limits(true)?;
        Ok(stand)
    }

    /// Returns the collection of the documents.
    pub(crate) fn ns() -> Namespace {
        Namespace::new(DB, COLL)
    }

    /// Returns the reason why CPU limits of the members are unavailable, or `None`.
    pub(crate) fn unshared(&self) -> Option<&str> {
        self.cluster.unshared()
    }

    async fn fill(&self) -> Result<()> {
        let router = Endpoint::connect(&self.cluster.admin_uri(), "cluster").await?;
        router.run("admin", doc! {"balancerStop": 1}).await?;
        let handle = Handle::new(router.clone(), Self::ns());
        spread_at(&handle, "_id", &bounds(self.spec.documents, &self.spec.shares)).await?;
        let writers = (0..WRITERS as u64).map(|writer| {
            let router = router.clone();
            async move {
                let mut from = writer * BATCH;
                while from < self.spec.documents {
                    let to = self.spec.documents.min(from + BATCH);
                    send_one(&router, DB, &messages(from..to)).await?;
                    from += WRITERS as u64 * BATCH;
                }
                Ok::<(), Error>(())
            }
        });
        futures_util::future::try_join_all(writers).await?;
        Ok(())
    }

    /// Restarts all members with data, one after the other, then has each read all of its documents and its `_id`
    /// index once.
    pub(crate) async fn renew(&self) -> Result<()> {
        self.cluster.enforce_cpu_limits(false)?;
        for node in self.cluster.nodes() {
            if node.role == Role::Member {
                self.cluster.terminate(&node.name).await?;
                self.cluster.restart(&node.name).await?;
            }
        }
        for node in self.cluster.nodes() {
            if node.role == Role::Member {
                self.warm(&node).await?;
            }
        }
        Ok(self.cluster.enforce_cpu_limits(true)?)
    }

    /// Has one member read all of its documents.
    async fn warm(&self, node: &NodeInfo) -> Result<()> {
        let failed = |error| imago_mongo::error::Error::server("reading all documents", error);
        let uri = format!("mongodb://{}:{}/?directConnection=true", node.host, node.port);
        let client = Client::with_uri_str(uri).await.map_err(failed)?;
        let any = SelectionCriteria::ReadPreference(ReadPreference::Nearest { options: None });
        // The hint makes the member read the `_id` index too. The filter is on a field that this index does not have,
        // so each document is read.
        let all = [doc! {"$match": {"message": {"$gt": ""}}}, doc! {"$count": "documents"}];
        let collection = client.database(DB).collection::<Document>(COLL);
        let read =
            collection.aggregate(all).hint(Hint::Keys(doc! {"_id": 1})).selection_criteria(any);
        read.await.map_err(failed)?;
        Ok(())
    }

    /// Returns the name and the process id of each member with data.
    pub(crate) fn members(&self) -> Vec<(String, u32)> {
        let nodes = self.cluster.nodes().into_iter();
        nodes
            .filter(|node| node.role == Role::Member)
            .filter_map(|node| Some((node.name, node.process?.pid)))
            .collect()
    }
}

/// Returns the first `_id` of each shard except the first.
pub(crate) fn bounds(documents: u64, shares: &[u32]) -> Vec<i64> {
    let all: u64 = shares.iter().map(|share| u64::from(*share)).sum::<u64>().max(1);
    let mut before = 0;
    let mut bounds = Vec::new();
    for share in &shares[..shares.len().saturating_sub(1)] {
        before += u64::from(*share);
        bounds.push(i64::try_from(documents * before / all).unwrap_or(i64::MAX));
    }
    bounds
}

/// Returns the insert command for a range of `_id`s. It is the same in each call.
fn messages(ids: std::ops::Range<u64>) -> Command {
    let mut rng = StdRng::seed_from_u64(ids.start);
    let (mut documents, mut len) = (RawArrayBuf::new(), 0);
    for id in ids {
        let message = Alphanumeric.sample_string(&mut rng, MESSAGE);
        documents.push(rawdoc! {"_id": i64::try_from(id).unwrap_or(i64::MAX), "message": message});
        len += 1;
    }
    let body = rawdoc! {
        "insert": COLL, "ordered": false, "writeConcern": {"w": "majority"}, "documents": documents,
    };
    Command { name: "insert", body, len }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_begin_where_the_shares_before_them_end() {
        assert_eq!(bounds(1_000_000, &[44, 56]), [440_000]);
        assert_eq!(bounds(1_000_000, &[14, 14, 39, 33]), [140_000, 280_000, 670_000]);
        assert!(bounds(1_000_000, &[100]).is_empty());
    }

    #[test]
    fn documents_are_the_same_at_each_call() {
        let [one, other] = [messages(5_000..5_003), messages(5_000..5_003)];
        assert_eq!((one.body.as_bytes(), one.len), (other.body.as_bytes(), 3));
        assert_ne!(one.body.as_bytes(), messages(10_000..10_003).body.as_bytes());
    }
}
