//! A router for sharded clusters on machines without `mongos`: a proxy of the wire protocol that drivers treat as
//! one.
//!
//! Shard primaries accept the commands with which they route among themselves (`clusterFind` and similar ones), the
//! config server accepts the administrative ones, and both check the versions of routing data in each command. The
//! router translates a client's commands to these, sends the continuation of a cursor to the node that opened it,
//! retries the errors that a `mongos` would retry, and is the transaction router itself. It connects to the servers
//! as the user as which the client has logged in, so that the servers enforce privileges and write blocks.
//!
//! Layers, from the client inwards: `message` (framing), `connection` (one client), `dispatch` (the route of each
//! command), the families of commands (`read`, `write`, …), `targeting` and `catalog` (the owners of chunks),
//! `core` (the shared state), `backend` and `topology` (the servers).
//!
//! This crate must not know: how servers are started, jobs and plans.

mod answer;
mod backend;
mod caller;
mod catalog;
mod change_stream;
mod concerns;
mod connection;
mod core;
mod cursors;
mod ddl;
mod defaults;
mod dispatch;
mod endpoint;
mod find_and_modify;
mod hashed;
mod hello;
mod message;
mod order;
mod owner_change;
mod read;
mod scram;
mod shard_key;
mod sharding;
mod statistics;
mod stream_merge;
mod streams;
mod targeting;
mod threads;
mod topology;
mod transaction;
mod transaction_read;
mod transactions;
mod write;
mod write_outcome;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

use self::connection::Connection;
use self::core::Core;
pub use hashed::hash;
pub use threads::Threads;

/// Boxes the future of an async function that other crates call. Its body is then compiled once, in this crate,
/// rather than in each crate that awaits it.
pub(crate) use async_recursion::async_recursion as boxed;

/// Name and password of a user of a cluster, stored in its database `admin`.
#[derive(Debug, Clone)]
pub struct User {
    /// Name with which the user logs in.
    pub name: String,
    /// Password of the user.
    pub password: String,
}

/// Specification of a router: its cluster, its port and its users.
#[derive(Debug, Clone)]
pub struct RouterSpec {
    /// Name and members of the config server's replica set, as `SET/HOST:PORT,…`.
    pub config: String,
    /// Port on 127.0.0.1 on which the router listens; 0 for any free one.
    pub port: u16,
    /// Users who may log in. The first is the administrator, as which the router reads the cluster's catalog. Empty
    /// if the cluster runs without authorization.
    pub users: Vec<User>,
    /// Threads on which the router runs; `serverStatus` reports their processor time.
    pub threads: Threads,
}

/// A running router; dropping it ends the router and closes its clients' connections.
#[derive(Debug)]
pub struct Router {
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Router {
    /// Starts a router, which accepts clients when this returns. The cluster need not be ready yet.
    #[crate::boxed]
    pub async fn start(spec: RouterSpec) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, spec.port)).await?;
        let address = listener.local_addr()?;
        let core = Arc::new(Core::new(&spec.config, spec.users, spec.threads));
        Ok(Self { address, serving: tokio::spawn(serve(listener, core)) })
    }

    /// Returns the address on which the router listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, core: Arc<Core>) {
    // Dropped with this future, so that the clients' connections end with the router.
    let mut clients = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let serving = Connection::serve(Arc::clone(&core), stream);
                    clients.spawn(async move {
                        if let Err(error) = serving.await {
                            tracing::debug!(%peer, %error, "a client's connection broke");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "the router cannot take a connection");
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
            },
            Some(_) = clients.join_next() => {}
        }
    }
}
