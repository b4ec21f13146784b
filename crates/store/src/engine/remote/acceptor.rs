//! Accepts connections of site processes. A process names its site and proves that it knows the secret; then its
//! connection is handed to the site's [`RemoteSite`](super::remote_site::RemoteSite).

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use subtle::ConstantTimeEq as _;

use super::wire::{self, PROTOCOL, ToRouter, ToSite};
use crate::engine::Shared;
use crate::engine::site::mailbox::{Arrival, SiteEvent};
use crate::record::Site;

/// Timeout of each read and write during the handshake with a site's process.
const HELLO_WAIT: Duration = Duration::from_secs(3);
/// Maximum number of concurrent handshakes; further connections are closed, and their processes try again.
const GREETED_MAX: usize = 64;
/// Maximum length of a rack's name, in bytes; a process with a longer one is treated as if it named none.
const RACK_BYTES_MAX: usize = 256;
/// Interval at which the acceptor checks for new connections and for its own end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Accepts connections of sites' processes in a thread of its own, until it is dropped.
pub(in crate::engine) struct Acceptor {
    /// Address of the listener to which sites' processes connect.
    address: SocketAddr,
    /// True once the acceptor's thread is to end.
    is_closed: Arc<AtomicBool>,
    /// The thread that accepts connections; `None` once it was joined.
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Starts to accept connections from site processes that know `secret`.
    pub fn open(shared: Arc<Shared>, listener: TcpListener, secret: String) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let is_closed = Arc::new(AtomicBool::new(false));
        let closed = Arc::clone(&is_closed);
        let watch = move || {
            let greeted = Arc::new((shared, secret));
            while !closed.load(Ordering::Relaxed) {
                // Each handshake holds a handle, and so does this thread.
                let is_crowded = Arc::strong_count(&greeted) > GREETED_MAX;
                match listener.accept() {
                    Ok(_) if is_crowded => {}
                    Ok((stream, _)) => {
                        let with = Arc::clone(&greeted);
                        let greet = move || _ = greet(stream, &with.0, &with.1);
                        // If no thread can be started, the connection is closed, and the process tries again.
                        _ = thread::Builder::new().name("greeting".into()).spawn(greet);
                    }
                    Err(_) => thread::sleep(LOOK_EVERY),
                }
            }
        };
        let thread = thread::Builder::new().name("acceptor".into()).spawn(watch)?;
        Ok(Self { address, is_closed, thread: Some(thread) })
    }

    /// Returns the address of the listener to which sites' processes connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

/// Executes the handshake on a new connection: admits the process as its site, or sends the process the reason for
/// the refusal.
fn greet(mut stream: TcpStream, shared: &Shared, secret: &str) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(HELLO_WAIT))?;
    stream.set_write_timeout(Some(HELLO_WAIT))?;
    match admitted(wire::read_hello(&mut stream)?, shared, secret) {
        Ok(site) => {
            let ToRouter::Comes { rack, kept } = wire::read_hello(&mut stream)? else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            let rack = rack.filter(|rack| rack.len() <= RACK_BYTES_MAX);
            _ = shared.sender(site).send(SiteEvent::Arrived(Arrival { stream, rack, kept }));
            Ok(())
        }
        Err(why) => wire::write(&mut stream, &<ToSite>::Bye(why, false)).map(drop),
    }
}

/// Returns the site that a process's first message names, or the reason why the process is refused.
fn admitted(hello: ToRouter, shared: &Shared, expected: &str) -> Result<Site, String> {
    let ToRouter::Hello { protocol, version, site, secret } = hello else {
        return Err("the first message of a process must be a hello".into());
    };
    if !bool::from(secret.as_bytes().ct_eq(expected.as_bytes())) {
        return Err("the secret does not match (--secret-file)".into());
    }
    if protocol != PROTOCOL {
        return Err(format!(
            "the site (imago {version}) uses protocol version {protocol}, and the router (imago \
             {}) version {PROTOCOL}: run the same imago on both sides",
            env!("CARGO_PKG_VERSION")
        ));
    }
    let sites = shared.sites;
    if usize::from(site.0) >= sites {
        return Err(format!("there is no {site}: this store has {sites} sites, from 0 on"));
    }
    Ok(site)
}
