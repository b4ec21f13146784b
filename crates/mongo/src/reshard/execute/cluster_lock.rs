//! The cluster lock: one change of shape at a time, as for the server's own resharding.
//!
//! Two concurrent changes would each take the other's write block, which covers the whole cluster, for its own. A
//! document in the cluster names the job that holds the lock. The lock changes hands by a write that names the
//! previous holder, so of two jobs that compete one is rejected. The lock is not released: a lock whose job has ended
//! is free.

use bson::{Bson, Document, doc};
use imago_job::id::JobId;
use imago_job::journal::Journal;
use imago_job::record::Record;

use crate::error::{Error, Result};
use crate::reshard::spec::{KIND, Spec};
use crate::server::collection::number;
use crate::server::endpoint::Endpoint;
use crate::server::write::DUPLICATE_KEY;
use crate::state::journal::MongoJournal;

const DATABASE: &str = "imago";
const COLLECTION: &str = "turns";
/// Time, in milliseconds after a job took the lock, after which a job that is not in the journal will never be there.
const JOURNALLED_WITHIN_MS: u64 = 60_000;

/// Takes the cluster lock for the new job `id`, whose record must be written to the journal right after.
///
/// # Errors
/// Returns a precondition error if another job holds the lock.
pub(in crate::reshard) async fn take(
    cluster: &Endpoint,
    journal: &MongoJournal,
    id: &JobId,
) -> Result<()> {
    // Jobs from before the lock existed count too.
    for record in journal.list().await? {
        if record.kind == KIND && !record.state.is_final() {
            return Err(taken_by(&record, journal.now_ms().await?));
        }
    }
    let now_ms = journal.now_ms().await?;
    let mine = doc! {"job": id.to_string(), "at_ms": i64::try_from(now_ms).unwrap_or(i64::MAX)};
    let Some(held) = holder(cluster).await? else {
        let mut first = doc! {"_id": KIND};
        first.extend(mine);
        let insert = doc! {"insert": COLLECTION, "documents": [first], "writeConcern": majority()};
        let reply = cluster.run(DATABASE, insert).await?;
        return match write_error(&reply) {
            None => Ok(()),
            Some((DUPLICATE_KEY, _)) => Err(taken("another")),
            Some((_, message)) => Err(Error::malformed("taking the cluster lock", message)),
        };
    };
    let before = held.get_str("job").unwrap_or_default();
    let is_young = number(&held, "at_ms") + JOURNALLED_WITHIN_MS > now_ms;
    let known = journal.list().await?.into_iter().find(|record| record.id.to_string() == before);
    match known {
        Some(record) if !record.state.is_final() => return Err(taken_by(&record, now_ms)),
        None if is_young => return Err(taken(before)),
        _ => {}
    }
    let change = doc! {"q": {"_id": KIND, "job": before}, "u": {"$set": mine}};
    let update = doc! {"update": COLLECTION, "updates": [change], "writeConcern": majority()};
    let reply = cluster.run(DATABASE, update).await?;
    if let Some((_, message)) = write_error(&reply) {
        return Err(Error::malformed("taking the cluster lock", message));
    }
    if number(&reply, "n") == 1 { Ok(()) } else { Err(taken("another")) }
}

fn majority() -> Document {
    doc! {"w": "majority"}
}

async fn holder(cluster: &Endpoint) -> Result<Option<Document>> {
    let find = doc! {
        "find": COLLECTION, "filter": {"_id": KIND}, "limit": 1, "singleBatch": true,
        "readConcern": {"level": "majority"},
    };
    let reply = cluster.run(DATABASE, find).await?;
    let batch = reply.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
    let batch = batch.map_err(|error| Error::malformed("reading the cluster lock", error))?;
    Ok(batch.first().and_then(Bson::as_document).cloned())
}

fn write_error(reply: &Document) -> Option<(i32, String)> {
    let error = reply.get_array("writeErrors").ok()?.first()?.as_document()?;
    let code = error.get_i32("code").unwrap_or(0);
    Some((code, error.get_str("errmsg").unwrap_or_default().to_owned()))
}

/// Returns the error that the job of `record` holds the lock, with the job's state and the time since its last
/// change. A failed job keeps the lock.
fn taken_by(record: &Record, now_ms: u64) -> Error {
    let (id, state) = (&record.id, record.state.word());
    let ns =
        Spec::of(record).map_or_else(|_| "a collection".to_owned(), |of| of.reshard.ns.to_string());
    let since_s = now_ms.saturating_sub(record.updated_at_ms) / 1_000;
    let since = match since_s {
        0..120 => format!("{since_s} s"),
        120..7_200 => format!("{} minutes", since_s / 60),
        _ => format!("{} hours", since_s / 3_600),
    };
    Error::precondition(
        format!(
            "job {id} is changing the shape of {ns} in this cluster, and only one job at a time \
             may: it is {state}, and last reported {since} ago"
        ),
        format!(
            "wait for it, let it go on with `imago reshard resume {id}`, or give it up with `imago job \
             cancel {id}`"
        ),
    )
}

fn taken(by: &str) -> Error {
    Error::precondition(
        format!("job {by} is changing the shape of a collection of this cluster already"),
        "one at a time: wait for it, or `imago reshard resume` or `imago job cancel` it first",
    )
}
