//! A proxy between drivers and a router: each connection of a client has its own connection to the router.
//!
//! Messages are forwarded unchanged, so the client authenticates at the router itself. A [`Handler`] receives each
//! request before it is forwarded, and may reply to it; it receives the router's replies too. The requests of a
//! connection are handled one after the other, in the order of their replies in the protocol. A request without a
//! reply, and a reply that others follow, are forwarded as such.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::message::{Message, Opcode, invalid};

/// Maximum number of client connections that a proxy serves at once; a further one waits until another ends.
pub const CONNECTIONS_MAX: usize = 1_024;
/// Maximum time to connect to one address of the router.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Pause after the operating system failed to accept a connection, for example because file descriptors ran out.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// Handles the requests and replies of one client connection of a proxy.
pub trait Handler: Send + 'static {
    /// Handles a request before it is forwarded to `upstream`. If it returns a reply, the client receives that reply,
    /// and the request is not forwarded.
    ///
    /// # Errors
    /// Any error ends the connection.
    fn request(
        &mut self,
        request: &Message,
        upstream: &mut Upstream,
    ) -> impl Future<Output = io::Result<Option<Message>>> + Send;

    /// Inspects the reply to `request`, which was forwarded, before the client receives it.
    ///
    /// # Errors
    /// Any error ends the connection.
    fn reply(
        &mut self,
        request: &Message,
        reply: &Message,
    ) -> impl Future<Output = io::Result<()>> + Send;
}

/// A connection of the proxy to the router, which serves one client connection.
#[derive(Debug)]
pub struct Upstream {
    read: BufReader<OwnedReadHalf>,
    write: OwnedWriteHalf,
}

impl Upstream {
    /// Connects to the first of these addresses (`host:port`) that accepts a connection.
    ///
    /// # Errors
    /// No address accepts a connection: the error of the last one, with its address.
    #[crate::boxed]
    pub async fn connect(addresses: &[String]) -> io::Result<Self> {
        let mut last = invalid("there is no address to connect to");
        for address in addresses {
            let connected = tokio::time::timeout(CONNECT_MAX, TcpStream::connect(&**address)).await;
            let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            match connected.and_then(|stream| stream.set_nodelay(true).map(|()| stream)) {
                Ok(stream) => {
                    let (read, write) = stream.into_split();
                    return Ok(Self { read: BufReader::new(read), write });
                }
                Err(error) => last = io::Error::new(error.kind(), format!("{address}: {error}")),
            }
        }
        Err(last)
    }

    /// Sends a request to the router.
    async fn send(&mut self, request: &Message) -> io::Result<()> {
        request.write(&mut self.write).await
    }

    /// Receives the router's next message; the end of the connection is an error.
    async fn receive(&mut self) -> io::Result<Message> {
        let reply = Message::read(&mut self.read).await?;
        reply.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Sends a request that has exactly one reply to the router, and returns the reply.
    ///
    /// # Errors
    /// The connection's error.
    #[crate::boxed]
    pub async fn ask(&mut self, request: &Message) -> io::Result<Message> {
        self.send(request).await?;
        self.receive().await
    }
}

/// Accepts clients on `listener` and serves them until `cancel`; then it closes their connections. Each client
/// connection has its own connection to the first of the addresses `upstream` that accepts one, and its own handler,
/// which `handler` makes. A connection that fails is closed and logged.
pub async fn serve<H: Handler>(
    listener: TcpListener,
    upstream: Vec<String>,
    handler: impl Fn() -> H,
    cancel: CancellationToken,
) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= CONNECTIONS_MAX {
            tokio::select! {
                _ = connections.join_next() => continue,
                () = cancel.cancelled() => break,
            }
        }
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = cancel.cancelled() => break,
        };
        match accepted {
            Ok((client, _)) => {
                let (handler, upstream) = (handler(), upstream.clone());
                connections.spawn(async move {
                    if let Err(cause) = relay(client, &upstream, handler).await {
                        tracing::warn!(%cause, "a connection through the proxy has ended");
                    }
                });
            }
            Err(cause) => {
                tracing::warn!(%cause, "a connection was refused");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
    connections.shutdown().await;
}

/// Forwards the messages of one client connection to the router and back, until either side closes the connection.
async fn relay(
    client: TcpStream,
    upstream: &[String],
    mut handler: impl Handler,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut upstream = Upstream::connect(upstream).await?;
    let (read, mut write) = client.into_split();
    let mut read = BufReader::new(read);
    while let Some(request) = Message::read(&mut read).await? {
        if !matches!(request.opcode(), Opcode::Msg | Opcode::Query) {
            return Err(invalid(format!("a request of the kind {:?}", request.opcode())));
        }
        let request = request.without_compression()?.unwrap_or(request);
        if let Some(reply) = handler.request(&request, &mut upstream).await? {
            reply.write(&mut write).await?;
            continue;
        }
        upstream.send(&request).await?;
        let mut is_more = !request.is_more_to_come();
        while is_more {
            let Some(reply) = reply_or_close(&mut upstream, &mut read).await? else {
                return Ok(());
            };
            handler.reply(&request, &reply).await?;
            is_more = reply.is_more_to_come();
            reply.write(&mut write).await?;
        }
    }
    Ok(())
}

/// Returns the router's next reply; `None` if the client closes its connection first, as one that waits for changes may
/// do.
async fn reply_or_close(
    upstream: &mut Upstream,
    client: &mut BufReader<OwnedReadHalf>,
) -> io::Result<Option<Message>> {
    let mut reply = std::pin::pin!(upstream.receive());
    tokio::select! {
        biased;
        reply = &mut reply => return reply.map(Some),
        more = client.fill_buf() => if more?.is_empty() { return Ok(None) },
    }
    // The client has sent its next request already.
    reply.await.map(Some)
}
