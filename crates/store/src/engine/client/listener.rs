//! The listener, which accepts client connections and assigns each to a thread.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;

use super::tls::Tls;
use crate::engine::site::executor::Executor;
use crate::engine::site::mailbox::SiteEvent;
use crate::resp::Settings;

/// Maximum number of client connections that are open at one listener.
pub(in crate::engine) const CLIENTS_MAX: usize = 10_000;
/// Delay before the next attempt to accept a connection, after the operating system refused one.
const SHORTAGE_WAIT: Duration = Duration::from_millis(50);

/// A listening socket for clients, and the state that its connections share.
pub struct Listener {
    /// The socket at which clients connect.
    socket: TcpListener,
    /// Settings of the Redis protocol for all connections of the listener.
    pub(in crate::engine) settings: Arc<Settings>,
    /// Certificate and key; `None` if connections are not encrypted.
    pub(in crate::engine) tls: Option<Tls>,
    /// The number that the next connection of the listener gets.
    numbers: AtomicU64,
    /// Number of open connections of the listener.
    clients: AtomicUsize,
}

/// A client connection, which counts towards [`CLIENTS_MAX`] until it is dropped.
pub(in crate::engine) struct Client {
    /// The stream to the client.
    pub(in crate::engine) stream: tokio::net::TcpStream,
    /// The number of the connection at its listener.
    pub(in crate::engine) number: u64,
    /// The listener at which the connection counts.
    listener: Arc<Listener>,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.listener.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Listener {
    pub(in crate::engine) fn new(
        socket: TcpListener,
        settings: Settings,
        tls: Option<Tls>,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let settings = Arc::new(settings);
        let (numbers, clients) = (AtomicU64::new(1), AtomicUsize::new(0));
        Ok(Self { socket, settings, tls, numbers, clients })
    }

    pub(in crate::engine) fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Accepts connections without end, and assigns them to the client threads in turn.
    pub(in crate::engine) async fn accept_all(self: Arc<Self>, executor: &Rc<Executor>) {
        let socket = self.socket.try_clone().and_then(tokio::net::TcpListener::from_std);
        let Ok(socket) = socket else { return };
        for sender in executor.shared.client_threads().iter().cycle() {
            let mut stream = loop {
                match socket.accept().await {
                    Ok((stream, _)) => break stream,
                    Err(_) => tokio::time::sleep(SHORTAGE_WAIT).await,
                }
            };
            if self.clients.load(Ordering::Relaxed) >= CLIENTS_MAX {
                _ = stream.write_all(b"-ERR max number of clients reached\r\n").await;
                continue;
            }
            // A socket that cannot be handed to its thread is closed.
            if let Ok(stream) = stream.into_std() {
                self.clients.fetch_add(1, Ordering::Relaxed);
                _ = sender.send(SiteEvent::Connect(stream, Arc::clone(&self)));
            }
        }
    }

    /// Registers an accepted stream with the runtime of the current thread, and returns the connection with a new
    /// number.
    pub(in crate::engine) fn admit(self: Arc<Self>, stream: TcpStream) -> io::Result<Client> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let admitted =
            stream.set_nodelay(true).and_then(|()| tokio::net::TcpStream::from_std(stream));
        match admitted {
            Ok(stream) => Ok(Client { stream, number, listener: self }),
            Err(error) => {
                self.clients.fetch_sub(1, Ordering::Relaxed);
                Err(error)
            }
        }
    }
}
