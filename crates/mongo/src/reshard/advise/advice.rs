//! The advice on a shard key, as it is reported.

use serde::{Deserialize, Serialize};

use super::fields::FieldFacts;
use super::source::SourceFacts;
use crate::reshard::plan::{Finding, Weight};

/// The keys worth having for a collection, with the effect of each on the operations of clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// Full name of the collection.
    pub ns: String,
    /// Names of the shards; those that the cluster does not have yet are numbered.
    pub shards: Vec<String>,
    /// The source of the operations.
    pub source: SourceFacts,
    /// Number of operations that were judged; an operation that several shards showed counts once.
    pub operations: u64,
    /// Number of operations that each shard showed, of those that the source has; `None` if the source does not tell shards.
    #[serde(default)]
    pub received: Option<Vec<u64>>,
    /// Number of operations with conditions that choose no shards, by kind of condition.
    pub ignored: Vec<Ignored>,
    /// Number of sampled documents.
    pub documents: u64,
    /// The fields, with the reason why a field is in no key.
    pub fields: Vec<FieldFacts>,
    /// The present key, on the chunks that there are.
    pub present: KeyEffect,
    /// The other keys: those without obstacles first, then by the throughput that they allow.
    pub keys: Vec<KeyEffect>,
    /// The best key without an obstacle if it allows certainly more throughput than the present one; `None` if none does.
    pub advised: Option<String>,
}

/// Operations with conditions that choose no shards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ignored {
    /// Kind of the conditions.
    pub conditions: String,
    /// Number of operations.
    pub operations: u64,
}

/// Operations by the number of shards that answer them, as shares of all of their kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shares {
    /// Number of operations.
    pub operations: u64,
    /// Share that one shard answers.
    pub one: f64,
    /// Share that several shards answer, but not all.
    pub several: f64,
    /// Share that all shards with chunks answer.
    pub all: f64,
    /// Share that the router refuses.
    pub refused: f64,
}

/// The effect of a key on the operations of clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyEffect {
    /// The key, as extended JSON; `None` for the present one of a collection that is not sharded.
    pub key: Option<String>,
    /// Reads by the number of shards that answer them.
    pub reads: Shares,
    /// Writes by the number of shards that answer them.
    pub writes: Shares,
    /// Throughput at which the busiest shard is saturated, in operations a second for each of its processors.
    pub throughput: f64,
    /// The throughput divided by that of the present key.
    pub ratio: f64,
    /// Bounds of the 90 % interval of the ratio, by the parts of the recorded time.
    pub ratio_interval: (f64, f64),
    /// Number of operations that each shard receives; one that several answer counts at each.
    pub requests: Vec<u64>,
    /// Share of the processor time of all shards that each shard takes.
    pub load: Vec<f64>,
    /// Share of the processor time that operations take because more than one shard answers.
    pub scatter: f64,
    /// Bytes on each shard.
    pub bytes: Vec<u64>,
    /// Number of chunks.
    pub chunks: u64,
    /// Size of the largest chunk, in bytes.
    pub largest_chunk_bytes: u64,
    /// Share of the operations that are for the most frequent value of the key alone; no change can divide them.
    pub hottest: f64,
    /// Share of the bytes that the largest value of the key has; no chunk can be smaller.
    pub heaviest: f64,
    /// Share of the inserts that one chunk receives; `None` without inserts.
    pub inserts_in_one_chunk: Option<f64>,
    /// Share of the transactions that one shard executes; `None` without transactions.
    pub transactions_on_one: Option<f64>,
    /// Share of the writes that change a field of the key.
    pub key_changes: f64,
    /// Obstacles and warnings.
    pub findings: Vec<Finding>,
    /// The sentence that says why the key is not the first; `None` for the first, and for the present one.
    pub why_not: Option<String>,
    /// The plan of a change to the key, in short; `None` if it was not made.
    pub change: Option<Change>,
}

impl KeyEffect {
    /// Returns true if nothing forbids the key.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        self.findings.iter().all(|finding| finding.weight == Weight::Warning)
    }
}

/// The plan of a change to a key, in short.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The command that shows the whole plan.
    pub command: String,
    /// Bytes that move to another shard.
    pub moved_bytes: u64,
    /// Predicted duration without load from clients, in seconds.
    pub predicted_s: f64,
    /// Predicted duration at the least pace that spares clients, in seconds; `None` if the job has no pace.
    pub paced_s: Option<f64>,
}
