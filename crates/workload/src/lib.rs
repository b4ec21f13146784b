//! Operation mixes, key distributions, an open-loop driver, latency histograms, and the check of a
//! recorded history against the final content of a database.
//!
//! The operations of a run follow from its seed (their kinds, times and documents), every write has a unique
//! number, and every reply is recorded. So the final content can be compared with the acknowledgements.
//!
//! This crate must not know any database driver. A database is a target behind a trait, implemented
//! elsewhere.

pub mod check;
pub mod driver;
pub mod history;
pub mod keys;
pub mod lists;
pub mod mix;
pub mod population;
pub mod procedures;
pub mod review;
pub mod scatter;
pub mod target;
pub mod timeline;
