//! Costs of changes of a cluster's configuration, estimated from its nodes and token ranges and from the durations of
//! past rolls.

use imago_job::journal::Journal as _;
use imago_plan::tune::roll::Costs;

use super::ClusterFile;
use super::connection;
use super::error::{Error, Result};
use super::journal::CassandraJournal;
use super::ring;
use super::roll;
use crate::cluster::costs::learned;
use scylla::statement::Consistency;

/// Estimates the durations and lost capacity of changes in this cluster, if clients need this consistency level and
/// `tolerate` additional node failures must be survived during a roll. Changes nothing.
///
/// # Errors
/// Fails if the cluster cannot be read, or if none of its nodes may be stopped.
#[crate::boxed]
pub async fn costs(file: &ClusterFile, consistency: &str, tolerate: usize) -> Result<Costs> {
    let level = connection::consistency(consistency)
        .ok_or_else(|| Error::Usage(format!("there is no level {consistency}")))?;
    let session = connection::connect(&file.uri, Consistency::Quorum).await?;
    let cluster = ring::cluster(&session, file, level, tolerate)?;
    let steps =
        cluster.ring.steps().map_err(|refusal| roll::refused(&cluster, &refusal, consistency))?;
    let at_once = steps.iter().map(std::collections::BTreeSet::len).max().unwrap_or(1);
    let mut took = Vec::new();
    if let Some(journal) = CassandraJournal::find(&file.uri).await? {
        for record in journal.list().await? {
            took.extend(roll::node_roll_times(&record));
        }
    }
    Ok(learned(Costs { at_once, ..Costs::guessed(file.nodes.len()) }, &took))
}
