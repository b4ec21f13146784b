//! Starts a coordinator from the state in the job's record.

use std::sync::Arc;

use bson::Timestamp;
use imago_job::clock::now_ms;
use imago_job::event::Progress;
use imago_job::run::Run;
use imago_plan::copy::pending_changes::SliceState;
use tokio::task::JoinSet;

use super::catalog::CatalogWatch;
use super::checkpoints::CheckpointSaver;
use super::report::CopyProgress;
use super::state::start_of;
use super::{
    Clusters, CopyJob, CutOver, Options, State, catalog, plan_with, predictions, retention,
    retry_transient, save,
};
use crate::copy::preflight::{self, Plan, Planned};
use crate::copy::prepare::{prepare, prepare_joined};
use crate::error::{Error, Result};
use crate::replicate::bulk_reader::{Counters, count_filtered};
use crate::replicate::coordinator::{Coordinator, Member, Parts};
use crate::replicate::monitor::{self, Applied};
use crate::replicate::pair::Pair;
use crate::server::block;
use crate::server::collection::Definition;
use crate::state::journal::MongoJournal;
use crate::state::leases::Leases;

impl<'a> CopyJob<'a> {
    /// Creates the slices that are missing, opens the change stream, and returns the job. `state` is the job's state,
    /// which this run may have changed since it read the record.
    ///
    /// # Errors
    /// Fails if a cluster does not reply or refuses.
    #[crate::boxed]
    pub async fn begin_at(
        clusters: &'a Clusters,
        run: &'a Run,
        options: &Options,
        mut state: State,
    ) -> Result<Self> {
        loop {
            match Self::begin_once(clusters, run, options, &mut state).await {
                // This happens at most once for each collection.
                Err(Error::Disrupted { ns, what }) => lost(run, &mut state, &ns, &what).await?,
                begun => return begun,
            }
        }
    }

    async fn begin_once(
        clusters: &'a Clusters,
        run: &'a Run,
        options: &Options,
        state: &mut State,
    ) -> Result<Self> {
        let plan = plan_with(run.record(), state)?;
        state.refuse_undecided(&run.record().id)?;
        let job = run.record().id.clone();
        let owner = format!("{job}/{}/{}", run.epoch(), options.process);
        let leases = Leases::new(clusters.destination.clone(), job, owner);
        restore_blocks(clusters, run, state).await?;
        let is_resumed = state.t0.is_some();
        prepare_slices(clusters, run, options, &plan, &leases, state).await?;
        let (pairs, definitions) = pairs_of(clusters, run, &plan, state).await?;
        let copied = copied_before(run, &leases).await?;
        if is_resumed && !copied.is_all {
            report_resume_point(run, copied.documents);
        }
        let copied_before = (copied.documents, copied.bytes);
        let total = if copied.is_all {
            copied_before
        } else {
            let count = || expected(&plan, &pairs);
            retry_transient("count what is to be copied", run.control(), count).await?
        };
        let look = || clusters.source.has_last_writes();
        let has_last_writes = retry_transient("look at the source", run.control(), look).await?;
        let counters = Arc::new(Counters::default());
        let coordinator = Coordinator::begin(Parts {
            source: clusters.source.clone(),
            pairs: Arc::clone(&pairs),
            members: members(&plan, state),
            db: plan.all().next().expect("a plan holds something").from.db.clone(),
            is_open: plan.is_open(&run.record().kind),
            slices: retry_transient("read the slices", run.control(), || leases.slices()).await?,
            leases: leases.clone(),
            control: run.control().clone(),
            counters: Arc::clone(&counters),
            start: start_of(state)?,
            await_max: options.await_max,
        })
        .await?;
        let applied = Applied::default();
        let watches = monitor::watch(
            clusters,
            run.control().clone(),
            run.reporter().clone(),
            Arc::clone(&applied),
        );
        let entries = plan.collections.iter().filter(|one| one.gone.is_none());
        let entries = entries.map(|one| one.size.documents * one.indexes as u64).sum();
        let applied_before = shown_before(run).changes_applied;
        let mut progress = CopyProgress::new(total, copied_before, applied_before, entries);
        let journal = MongoJournal::new(clusters.destination.clone());
        progress.widening = predictions::widening(&journal).await;
        if progress.widening > 1.0 && !copied.is_all {
            run.reporter().decision(
                format!("intervals of the end are {:.1} times as wide", progress.widening),
                "too few of those of earlier jobs contained it: see `imago foresight`",
            );
        }
        Ok(Self {
            applied,
            _watches: watches,
            clusters,
            run,
            plan,
            state: state.clone(),
            catalog: CatalogWatch::new(),
            has_last_writes,
            pairs,
            definitions: Arc::new(definitions),
            leases,
            counters,
            workers: JoinSet::new(),
            coordinator,
            route: None,
            progress,
            checkpoints: CheckpointSaver::new(),
        })
    }
}

/// Lifts the write block that a dead cut-over left at the source and, for a reverse job, sets the write block at its
/// destination (the old cluster) again.
async fn restore_blocks(clusters: &Clusters, run: &Run, state: &mut State) -> Result<()> {
    if state.cut_over().is_some_and(CutOver::is_blocked) {
        block::lift(&clusters.source).await?;
        state.cut_over_mut().count_block(now_ms());
        save(run, state).await?;
    }
    if state.is_destination_blocked() {
        // A cut-over back may have lifted it before its process died.
        let block = || block::set(&clusters.destination);
        retry_transient("block the old cluster's writes", run.control(), block).await?;
    }
    Ok(())
}

/// Prepares the slices. For a new job, reads the source's cluster time T0 and creates the slices; for a resumed one,
/// expires the leases of the job's earlier coordinators. Then creates the slices of collections that joined.
async fn prepare_slices(
    clusters: &Clusters,
    run: &Run,
    options: &Options,
    plan: &Plan,
    leases: &Leases,
    state: &mut State,
) -> Result<()> {
    if state.t0.is_none() {
        run.enter("prepare").await?;
        retention::note_from(0, clusters, run, plan, state).await?;
        let prepare = || prepare(clusters, plan, leases, options.slice_bytes);
        state.t0 = Some(retry_transient("prepare the copy", run.control(), prepare).await?);
        save(run, state).await?;
    } else {
        let mine = format!("{}/", run.record().id);
        let expire = || leases.expire(&mine);
        retry_transient("give up the leases of who is gone", run.control(), expire).await?;
    }
    if let Some(first) = state.joined.iter().position(|joined| !joined.is_prepared) {
        run.enter("prepare").await?;
        let first_number = plan.collections.len() - state.joined.len() + first;
        let slice_bytes = options.slice_bytes;
        retention::note_from(first_number, clusters, run, plan, state).await?;
        let prepare = || prepare_joined(first_number, clusters, plan, leases, slice_bytes);
        retry_transient("prepare what joined", run.control(), prepare).await?;
        state.joined[first..].iter_mut().for_each(|joined| joined.is_prepared = true);
        save(run, state).await?;
    }
    Ok(())
}

/// Returns the handles of each collection at the source and the destination, and its definition at the source, by its
/// number. The destination handles admit writes only while this process owns the job. Suspends the retention rules of
/// the destination's collections.
async fn pairs_of(
    clusters: &Clusters,
    run: &Run,
    plan: &Plan,
    state: &mut State,
) -> Result<(Arc<Vec<Pair>>, Vec<Definition>)> {
    let look = || preflight::pairs(plan, &clusters.source, &clusters.destination);
    let found = retry_transient("look at the collections", run.control(), look).await?;
    retention::suspend(clusters, run, plan, &found, state).await?;
    let (mut pairs, definitions): (Vec<Pair>, Vec<Definition>) =
        found.into_iter().map(|of| (of.pair, of.definition)).unzip();
    for pair in &mut pairs {
        pair.destination.owner = Some(run.ownership());
    }
    Ok((Arc::new(pairs), definitions))
}

/// The documents of the slices that earlier processes of the job copied.
struct CopiedBefore {
    /// Number of documents in copied slices.
    documents: u64,
    /// Size of the documents in copied slices, in bytes.
    bytes: u64,
    /// True if every slice of the job is copied.
    is_all: bool,
}

async fn copied_before(run: &Run, leases: &Leases) -> Result<CopiedBefore> {
    let look = || leases.states_after(None);
    let seen = retry_transient("look at the slices", run.control(), look).await?;
    Ok(CopiedBefore {
        documents: seen.iter().map(|slice| slice.documents).sum(),
        bytes: seen.iter().map(|slice| slice.bytes).sum(),
        is_all: seen.iter().all(|slice| slice.state == SliceState::Copied),
    })
}

/// Returns the progress that this process or its predecessor reported last; all zero if neither did.
fn shown_before(run: &Run) -> Progress {
    let latest = run.reporter().latest_progress();
    latest.or_else(|| run.record().progress.clone()).unwrap_or_default()
}

/// Reports the number `copied` of documents with which an unfinished copy resumes, unless this process has reported
/// progress before. The number may be lower than the predecessor showed: slices are saved periodically, and documents
/// that were copied since the last save are copied again.
fn report_resume_point(run: &Run, copied: u64) {
    if run.reporter().latest_progress().is_none() {
        run.reporter().decision(
            format!("the copy goes on from {copied} documents"),
            "so many had been saved; what was copied since then is copied again".to_owned(),
        );
    }
}

/// Records that the source no longer has the collection `ns`, which the event `what` ended, so that the job continues
/// without it. Returns [`Error::Disrupted`] if the job cannot continue.
async fn lost(run: &Run, state: &mut State, ns: &str, what: &str) -> Result<()> {
    let mut plan = plan_with(run.record(), state)?;
    let is_it = |planned: &Planned| planned.gone.is_none() && planned.from.to_string() == ns;
    let found = plan.collections.iter().position(is_it);
    let is_open = plan.is_open(&run.record().kind);
    match found.filter(|n| is_open && catalog::lose(state, &mut plan, *n, what)) {
        Some(n) => {
            catalog::report_gone(run, &plan.collections[n], what);
            save(run, state).await
        }
        None => Err(Error::Disrupted { ns: ns.to_owned(), what: what.to_owned() }),
    }
}

/// Returns, for each collection by its number, the properties that the coordinator needs in addition to its [`Pair`].
fn members(plan: &Plan, state: &State) -> Vec<Member> {
    let planned_first = plan.collections.len() - state.joined.len();
    let since = |n: usize| {
        let joined = n.checked_sub(planned_first).map(|n| state.joined[n].since);
        let (time, increment) = joined.unwrap_or((0, 0));
        Timestamp { time, increment }
    };
    let all = plan.collections.iter().enumerate();
    all.map(|(n, of)| Member { since: since(n), is_gone: of.gone.is_some() }).collect()
}

/// Returns the estimated number of documents to copy, and their size in bytes.
async fn expected(plan: &Plan, pairs: &[Pair]) -> Result<(u64, u64)> {
    let mut total = (0, 0);
    for (pair, planned) in pairs.iter().zip(&plan.collections) {
        let documents = match pair.filter {
            Some(_) => count_filtered(pair).await?,
            None => planned.size.documents,
        };
        total.0 += documents;
        total.1 += planned.size.bytes * documents / planned.size.documents.max(1);
    }
    Ok(total)
}
