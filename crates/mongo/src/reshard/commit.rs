//! Commit: the shadow takes the collection's name, with nothing lost.
//!
//! Writes are blocked, the shadow is made the collection as of one time behind the block, the last
//! changes are compared, and the server renames, in one step, the shadow over the collection.
//!
//! The drain has a deadline: if it is missed the block is lifted, and all of it is tried again
//! later. The rename has none. Once it was asked for, the server may do it at any time, also when
//! the answer is lost; so it is asked for again, and the cluster is looked at, until it is known.
//!
//! What clients see (tried on 6.0.5, `crates/imago/tests/reshard/clients.rs`):
//! - A change stream on the collection shows all changes up to the rename, then `invalidate`: a client
//!   opens a new one. Nothing was written between the block and the rename, so that one which begins
//!   at the time of the rename misses nothing.
//! - A retryable write that is sent again after the rename, because its answer before it was lost, is
//!   recognised by the shard that did it the first time, and only by that one. A document that went
//!   to another shard gets the write once more: harmless for what may be done twice, wrong for an
//!   `$inc`. Servers keep those records by session and shard, where nobody else can write them.
//!   During the block none is lost in this way: writes are refused with an error (371) that drivers
//!   do not send again by themselves.

use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use imago_job::run::Run;

use super::run::Spec;
use crate::block::{self, Blocker};
use crate::collection::Handle;
use crate::copy::{self, Copying};
use crate::cutover::check;
use crate::endpoint::{Endpoint, answer};
use crate::error::{Error, Result};

/// How writes are kept from the collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// By the server, for every user without `bypassWriteBlockingMode`, in the whole cluster.
    UserWrites,
    /// Not at all: the operator has stopped the writers.
    None,
}

/// How long a rename may stay undecided.
const DECIDED_WITHIN: Duration = Duration::from_secs(600);
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// How a commit went, where it went at all.
#[derive(Clone, Copy, Debug)]
pub struct Committed {
    /// From the block until it was lifted, in ms.
    pub block_ms: u64,
    /// The drain alone, in ms.
    pub drain_ms: u64,
    /// The rename alone, in ms.
    pub rename_ms: u64,
    /// Documents of the last changes that were compared under the block.
    pub last_verified: u64,
}

/// One attempt. Nothing when the drain took longer than `block_max`: the block is lifted then, and
/// `copying` can only be ended.
///
/// # Errors
/// What is in the way, with the block lifted; a rename that is still undecided after ten minutes,
/// with the block kept.
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
    if block == Block::UserWrites {
        refuse_anothers_block(cluster).await?;
        copying.state.is_blocked = true;
        copying.save().await?;
    }
    let blocker = Blocker::reach(cluster).await;
    let blocked = Instant::now();
    let set = match block {
        Block::UserWrites => blocker.set().await,
        Block::None => Ok(()),
    };
    let drained = async {
        set?;
        Box::pin(drain(run, copying)).await
    };
    let left = block_max.saturating_sub(blocked.elapsed());
    let drained = match tokio::time::timeout(left, drained).await {
        Ok(Ok(drained)) => drained,
        Ok(Err(error)) => {
            unblock(run, copying, cluster).await?;
            return Err(error);
        }
        Err(_) => {
            unblock(run, copying, cluster).await?;
            return Ok(None);
        }
    };
    copying.state.becomes = shadow;
    // Also when the job was asked to end in this moment: it is past the point where that is heard,
    // and whoever left here without lifting the block would leave it behind.
    copying.state.hook_begun = true;
    if let Err(error) = copy::save_at_last(run, &copying.state).await {
        unblock(run, copying, cluster).await?;
        return Err(error);
    }
    let renaming = Instant::now();
    if let Err(error) = rename(cluster, spec).await {
        if !matches!(error, Error::Undecided { .. }) {
            unblock(run, copying, cluster).await?;
        }
        return Err(error);
    }
    let rename_ms = ms(renaming);
    if copying.state.is_blocked {
        block::lift(cluster).await?;
    }
    let block_ms = ms(blocked);
    // That the rename was asked for stays in the record: a successor that did not know of it would
    // begin anew, with a shadow that nothing is copied to any more.
    copying.state.is_blocked = false;
    copy::save_at_last(run, &copying.state).await?;
    let (drain_ms, last_verified) = drained;
    Ok(Some(Committed { block_ms, drain_ms, rename_ms, last_verified }))
}

/// Whoever set a block that stands already may lift it at any time, in the middle of a commit too.
async fn refuse_anothers_block(cluster: &Endpoint) -> Result<()> {
    if block::is_set(cluster).await? != Some(true) {
        return Ok(());
    }
    Err(Error::precondition(
        "writes are blocked already, and not by this job: whoever did it may lift the block while \
         the collection is being renamed",
        "`imago reshard resume` once it is lifted; or, if it is yours and you keep it until the end, \
         `imago reshard resume --block none`",
    ))
}

/// How many of the last changes are compared under the block.
const LAST_CHANGES: usize = 1_000;

async fn drain(run: &Run, copying: &mut Copying<'_>) -> Result<(u64, u64)> {
    let began = Instant::now();
    copying.lead.settle().await?;
    let drain_ms = ms(began);
    let last_verified = Box::pin(check::last_look(run, copying, LAST_CHANGES)).await?;
    if copying.lead.has_structure() {
        return Err(Error::precondition(
            "indexes or options of the collection changed while writes were being blocked",
            "`imago reshard resume`: the job follows them first",
        ));
    }
    Ok((drain_ms, last_verified))
}

/// Lifts the block that this job set, unless the job is another's by now: then he sees to it.
async fn unblock(run: &Run, copying: &mut Copying<'_>, cluster: &Endpoint) -> Result<()> {
    copy::save_at_last(run, &copying.state).await?;
    if copying.state.is_blocked {
        block::lift(cluster).await?;
    }
    (copying.state.is_blocked, copying.state.hook_begun) = (false, false);
    copy::save_at_last(run, &copying.state).await
}

/// What became of a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The collection is what the shadow was.
    Renamed,
    /// Nothing has happened.
    NotYet,
}

/// Looks what became of a rename that nobody is doing any more.
pub(super) async fn fate(cluster: &Endpoint, spec: &Spec) -> Result<Fate> {
    let ns = &spec.reshard.ns;
    let uuid = uuid_of(cluster, &Handle::new(cluster.clone(), ns.clone())).await?;
    let shadow = Handle::new(cluster.clone(), spec.shadow().clone()).definition().await?;
    match (uuid, shadow) {
        (Some(uuid), Some(_)) if uuid == spec.known.uuid => Ok(Fate::NotYet),
        (Some(uuid), None) if uuid != spec.known.uuid => Ok(Fate::Renamed),
        (uuid, shadow) => Err(Error::precondition(
            format!(
                "{ns} {} and its shadow {} {}: somebody else changed them",
                if uuid.is_some() { "exists" } else { "is gone" },
                spec.shadow(),
                if shadow.is_some() { "exists" } else { "is gone" },
            ),
            "look at both; `imago job cancel` gives the job up and drops the shadow if there is one",
        )),
    }
}

/// Waits until no rename of the collection is under way, whoever asked for it: servers do one
/// change of a collection's definition after the other.
pub(super) async fn quiet(cluster: &Endpoint, spec: &Spec) -> Result<()> {
    let ns = &spec.reshard.ns;
    let nothing = doc! {"collMod": &ns.coll, "writeConcern": {"w": "majority"}};
    cluster.run_at_length(&ns.db, nothing).await.map(|_| ())
}

async fn rename(cluster: &Endpoint, spec: &Spec) -> Result<()> {
    let (shadow, ns) = (spec.shadow(), &spec.reshard.ns);
    let command = doc! {
        "renameCollection": shadow.to_string(), "to": ns.to_string(), "dropTarget": true,
    };
    let deadline = Instant::now() + DECIDED_WITHIN;
    loop {
        let Err(error) = cluster.run_at_length("admin", command.clone()).await else {
            return Ok(());
        };
        tracing::warn!(%error, "the rename is looked at, and asked for again");
        let found = async {
            quiet(cluster, spec).await?;
            fate(cluster, spec).await
        };
        match Box::pin(found).await {
            Ok(Fate::Renamed) => return Ok(()),
            Ok(Fate::NotYet) if !error.is_transient() => return Err(error),
            Err(looked) if !looked.is_transient() => return Err(looked),
            Ok(Fate::NotYet) | Err(_) if Instant::now() < deadline => {}
            _ => {
                return Err(Error::Undecided {
                    what: format!("whether {shadow} became {ns}"),
                    cause: error.to_string(),
                });
            }
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

/// What a collection is known by, whatever its name.
///
/// # Errors
/// When the cluster does not answer.
pub(super) async fn uuid_of(cluster: &Endpoint, of: &Handle) -> Result<Option<String>> {
    let doing = "reading config.collections";
    let collections = cluster.client().database("config").collection::<Document>("collections");
    let found = collections.find_one(doc! {"_id": of.ns.to_string()}).into_future();
    let found = answer(doing, found).await?.map_err(|error| Error::server(doing, error))?;
    Ok(found.and_then(|found| found.get("uuid").map(Bson::to_string)))
}

pub(super) fn ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
