//! Commit: the shadow is renamed to the collection's name without loss of writes.
//!
//! Writes are blocked, the shadow is brought to the state of the collection as of one time after the write block, the
//! last changes are compared, and the server renames the shadow over the collection in one step. A write block that
//! admits deletes stays on the renamed collection until late writes are brought over
//! ([`crate::reshard::commit::validation`], [`crate::reshard::commit::late_writes`]).
//!
//! The drain has a deadline: if it is missed, the write block is lifted, and the commit is attempted again later. The
//! rename has none. Once it was requested, the server may perform it at any time, even if the reply is lost. The
//! rename is retried, and its outcome polled, until it is known. A write block that stops deletes too is lifted as
//! soon as the rename is recorded, before its reply.
//!
//! Effects on clients (observed on 6.0.5, `crates/imago/tests/verbs/reshard/clients.rs`):
//! - A change stream on the collection returns all changes up to the rename, then `invalidate`; the client opens a
//!   new one. Nothing was written between the block and the rename, so a stream that begins at the time of the
//!   rename misses nothing.
//! - A retryable write that is sent again after the rename, because its reply before it was lost, is recognised by
//!   the shard that performed it, and only by that shard. If the document moved to another shard, the write is
//!   applied again: harmless for an idempotent write, wrong for an `$inc`. Servers keep those records by session
//!   and shard, and no client can write them. During the block no write is lost in this way: writes are rejected
//!   with an error (371, or 121 by a validator) that drivers do not retry.
//! - With the validator, a document that was deleted between the drain and the rename can be read again, from the
//!   rename until its delete is brought over.

pub(in crate::reshard) mod bypass;
pub(in crate::reshard) mod late_writes;
pub(in crate::reshard) mod rehearsal;
pub(in crate::reshard) mod validation;

use std::time::{Duration, Instant};

use bson::{Bson, Document, Timestamp, doc};
use imago_job::id::JobId;
use imago_job::run::Run;
use mongodb::options::ReadConcern;

use crate::copy::cutover::check;
use crate::copy::{self, CopyJob, State};
use crate::error::{Error, Result, code};
use crate::namespace::Namespace;
use crate::reshard::spec::{BlockStep, LateWrites, Spec};
pub use crate::server::block::Block;
use crate::server::block::{self, Blocker};
use crate::server::collection::Handle;
use crate::server::endpoint::{Endpoint, answer};

/// Longest time for which a process waits until the outcome of its rename is known.
const DECIDED_WITHIN: Duration = Duration::from_secs(600);
/// Server error code `NamespaceNotFound`: the collection does not exist.
const NAMESPACE_NOT_FOUND: i32 = 26;
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// Interval between checks whether the config servers have recorded the rename.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Durations and counts of a successful commit of a reshard.
#[derive(Clone, Debug)]
pub struct Committed {
    /// Time from the request of the write block until it was lifted, in milliseconds.
    pub block_ms: u64,
    /// Duration of the drain (applying the last changes to the shadow), in milliseconds.
    pub drain_ms: u64,
    /// Time from the request of the rename until it was recorded or answered, in milliseconds.
    pub rename_ms: u64,
    /// The steps of the write block, in order, with their durations.
    pub steps: Vec<BlockStep>,
    /// Number of documents of the last changes that were compared during the write block.
    pub last_verified: u64,
    /// Changes of the old collection between the drain and the rename.
    pub late_writes: LateWrites,
}

/// Makes one attempt at the commit: blocks writes by `block`, drains, compares and renames. Returns `None` if the
/// drain took longer than `block_max`: the write block is lifted then, and `copying` can only be ended.
///
/// # Errors
/// Returns an obstacle, with the write block lifted; or [`Error::Undecided`] for a rename whose outcome is still
/// unknown after ten minutes, with the write block left in place.
pub(super) async fn commit(
    run: &Run,
    spec: &Spec,
    copying: &mut CopyJob<'_>,
    cluster: &Endpoint,
    block: Block,
    block_max: Duration,
) -> Result<Option<Committed>> {
    // The UUID of a sharded collection survives a rename: `imago reshard revert` identifies the collection by it.
    let shadow = uuid_of(cluster, &Handle::new(cluster.clone(), spec.shadow().clone())).await?;
    match block {
        Block::UserWrites => {
            refuse_foreign_block(cluster).await?;
            copying.state.commit_mut().is_blocked = true;
            copying.save().await?;
        }
        Block::Validator => {
            if let Err(error) = validation::prepare(run, copying).await {
                unblock(run, spec, copying, cluster).await?;
                return Err(error);
            }
        }
        Block::None => {}
    }
    let blocker = Blocker::reach(cluster).await;
    let blocked = Instant::now();
    let set = match block {
        Block::UserWrites => {
            match fenced_handle(run, spec, cluster).check_owner("setUserWriteBlockMode") {
                Ok(()) => blocker.set().await,
                Err(error) => Err(error),
            }
        }
        // The deadline does not drop this future: a block that is still being set cannot be lifted.
        Block::Validator => validation::set(run, copying).await,
        Block::None => Ok(()),
    };
    let set_ms = ms(blocked);
    tracing::debug!(ms = set_ms, "commit: writes are blocked");
    let drained = async {
        set?;
        copying.state.commit_mut().becomes.clone_from(&shadow);
        drain(run, copying, block).await
    };
    let left = block_max.saturating_sub(blocked.elapsed());
    let drained = match tokio::time::timeout(left, drained).await {
        Ok(Ok(drained)) => drained,
        Ok(Err(error)) => {
            unblock(run, spec, copying, cluster).await?;
            return Err(error);
        }
        Err(_) => {
            unblock(run, spec, copying, cluster).await?;
            return Ok(None);
        }
    };
    let renaming = Instant::now();
    let mut answer = Box::pin(rename(run, cluster, spec));
    let answered = tokio::select! {
        answered = &mut answer => Some(answered),
        // Writes that bypass a validator are brought over after the rename has ended, not before.
        () = is_recorded(cluster, spec, shadow.as_ref()), if block != Block::Validator => None,
    };
    if let Some(Err(error)) = answered {
        if !matches!(error, Error::Undecided { .. }) {
            unblock(run, spec, copying, cluster).await?;
        }
        return Err(error);
    }
    let (rename_ms, concluding) = (ms(renaming), Instant::now());
    tracing::debug!(ms = ms(blocked), "commit: renamed");
    let late_writes = conclude(run, cluster, spec, &mut copying.state).await?;
    let (block_ms, lift_ms) = (ms(blocked), ms(concluding));
    tracing::debug!(ms = block_ms, "commit: the block is lifted");
    if answered.is_none() {
        answer.await?;
        tracing::debug!(ms = ms(blocked), "commit: the rename has ended");
    }
    // The record that the block was lifted is written later; clients do not wait for it.
    copy::save_final(run, &copying.state).await?;
    let Drained { drain_ms, compare_ms, last_verified } = drained;
    let steps = [
        ("set", set_ms),
        ("drain", drain_ms),
        ("compare", compare_ms),
        ("rename", rename_ms),
        ("lift", lift_ms),
    ];
    let steps = steps.map(|(step, ms)| BlockStep { step, ms }).to_vec();
    Ok(Some(Committed { block_ms, drain_ms, rename_ms, steps, last_verified, late_writes }))
}

/// Completes a commit after its rename: brings over late writes, lifts the write block, and returns the late writes.
/// The operation is idempotent, so the successor of a process that died may repeat it.
///
/// The request of the rename stays in the record. Without it a successor would start again, with a shadow to which
/// nothing is copied any more.
///
/// # Errors
/// Fails if the cluster does not reply, or if the job belongs to another process.
pub(super) async fn conclude(
    run: &Run,
    cluster: &Endpoint,
    spec: &Spec,
    state: &mut State,
) -> Result<LateWrites> {
    let mut late_writes = LateWrites::default();
    let commit = state.commit_mut();
    if let Some((time, increment)) = commit.drained_to {
        let from = Timestamp { time, increment };
        let new = commit.becomes.clone();
        let bring = late_writes::bring_over(run, cluster, spec, new.as_deref(), from);
        late_writes = match bring.await {
            // Imago cannot recover these changes, and no client can write until the commit is completed.
            Err(Error::OplogRolledOver { .. }) => late_writes::unknown(run, spec, from),
            brought => brought?,
        };
        // Once inserts are accepted again no process may bring over a delete.
        state.commit_mut().drained_to = None;
        copy::save_final(run, state).await?;
    }
    lift(cluster, spec, &run.record().id, state).await?;
    Ok(late_writes)
}

/// Lifts the write block that is set according to `state`, the state of the job, and records that it is lifted.
///
/// # Errors
/// Fails if the cluster does not reply.
pub(super) async fn lift(
    cluster: &Endpoint,
    spec: &Spec,
    job: &JobId,
    state: &mut State,
) -> Result<()> {
    let commit = state.commit_mut();
    if commit.is_blocked {
        block::lift(cluster).await?;
    }
    validation::lift(cluster, spec, job, commit).await?;
    (commit.is_blocked, commit.validation) = (false, None);
    Ok(())
}

/// Fails if users' writes are blocked already: the owner of that write block may lift it at any time, including
/// during a commit.
async fn refuse_foreign_block(cluster: &Endpoint) -> Result<()> {
    if block::is_set(cluster).await? != Some(true) {
        return Ok(());
    }
    Err(Error::precondition(
        "writes are blocked already, and not by this job: the owner of the block may lift it while \
         the collection is being renamed",
        "`imago reshard resume` once it is lifted; or, if it is yours and you keep it until the end, \
         `imago reshard resume --block none`",
    ))
}

/// Number of the last changes whose documents are compared during the write block, while clients wait. They are
/// mostly those applied at the end of the drain.
const LAST_CHANGES: usize = 300;

struct Drained {
    drain_ms: u64,
    compare_ms: u64,
    last_verified: u64,
}

/// Brings the shadow to the state of the collection as of one time after the write block, compares the documents of
/// the last changes, and records that the rename may be requested from now on.
///
/// A request to stop the job is ignored here: returning without lifting the write block would leave it in place.
async fn drain(run: &Run, copying: &mut CopyJob<'_>, block: Block) -> Result<Drained> {
    let began = Instant::now();
    let at = copying.coordinator.settle().await?;
    let drain_ms = ms(began);
    tracing::debug!(drain_ms, "commit: drained");
    if block == Block::Validator {
        copying.state.commit_mut().drained_to = Some((at.time, at.increment));
    }
    copying.state.commit_mut().rename_requested = true;
    // Clients wait, so the comparison and the save run concurrently. If either fails, the caller withdraws the
    // request of the rename.
    let (last_verified, saved) = tokio::join!(
        Box::pin(check::compare_last_changes_as_of(at, run, copying, LAST_CHANGES)),
        Box::pin(copy::save_final(run, &copying.state)),
    );
    let last_verified = last_verified?;
    saved?;
    if block == Block::Validator {
        validation::check_unchanged(run, copying).await?;
    }
    if copying.coordinator.has_structure() {
        return Err(Error::precondition(
            "indexes or options of the collection changed while writes were being blocked",
            "`imago reshard resume`: the job follows them first",
        ));
    }
    let compare_ms = ms(began).saturating_sub(drain_ms);
    tracing::debug!(compare_ms, last_verified, "commit: compared and written down");
    Ok(Drained { drain_ms, compare_ms, last_verified })
}

/// Returns the handle of the resharded collection, for commands that are sent only while this process owns the job.
fn fenced_handle(run: &Run, spec: &Spec, cluster: &Endpoint) -> Handle {
    let owner = Some(run.ownership());
    Handle { owner, ..Handle::new(cluster.clone(), spec.reshard.ns.clone()) }
}

/// Lifts the write block that this job set, unless another process owns the job by now and lifts it. No rename is
/// under way.
///
/// Clients wait, so while this process certainly owns the job the write block is lifted first, even if the record
/// cannot be saved. A successor then checks the outcome of the rename, finds that it did not happen, and lifts the
/// write block again.
async fn unblock(
    run: &Run,
    spec: &Spec,
    copying: &mut CopyJob<'_>,
    cluster: &Endpoint,
) -> Result<()> {
    let commit = copying.state.commit_mut();
    (commit.rename_requested, commit.drained_to) = (false, None);
    if fenced_handle(run, spec, cluster).check_owner("lifting the block").is_err() {
        let saved = copy::save_final(run, &copying.state).await;
        if saved.is_err() && copying.state.commit_mut().is_blocked {
            run.reporter().warning(
                "block_may_stand",
                "another process has taken the job over, and this one may just have blocked the \
                 writes of the cluster's users",
                "if the other process says that they are blocked, and not by this job, lift it: \
                 db.adminCommand({setUserWriteBlockMode: 1, global: false})",
            );
        }
        saved?;
    }
    lift(cluster, spec, &run.record().id, &mut copying.state).await?;
    copy::save_final(run, &copying.state).await
}

/// Outcome of the rename of the shadow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RenameOutcome {
    /// The shadow has the collection's name now.
    Renamed,
    /// The rename has not happened so far.
    NotYet,
}

/// Determines whether a rename that is no longer under way has happened, from the UUIDs of the collections.
pub(super) async fn probe_rename(cluster: &Endpoint, spec: &Spec) -> Result<RenameOutcome> {
    let ns = &spec.reshard.ns;
    let uuid = uuid_of(cluster, &Handle::new(cluster.clone(), ns.clone())).await?;
    let shadow = Handle::new(cluster.clone(), spec.shadow().clone()).definition().await?;
    match (uuid, shadow) {
        (Some(uuid), Some(_)) if uuid == spec.known.uuid => Ok(RenameOutcome::NotYet),
        (Some(uuid), None) if uuid != spec.known.uuid => Ok(RenameOutcome::Renamed),
        (uuid, shadow) => Err(Error::precondition(
            format!(
                "{ns} {} and its shadow {} {}: another user changed them",
                if uuid.is_some() { "exists" } else { "is gone" },
                spec.shadow(),
                if shadow.is_some() { "exists" } else { "is gone" },
            ),
            "look at both; `imago job cancel` gives the job up and drops the shadow if there is one",
        )),
    }
}

/// Waits until no change of the definition of the collection `ns` is under way, by an empty `collMod`: servers
/// perform such changes one after the other.
pub(super) async fn wait_for_ddl(cluster: &Endpoint, ns: &Namespace) -> Result<()> {
    let nothing = doc! {"collMod": &ns.coll, "writeConcern": {"w": "majority"}};
    match cluster.run_at_length(&ns.db, nothing).await {
        // If the collection does not exist, no change of its definition is under way.
        Err(Error::Server { cause, .. }) if code(&cause) == Some(NAMESPACE_NOT_FOUND) => Ok(()),
        done => done.map(|_| ()),
    }
}

/// Determines the outcome of a requested rename, once it is no longer under way.
///
/// # Errors
/// Returns [`Error::Transient`] while the rename waits for a lock at a shard; fails if the cluster does not reply, or
/// if another user changed the collection.
pub(super) async fn rename_outcome(cluster: &Endpoint, spec: &Spec) -> Result<RenameOutcome> {
    wait_for_ddl(cluster, &spec.reshard.ns).await?;
    // Locks are not granted in the order of the requests: the operation that has just ended may have overtaken a
    // rename.
    if waits(cluster, spec.shadow()).await? {
        return Err(Error::Transient {
            doing: format!("determining the outcome of the rename of {}", spec.shadow()),
            cause: "the rename still waits for a lock at a shard".into(),
        });
    }
    probe_rename(cluster, spec).await
}

/// Returns true if a rename of the collection `shadow` is under way at any shard. Shards that do not reply are
/// assumed to have none.
async fn waits(cluster: &Endpoint, shadow: &Namespace) -> Result<bool> {
    let (name, coll) = (shadow.to_string(), &shadow.coll);
    let pipeline = [
        doc! {"$currentOp": {"allUsers": true, "localOps": true}},
        doc! {"$match": {"$or": [
            {"command._shardsvrRenameCollection": {"$in": [&name, coll]}},
            {"command.renameCollection": &name},
            {"desc": "RenameCollectionCoordinator", "ns": &name},
        ]}},
        doc! {"$limit": 1},
    ];
    let ask = doc! {"aggregate": 1, "pipeline": &pipeline[..], "cursor": {}};
    for (name, shard) in cluster.shards().await? {
        let found = match shard {
            Ok(shard) => shard.run("admin", ask.clone()).await,
            Err(error) => Err(error),
        };
        match found {
            Ok(reply) => {
                let cursor = reply.get_document("cursor");
                let batch = cursor.and_then(|cursor| cursor.get_array("firstBatch"));
                if batch.is_ok_and(|batch| !batch.is_empty()) {
                    return Ok(true);
                }
            }
            Err(error) => tracing::warn!(%error, "whether a rename waits at {name} is not known"),
        }
    }
    Ok(false)
}

/// Waits until the config servers have durably recorded that the shadow, whose UUID is `shadow`, has the collection's
/// name; for ever if `shadow` is `None`.
///
/// They do so when every shard has renamed its part and does not admit operations on it yet: from then on every write
/// goes to the renamed shadow. The reply to the request of the rename comes only after the shards have admitted
/// operations again, which then delay it.
async fn is_recorded(cluster: &Endpoint, spec: &Spec, shadow: Option<&String>) {
    let Some(shadow) = shadow else { return std::future::pending().await };
    let of = Handle::new(cluster.clone(), spec.reshard.ns.clone());
    loop {
        tokio::time::sleep(LOOK_AGAIN).await;
        match uuid_of(cluster, &of).await {
            Ok(uuid) if uuid.as_ref() == Some(shadow) => return,
            // The request of the rename reports the error.
            Ok(_) | Err(_) => {}
        }
    }
}

/// Requests the rename until its outcome is known, and only while this process owns the job: a successor that finds
/// that the rename did not happen lifts the write block.
async fn rename(run: &Run, cluster: &Endpoint, spec: &Spec) -> Result<()> {
    let (shadow, ns) = (spec.shadow(), &spec.reshard.ns);
    let handle = fenced_handle(run, spec, cluster);
    let command = doc! {
        "renameCollection": shadow.to_string(), "to": ns.to_string(), "dropTarget": true,
    };
    let deadline = Instant::now() + DECIDED_WITHIN;
    // True once a reply was lost. From then on only a check of the cluster that finds the rename done or not done
    // is conclusive.
    let mut is_open = false;
    loop {
        let asked = match handle.check_owner("renameCollection") {
            Ok(()) => cluster.run_at_length("admin", command.clone()).await,
            Err(error) => Err(error),
        };
        let Err(error) = asked else { return Ok(()) };
        is_open |= error.is_transient();
        tracing::warn!(%error, "the rename is looked at, and asked for again");
        let undecided = |cause: &Error| Error::Undecided {
            what: format!("whether {shadow} became {ns}"),
            cause: cause.to_string(),
        };
        match rename_outcome(cluster, spec).await {
            Ok(RenameOutcome::Renamed) => return Ok(()),
            Ok(RenameOutcome::NotYet) if !error.is_transient() => return Err(error),
            Err(looked) if !looked.is_transient() && !is_open => return Err(looked),
            Err(looked @ (Error::Precondition { .. } | Error::Disrupted { .. })) => {
                return Err(undecided(&looked));
            }
            Ok(RenameOutcome::NotYet) | Err(_) if Instant::now() < deadline => {}
            Ok(RenameOutcome::NotYet) => return Err(undecided(&error)),
            Err(looked) => return Err(undecided(&looked)),
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

/// Returns the UUID of the collection `of`, which does not depend on its name, or `None` if the collection is not
/// sharded or does not exist.
///
/// # Errors
/// Fails if the cluster does not reply.
pub(super) async fn uuid_of(cluster: &Endpoint, of: &Handle) -> Result<Option<String>> {
    let doing = "reading config.collections";
    let collections = cluster.client().database("config").collection::<Document>("collections");
    let found = collections.find_one(doc! {"_id": of.ns.to_string()});
    let found = found.read_concern(ReadConcern::majority()).into_future();
    let found = answer(doing, found).await?.map_err(|error| Error::server(doing, error))?;
    Ok(found.and_then(|found| found.get("uuid").map(Bson::to_string)))
}

pub(super) fn ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
