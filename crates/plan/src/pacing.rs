//! The rate of background work that spares clients, and the pauses between attempts.

pub mod backoff;
pub mod batch_size;
pub mod client_latency;
pub mod rounds;
pub mod token_bucket;
