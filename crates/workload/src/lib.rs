//! Operation mixes, key distributions, an open-loop driver, latency histograms, and the check of a
//! recorded history against what a database holds afterwards.
//!
//! The idea: a run is a pure function of its seed (which keys, which documents, which operations
//! at which moments), every write carries a number that is used once, and every answer is written
//! down. What a database holds at the end can then be compared with what it acknowledged.
//!
//! What this crate must not know: any database driver. A database is a
//! target behind a trait, and lives with that database's crate.

pub mod check;
pub mod driver;
pub mod history;
pub mod keys;
pub mod lists;
pub mod mix;
pub mod population;
pub mod review;
pub mod scatter;
pub mod target;
pub mod timeline;
