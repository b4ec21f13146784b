//! Throughput of designs with more sites than a machine can run, by simulation ([`super::simulated`]). The demands of
//! the simulation are measured on the real engine. For numbers of sites that the machine can run, the simulation is
//! compared with the real engine.

use serde::Serialize;

use super::designs::{Part, balanced, random};
use super::loads::{Bench, SEED, WARM_S};
use super::scene::{LoadSpec, Outcome};
use super::simulated::demands::{Demands, IN_PROGRESS, MIXES, TransactionDemands};
use super::simulated::{SimulationSpec, simulate};
use super::workload::{Kind, ROWS, Workload};
use crate::error::Result;

/// Numbers of sites at which the simulation is compared with the real engine.
const COMPARED: [u16; 3] = [1, 2, 4];
/// Larger numbers of sites, which are only simulated.
const LARGER: [u16; 2] = [8, 16];
/// Number of clients for each site.
const CLIENTS: u64 = 16;
/// Number of partitions of a random start for each site.
const PARTITIONS: u64 = 8;
/// Number of drawn transactions from which the mean number of rows of a scan is computed.
const DRAWN: usize = 20_000;

/// Results of the measurements and of the simulations.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Larger {
    /// Measured demands.
    pub demands: Demands,
    /// The simulation compared with the real engine.
    pub compared: Vec<Compared>,
    /// Simulated designs of more sites.
    pub larger: Vec<Beyond>,
}

/// A design that was both run on the real engine and simulated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Number of sites.
    pub sites: u16,
    /// Name of the design.
    pub design: &'static str,
    /// Throughput of the real engine, in transactions per second.
    pub measured_s: f64,
    /// Throughput of the simulation, in transactions per second.
    pub simulated_s: f64,
    /// CPU time that each site of the real engine used, as a fraction of its limit.
    pub measured_site_shares: Vec<f64>,
    /// The same of the simulated sites.
    pub simulated_site_shares: Vec<f64>,
    /// Relative error of the simulation: its throughput minus that of the real engine, divided by that of the real
    /// engine.
    pub error: f64,
}

/// Simulated designs for one number of sites.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Beyond {
    /// Number of sites.
    pub sites: u16,
    /// Throughput of a random start without adaptation, in transactions per second.
    pub random_s: f64,
    /// Throughput of the better of two hand-made static designs, in transactions per second.
    pub ideal_s: f64,
    /// Throughput of the random start with adaptation, in the last third of its run, in transactions per second.
    pub adapted_s: f64,
    /// Ratio of `adapted_s` to `ideal_s`.
    pub of_ideal: f64,
    /// Ratio of `adapted_s` to `random_s`.
    pub of_random: f64,
    /// Number of changes of the design.
    pub changes: u64,
}

/// Measures the demands, compares the simulation with the real engine, and simulates more sites.
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

/// Runs a load on the real engine, without adaptation.
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

/// Measures the demands of the simulation. The demand of a transaction is the time that a site works, of the CPU time
/// that it has, divided by the number of transactions in that time.
fn demands(bench: &mut Bench<'_>, workload: Workload) -> Result<Demands> {
    let part = |replicas: &[u16]| vec![Part { from: 0, master: 0, replicas: replicas.to_vec() }];
    let mix = |scans: f64| Workload { scans, ..workload };
    let each_us = |outcome: &Outcome, site: usize| {
        outcome.site_shares[site] * 1e6 / outcome.mean_s(1, usize::MAX).max(1.0)
    };
    let lasts_s = bench.size.compared_s.div_ceil(2).max(2);
    let mut measure = |scans: f64, (sites, clients): (u16, u64), design, what: &str| {
        let setting = bench.setting(mix(scans), lasts_s, false);
        bench.load(what, &LoadSpec { sites, clients, design, ..setting })
    };
    let mut transactions_us = [[0.0; MIXES.len()]; IN_PROGRESS.len()];
    let mut others_us = [0.0; 2];
    // All is measured twice, in opposite orders, because the speed of the machine may change within a minute.
    let mut loads: Vec<(usize, usize)> = (0..IN_PROGRESS.len())
        .flat_map(|clients| (0..MIXES.len()).map(move |mix| (clients, mix)))
        .collect();
    for _ in 0..2 {
        for (clients, mix) in &loads {
            let (clients_of, scans) = (IN_PROGRESS[*clients], MIXES[*mix]);
            let what = format!("{:.0} % scans, {clients_of} clients at one site", scans * 100.0);
            let parts = random(workload.users, PARTITIONS, 1, SEED);
            let outcome = measure(scans, (1, clients_of.into()), parts, &what)?;
            transactions_us[*clients][*mix] += each_us(&outcome, 0) / 2.0;
        }
        loads.reverse();
        let places = [(&[1][..], "with a replica"), (&[], "without a replica")];
        for (us, (replicas, what)) in others_us.iter_mut().zip(places) {
            let what = format!("read-modify-writes beside a site {what}");
            let outcome = measure(0.0, (2, CLIENTS), part(replicas), &what)?;
            *us += each_us(&outcome, 1) / 2.0;
        }
    }
    let alone = measure(0.0, (1, 1), part(&[]), "one client")?;
    // A single client leaves its site mostly idle, so the site is not limited to its share of a core: it runs at the
    // full speed of the machine.
    let alone_us = 1e6 / alone.mean_s(WARM_S, usize::MAX).max(1.0);
    let used_us = each_us(&alone, 0) * bench.size.site_cpu;
    let mut drawing = mix(1.0).drawing(SEED);
    let rows = |kind: Kind| match kind {
        Kind::Scan(_, users) => users * ROWS,
        Kind::Count(_) => 0,
    };
    let all: u64 = (0..DRAWN).map(|_| rows(drawing.next(std::time::Duration::ZERO))).sum();
    let scan_rows = all as f64 / DRAWN as f64;
    Ok(Demands {
        transactions: transactions_us.map(|us| TransactionDemands::of(us, scan_rows)),
        applied_us: others_us[0],
        skipped_us: others_us[1],
        log_us: (alone_us - used_us).max(0.0),
    })
}

fn compare(
    bench: &mut Bench<'_>,
    workload: Workload,
    demands: Demands,
    sites: u16,
    (name, design): (&'static str, Vec<Part>),
) -> Result<Compared> {
    let what = format!("{sites} sites, {name}");
    let measured = load(bench, workload, sites, design.clone(), &what)?;
    let simulated = simulate(&simulated(bench, workload, demands, sites, design, false));
    let measured_s = measured.mean_s(WARM_S, usize::MAX);
    let simulated_s = simulated.mean_s(WARM_S);
    Ok(Compared {
        sites,
        design: name,
        measured_s,
        simulated_s,
        measured_site_shares: measured.site_shares,
        simulated_site_shares: simulated.site_shares,
        error: (simulated_s - measured_s) / measured_s,
    })
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
