//! Connections to a Cassandra cluster, and to a single node for the node's own system tables.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use scylla::client::PoolSize;
use scylla::client::execution_profile::{ExecutionProfile, ExecutionProfileHandle};
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::policies::host_filter::AllowListHostFilter;
use scylla::policies::timestamp_generator::MonotonicTimestampGenerator;
use scylla::serialize::row::SerializeRow;
use scylla::statement::{Consistency, Statement};

use super::Uri;
use super::error::{Error, Result, failed};

/// Timeout of a connection attempt, and timeout of a statement.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
const STATEMENT_WAIT: Duration = Duration::from_secs(12);

/// Connects to all nodes of a cluster, for statements of this consistency level.
///
/// Writes carry a monotonic timestamp of this process: of two writes of one client, the later one wins, regardless of
/// their coordinators.
#[crate::boxed]
pub async fn connect(uri: &Uri, consistency: Consistency) -> Result<Session> {
    open(uri, builder(uri, consistency).known_nodes(&uri.nodes)).await
}

/// Connects to one node only, with the credentials of `uri`, to read the node's own view of the cluster.
#[crate::boxed]
pub async fn connect_to(node: SocketAddr, uri: &Uri) -> Result<Session> {
    connect_within(node, uri, STATEMENT_WAIT).await
}

/// Connects to one node only, with the credentials of `uri`. The limit replaces the timeouts of the connection and of
/// statements if it exceeds [`STATEMENT_WAIT`].
pub(super) async fn connect_within(
    node: SocketAddr,
    uri: &Uri,
    limit: Duration,
) -> Result<Session> {
    let only = AllowListHostFilter::new([node])
        .map_err(|error| Error::Usage(format!("the address {node} cannot be used: {error}")))?;
    let profile = profile(Consistency::One, limit.max(STATEMENT_WAIT));
    let builder = builder(uri, Consistency::One)
        .default_execution_profile_handle(profile)
        .connection_timeout(if limit > STATEMENT_WAIT { limit } else { CONNECT_WAIT })
        .known_node_addr(node)
        .host_filter(Arc::new(only))
        .fetch_schema_metadata(false)
        .fetch_full_schema_metadata(false);
    open(&uri.at(node.to_string()), builder).await
}

fn profile(consistency: Consistency, wait: Duration) -> ExecutionProfileHandle {
    let profile = ExecutionProfile::builder().consistency(consistency);
    profile.request_timeout(Some(wait)).build().into_handle()
}

fn builder(uri: &Uri, consistency: Consistency) -> SessionBuilder {
    let builder = SessionBuilder::new()
        .connection_timeout(CONNECT_WAIT)
        .default_execution_profile_handle(profile(consistency, STATEMENT_WAIT))
        .pool_size(PoolSize::PerHost(NonZeroUsize::MIN))
        .timestamp_generator(Arc::new(MonotonicTimestampGenerator::new()));
    match &uri.user {
        Some((name, password)) => builder.user(name, password),
        None => builder,
    }
}

async fn open(uri: &Uri, builder: SessionBuilder) -> Result<Session> {
    let failed = |source| Error::Connect {
        uri: uri.to_string(),
        source: Box::new(source),
        help: "is the address that of native_transport_port, and are name and password right?",
    };
    builder.build().await.map_err(failed)
}

/// Returns the consistency level with this name, as in `cqlsh` (in any case); None if there is no such level.
#[must_use]
pub fn consistency(name: &str) -> Option<Consistency> {
    Some(match &*name.to_ascii_lowercase() {
        "one" => Consistency::One,
        "local_one" => Consistency::LocalOne,
        "two" => Consistency::Two,
        "three" => Consistency::Three,
        "quorum" => Consistency::Quorum,
        "local_quorum" => Consistency::LocalQuorum,
        "each_quorum" => Consistency::EachQuorum,
        "all" => Consistency::All,
        _ => return None,
    })
}

/// Names of the supported consistency levels, for messages.
pub const CONSISTENCIES: &str =
    "one, local_one, two, three, quorum, local_quorum, each_quorum or all";

/// Maximum time to wait until the driver knows all nodes that gossip lists, and delay between two polls.
const PEERS_WAIT: Duration = Duration::from_secs(10);
const PEERS_EVERY: Duration = Duration::from_millis(300);

/// Waits until the driver knows as many nodes as gossip and the connection string do. A node that has just joined
/// appears among the peers later, and a keyspace created before that would have one replica less. Nodes that left stay
/// in gossip for days, so that the wait is bounded by [`PEERS_WAIT`].
async fn await_all_peers(session: &Session, uri: &Uri) {
    let began = Instant::now();
    while began.elapsed() < PEERS_WAIT {
        let gossip = "SELECT address FROM system_views.gossip_info";
        let heard = rows::<(std::net::IpAddr,)>(session, "asking for gossip", gossip, ()).await;
        // An older version has no such table; a node that was just started knows few nodes.
        let heard = heard.map_or(0, |heard| heard.len()).max(uri.nodes.len());
        if session.get_cluster_state().get_nodes_info().len() >= heard {
            return;
        }
        tokio::time::sleep(PEERS_EVERY).await;
        if session.refresh_metadata().await.is_err() {
            return;
        }
    }
}

/// Returns the replication options, as a literal of CQL, of a keyspace with at most `replicas_max` replicas in each
/// data center.
#[crate::boxed]
pub async fn replication(session: &Session, uri: &Uri, replicas_max: usize) -> String {
    await_all_peers(session, uri).await;
    let state = session.get_cluster_state();
    let mut nodes = std::collections::BTreeMap::<&str, usize>::new();
    for node in state.get_nodes_info() {
        *nodes.entry(node.datacenter.as_deref().unwrap_or("datacenter1")).or_default() += 1;
    }
    let replicas: Vec<String> = nodes
        .iter()
        .map(|(name, nodes)| format!("'{name}': {}", (*nodes).min(replicas_max)))
        .collect();
    format!("{{'class': 'NetworkTopologyStrategy', {}}}", replicas.join(", "))
}

/// Runs an idempotent statement and returns its rows; `doing` describes the statement in errors.
pub(crate) async fn rows<R>(
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
