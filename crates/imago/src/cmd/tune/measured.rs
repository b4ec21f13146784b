//! The arguments that `imago tune sample` and `compare` share: a cluster for tests, the configurations that are measured there,
//! and the records of the load.

use std::path::PathBuf;
use std::time::Duration;

use imago_load::sample::Request;
use imago_load::sample::cassandra::Table;
use imago_load::sample::redis::Records;
use imago_mongo::namespace::Namespace;
use imago_tune::cassandra::{Cassandra, Consistency};
use imago_tune::cluster::{self, ClusterFile};
use imago_tune::configurations::{self, Configuration};
use imago_tune::redis::Redis;
use imago_workload::mix::Mix;

use crate::exit::{Exit, Failure, cluster_failure};
use crate::values::{consistency, duration};

/// The shared arguments.
#[derive(Debug, clap::Args)]
pub(super) struct MeasuredArgs {
    /// The file that says how the nodes are reached.
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    /// The table that is loaded, as keyspace.table; it is made and filled if it is empty. Of Redis what keys begin with, as
    /// db:coll:; records under such keys are deleted and written anew.
    #[arg(long, value_name = "TABLE")]
    ns: Namespace,
    /// The file with the configurations.
    #[arg(long, value_name = "FILE")]
    configurations: PathBuf,
    /// Records; of Cassandra, rows that an empty table is filled with.
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(100..))]
    documents: u64,
    /// Size of a record.
    #[arg(long, value_name = "BYTES", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(400..=1_000_000))]
    size_bytes: u32,
    /// The consistency level of all operations (Cassandra only); without it quorum.
    #[arg(long, value_name = "LEVEL", value_parser = consistency)]
    consistency: Option<Consistency>,
    /// Operations at once.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    clients: u32,
    /// The longest that warming up may take: until throughput neither rises nor falls, and no work
    /// goes on in the background.
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = duration)]
    warm_max: Duration,
}

/// A database whose configurations are measured.
pub(super) enum Database {
    Cassandra(Table),
    Redis(Records),
}

impl MeasuredArgs {
    /// Opens the database that the cluster file describes, and reads the configurations.
    pub(super) fn open(&self) -> Result<(Database, Vec<Configuration>), Failure> {
        let failed = |error: cluster::Error| cluster_failure(&error);
        let name = (self.ns.db.clone(), self.ns.coll.clone());
        if cluster::file::database(&self.cluster).map_err(failed)? == "redis" {
            if self.consistency.is_some() {
                let what = "--consistency is for Cassandra, but the cluster file is for Redis";
                return Err(Failure::new(Exit::Usage, "usage", what));
            }
            let all = configurations::read::<Redis>(&self.configurations).map_err(failed)?;
            let file = ClusterFile::read(&self.cluster).map_err(failed)?;
            return Ok((Database::Redis(Records::new(file, self.cluster.clone(), name)), all));
        }
        let all = configurations::read::<Cassandra>(&self.configurations).map_err(failed)?;
        let file = ClusterFile::read(&self.cluster).map_err(failed)?;
        let consistency = self.consistency.unwrap_or(Consistency::Quorum);
        Ok((Database::Cassandra(Table::new(file, name, consistency)), all))
    }

    /// Returns the request for these measurements, with `windows` of a length for each; fails if a mix deletes records.
    pub(super) fn request(
        &self,
        configurations: Vec<Configuration>,
        mixes: Vec<Mix>,
        (windows, window): (u8, Duration),
    ) -> Result<Request, Failure> {
        if let Some(mix) = mixes.iter().find(|mix| mix.delete > 0.0) {
            let what = format!(
                "the mix {mix} contains deletes, which would remove the records that are measured"
            );
            return Err(Failure::new(Exit::Usage, "usage", what));
        }
        if window < Duration::from_millis(200) {
            return Err(Failure::new(Exit::Usage, "usage", "--window must be 200ms at least"));
        }
        Ok(Request {
            documents: self.documents,
            size_bytes: self.size_bytes,
            configurations,
            mixes,
            clients: self.clients,
            window,
            windows: windows.into(),
            warm_max: self.warm_max,
        })
    }
}
