//! `imago provision` over a sharded cluster with a cache.

mod measure;
mod probe;
mod record;
