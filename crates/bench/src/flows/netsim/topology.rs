//! A two-level tree: hosts in racks, racks at one core switch, all links symmetric.
//!
//! Each host has a link to the switch of its rack, and each rack one to the core, with the full
//! capacity in either direction: each counts as two links here. Switches are never the bottleneck.

/// Hosts, numbered rack by rack, and the links between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    rack_of: Vec<usize>,
    /// Capacity of each link, in bytes per second: up and down of each host, then up and down of
    /// each rack.
    capacities: Vec<f64>,
    within_us: u32,
    between_us: u32,
}

impl Topology {
    /// Creates a tree with `racks[i]` hosts in rack i, links of `link_bytes_s` bytes per second,
    /// and one-way latencies within a rack and between racks, in microseconds.
    ///
    /// # Panics
    /// If `link_bytes_s` is not positive.
    #[must_use]
    pub fn tree(racks: &[usize], link_bytes_s: f64, within_us: u32, between_us: u32) -> Self {
        assert!(link_bytes_s > 0.0, "links of {link_bytes_s} bytes a second");
        let hosts = |(rack, hosts): (usize, &usize)| std::iter::repeat_n(rack, *hosts);
        let rack_of: Vec<usize> = racks.iter().enumerate().flat_map(hosts).collect();
        let capacities = vec![link_bytes_s; 2 * (rack_of.len() + racks.len())];
        Self { rack_of, capacities, within_us, between_us }
    }

    /// Creates the paper's network (§5.6): links of 100 Mb/s, 1 ms within a rack and 2 ms between
    /// racks.
    #[must_use]
    pub fn papers(racks: &[usize]) -> Self {
        Self::tree(racks, 100e6 / 8.0, 1_000, 2_000)
    }

    /// Returns the number of hosts.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.rack_of.len()
    }

    /// Returns the capacity of each link, in bytes per second.
    #[must_use]
    pub fn capacities(&self) -> &[f64] {
        &self.capacities
    }

    /// Returns the rack of a host, by index. If racks represent data centres, this is its data
    /// centre.
    ///
    /// # Panics
    /// If there is no such host.
    #[must_use]
    pub fn rack_of(&self, host: usize) -> usize {
        self.rack_of[host]
    }

    /// Returns the one-way latency between two hosts, in microseconds.
    ///
    /// # Panics
    /// If there is no such host.
    #[must_use]
    pub fn latency_us(&self, from: usize, to: usize) -> u32 {
        if self.rack_of[from] == self.rack_of[to] { self.within_us } else { self.between_us }
    }

    /// Returns the indices of the links from one host to another; empty if both are the same.
    ///
    /// # Panics
    /// If there is no such host.
    #[must_use]
    pub fn path(&self, from: usize, to: usize) -> Vec<usize> {
        let (rack_from, rack_to) = (self.rack_of[from], self.rack_of[to]);
        let rack = |rack: usize| 2 * (self.hosts() + rack);
        match (from == to, rack_from == rack_to) {
            (true, _) => vec![],
            (_, true) => vec![2 * from, 2 * to + 1],
            (_, false) => vec![2 * from, rack(rack_from), rack(rack_to) + 1, 2 * to + 1],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_between_racks_goes_over_the_core() {
        let topology = Topology::papers(&[6, 2, 1]);
        assert_eq!((topology.hosts(), topology.capacities().len()), (9, 24));
        assert_eq!(topology.path(0, 5), [0, 11]);
        assert_eq!(topology.path(0, 8), [0, 18, 23, 17]);
        assert_eq!((topology.latency_us(0, 5), topology.latency_us(5, 6)), (1_000, 2_000));
    }

    #[test]
    fn hosts_are_numbered_rack_by_rack() {
        let topology = Topology::tree(&[6, 3], 1.0, 70, 2_500);
        let racks: Vec<usize> = (0..9).map(|host| topology.rack_of(host)).collect();
        assert_eq!(racks, [0, 0, 0, 0, 0, 0, 1, 1, 1]);
        assert_eq!((topology.latency_us(0, 5), topology.latency_us(8, 0)), (70, 2_500));
    }
}
