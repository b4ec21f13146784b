//! A TCP relay before a node or a router, which can be cut, slowed, stalled and restored.
//!
//! The kernel's own delay queue is not available everywhere, so the relay delays chunks itself: each chunk is
//! stamped on arrival and forwarded after the delay, in order. The number of waiting chunks is bounded; beyond that
//! the sender is blocked, as on a long-distance link.
//!
//! A relay has its own thread and runtime: its delays do not depend on the load of the caller's runtime, and it
//! outlives that runtime.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::error::{Error, Result};

/// Limit of the bytes that one read takes from a connection.
const CHUNK_BYTES: usize = 64 * 1024;
/// Limit of the chunks in transit in one direction of one connection: at most 16 MiB.
const CHUNKS_UNDER_WAY: usize = 256;

/// How a relay treats the data of its connections, existing and new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Forwards everything, in each direction after the delay `latency`.
    Open {
        /// Time between the arrival of a chunk at the relay and its forwarding, in each direction.
        latency: Duration,
    },
    /// Forwards nothing, and leaves connections open: the peer appears silent.
    Stalled,
    /// Breaks all connections and every new one: the peer appears to be gone.
    Cut,
}

/// A TCP relay before one port; dropping it breaks its connections and frees its own port.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    mode: Option<watch::Sender<Mode>>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Starts a relay on a free port of 127.0.0.1. The relay forwards to the port `target` of 127.0.0.1, at first
    /// without delay.
    pub fn start(target: u16) -> Result<Self> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .map_err(Error::io("open a port for a relay"))?;
        let address = listener.local_addr().map_err(Error::io("ask for a relay's port"))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Error::io("make a relay's runtime"))?;
        let (mode, changes) = watch::channel(Mode::Open { latency: Duration::ZERO });
        let target = SocketAddr::from((Ipv4Addr::LOCALHOST, target));
        let thread = std::thread::Builder::new()
            .name("testbed-relay".into())
            .spawn(move || runtime.block_on(serve(listener, target, changes)))
            .map_err(Error::io("start a relay's thread"))?;
        Ok(Self { address, mode: Some(mode), thread: Some(thread) })
    }

    /// Returns the port on which the relay accepts connections.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns the address on which the relay accepts connections, as `host:port`.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Changes the relay's mode to `mode`, for existing and new connections.
    pub fn set(&self, mode: Mode) {
        if let Some(sender) = &self.mode {
            // Without a receiver the thread has ended, which happens only after a failed accept; the connections
            // are broken then, in every mode.
            let _ = sender.send(mode);
        }
    }

    /// Breaks all connections of the relay, and every new one until the mode changes.
    pub fn cut(&self) {
        self.set(Mode::Cut);
    }

    /// Makes the relay forward everything, in each direction after the delay `latency`.
    pub fn slow(&self, latency: Duration) {
        self.set(Mode::Open { latency });
    }

    /// Makes the relay forward nothing and leave connections open.
    pub fn stall(&self) {
        self.set(Mode::Stalled);
    }

    /// Makes the relay forward everything without delay. Connections that were cut stay broken; stalled data is
    /// forwarded.
    pub fn restore(&self) {
        self.set(Mode::Open { latency: Duration::ZERO });
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.mode = None;
        if let Some(thread) = self.thread.take() {
            // The relay's thread has reported its panic itself.
            let _ = thread.join();
        }
    }
}

async fn serve(
    listener: std::net::TcpListener,
    target: SocketAddr,
    mut changes: watch::Receiver<Mode>,
) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => {
                    let mode = changes.clone();
                    tokio::spawn(async move { connection(client, target, mode).await });
                }
                // Out of file descriptors, or the connection broke before it was accepted.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}

/// Serves one connection of `client` to `target` until both sides have closed it or the relay is cut.
async fn connection(client: TcpStream, target: SocketAddr, mut mode: watch::Receiver<Mode>) {
    if *mode.borrow_and_update() == Mode::Cut {
        return reset(&client);
    }
    let Ok(server) = TcpStream::connect(target).await else { return reset(&client) };
    // Chunks are forwarded as they arrived; waiting for more would add latency.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    let both = async {
        tokio::join!(
            direction(client_read, server_write, mode.clone()),
            direction(server_read, client_write, mode.clone()),
        );
    };
    tokio::select! {
        () = both => {}
        () = until_cut(mode.clone()) => {}
    }
}

async fn until_cut(mut mode: watch::Receiver<Mode>) {
    // An error means that the relay itself is gone: the connection ends with it.
    let _ = mode.wait_for(|mode| *mode == Mode::Cut).await;
}

/// Makes the kernel close `stream` by a reset instead of an orderly end when it is dropped.
fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

/// Forwards the data of one direction of a connection, until `from` ends: one future reads chunks and records their
/// arrival times, the other waits for the delay and writes.
async fn direction(from: OwnedReadHalf, to: OwnedWriteHalf, mode: watch::Receiver<Mode>) {
    let (sender, receiver) = mpsc::channel(CHUNKS_UNDER_WAY);
    tokio::join!(receive(from, sender), deliver(receiver, to, mode));
}

async fn receive(mut from: OwnedReadHalf, sender: mpsc::Sender<(Instant, Vec<u8>)>) {
    loop {
        let mut chunk = Vec::with_capacity(CHUNK_BYTES);
        match from.read_buf(&mut chunk).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                if sender.send((Instant::now(), chunk)).await.is_err() {
                    return;
                }
            }
        }
    }
}

async fn deliver(
    mut receiver: mpsc::Receiver<(Instant, Vec<u8>)>,
    mut to: OwnedWriteHalf,
    mut mode: watch::Receiver<Mode>,
) {
    while let Some((arrived, chunk)) = receiver.recv().await {
        loop {
            let now = *mode.borrow_and_update();
            match now {
                Mode::Open { latency } if arrived.elapsed() >= latency => break,
                Mode::Open { latency } => {
                    tokio::select! {
                        () = tokio::time::sleep_until(arrived + latency) => {}
                        changed = mode.changed() => if changed.is_err() { return },
                    }
                }
                Mode::Stalled | Mode::Cut => {
                    if mode.changed().await.is_err() {
                        return;
                    }
                }
            }
        }
        if to.write_all(&chunk).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends back all that it receives.
    async fn echo() -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.into_split();
                    tokio::io::copy(&mut read, &mut write).await
                });
            }
        });
        port
    }

    async fn round_trip(stream: &mut TcpStream) -> std::io::Result<u8> {
        stream.write_all(&[7]).await?;
        stream.read_u8().await
    }

    #[tokio::test]
    async fn a_slowed_relay_delays_each_direction() {
        let relay = Relay::start(echo().await).unwrap();
        let mut stream = TcpStream::connect(relay.address()).await.unwrap();
        assert_eq!(round_trip(&mut stream).await.unwrap(), 7);
        relay.slow(Duration::from_millis(60));
        let started = Instant::now();
        round_trip(&mut stream).await.unwrap();
        assert!(started.elapsed() >= Duration::from_millis(120));
    }

    #[tokio::test]
    async fn a_cut_relay_breaks_open_connections_and_new_ones_until_restored() {
        let relay = Relay::start(echo().await).unwrap();
        let mut open = TcpStream::connect(relay.address()).await.unwrap();
        round_trip(&mut open).await.unwrap();
        relay.cut();
        assert!(round_trip(&mut open).await.is_err());
        if let Ok(mut new) = TcpStream::connect(relay.address()).await {
            assert!(round_trip(&mut new).await.is_err());
        }
        relay.restore();
        let mut restored = TcpStream::connect(relay.address()).await.unwrap();
        assert_eq!(round_trip(&mut restored).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn a_stalled_relay_holds_what_it_got_and_delivers_it_when_restored() {
        let relay = Relay::start(echo().await).unwrap();
        let mut stream = TcpStream::connect(relay.address()).await.unwrap();
        round_trip(&mut stream).await.unwrap();
        relay.stall();
        stream.write_all(&[9]).await.unwrap();
        let silent = tokio::time::timeout(Duration::from_millis(200), stream.read_u8()).await;
        assert!(silent.is_err());
        relay.restore();
        assert_eq!(stream.read_u8().await.unwrap(), 9);
    }
}
