//! The designs with which adaptation is compared: a random start, and the best static design that is made by hand
//! from the known parameters of the workload.

use imago_store::engine::Store;
use imago_store::key::Key;
use imago_store::record::{Operator, Site};
use imago_store::transaction::Abort;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::workload::{Popularity, Workload, key};
use crate::error::{Error, Result};

/// A partition of a static design.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// First user in the partition.
    pub from: u64,
    /// Site of the master.
    pub master: u16,
    /// Sites of the replicas.
    pub replicas: Vec<u16>,
}

/// Returns partitions of equal size with random masters and no replicas. Such a design results from years of growth
/// without tuning.
pub fn random(users: u64, partitions: u64, sites: u16, seed: u64) -> Vec<Part> {
    let mut dice = StdRng::seed_from_u64(seed);
    let mut part = |n: u64| Part {
        from: users * n / partitions,
        master: dice.random_range(0..sites),
        replicas: Vec::new(),
    };
    (0..partitions).map(&mut part).collect()
}

/// Returns partitions of about equal load, four for each site, with masters on all sites in rotation. The most
/// popular user has its own partition if its load alone is that of a partition. If `is_replicated`, each partition
/// has replicas at all other sites.
pub fn balanced(workload: &Workload, sites: u16, is_replicated: bool) -> Vec<Part> {
    let users = workload.users;
    let weight = |rank: u64| match workload.popularity {
        Popularity::Uniform => 1.0,
        Popularity::Zipf(exponent) => ((rank + 1) as f64).powf(-exponent),
    };
    let all: f64 = (0..users).map(weight).sum();
    let pieces = 4 * u64::from(sites);
    let mut starts = vec![0];
    let (mut sum, mut next) = (0.0, 1);
    for rank in 0..users {
        sum += weight(rank);
        if sum >= all * next as f64 / pieces as f64 {
            while next < pieces && sum >= all * next as f64 / pieces as f64 {
                next += 1;
            }
            if rank + 1 < users {
                starts.push(rank + 1);
            }
        }
    }
    let sites_of =
        |master: u16| (0..sites).filter(|site| is_replicated && *site != master).collect();
    let part = |(n, from): (usize, &u64)| {
        // The direction of the rotation alternates, so that the first and heaviest partitions of the rounds are not
        // all at the same site.
        let (round, place) = (n as u16 / sites, n as u16 % sites);
        let master = if round % 2 == 0 { place } else { sites - 1 - place };
        Part { from: *from, master, replicas: sites_of(master) }
    };
    starts.iter().enumerate().map(part).collect()
}

/// Returns a design as [`balanced`] does, for popular users that rotate through several places. It has the partition
/// boundaries of all places, so that the load is balanced in each place.
pub fn balanced_in_turn(
    workload: &Workload,
    places: u64,
    sites: u16,
    is_replicated: bool,
) -> Vec<Part> {
    let pieces = balanced(workload, sites, is_replicated);
    let first = |number: u64| (workload.place(number, places) * workload.users as f64) as u64;
    let shifted =
        |number| pieces.iter().map(move |part| (part.from + first(number)) % workload.users);
    let mut starts: Vec<u64> = (0..places).flat_map(shifted).chain([0]).collect();
    starts.sort_unstable();
    starts.dedup();
    let part = |(n, from): (usize, u64)| {
        let (round, place) = (n as u16 / sites, n as u16 % sites);
        let master = if round.is_multiple_of(2) { place } else { sites - 1 - place };
        let replicas = (0..sites).filter(|site| is_replicated && *site != master).collect();
        Part { from, master, replicas }
    };
    starts.into_iter().enumerate().map(part).collect()
}

/// Applies a design to an empty store that has a single partition, with its master at site 0.
pub async fn lay_out(store: &Store, parts: &[Part]) -> Result<()> {
    let start = |part: &Part| if part.from == 0 { Key::least() } else { key(part.from, 0) };
    for part in parts.iter().filter(|part| part.from > 0) {
        change(store.change(&start(part), Operator::Split(start(part))).await)?;
    }
    for part in parts {
        let (start, master) = (start(part), Site(part.master));
        if master != Site(0) {
            change(store.add_replica(&start, master).await)?;
            change(store.change(&start, Operator::Remaster(master)).await)?;
        }
        for site in part.replicas.iter().filter(|site| **site != 0 || master == Site(0)) {
            change(store.add_replica(&start, Site(*site)).await)?;
        }
        if master != Site(0) && !part.replicas.contains(&0) {
            change(store.change(&start, Operator::RemoveReplica(Site(0))).await)?;
        }
    }
    Ok(())
}

fn change(done: std::result::Result<(), Abort>) -> Result<()> {
    done.map_err(|abort| Error::Wrong(abort.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(popularity: Popularity) -> Workload {
        Workload { users: 40_000, scans: 0.5, popularity, shift_every_s: None, places: None }
    }

    #[test]
    fn the_balanced_design_gives_every_site_its_share() {
        let parts = balanced(&workload(Popularity::Zipf(0.99)), 4, true);
        let weight = |rank: u64| ((rank + 1) as f64).powf(-0.99);
        let all: f64 = (0..40_000).map(weight).sum();
        let mut loads = [0.0; 4];
        for (n, part) in parts.iter().enumerate() {
            let end = parts.get(n + 1).map_or(40_000, |next| next.from);
            loads[usize::from(part.master)] += (part.from..end).map(weight).sum::<f64>() / all;
            assert_eq!(part.replicas.len(), 3);
        }
        assert!(loads.iter().all(|load| (0.15..0.35).contains(load)), "{loads:?}");
        assert_eq!(balanced(&workload(Popularity::Uniform), 4, false).len(), 16);
        let parts = balanced_in_turn(&workload(Popularity::Zipf(0.99)), 2, 4, false);
        for place in [4_000, 22_000] {
            let mut loads = [0.0; 4];
            for rank in 0..40_000 {
                let user = (place + rank) % 40_000;
                let at = parts.partition_point(|part| part.from <= user) - 1;
                loads[usize::from(parts[at].master)] += weight(rank) / all;
            }
            assert!(loads.iter().all(|load| (0.12..0.38).contains(load)), "{place}: {loads:?}");
        }
    }
}
