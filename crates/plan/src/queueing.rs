//! A closed queueing network with one class of customers, solved exactly.
//!
//! A fixed number of customers goes round through stations; each spends its *demand* of service at each of them in a round.
//! A *delay* serves all its customers at once (thinking, round trips). A *queue* has a real number of servers: with n
//! customers it works at the rate min(n, servers), so that a control group's 0.3 of a processor, one processor and two are
//! the same formula. If service is exponential and first come first served, or if customers share the processors evenly
//! whatever the distribution, the joint distribution of customers is a product of one factor for each station (Gordon and
//! Newell; Baskett, Chandy, Muntz and Palacios), and its means are those of exact mean-value analysis (Reiser and
//! Lavenberg, *Mean-Value Analysis of Closed Multichain Queuing Networks*, 1980).
//!
//! The recursion of mean-value analysis needs, for stations of several servers, the probability that a station is empty as
//! one minus all others: near saturation a difference of nearly equal numbers, which ends up negative. So [`solve`] forms
//! the same means from the factors' convolution (Buzen, 1973), where nothing is subtracted: demands are scaled by the
//! throughput's upper bound, factors are formed as logarithms, and each is divided by its greatest term.
//!
//! Invariants: customers over all stations sum up to the network's; throughput is never above [`Bounds::throughput_s`];
//! customers = throughput × response at each station (Little's law).

pub mod simulator;
#[cfg(test)]
mod tests;

/// One station.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Station {
    /// All customers are served at once.
    Delay {
        /// The time that a customer spends here in each round, in seconds.
        demand_s: f64,
    },
    /// At most `servers` customers are served at the rate 1.
    Queue {
        /// The service that a customer takes in each round at the rate 1, in seconds.
        demand_s: f64,
        /// Servers: any number above 0.
        servers: f64,
    },
}

impl Station {
    /// The service of a customer in each round, in seconds.
    #[must_use]
    pub fn demand_s(self) -> f64 {
        match self {
            Self::Delay { demand_s } | Self::Queue { demand_s, .. } => demand_s,
        }
    }

    /// The rate at which the station works on `customers` customers.
    #[must_use]
    pub fn rate(self, customers: u32) -> f64 {
        match self {
            Self::Delay { .. } => f64::from(customers),
            Self::Queue { servers, .. } => servers.min(f64::from(customers)),
        }
    }

    /// The time that a customer spends here in each round if it is alone, in seconds.
    #[must_use]
    pub fn alone_s(self) -> f64 {
        match self {
            Self::Delay { demand_s } => demand_s,
            Self::Queue { demand_s, servers } => demand_s / servers.min(1.0),
        }
    }

    /// The time between two rounds if only this station counts, in seconds.
    #[must_use]
    pub fn saturated_s(self) -> f64 {
        match self {
            Self::Delay { .. } => 0.0,
            Self::Queue { demand_s, servers } => demand_s / servers,
        }
    }
}

/// The means at one station.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AtStation {
    /// The time of a customer here in each round, waiting included, in seconds.
    pub response_s: f64,
    /// Customers here.
    pub customers: f64,
    /// The share of its servers that is busy; 0 for a delay.
    pub utilisation: f64,
}

/// The means of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// Rounds a second of all customers.
    pub throughput_s: f64,
    /// By station.
    pub stations: Vec<AtStation>,
}

impl Solution {
    /// The time of a round, in seconds.
    #[must_use]
    pub fn response_s(&self) -> f64 {
        self.stations.iter().map(|station| station.response_s).sum()
    }
}

/// What no network of these stations can exceed (asymptotic bounds: Muntz and Wong).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// The time of a round of a customer alone, in seconds.
    pub alone_s: f64,
    /// The time between two rounds at the station that saturates first, in seconds.
    pub saturated_s: f64,
    /// The number of that station; none if all are delays.
    pub bottleneck: Option<usize>,
    /// Rounds a second, at most.
    pub throughput_s: f64,
    /// Customers with which the bottleneck would be saturated if no customer ever waited.
    pub knee: f64,
}

/// The asymptotic bounds. Constant service without any variation attains them.
#[must_use]
pub fn bounds(stations: &[Station], customers: u32) -> Bounds {
    let alone_s: f64 = stations.iter().map(|station| station.alone_s()).sum();
    let queues = stations.iter().enumerate().map(|(at, station)| (at, station.saturated_s()));
    let slowest = queues.filter(|(_, s)| *s > 0.0).max_by(|(_, a), (_, b)| a.total_cmp(b));
    let saturated_s = slowest.map_or(0.0, |(_, s)| s);
    let free = f64::from(customers) / alone_s;
    Bounds {
        alone_s,
        saturated_s,
        bottleneck: slowest.map(|(at, _)| at),
        throughput_s: if saturated_s > 0.0 { free.min(1.0 / saturated_s) } else { free },
        knee: if saturated_s > 0.0 { alone_s / saturated_s } else { f64::INFINITY },
    }
}

/// The means of the network with so many customers.
///
/// Takes time in proportion to stations × customers².
///
/// # Panics
/// If there are no customers, if a demand is negative or a number of servers is not above 0, or if no station has a demand.
#[must_use]
pub fn solve(stations: &[Station], customers: u32) -> Solution {
    assert!(customers > 0, "a closed network has customers");
    for station in stations {
        assert!(station.demand_s() >= 0.0, "{station:?} has a demand of at least 0");
        assert!(station.rate(1) > 0.0, "{station:?} has servers");
    }
    let bounds = bounds(stations, customers);
    assert!(bounds.alone_s > 0.0, "a round takes time");
    let scale = bounds.throughput_s;
    let factors: Vec<Vec<f64>> =
        stations.iter().map(|station| factor(*station, scale, customers)).collect();
    // What lies before each station, and what behind it: together all but that station.
    let mut before = vec![unit(customers)];
    for its in &factors {
        let next = convolved(before.last().expect("never empty"), its);
        before.push(next);
    }
    let all = before.pop().expect("never empty");
    let mut behind = unit(customers);
    let mut others: Vec<Vec<f64>> = Vec::with_capacity(stations.len());
    for (its, before) in factors.iter().zip(&before).rev() {
        others.push(convolved(before, &behind));
        behind = convolved(&behind, its);
    }
    others.reverse();
    let [.., fewer, present] = all.as_slice() else { unreachable!("there are customers") };
    let throughput_s = scale * fewer / present;
    let at = |(station, (its, others)): (&Station, (&Vec<f64>, &Vec<f64>))| {
        let customers_here = mean(its, others);
        let utilisation = throughput_s * station.saturated_s();
        AtStation {
            response_s: customers_here / throughput_s,
            customers: customers_here,
            utilisation,
        }
    };
    let stations = stations.iter().zip(factors.iter().zip(&others)).map(at).collect();
    Solution { throughput_s, stations }
}

/// A share of a factor's greatest term below which a term counts as none: demands are scaled such that the terms that matter
/// are near the greatest. Factors of stations that are far from saturated have few others.
const NEGLIGIBLE: f64 = 1e-40;

/// The weights of 0, 1, … customers at a station, divided by the greatest.
fn factor(station: Station, scale: f64, customers: u32) -> Vec<f64> {
    let demand = station.demand_s() * scale;
    let mut logarithm = 0.0;
    let mut logarithms = vec![0.0];
    for here in 1..=customers {
        logarithm += (demand / station.rate(here)).ln();
        logarithms.push(logarithm);
    }
    let greatest = logarithms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights = logarithms.into_iter().map(|logarithm| (logarithm - greatest).exp());
    weights.map(|weight| if weight < NEGLIGIBLE { 0.0 } else { weight }).collect()
}

/// The weights where there is no station.
fn unit(customers: u32) -> Vec<f64> {
    let mut weights = vec![0.0; customers as usize + 1];
    weights[0] = 1.0;
    weights
}

/// The weights of two parts of the network together, divided by the greatest.
fn convolved(one: &[f64], other: &[f64]) -> Vec<f64> {
    let mut both = vec![0.0; one.len()];
    let first = other.iter().position(|weight| *weight > 0.0).unwrap_or(0);
    let end = other.iter().rposition(|weight| *weight > 0.0).map_or(0, |last| last + 1);
    for (at, weight) in one.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
        let sums = both[at..].iter_mut().skip(first);
        sums.zip(&other[first..end]).for_each(|(sum, its)| *sum += weight * its);
    }
    let greatest = both.iter().copied().fold(0.0, f64::max);
    both.iter_mut().for_each(|weight| *weight /= greatest);
    both
}

/// The mean number of customers at a station, from its weights and those of all others.
fn mean(its: &[f64], others: &[f64]) -> f64 {
    let weights = its.iter().zip(others.iter().rev()).map(|(its, others)| its * others);
    let (mut sum, mut moment) = (0.0, 0.0);
    for (here, weight) in weights.enumerate() {
        sum += weight;
        moment += weight * here as f64;
    }
    moment / sum
}
