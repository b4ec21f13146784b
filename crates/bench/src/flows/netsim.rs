//! A flow-level network simulator: the duration of transfers if TCP shares links fairly.
//!
//! Packets are not simulated. At any moment each connection has a rate, the weighted max-min fair
//! one ([`fair_rates`]); rates change only when a connection ends. The simulator models the two
//! effects of TCP on which Morphus' weighted fair sharing is based (§4.1):
//!
//! - a connection sends at most one window per round trip;
//! - at a full link, the share of a connection decreases with its round-trip time
//!   ([`Tcp::rtt_bias`]).
//!
//! It does not model loss, queues, slow start, or the cost of an additional connection. So its
//! results for many connections are too optimistic: congestion caused by a large K (§5.6) cannot
//! appear.
//!
//! Invariants: no link carries more than its capacity; each byte is carried once, over every link
//! of its path; the same input gives the same run.

mod fairness;
mod topology;

pub use fairness::{User, fair_rates};
pub use topology::Topology;

/// Parameters of the TCP model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tcp {
    /// Largest window, in bytes.
    pub window_bytes: f64,
    /// Exponent of the round-trip time in the weight of a connection at a full link: the weight is
    /// 1 / rtt to this power. 0 is plain max-min fairness; 1 is the value measured with loss-based
    /// congestion control.
    pub rtt_bias: f64,
}

impl Default for Tcp {
    /// Returns a window of 64 KiB, the maximum without window scaling, and the full bias of 1.
    fn default() -> Self {
        Self { window_bytes: 65_536.0, rtt_bias: 1.0 }
    }
}

/// A connection from one host to another, and the parts that it sends in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Connection {
    /// Index of the sending host.
    pub from: usize,
    /// Index of the receiving host.
    pub to: usize,
    /// Sizes of the parts, in bytes.
    pub parts_bytes: Vec<u64>,
}

/// The results of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Arrival time of each part, by connection, in seconds since the start.
    pub arrived_s: Vec<Vec<f64>>,
    /// Time of the last arrival, in seconds since the start.
    pub makespan_s: f64,
    /// Bytes carried by each link, by link number of the topology.
    pub carried_bytes: Vec<f64>,
}

/// Simulates all connections from a common start until all have ended.
///
/// `resolution_s`, in seconds, bounds the work: connections that end within this time after another
/// count as ending together when rates are recomputed, so that the others get their larger shares
/// that much later. Zero is exact.
///
/// # Panics
/// If a connection goes from a host to itself.
#[must_use]
pub fn run(topology: &Topology, tcp: Tcp, connections: &[Connection], resolution_s: f64) -> Run {
    let users: Vec<User> =
        connections.iter().map(|connection| user(topology, tcp, connection)).collect();
    let mut transfers: Vec<Transfer> = connections.iter().map(Transfer::new).collect();
    let mut carried_bytes = vec![0.0; topology.capacities().len()];
    for (user, transfer) in users.iter().zip(&transfers) {
        user.links.iter().for_each(|link| carried_bytes[*link] += transfer.left_bytes);
    }
    let mut now_s = 0.0;
    let mut active: Vec<usize> =
        (0..transfers.len()).filter(|at| transfers[*at].left_bytes > 0.0).collect();
    while !active.is_empty() {
        let sending: Vec<&User> = active.iter().map(|at| &users[*at]).collect();
        let rates = fair_rates(topology.capacities(), &sending);
        let needs = |(at, rate): (&usize, &f64)| transfers[*at].left_bytes / rate;
        let next_s = active.iter().zip(&rates).map(needs).fold(f64::INFINITY, f64::min);
        // The step is longer by a relative 1e-12, so that rounding does not separate connections
        // that end together.
        let until_s = (next_s + resolution_s) * (1.0 + 1e-12);
        let last_s = active.iter().zip(&rates).map(needs).filter(|needed| *needed <= until_s);
        let step_s = last_s.fold(next_s, f64::max);
        for (at, rate) in active.iter().zip(&rates) {
            transfers[*at].advance(now_s, step_s, *rate);
        }
        now_s += step_s;
        active.retain(|at| transfers[*at].left_bytes > 0.0);
    }
    let arrived_s = transfers.into_iter().map(|transfer| transfer.arrived_s).collect();
    Run { arrived_s, makespan_s: now_s, carried_bytes }
}

fn user(topology: &Topology, tcp: Tcp, connection: &Connection) -> User {
    let (from, to) = (connection.from, connection.to);
    assert!(from != to, "a connection of host {from} to itself");
    let rtt_s = 2.0 * f64::from(topology.latency_us(from, to)) / 1e6;
    // A host pair without a latency has the bias of a microsecond, and its window sets no cap.
    let cap = if rtt_s > 0.0 { tcp.window_bytes / rtt_s } else { f64::INFINITY };
    let weight = rtt_s.max(1e-6).powf(-tcp.rtt_bias);
    User { links: topology.path(from, to), weight, cap }
}

struct Transfer<'a> {
    parts_bytes: &'a [u64],
    arrived_s: Vec<f64>,
    left_bytes: f64,
    /// Bytes left of the part in transfer.
    part_left_bytes: f64,
}

impl<'a> Transfer<'a> {
    fn new(connection: &'a Connection) -> Self {
        let parts_bytes = &connection.parts_bytes;
        let left_bytes = parts_bytes.iter().map(|bytes| *bytes as f64).sum();
        let mut transfer = Self {
            parts_bytes,
            arrived_s: Vec::with_capacity(parts_bytes.len()),
            left_bytes,
            part_left_bytes: parts_bytes.first().map_or(0.0, |bytes| *bytes as f64),
        };
        transfer.arrive(0.0, 0.0, 1.0);
        transfer
    }

    fn advance(&mut self, now_s: f64, step_s: f64, rate: f64) {
        let needed_s = self.left_bytes / rate;
        if needed_s <= step_s {
            self.arrive(now_s, f64::INFINITY, rate);
            self.left_bytes = 0.0;
        } else {
            self.arrive(now_s, step_s * rate, rate);
            self.left_bytes -= step_s * rate;
        }
    }

    /// Records the arrival times of the parts that complete within the next `bytes`, which start at
    /// `now_s`.
    fn arrive(&mut self, now_s: f64, bytes: f64, rate: f64) {
        let mut passed_bytes = 0.0;
        while self.arrived_s.len() < self.parts_bytes.len() {
            if passed_bytes + self.part_left_bytes > bytes {
                self.part_left_bytes -= bytes - passed_bytes;
                return;
            }
            passed_bytes += self.part_left_bytes;
            self.arrived_s.push(now_s + passed_bytes / rate);
            let next = self.parts_bytes.get(self.arrived_s.len());
            self.part_left_bytes = next.map_or(0.0, |bytes| *bytes as f64);
        }
    }
}

#[cfg(test)]
mod tests;
