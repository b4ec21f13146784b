//! The plan of a change of shape, computed before anything is written, and the modules that read the
//! cluster for it.

pub(in crate::reshard) mod chunk_weights;
pub(in crate::reshard) mod members;
pub(in crate::reshard) mod placement;
pub(in crate::reshard) mod predict;
pub(in crate::reshard) mod readers;
pub(in crate::reshard) mod sample;
pub(in crate::reshard) mod shard_probe;
pub(in crate::reshard) mod survey;

use serde::{Deserialize, Serialize};

use crate::namespace::Namespace;
use crate::server::collection::Size;

/// The rule by which new chunks are given to shards (Morphus, §3; [`imago_plan::placement`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placing {
    /// The least movement with equal numbers of chunks on the shards.
    Balanced,
    /// The least movement of all, however full a shard becomes.
    Greedy,
    /// By chance, for comparison.
    Random,
}

/// The rule by which sockets are given to flows (Morphus, §4.1; [`imago_plan::flow`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flowing {
    /// By amount and latency.
    Wfs,
    /// By amount.
    Orchestra,
    /// One for each new chunk and shard that has something of it.
    ChunkBased,
    /// One for each pair of shards.
    Fixed,
}

/// The means of a change of shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// A copy into a shadow, which takes the collection's name.
    #[default]
    Shadow,
    /// The server's own `reshardCollection`, with the plan's placement.
    Native,
}

/// The requested shape.
#[derive(Clone, Debug)]
pub struct Request {
    /// The collection.
    pub ns: Namespace,
    /// The new shard key, as extended JSON; the same as before when absent.
    pub key: Option<String>,
    /// Number of chunks; by their size when absent.
    pub chunks: Option<usize>,
    /// Size of a chunk, in bytes; the cluster's setting when absent.
    pub chunk_bytes: Option<u64>,
    /// Shards that get a share though nothing of the collection is on them. Every shard of the
    /// cluster gets one unless it is drained; naming one here is a check that it exists.
    pub add_shards: Vec<String>,
    /// Shards that get nothing.
    pub drain_shards: Vec<String>,
    /// The rule by which chunks are placed.
    pub placing: Placing,
    /// The rule by which flows get sockets.
    pub flowing: Flowing,
    /// Sockets in all; 0 for two for each pair of shards with something to move.
    pub sockets: u32,
    /// Documents that are sampled to weigh the chunks; all when there are fewer.
    pub sample: u64,
}

/// Default number of sampled documents.
pub const SAMPLE: u64 = 100_000;

impl Request {
    /// Another key, as extended JSON, and all else as usual.
    #[must_use]
    pub fn of_key(ns: Namespace, key: String) -> Self {
        Self {
            ns,
            key: Some(key),
            chunks: None,
            chunk_bytes: None,
            add_shards: Vec::new(),
            drain_shards: Vec::new(),
            placing: Placing::Balanced,
            flowing: Flowing::Wfs,
            sockets: 0,
            sample: SAMPLE,
        }
    }
}

/// One new chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Its least key, as extended JSON; nothing for the first chunk, which is open.
    pub min: Option<String>,
    /// Its predicted content, by the sample.
    pub size: Size,
    /// Bytes of it on each shard now, in the order of [`Plan::shards`].
    pub bytes_on: Vec<u64>,
    /// The index of the shard that it goes to.
    pub shard: usize,
}

/// The movement from one shard to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// The index of the shard that has it.
    pub from: usize,
    /// The index of the shard that gets it.
    pub to: usize,
    /// Size of the movement, as estimated from the sample.
    pub size: Size,
    /// The connections that carry it.
    pub sockets: usize,
}

/// The effect of one placement of the chunks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// Which one: `balanced`, `greedy`, `random`, or `server` for the server's own
    /// `reshardCollection`.
    pub placing: String,
    /// The movement between shards.
    pub moved: Size,
    /// Ratio of the fullest shard's content afterwards to its share; 1 is even.
    pub imbalance: f64,
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weight {
    /// It cannot be done.
    Obstacle,
    /// It can be done, and the operator should know first.
    Warning,
}

/// Something that was found before anything is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The severity of the finding.
    pub weight: Weight,
    /// A word for programs, such as `unique_index`.
    pub code: String,
    /// The finding.
    pub what: String,
    /// The remedy.
    pub help: String,
}

/// The plan of a change of a collection's shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The collection.
    pub ns: Namespace,
    /// Its shard key now, as extended JSON.
    pub old_key: String,
    /// Its shard key afterwards, as extended JSON.
    pub key: String,
    /// The shards, by name.
    pub shards: Vec<String>,
    /// The size of the collection.
    pub size: Size,
    /// The new chunks in the order of their keys.
    pub chunks: Vec<Chunk>,
    /// The rule by which they were placed.
    pub placing: Placing,
    /// The rule by which flows got sockets.
    pub flowing: Flowing,
    /// The movement by pairs of shards.
    pub flows: Vec<Flow>,
    /// The movement in all.
    pub moved: Size,
    /// Ratio of the fullest shard's content to its share: now, of all shards, and afterwards, of
    /// those that are not drained; 1 is even.
    pub imbalance: (f64, f64),
    /// This placement and others.
    pub compared: Vec<Compared>,
    /// Documents that the weights rest on.
    pub sampled: u64,
    /// Predicted duration of the change without clients at work, in seconds.
    pub predicted_s: f64,
    /// The same at the least pace that spares clients, in seconds; nothing where none is to be spared.
    #[serde(default)]
    pub paced_s: Option<f64>,
    /// The shadow's need of room on each shard until the old collection is dropped, in bytes.
    pub space_bytes: Vec<u64>,
    /// The member of each shard that the bulk is best read from, as `host:port`; nothing where its
    /// members are not known.
    #[serde(default)]
    pub members: Vec<Option<String>>,
    /// Everything that was found, obstacles first.
    pub findings: Vec<Finding>,
}

impl Plan {
    /// The findings that make it impossible.
    pub fn obstacles(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.weight == Weight::Obstacle)
    }
}
