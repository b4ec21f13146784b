//! Operations that clients requested of a cluster between two readings of its nodes' counters.

use std::collections::BTreeMap;

use imago_plan::tune::judge::Window;
use imago_plan::tune::workload::{KINDS, Mix};
use serde::Serialize;

/// Indices of the kinds of operations in [`Observation::operations`].
pub(crate) const READS: usize = 0;
pub(crate) const UPDATES: usize = 1;
pub(crate) const SCANS: usize = 3;

/// Operations and latencies of a cluster's nodes since the previous reading of their counters.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Observation {
    /// Time since the previous reading of the counters, in seconds.
    pub seconds: f64,
    /// Numbers of reads, updates, inserts and scans since the previous reading.
    pub operations: [u64; KINDS],
    /// Median latency of each kind of operations, as the nodes report it, in a unit that depends on the database (ms
    /// for Cassandra, µs for Redis): compare it only with other observations of the same cluster. None without
    /// operations.
    pub median: [Option<f64>; KINDS],
    /// 99th percentile of the latency of each kind of operations, in the same unit as [`Self::median`]; None without
    /// operations.
    pub slowest: [Option<f64>; KINDS],
    /// Largest share of memory in use among the nodes, from 0 to 1: for Cassandra of the machine's memory, for Redis
    /// of `maxmemory`. None if unknown, or without a limit.
    pub memory: Option<f64>,
    /// Mean size of a record, in bytes, as the nodes estimate it; for Cassandra, of a partition. None for Redis.
    pub record_bytes: Option<f64>,
    /// Number of operations since the previous reading that each node counted, by the node's name.
    pub nodes: BTreeMap<String, u64>,
    /// Errors of nodes whose counters could not be read, by the node's name.
    pub missed: BTreeMap<String, String>,
    /// True if a node could not be read at the previous reading: this observation includes its earlier operations.
    pub is_late: bool,
}

/// Rate, in operations per second, below which a cluster counts as idle: Imago's own leases and journals are counted,
/// too.
const QUIET_S: f64 = 1.0;

impl Observation {
    /// Returns the shares of the kinds of operations; None if the cluster was idle.
    #[must_use]
    pub fn mix(&self) -> Option<Mix> {
        if is_quiet(self.operations, self.seconds) {
            return None;
        }
        Mix::of(self.operations.map(|count| count as f64))
    }

    /// Returns the rate of operations since the previous reading, in operations per second.
    #[must_use]
    pub fn rate_s(&self) -> f64 {
        self.operations.iter().sum::<u64>() as f64 / self.seconds.max(1e-3)
    }

    /// Returns the observation as a window by which a change is judged; None if the cluster was idle, or if the data
    /// of a node are missing or late.
    #[must_use]
    pub fn window(&self) -> Option<Window> {
        let mix = self.mix().filter(|_| self.missed.is_empty() && !self.is_late)?;
        let (median, slowest, memory) = (self.median, self.slowest, self.memory);
        Some(Window { mix, rate_s: self.rate_s(), median, slowest, memory })
    }
}

/// Returns true if the rate of these operations within `seconds` is too low to come from clients.
pub(crate) fn is_quiet(operations: [u64; KINDS], seconds: f64) -> bool {
    (operations.iter().sum::<u64>() as f64) < QUIET_S * seconds
}

/// Returns a node's operations of each kind between two readings of its counters. If a counter has decreased, the
/// node restarted and all its counters count from zero.
pub(crate) fn since(last: [u64; KINDS], now: [u64; KINDS]) -> [u64; KINDS] {
    let began_anew = now.iter().zip(last).any(|(now, last)| *now < last);
    std::array::from_fn(|kind| if began_anew { now[kind] } else { now[kind] - last[kind] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_restarted_counts_from_zero() {
        assert_eq!(since([9_120, 77_400, 0, 12], [9_400, 78_000, 0, 12]), [280, 600, 0, 0]);
        assert_eq!(since([9_120, 77_400, 0, 12], [310, 2_200, 0, 0]), [310, 2_200, 0, 0]);
        assert_eq!(since([9_120, 310, 0, 0], [9_130, 220, 0, 0]), [9_130, 220, 0, 0]);
    }

    #[test]
    fn a_look_that_missed_a_node_judges_nothing() {
        let observation = Observation {
            seconds: 5.0,
            operations: [4_000, 1_000, 0, 0],
            median: [Some(1.2), Some(0.6), None, None],
            slowest: [Some(9.0), Some(4.0), None, None],
            memory: Some(0.41),
            record_bytes: Some(1_018.4),
            nodes: BTreeMap::from([("cas-1".into(), 5_000)]),
            missed: BTreeMap::new(),
            is_late: false,
        };
        let window = observation.window().unwrap();
        assert!((window.rate_s - 1_000.0).abs() < 1e-9, "{window:?}");
        assert!(window.mix.distance(Mix::of_reads(0.8)) < 1e-9, "{window:?}");
        let missed = BTreeMap::from([("cas-2".into(), "connection refused".into())]);
        assert_eq!(Observation { missed, ..observation.clone() }.window(), None);
        assert_eq!(Observation { is_late: true, ..observation.clone() }.window(), None);
        // A lease that is renewed each ten seconds.
        let lease = Observation { operations: [1, 1, 0, 0], ..observation.clone() };
        assert_eq!(lease.window(), None);
        assert_eq!(Observation { operations: [0; KINDS], ..observation }.window(), None);
    }
}
