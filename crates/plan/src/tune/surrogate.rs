//! Surrogates: predictions of the throughput of configurations that were never measured, f_ops of Eq. 3 (SOPHIA, §4.3),
//! learned from measurements of other configurations.
//!
//! A random forest and two Gaussian processes (Rasmussen and Williams, *Gaussian Processes for Machine Learning*, 2006)
//! learn the logarithm of the throughput from the settings and the mix: one process over quadratic functions, one over
//! smooth functions. Cross-validation determines which of them is the most accurate: one mix, or one configuration, is
//! left out and predicted from the others.
//!
//! No error is measured on data that was learned from: even the choice among the three is repeated without the left-out
//! part before that is predicted (nested cross-validation). Replicates of one configuration and mix are one cell, and
//! are left out together.

mod model;

use super::space::{Axis, Point};
use super::workload::Mix;
use model::Model;

/// Limit on the number of folds of a cross-validation.
const FOLDS: usize = 10;
/// Limit on the number of folds of the inner cross-validation, which chooses the kind of surrogate.
const INNER_FOLDS: usize = 5;
/// Minimum number of mixes to predict one of them from the others.
const MIXES_MIN: usize = 3;
/// Minimum number of configurations to predict one of them from the others.
const CONFIGURATIONS_MIN: usize = 4;

/// The mean of the measurements of one configuration under one mix of operations.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Index of the measured configuration.
    pub configuration: usize,
    /// Values of the configuration's settings.
    pub point: Point,
    /// Index of the mix.
    pub mix_number: usize,
    /// The mix of operations under which the configuration was measured.
    pub mix: Mix,
    /// Measured throughput, in operations per second; greater than zero.
    pub rate_s: f64,
}

/// The kind of model that a surrogate uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A Gaussian process over quadratic functions of settings and mix: a response surface.
    Quadratic,
    /// A Gaussian process over smooth functions of settings and mix.
    Smooth,
    /// A random forest over settings and mix.
    Forest,
}

impl Kind {
    /// All kinds of surrogates.
    pub const ALL: [Self; 3] = [Self::Quadratic, Self::Smooth, Self::Forest];

    /// Returns the name of the kind for reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Quadratic => "Gaussian process, quadratic",
            Self::Smooth => "Gaussian process, smooth",
            Self::Forest => "random forest",
        }
    }
}

/// The error of a surrogate's predictions of left-out cells (a cell is one configuration under one mix).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeldOut {
    /// Mean absolute difference of predicted and measured throughput, as a share of the measured one.
    pub mean: f64,
    /// Root mean square of the natural logarithm of the predicted over the measured throughput.
    pub root_mean_square: f64,
    /// Number of cells that were predicted.
    pub cells: usize,
}

impl HeldOut {
    /// Computes the error over pairs of predicted and measured throughputs; `None` if there are no pairs.
    fn of(pairs: &[(f64, f64)]) -> Option<Self> {
        let mean = |of: &dyn Fn(f64, f64) -> f64| {
            pairs.iter().map(|(said, real)| of(*said, *real)).sum::<f64>() / pairs.len() as f64
        };
        (!pairs.is_empty()).then(|| Self {
            mean: mean(&|said, real| (said - real).abs() / real),
            root_mean_square: mean(&|said, real| (said / real).ln().powi(2)).sqrt(),
            cells: pairs.len(),
        })
    }
}

/// The cross-validated errors of one kind of surrogate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The kind of surrogate that was validated.
    pub kind: Kind,
    /// Error at left-out mixes of operations; `None` with fewer than three mixes.
    pub mixes: Option<HeldOut>,
    /// Error at left-out configurations; `None` with fewer than two.
    pub configurations: Option<HeldOut>,
}

/// The validation of all kinds of surrogates, and the choice of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Validation {
    /// The cross-validated errors of each kind of surrogate.
    pub candidates: Vec<Candidate>,
    /// The kind with the least cross-validated error.
    pub chosen: Kind,
    /// Error at mixes that neither the learning nor the choice used (nested cross-validation); `None` with fewer than
    /// three mixes.
    pub mixes: Option<HeldOut>,
    /// Error at configurations that neither the learning nor the choice used.
    pub configurations: HeldOut,
    /// Error at configurations of the baseline that predicts the mean of the other configurations.
    pub without_settings: HeldOut,
}

/// The error that there are too few configurations for a validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found} configurations are too few to predict one of them from the others: \
     {CONFIGURATIONS_MIN} at least are needed"
)]
pub struct TooFew {
    /// Number of configurations that were measured.
    pub found: usize,
}

/// A surrogate: a model, learned from measurements, that predicts the throughput of configurations which were not
/// measured.
#[derive(Debug)]
pub struct Surrogate {
    /// Axes of the settings.
    axes: Vec<Axis>,
    /// The learned model of the logarithm of the throughput.
    model: Model,
}

/// The property by which cells are left out together in a cross-validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FoldBy {
    Mix,
    Configuration,
}

impl FoldBy {
    /// Returns the index of a cell's mix or configuration, by which it is grouped.
    fn of(self, cell: &Cell) -> usize {
        match self {
            Self::Mix => cell.mix_number,
            Self::Configuration => cell.configuration,
        }
    }

    /// Divides the cells into at most `most` folds. Returns for each fold the cells that remain, and the cells that are
    /// left out; no folds if there are too few groups.
    fn folds(self, cells: &[Cell], most: usize) -> Vec<(Vec<&Cell>, Vec<&Cell>)> {
        let mut groups: Vec<usize> = cells.iter().map(|cell| self.of(cell)).collect();
        groups.sort_unstable();
        groups.dedup();
        let least = match self {
            Self::Mix => MIXES_MIN,
            Self::Configuration => 2,
        };
        if groups.len() < least {
            return Vec::new();
        }
        let parts = groups.len().min(most);
        let part = |cell: &Cell| groups.binary_search(&self.of(cell)).map_or(0, |n| n % parts);
        (0..parts).map(|out| cells.iter().partition(|cell| part(cell) != out)).collect()
    }
}

impl Surrogate {
    /// Learns a surrogate of this kind from cells; `seed` is the seed of a random forest.
    ///
    /// # Panics
    /// If there is no cell, or a cell has no throughput.
    #[must_use]
    pub fn fit(kind: Kind, axes: &[Axis], cells: &[Cell], seed: u64) -> Self {
        let all: Vec<&Cell> = cells.iter().collect();
        Self { axes: axes.to_vec(), model: Model::fit(kind, axes, &all, seed) }
    }

    /// Predicts the throughput of a configuration, given by its settings, under a mix, in operations per second.
    #[must_use]
    pub fn rate_s(&self, point: &[f64], mix: Mix) -> f64 {
        self.model.log_rate(&self.axes, point, mix).exp()
    }
}

/// Validates all kinds of surrogates on these cells by nested cross-validation, and chooses the best one.
///
/// # Errors
/// Fails if the cells have too few configurations.
///
/// # Panics
/// If a cell has no throughput.
pub fn validate(axes: &[Axis], cells: &[Cell], seed: u64) -> Result<Validation, TooFew> {
    let mut configurations: Vec<usize> = cells.iter().map(|cell| cell.configuration).collect();
    configurations.sort_unstable();
    configurations.dedup();
    if configurations.len() < CONFIGURATIONS_MIN {
        return Err(TooFew { found: configurations.len() });
    }
    let candidates = candidates(axes, cells, FOLDS, seed);
    let nested = |by: FoldBy| {
        let mut pairs = Vec::new();
        for (left_in, left_out) in by.folds(cells, FOLDS) {
            let known: Vec<Cell> = left_in.into_iter().cloned().collect();
            let kind = best(&self::candidates(axes, &known, INNER_FOLDS, seed));
            let surrogate = Surrogate::fit(kind, axes, &known, seed);
            pairs.extend(
                left_out.iter().map(|cell| (surrogate.rate_s(&cell.point, cell.mix), cell.rate_s)),
            );
        }
        HeldOut::of(&pairs)
    };
    let told = |by| nested(by).expect("several configurations");
    Ok(Validation {
        chosen: best(&candidates),
        candidates,
        mixes: nested(FoldBy::Mix),
        configurations: told(FoldBy::Configuration),
        without_settings: HeldOut::of(&by_means(cells)).expect("several configurations"),
    })
}

/// Cross-validates each kind of surrogate on these cells with at most `folds` folds.
fn candidates(axes: &[Axis], cells: &[Cell], folds: usize, seed: u64) -> Vec<Candidate> {
    let all: Vec<&Cell> = cells.iter().collect();
    let of = |kind: Kind| {
        // The scales of a process are learned once, from all cells.
        let whole = Model::fit(kind, axes, &all, seed);
        let error = |by: FoldBy| {
            let mut pairs = Vec::new();
            for (left_in, left_out) in by.folds(cells, folds) {
                let model = whole.again(axes, &left_in, seed);
                let said = |cell: &Cell| model.log_rate(axes, &cell.point, cell.mix).exp();
                pairs.extend(left_out.into_iter().map(|cell| (said(cell), cell.rate_s)));
            }
            HeldOut::of(&pairs)
        };
        Candidate { kind, mixes: error(FoldBy::Mix), configurations: error(FoldBy::Configuration) }
    };
    Kind::ALL.into_iter().map(of).collect()
}

/// Returns the kind with the least sum of the errors at mixes and at configurations.
fn best(candidates: &[Candidate]) -> Kind {
    let error = |of: &Candidate| {
        of.mixes.map_or(0.0, |error| error.mean) + of.configurations.map_or(0.0, |error| error.mean)
    };
    let best = candidates.iter().min_by(|one, two| error(one).total_cmp(&error(two)));
    best.expect("three candidates").kind
}

/// Predicts each cell by the mean of the other configurations with the same mix. Returns pairs of predicted and
/// measured throughput.
fn by_means(cells: &[Cell]) -> Vec<(f64, f64)> {
    let mut pairs = Vec::new();
    for cell in cells {
        let others = cells.iter().filter(|one| {
            one.mix_number == cell.mix_number && one.configuration != cell.configuration
        });
        let rates: Vec<f64> = others.map(|one| one.rate_s.ln()).collect();
        if !rates.is_empty() {
            pairs.push(((rates.iter().sum::<f64>() / rates.len() as f64).exp(), cell.rate_s));
        }
    }
    pairs
}

#[cfg(test)]
mod tests;
