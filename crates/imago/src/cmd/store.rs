//! `imago store`: a transactional store, and changes of its design (partition bounds, replicas and masters) by
//! command and by adaptation.

mod adapt;
mod admin;
mod drain;
mod explain;
mod heat;
mod limits;
mod maxmemory;
mod processes;
mod serve;

use std::sync::Arc;

use clap::Subcommand;
pub(super) use heat::reads_as_text;

use imago_store::resp::Procedures;

use crate::context::Context;
use crate::exit::Failure;

/// Returns the procedures that every process of a store registers: those of `imago load tpcc` and the like.
fn procedures() -> Arc<Procedures> {
    let mut procedures = Procedures::default();
    imago_load::store::transactions::register(&mut procedures);
    Arc::new(procedures)
}

/// The command's arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "made once, from what was typed")]
enum Action {
    /// Serve a store to clients of Redis, until Ctrl-C.
    Serve(serve::ServeArgs),
    /// Serve a store whose sites are in processes of their own, until Ctrl-C.
    Router(processes::RouterArgs),
    /// Serve one site of a store whose router is in another process, until Ctrl-C.
    Site(processes::SiteArgs),
    /// Show partitions, their masters and their replicas, with sizes and rates.
    Design(admin::Where),
    /// Split a partition in two at a key.
    Split(admin::At),
    /// Merge the partition that has a key with the next one.
    Merge(admin::At),
    /// Add a replica of the partition that has a key, at a site.
    AddReplica(admin::AtSite),
    /// Remove the replica at a site.
    RemoveReplica(admin::AtSite),
    /// Make a site that has a replica the partition's master.
    Remaster(admin::AtSite),
    /// Make a site the partition's master, and keep it there even if transactions need it elsewhere.
    Pin(admin::AtSite),
    /// Let the partition's master change again.
    Unpin(admin::At),
    /// Show what adaptation has learned and decided, with the reasons.
    Explain(adapt::ExplainArgs),
    /// Show how good the predictions for executed plans of adaptation were.
    Foresight(admin::Where),
    /// Show the limits of adaptation, or change them while the store serves.
    Adapt(limits::LimitsArgs),
    /// Move all copies off a site, and give it none until it is added again.
    Drain(drain::SiteAt),
    /// Put a site into use that was drained, or declared unused at the start.
    Add(drain::SiteAt),
    /// Show a heat map of reads, writes, conflicts or processor time, by range of keys and time.
    Heat(heat::HeatArgs),
}

/// Runs the chosen action of `imago store`.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    match args.action {
        Action::Serve(args) => serve::run(args, context).await,
        Action::Router(args) => processes::router(args, context).await,
        Action::Site(args) => processes::site(args, context).await,
        Action::Design(at) => admin::design(&at, context).await,
        Action::Split(at) => admin::change("split", at.into(), context).await,
        Action::Merge(at) => admin::change("merge", at.into(), context).await,
        Action::AddReplica(at) => admin::change("add-replica", at, context).await,
        Action::RemoveReplica(at) => admin::change("remove-replica", at, context).await,
        Action::Remaster(at) => admin::change("remaster", at, context).await,
        Action::Pin(at) => admin::change("pin", at, context).await,
        Action::Explain(args) => adapt::explain(args, context).await,
        Action::Foresight(store) => adapt::foresight(store, context).await,
        Action::Adapt(args) => limits::limits(args, context).await,
        Action::Drain(at) => drain::drain(at, context).await,
        Action::Add(at) => drain::add(at, context).await,
        Action::Heat(args) => heat::heat(args, context).await,
        Action::Unpin(at) => admin::change("unpin", at.into(), context).await,
    }
}
