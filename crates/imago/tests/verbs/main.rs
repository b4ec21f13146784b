//! The program as a user runs it, verb by verb, on real servers.
//!
//! One program for all of it, so that tests share servers ([`imago_testbed::pool`]) and are linked once.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod bench;
mod chain;
mod cli;
mod clock;
mod connection;
mod copy_pace;
mod cutover;
mod demo;
mod faults;
mod flows_real;
mod foresight;
mod job;
mod load;
mod process;
mod provision;
mod refusals;
mod reshard;
mod reshard_advise;
mod reshard_plan;
mod standing;
mod store;
mod storm;
mod testbed;
mod tune;
mod tutorials;
