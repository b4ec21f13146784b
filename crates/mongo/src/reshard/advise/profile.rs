//! Operations from the profilers of the shards, which are switched on for a while.
//!
//! A profiler is set by a filter that admits a random part of the collection's operations until the recording's end, and what
//! the server would have logged without it: a filter decides what is logged as slow, too. What was there before is in a note
//! in the cluster before it is changed. The next recording restores what a process that died could not.
//!
//! Invariants: a profiler that was on before is read as it is and not changed; a setting is changed only
//! after its note is durable, and restored only on the server where it was changed, and only if it is still the one that was
//! set; each call to a server has a deadline, and every server is restored, even if another one fails.

mod server;

use std::time::{Duration, Instant};

use bson::{Binary, Bson, DateTime, Document, RawDocumentBuf, doc};
use futures_util::TryStreamExt;
use futures_util::future::{join_all, try_join_all};
use imago_job::control::Control;
use mongodb::Collection;
use mongodb::options::{Acknowledgment, CollectionOptions, WriteConcern};
use rand::RngExt as _;

use server::{Server, bytes_of};

use super::operation::{Operation, of_profile};
use super::source::{Observed, Source, SourceFacts};
use crate::STATE_DB;
use crate::error::{Error, Result, code};
use crate::namespace::Namespace;
use crate::reshard::plan::survey::Shard;
use crate::server::collection::number;
use crate::server::endpoint::{Endpoint, answer_within};

/// The collection of notes about settings that are to be restored, one for each server and database.
const NOTES: &str = "profilers";
/// Entries that a shard writes each second, about, by the choice of the part that is recorded: each is inserted, and written to the
/// server's log.
const ENTRIES_S: f64 = 20.0;
/// Least number of entries of a shard, about: a short recording writes more of them a second.
const ENTRIES_MIN: f64 = 1_000.0;
/// Time for which operations are counted before that part is chosen.
const COUNTED: Duration = Duration::from_secs(1);
/// Pause between readings of the entries, of a part that is chosen and of one that is requested, which may be all. The server keeps 1 MB
/// of them, at least 400.
const READ_EVERY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(250));
/// Largest difference of the times of two entries that are in the other order, in ms.
const SWAPPED_MS: i64 = 100;
/// Number of entries that are read at once: more than are written between readings, in most cases.
const BATCH: u32 = 100;
/// Largest number of operations that are kept.
const OPERATIONS_MAX: usize = 1_000_000;
/// Server error code of a cursor whose place in a capped collection was overwritten.
const POSITION_LOST: i32 = 136;
/// Server error code of a second document with one `_id`.
const DUPLICATE_KEY: i32 = 11_000;
/// Longest wait for a server's reply.
const REPLY_MAX: Duration = Duration::from_secs(10);

/// The operations that profilers showed.
pub(super) struct Profiled {
    entries: Entries,
    facts: SourceFacts,
}

/// Operations with their times and shards.
type Entries = Vec<(DateTime, u16, Operation)>;

/// A recording by profilers.
#[derive(Clone, Debug)]
pub(super) struct Recording<'a> {
    /// The collection.
    pub(super) ns: &'a Namespace,
    /// Time of the recording.
    pub(super) within: Duration,
    /// Share of the operations that is recorded; `None` chooses it.
    pub(super) rate: Option<f64>,
    /// Name of this process, as `host/1234`.
    pub(super) process: &'a str,
}

/// Switches the profilers of the shards' primaries on for a time, and returns the operations on the collection.
///
/// # Errors
/// Precondition if a shard cannot be reached past the router, if the user may not set or read its profiler, or if another
/// process is recording by it; a server's error. Settings are restored before an error returns, as far as servers answer.
pub(super) async fn record(
    cluster: &Endpoint,
    shards: &[Shard],
    recording: &Recording<'_>,
    control: &Control,
) -> Result<Profiled> {
    let reached = shards
        .iter()
        .enumerate()
        .map(|(index, shard)| Profiler::reach(cluster, shard, index as u16, recording.ns));
    let mut profilers = try_join_all(reached).await?;
    restore_earlier(cluster, recording).await?;
    let rate = match recording.rate {
        Some(rate) => rate,
        None => chosen_rate(&profilers, recording.within).await?,
    };
    let recorded = record_until(&mut profilers, rate, recording, control).await;
    let restored = join_all(profilers.iter_mut().map(Profiler::restore)).await;
    let mut failed = restored.into_iter().filter_map(std::result::Result::err);
    let (mut entries, is_full) = match (recorded, failed.next()) {
        (Ok(recorded), None) => recorded,
        (Ok(_), Some(error)) => return Err(error),
        (Err(error), failure) => {
            for failure in failure.into_iter().chain(failed) {
                tracing::warn!(%failure, "a profiler was not restored; the next recording will");
            }
            return Err(error);
        }
    };
    if rate < 1.0 {
        // Of a transaction only some operations are there.
        entries.iter_mut().for_each(|(_, _, operation)| operation.transaction = None);
    }
    Ok(Profiled { facts: facts(&profilers, rate, recording.within, is_full), entries })
}

fn facts(profilers: &[Profiler], rate: f64, within: Duration, is_full: bool) -> SourceFacts {
    let mut notes =
        vec!["profilers of the primaries: reads at secondaries are not in it".to_owned()];
    let lost: u64 = profilers.iter().map(|profiler| profiler.lost).sum();
    if lost > 0 {
        notes.push(format!("{lost} times a server wrote entries faster than they were read"));
    }
    if is_full {
        notes.push(format!("the recording ended early, at {OPERATIONS_MAX} operations"));
    }
    for profiler in profilers.iter().filter(|profiler| profiler.their_level > 0) {
        notes.push(format!("the profiler of {} was on, and was left as it was", profiler.name));
    }
    SourceFacts {
        source: format!("profilers of {} shards", profilers.len()),
        operations: 0,
        share: Some(rate),
        seconds: Some(within.as_secs_f64()),
        notes,
    }
}

/// Switches profilers on and reads their entries until the end. Returns them in the order of their times, and whether
/// there were more than are kept.
async fn record_until(
    profilers: &mut [Profiler],
    rate: f64,
    recording: &Recording<'_>,
    control: &Control,
) -> Result<(Entries, bool)> {
    let switched = profilers.iter_mut().map(|profiler| profiler.switch_on(rate, recording));
    // All of them end, also if one fails: a note that is on its way would be there after the others were deleted.
    join_all(switched).await.into_iter().collect::<Result<()>>()?;
    let pause = if recording.rate.is_some() { READ_EVERY.1 } else { READ_EVERY.0 };
    let started = Instant::now();
    let mut entries = Vec::new();
    let mut is_last = false;
    while !is_last && entries.len() < OPERATIONS_MAX {
        control.or_stop(tokio::time::sleep(pause)).await?;
        is_last = started.elapsed() > recording.within;
        let read = control.or_stop(try_join_all(profilers.iter_mut().map(Profiler::read)));
        entries.extend(read.await??.into_iter().flatten());
    }
    entries.sort_by_key(|(at, shard, _)| (*at, *shard));
    let is_full = entries.len() >= OPERATIONS_MAX;
    entries.truncate(OPERATIONS_MAX);
    Ok((entries, is_full))
}

/// Returns the share of operations at which the busiest shard writes about [`ENTRIES_S`] entries a second, or [`ENTRIES_MIN`] in all.
async fn chosen_rate(profilers: &[Profiler], within: Duration) -> Result<f64> {
    let before = try_join_all(profilers.iter().map(Profiler::operations)).await?;
    tokio::time::sleep(COUNTED).await;
    let after = try_join_all(profilers.iter().map(Profiler::operations)).await?;
    let done = after.iter().zip(&before).map(|(after, before)| after.saturating_sub(*before));
    let busiest = done.max().unwrap_or(0) as f64 / COUNTED.as_secs_f64();
    let entries_s = ENTRIES_S.max(ENTRIES_MIN / within.as_secs_f64().max(1.0));
    Ok((entries_s / busiest.max(1.0)).clamp(0.0001, 1.0))
}

fn notes_of(cluster: &Endpoint) -> Collection<Document> {
    let majority = WriteConcern::builder().w(Acknowledgment::Majority).build();
    let options = CollectionOptions::builder().write_concern(majority).build();
    cluster.client().database(STATE_DB).collection_with_options(NOTES, options)
}

/// Awaits a reply about notes within the deadline.
async fn noted<T>(
    doing: &'static str,
    reply: impl Future<Output = mongodb::error::Result<T>>,
) -> Result<T> {
    answer_within(REPLY_MAX, doing, reply).await?.map_err(|cause| Error::server(doing, cause))
}

/// Restores the settings that earlier processes changed in this database and could not restore.
async fn restore_earlier(cluster: &Endpoint, recording: &Recording<'_>) -> Result<()> {
    let notes = notes_of(cluster);
    let found = async {
        notes.find(doc! {"_id.db": &recording.ns.db}).await?.try_collect::<Vec<Document>>().await
    };
    for note in noted("reading notes about profilers", found).await? {
        let by = note.get_str("process").unwrap_or("another process").to_owned();
        let id = note.get_document("_id").cloned().unwrap_or_default();
        let host = id.get_str("host").unwrap_or_default().to_owned();
        let is_over = note.get_datetime("until").is_ok_and(|until| *until <= DateTime::now());
        if !is_over && !is_dead(&by, recording.process) {
            return Err(being_recorded(&by, &host));
        }
        tracing::warn!(host, by, "an earlier recording had not restored the profiler");
        let set = format!("{}/{host}", note.get_str("set").unwrap_or_default());
        let member = cluster.shard(&set, REPLY_MAX).await?.member(&host, REPLY_MAX)?;
        let client = member.client().clone();
        let server = Server { client, name: host, db: recording.ns.db.clone() };
        server.restore(&note).await?;
        noted(
            "deleting the note about a profiler",
            notes.delete_one(doc! {"_id": id}).into_future(),
        )
        .await?;
    }
    Ok(())
}

fn being_recorded(by: &str, host: &str) -> Error {
    Error::precondition(
        format!("{by} is recording by the profiler of {host}"),
        "wait until it ends, or name another source",
    )
}

/// The profiler of one shard's primary.
struct Profiler {
    server: Server,
    notes: Collection<Document>,
    /// Name of the shard.
    name: String,
    /// Name of the shard's replica set.
    set: String,
    /// Address of the server, as it names itself.
    host: String,
    shard: u16,
    ns: Namespace,
    /// The note about the settings that this process has changed.
    note: Option<Document>,
    /// Level of a profiler that was on before, which is left as it is; 0 for one that was off.
    their_level: u64,
    /// Time from which on an operation is slow, in ms: those are all in the entries.
    slow_ms: u64,
    /// Share of the operations that is recorded.
    rate: f64,
    /// Time of the last entry that was read.
    read_from: DateTime,
    /// Number of entries of that time that were read.
    read_then: usize,
    /// Number of times that entries were overwritten before they were read.
    lost: u64,
}

impl Profiler {
    async fn reach(cluster: &Endpoint, shard: &Shard, index: u16, ns: &Namespace) -> Result<Self> {
        let unreachable = |cause: String| {
            Error::precondition(
                format!("shard {} cannot be reached past the router: {cause}", shard.name),
                "name a source that needs no shard: --log or --recording",
            )
        };
        let set = cluster.shard(&shard.host, REPLY_MAX).await;
        let set = set.map_err(|cause| unreachable(cause.to_string()))?;
        let hello = set.run("admin", doc! {"hello": 1}).await?;
        let host = hello.get_str("me").unwrap_or_default().to_owned();
        let client = set.member(&host, REPLY_MAX)?.client().clone();
        Ok(Self {
            set: hello.get_str("setName").unwrap_or_default().to_owned(),
            server: Server { client, name: shard.name.clone(), db: ns.db.clone() },
            notes: notes_of(cluster),
            name: shard.name.clone(),
            host,
            shard: index,
            ns: ns.clone(),
            note: None,
            their_level: 0,
            slow_ms: 0,
            rate: 1.0,
            read_from: DateTime::from_millis(0),
            read_then: 0,
            lost: 0,
        })
    }

    /// Returns the number of operations on the collection that the server has executed.
    async fn operations(&self) -> Result<u64> {
        let documents = self.server.client.database(&self.ns.db);
        let documents = documents.collection::<Document>(&self.ns.coll);
        let stats = async {
            let stats = documents.aggregate(vec![doc! {"$collStats": {"latencyStats": {}}}]);
            stats.await?.try_collect::<Vec<Document>>().await
        };
        let stats = answer_within(REPLY_MAX, "counting operations", stats).await?;
        // A shard without chunks has no such collection.
        let stats = stats.unwrap_or_default();
        let counted = stats.iter().filter_map(|stats| stats.get_document("latencyStats").ok());
        let of = |stats: &Document, kind: &str| {
            stats.get_document(kind).map_or(0, |kind| number(kind, "ops"))
        };
        Ok(counted.map(|stats| of(stats, "reads") + of(stats, "writes")).sum())
    }

    /// Switches the profiler on for a part of the collection's operations. A profiler that is on is left as it is.
    async fn switch_on(&mut self, rate: f64, recording: &Recording<'_>) -> Result<()> {
        let status = self.server.run("asking", doc! {"hello": 1}).await?;
        // The server's clock, by which its entries have their times.
        let now = status.get_datetime("localTime").copied().unwrap_or_else(|_| DateTime::now());
        let within = i64::try_from(recording.within.as_millis()).unwrap_or(i64::MAX);
        let until = DateTime::from_millis(now.timestamp_millis().saturating_add(within));
        self.read_from = now;
        self.rate = rate;
        let was = self.server.run("reading", doc! {"profile": -1}).await?;
        self.slow_ms = number(&was, "slowms");
        self.their_level = number(&was, "was");
        if self.their_level > 0 {
            return Ok(());
        }
        let theirs = was.get_document("filter").ok();
        let slow = doc! {"millis": {"$gte": i64::try_from(self.slow_ms).unwrap_or(i64::MAX)}};
        let logged = theirs.cloned().unwrap_or(slow);
        let sampled = doc! {
            "ns": self.ns.to_string(),
            "$expr": {"$and": [{"$lt": [{"$rand": {}}, rate]}, {"$lt": ["$ts", until]}]},
        };
        let filter = doc! {"$or": [sampled, logged]};
        let mut note = doc! {
            "_id": {"host": &self.host, "db": &self.ns.db}, "was": 0, "until": until,
            "process": recording.process, "set": &self.set,
        };
        if let Some(theirs) = theirs {
            note.insert("filter", binary(bytes_of(theirs)?));
        }
        let inserted = self.notes.insert_one(note.clone()).into_future();
        // A failure may leave the note there.
        self.note = Some(note);
        noted("keeping the settings of a profiler", inserted).await.map_err(|error| {
            let is_taken =
                matches!(&error, Error::Server { cause, .. } if code(cause) == Some(DUPLICATE_KEY));
            if is_taken { being_recorded("another process", &self.host) } else { error }
        })?;
        self.server.run("setting", doc! {"profile": 1, "filter": filter}).await?;
        Ok(())
    }

    /// Restores the settings that this process has changed.
    async fn restore(&mut self) -> Result<()> {
        let Some(note) = &self.note else { return Ok(()) };
        self.server.restore(note).await?;
        // Another process may have been first to keep its note.
        let mut own = Document::new();
        for field in ["_id", "process", "until"] {
            own.insert(field, note.get(field).cloned().unwrap_or(Bson::Null));
        }
        self.note = None;
        let deleted = self.notes.delete_one(own).into_future();
        noted("deleting the note about a profiler", deleted).await.map(|_| ())
    }

    /// Returns the entries since the last reading.
    async fn read(&mut self) -> Result<Entries> {
        let profile: Collection<RawDocumentBuf> =
            self.server.client.database(&self.ns.db).collection("system.profile");
        // The newest ones first: the collection has no index, and few of its entries are new.
        let read = async {
            let found = profile.find(doc! {}).sort(doc! {"$natural": -1}).batch_size(BATCH);
            let (mut found, mut new) = (found.await?, Vec::new());
            loop {
                let entry = match found.try_next().await {
                    Ok(Some(entry)) => entry,
                    // New entries have taken the place of those that were to be read next.
                    Err(error) if code(&error) == Some(POSITION_LOST) => return Ok((new, false)),
                    Ok(None) => return Ok((new, false)),
                    Err(error) => return Err(error),
                };
                let at = entry.get_datetime("ts").map_or(i64::MAX, |at| at.timestamp_millis());
                if at < self.read_from.timestamp_millis() - SWAPPED_MS {
                    return Ok((new, true));
                }
                if at >= self.read_from.timestamp_millis() {
                    new.push(entry);
                }
            }
        };
        let read = answer_within(REPLY_MAX, "reading the entries of a profiler", read).await?;
        let (mut new, is_joined) = read.map_err(|cause| self.server.failed("reading", &cause))?;
        let at = |entry: &RawDocumentBuf| entry.get_datetime("ts").ok();
        // Of the entries that were read, the last ones are there unless they were overwritten.
        let oldest = new.last().and_then(at);
        if self.read_then > 0 && !is_joined && oldest.is_some_and(|oldest| oldest > self.read_from)
        {
            self.lost += 1;
        }
        let ns = self.ns.to_string();
        new.retain(|entry| entry.get_str("ns").is_ok_and(|of| of == ns));
        new.reverse();
        new.sort_by_key(at);
        let mut entries = Vec::new();
        let mut of_last = self.read_then;
        for entry in new {
            let Ok(at) = entry.get_datetime("ts") else { continue };
            if at == self.read_from && of_last > 0 {
                of_last -= 1;
                continue;
            }
            self.read_then = if at == self.read_from { self.read_then + 1 } else { 1 };
            self.read_from = at;
            if self.is_drawn(&entry) {
                let operations = of_profile(&entry, &self.ns.coll).into_iter();
                entries.extend(operations.map(|operation| (at, self.shard, operation)));
            }
        }
        Ok(entries)
    }

    /// Draws the part that is recorded from entries of which all are there: slow operations, and those of a profiler that was
    /// on for all.
    fn is_drawn(&self, entry: &RawDocumentBuf) -> bool {
        let millis = match entry.get("millis") {
            Ok(Some(bson::RawBsonRef::Int32(millis))) => i64::from(millis),
            Ok(Some(bson::RawBsonRef::Int64(millis))) => millis,
            _ => 0,
        };
        let is_slow = u64::try_from(millis).is_ok_and(|millis| millis >= self.slow_ms.max(1));
        let is_whole = is_slow || self.their_level > 1;
        !is_whole || rand::rng().random_bool(self.rate.clamp(0.0, 1.0))
    }
}

fn binary(bytes: Vec<u8>) -> Bson {
    Bson::Binary(Binary { subtype: bson::spec::BinarySubtype::Generic, bytes })
}

/// Returns true if the process `other` is certainly dead: it ran on the host of `own`, and is not there any more.
fn is_dead(other: &str, own: &str) -> bool {
    match (other.rsplit_once('/'), own.rsplit_once('/')) {
        (Some((host, pid)), Some((own_host, _))) if host == own_host => {
            !std::path::Path::new("/proc").join(pid).exists()
        }
        _ => false,
    }
}

impl Source for Profiled {
    fn read(&mut self, each: &mut dyn FnMut(Observed<'_>) -> Result<()>) -> Result<()> {
        self.facts.operations = 0;
        for (_, shard, operation) in &self.entries {
            self.facts.operations += 1;
            each(Observed { operation, shard: Some(*shard) })?;
        }
        Ok(())
    }

    fn facts(&self) -> SourceFacts {
        self.facts.clone()
    }
}
