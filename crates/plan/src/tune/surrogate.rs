//! What a configuration that was never measured would serve of a mix: f_ops of Eq. 3 (SOPHIA, §4.3), learned from
//! measurements of others.
//!
//! A random forest and two Gaussian processes (Rasmussen and Williams, *Gaussian Processes for Machine Learning*, 2006)
//! learn the logarithm of the throughput by the settings and the mix: one process whose functions are quadratic, one
//! whose functions are merely smooth. Which of them is to be believed is told by leaving out one mix, or one
//! configuration, and predicting it from the others.
//!
//! No error is measured on anything that was learned from: also the choice among the three is made anew, without what is
//! left out, before that is predicted (nested cross-validation). Replicates of one configuration and mix are one cell,
//! and are left out together.

mod model;

use super::space::{Axis, Point};
use super::workload::Mix;
use model::Model;

/// Mixes, or configurations, are left out in so many parts at most.
const FOLDS: usize = 10;
/// The same where the choice is made, within what was not left out.
const INNER_FOLDS: usize = 5;
/// Mixes that are needed to tell one of them from the others.
const MIXES_MIN: usize = 3;
/// Configurations that are needed likewise.
const CONFIGURATIONS_MIN: usize = 4;

/// The mean of the measurements of one configuration and mix.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The configuration, by number.
    pub configuration: usize,
    /// Its settings.
    pub point: Point,
    /// The mix, by number.
    pub mix_number: usize,
    /// The mix.
    pub mix: Mix,
    /// Operations a second; more than zero.
    pub rate_s: f64,
}

/// A way to learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A Gaussian process over quadratic functions: a response surface.
    Quadratic,
    /// A Gaussian process over smooth functions.
    Smooth,
    /// A random forest.
    Forest,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Quadratic, Self::Smooth, Self::Forest];

    /// Its name, as it is told.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Quadratic => "Gaussian process, quadratic",
            Self::Smooth => "Gaussian process, smooth",
            Self::Forest => "random forest",
        }
    }
}

/// How far predictions of what was left out were off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeldOut {
    /// The mean of the differences without their signs, as a share of what was measured.
    pub mean: f64,
    /// The root of the mean square of the logarithms of predicted over measured.
    pub root_mean_square: f64,
    /// Cells that were predicted.
    pub cells: usize,
}

impl HeldOut {
    /// Of pairs of what was predicted and what was measured; none if there are none.
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

/// What is known of one way to learn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The way.
    pub kind: Kind,
    /// Its error at mixes that it had not seen; none with fewer than three mixes.
    pub mixes: Option<HeldOut>,
    /// Its error at configurations that it had not seen.
    pub configurations: Option<HeldOut>,
}

/// How far the surrogate is to be believed.
#[derive(Clone, Debug, PartialEq)]
pub struct Validation {
    /// Each way to learn.
    pub candidates: Vec<Candidate>,
    /// The way with the least error.
    pub chosen: Kind,
    /// The error at mixes that neither the learning nor the choice had seen; none with fewer than three mixes.
    pub mixes: Option<HeldOut>,
    /// The error at configurations that neither had seen.
    pub configurations: HeldOut,
    /// What the error at configurations would be if each were taken to serve the mean of the others.
    pub without_settings: HeldOut,
}

/// Too little was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found} configurations are too few to predict one of them from the others: \
     {CONFIGURATIONS_MIN} at least are needed"
)]
pub struct TooFew {
    /// Configurations.
    pub found: usize,
}

/// A surrogate: see the module's documentation.
#[derive(Debug)]
pub struct Surrogate {
    axes: Vec<Axis>,
    model: Model,
}

/// By what cells are left out together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Mix,
    Configuration,
}

impl By {
    fn of(self, cell: &Cell) -> usize {
        match self {
            Self::Mix => cell.mix_number,
            Self::Configuration => cell.configuration,
        }
    }

    /// The cells in parts, each of which is left out once: those that were left in, and those that were not.
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
    /// Learns from cells; a forest draws by the seed.
    ///
    /// # Panics
    /// If there is no cell, or a cell has served nothing.
    #[must_use]
    pub fn fit(kind: Kind, axes: &[Axis], cells: &[Cell], seed: u64) -> Self {
        let all: Vec<&Cell> = cells.iter().collect();
        Self { axes: axes.to_vec(), model: Model::fit(kind, axes, &all, seed) }
    }

    /// Operations a second that a configuration would serve of a mix.
    #[must_use]
    pub fn rate_s(&self, point: &[f64], mix: Mix) -> f64 {
        self.model.log_rate(&self.axes, point, mix).exp()
    }
}

/// Tells how far a surrogate of these cells is to be believed, and which way to learn is the best.
///
/// # Errors
/// Too little was measured.
///
/// # Panics
/// If a cell has served nothing.
pub fn validate(axes: &[Axis], cells: &[Cell], seed: u64) -> Result<Validation, TooFew> {
    let mut configurations: Vec<usize> = cells.iter().map(|cell| cell.configuration).collect();
    configurations.sort_unstable();
    configurations.dedup();
    if configurations.len() < CONFIGURATIONS_MIN {
        return Err(TooFew { found: configurations.len() });
    }
    let candidates = candidates(axes, cells, FOLDS, seed);
    let nested = |by: By| {
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
        mixes: nested(By::Mix),
        configurations: told(By::Configuration),
        without_settings: HeldOut::of(&by_means(cells)).expect("several configurations"),
    })
}

/// The errors of each way to learn.
fn candidates(axes: &[Axis], cells: &[Cell], folds: usize, seed: u64) -> Vec<Candidate> {
    let all: Vec<&Cell> = cells.iter().collect();
    let of = |kind: Kind| {
        // What does not depend on single cells is learned once.
        let whole = Model::fit(kind, axes, &all, seed);
        let error = |by: By| {
            let mut pairs = Vec::new();
            for (left_in, left_out) in by.folds(cells, folds) {
                let model = whole.again(axes, &left_in, seed);
                let said = |cell: &Cell| model.log_rate(axes, &cell.point, cell.mix).exp();
                pairs.extend(left_out.into_iter().map(|cell| (said(cell), cell.rate_s)));
            }
            HeldOut::of(&pairs)
        };
        Candidate { kind, mixes: error(By::Mix), configurations: error(By::Configuration) }
    };
    Kind::ALL.into_iter().map(of).collect()
}

/// The way with the least error, at mixes and at configurations together.
fn best(candidates: &[Candidate]) -> Kind {
    let error = |of: &Candidate| {
        of.mixes.map_or(0.0, |error| error.mean) + of.configurations.map_or(0.0, |error| error.mean)
    };
    let best = candidates.iter().min_by(|one, two| error(one).total_cmp(&error(two)));
    best.expect("three candidates").kind
}

/// What each configuration serves of a mix, told by the mean of the others.
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
