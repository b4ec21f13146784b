//! Commit: the shadow takes the collection's name, with nothing lost.
//!
//! Writes are blocked, the shadow is made equal to the collection as of one time behind the block,
//! the last changes are compared, and the server renames the shadow over the collection in one step.
//! A block that admits deletes stays on the renamed collection until late writes are brought over
//! ([`crate::reshard::commit::validation`], [`crate::reshard::commit::late_writes`]).
//!
//! The drain has a deadline: if it is missed the block is lifted, and the commit is tried again
//! later. The rename has none. Once requested, the server may perform it at any time, also when the
//! reply is lost. The rename is retried, and its outcome polled, until it is known. A block that
//! stops deletes too is lifted as soon as the rename is recorded, before its reply.
//!
//! Effects on clients (observed on 6.0.5, `crates/imago/tests/verbs/reshard/clients.rs`):
//! - A change stream on the collection shows all changes up to the rename, then `invalidate`; a
//!   client opens a new one. Nothing was written between the block and the rename, so a stream that
//!   begins at the time of the rename misses nothing.
//! - A retryable write that is sent again after the rename, because its reply before it was lost, is
//!   recognised by the shard that performed it, and only by that shard. If the document moved to
//!   another shard, the write is applied again: harmless for an idempotent write, wrong for an
//!   `$inc`. Servers keep those records by session and shard, and no client can write them. During
//!   the block none is lost in this way: writes are refused with an error (371, or 121 by a
//!   validator) that drivers do not retry.
//! - With the validator, a document that was deleted between the drain and the rename can be read
//!   once more, from the rename until its delete is brought over.

pub(in crate::reshard) mod bypass;
pub(in crate::reshard) mod late_writes;
pub(in crate::reshard) mod validation;

use std::time::{Duration, Instant};

use bson::{Bson, Document, Timestamp, doc};
use imago_job::id::JobId;
use imago_job::run::Run;
use mongodb::options::ReadConcern;

use crate::copy::cutover::check;
use crate::copy::{self, Copying, State};
use crate::error::{Error, Result, code};
use crate::namespace::Namespace;
use crate::reshard::spec::{LateWrites, Spec};
pub use crate::server::block::Block;
use crate::server::block::{self, Blocker};
use crate::server::collection::Handle;
use crate::server::endpoint::{Endpoint, answer};

/// Longest time for which a rename may stay undecided.
const DECIDED_WITHIN: Duration = Duration::from_secs(600);
/// The server's code for a collection that is not there.
const NAMESPACE_NOT_FOUND: i32 = 26;
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// Interval of the looks whether a rename is recorded.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Times and counts of a commit that went through.
#[derive(Clone, Debug)]
pub struct Committed {
    /// From the block until it was lifted, in ms.
    pub block_ms: u64,
    /// The drain alone, in ms.
    pub drain_ms: u64,
    /// The rename alone, in ms.
    pub rename_ms: u64,
    /// Documents of the last changes that were compared under the block.
    pub last_verified: u64,
    /// Changes between the drain and the rename.
    pub late_writes: LateWrites,
}

/// One attempt. Returns nothing if the drain took longer than `block_max`: the block is lifted
/// then, and `copying` can only be ended.
///
/// # Errors
/// An obstacle, with the block lifted; a rename that is still undecided after ten minutes, with the
/// block kept.
pub(super) async fn commit(
    run: &Run,
    spec: &Spec,
    copying: &mut Copying<'_>,
    cluster: &Endpoint,
    block: Block,
    block_max: Duration,
) -> Result<Option<Committed>> {
    // A sharded collection keeps its UUID when it is renamed: `imago reshard revert` knows it by that.
    let shadow = uuid_of(cluster, &Handle::new(cluster.clone(), spec.shadow().clone())).await?;
    match block {
        Block::UserWrites => {
            refuse_anothers_block(cluster).await?;
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
        Block::UserWrites => match ours(run, spec, cluster).check_owner("setUserWriteBlockMode") {
            Ok(()) => blocker.set().await,
            Err(error) => Err(error),
        },
        // Not dropped at the deadline either: a block that is still under way cannot be lifted.
        Block::Validator => validation::set(run, copying).await,
        Block::None => Ok(()),
    };
    tracing::debug!(ms = ms(blocked), "commit: writes are blocked");
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
        // Writes that pass a validator are brought over when the rename has ended, and not before.
        () = is_recorded(cluster, spec, shadow.as_ref()), if block != Block::Validator => None,
    };
    if let Some(Err(error)) = answered {
        if !matches!(error, Error::Undecided { .. }) {
            unblock(run, spec, copying, cluster).await?;
        }
        return Err(error);
    }
    let rename_ms = ms(renaming);
    tracing::debug!(ms = ms(blocked), "commit: renamed");
    let late_writes = conclude(run, cluster, spec, &mut copying.state).await?;
    let block_ms = ms(blocked);
    tracing::debug!(ms = block_ms, "commit: the block is lifted");
    if answered.is_none() {
        answer.await?;
        tracing::debug!(ms = ms(blocked), "commit: the rename has ended");
    }
    // The record that the block was lifted may follow later; clients do not wait for it.
    copy::save_at_last(run, &copying.state).await?;
    let Drained { drain_ms, last_verified } = drained;
    Ok(Some(Committed { block_ms, drain_ms, rename_ms, last_verified, late_writes }))
}

/// Completes a commit after its rename: brings over late writes, and lifts the block. The next
/// process after a death may do it again.
///
/// The request of the rename stays in the record: a successor that did not know of it would begin
/// anew, with a shadow that nothing is copied to any more.
///
/// # Errors
/// Fails if the cluster stays away, or the job is no longer this process's.
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
            // They are lost to Imago, and until this is settled no client can write.
            Err(Error::OplogRolledOver { .. }) => late_writes::unknown(run, spec, from),
            brought => brought?,
        };
        // Once inserts are accepted again no process may bring over a delete.
        state.commit_mut().drained_to = None;
        copy::save_at_last(run, state).await?;
    }
    lift(cluster, spec, &run.record().id, state).await?;
    Ok(late_writes)
}

/// Lifts the block that stands by the record.
///
/// # Errors
/// Fails if the cluster stays away.
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

/// A block that stands already may be lifted by its owner at any time, in the middle of a commit too.
async fn refuse_anothers_block(cluster: &Endpoint) -> Result<()> {
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

/// Number of the last changes that are compared under the block, while clients wait: mostly those
/// applied at the end of the drain.
const LAST_CHANGES: usize = 300;

struct Drained {
    drain_ms: u64,
    last_verified: u64,
}

/// Makes the shadow the collection as of one time behind the block, looks at the last changes, and
/// writes down that the rename may be asked for from now on.
///
/// Also when the job was asked to end in this moment: it is past the point where a stop is obeyed,
/// and returning here without lifting the block would leave it behind.
async fn drain(run: &Run, copying: &mut Copying<'_>, block: Block) -> Result<Drained> {
    let began = Instant::now();
    let at = copying.coordinator.settle().await?;
    let drain_ms = ms(began);
    tracing::debug!(drain_ms, "commit: drained");
    if block == Block::Validator {
        copying.state.commit_mut().drained_to = Some((at.time, at.increment));
    }
    copying.state.commit_mut().rename_requested = true;
    // Clients wait, so both run at once. A caller that is refused takes the request back.
    let (last_verified, saved) = tokio::join!(
        Box::pin(check::last_look_as_of(at, run, copying, LAST_CHANGES)),
        Box::pin(copy::save_at_last(run, &copying.state)),
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
    tracing::debug!(ms = ms(began), last_verified, "commit: compared and written down");
    Ok(Drained { drain_ms, last_verified })
}

/// The collection, for commands that are sent only while the job is this process's.
fn ours(run: &Run, spec: &Spec, cluster: &Endpoint) -> Handle {
    let owner = Some(run.ownership());
    Handle { owner, ..Handle::new(cluster.clone(), spec.reshard.ns.clone()) }
}

/// Lifts the block that this job set, unless another process owns the job by now and lifts it. No rename is
/// under way.
///
/// Clients wait: while the job is certainly this process's the block goes first, also where nothing can
/// be recorded. A successor looks for the outcome of the rename, finds none, and lifts the block again.
async fn unblock(
    run: &Run,
    spec: &Spec,
    copying: &mut Copying<'_>,
    cluster: &Endpoint,
) -> Result<()> {
    let commit = copying.state.commit_mut();
    (commit.rename_requested, commit.drained_to) = (false, None);
    if ours(run, spec, cluster).check_owner("lifting the block").is_err() {
        let saved = copy::save_at_last(run, &copying.state).await;
        if saved.is_err() && copying.state.commit_mut().is_blocked {
            run.reporter().warning(
                "block_may_stand",
                "the job is another process's by now, and this one may just have blocked the writes of \
                 the cluster's users",
                "if the other process says that they are blocked, and not by this job, lift it: \
                 db.adminCommand({setUserWriteBlockMode: 1, global: false})",
            );
        }
        saved?;
    }
    lift(cluster, spec, &run.record().id, &mut copying.state).await?;
    copy::save_at_last(run, &copying.state).await
}

/// The outcome of a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The collection is the former shadow.
    Renamed,
    /// Nothing has happened.
    NotYet,
}

/// Finds the outcome of a rename that is not under way any more.
pub(super) async fn fate(cluster: &Endpoint, spec: &Spec) -> Result<Fate> {
    let ns = &spec.reshard.ns;
    let uuid = uuid_of(cluster, &Handle::new(cluster.clone(), ns.clone())).await?;
    let shadow = Handle::new(cluster.clone(), spec.shadow().clone()).definition().await?;
    match (uuid, shadow) {
        (Some(uuid), Some(_)) if uuid == spec.known.uuid => Ok(Fate::NotYet),
        (Some(uuid), None) if uuid != spec.known.uuid => Ok(Fate::Renamed),
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

/// Waits until no change of the collection's definition is under way: servers do
/// one after the other.
pub(super) async fn quiet(cluster: &Endpoint, ns: &Namespace) -> Result<()> {
    let nothing = doc! {"collMod": &ns.coll, "writeConcern": {"w": "majority"}};
    match cluster.run_at_length(&ns.db, nothing).await {
        // Of one that is gone nothing can be under way any more.
        Err(Error::Server { cause, .. }) if code(&cause) == Some(NAMESPACE_NOT_FOUND) => Ok(()),
        done => done.map(|_| ()),
    }
}

/// Finds the outcome of a rename that was requested, once it is not under way any more.
///
/// # Errors
/// [`Error::Passing`] while the rename waits for its turn at a shard; when the cluster does not answer, or
/// another user changed the collection.
pub(super) async fn decided(cluster: &Endpoint, spec: &Spec) -> Result<Fate> {
    quiet(cluster, &spec.reshard.ns).await?;
    // Turns are not granted in the order of the requests: the operation that has just ended may
    // have overtaken a rename.
    if waits(cluster, spec.shadow()).await? {
        return Err(Error::Passing {
            doing: format!("looking what became of the rename of {}", spec.shadow()),
            cause: "it still waits for its turn at a shard".into(),
        });
    }
    fate(cluster, spec).await
}

/// True if a rename of the shadow is under way at any shard. Shards that cannot be asked are taken
/// to have none.
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

/// Returns when the config servers have recorded, for good, that the collection is the former
/// shadow.
///
/// They do so when every shard has renamed its part and admits no operation on it yet: from then on every
/// write goes to the former shadow. The reply to the request comes only after the shards have
/// admitted operations again, which then delay it.
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

/// Requests the rename until its outcome is known, and only while the job is this process's: a
/// successor that finds it undone lifts the block.
async fn rename(run: &Run, cluster: &Endpoint, spec: &Spec) -> Result<()> {
    let (shadow, ns) = (spec.shadow(), &spec.reshard.ns);
    let ours = ours(run, spec, cluster);
    let command = doc! {
        "renameCollection": shadow.to_string(), "to": ns.to_string(), "dropTarget": true,
    };
    let deadline = Instant::now() + DECIDED_WITHIN;
    // True once an answer was lost: then only a look that finds the rename done or undone is
    // conclusive.
    let mut is_open = false;
    loop {
        let asked = match ours.check_owner("renameCollection") {
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
        match decided(cluster, spec).await {
            Ok(Fate::Renamed) => return Ok(()),
            Ok(Fate::NotYet) if !error.is_transient() => return Err(error),
            Err(looked) if !looked.is_transient() && !is_open => return Err(looked),
            Err(looked @ (Error::Precondition { .. } | Error::Disrupted { .. })) => {
                return Err(undecided(&looked));
            }
            Ok(Fate::NotYet) | Err(_) if Instant::now() < deadline => {}
            Ok(Fate::NotYet) => return Err(undecided(&error)),
            Err(looked) => return Err(undecided(&looked)),
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

/// The identity of a collection, independent of its name.
///
/// # Errors
/// Fails if the cluster does not answer.
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
