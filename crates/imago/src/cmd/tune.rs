//! `imago tune`: when a database's configuration should change, and to what.

mod cluster;
mod compare;
mod database;
mod decisions;
mod design;
mod fit;
mod import;
mod jobs;
mod knobs;
mod measured;
mod observe;
mod plan;
mod roll;
mod run;
mod sample;
mod search;

use imago_job::record::Requested;

#[cfg(feature = "bench")]
pub(super) use plan::measurements;

use crate::context::Context;
use crate::exit::Failure;

/// The command's arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Advise from a trace whether, when and to what the configuration should change; changes
    /// nothing.
    Plan(plan::Args),
    /// Convert Prometheus' reply to a range query, or the log of cassandra-stress, into a trace.
    Import(import::Args),
    /// Draw configurations that cover the ranges of some settings evenly, for `sample` to measure.
    Design(design::Args),
    /// Measure what each configuration of a real Cassandra or Redis serves of each mix.
    Sample(sample::Args),
    /// Compare two configurations of a real Cassandra or Redis that take turns under one load.
    Compare(compare::Args),
    /// Rank settings by measurements, and predict the best configuration for each mix.
    Search(search::Args),
    /// Estimate from a sample of a Redis server's keys what other thresholds would save and cost;
    /// the server is not changed.
    Fit(fit::Args),
    /// Tune a cluster: observe, decide, roll out changes that pay, measure them, and undo those
    /// that made it worse.
    Run(Box<run::Args>),
    /// Report the operations of clients on a cluster, interval by interval.
    Observe(observe::Args),
    /// Change settings of all nodes of a cluster while it serves.
    Roll(roll::Args),
    /// List the settings that a roll can change: values, defaults, and what a change costs.
    Knobs(knobs::Args),
    /// List the rolls stored in a cluster, the oldest first.
    Jobs(cluster::ClusterArgs),
    /// List what `run` decided for a cluster, and why.
    Decisions(decisions::Args),
    /// Show how good the predicted gains were of the changes that `run` made to a cluster.
    Foresight(cluster::ClusterArgs),
    /// Suspend changes by `run` until `go-on`.
    Hold(cluster::ClusterArgs),
    /// Show the steps of a roll, with the reason for each.
    Explain(jobs::JobOrLastArgs),
    /// Pause a roll before its next step.
    Pause(jobs::JobArgs),
    /// Resume a paused roll; without a job, allow `run` to make changes again.
    GoOn(jobs::JobOrAllArgs),
    /// End a roll before its next step; nodes that have the new configuration keep it.
    Cancel(jobs::JobArgs),
}

/// Runs the chosen action of `imago tune`.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    match args.action {
        Action::Plan(args) => Box::pin(plan::run(args, context)).await,
        Action::Import(args) => import::run(args, context).await,
        Action::Design(args) => design::run(&args, context).await,
        Action::Sample(args) => sample::run(args, context).await,
        Action::Compare(args) => compare::run(args, context).await,
        Action::Search(args) => search::run(&args, context).await,
        Action::Fit(args) => Box::pin(fit::run(args, context)).await,
        Action::Run(args) => run::run(*args, context).await,
        Action::Observe(args) => observe::run(args, context).await,
        Action::Decisions(args) => decisions::list(&args, context).await,
        Action::Foresight(kept) => decisions::foresight(&kept, context).await,
        Action::Hold(kept) => decisions::hold(&kept, true, context).await,
        Action::Roll(args) => roll::run(args, context).await,
        Action::Knobs(args) => knobs::run(&args, context),
        Action::Jobs(kept) => jobs::list(&kept, context).await,
        Action::Explain(which) => jobs::explain(which, context).await,
        Action::Pause(one) => jobs::ask(&one, Requested::Pause, context).await,
        Action::GoOn(which) => jobs::go_on(which, context).await,
        Action::Cancel(one) => jobs::cancel(&one, context).await,
    }
}
