//! Route of the bulk copy of a reshard past the router to the shards.

use std::sync::Arc;

use bson::Document;
use imago_job::record::Record;
use imago_job::run::Run;

use crate::bson::input;
use crate::error::Result;
use crate::replicate::route::{Map, Reader, Route};
use crate::reshard::execute::zones;
use crate::reshard::spec::{KIND, Spec};
use crate::server::collection::Handle;
use crate::server::endpoint::Endpoint;

/// Returns the route past the router for a further process that copies slices of a job (`imago job work`); `None` if
/// the documents must pass through the router, as for jobs of another kind.
///
/// # Errors
/// Returns a precondition error if the job has no work to share; another error if the router does not reply.
#[crate::boxed]
pub async fn worker_route(record: Record, cluster: Endpoint) -> Result<Option<Arc<Route>>> {
    crate::reshard::execute::native::refuse_help(&record)?;
    route_of(&record, &cluster).await
}

/// Returns the route past the router for the job of `record`. Returns `None` for jobs of another kind, for a hashed
/// key, whose values only the servers compute, and if a shard cannot be reached with the user's credentials.
///
/// # Errors
/// Fails if the router does not reply.
pub(in crate::reshard) async fn route_of(
    record: &Record,
    cluster: &Endpoint,
) -> Result<Option<Arc<Route>>> {
    if record.kind != KIND {
        return Ok(None);
    }
    let spec = Spec::of(record)?;
    let plan = &spec.reshard;
    let of = Handle::new(cluster.clone(), plan.ns.clone());
    let key = input::parse_document(&plan.key, "the shard key")?;
    let old = of.shard_key().await?.unwrap_or_default();
    let is_hashed = |key: &Document| key.values().any(|way| way.as_str() == Some("hashed"));
    if is_hashed(&key) || is_hashed(&old) {
        return Ok(None);
    }
    let mut reached = cluster.shards().await?;
    let mut shards = Vec::new();
    for (index, name) in plan.shards.iter().enumerate() {
        let Some(at) = reached.iter().position(|(known, _)| known == name) else {
            return Ok(None);
        };
        match reached.swap_remove(at).1 {
            Ok(shard) => {
                let member = plan.members.get(index).and_then(Option::as_deref);
                let reader = Reader::new(shard.clone(), member)?;
                shards.push((name.clone(), shard, reader));
            }
            Err(error) => {
                tracing::info!(%error, "the bulk goes through the router");
                return Ok(None);
            }
        }
    }
    let mut chunks = Vec::new();
    for chunk in &plan.chunks {
        chunks.push((zones::min_of(chunk.min.as_deref(), &key)?, chunk.shard));
    }
    let sockets = |from, to| {
        let flow = plan.flows.iter().find(|flow| (flow.from, flow.to) == (from, to));
        flow.map_or(LOCAL_SOCKETS, |flow| flow.sockets)
    };
    Ok(Some(Route::new(of, shards, Map::new(&key, &chunks)?, sockets)))
}

/// Number of connections for the documents that stay on their shard, which compete with no flow.
const LOCAL_SOCKETS: usize = 4;

/// Reports measurements of the bytes that this process copied from each shard to each other one.
pub(in crate::reshard) fn measure(run: &Run, route: Option<&Route>) {
    let Some(route) = route else { return };
    let mut moved = 0;
    for (from, to, bytes) in route.sent().filter(|(from, to, bytes)| from != to && *bytes > 0) {
        moved += bytes;
        let name = format!("moved_bytes {} to {}", route.names[from], route.names[to]);
        run.reporter().measurement(name, bytes_f64(bytes), "bytes");
    }
    run.reporter().measurement("moved_bytes", bytes_f64(moved), "bytes");
}

#[expect(clippy::cast_precision_loss, reason = "a figure to look at")]
fn bytes_f64(bytes: u64) -> f64 {
    bytes as f64
}
