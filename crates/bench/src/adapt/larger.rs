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
const MIXES: [f64; 3] = [0.0, 0.25, 0.75];
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
/// transaction takes depends on what else its site does, so it is told from mixes of both kinds.
fn demands(bench: &mut Bench<'_>, workload: Workload) -> Result<Demands> {
    let part = |replicas: &[u16]| vec![Part { from: 0, master: 0, replicas: replicas.to_vec() }];
    let mix = |scans: f64| Workload { scans, ..workload };
    let each_us = |outcome: &Outcome, site: usize| {
        outcome.site_shares[site] * 1e6 / outcome.mean_s(0, usize::MAX).max(1.0)
    };
    let mut of_mix = |scans| {
        let what = format!("{:.0} % scans at one site", scans * 100.0);
        let parts = random(workload.users, PARTITIONS, 1, SEED);
        load(bench, mix(scans), 1, parts, &what).map(|outcome| each_us(&outcome, 0))
    };
    // There and back: a machine may be slower than a minute ago.
    let mut there = [0.0; MIXES.len()];
    for (scans, us) in MIXES.iter().zip(&mut there) {
        *us = of_mix(*scans)?;
    }
    for (scans, us) in MIXES.iter().zip(&mut there).rev() {
        *us = f64::midpoint(*us, of_mix(*scans)?);
    }
    let (count_us, count_beside_us, scan_us) = told_apart(there);
    let applied = load(bench, mix(0.0), 2, part(&[1]), "read-modify-writes with a copy")?;
    let setting = bench.setting(mix(0.0), bench.size.compared_s, false);
    let alone = LoadSpec { sites: 1, clients: 1, design: part(&[]), ..setting };
    let alone = bench.load("one client", &alone)?;
    // One client alone leaves its site idle, which so runs at the speed of the machine.
    let alone_us = 1e6 / alone.mean_s(WARM_S, usize::MAX).max(1.0);
    let mut drawing = mix(1.0).drawing(SEED);
    let rows = |kind: Kind| match kind {
        Kind::Scan(_, users) => users * ROWS,
        Kind::Count(_) => 0,
    };
    let all: u64 = (0..DRAWN).map(|_| rows(drawing.next(std::time::Duration::ZERO))).sum();
    Ok(Demands {
        count_us,
        count_beside_us,
        scanned_row_us: scan_us * DRAWN as f64 / all as f64,
        applied_us: each_us(&applied, 1),
        log_us: (alone_us - count_us * bench.size.site_cpu).max(0.0),
    })
}

/// The time of a read-modify-write alone, what it takes more beside scans, and the time of a scan, from the means of
/// [`MIXES`]. A mean is `(1 - s) (count + s beside) + s scan`, where `s` is the share of scans.
fn told_apart([alone_us, few_us, many_us]: [f64; MIXES.len()]) -> (f64, f64, f64) {
    let [_, few, many] = MIXES;
    // What scans add, for each of them: `(1 - s) beside + scan`.
    let added = |scans: f64, us: f64| (us - (1.0 - scans) * alone_us) / scans;
    let (added_few, added_many) = (added(few, few_us), added(many, many_us));
    let beside_us = ((added_few - added_many) / (many - few)).max(0.0);
    let scan_us = added_many - (1.0 - many) * beside_us;
    (alone_us, beside_us, scan_us.max(1.0))
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
    fn what_both_kinds_take_is_told_from_mixes() {
        let mean = |scans: f64| scans * 410.0 + (1.0 - scans) * (52.0 + scans * 90.0);
        let (count_us, beside_us, scan_us) = told_apart(MIXES.map(mean));
        for (told, is) in [(count_us, 52.0), (beside_us, 90.0), (scan_us, 410.0)] {
            assert!((told - is).abs() < 1e-9, "{told}, and it is {is}");
        }
    }
}
