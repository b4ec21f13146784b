//! Planning of a reshard within the speed limits, so that clients are not slowed down too much.

use imago_job::control::Control;
use imago_job::record::Limits;
use imago_mongo::replicate::pace;
use imago_mongo::reshard;
use imago_mongo::reshard::plan::{Plan, Request};
use imago_mongo::server::endpoint::Endpoint;

use crate::context::Context;
use crate::exit::{Exit, Failure};

/// Makes the plan of a reshard, reading documents no faster than the limits permit.
pub async fn plan(
    cluster: &Endpoint,
    request: &Request,
    limits: Limits,
    context: &Context,
) -> Result<Plan, Failure> {
    let control = Control::new(limits, context.cancel.clone())
        .map_err(|error| Failure::from_error(Exit::Usage, "limit", &error))?;
    let watched = pace::SparedCluster::of(cluster.clone(), request.ns.clone());
    let pace = pace::watch(vec![watched], control.clone(), None);
    if limits.is_paced {
        // Waits for a known pace: the pace limits the size of batches, which would be tiny while it
        // is being learnt.
        control.or_stop(pace.known()).await.map_err(imago_mongo::error::Error::from)?;
    }
    Ok(reshard::plan(cluster, request, &control).await?)
}
