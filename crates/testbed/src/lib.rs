//! Starting, stopping and hurting real servers on this machine, for tests, demos and benchmarks.
//!
//! What this crate must not know: jobs and plans, and anything that runs against the servers.
