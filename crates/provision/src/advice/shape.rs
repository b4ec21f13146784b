//! Shapes as plain values, as reports show them.

use imago_plan::provision::{CacheAt, Reads, Shape};
use serde::Serialize;

/// A shape, written as plain values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShapeReport {
    /// The shape in words, for display.
    pub name: String,
    /// Number of shards.
    pub shards: u32,
    /// Number of members (replicas, the primary included) of each shard.
    pub replicas: u32,
    /// Size of the storage cache of each member, in bytes; `None`: as large as its documents and indexes.
    pub storage_bytes: Option<u64>,
    /// Size of the cache, in bytes; 0: no cache.
    pub cache_bytes: u64,
    /// Location of the cache: `worker` or `router`.
    pub cache_at: &'static str,
    /// Read preference: `primary` or `nearest`.
    pub reads: &'static str,
}

/// Converts a shape into plain values for the report.
pub(super) fn shape(shape: Shape) -> ShapeReport {
    ShapeReport {
        name: shape.to_string(),
        shards: shape.shards,
        replicas: shape.replicas,
        storage_bytes: shape.storage_bytes,
        cache_bytes: shape.cache_bytes,
        cache_at: match shape.cache_at {
            CacheAt::Worker => "worker",
            CacheAt::Router => "router",
        },
        reads: match shape.reads {
            Reads::Primary => "primary",
            Reads::Nearest => "nearest",
        },
    }
}
