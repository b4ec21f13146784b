//! A closed queueing network with one class of customers, solved exactly.
//!
//! A fixed number of customers circulates through stations. In each round a customer spends its
//! *demand* of service at each station. A *delay* serves all its customers at once (think time,
//! round trips). A *queue* has a real number of servers: with n customers it works at the rate
//! min(n, servers), so that 0.3 of a processor under a control group, one processor and two share
//! one formula. If service times are exponential and service is first come, first served, or if
//! customers share the processors evenly for any distribution, the joint distribution of
//! customers is a product of one factor for each station (Gordon and Newell; Baskett, Chandy, Muntz
//! and Palacios), and its means are those of exact mean-value analysis (Reiser and Lavenberg,
//! *Mean-Value Analysis of Closed Multichain Queuing Networks*, 1980).
//!
//! For stations with several servers, the recursion of mean-value analysis computes the probability
//! that a station is empty as one minus all others: near saturation a difference of nearly equal
//! numbers, which becomes negative. So [`solve`] computes the same means by convolution of the
//! factors (Buzen, 1973), without subtraction: demands are scaled by the upper bound of the
//! throughput, factors are computed as logarithms, and each is divided by its greatest term.
//!
//! Invariants: the customers at all stations sum up to those of the network; throughput never
//! exceeds [`Bounds::throughput_s`]; customers = throughput × response time at each station
//! (Little's law).

#[cfg(test)]
pub(crate) mod simulator;
#[cfg(test)]
mod tests;

/// A station of a closed queueing network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Station {
    /// A station that serves all its customers at once.
    Delay {
        /// Time that a customer spends at the station in each round, in seconds.
        demand_s: f64,
    },
    /// A station that serves at most `servers` customers at once, each at the rate 1.
    Queue {
        /// Service that a customer receives from the station in each round, at the rate 1, in seconds.
        demand_s: f64,
        /// Number of servers of the station: any positive number, also a fraction.
        servers: f64,
    },
}

impl Station {
    /// Returns the service that a customer receives from the station in each round, in seconds.
    #[must_use]
    pub fn demand_s(self) -> f64 {
        match self {
            Self::Delay { demand_s } | Self::Queue { demand_s, .. } => demand_s,
        }
    }

    /// Returns the service rate of the station with `customers` customers, in seconds of service
    /// per second.
    #[must_use]
    pub fn rate(self, customers: u32) -> f64 {
        match self {
            Self::Delay { .. } => f64::from(customers),
            Self::Queue { servers, .. } => servers.min(f64::from(customers)),
        }
    }

    /// Returns the time that a customer spends at the station in each round if no other customer is
    /// there, in seconds.
    #[must_use]
    pub fn alone_s(self) -> f64 {
        match self {
            Self::Delay { demand_s } => demand_s,
            Self::Queue { demand_s, servers } => demand_s / servers.min(1.0),
        }
    }

    /// Returns the time between two rounds if the station is saturated, in seconds; 0 for a delay.
    #[must_use]
    pub fn saturated_s(self) -> f64 {
        match self {
            Self::Delay { .. } => 0.0,
            Self::Queue { demand_s, servers } => demand_s / servers,
        }
    }
}

/// Mean values of one station in the steady state of the network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AtStation {
    /// Time that a customer spends at the station in each round, waiting included, in seconds.
    pub response_s: f64,
    /// Mean number of customers at the station.
    pub customers: f64,
    /// Share of the station's servers that is busy, from 0 to 1; 0 for a delay.
    pub utilisation: f64,
}

/// Mean values of a closed queueing network in its steady state.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// Number of rounds that all customers together complete per second.
    pub throughput_s: f64,
    /// Mean values by station, in the order of the stations.
    pub stations: Vec<AtStation>,
}

impl Solution {
    /// Returns the response time of one round of a customer over all stations, in seconds.
    #[must_use]
    pub fn response_s(&self) -> f64 {
        self.stations.iter().map(|station| station.response_s).sum()
    }
}

/// Asymptotic bounds of a closed queueing network (Muntz and Wong).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Duration of a round with a single customer, in seconds.
    pub alone_s: f64,
    /// Time between two rounds at the station that saturates first, in seconds.
    pub saturated_s: f64,
    /// Index of the bottleneck, the station that saturates first; `None` if all stations are delays.
    pub bottleneck: Option<usize>,
    /// Upper bound of the throughput, in rounds per second.
    pub throughput_s: f64,
    /// Number of customers at which the bottleneck would saturate if no customer ever waited.
    pub knee: f64,
}

/// Returns the asymptotic bounds of a network with `customers` customers. Service times without any variation attain
/// them.
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

/// Returns the mean values of the network of these stations with `customers` customers.
///
/// The running time is proportional to stations × customers².
///
/// # Panics
/// If there are no customers, if a demand is negative or a number of servers is not above 0, or if
/// no station has a demand.
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
    // The stations before each station, and those after it: together all but that station.
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

/// Share of a factor's greatest term below which a term counts as 0: demands are scaled such that
/// the terms that matter are near the greatest. Factors of stations far from saturation have few
/// others.
const NEGLIGIBLE: f64 = 1e-40;

/// Returns the weights of 0, 1, … `customers` customers at a station, divided by the greatest; `scale` is a multiple
/// of all demands.
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

/// Returns the weights of a network without stations: only 0 customers have a weight.
fn unit(customers: u32) -> Vec<f64> {
    let mut weights = vec![0.0; customers as usize + 1];
    weights[0] = 1.0;
    weights
}

/// Returns the weights of two parts of the network combined, given the weights of each, divided by the greatest.
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

/// Returns the mean number of customers at a station, from its weights and those of all other stations.
fn mean(its: &[f64], others: &[f64]) -> f64 {
    let weights = its.iter().zip(others.iter().rev()).map(|(its, others)| its * others);
    let (mut sum, mut moment) = (0.0, 0.0);
    for (here, weight) in weights.enumerate() {
        sum += weight;
        moment += weight * here as f64;
    }
    moment / sum
}
