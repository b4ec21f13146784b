//! Designs of more sites than a machine can run, in simulation ([`super::simulated`]): with demands that are measured on
//! the real engine, and beside it where it can run.

use serde::Serialize;

use super::designs::{Part, balanced, random};
use super::report::{Bench, SEED, WARM_S};
use super::scene::{LoadSpec, Outcome};
use super::simulated::{Demands, SimulationSpec, simulate};
use super::workload::{Kind, ROWS, Workload};
use crate::error::Result;

/// Sites at which the simulation is compared with the real engine.
const COMPARED: [u16; 3] = [1, 2, 4];
/// Sites beyond.
const LARGER: [u16; 2] = [8, 16];
/// Clients and partitions of a random start, for each site.
const CLIENTS: u64 = 16;
const PARTITIONS: u64 = 8;
/// Shares of scans by which the demands of both kinds are told.
const MIXES: [f64; 2] = [0.25, 0.75];
/// Transactions by whose rows the mean of a scan is told.
const DRAWN: usize = 20_000;

/// The results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Larger {
    /// The measured demands.
    pub demands: Demands,
    /// The simulation beside the real engine.
    pub compared: Vec<Compared>,
    /// Designs of more sites, in simulation.
    pub larger: Vec<Beyond>,
}

/// One design, run and simulated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Sites.
    pub sites: u16,
    /// The design.
    pub design: &'static str,
    /// Transactions a second of the real engine.
    pub measured_s: f64,
    /// Those of the simulation.
    pub simulated_s: f64,
    /// The difference of the second from the first, as a share of the first.
    pub error: f64,
}

/// Designs of so many sites, simulated: transactions a second of each.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Beyond {
    /// Sites.
    pub sites: u16,
    /// A random start, left alone.
    pub random_s: f64,
    /// The better of two static designs that are made by hand.
    pub ideal_s: f64,
    /// The random start, adapting, in the last third of its time.
    pub adapted_s: f64,
    /// The third of the second.
    pub of_ideal: f64,
    /// The third of the first.
    pub of_random: f64,
    /// Changes of the design.
    pub changes: u64,
}

/// Measures what a site's work takes, compares, and simulates.
pub fn run(bench: &mut Bench<'_>, workload: Workload) -> Result<Larger> {
    let demands = demands(bench, workload)?;
    let mut compared = Vec::new();
    let sites_max = bench.size.sites_max;
    for sites in COMPARED.into_iter().filter(|sites| sites * 4 <= sites_max) {
        let designs = [
            ("by hand", balanced(&workload, sites, false)),
            ("random", random(workload.users, PARTITIONS * u64::from(sites), sites, SEED)),
        ];
        for (name, design) in designs {
            compared.push(compare(bench, workload, demands, sites, (name, design))?);
        }
    }
    let larger = LARGER.into_iter().filter(|sites| *sites <= sites_max);
    let larger = larger.map(|sites| beyond(bench, workload, demands, sites)).collect();
    Ok(Larger { demands, compared, larger })
}

/// A load on so many sites, left alone.
fn load(
    bench: &mut Bench<'_>,
    workload: Workload,
    sites: u16,
    design: Vec<Part>,
    what: &str,
) -> Result<Outcome> {
    let clients = CLIENTS * u64::from(sites);
    let setting = bench.setting(workload, bench.size.compared_s, false);
    bench.load(what, &LoadSpec { sites, clients, design, ..setting })
}

/// Measures the demands: the time of a site that is busy throughout, divided by the transactions of that time. What a
/// transaction takes depends on what else its site does, so it is told from two mixes of both kinds.
fn demands(bench: &mut Bench<'_>, workload: Workload) -> Result<Demands> {
    let part = |replicas: &[u16]| vec![Part { from: 0, master: 0, replicas: replicas.to_vec() }];
    let mix = |scans: f64| Workload { scans, ..workload };
    let each_us = |outcome: &Outcome, site: usize| {
        outcome.site_shares[site] * 1e6 / outcome.mean_s(0, usize::MAX).max(1.0)
    };
    let parts = || random(workload.users, PARTITIONS, 1, SEED);
    let mut of_mix = |scans| {
        let what = format!("{:.0} % scans at one site", scans * 100.0);
        load(bench, mix(scans), 1, parts(), &what).map(|outcome| each_us(&outcome, 0))
    };
    let [few, many] = MIXES;
    // Once more in between: a machine may be slower than a minute ago.
    let (few_us, many_us) = (of_mix(few)?, of_mix(many)?);
    let (many_us, few_us) =
        (f64::midpoint(many_us, of_mix(many)?), f64::midpoint(few_us, of_mix(few)?));
    let (count_us, scan_us) = told_apart((few, few_us), (many, many_us));
    let applied = load(bench, mix(0.0), 2, part(&[1]), "read-modify-writes with a copy")?;
    let setting = bench.setting(mix(0.0), bench.size.compared_s, false);
    let alone = LoadSpec { sites: 1, clients: 1, design: part(&[]), ..setting };
    let alone = bench.load("one client", &alone)?;
    let mut drawing = mix(1.0).drawing(SEED);
    let rows = |kind: Kind| match kind {
        Kind::Scan(_, users) => users * ROWS,
        Kind::Count(_) => 0,
    };
    let all: u64 = (0..DRAWN).map(|_| rows(drawing.next(std::time::Duration::ZERO))).sum();
    Ok(Demands {
        count_us,
        scanned_row_us: scan_us * DRAWN as f64 / all as f64,
        applied_us: each_us(&applied, 1),
        log_us: 1e6 / alone.mean_s(WARM_S, usize::MAX).max(1.0),
    })
}

/// The times of a read-modify-write and of a scan, from the means of two mixes with so large a share of scans.
fn told_apart((few, few_us): (f64, f64), (many, many_us): (f64, f64)) -> (f64, f64) {
    let scan_more_us = (many_us - few_us) / (many - few);
    let count_us = (few_us - few * scan_more_us).max(1.0);
    (count_us, (count_us + scan_more_us).max(1.0))
}

fn compare(
    bench: &mut Bench<'_>,
    workload: Workload,
    demands: Demands,
    sites: u16,
    (name, design): (&'static str, Vec<Part>),
) -> Result<Compared> {
    let what = format!("{sites} sites, {name}");
    let measured_s =
        load(bench, workload, sites, design.clone(), &what)?.mean_s(WARM_S, usize::MAX);
    let simulated = simulated(bench, workload, demands, sites, design, false);
    let simulated_s = simulate(&simulated).mean_s(WARM_S);
    let error = (simulated_s - measured_s) / measured_s;
    Ok(Compared { sites, design: name, measured_s, simulated_s, error })
}

fn simulated(
    bench: &Bench<'_>,
    workload: Workload,
    demands: Demands,
    sites: u16,
    design: Vec<Part>,
    adapts: bool,
) -> SimulationSpec {
    let (clients, seed) = (CLIENTS * u64::from(sites), SEED);
    let lasts_s = if adapts { bench.size.learns_s } else { bench.size.compared_s };
    SimulationSpec { demands, sites, clients, lasts_s, workload, design, adapts, seed }
}

fn beyond(bench: &Bench<'_>, workload: Workload, demands: Demands, sites: u16) -> Beyond {
    (bench.say)(&format!("{sites} sites, simulated"));
    let start = || random(workload.users, PARTITIONS * u64::from(sites), sites, SEED);
    let of = |design, adapts| simulate(&simulated(bench, workload, demands, sites, design, adapts));
    let random_s = of(start(), false).mean_s(WARM_S);
    let by_hand =
        |is_replicated| of(balanced(&workload, sites, is_replicated), false).mean_s(WARM_S);
    let ideal_s = by_hand(false).max(by_hand(true));
    let adapted = of(start(), true);
    let adapted_s = adapted.mean_s(bench.size.learns_s as usize * 2 / 3);
    let (of_ideal, of_random) = (adapted_s / ideal_s, adapted_s / random_s);
    Beyond { sites, random_s, ideal_s, adapted_s, of_ideal, of_random, changes: adapted.changes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_both_kinds_take_is_told_from_two_mixes() {
        let mean = |scans: f64| scans * 410.0 + (1.0 - scans) * 64.0;
        let (count_us, scan_us) = told_apart((0.25, mean(0.25)), (0.75, mean(0.75)));
        assert!((count_us - 64.0).abs() < 1e-9 && (scan_us - 410.0).abs() < 1e-9);
    }
}
