//! The figures of the evaluation: loads on all designs in turns, and their comparison.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use imago_load::store::transactions::Benchmark;
use imago_workload::procedures::{Kind, smallbank, tpcc, twitter, ycsb};

use super::designs::Design;
use super::drawing;
use super::report::{Compared, Designs, OfDesign, OpenLoop, Part, Row, Size};
use super::scene::{self, Outcome, Scene};
use crate::Header;
use crate::error::{Error, Result};
use crate::statistics::Figure;

/// Exponent of Zipf's law of the skewed workloads.
pub(super) const EXPONENT: f64 = 0.99;

impl Size {
    pub(super) fn scene(&self, benchmark: Benchmark, round: u32) -> Scene {
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
            changes_s_max: self.changes_s_max,
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
    let figure = |ratios: Vec<f64>| (!ratios.is_empty()).then(|| Figure::of(ratios));
    let of_best_other = best.and_then(|best| figure(ratios(&best)));
    let is_distinct = of_best_other.is_some_and(|ratio| ratio.min > 1.0 || ratio.max < 1.0);
    let mut designs: Vec<OfDesign> = loads
        .into_iter()
        .map(|(design, loads)| {
            let rates = rate(&loads);
            let morphosys_ratio = figure(ratios(&rates));
            OfDesign { design, throughput_s: Figure::of(rates), morphosys_ratio, loads }
        })
        .collect();
    designs.sort_by(|one, other| other.throughput_s.median.total_cmp(&one.throughput_s.median));
    Compared { designs, of_best_other, is_distinct, contradictions }
}

/// A figure of the paper that compares designs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// Fig. 3: YCSB, skewed and uniform, with 50 % and 10 % scans.
    Ycsb,
    /// Fig. 5: TPC-C, its New-Orders by the share of transactions that access two warehouses, and SmallBank.
    TpcC,
    /// Fig. 6: Twitter.
    Twitter,
}

/// A part of a figure that is to be measured.
struct Wanted {
    part: &'static str,
    workload: String,
    benchmark: Benchmark,
    /// True if latencies are measured in an open loop.
    has_latencies: bool,
}

impl Of {
    fn name(self) -> &'static str {
        match self {
            Self::Ycsb => "morphosys-fig3",
            Self::TpcC => "morphosys-fig5",
            Self::Twitter => "morphosys-fig6",
        }
    }

    fn parts(self, size: &Size) -> Vec<Wanted> {
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        match self {
            Self::Ycsb => {
                let mixes =
                    [("a", 0.5, EXPONENT), ("b", 0.1, EXPONENT), ("c", 0.5, 0.0), ("d", 0.1, 0.0)];
                let wanted = |(part, scans, exponent): (&'static str, f64, f64)| {
                    let users = size.users;
                    let parameters =
                        ycsb::Parameters { users, rows: 1, partners: 2, scans, exponent };
                    let skew = if exponent > 0.0 { "skewed" } else { "uniform" };
                    let workload = format!("YCSB, {} scans, {skew}", percent(scans));
                    let benchmark = Benchmark::Ycsb(parameters);
                    Wanted { part, workload, benchmark, has_latencies: false }
                };
                mixes.map(wanted).into()
            }
            Self::TpcC => {
                let Size { warehouses, items, customers, .. } = *size;
                let tpcc = |part, cross_warehouse: Option<f64>, has_latencies| {
                    let mix = tpcc::Mix::Three;
                    let parameters =
                        tpcc::Parameters { warehouses, items, customers, mix, cross_warehouse };
                    let crossing = match cross_warehouse {
                        None => "the specification's share of".to_owned(),
                        Some(share) => percent(share),
                    };
                    let workload = format!("TPC-C, {crossing} cross-warehouse transactions");
                    let benchmark = Benchmark::TpcC(parameters);
                    Wanted { part, workload, benchmark, has_latencies }
                };
                let smallbank = smallbank::Parameters { customers: size.accounts / 2 };
                vec![
                    tpcc("abc", None, true),
                    tpcc("d0", Some(0.0), true),
                    tpcc("d33", Some(0.33), true),
                    Wanted {
                        part: "e",
                        workload: "SmallBank".to_owned(),
                        benchmark: Benchmark::SmallBank(smallbank),
                        has_latencies: false,
                    },
                ]
            }
            Self::Twitter => {
                let users = size.users / 5;
                let parameters = twitter::Parameters { users, ..twitter::Parameters::default() };
                vec![Wanted {
                    part: "ab",
                    workload: "Twitter".to_owned(),
                    benchmark: Benchmark::Twitter(parameters),
                    has_latencies: true,
                }]
            }
        }
    }
}

/// Measures a figure, and draws it into `folder` if that is given. Calls `see` after each load with its part.
///
/// # Errors
/// Fails if the figure has no part of a given name, or if a store refuses an operation.
pub fn figure(
    of: Of,
    size: &Size,
    folder: Option<&Path>,
    mut see: impl FnMut(&str, Design, &Outcome),
) -> Result<Designs> {
    let known: Vec<&str> = of.parts(size).iter().map(|wanted| wanted.part).collect();
    if let Some(unknown) = size.parts.iter().find(|part| !known.contains(&part.as_str())) {
        let (name, known) = (of.name(), known.join(", "));
        return Err(Error::Size(format!("{name} has no part {unknown}: its parts are {known}")));
    }
    let (mut parts, mut open) = (Vec::new(), Vec::new());
    let is_wanted = |wanted: &Wanted| {
        size.parts.is_empty() || size.parts.iter().any(|part| part == wanted.part)
    };
    for wanted in of.parts(size).into_iter().filter(is_wanted) {
        let Wanted { part, workload, benchmark, has_latencies } = wanted;
        let see = &mut |design, outcome: &Outcome| see(part, design, outcome);
        let compared = compare(benchmark, size, see)?;
        if has_latencies {
            open.extend(latencies(part, benchmark, size, &compared, see)?);
        }
        parts.push(Part { part: part.to_owned(), workload, compared });
    }
    let rows = parts
        .iter()
        .flat_map(|one| one.compared.designs.iter().map(|of| Row::of(one.part.clone(), of)))
        .collect();
    let pictures = drawing::draw(of.name(), &parts, &open, folder)?;
    Ok(Designs { header: Header::of(of.name(), size.clone()), rows, open, parts, pictures })
}

/// Measures the latencies of all designs in turns, at half the throughput of the slowest.
fn latencies(
    part: &str,
    benchmark: Benchmark,
    size: &Size,
    compared: &Compared,
    see: &mut dyn FnMut(Design, &Outcome),
) -> Result<Vec<OpenLoop>> {
    let rates = compared.designs.iter().map(|of| of.throughput_s.median);
    let rate_s = (rates.fold(f64::INFINITY, f64::min) / 2.0).max(1.0);
    let mut loads: BTreeMap<(Design, Kind), Vec<(f64, f64)>> = BTreeMap::new();
    for round in 0..size.rounds.max(1) {
        let mut designs = size.designs.clone();
        if round % 2 == 1 {
            designs.reverse();
        }
        for design in designs {
            let scene = Scene { rate_s: Some(rate_s), ..size.scene(benchmark, round) };
            let outcome = scene::run(design, &scene)?;
            see(design, &outcome);
            for (kind, of) in outcome.kinds {
                let (p50, p99) = (of.latency.p50_us as f64, of.latency.p99_us as f64);
                loads.entry((design, kind)).or_default().push((p50, p99));
            }
        }
    }
    let row = |((design, kind), of): ((Design, Kind), Vec<(f64, f64)>)| {
        let p50 = Figure::of(of.iter().map(|(p50, _)| *p50));
        let p99 = Figure::of(of.iter().map(|(_, p99)| *p99));
        let p99_spread = format!("{:.0} to {:.0}", p99.min, p99.max);
        let (p50_us, p99_us, part) = (p50.median, p99.median, part.to_owned());
        OpenLoop { part, design, rate_s, kind, p50_us, p99_us, p99_spread }
    };
    Ok(loads.into_iter().map(row).collect())
}
