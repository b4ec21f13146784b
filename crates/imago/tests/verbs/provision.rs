//! `imago provision`: on files alone, and over a sharded cluster with a cache.

mod measure;
mod plan;
mod policy;
mod probe;
mod record;
