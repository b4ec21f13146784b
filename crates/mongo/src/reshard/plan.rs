//! The plan of a change of a collection's shape, computed before anything is written, and the modules that read the
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

/// Rule by which a plan assigns new chunks to shards (Morphus, §3; [`imago_plan::reshard::placement`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placing {
    /// Least movement of data with equal numbers of chunks on the shards.
    Balanced,
    /// Least movement of data of all, regardless of how full a shard becomes.
    Greedy,
    /// Random placement, for comparison with the other rules.
    Random,
}

/// Rule by which a plan assigns connections (sockets) to flows between shards (Morphus, §4.1;
/// [`imago_plan::reshard::flow`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flowing {
    /// Connections in proportion to the amount of a flow × its latency.
    Wfs,
    /// Connections in proportion to the amount of a flow.
    Orchestra,
    /// One connection for each new chunk and each other shard that has a part of it.
    ChunkBased,
    /// One connection for each pair of shards.
    Fixed,
}

/// Implementation that changes the shape of a collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// Imago: a copy to a shadow, which is renamed to the collection's name.
    #[default]
    Shadow,
    /// The server: its own `reshardCollection`, with the plan's placement.
    Native,
}

/// The requested shape of a collection, from which a plan is made.
#[derive(Clone, Debug)]
pub struct Request {
    /// Full name of the collection.
    pub ns: Namespace,
    /// The new shard key, as extended JSON; `None` keeps the present one.
    pub key: Option<String>,
    /// Number of chunks to make; `None` derives it from the size of a chunk.
    pub chunks: Option<usize>,
    /// Maximum size of a chunk, in bytes; `None` uses the cluster's setting.
    pub chunk_bytes: Option<u64>,
    /// Names of shards that get chunks although they have no documents of the collection. Every shard of the cluster
    /// gets chunks unless it is drained; naming one here checks that it exists.
    pub add_shards: Vec<String>,
    /// Names of shards that get no chunks of the collection.
    pub drain_shards: Vec<String>,
    /// Rule by which chunks are placed on shards.
    pub placing: Placing,
    /// Rule by which connections are assigned to flows between shards.
    pub flowing: Flowing,
    /// Total number of connections for all flows; 0 stands for two for each pair of shards with documents to move.
    pub sockets: u32,
    /// Number of documents that are sampled to weigh the chunks; all if the collection has fewer.
    pub sample: u64,
}

/// Default number of sampled documents, [`Request::sample`].
pub const SAMPLE: u64 = 100_000;

impl Request {
    /// Returns the request for the shard key `key` of the collection `ns`, given as extended JSON, with defaults for
    /// the rest.
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

/// One chunk of the collection after the change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Lower bound of the chunk's shard key values, as extended JSON; `None` for the first chunk, which has none.
    pub min: Option<String>,
    /// Predicted size of the chunk, estimated from the sample.
    pub size: Size,
    /// Size of the chunk's documents on each shard before the change, in bytes, in the order of [`Plan::shards`].
    pub bytes_on: Vec<u64>,
    /// Index in [`Plan::shards`] of the shard that gets the chunk.
    pub shard: usize,
}

/// The movement of documents from one shard to another in a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Index in [`Plan::shards`] of the sending shard.
    pub from: usize,
    /// Index in [`Plan::shards`] of the receiving shard.
    pub to: usize,
    /// Size of the documents that move, estimated from the sample.
    pub size: Size,
    /// Number of connections that are assigned to this flow.
    pub sockets: usize,
}

/// Effect of one placement of a plan's chunks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// Name of the placement: `balanced`, `greedy`, `random`, or `server` for the server's own `reshardCollection`.
    pub placing: String,
    /// Size of the documents that move between shards.
    pub moved: Size,
    /// Ratio of the fullest shard's content after the change to its share; 1 is even.
    pub imbalance: f64,
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weight {
    /// The change of shape is impossible.
    Obstacle,
    /// The change of shape is possible, and the operator should know the finding first.
    Warning,
}

/// Result of a check that is made before anything is changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Severity of the finding: obstacle or warning.
    pub weight: Weight,
    /// Stable code of the kind of finding for programs, such as `unique_index`.
    pub code: String,
    /// Description of the problem, in words.
    pub what: String,
    /// Remedy for the problem, in words.
    pub help: String,
}

/// Plan of a change of a collection's shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Full name of the collection.
    pub ns: Namespace,
    /// Shard key before the change, as extended JSON.
    pub old_key: String,
    /// Shard key after the change, as extended JSON.
    pub key: String,
    /// Names of the cluster's shards, in order.
    pub shards: Vec<String>,
    /// Size of the collection's documents.
    pub size: Size,
    /// The chunks of the collection after the change, in the order of their keys.
    pub chunks: Vec<Chunk>,
    /// Rule by which the chunks were placed.
    pub placing: Placing,
    /// Rule by which connections were assigned to flows.
    pub flowing: Flowing,
    /// The movement of documents, by pairs of shards.
    pub flows: Vec<Flow>,
    /// Size of all documents that move between shards.
    pub moved: Size,
    /// Ratio of the fullest shard's content to its share, before the change over all shards, and after it over those
    /// that are not drained; 1 is even.
    pub imbalance: (f64, f64),
    /// Effects of the rules of placement, for comparison.
    pub compared: Vec<Compared>,
    /// Number of documents from which the sizes of the chunks are estimated.
    pub sampled: u64,
    /// Predicted duration of the change without load from clients, in seconds.
    pub predicted_s: f64,
    /// Predicted duration at the least pace that spares clients, in seconds; `None` if the job has no pace.
    #[serde(default)]
    pub paced_s: Option<f64>,
    /// Disk space that the shadow needs on each shard until the old collection is dropped, in bytes, in the order of
    /// [`Plan::shards`].
    pub space_bytes: Vec<u64>,
    /// Preferred member of each shard for reading the bulk, as `host:port`, in the order of [`Plan::shards`]; `None`
    /// if the members of a shard are unknown.
    #[serde(default)]
    pub members: Vec<Option<String>>,
    /// Results of all checks, obstacles first.
    pub findings: Vec<Finding>,
}

impl Plan {
    /// Returns the findings that make the change of shape impossible.
    pub fn obstacles(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.weight == Weight::Obstacle)
    }
}
