//! The listener, which accepts client connections and assigns each to a thread.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;

use super::connection::serve;
use super::tls::Tls;
use crate::engine::Shared;
use crate::engine::site::mailbox::{ClientService, LocalTask, SiteEvent, Submit};
use crate::resp::Settings;

/// Maximum number of client connections that are open at one listener.
pub(in crate::engine) const CLIENTS_MAX: usize = 10_000;
/// Time limit of a TLS handshake with a client.
const GREETING_WAIT: Duration = Duration::from_secs(10);
/// Delay before the next attempt to accept a connection, after the operating system refused one.
const SHORTAGE_WAIT: Duration = Duration::from_millis(50);

/// A listening socket for clients, and the state that its connections share.
pub struct Listener {
    /// The socket at which clients connect.
    socket: TcpListener,
    /// State shared with the threads that serve the clients.
    shared: Arc<Shared>,
    /// Settings of the Redis protocol for all connections of the listener.
    settings: Arc<Settings>,
    /// Certificate and key; `None` if connections are not encrypted.
    tls: Option<Tls>,
    /// The number that the next connection of the listener gets.
    numbers: AtomicU64,
    /// Number of open connections of the listener.
    clients: AtomicUsize,
}

/// A client connection, which counts towards [`CLIENTS_MAX`] until it is dropped.
struct Client {
    /// The stream to the client.
    stream: tokio::net::TcpStream,
    /// The number of the connection at its listener.
    number: u64,
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
        shared: Arc<Shared>,
        settings: Settings,
        tls: Option<Tls>,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let settings = Arc::new(settings);
        let (numbers, clients) = (AtomicU64::new(1), AtomicUsize::new(0));
        Ok(Self { socket, shared, settings, tls, numbers, clients })
    }

    pub(in crate::engine) fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Accepts connections without end, and assigns them to the client threads in turn.
    async fn accept_all(self: Arc<Self>) {
        let socket = self.socket.try_clone().and_then(tokio::net::TcpListener::from_std);
        let Ok(socket) = socket else { return };
        for sender in self.shared.client_threads().iter().cycle() {
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
                let service = Arc::<Self>::clone(&self);
                _ = sender.send(SiteEvent::Connect(stream, service));
            }
        }
    }

    /// Registers an accepted stream with the runtime of the current thread, and returns the connection with a new
    /// number.
    fn admit(self: Arc<Self>, stream: TcpStream) -> io::Result<Client> {
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

    /// Serves a client on the thread `site`, after a TLS handshake if the listener requires one.
    ///
    /// # Errors
    /// Returns an error if the connection breaks, or the client does not receive its replies.
    async fn receive(&self, mut client: Client, site: &dyn Submit) -> io::Result<()> {
        let (settings, number) = (Arc::clone(&self.settings), client.number);
        let Some(Tls(acceptor)) = &self.tls else {
            return serve(site, &self.shared, &mut client.stream, settings, number).await;
        };
        let accepted = tokio::time::timeout(GREETING_WAIT, acceptor.accept(&mut client.stream));
        serve(site, &self.shared, accepted.await??, settings, number).await
    }
}

impl ClientService for Listener {
    fn accept(self: Arc<Self>) -> LocalTask {
        Box::pin(self.accept_all())
    }

    fn serve(self: Arc<Self>, stream: TcpStream, site: Rc<dyn Submit>) -> LocalTask {
        Box::pin(async move {
            if let Ok(client) = Arc::clone(&self).admit(stream) {
                // A broken connection affects its client alone.
                _ = self.receive(client, &*site).await;
            }
        })
    }
}
