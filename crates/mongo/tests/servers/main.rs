//! The library against real servers: copies, their journal and leases, plans of shapes, comparisons.
//!
//! One program for all of it, so that tests share servers ([`imago_testbed::pool`]) and are linked once.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod copy;
mod identity;
mod journal;
mod leases;
mod reshard_plan;
mod verify;
