//! `imago demo`: real clusters on this machine are migrated and changed under real clients, and
//! every acknowledged operation is checked.

use crate::context::Context;
use crate::exit::{Exit, Failure};

mod adapt;
mod keys;
mod load;
mod migration;
mod provision;
mod reshard;
mod store;
mod tune;

/// The command's arguments.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    scene: Option<Scene>,
    #[command(flatten)]
    migration: migration::Migration,
}

/// A scene other than a migration.
#[derive(Debug, clap::Subcommand)]
enum Scene {
    /// Watch the shard key of a busy collection change under its clients.
    Reshard(reshard::Args),
    /// Watch a collection get the shard key that suits its clients: recorded, judged, changed, and measured.
    Keys(keys::Args),
    /// Watch a store choose its own design while a hotspot moves, beside the same store without.
    Adapt(adapt::Args),
    /// Predict how long a chained job takes on one, two and four shards, and measure it.
    Provision(provision::Args),
    /// Watch a Cassandra cluster be tuned while its clients turn from writing to scanning.
    Tune(tune::Args),
    /// Watch a store change its design, and lose a site, under its clients.
    Store(store::Args),
}

/// Runs the chosen demo until its end, or until the process is interrupted.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    if let Some(Scene::Tune(args)) = &args.scene {
        // This demo ends its nodes itself.
        return tune::run(args, context).await;
    }
    let work = async {
        match &args.scene {
            Some(Scene::Reshard(args)) => reshard::run(args, context).await,
            Some(Scene::Keys(args)) => keys::run(args, context).await,
            Some(Scene::Adapt(args)) => adapt::run(args, context).await,
            Some(Scene::Store(args)) => store::run(args, context).await,
            Some(Scene::Provision(args)) => provision::run(args, context).await,
            Some(Scene::Tune(_)) => unreachable!("it was run above"),
            None => migration::run(&args.migration, context).await,
        }
    };
    tokio::select! {
        done = work => done,
        () = context.cancel.cancelled() => Err(Failure::new(
            Exit::Interrupted,
            "interrupted",
            "the demo was stopped; what it had started is gone",
        )),
    }
}
