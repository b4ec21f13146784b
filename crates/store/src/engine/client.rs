//! Connections of clients, and sessions within the process.

pub(in crate::engine) mod connection;
pub(in crate::engine) mod listener;
mod pipeline;
mod request_timeout;
mod sending;
pub(in crate::engine) mod session;
pub(in crate::engine) mod tls;
