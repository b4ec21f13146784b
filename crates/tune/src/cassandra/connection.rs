//! Connections: to a cluster, and to one node of it alone, for what each node tells of itself.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use scylla::client::PoolSize;
use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::policies::host_filter::AllowListHostFilter;
use scylla::policies::timestamp_generator::MonotonicTimestampGenerator;
use scylla::serialize::row::SerializeRow;
use scylla::statement::{Consistency, Statement};

use super::error::{Error, Result, failed};
use super::uri::Uri;

/// Time for which a node is tried, and for which a statement may take.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
const STATEMENT_WAIT: Duration = Duration::from_secs(12);

/// A connection to all nodes of the cluster, for statements of this consistency.
///
/// Writes carry a timestamp of this process, which never goes back: of two writes of one client, the one that was sent
/// later stays, whichever nodes they went through.
pub async fn connect(uri: &Uri, consistency: Consistency) -> Result<Session> {
    open(uri, builder(uri, consistency).known_nodes(&uri.nodes)).await
}

/// A connection to this node and no other, for its own view of the cluster.
pub async fn connect_to(node: SocketAddr, uri: &Uri) -> Result<Session> {
    let only = AllowListHostFilter::new([node])
        .map_err(|error| Error::Usage(format!("the address {node} cannot be used: {error}")))?;
    let builder = builder(uri, Consistency::One)
        .known_node_addr(node)
        .host_filter(Arc::new(only))
        .fetch_schema_metadata(false);
    let alone = Uri { nodes: vec![node.to_string()], user: uri.user.clone() };
    open(&alone, builder).await
}

fn builder(uri: &Uri, consistency: Consistency) -> SessionBuilder {
    let profile = ExecutionProfile::builder()
        .consistency(consistency)
        .request_timeout(Some(STATEMENT_WAIT))
        .build();
    let builder = SessionBuilder::new()
        .connection_timeout(CONNECT_WAIT)
        .default_execution_profile_handle(profile.into_handle())
        .pool_size(PoolSize::PerHost(NonZeroUsize::MIN))
        .timestamp_generator(Arc::new(MonotonicTimestampGenerator::new()));
    match &uri.user {
        Some((name, password)) => builder.user(name, password),
        None => builder,
    }
}

async fn open(uri: &Uri, builder: SessionBuilder) -> Result<Session> {
    let failed = |source| Error::Connect { uri: uri.to_string(), source: Box::new(source) };
    builder.build().await.map_err(failed)
}

/// Runs a statement that may be repeated, and returns its rows; `doing` names it in errors.
pub async fn rows<R>(
    session: &Session,
    doing: &str,
    statement: &str,
    values: impl SerializeRow,
) -> Result<Vec<R>>
where
    R: for<'frame, 'metadata> scylla::deserialize::row::DeserializeRow<'frame, 'metadata>,
{
    let mut statement = Statement::new(statement);
    statement.set_is_idempotent(true);
    let answer = session.query_unpaged(statement, values).await.map_err(failed(doing))?;
    let rows = answer.into_rows_result().map_err(failed(doing))?;
    let rows = rows.rows::<R>().map_err(failed(doing))?;
    rows.collect::<std::result::Result<_, _>>().map_err(failed(doing))
}
