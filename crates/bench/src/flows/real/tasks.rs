//! The protocol between the benchmark and the host processes: lines of JSON, with tasks to a host and answers from
//! it.
//!
//! Invariant: every task has exactly one answer. A host that stops answering has failed. A host whose input ends
//! exits.

use std::net::{Ipv4Addr, SocketAddrV4};

use serde::{Deserialize, Serialize};

/// Port on which hosts receive data. It is the same for all, because each host has its own network namespace.
const PORT: u16 = 7_000;
/// Port for connections that only measure their own setup time.
pub(super) const PROBES_PORT: u16 = 7_001;

/// A task for a host.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Task {
    /// Delay the packets to each host by the latency of the path.
    Lengthen {
        /// Latency to each host, by host number, one way, in µs.
        latencies_us: Vec<u32>,
    },
    /// Measure the round trip to each of these hosts.
    Measure {
        /// Numbers of the hosts.
        hosts: Vec<usize>,
    },
    /// Open the host's end of these connections.
    Prepare {
        /// Number of the host to which the task is sent.
        host: usize,
        /// Largest window that the host may offer, in bytes.
        window_bytes: u16,
        /// Transfers of the host, each with the number of its connection.
        transfers: Vec<(u32, Transfer)>,
    },
    /// Send and receive all data that was prepared.
    Begin {
        /// Start time in ns, on the clock of [`now_ns`].
        at_ns: u64,
    },
}

/// A message of a host.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The host runs in its own network namespace and accepts connections.
    Listening,
    /// Packets from the host are delayed, and the device for this exists.
    Lengthened,
    /// Round trips in µs, in the order of the hosts in the task.
    Measured(Vec<f64>),
    /// All connections are open.
    Prepared,
    /// All data was sent and received. For each connection to the host, by number: the arrival times of its parts, in
    /// seconds since the start.
    Arrived(Vec<(u32, Vec<f64>)>),
    /// The task failed with this error, and the host exits.
    Failed(String),
}

/// The traffic of one connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Transfer {
    /// Number of the sending host.
    pub from: usize,
    /// Number of the receiving host.
    pub to: usize,
    /// Sizes of the parts in bytes, in the order in which they are sent.
    pub parts_bytes: Vec<u64>,
}

/// Returns the address of a host in the network of the hosts.
pub(super) fn address(host: usize) -> SocketAddrV4 {
    let number = u8::try_from(host + 1).expect("a network here has a few hosts");
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, number), PORT)
}

/// Returns the time in ns, on a clock that all processes of this machine share and that never jumps.
pub(super) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
