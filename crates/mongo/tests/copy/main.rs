//! A live copy between real clusters: what is at the source in the end is at the destination,
//! whatever the source did meanwhile.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod contents;
mod definitions;
mod ids;
mod keys;
mod selection;
mod unique;
mod world;
mod writes;
