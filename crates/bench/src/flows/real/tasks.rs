//! The protocol between the benchmark and the processes on its hosts: lines of JSON, an order down,
//! an answer up.
//!
//! Invariant: every order has exactly one answer. A host that stops answering is gone; a host whose
//! orders end exits.

use std::net::{Ipv4Addr, SocketAddrV4};

use serde::{Deserialize, Serialize};

/// Port on which hosts receive data, each in a namespace of its own.
const PORT: u16 = 7_000;
/// Port for connections that only measure their own setup time.
pub(super) const PROBES_PORT: u16 = 7_001;

/// A task of a host.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Task {
    /// Make the way to each host, by number, so much longer.
    Lengthen {
        /// One way, in microseconds.
        latencies_us: Vec<u32>,
    },
    /// Measure the round trip to each of these hosts.
    Measure {
        /// By number.
        hosts: Vec<usize>,
    },
    /// Open your end of these connections.
    Prepare {
        /// Whose end that is.
        host: usize,
        /// The largest window that this host is to offer.
        window_bytes: u16,
        /// Those of this host; each has its number.
        transfers: Vec<(u32, Transfer)>,
    },
    /// Send and get all that was prepared.
    Begin {
        /// Start time, on the clock of [`now_ns`].
        at_ns: u64,
    },
}

/// A message of a host.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// It is there, in a namespace of its own, and can be connected to.
    Listening,
    /// The ways from it are as long as they should be, and their device is there.
    Lengthened,
    /// The round trips, in microseconds, in the order of the hosts asked for.
    Measured(Vec<f64>),
    /// All connections stand.
    Prepared,
    /// Everything was sent and got: for each connection to this host, by number, when its parts
    /// had arrived, in seconds since all began.
    Arrived(Vec<(u32, Vec<f64>)>),
    /// It could not, and goes.
    Failed(String),
}

/// The traffic of one connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Transfer {
    /// The host that sends.
    pub from: usize,
    /// The host that gets it.
    pub to: usize,
    /// The parts' sizes, one after the other.
    pub parts_bytes: Vec<u64>,
}

/// The address of a host in its network.
pub(super) fn address(host: usize) -> SocketAddrV4 {
    let number = u8::try_from(host + 1).expect("a network here has a few hosts");
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, number), PORT)
}

/// A clock that all processes of this machine share and that never jumps.
pub(super) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
