//! The documents that the source's last operations wrote.
//!
//! At a replica set the oplog is read backwards, at a cost proportional to the requested number of operations. At a
//! sharded cluster, or without the privilege to read the oplog, a change stream is opened in the past: a minute ago
//! at first, then further back until enough operations follow that point, or the source's log ends. In either case
//! fewer operations than requested may be found, because the log is not longer; [`LastOps::found`] is their number.

use std::collections::{HashSet, VecDeque};

use bson::{RawBsonRef, RawDocument, Timestamp, doc};
use futures_util::StreamExt;
use imago_job::control::Control;

use super::LastOps;
use super::read_retry::retry_transient;
use crate::bson::order::Id;
use crate::error::{Error, Result, code};
use crate::replicate::changes::{ChangeReader, Event, Start};
use crate::server::collection::Handle;
use crate::server::endpoint::{answer_within, primary};
use crate::server::timing::SEARCH_MAX;

/// Maximum number of operations whose `_id`s are held in memory.
const OPS_MAX: u64 = 10_000_000;
/// First estimate of how far back the requested operations reach, in seconds, and the factor between successive
/// estimates.
const WINDOW_S: u32 = 60;
const WINDOW_FACTOR: u32 = 8;
/// Maximum number of change streams that are opened: the estimates grow beyond any log, then are halved beyond any
/// precision.
const WINDOWS_MAX: u32 = 40;
/// Precision of the search for the beginning of the log, in seconds.
const PRECISION_S: u32 = 10;
/// Server error code `Unauthorized`: the user lacks a privilege.
const UNAUTHORIZED: i32 = 13;

/// Returns the `_id`s, each once, of the documents that the last `wanted` operations on the collection `source`
/// wrote, and the counts of what was found.
pub(super) async fn read(
    source: &Handle,
    wanted: u64,
    control: &Control,
) -> Result<(Vec<Id>, LastOps)> {
    if wanted == 0 || wanted > OPS_MAX {
        return Err(Error::usage(
            format!("the last {wanted} operations cannot be verified"),
            format!("ask for 1 to {OPS_MAX}, or verify everything"),
        ));
    }
    let mut read_from = "oplog";
    let mut read = None;
    if !source.endpoint.is_sharded() {
        let look = || from_oplog(source, wanted);
        read = match retry_transient("read the oplog", control, look).await {
            Ok(ids) => Some(ids),
            Err(Error::Server { cause, .. }) if code(&cause) == Some(UNAUTHORIZED) => None,
            Err(error) => return Err(error),
        };
    }
    let ids = match read {
        Some(ids) => ids,
        None => {
            read_from = "change stream";
            let look = || from_stream(source, wanted);
            retry_transient("read the change stream", control, look).await?
        }
    };
    let found = ids.len() as u64;
    let mut known = HashSet::new();
    let ids: Vec<Id> = ids.into_iter().filter(|id| known.insert(id.clone())).collect();
    let documents = ids.len() as u64;
    Ok((ids, LastOps { wanted, found, documents, read_from: read_from.into() }))
}

/// Reads the oplog backwards and returns the `_id`s that the last `wanted` operations wrote, the newest first.
async fn from_oplog(source: &Handle, wanted: u64) -> Result<VecDeque<Id>> {
    let doing = || "reading the oplog".to_owned();
    let ns = source.ns.to_string();
    let command = doc! {
        "find": "oplog.rs",
        "filter": {"$or": [
            {"ns": &ns, "op": {"$in": ["i", "u", "d"]}},
            {"op": "c", "o.applyOps.ns": &ns},
        ]},
        "sort": {"$natural": -1},
        "projection": {
            "op": 1, "ns": 1, "o._id": 1, "o2._id": 1,
            "o.applyOps.op": 1, "o.applyOps.ns": 1,
            "o.applyOps.o._id": 1, "o.applyOps.o2._id": 1,
        },
    };
    let db = source.endpoint.client().database("local");
    let opened = db.run_cursor_command(command).selection_criteria(primary()).batch();
    let opened = answer_within(SEARCH_MAX, &doing(), opened.into_future()).await?;
    let mut cursor = opened.map_err(|error| Error::server(doing(), error))?;
    let mut ids = VecDeque::new();
    while let Some(batch) = answer_within(SEARCH_MAX, &doing(), cursor.next()).await? {
        let batch = batch.map_err(|error| Error::server(doing(), error))?;
        for entry in batch.doc_slices().map_err(|error| Error::server(doing(), error))? {
            let entry = entry.map_err(|error| Error::malformed(doing(), error))?;
            let entry = entry.as_document().ok_or_else(|| Error::malformed(doing(), "an entry"))?;
            written(entry, &ns, &mut ids).map_err(|error| Error::malformed(doing(), error))?;
            if ids.len() as u64 >= wanted {
                ids.truncate(usize::try_from(wanted).expect("bounded above"));
                return Ok(ids);
            }
        }
    }
    Ok(ids)
}

/// Appends to `ids` the `_id`s that the oplog entry `entry` wrote to the collection `ns`, the newest first.
fn written(entry: &RawDocument, ns: &str, ids: &mut VecDeque<Id>) -> bson::error::Result<()> {
    let part = |name: &str| -> bson::error::Result<Option<&RawDocument>> {
        Ok(entry.get(name)?.and_then(RawBsonRef::as_document))
    };
    let operation = part("o")?;
    let nested = match operation {
        Some(operation) => operation.get("applyOps")?.and_then(RawBsonRef::as_array),
        None => None,
    };
    if let Some(nested) = nested {
        let mut of_transaction = VecDeque::new();
        for entry in nested {
            if let Some(entry) = entry?.as_document() {
                written(entry, ns, &mut of_transaction)?;
            }
        }
        ids.extend(of_transaction.into_iter().rev());
        return Ok(());
    }
    let text = |field: &str| entry.get_str(field).unwrap_or_default();
    if !matches!(text("op"), "i" | "u" | "d") || text("ns") != ns {
        return Ok(());
    }
    // An update has the `_id` in its second object, an insert and a delete in the first.
    let holder = if text("op") == "u" { part("o2")? } else { operation };
    if let Some(id) = holder.map(|holder| holder.get("_id")).transpose()?.flatten() {
        ids.push_back(Id::from_raw(id));
    }
    Ok(())
}

/// Opens change streams ever further back until at least `wanted` operations follow, and returns the `_id`s that the
/// last `wanted` operations wrote, the oldest first.
async fn from_stream(source: &Handle, wanted: u64) -> Result<VecDeque<Id>> {
    let now = source.endpoint.cluster_time().await?;
    let mut best = VecDeque::new();
    let (mut window, mut readable, mut lost) = (WINDOW_S, 0, None::<u32>);
    for _ in 0..WINDOWS_MAX {
        let start = Timestamp { time: now.time.saturating_sub(window).max(1), increment: 1 };
        match follow(source, start, now, wanted).await {
            Ok(ids) => {
                readable = window;
                best = ids;
                if best.len() as u64 >= wanted || start.time == 1 {
                    break;
                }
            }
            Err(Error::OplogRolledOver { .. }) => lost = Some(window),
            Err(error) => return Err(error),
        }
        window = match lost {
            // Close enough to the log's beginning: the few operations before it do not justify another read.
            Some(lost) if lost - readable <= (readable / 8).max(PRECISION_S) => break,
            Some(lost) => readable.midpoint(lost),
            None => window.saturating_mul(WINDOW_FACTOR).min(now.time),
        };
    }
    Ok(best)
}

/// Returns the `_id`s of the last `wanted` changes between the cluster times `start` and `end`, the oldest first.
async fn follow(
    source: &Handle,
    start: Timestamp,
    end: Timestamp,
    wanted: u64,
) -> Result<VecDeque<Id>> {
    let endpoint = source.endpoint.clone();
    let mut reader = ChangeReader::new(
        endpoint,
        vec![source.ns.clone()],
        Start::At(start),
        crate::replicate::changes::AWAIT_MAX,
    );
    let mut ids = VecDeque::new();
    loop {
        let batch = reader.next().await?;
        for event in batch.events {
            match event {
                Event::DirtyKey { id, time, .. } if time <= end => {
                    ids.push_back(id);
                    if ids.len() as u64 > wanted {
                        ids.pop_front();
                    }
                }
                _ => {}
            }
        }
        if batch.time >= end {
            return Ok(ids);
        }
    }
}
