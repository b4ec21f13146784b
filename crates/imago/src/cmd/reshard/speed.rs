//! How fast a change of shape may go.

use imago_job::control::Control;
use imago_job::record::Limits;
use imago_mongo::endpoint::Endpoint;
use imago_mongo::pace;
use imago_mongo::reshard;
use imago_mongo::reshard::plan::{Plan, Request};

use crate::cmd::copy::Pace;
use crate::context::Context;
use crate::exit::{Exit, Failure};

/// How it goes beside the cluster's clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Pacing {
    /// As fast as they hardly feel it; at any speed while none is at work.
    Gentle,
    /// At any speed.
    Full,
}

impl Pacing {
    /// Whether clients are spared.
    pub fn is_gentle(self) -> bool {
        self == Self::Gentle
    }
}

/// What may be typed of it; `imago job set` changes it while a job runs.
#[derive(Debug, clap::Args)]
pub struct Speed {
    /// How it goes beside the cluster's clients.
    #[arg(long, value_enum, default_value = "gentle", value_name = "HOW")]
    pace: Pacing,
    #[command(flatten)]
    limits: Pace,
}

impl Speed {
    /// The limits, if they can be kept.
    pub fn parsed(&self) -> Result<Limits, Failure> {
        Ok(Limits { is_paced: self.pace.is_gentle(), ..self.limits.parsed()? })
    }
}

/// Makes a plan, no faster than the limits let documents be looked at.
pub async fn plan(
    cluster: &Endpoint,
    request: &Request,
    limits: Limits,
    context: &Context,
) -> Result<Plan, Failure> {
    let control = Control::new(limits, context.cancel.clone())
        .map_err(|error| Failure::from_error(Exit::Usage, "limit", &error))?;
    let pace = pace::watch(cluster.clone(), request.ns.clone(), control.clone(), None);
    if limits.is_paced {
        // Batches are as large as the pace allows: while it is being learnt they would be tiny.
        control.or_stop(pace.known()).await.map_err(imago_mongo::error::Error::from)?;
    }
    Ok(Box::pin(reshard::plan(cluster, request, &control)).await?)
}
