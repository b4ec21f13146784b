//! The reports of the figures that compare designs.

use std::path::PathBuf;

use imago_workload::procedures::Kind;
use serde::Serialize;

use super::designs::Design;
use super::scene::Outcome;
use crate::Header;
use crate::statistics::Figure;

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
    /// Number of users of YCSB, each with one row; a fifth of it for Twitter.
    pub users: u32,
    /// Number of warehouses of TPC-C.
    pub warehouses: u16,
    /// Number of items of TPC-C.
    pub items: u32,
    /// Number of customers of a district of TPC-C.
    pub customers: u32,
    /// Number of accounts of SmallBank.
    pub accounts: u32,
    /// Time of each load before it is measured, in seconds.
    pub warm_s: u64,
    /// Time for which each load is measured, in seconds.
    pub lasts_s: u64,
    /// Number of rounds; each measures all designs, in the opposite order of the round before.
    pub rounds: u32,
    /// The designs.
    pub designs: Vec<Design>,
    /// The parts of a figure that are measured; empty for all.
    pub parts: Vec<String>,
    /// Limit on the changes of the design a second that MorphoSys makes.
    pub changes_s_max: f64,
}

/// The result of one design under one workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OfDesign {
    /// The design.
    pub design: Design,
    /// Transactions per second over the rounds.
    pub throughput_s: Figure,
    /// Ratio of MorphoSys's throughput to this design's, of the same round each; `None` if MorphoSys was not measured.
    pub morphosys_ratio: Option<Figure>,
    /// The loads of the rounds.
    pub loads: Vec<Outcome>,
}

/// The designs under one workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Each design's result, the one with the greatest throughput first.
    pub designs: Vec<OfDesign>,
    /// Ratio of MorphoSys's throughput to that of the best other design: of the same round each; `None` if MorphoSys or all
    /// others were not measured.
    pub of_best_other: Option<Figure>,
    /// True if the ratios of all rounds are on one side of 1: else no difference beyond the spread was measured.
    pub is_distinct: bool,
    /// Number of contradictions in the rows of all loads.
    pub contradictions: usize,
}

/// The latencies of one design at a rate that all designs can serve.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpenLoop {
    /// The part of the figure.
    pub part: String,
    /// The design.
    pub design: Design,
    /// Transactions per second that were due: half of the throughput of the slowest design.
    pub rate_s: f64,
    /// Type of the transactions.
    pub kind: Kind,
    /// Median latency in µs, of the median round.
    pub p50_us: f64,
    /// 99th percentile of the latency in µs, of the median round.
    pub p99_us: f64,
    /// The least and the greatest 99th percentile of the rounds, in µs.
    pub p99_spread: String,
}

/// One part of a figure: the designs under one workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    /// The part, as the paper has it.
    pub part: String,
    /// The workload, in words.
    pub workload: String,
    /// The comparison in a closed loop.
    #[serde(flatten)]
    pub compared: Compared,
}

/// A figure of the evaluation that compares designs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Designs {
    /// The benchmark and its size.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// A summary: one row for each part and design.
    pub rows: Vec<Row>,
    /// Latencies in an open loop; empty if the figure has none.
    pub open: Vec<OpenLoop>,
    /// The parts.
    pub parts: Vec<Part>,
    /// Files of the pictures; empty if none were drawn.
    pub pictures: Vec<PathBuf>,
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
    /// Ratio of MorphoSys's throughput to this design's; `None` if MorphoSys was not measured.
    pub morphosys_ratio: Option<f64>,
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
    pub(super) fn of(part: String, of: &OfDesign) -> Self {
        let median = |value: fn(&Outcome) -> f64| Figure::of(of.loads.iter().map(value)).median;
        let round = |value: f64| (value * 1e3).round() / 1e3;
        Self {
            part,
            design: of.design,
            txn_per_s: of.throughput_s.median.round(),
            spread: format!("{:.0} to {:.0}", of.throughput_s.min, of.throughput_s.max),
            morphosys_ratio: of.morphosys_ratio.map(|ratio| round(ratio.median)),
            two_phase: round(median(|one| one.two_phase)),
            design_changed: round(median(|one| one.design_changed)),
            partitions: median(|one| one.partitions as f64),
            copies: round(median(|one| one.copies)),
            busiest: round(median(|one| one.site_shares.iter().copied().fold(0.0, f64::max))),
        }
    }
}
