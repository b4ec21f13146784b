//! Figs. 3 and 5 to 9 of SOPHIA (§6) in form, replayed: a portal's days by how often they turn, clusters of more nodes,
//! more and fewer replicas, more data, and noise in what is predicted.
//!
//! A replay needs three things: what clients ask for, what each configuration serves of it, and what a change takes. The
//! first is drawn ([`days`], [`super::traces`]). The other two are a [`Basis`]: measured on nodes here, or printed in the
//! paper, never mixed. How many nodes restart at once is computed from ranges ([`ranges`]), not from the paper's formula.
//!
//! Invariants:
//! - In no interval does any way serve more than the theoretical best.
//! - Over everything that is lived through, nothing that pays for its changes serves more than the oracle.

pub mod days;
mod drawing;
pub mod noise;
pub mod queue;
pub mod ranges;
pub mod volume;
pub mod ways;

use std::path::{Path, PathBuf};

use imago_plan::tune::planner::Weight;
use imago_plan::tune::roll::{CostClass, Costs, Rule};
use imago_plan::tune::throughput::{Measured, Throughputs};
use imago_tune::basis::{self, Way, same_way};
use imago_tune::measurements::{CASSANDRA, Measurements, Sample};
use serde::Serialize;

use super::COSTS;
use crate::Header;
use crate::error::Result;

/// What the paper prints of two configurations (§3): one that merges by size serves 44 % more writes than one that merges
/// by levels, which serves 90 % more reads. Only ratios are printed; that both serve as much of what suits them less is
/// taken for granted.
const PUBLISHED: &str = "configuration,operations_s,reads,updates
size-tiered,1440,0,100
size-tiered,1000,100,0
leveled,1000,0,100
leveled,1900,100,0
";
/// What a change takes by the paper: two nodes dip 70 s apart, and what was lost is regained 190 s after the start (Fig.
/// 2), for which a node that catches up has to serve 0.86 of its own; 60 to 70 % of a restart is catching up (§4.5).
pub(super) const PUBLISHED_COSTS: Costs = Costs {
    nodes: 4,
    at_once: 2,
    restart_s: 70.0,
    catch_up: 0.65,
    catch_up_capacity: 0.86,
    ..COSTS
};

/// What the paper prints, as measurements.
pub(super) fn published() -> Measurements {
    Measurements::read("", PUBLISHED.as_bytes()).expect("they are in this file")
}

/// Size of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Days of the portal, two thirds of which are learned from.
    pub days: u32,
    /// The last of the days that are learned from, by which the forecast is chosen.
    pub choosing_days: u32,
    /// Jobs of the batch queue.
    pub jobs: u32,
    /// Draws of the noise; its figures are medians.
    pub draws: u32,
    /// The seed of all that is drawn.
    pub seed: u64,
}

/// The figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// What is decided by.
    pub bases: Vec<BasisRow>,
    /// Fig. 3: days of the portal, by their kind.
    pub scenarios: Vec<days::Row>,
    /// How many nodes may be away together, by a cluster's ranges (§4.5).
    pub ranges: Vec<ranges::Row>,
    /// Fig. 5: more and fewer jobs at a time.
    pub concurrent: Vec<queue::JobsRow>,
    /// Fig. 6: clusters of more and more nodes.
    pub scale: Vec<queue::ScaleRow>,
    /// Fig. 7: replicas, and how many of them have to answer.
    pub replicas: Vec<queue::ReplicasRow>,
    /// Fig. 8: more data, by what was measured of each volume here.
    pub volumes: Vec<volume::Row>,
    /// Longer and shorter restarts.
    pub restarts: Vec<queue::RestartRow>,
    /// Fig. 9: noise in what is predicted.
    pub noise: Vec<noise::Row>,
    /// The files that were drawn.
    pub pictures: Vec<PathBuf>,
}

/// What is decided by: what configurations serve, and what a change takes.
pub(crate) struct Basis {
    pub(crate) name: &'static str,
    pub(crate) measurements: Measurements,
    pub(crate) costs: Costs,
}

/// The same, as it is told.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BasisRow {
    /// Its name in other tables.
    pub basis: &'static str,
    /// The configurations, the default one first.
    pub configurations: Vec<String>,
    /// What the default one serves of writes and of reads, as a ratio to the best of the others.
    pub writes: f64,
    /// See [`Self::writes`].
    pub reads: f64,
    /// T_r, in seconds.
    pub restart_s: f64,
    /// The share of it in which a node catches up.
    pub catch_up: f64,
}

impl Basis {
    /// Measurements of nodes here, or of one's own; and what is published.
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

    /// Every configuration can be changed to every other one by a restart.
    pub(crate) fn ways(&self) -> Vec<Vec<Way>> {
        same_way(self.measurements.names.len(), CostClass::Restart)
    }

    /// What a planner decides by. It begins with the default configuration.
    pub(crate) fn deciding<'b>(
        &'b self,
        interval_s: u64,
        ways: &'b [Vec<Way>],
    ) -> basis::Basis<'b> {
        basis::Basis {
            measurements: &self.measurements,
            interval_s,
            season_s: basis::DAY_S,
            current: 0,
            costs: self.costs,
            ways,
            rule: Rule::Phases,
            gain_min: 0.0,
            forecast: None,
            look_ahead: None,
            changes_max: None,
            weight: Weight::Capacity,
        }
    }
}

/// The last round alone, in which a database is warmer than in those before; none without rounds.
fn last_round(all: &Measurements) -> Option<Measurements> {
    let last = all.samples.iter().filter_map(|one| one.round).max()?;
    let samples: Vec<Sample> =
        all.samples.iter().copied().filter(|one| one.round == Some(last)).collect();
    let measured: Vec<Measured> = samples.iter().map(|one| one.measured).collect();
    let throughputs = Throughputs::new(all.names.len(), &measured).ok()?;
    Some(Measurements { names: all.names.clone(), throughputs, samples, records: all.records })
}

/// Computes all figures, and draws them into a folder.
///
/// # Errors
/// A figure could not be drawn or written.
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

    /// Two configurations of which each serves clearly more of one kind, with short restarts.
    pub(crate) fn telling() -> Basis {
        let costs = Costs { restart_s: 8.0, ..PUBLISHED_COSTS };
        Basis { costs, ..Basis::all(None).pop().unwrap() }
    }

    #[test]
    fn a_change_by_what_is_published_pays_190_s_after_its_start() {
        // Fig. 2: two nodes, 40,000 operations a second before and 50,000 behind.
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
