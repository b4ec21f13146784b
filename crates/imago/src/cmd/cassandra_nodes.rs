//! Cassandra nodes for a demo or a benchmark, which start before it and are removed after it.

use std::path::{Path, PathBuf};

use imago_testbed::supervisor;
use imago_testbed::supervisor::registry::{Registry, RegistryEntry};
use imago_testbed::{CassandraSpec, ContentSpec, Error};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::testbed::{failure, write_cluster_file};
use crate::context::Context;
use crate::exit::{Exit, Failure};

/// Starts Cassandra nodes as `spec` says, and runs `use_them` with the path of the cluster file, which describes how
/// to reach the nodes. The nodes are removed when this returns, even when it is interrupted.
pub(super) async fn with_nodes<T>(
    spec: CassandraSpec,
    context: &Context,
    use_them: impl AsyncFnOnce(&Path) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let spec = ContentSpec::from(spec);
    spec.check().and_then(|()| spec.find_programs()).map_err(failure)?;
    let (stood, stands) = oneshot::channel::<Option<PathBuf>>();
    let ready = |standing: &RegistryEntry| {
        if let Some(why) = &standing.unshared {
            eprintln!("CPU limits unavailable: {why}");
        }
        let file = write_cluster_file(standing)?;
        // If the receiver is gone, the nodes are ended in any case.
        let _ = stood.send(file);
        Ok(())
    };
    let done = CancellationToken::new();
    let registry = Registry::of_user();
    let kept = supervisor::supervise(spec, &registry, ready, done.cancelled());
    let used = async {
        let ends = done.clone().drop_guard();
        let file = tokio::select! {
            file = stands => file.ok().flatten()?,
            () = context.cancel.cancelled() => return Some(Err(interrupted())),
        };
        let used = tokio::select! {
            used = use_them(&file) => used,
            () = context.cancel.cancelled() => Err(interrupted()),
        };
        drop(ends);
        Some(used)
    };
    let (kept, used): (Result<(), Error>, _) = tokio::join!(Box::pin(kept), Box::pin(used));
    kept.map_err(failure)?;
    used.unwrap_or_else(|| {
        Err(Failure::new(Exit::Failed, "testbed", "the nodes ended before they could be used"))
    })
}

fn interrupted() -> Failure {
    Failure::new(Exit::Interrupted, "interrupted", "stopped; what was started is gone")
}
