//! Ports that stay reserved for a server while it is down.
//!
//! A killed node must come back on the same port, but any process can take a free port. Ports are therefore taken
//! from outside the range that the kernel gives to outgoing connections, and each is reserved among testbeds by an
//! abstract Unix socket whose name contains the port number. Such a name belongs to the Linux network namespace, as
//! ports do, and the kernel frees it when the process that bound it ends.

use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Error, Result};

const ATTEMPTS: u32 = 2_000;
const FIRST: u32 = 20_000;

/// A TCP port of 127.0.0.1 that no other testbed takes while this value exists.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _reserved: UnixDatagram,
}

impl Port {
    /// Reserves a port on which no process listens at the moment.
    pub fn reserve() -> Result<Self> {
        // Concurrent processes begin at different ports, so that they rarely collide.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (first, count) = candidates();
        let offset = std::process::id().wrapping_mul(7_919);
        for _ in 0..ATTEMPTS {
            let step = NEXT.fetch_add(1, Ordering::Relaxed);
            let number = first + offset.wrapping_add(step) % count;
            let number = u16::try_from(number).expect("candidates are below 2^16");
            if let Some(port) = Self::try_reserve(number) {
                return Ok(port);
            }
        }
        Err(Error::NoPort { attempts: ATTEMPTS })
    }

    fn try_reserve(number: u16) -> Option<Self> {
        let name = SocketAddr::from_abstract_name(format!("imago-testbed-port-{number}")).ok()?;
        let reserved = UnixDatagram::bind_addr(&name).ok()?;
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Self { number, _reserved: reserved })
    }

    /// Returns the port number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }
}

/// The two ports that all nodes of a cluster use, each node on its own loopback address, as nodes on separate
/// machines do.
#[derive(Debug)]
pub(crate) struct SharedPorts {
    /// Port on which every node accepts clients.
    pub(crate) clients: Port,
    /// Port on which every node accepts connections of other nodes.
    pub(crate) peers: Port,
}

impl SharedPorts {
    pub(crate) fn reserve() -> Result<Self> {
        Ok(Self { clients: Port::reserve()?, peers: Port::reserve()? })
    }

    /// Returns the loopback address of node number `node`, counted from 1, in a network that no other cluster uses:
    /// `127.HIGH.LOW.NODE`, where HIGH and LOW are the bytes of the clients' port.
    pub(crate) fn host(&self, node: u8) -> Ipv4Addr {
        let [high, low] = self.clients.number().to_be_bytes();
        Ipv4Addr::new(127, high, low, node)
    }
}

/// Returns the first candidate port and the number of candidates: the ports from [`FIRST`] up to the kernel's range
/// for outgoing connections, or up to 65,535 if those are fewer than 4,000.
fn candidates() -> (u32, u32) {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let lowest_outgoing = range
        .ok()
        .and_then(|range| range.split_ascii_whitespace().next()?.parse::<u32>().ok())
        .unwrap_or(32_768);
    let end = if lowest_outgoing >= FIRST + 4_000 { lowest_outgoing.min(65_536) } else { 65_536 };
    (FIRST, end - FIRST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::until_blocking;

    #[test]
    fn a_reserved_port_is_not_handed_out_twice_even_when_nothing_listens() {
        let port = Port::reserve().unwrap();
        assert!(Port::try_reserve(port.number()).is_none());
    }

    #[test]
    fn a_port_in_use_by_a_stranger_is_not_reserved() {
        let port = Port::reserve().unwrap();
        let number = port.number();
        // A child that another test has just forked holds what was open here until it is another program.
        let mut stranger = None;
        until_blocking("the port is free", || {
            stranger = TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok();
            stranger.is_some()
        });
        drop(port);
        assert!(Port::try_reserve(number).is_none());
    }
}
