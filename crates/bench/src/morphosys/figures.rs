//! The figures of the evaluation: loads on all designs in turns, and their comparison.

use std::collections::BTreeMap;
use std::time::Duration;

use imago_load::store::transactions::Benchmark;
use imago_workload::procedures::ycsb;
use serde::Serialize;

use super::designs::Design;
use super::scene::{self, Outcome, Scene};
use crate::Header;
use crate::error::Result;
use crate::statistics::Figure;

/// Exponent of Zipf's law of the skewed workloads.
const EXPONENT: f64 = 0.99;

/// Sizes of the evaluation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Size {
    /// Number of sites.
    pub sites: u16,
    /// Share of a core that each site may use.
    pub site_cpu: f64,
    /// Time that a message takes from a site to another one and back, in µs.
    pub round_trip_us: u64,
    /// Number of clients, the same for all designs.
    pub clients: u64,
    /// Number of partitions at the start.
    pub partitions: usize,
    /// Number of users of YCSB, each with one row.
    pub users: u32,
    /// Time of each load before it is measured, in seconds.
    pub warm_s: u64,
    /// Time for which each load is measured, in seconds.
    pub lasts_s: u64,
    /// Number of rounds; each measures all designs, in the opposite order of the round before.
    pub rounds: u32,
    /// The designs.
    pub designs: Vec<Design>,
}

impl Size {
    fn scene(&self, benchmark: Benchmark, round: u32) -> Scene {
        Scene {
            benchmark,
            sites: self.sites,
            site_cpu: self.site_cpu,
            round_trip: Duration::from_micros(self.round_trip_us),
            partitions: self.partitions,
            clients: self.clients,
            rate_s: None,
            warm: Duration::from_secs(self.warm_s),
            lasts: Duration::from_secs(self.lasts_s),
            seed: 42 + u64::from(round),
        }
    }
}

/// The result of one design under one workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OfDesign {
    /// The design.
    pub design: Design,
    /// Transactions per second over the rounds.
    pub throughput_s: Figure,
    /// Ratio of MorphoSys's throughput to this design's, of the same round each.
    pub morphosys_ratio: Figure,
    /// The loads of the rounds.
    pub loads: Vec<Outcome>,
}

/// The designs under one workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Each design's result, the one with the greatest throughput first.
    pub designs: Vec<OfDesign>,
    /// Ratio of MorphoSys's throughput to that of the best other design: of the same round each.
    pub of_best_other: Figure,
    /// True if the ratios of all rounds are on one side of 1: else there is no difference beyond the spread.
    pub is_distinct: bool,
    /// Number of contradictions in the rows of all loads.
    pub contradictions: usize,
}

/// One part of Fig. 3: a mix of transactions and a distribution of accesses.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure3Part {
    /// The part, from `a` to `d`.
    pub part: char,
    /// Share of the transactions that are scans; the others are read-modify-writes of three rows.
    pub scans: f64,
    /// Exponent of Zipf's law of the accesses; 0 if they are uniform.
    pub exponent: f64,
    /// The comparison.
    #[serde(flatten)]
    pub compared: Compared,
}

/// Fig. 3: YCSB, skewed and uniform, with 50 % and 10 % scans.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure3 {
    /// The benchmark and its size.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// A summary: one row for each part and design.
    pub rows: Vec<Row>,
    /// The parts.
    pub parts: Vec<Figure3Part>,
}

/// A summary of one design under one workload; figures are medians over the rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The part of the figure.
    pub part: String,
    /// The design.
    pub design: Design,
    /// Transactions per second.
    pub txn_per_s: f64,
    /// The least and the greatest throughput of the rounds.
    pub spread: String,
    /// Ratio of MorphoSys's throughput to this design's.
    pub morphosys_ratio: f64,
    /// Share (0..1) of the transactions that were executed by two-phase commit.
    pub two_phase: f64,
    /// Share (0..1) of the transactions for which the design was changed first.
    pub design_changed: f64,
    /// Number of partitions at the end.
    pub partitions: f64,
    /// Number of copies of a row at the end.
    pub copies: f64,
    /// CPU time of the busiest site, as a share of what it may use.
    pub busiest: f64,
}

impl Row {
    fn of(part: String, of: &OfDesign) -> Self {
        let median = |value: fn(&Outcome) -> f64| Figure::of(of.loads.iter().map(value)).median;
        let round = |value: f64| (value * 1e3).round() / 1e3;
        Self {
            part,
            design: of.design,
            txn_per_s: of.throughput_s.median.round(),
            spread: format!("{:.0} to {:.0}", of.throughput_s.min, of.throughput_s.max),
            morphosys_ratio: round(of.morphosys_ratio.median),
            two_phase: round(median(|one| one.two_phase)),
            design_changed: round(median(|one| one.design_changed)),
            partitions: median(|one| one.partitions as f64),
            copies: round(median(|one| one.copies)),
            busiest: round(median(|one| one.site_shares.iter().copied().fold(0.0, f64::max))),
        }
    }
}

/// Runs a benchmark on all designs, in turns, and compares them. Calls `see` after each load.
///
/// # Errors
/// Fails if a store refuses an operation.
pub(super) fn compare(
    benchmark: Benchmark,
    size: &Size,
    see: &mut dyn FnMut(Design, &Outcome),
) -> Result<Compared> {
    let mut loads: BTreeMap<Design, Vec<Outcome>> = BTreeMap::new();
    for round in 0..size.rounds.max(1) {
        let mut designs = size.designs.clone();
        if round % 2 == 1 {
            designs.reverse();
        }
        for design in designs {
            let outcome = scene::run(design, &size.scene(benchmark, round))?;
            see(design, &outcome);
            loads.entry(design).or_default().push(outcome);
        }
    }
    Ok(compared(loads))
}

fn compared(loads: BTreeMap<Design, Vec<Outcome>>) -> Compared {
    let rate =
        |loads: &[Outcome]| -> Vec<f64> { loads.iter().map(|one| one.throughput_s).collect() };
    let own = loads.get(&Design::Morphosys).map(|loads| rate(loads)).unwrap_or_default();
    let contradictions = loads.values().flatten().map(|one| one.contradictions.len()).sum();
    let ratios = |others: &[f64]| -> Vec<f64> {
        own.iter().zip(others).map(|(own, other)| own / other.max(f64::MIN_POSITIVE)).collect()
    };
    let others = loads.iter().filter(|(design, _)| **design != Design::Morphosys);
    let best = others.map(|(_, loads)| rate(loads)).max_by(|one, other| {
        Figure::of(one.clone()).median.total_cmp(&Figure::of(other.clone()).median)
    });
    let of_best = best.map_or_else(|| vec![1.0], |best| ratios(&best));
    let is_distinct =
        of_best.iter().all(|ratio| *ratio > 1.0) || of_best.iter().all(|ratio| *ratio < 1.0);
    let mut designs: Vec<OfDesign> = loads
        .into_iter()
        .map(|(design, loads)| {
            let rates = rate(&loads);
            let ratio = ratios(&rates);
            let ratio = if ratio.is_empty() { vec![1.0] } else { ratio };
            let throughput_s = Figure::of(rates);
            OfDesign { design, throughput_s, morphosys_ratio: Figure::of(ratio), loads }
        })
        .collect();
    designs.sort_by(|one, other| other.throughput_s.median.total_cmp(&one.throughput_s.median));
    Compared { designs, of_best_other: Figure::of(of_best), is_distinct, contradictions }
}

/// Measures Fig. 3. Calls `see` after each load with its part.
///
/// # Errors
/// Fails if a store refuses an operation.
pub fn figure3(size: &Size, mut see: impl FnMut(char, Design, &Outcome)) -> Result<Figure3> {
    let mut parts = Vec::new();
    let mixes = [('a', 0.5, EXPONENT), ('b', 0.1, EXPONENT), ('c', 0.5, 0.0), ('d', 0.1, 0.0)];
    for (part, scans, exponent) in mixes {
        let users = size.users;
        let parameters = ycsb::Parameters { users, rows: 1, partners: 2, scans, exponent };
        let see = &mut |design, outcome: &Outcome| see(part, design, outcome);
        let compared = compare(Benchmark::Ycsb(parameters), size, see)?;
        parts.push(Figure3Part { part, scans, exponent, compared });
    }
    let rows = parts
        .iter()
        .flat_map(|one| one.compared.designs.iter().map(|of| Row::of(one.part.to_string(), of)))
        .collect();
    Ok(Figure3 { header: Header::of("morphosys-fig3", size.clone()), rows, parts })
}
