//! The size of the adaptation benchmark, and the loads that it runs on stores.

use std::time::Duration;

use serde::Serialize;

use super::designs::random;
use super::scene::{self, LoadSpec, Outcome};
use super::workload::{Popularity, Workload};
use crate::error::Result;

/// The size of the benchmark.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Size {
    /// Number of users; each has three rows of 100 bytes.
    pub users: u64,
    /// Number of sites of the store.
    pub sites: u16,
    /// Fraction of a core that each site may use.
    pub site_cpu: f64,
    /// Number of clients, each with one transaction in progress.
    pub clients: u64,
    /// Number of partitions of the random start.
    pub partitions: u64,
    /// Duration of a load that measures a static design, in seconds.
    pub compared_s: u64,
    /// Duration of a load that runs with and without adaptation, in seconds.
    pub beside_s: u64,
    /// Number of mixes of transactions that run from a random start: 1 for half scans; 2 also for one scan in ten.
    pub mixes: u8,
    /// Maximum number of simulated sites. Numbers of sites up to a quarter of it are compared with the real engine.
    pub sites_max: u16,
    /// Number of runs of each load with adaptation, and number of its runs without.
    pub rounds: u64,
    /// Duration of a load under which a store learns, in seconds.
    pub learns_s: u64,
    /// Time after which the latencies of an adapting store are recorded, in seconds.
    pub learned_s: u64,
    /// Interval between two moves of the most popular users, in seconds.
    pub shift_s: u64,
    /// Number of moves of the most popular users.
    pub shifts: u64,
    /// Periods of two alternating places, in seconds.
    pub periods_s: Vec<u64>,
    /// Parts that are measured.
    pub parts: Parts,
}

/// Parts of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Parts {
    /// Adaptation from a random start, compared with static designs.
    pub starts: bool,
    /// Popular users that move.
    pub shifts: bool,
    /// Loads that adaptation cannot improve.
    pub beside: bool,
    /// More sites, in simulation.
    pub sites: bool,
    /// Popular users that alternate between two places.
    pub periods: bool,
}

impl Size {
    /// Returns for each run whether the store adapts. The order is reversed in every second round, which is fair to
    /// both.
    pub(super) fn in_turn(&self) -> impl Iterator<Item = bool> + use<> {
        (0..self.rounds)
            .flat_map(|round| if round % 2 == 0 { [false, true] } else { [true, false] })
    }
}

/// Exponent of Zipf's law, as in YCSB.
pub(super) const EXPONENT: f64 = 0.99;

/// Warm-up time of a load, in seconds, which the figures exclude.
pub(super) const WARM_S: usize = 2;

/// Seed of the random start, the clients and the planner.
pub(super) const SEED: u64 = 11;

/// Results of the checks, summed over all loads.
#[derive(Default)]
pub(super) struct Checks {
    pub acknowledged: u64,
    pub lost: u64,
    pub anomalies: u64,
}

/// A run of the benchmark.
pub(super) struct Bench<'s> {
    pub(super) size: Size,
    pub(super) checks: Checks,
    pub(super) say: &'s dyn Fn(&str),
}

impl Bench<'_> {
    pub(super) fn workload(&self, scans: f64, popularity: Popularity) -> Workload {
        Workload { users: self.size.users, scans, popularity, shift_every_s: None, places: None }
    }

    /// Returns the parameters of a load from the random start.
    pub(super) fn setting(&self, workload: Workload, lasts_s: u64, adapts: bool) -> LoadSpec {
        let Size { users, sites, site_cpu, clients, partitions, .. } = self.size;
        LoadSpec {
            sites,
            site_cpu: Some(site_cpu),
            clients,
            open_rate_s: None,
            warm: Duration::ZERO,
            lasts: Duration::from_secs(lasts_s),
            workload,
            design: random(users, partitions, sites, SEED),
            adapts,
            seed: SEED,
        }
    }

    pub(super) fn load(&mut self, what: &str, setting: &LoadSpec) -> Result<Outcome> {
        (self.say)(&format!("{what}, {} s", setting.lasts.as_secs()));
        let outcome = scene::run(setting, |_, _, _| {})?;
        self.checks.acknowledged += outcome.checked.acknowledged;
        self.checks.lost += outcome.checked.lost;
        self.checks.anomalies += outcome.checked.anomalies;
        Ok(outcome)
    }
}
