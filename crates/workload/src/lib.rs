//! Operation mixes, key distributions, an open-loop driver, latency histograms, and the check of a
//! recorded history against what a database holds afterwards.
//!
//! What this crate must not know: any database driver. A database is a
//! target behind a trait, and lives with that database's crate.
