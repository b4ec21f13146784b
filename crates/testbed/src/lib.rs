//! Starts and stops real servers on this machine, and injects faults into them, for tests, demos and benchmarks.
//!
//! A [`Cluster`] is a replica set, or a sharded cluster with its config server and a router, made of real `mongod`
//! processes on loopback ports. A [`Single`] is one Redis, Kafka or PostgreSQL server, a [`CassandraCluster`] has equal nodes,
//! a [`RedisCluster`] has masters that share the keys, with their replicas.
//!
//! Invariant: a server lives no longer than the process that started it, however that process ends. [`process`] has
//! the kernel kill the servers of a process that dies, and [`scratch`] removes the data of a process that could not
//! remove it itself.
//!
//! This crate must not know: jobs and plans, and anything that runs against the servers.

mod auth;
mod binary;
mod cassandra;
mod cassandra_cluster;
mod certificates;
mod cluster;
mod content;
mod cpu_share;
mod error;
mod fault;
mod kafka;
mod place;
pub mod pool;
pub mod port;
mod postgres;
pub mod process;
mod program;
mod redis;
mod redis_cluster;
pub mod relay;
mod replica_set;
mod require;
mod router_process;
pub mod scratch;
mod server;
mod servers;
mod single;
mod spec;
pub mod supervisor;
mod times;
pub mod wait;
mod wire;

/// Boxes the future of an async function that other crates call. Its body is then compiled once, in this crate,
/// rather than in each crate that awaits it.
pub(crate) use async_recursion::async_recursion as boxed;

pub use auth::Credentials;
pub use binary::{
    CassandraFiles, KafkaFiles, find_cassandra, find_kafka, find_mongod, find_mongos,
    find_postgres, find_redis,
};
pub use cassandra_cluster::{CassandraCluster, CassandraSpec};
pub use certificates::Certificates;
pub use cluster::{Cluster, ClusterSpec, NodeInfo, Role, valid_name};
pub use content::ContentSpec;
pub use error::{Error, Result};
pub use imago_mongos::User;
pub use kafka::KafkaSecurity;
pub use redis_cluster::{RedisCluster, RedisClusterSpec, redis_configuration_of};
pub use relay::Relay;
pub use require::require;
pub use servers::Servers;
pub use single::{Engine, Single, SingleSpec};
