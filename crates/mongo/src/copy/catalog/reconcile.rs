//! Adapts the set of a job's collections to the source's catalog, between two coordinators.

use bson::{Document, doc};
use imago_job::run::Run;

use super::{JOINED_MAX, Joined, lose, news, report_gone};
use crate::copy::functions::sync_functions;
use crate::copy::preflight::{Plan, Planned};
use crate::copy::{Clusters, State, plan_with, retry_transient, save};
use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::server::collection::{Definition, Handle, Kind, Listed};
use crate::server::retention;

/// Returns true if `view` has the same definition in both listed catalogs, or neither has a view of its name.
pub(super) fn is_same_view(
    at_source: &[Listed],
    at_destination: &[Listed],
    view: &Planned,
) -> bool {
    let options = |all: &[Listed], ns: &Namespace| -> Option<Document> {
        let is_it = |listed: &&Listed| listed.ns == *ns && listed.kind == Kind::View;
        all.iter().find(is_it).map(|listed| listed.options.clone())
    };
    options(at_source, &view.from) == options(at_destination, &view.to)
}

/// Adapts the set of the job's collections to the source's catalog and returns the new state: drops the copies of
/// collections that are gone, records those that join, and makes views and stored functions equal to the source's. No
/// other process writes for the job meanwhile.
///
/// # Errors
/// Fails if a cluster stays unavailable, the job was taken over, or no collection is left.
pub(in crate::copy) async fn reconcile(
    clusters: &Clusters,
    run: &Run,
    mut state: State,
) -> Result<State> {
    let mut plan = plan_with(run.record(), &state)?;
    let look = || news(clusters, &plan);
    let mut found =
        retry_transient("look at the source's collections", run.control(), look).await?;
    if !found.replaced.is_empty() {
        for (n, what) in found.replaced {
            if !lose(&mut state, &mut plan, n, &what) {
                let ns = plan.collections[n].from.to_string();
                return Err(Error::Disrupted { ns, what });
            }
            report_gone(run, &plan.collections[n], &what);
        }
        save(run, &state).await?;
        let look = || news(clusters, &plan);
        found = retry_transient("look at the source's collections", run.control(), look).await?;
    }
    // The source may have a view of the plan again, in place of a collection whose copy still has its name.
    let is_awaited = |ns: &Namespace| {
        plan.collections.iter().any(|of| of.holds_name && of.from == *ns)
            && found.views.contains(ns)
    };
    let returns = plan.views.iter().any(|view| is_awaited(&view.from));
    let has_match = !(found.new.is_empty() && found.freed.is_empty()) || returns;
    let mut is_freed = drop_views(clusters, run, &plan).await?;
    if has_match || !plan.is_all_gone() {
        is_freed |= drop_copies(clusters, run, &mut state, &mut plan).await?;
    }
    if is_freed {
        let look = || news(clusters, &plan);
        found = retry_transient("look at the source's collections", run.control(), look).await?;
    }
    let now = || clusters.source.cluster_time();
    let now = retry_transient("ask for the source's time", run.control(), now).await?;
    for (kind, planned) in found.new {
        if state.joined.len() == JOINED_MAX {
            return Err(Error::precondition(
                format!("{} would be the {JOINED_MAX}th collection to join", planned.from),
                "the patterns match collections that are created and dropped continually: start a \
                 job that names the collections to move, or set --no-new",
            ));
        }
        run.reporter().decision(
            format!("{} joins the job as {}", planned.from, planned.to),
            "it was created at the source after the plan was made, and a pattern matches it"
                .to_owned(),
        );
        if kind == Kind::View {
            state.joined_views.push(planned.clone());
            plan.views.push(planned);
        } else {
            let since = (now.time, now.increment);
            state.joined.push(Joined { planned, since, is_prepared: false });
            state.is_indexed = false;
        }
    }
    if !state.joined.iter().all(|joined| joined.is_prepared) {
        // The stream may differ from now on: it may be one of a database instead of one of a collection.
        (state.t0, state.token) = (state.applied_to.or(state.t0), None);
    }
    save(run, &state).await?;
    let sync = || sync_views(clusters, run, &plan);
    retry_transient("define the views", run.control(), sync).await?;
    let sync = || sync_functions(clusters, run, &plan);
    retry_transient("copy the stored functions", run.control(), sync).await?;
    Ok(state)
}

/// Drops the copies of collections that are gone, if the job created them; restores the retention rules of the
/// others. Returns true if a collection was gone and not handled yet.
async fn drop_copies(
    clusters: &Clusters,
    run: &Run,
    state: &mut State,
    plan: &mut Plan,
) -> Result<bool> {
    let mut any = false;
    for (&n, gone) in state.gone.iter_mut().filter(|(_, gone)| !gone.is_done) {
        let planned = &mut plan.collections[n];
        if planned.creates {
            let mut copy = Handle::new(clusters.destination.clone(), planned.to.clone());
            copy.owner = Some(run.ownership());
            retry_transient("drop a copy", run.control(), || copy.drop()).await?;
            run.reporter().decision(
                format!("{} is dropped", planned.to),
                format!("{} was {} at the source", planned.from, gone.what),
            );
        } else if let Some(rules) = state.retention.get(&n) {
            let to = Handle::new(clusters.destination.clone(), planned.to.clone());
            let restore = || retention::restore(&to, rules);
            retry_transient("restore the expiry of documents", run.control(), restore).await?;
        }
        planned.holds_name = false;
        (gone.is_done, any) = (true, true);
    }
    if any {
        save(run, state).await?;
    }
    Ok(any)
}

/// Drops, at the destination, the job's views whose names are no longer views at the source. Returns true if there
/// were any.
async fn drop_views(clusters: &Clusters, run: &Run, plan: &Plan) -> Result<bool> {
    let mut any = false;
    for view in &plan.views {
        let from = Handle::new(clusters.source.clone(), view.from.clone());
        let mut to = Handle::new(clusters.destination.clone(), view.to.clone());
        to.owner = Some(run.ownership());
        let drop = || drop_view(&from, &to);
        any |= retry_transient("drop a view", run.control(), drop).await?;
    }
    Ok(any)
}

async fn drop_view(from: &Handle, to: &Handle) -> Result<bool> {
    let is_view = |of: Option<Definition>| of.is_some_and(|of| of.kind == Kind::View);
    let is_left = !is_view(from.definition().await?) && is_view(to.definition().await?);
    if is_left {
        to.drop().await?;
    }
    Ok(is_left)
}

/// Makes the job's views at the destination equal to those at the source.
///
/// # Errors
/// Fails if a cluster does not reply or refuses, or the destination has a collection of a view's name.
pub(crate) async fn sync_views(clusters: &Clusters, run: &Run, plan: &Plan) -> Result<()> {
    for view in &plan.views {
        let from = Handle::new(clusters.source.clone(), view.from.clone());
        let mut to = Handle::new(clusters.destination.clone(), view.to.clone());
        to.owner = Some(run.ownership());
        let wanted = from.definition().await?.filter(|of| of.kind == Kind::View);
        let have = to.definition().await?;
        match (wanted, have) {
            (None, None) => {}
            (None, Some(have)) if have.kind == Kind::View => to.drop().await?,
            // The name now belongs to a collection, which joins the job.
            (None, Some(_)) => {}
            (Some(wanted), None) => to.create(&wanted.options).await?,
            (Some(wanted), Some(have)) if have.kind == Kind::View => {
                if wanted.options.get("collation") != have.options.get("collation") {
                    to.drop().await?;
                    to.create(&wanted.options).await?;
                } else if wanted.options != have.options {
                    let mut command = doc! {"collMod": &view.to.coll};
                    for part in ["viewOn", "pipeline"] {
                        command
                            .extend(wanted.options.get(part).map(|of| (part.into(), of.clone())));
                    }
                    to.check_owner("collMod")?;
                    to.endpoint.run(&view.to.db, command).await?;
                }
            }
            (_, Some(_)) => {
                return Err(Error::precondition(
                    format!("the destination has a collection where the view {} belongs", view.to),
                    "drop or rename it, then `imago job resume`",
                ));
            }
        }
    }
    Ok(())
}
