//! Operations from the profilers of the shards, which are switched on for a while.
//!
//! A profiler is set by a filter that admits a random part of the collection's operations, and none after the recording's
//! end, so that it stops by itself if this process dies. The settings before it are in a note in the cluster before they
//! are changed; whoever records next restores them if this process could not.
//!
//! Invariants: a profiler that somebody else has switched on is read as it is and not changed; a setting is changed only
//! after its note is durable; a note is deleted only after the setting is restored.

use std::time::{Duration, Instant};

use bson::{Bson, DateTime, Document, RawDocumentBuf, doc};
use futures_util::TryStreamExt;
use imago_job::control::Control;
use mongodb::options::{Acknowledgment, CollectionOptions, WriteConcern};
use mongodb::{Client, Collection};

use super::operation::of_profile;
use super::source::{Observed, Source, SourceFacts};
use crate::STATE_DB;
use crate::error::{Error, Result, redacted_message};
use crate::namespace::Namespace;
use crate::reshard::plan::shard_probe::connect;
use crate::reshard::plan::survey::Shard;
use crate::server::collection::number;
use crate::server::endpoint::Endpoint;

/// The collection of notes about settings that are to be restored, one for each shard and database.
const NOTES: &str = "profilers";
/// Entries that a shard writes each second, at most, by the choice of the part that is recorded.
const ENTRIES_S: f64 = 200.0;
/// Time for which operations are counted before that part is chosen.
const COUNTED: Duration = Duration::from_secs(1);
/// Pause between readings of the entries. The server keeps 1 MB of them, some 1,000.
const READ_EVERY: Duration = Duration::from_millis(250);
/// Largest number of operations that are kept.
const OPERATIONS_MAX: usize = 1_000_000;

/// The operations that profilers showed.
pub(super) struct Profiled {
    operations: Vec<(DateTime, u16, RawDocumentBuf)>,
    ns: Namespace,
    facts: SourceFacts,
}

/// Switches the profilers of the shards on for `within`, and returns the operations on the collection `ns`. `rate` is the
/// share of the operations that is recorded; `None` chooses it.
///
/// # Errors
/// Precondition if a shard cannot be reached past the router, or the user may not set or read its profiler; a server's
/// error. Settings are restored before an error returns, as far as shards answer.
pub(super) async fn record(
    cluster: &Endpoint,
    shards: &[Shard],
    ns: &Namespace,
    within: Duration,
    rate: Option<f64>,
    control: &Control,
) -> Result<Profiled> {
    let mut profilers = Vec::with_capacity(shards.len());
    for (index, shard) in shards.iter().enumerate() {
        profilers.push(Profiler::reach(cluster, shard, index as u16, ns)?);
    }
    for profiler in &profilers {
        profiler.restore_earlier().await?;
    }
    let rate = match rate {
        Some(rate) => rate,
        None => chosen_rate(&profilers).await?,
    };
    let began = DateTime::now();
    let until = DateTime::from_millis(
        began
            .timestamp_millis()
            .saturating_add(i64::try_from(within.as_millis()).unwrap_or(i64::MAX)),
    );
    let recorded = record_until(&mut profilers, rate, began, until, within, control).await;
    // Every profiler is restored, whatever happened to another one.
    let mut restored = Ok(());
    for profiler in &profilers {
        let one = profiler.restore_noted().await;
        restored = restored.and(one);
    }
    let (operations, is_full) = recorded?;
    restored?;
    let mut notes =
        vec!["profilers of the primaries: reads at secondaries are not in it".to_owned()];
    let lost: u64 = profilers.iter().map(|profiler| profiler.lost).sum();
    if lost > 0 {
        notes.push(format!("{lost} times a server wrote entries faster than they were read"));
    }
    if is_full {
        notes.push(format!("the recording ended early, at {OPERATIONS_MAX} entries"));
    }
    for profiler in profilers.iter().filter(|profiler| profiler.is_theirs) {
        notes.push(format!("the profiler of {} was on, and was left as it was", profiler.name));
    }
    Ok(Profiled {
        facts: SourceFacts {
            source: format!("profilers of {} shards", profilers.len()),
            operations: 0,
            share: Some(rate),
            seconds: Some(within.as_secs_f64()),
            notes,
        },
        operations,
        ns: ns.clone(),
    })
}

type Entries = Vec<(DateTime, u16, RawDocumentBuf)>;

/// Switches profilers on and reads their entries until the end. Returns them in the order of their times, and whether
/// there were more than are kept.
async fn record_until(
    profilers: &mut [Profiler],
    rate: f64,
    began: DateTime,
    until: DateTime,
    within: Duration,
    control: &Control,
) -> Result<(Entries, bool)> {
    for profiler in profilers.iter_mut() {
        profiler.switch_on(rate, until).await?;
        profiler.read_from = began;
    }
    let started = Instant::now();
    let mut entries = Vec::new();
    let mut is_last = false;
    while !is_last && entries.len() < OPERATIONS_MAX {
        control.or_stop(tokio::time::sleep(READ_EVERY)).await?;
        is_last = started.elapsed() > within;
        for profiler in profilers.iter_mut() {
            profiler.read(&mut entries).await?;
        }
    }
    entries.sort_by_key(|(at, shard, _)| (*at, *shard));
    let is_full = entries.len() >= OPERATIONS_MAX;
    entries.truncate(OPERATIONS_MAX);
    Ok((entries, is_full))
}

/// Returns the share of operations at which the busiest shard writes about [`ENTRIES_S`] entries a second.
async fn chosen_rate(profilers: &[Profiler]) -> Result<f64> {
    let mut before = Vec::new();
    for profiler in profilers {
        before.push(profiler.operations().await?);
    }
    tokio::time::sleep(COUNTED).await;
    let mut busiest: f64 = 0.0;
    for (profiler, before) in profilers.iter().zip(before) {
        let done = profiler.operations().await?.saturating_sub(before);
        busiest = busiest.max(done as f64 / COUNTED.as_secs_f64());
    }
    Ok((ENTRIES_S / busiest.max(1.0)).clamp(0.001, 1.0))
}

/// The profiler of one shard's primary.
struct Profiler {
    client: Client,
    notes: Collection<Document>,
    name: String,
    shard: u16,
    ns: Namespace,
    /// Time of the last entry that was read.
    read_from: DateTime,
    /// Number of entries of that time that were read.
    read_then: usize,
    /// Number of times that entries were overwritten before they were read.
    lost: u64,
    /// True if the profiler was on before.
    is_theirs: bool,
}

impl Profiler {
    fn reach(cluster: &Endpoint, shard: &Shard, index: u16, ns: &Namespace) -> Result<Self> {
        let client = connect(cluster, shard).map_err(|cause| {
            Error::precondition(
                format!("shard {} cannot be reached past the router: {cause}", shard.name),
                "name a source that needs no shard: --log or --recording",
            )
        })?;
        let majority = WriteConcern::builder().w(Acknowledgment::Majority).build();
        let notes = cluster.client().database(STATE_DB).collection_with_options(
            NOTES,
            CollectionOptions::builder().write_concern(majority).build(),
        );
        Ok(Self {
            client,
            notes,
            name: shard.name.clone(),
            shard: index,
            ns: ns.clone(),
            read_from: DateTime::from_millis(0),
            read_then: 0,
            lost: 0,
            is_theirs: false,
        })
    }

    /// Returns the key of the note about this profiler.
    fn note_id(&self) -> Document {
        doc! {"shard": &self.name, "db": &self.ns.db}
    }

    fn failed(&self, doing: &str, cause: &mongodb::error::Error) -> Error {
        Error::precondition(
            format!("{doing} the profiler of shard {}: {}", self.name, redacted_message(cause)),
            format!(
                "it takes the roles dbAdmin and read on {} at each shard; --log and --recording need \
                 none",
                self.ns.db
            ),
        )
    }

    async fn run(&self, doing: &str, command: Document) -> Result<Document> {
        let ran = self.client.database(&self.ns.db).run_command(command).await;
        ran.map_err(|cause| self.failed(doing, &cause))
    }

    /// Returns the number of operations that the server has executed.
    async fn operations(&self) -> Result<u64> {
        let status = self.client.database("admin").run_command(doc! {"serverStatus": 1}).await;
        let status = status.map_err(|cause| self.failed("counting operations for", &cause))?;
        let counters = status.get_document("opcounters").cloned().unwrap_or_default();
        Ok(["insert", "query", "update", "delete", "command"]
            .iter()
            .map(|name| number(&counters, name))
            .sum())
    }

    /// Restores the settings that an earlier process changed and could not restore.
    async fn restore_earlier(&self) -> Result<()> {
        let found = self.notes.find_one(doc! {"_id": self.note_id()}).await;
        let found = found.map_err(|cause| Error::server("reading notes about profilers", cause))?;
        if found.is_some() {
            tracing::warn!(shard = self.name, "an earlier recording had not restored the profiler");
            self.restore_noted().await?;
        }
        Ok(())
    }

    /// Switches the profiler on for the part `rate` of the collection's operations, until `until`. A profiler that is on is
    /// left as it is.
    async fn switch_on(&mut self, rate: f64, until: DateTime) -> Result<()> {
        let was = self.run("reading", doc! {"profile": -1}).await?;
        if number(&was, "was") > 0 {
            self.is_theirs = true;
            return Ok(());
        }
        let mut note = doc! {"_id": self.note_id(), "was": was.get("was").cloned()};
        for field in ["slowms", "sampleRate", "filter"] {
            if let Some(value) = was.get(field) {
                // A filter has names with dots and dollars, which fields of documents should not have.
                let kept = match value {
                    Bson::Document(filter) => Bson::Binary(bson::Binary {
                        subtype: bson::spec::BinarySubtype::Generic,
                        bytes: RawDocumentBuf::try_from(filter)
                            .map_err(|cause| Error::malformed("a profiler's filter", cause))?
                            .into_bytes(),
                    }),
                    value => value.clone(),
                };
                note.insert(field, kept);
            }
        }
        let kept = self.notes.insert_one(note).await;
        kept.map_err(|cause| Error::server("keeping the settings of a profiler", cause))?;
        let filter = doc! {
            "ns": self.ns.to_string(),
            "$expr": {"$and": [{"$lt": [{"$rand": {}}, rate]}, {"$lt": ["$ts", until]}]},
        };
        self.run("setting", doc! {"profile": 1, "filter": filter}).await?;
        Ok(())
    }

    /// Restores the settings in the note about this profiler, and deletes the note; nothing if there is none.
    async fn restore_noted(&self) -> Result<()> {
        let id = doc! {"_id": self.note_id()};
        let found = self.notes.find_one(id.clone()).await;
        let found = found.map_err(|cause| Error::server("reading notes about profilers", cause))?;
        let Some(note) = found else { return Ok(()) };
        let mut command = doc! {"profile": number(&note, "was") as i32, "filter": "unset"};
        for field in ["slowms", "sampleRate"] {
            if let Some(value) = note.get(field) {
                command.insert(field, value.clone());
            }
        }
        if let Ok(filter) = note.get_binary_generic("filter") {
            let filter = RawDocumentBuf::from_bytes(filter.clone())
                .and_then(Document::try_from)
                .map_err(|cause| Error::malformed("a profiler's filter", cause))?;
            command.insert("filter", filter);
        }
        self.run("restoring", command).await?;
        let deleted = self.notes.delete_one(id).await;
        deleted.map_err(|cause| Error::server("deleting the note about a profiler", cause))?;
        Ok(())
    }

    /// Adds the entries since the last reading to `entries`.
    async fn read(&mut self, entries: &mut Entries) -> Result<()> {
        let profile: Collection<RawDocumentBuf> =
            self.client.database(&self.ns.db).collection("system.profile");
        let filter = doc! {"ns": self.ns.to_string(), "ts": {"$gte": self.read_from}};
        let read = async {
            let oldest = profile.find_one(doc! {}).sort(doc! {"$natural": 1}).await?;
            let found = profile.find(filter).sort(doc! {"$natural": 1}).await?;
            Ok((oldest, found.try_collect::<Vec<_>>().await?))
        };
        let read = read.await.map_err(|cause| self.failed("reading the entries of", &cause));
        let (oldest, read) = read?;
        let oldest = oldest.and_then(|entry| entry.get_datetime("ts").ok());
        // Of the entries that were read, the last ones are there unless they were overwritten.
        if self.read_then > 0 && oldest.is_some_and(|oldest| oldest > self.read_from) {
            self.lost += 1;
        }
        let mut of_last = self.read_then;
        for entry in read {
            let Ok(at) = entry.get_datetime("ts") else { continue };
            if at == self.read_from && of_last > 0 {
                of_last -= 1;
                continue;
            }
            self.read_then = if at == self.read_from { self.read_then + 1 } else { 1 };
            self.read_from = at;
            entries.push((at, self.shard, entry));
        }
        Ok(())
    }
}

impl Source for Profiled {
    fn read(&mut self, each: &mut dyn FnMut(Observed) -> Result<()>) -> Result<()> {
        self.facts.operations = 0;
        for (_, shard, entry) in &self.operations {
            for operation in of_profile(entry, &self.ns.coll) {
                self.facts.operations += 1;
                each(Observed { operation, shard: Some(*shard) })?;
            }
        }
        Ok(())
    }

    fn facts(&self) -> SourceFacts {
        self.facts.clone()
    }
}
