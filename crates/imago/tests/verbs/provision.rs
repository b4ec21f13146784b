//! `imago provision` over a sharded cluster with a cache.

mod plan;
mod record;
