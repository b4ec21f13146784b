//! Workers: processes that copy slices of a job whose coordinator is another process.

use std::sync::Arc;

use imago_job::control::Control;
use imago_job::id::JobId;
use imago_job::journal::{Journal, JournalError};
use imago_job::record::{Record, Requested};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::claim::owner_timing;
use super::{Clusters, plan_of, state_of};
use crate::copy::preflight;
use crate::error::{Error, Result};
use crate::replicate::bulk_reader::{Counters, Worker};
use crate::replicate::pair::Pair;
use crate::replicate::route::Route;
use crate::server::collection::Definition;
use crate::server::endpoint::Endpoint;
use crate::state::journal::MongoJournal;
use crate::state::leases::Leases;

/// Copies slices of the job `id`, `workers` at a time, until none is left, and returns the number of documents and
/// bytes that were copied. `route_of` receives the job's record and destination, and returns the route for copies
/// without the router, or the reason that workers are refused.
///
/// # Errors
/// Returns the error that ended this worker. The job continues without this process.
pub async fn run_worker<F: Future<Output = Result<Option<Arc<Route>>>>>(
    clusters: &Clusters,
    id: &JobId,
    workers: usize,
    control: Control,
    process: &str,
    route_of: impl FnOnce(Record, Endpoint) -> F,
) -> Result<(u64, u64)> {
    let record = MongoJournal::new(clusters.destination.clone()).load(id).await?;
    if record.state.is_final() {
        let (id, state) = (id.clone(), record.state.clone());
        return Err(JournalError::Final { id, state }.into());
    }
    let route = route_of(record.clone(), clusters.destination.clone()).await?;
    let plan = plan_of(&record)?;
    if state_of(&record)?.t0.is_none() {
        return Err(Error::precondition(
            format!("job {id} is not prepared yet"),
            "wait until it is in its phase `copy`",
        ));
    }
    let found = preflight::pairs(&plan, &clusters.source, &clusters.destination).await?;
    let (pairs, definitions): (Vec<Pair>, Vec<Definition>) =
        found.into_iter().map(|of| (of.pair, of.definition)).unzip();
    let counters = Arc::new(Counters::default());
    let worker = Worker {
        pairs: Arc::new(pairs),
        definitions: Arc::new(definitions),
        leases: Leases::new(clusters.destination.clone(), id.clone(), format!("worker/{process}")),
        control: control.clone(),
        counters: Arc::clone(&counters),
        route,
    };
    let journal = MongoJournal::new(clusters.destination.clone());
    follow_requests(&journal, id, &control).await?;
    let obedience = (id.clone(), control);
    let _obedience = AbortOnDropHandle::new(tokio::spawn(async move {
        let (id, control) = obedience;
        loop {
            tokio::time::sleep(owner_timing().heartbeat).await;
            // If the destination is unreachable, the workers wait for it.
            if let Err(error) = follow_requests(&journal, &id, &control).await {
                tracing::debug!(%error, "the job's requests could not be read");
            }
        }
    }));
    let mut all = JoinSet::new();
    for _ in 0..workers {
        let worker = worker.clone();
        all.spawn(async move { worker.run().await });
    }
    while let Some(ended) = all.join_next().await {
        ended.expect("a worker neither panics nor is aborted")?;
    }
    Ok(counters.copied())
}

/// Reads the operator's requests from the job's record, and applies the job's limits, pause and end to this worker.
async fn follow_requests(journal: &MongoJournal, id: &JobId, control: &Control) -> Result<()> {
    let record = journal.load(id).await?;
    control.throttle().set(record.limits).map_err(JournalError::from)?;
    let ended = record.state.is_final();
    control.request(if ended { Requested::Cancel } else { record.control });
    Ok(())
}
