//! Limits on the rate of background work, so that clients do not notice it, and the pauses between attempts.

pub mod backoff;
pub mod batch_size;
pub mod client_latency;
pub mod rounds;
pub mod token_bucket;
