//! The benchmark `sophia-scenarios`: Figs. 3 and 5 to 9 of SOPHIA (§6) in form, by replay. The figures vary how often
//! a portal's workload shifts, the number of nodes, replicas and rows, and the noise of the predictions.
//!
//! A replay needs three inputs: the workload of the clients, the throughput of each configuration with it, and the
//! costs of a change. The workload is drawn at random ([`days`], [`super::traces`]). The other two are a [`Basis`]:
//! measured on real nodes, or printed in the paper, never mixed. The number of nodes that restart together is
//! computed from token ranges ([`ranges`]), not by the paper's formula.
//!
//! Invariants:
//! - In no interval does any method serve more than the theoretical best.
//! - Over a whole replay, no method whose changes are the same rolls as the oracle's serves more than the oracle.

pub mod days;
mod drawing;
pub mod methods;
pub mod noise;
pub mod queue;
pub mod ranges;
pub mod volume;

use std::path::{Path, PathBuf};

use imago_plan::tune::roll::{CostClass, Costs};
use imago_plan::tune::throughput::{Measured, Throughputs};
use imago_tune::decision_inputs::{DecisionInputs, Planning, uniform_transitions};
use imago_tune::measurements::{CASSANDRA, Measurements, Sample};
use serde::Serialize;

use super::COSTS;
use crate::Header;
use crate::error::Result;

/// Throughputs of two configurations, as the paper prints them (§3): size-tiered compaction serves 44 % more writes
/// than leveled compaction, which serves 90 % more reads. The paper prints ratios only; equal throughputs of the
/// operations that suit each of them less are an assumption.
const PUBLISHED: &str = "configuration,operations_s,reads,updates
size-tiered,1440,0,100
size-tiered,1000,100,0
leveled,1000,0,100
leveled,1900,100,0
";
/// Costs of a change in the paper: the throughput dips twice, 70 s apart, and the loss is regained 190 s after the
/// start (Fig. 2). This requires that a node that catches up serves 0.86 of its capacity. Catching up takes 60 to
/// 70 % of a restart (§4.5).
pub(super) const PUBLISHED_COSTS: Costs = Costs {
    nodes: 4,
    at_once: 2,
    restart_s: 70.0,
    catch_up: 0.65,
    catch_up_capacity: 0.86,
    ..COSTS
};

/// Returns the throughputs that the paper prints.
pub(super) fn published() -> Measurements {
    Measurements::read("", PUBLISHED.as_bytes()).expect("they are in this file")
}

/// Size of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Number of days of the portal's trace; the first two thirds are training data. Fig. 8 has the same number of
    /// days, but at most 20.
    pub days: u32,
    /// Number of days at the end of the training data by which the forecast is selected.
    pub choosing_days: u32,
    /// Number of jobs in the batch queue.
    pub jobs: u32,
    /// Number of random draws for each level of noise.
    pub draws: u32,
    /// Seed of all random draws.
    pub seed: u64,
}

/// Result of the benchmark.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// The bases of the decisions.
    pub bases: Vec<BasisRow>,
    /// Fig. 3: days of the portal, by kind.
    pub scenarios: Vec<days::Row>,
    /// Number of nodes that may restart together, by the token ranges of a cluster (§4.5).
    pub ranges: Vec<ranges::Row>,
    /// Fig. 5: the number of concurrent jobs.
    pub concurrent: Vec<queue::JobsRow>,
    /// Fig. 6: the number of nodes.
    pub scale: Vec<queue::ScaleRow>,
    /// Fig. 7: the number of replicas, and of those that must reply.
    pub replicas: Vec<queue::ReplicasRow>,
    /// Fig. 8: the volume of data, with throughputs that were measured for each volume.
    pub volumes: Vec<volume::Row>,
    /// The duration of a restart.
    pub restarts: Vec<queue::RestartRow>,
    /// Fig. 9: the noise of the predictions.
    pub noise: Vec<noise::Row>,
    /// Files of the pictures.
    pub pictures: Vec<PathBuf>,
}

/// Inputs of decisions from one source: the throughputs of the configurations, and the costs of a change.
pub(crate) struct Basis {
    pub(crate) name: &'static str,
    pub(crate) measurements: Measurements,
    pub(crate) costs: Costs,
}

/// A basis, for the report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BasisRow {
    /// Name of the basis in other tables.
    pub basis: &'static str,
    /// Names of the configurations, the default first.
    pub configurations: Vec<String>,
    /// Throughput of writes with the default configuration, divided by the best one of the other configurations.
    pub writes: f64,
    /// Throughput of reads with the default configuration, divided by the best one of the other configurations.
    pub reads: f64,
    /// T_r: time of a node's restart until it has the writes that it missed, in seconds.
    pub restart_s: f64,
    /// Share of T_r in which the node catches up, from 0 to 1.
    pub catch_up: f64,
}

impl Basis {
    /// Returns all bases: the caller's measurements if there are any, otherwise the shipped ones; and the published
    /// one.
    fn all(own: Option<&Measurements>) -> Vec<Self> {
        let measurements = published();
        let published = Self { name: "published", measurements, costs: PUBLISHED_COSTS };
        let costs = Costs { nodes: 4, at_once: 2, ..COSTS };
        if let Some(own) = own {
            return vec![Self { name: "yours", measurements: own.clone(), costs }, published];
        }
        let both = Measurements::shipped(CASSANDRA);
        let warm = last_round(&both);
        let measured = [("both rounds", Some(both)), ("second round", warm)];
        let measured = measured.into_iter().filter_map(|(name, measurements)| {
            Some(Self { name, measurements: measurements?, costs })
        });
        measured.chain([published]).collect()
    }

    fn row(&self) -> BasisRow {
        let ratio = |reads: f64| {
            let rates =
                self.measurements.throughputs.of(imago_plan::tune::workload::Mix::of_reads(reads));
            rates[0] / rates[1..].iter().copied().fold(0.0, f64::max)
        };
        BasisRow {
            basis: self.name,
            configurations: self.measurements.names.clone(),
            writes: ratio(0.0),
            reads: ratio(1.0),
            restart_s: self.costs.restart_s,
            catch_up: self.costs.catch_up,
        }
    }

    /// Returns how changes are planned: from every configuration to every other one by a restart.
    pub(crate) fn planning(&self, interval_s: u64) -> Planning {
        let transitions = uniform_transitions(self.measurements.names.len(), CostClass::Restart);
        Planning::daily(interval_s, self.costs, transitions)
    }

    /// Returns the inputs of the planner, which starts with the default configuration.
    pub(crate) fn planner_inputs<'b>(&'b self, planning: &'b Planning) -> DecisionInputs<'b> {
        DecisionInputs { measurements: &self.measurements, planning, current: 0 }
    }
}

/// Returns the measurements of the last round, in which the database is warmer than in earlier ones; None if the
/// measurements have no rounds.
fn last_round(all: &Measurements) -> Option<Measurements> {
    let last = all.samples.iter().filter_map(|one| one.round).max()?;
    let samples: Vec<Sample> =
        all.samples.iter().copied().filter(|one| one.round == Some(last)).collect();
    let measured: Vec<Measured> = samples.iter().map(|one| one.measured).collect();
    let throughputs = Throughputs::new(all.names.len(), &measured).ok()?;
    let (names, records) = (all.names.clone(), all.records);
    Some(Measurements { names, throughputs, samples, records, latencies: None })
}

/// Computes all figures, and draws them into `folder`.
///
/// # Errors
/// Fails if a figure cannot be drawn or written.
pub fn run(size: Size, own: Option<&Measurements>, folder: Option<&Path>) -> Result<Report> {
    let bases = Basis::all(own);
    let mut report = Report {
        header: Header::of("sophia-scenarios", size),
        bases: bases.iter().map(Basis::row).collect(),
        scenarios: days::rows(&bases, size),
        ranges: ranges::rows(size.seed),
        concurrent: queue::concurrent(&bases, size),
        scale: queue::scale(&bases, size),
        replicas: queue::replicas(&bases, size),
        volumes: volume::rows(size),
        restarts: queue::restarts(&bases, size),
        noise: noise::rows(&bases, size),
        pictures: Vec::new(),
    };
    report.pictures = drawing::draw(&report, folder)?;
    Ok(report)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a basis with short restarts, in which each of two configurations serves clearly more operations of one
    /// kind.
    pub(crate) fn telling() -> Basis {
        let costs = Costs { restart_s: 8.0, ..PUBLISHED_COSTS };
        Basis { costs, ..Basis::all(None).pop().unwrap() }
    }

    #[test]
    fn a_change_by_what_is_published_pays_190_s_after_its_start() {
        // Fig. 2: two nodes, 40,000 operations per second before the change and 50,000 after it.
        let lost = |phase: &imago_plan::tune::roll::Phase| {
            phase.seconds * (40_000.0 - 40_000.0 * phase.old - 50_000.0 * phase.new)
        };
        let phases = PUBLISHED_COSTS.restarts_in(&[1, 1]);
        let ends_s: f64 = phases.iter().map(|phase| phase.seconds).sum();
        let crossing_s = ends_s + phases.iter().map(lost).sum::<f64>() / 10_000.0;
        assert!((crossing_s - 190.0).abs() < 2.0, "{crossing_s}");
    }

    #[test]
    fn bases_are_of_one_source_each() {
        let bases = Basis::all(None);
        assert_eq!(
            bases.iter().map(|one| one.name).collect::<Vec<_>>(),
            ["both rounds", "second round", "published"]
        );
        let [both, warm, published] = [0, 1, 2].map(|at: usize| bases[at].row());
        assert!(both.writes > 1.0 && both.reads > 1.0, "nothing to gain: {both:?}");
        assert!(warm.writes > 1.0 && warm.reads < 1.0, "something to gain: {warm:?}");
        assert!(
            (published.writes - 1.44).abs() < 1e-9 && (1.0 / published.reads - 1.9).abs() < 1e-9
        );
        assert_eq!(bases[1].measurements.samples.len() * 2, bases[0].measurements.samples.len());
        let own = telling().measurements;
        assert_eq!(last_round(&own), None, "these have no rounds");
        assert_eq!(Basis::all(Some(&own)).len(), 2);
    }
}
