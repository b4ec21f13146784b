//! The cluster that a command names, and the stores of its jobs and tuning decisions.

use std::path::PathBuf;

use imago_job::file::FileJournal;
use imago_job::id::JobId;
use imago_job::journal::Journal;
use imago_job::record::Record;
use imago_tune::cassandra::journal::CassandraJournal;
use imago_tune::cassandra::{ClusterFile, Error, Uri, roll};
use imago_tune::cluster::job::Action;
use imago_tune::cluster::{self, Database as _};
use imago_tune::redis;
use imago_tune::redis::decisions::RedisDecisions;

use crate::cmd::process::process;

/// The cluster that keeps the jobs.
#[derive(Debug, clap::Args)]
pub(super) struct ClusterArgs {
    /// The cluster: cassandra://NAME:PASSWORD@HOST:PORT,HOST:PORT.
    #[arg(long, value_name = "URI", hide_env_values = true, required_unless_present = "cluster")]
    uri: Option<Uri>,
    /// The cluster file in its place. Jobs and decisions of Redis are kept beside that.
    #[arg(long, value_name = "FILE", conflicts_with = "uri")]
    cluster: Option<PathBuf>,
}

/// The stores of a cluster's jobs and tuning decisions.
pub(super) enum Jobs {
    /// The jobs and decisions are stored in tables of the Cassandra cluster itself.
    Cassandra { journal: CassandraJournal, uri: Uri },
    /// The jobs and decisions of a Redis cluster are stored in files next to its cluster file.
    Redis { journal: FileJournal, decisions: RedisDecisions, uri: redis::Uri },
}

impl ClusterArgs {
    /// Opens the stores of jobs and decisions of the cluster that the flags name.
    pub(super) async fn jobs(&self) -> Result<Jobs, Error> {
        let file = self.cluster.as_deref();
        if let Some(file) = file
            && cluster::file::database(file)? == redis::Redis::NAME
        {
            let uri = redis::ClusterFile::read(file)?.uri;
            let decisions = RedisDecisions::open(file, uri.clone())?;
            return Ok(Jobs::Redis { journal: redis::roll::jobs(file)?, decisions, uri });
        }
        let uri = match (file, &self.uri) {
            (Some(file), _) => ClusterFile::read(file)?.uri,
            (None, Some(uri)) => uri.clone(),
            (None, None) => unreachable!("one of both is needed"),
        };
        Ok(Jobs::Cassandra { journal: CassandraJournal::open(&uri).await?, uri })
    }
}

impl Jobs {
    /// Returns the journal of the cluster's jobs.
    pub(super) fn journal(&self) -> &dyn Journal {
        match self {
            Self::Cassandra { journal, .. } => journal,
            Self::Redis { journal, .. } => journal,
        }
    }

    /// Returns the actions that a job has performed so far, in order.
    pub(super) async fn actions(&self, record: &Record) -> Result<Vec<Action>, Error> {
        match self {
            Self::Cassandra { journal, .. } => journal.actions(&record.id).await,
            Self::Redis { .. } => redis::roll::actions(record),
        }
    }

    /// Cancels a job that no process works at. Returns false, without cancelling, if a process works at it.
    pub(super) async fn cancel(&self, id: &JobId) -> Result<bool, Error> {
        match self {
            Self::Cassandra { uri, .. } => roll::cancel(uri, id, &process()).await,
            Self::Redis { journal, uri, .. } => {
                redis::roll::cancel(journal, uri, id, &process()).await
            }
        }
    }
}
