//! Late writes: changes of the old collection between the drain and the rename, brought over after the rename.
//!
//! A validator stops neither deletes nor writers that bypass it. All their changes of the old collection are in the
//! change stream, and the server's rename ends it. On each shard their times are before the rename's, so a stream
//! that is read up to a time that every shard issued after the rename contains all of them. An event names its
//! collection by UUID, which is unambiguous across the rename.
//!
//! Until these changes are brought over, the new collection rejects inserts and updates, so no client has inserted an
//! `_id` again whose delete is still to be applied. A client that bypasses validation may have, and then the newer
//! document is kept.
//!
//! A document whose event contains all of it is written again. The event of an update contains the changed fields
//! only, and the base document was dropped with the old collection: such an update cannot be brought over, and the
//! `_id` of its document is reported.

use std::collections::BTreeMap;

use bson::{RawDocumentBuf, Timestamp};
use imago_job::control::Control;
use imago_job::run::Run;
use imago_plan::copy::pending_changes::Change;

use crate::bson::order::Id;
use crate::copy::preflight::key_fields;
use crate::error::{Error, Result};
use crate::replicate::apply::{Found, put, remove};
use crate::replicate::changes::{AWAIT_MAX, ChangeReader, Detail, Event, Start, Write};
use crate::replicate::pair::Pair;
use crate::reshard::spec::{LateWrites, Spec};
use crate::server::collection::Handle;
use crate::server::endpoint::Endpoint;
use crate::server::timing::retry_transient;

/// Warns that the changes after the cluster time `from` are no longer in the cluster's logs, and returns late writes
/// that are unknown.
pub(in crate::reshard) fn unknown(run: &Run, spec: &Spec, from: Timestamp) -> LateWrites {
    let ns = &spec.reshard.ns;
    run.reporter().warning(
        "deletes_unknown",
        format!(
            "the cluster no longer has the log of deletes from {ns} between second {} of the epoch \
             and the rename: the deleted documents exist again",
            from.time
        ),
        "if the application knows these deletes, repeat them; next time resume sooner, or use \
         --block user-writes",
    );
    LateWrites { unknown: true, ..LateWrites::default() }
}

/// State of a document after all events about it; `Gone` if it was deleted, `Is` with its content.
#[derive(Clone, Debug, PartialEq)]
enum FinalState {
    Gone,
    Is(RawDocumentBuf),
    /// The document was updated, and its content was only in the old collection.
    Lost,
}

/// A change event of a document: the document's `_id`, the time of the change, and its details.
type DocumentEvent = (Id, Timestamp, Detail);

/// Returns the final state of each document according to its `events`. Documents that were written in the new
/// collection, whose UUID is `new`, are left out.
///
/// Events with the same time on two shards have no order. If a document has a write and a delete at one time, as one
/// that moves to another shard does, its final state is unknown.
fn final_states(events: &[DocumentEvent], new: Option<&str>) -> BTreeMap<Id, FinalState> {
    let mut final_states = BTreeMap::new();
    let mut put_at: BTreeMap<&Id, Timestamp> = BTreeMap::new();
    for (id, time, detail) in events {
        let is_new = new.is_some() && detail.of.as_deref() == new;
        match (detail.write, &detail.document) {
            (Write::Put | Write::Delete, _) if is_new => drop(final_states.remove(id)),
            (Write::Update, _) if is_new => {}
            (Write::Put, Some(document)) => {
                put_at.insert(id, *time);
                drop(final_states.insert(id.clone(), FinalState::Is(document.clone())));
            }
            (Write::Delete, _) if put_at.get(id) == Some(time) => {
                drop(final_states.insert(id.clone(), FinalState::Lost));
            }
            (Write::Delete, _) => drop(final_states.insert(id.clone(), FinalState::Gone)),
            (Write::Update | Write::Put, _) => {
                drop(final_states.insert(id.clone(), FinalState::Lost));
            }
        }
    }
    final_states
}

/// Opens the change stream of the collection at the cluster time `from`, that of the drain. A read of the stream
/// after the rename is complete.
fn reader(cluster: &Endpoint, spec: &Spec, from: Timestamp) -> ChangeReader {
    let namespaces = vec![spec.reshard.ns.clone()];
    ChangeReader::new(cluster.clone(), namespaces, Start::At(from), AWAIT_MAX).detailed()
}

/// Returns the events after the cluster time `from`, up to a time that is after the rename on every shard.
async fn read(cluster: &Endpoint, spec: &Spec, from: Timestamp) -> Result<Vec<DocumentEvent>> {
    let to = cluster.cluster_time().await?;
    // Without the heartbeat the stream reaches that time too, only later.
    if let Err(error) = cluster.heartbeat().await {
        tracing::debug!(%error, "the shards were not nudged");
    }
    let mut reader = reader(cluster, spec, from);
    let mut events = Vec::new();
    loop {
        let batch = reader.next().await?;
        tracing::debug!(?from, ?to, time = ?batch.time, events = batch.events.len(), "late_writes");
        for event in batch.events {
            if let Event::DirtyKey { id, time, detail: Some(detail), .. } = event
                && time > from
            {
                events.push((id, time, *detail));
            }
        }
        if batch.time >= to {
            return Ok(events);
        }
    }
}

/// Brings over the changes after the cluster time `from`, at which the shadow was equal to the collection. `new` is
/// the UUID of the renamed collection, if it is known. Runs after the rename, and is idempotent.
///
/// # Errors
/// Fails if the cluster does not reply, or if its oplog no longer reaches back to `from`.
pub(in crate::reshard) async fn bring_over(
    run: &Run,
    cluster: &Endpoint,
    spec: &Spec,
    new: Option<&str>,
    from: Timestamp,
) -> Result<LateWrites> {
    // The rename has happened, and this step completes it, so a pause or a cancellation comes too late.
    let always = Control::default();
    let read = || read(cluster, spec, from);
    let events = retry_transient("read what came before the rename", &always, read).await?;
    let final_states = final_states(&events, new);
    if final_states.is_empty() {
        return Ok(LateWrites::default());
    }
    let pair = pair(run, cluster, spec).await?;
    let write = || write(&pair, &final_states);
    let late_writes =
        retry_transient("bring over what came before the rename", &always, write).await?;
    report(run, spec, &late_writes);
    Ok(late_writes)
}

/// Returns a pair of collections in which the renamed collection is both source and destination.
async fn pair(run: &Run, cluster: &Endpoint, spec: &Spec) -> Result<Pair> {
    let source = Handle::new(cluster.clone(), spec.reshard.ns.clone());
    let gone = || Error::Disrupted { ns: source.ns.to_string(), what: "dropped".into() };
    let definition = source.definition().await?.ok_or_else(gone)?;
    let mut destination = source.clone();
    (destination.bypass_validation, destination.owner) = (true, Some(run.ownership()));
    Ok(Pair {
        source,
        destination,
        filter: None,
        is_collated: definition.is_collated(),
        shard_key: key_fields(definition.shard_key.as_ref()),
        has_foreign: false,
    })
}

async fn write(pair: &Pair, final_states: &BTreeMap<Id, FinalState>) -> Result<LateWrites> {
    let of = |wanted: fn(&FinalState) -> bool| {
        final_states.iter().filter(move |(_, state)| wanted(state))
    };
    let gone: Vec<&Id> = of(|state| *state == FinalState::Gone).map(|(id, _)| id).collect();
    if !gone.is_empty() {
        remove(&pair.destination, gone.iter().copied(), None).await?;
    }
    let found = final_states.iter().filter_map(|(id, state)| match state {
        FinalState::Is(raw) => Some(Found { id: id.clone(), raw }),
        FinalState::Gone | FinalState::Lost => None,
    });
    let found: Vec<Found<'_>> = found.collect();
    // A document that has a unique value here had lost it or was deleted in the old collection, so these events
    // cover each document that is removed for its value. A document that they do not cover is reported.
    let mut stale = Vec::new();
    if !found.is_empty() {
        put(pair, &found, |_| Change::Any, &mut stale).await?;
    }
    stale.retain(|id| !final_states.contains_key(id));
    let lost = of(|state| *state == FinalState::Lost).map(|(id, _)| id).chain(&stale);
    Ok(LateWrites {
        deleted: gone.len() as u64,
        written: found.len() as u64,
        lost: lost.map(ToString::to_string).collect(),
        unknown: false,
    })
}

/// Maximum number of `_id`s that a warning lists; the job's result has all of them.
const NAMED_MAX: usize = 20;

fn report(run: &Run, spec: &Spec, late_writes: &LateWrites) {
    let ns = &spec.reshard.ns;
    if late_writes.deleted + late_writes.written > 0 {
        run.reporter().decision(
            format!("{} documents follow the old {ns}", late_writes.deleted + late_writes.written),
            format!(
                "{} were deleted, and {} written by bypassing the validator, just before the \
                 rename",
                late_writes.deleted, late_writes.written
            ),
        );
    }
    if !late_writes.lost.is_empty() {
        let named: Vec<&str> =
            late_writes.lost.iter().take(NAMED_MAX).map(String::as_str).collect();
        run.reporter().warning(
            "writes_lost",
            format!(
                "updates of {} documents of {ns} that bypassed its validator just before the \
                 rename are lost: {}{}",
                late_writes.lost.len(),
                named.join(", "),
                if late_writes.lost.len() > NAMED_MAX { ", …" } else { "" },
            ),
            "repeat these updates; next time stop the clients that bypass validation, or use \
             --block user-writes",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::raw::RawBsonRef;
    use bson::rawdoc;

    fn id(n: i32) -> Id {
        Id::from_raw(RawBsonRef::Int32(n))
    }

    fn event(n: i32, of: &str, write: Write) -> (Id, Detail) {
        let document = (write == Write::Put).then(|| rawdoc! {"_id": n, "of": of});
        (id(n), Detail { write, of: Some(of.into()), document })
    }

    /// Events at a time each.
    fn of(events: &[(Id, Detail)]) -> Vec<(Id, FinalState)> {
        let at = |(time, (id, detail)): (u32, &(Id, Detail))| {
            (id.clone(), Timestamp { time, increment: 1 }, detail.clone())
        };
        let events: Vec<DocumentEvent> = (1..).zip(events).map(at).collect();
        final_states(&events, Some("new")).into_iter().collect()
    }

    #[test]
    fn what_was_written_and_deleted_at_one_time_is_not_known() {
        let at = Timestamp { time: 1, increment: 1 };
        let moves = |writes: [Write; 2]| {
            let event = |write| event(1, "old", write);
            let events = writes.map(event).map(|(id, detail)| (id, at, detail));
            final_states(&events, Some("new")).into_values().collect::<Vec<FinalState>>()
        };
        let there = FinalState::Is(rawdoc! {"_id": 1, "of": "old"});
        assert_eq!(moves([Write::Delete, Write::Put]), [there]);
        assert_eq!(moves([Write::Put, Write::Delete]), [FinalState::Lost]);
    }

    #[test]
    fn the_last_write_to_the_old_collection_counts() {
        use Write::{Delete, Put, Update};
        let is = FinalState::Is(rawdoc! {"_id": 1, "of": "old"});
        let cases: [(&[Write], FinalState); 5] = [
            (&[Delete], FinalState::Gone),
            (&[Delete, Put], is.clone()),
            (&[Put, Update], FinalState::Lost),
            (&[Update, Put], is),
            (&[Update, Delete], FinalState::Gone),
        ];
        for (writes, state) in cases {
            let events: Vec<_> = writes.iter().map(|write| event(1, "old", *write)).collect();
            assert_eq!(of(&events), [(id(1), state)], "{writes:?}");
        }
    }

    #[test]
    fn what_the_new_collection_has_written_itself_is_left_alone() {
        use Write::{Delete, Put, Update};
        assert_eq!(of(&[event(1, "old", Delete), event(1, "new", Put)]), []);
        assert_eq!(of(&[event(1, "old", Put), event(1, "new", Delete)]), []);
        let kept = [event(1, "old", Delete), event(1, "new", Update)];
        assert_eq!(of(&kept), [(id(1), FinalState::Gone)], "it updated what was deleted");
        assert_eq!(of(&[event(1, "new", Delete), event(2, "new", Put)]), []);
    }
}
