//! What the benchmark and the processes on its hosts say to each other: lines of JSON, an order
//! down, an answer up.
//!
//! Invariant: every order has exactly one answer. A host that says nothing more is gone, and one
//! whose orders end is to go.

use std::net::{Ipv4Addr, SocketAddrV4};

use serde::{Deserialize, Serialize};

/// Where hosts listen, each in a namespace that nobody else uses.
const PORT: u16 = 7_000;

/// What a host is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Open your end of these connections.
    Prepare {
        /// Whose end that is.
        host: usize,
        /// What each connection may have under way at most.
        window_bytes: u64,
        /// Those of this host; each has its number.
        transfers: Vec<(u32, Transfer)>,
    },
    /// Send and get all that was prepared.
    Begin {
        /// When, on the clock of [`now_ns`].
        at_ns: u64,
    },
}

/// What a host says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// It is there, in a namespace of its own, and can be connected to.
    Listening,
    /// All connections stand.
    Prepared,
    /// Everything was sent and got: for each connection to this host, by number, when its parts
    /// had arrived, in seconds since all began.
    Arrived(Vec<(u32, Vec<f64>)>),
    /// It could not, and goes.
    Failed(String),
}

/// What goes over one connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Transfer {
    /// The host that sends.
    pub from: usize,
    /// The host that gets it.
    pub to: usize,
    /// The parts' sizes, one after the other.
    pub parts_bytes: Vec<u64>,
    /// How much longer a byte is to take than it does, one way.
    pub latency_us: u32,
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
