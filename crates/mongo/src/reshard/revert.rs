//! Reverting: a collection gets back the shard key that it had before a job.
//!
//! The old collection was dropped by the rename, and its chunks would not fit later writes. Reverting is therefore
//! one more change of shape, planned for the present documents; no write after the first change is lost.
//!
//! Invariant: only the collection that the job made is changed, not another one of its name. The collection is
//! identified by its UUID, which a rename preserves. For jobs that did not record the UUID, only the key is checked,
//! and the result says so ([`Reversal::is_same_collection`]).

use imago_job::id::JobId;
use imago_job::journal::Journal as _;
use imago_job::record::Record;
use imago_job::state::State;

use crate::bson::input::parse_document;
use crate::copy;
use crate::error::{Error, Result};
use crate::reshard::commit::uuid_of;
use crate::reshard::execute::plan_check::unsharded;
use crate::reshard::plan::{Plan, Request};
use crate::reshard::spec::Spec;
use crate::server::collection::Handle;
use crate::server::endpoint::Endpoint;
use crate::server::shard_key::Key;
use crate::state::journal::MongoJournal;

/// The change of shape that reverts a reshard job.
#[derive(Clone, Debug)]
pub struct Reversal {
    /// The request from which the reverting change is to be planned.
    pub request: Request,
    /// True if the present collection is certainly the one that the job made; false if only its name and its key
    /// match.
    pub is_same_collection: bool,
}

/// Returns the change of shape that reverts the job `id`, which gave a collection another shard key. Writes nothing.
///
/// # Errors
/// Returns a precondition error if the job did not change a shard key, or if the collection is no longer as the job
/// made it; another error if the cluster does not reply.
#[crate::boxed]
pub async fn revert(cluster: &Endpoint, id: &JobId) -> Result<Reversal> {
    let record = MongoJournal::new(cluster.clone()).load(id).await?;
    let plan = &Spec::of(&record)?.reshard;
    refuse_unfinished(&record, plan)?;
    let (old, new) = keys(id, plan)?;
    let of = Handle::new(cluster.clone(), plan.ns.clone());
    if of.definition().await?.is_none() {
        return Err(changed(id, plan, "there is no such collection"));
    }
    let key = of.shard_key().await?.ok_or_else(|| unsharded(&plan.ns))?;
    if !new.is_same(&key) {
        let now = Key { pattern: key }.text();
        return Err(changed(id, plan, &format!("it is sharded by {now}, not by {}", new.text())));
    }
    let made = copy::state_of(&record)?.commit_mut().becomes.take();
    if made.is_some() && made != uuid_of(cluster, &of).await? {
        return Err(changed(id, plan, "it is another collection by its UUID"));
    }
    let request = Request::of_key(plan.ns.clone(), old.text());
    Ok(Reversal { request, is_same_collection: made.is_some() })
}

fn refuse_unfinished(record: &Record, plan: &Plan) -> Result<()> {
    let (id, ns) = (&record.id, &plan.ns);
    let what = format!("job {id} is {}: it did not change the shape of {ns}", record.state);
    match record.state {
        State::Done => Ok(()),
        State::Cancelled => Err(Error::precondition(
            what,
            "there is nothing to revert; `imago job list` shows the kind of each job",
        )),
        _ => Err(Error::precondition(
            what,
            format!(
                "`imago job cancel {id}` leaves the collection as it was, and `imago reshard resume \
                 {id}` goes on"
            ),
        )),
    }
}

/// Returns the shard keys before and after the job; an error if they are the same.
fn keys(id: &JobId, plan: &Plan) -> Result<(Key, Key)> {
    let new = Key::parse(&plan.key)?;
    // The plan of a collection without a shard key has an empty old key.
    if parse_document(&plan.old_key, "the old shard key")?.is_empty() {
        return Err(Error::precondition(
            format!("{} was not sharded before job {id}, so it has no old key", plan.ns),
            "`imago copy` takes it to another cluster without a key, and `imago reshard run --key` \
             gives it any other key",
        ));
    }
    let old = Key::parse(&plan.old_key)?;
    if old.is_same(&new.pattern) {
        return Err(Error::precondition(
            format!("job {id} left {} its key, {}: only its chunks changed", plan.ns, old.text()),
            "`imago reshard run` with --chunks, --chunk-size-mb, --add-shard or --drain-shard gives \
             it other chunks",
        ));
    }
    Ok((old, new))
}

fn changed(id: &JobId, plan: &Plan, how: &str) -> Error {
    Error::precondition(
        format!("{} was changed after job {id}: {how}", plan.ns),
        "`imago reshard run --key` changes the key of the present collection",
    )
}
