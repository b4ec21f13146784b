//! The learned models of surrogates: a random forest, and Gaussian processes whose scales have the largest marginal
//! likelihood (Rasmussen and Williams, Eq. 2.30) among a fixed set.
//!
//! The amplitude of a process has a closed form, so only the noise and two scales are searched: that of settings and
//! that of mixes. The mean is subtracted before, and added again to predictions.

use smartcore::ensemble::random_forest_regressor::{
    RandomForestRegressor, RandomForestRegressorParameters,
};
use smartcore::linalg::basic::arrays::Array as _;
use smartcore::linalg::basic::matrix::DenseMatrix;
use smartcore::linalg::traits::cholesky::CholeskyDecomposable as _;

use super::{Axis, Cell, Kind, Mix};

/// Number of trees in a random forest.
const TREES: usize = 100;
/// Candidate scales of a Gaussian process, for settings and for mixes each.
const SCALES: [f64; 4] = [0.5, 1.5, 4.0, 12.0];
/// Candidate variances of the noise, as shares of the amplitude.
const NOISES: [f64; 5] = [1e-4, 1e-3, 1e-2, 0.1, 1.0];
/// Limit on the number of cells that a Gaussian process learns from, taken evenly, since its time grows by their cube.
const CELLS_MAX: usize = 240;
/// Limit on the number of cells from which the scales of a Gaussian process are chosen.
const CELLS_FOR_SCALES: usize = 100;

/// The features of a configuration and a mix.
#[derive(Clone, Debug, PartialEq)]
struct Features {
    /// Features of the settings: a number is scaled to -1 to 1; a word has one feature per word, so that any two words
    /// are equally far from each other.
    settings: Vec<f64>,
    /// Shares of the mix's operations, scaled to -1 to 1.
    mix: Vec<f64>,
}

impl Features {
    /// Computes the features of a configuration and a mix.
    fn new(axes: &[Axis], point: &[f64], mix: Mix) -> Self {
        let mut settings = Vec::with_capacity(axes.len());
        for (axis, value) in axes.iter().zip(point) {
            match axis {
                Axis::Number { .. } => settings.push(2.0 * axis.unit(*value) - 1.0),
                Axis::Words(words) => settings.extend(
                    (0..*words)
                        .map(|word| if *value == word as f64 { 2.0_f64.sqrt() } else { 0.0 }),
                ),
            }
        }
        Self { settings, mix: mix.shares().iter().map(|share| 2.0 * share - 1.0).collect() }
    }

    /// Returns the features of settings and mix in one list.
    fn all(&self) -> Vec<f64> {
        [&self.settings[..], &self.mix[..]].concat()
    }
}

/// The covariance function of a Gaussian process, with its scales.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Kernel {
    /// True for quadratic functions, false for smooth ones.
    is_quadratic: bool,
    /// Scale of the settings.
    of_settings: f64,
    /// Scale of the mixes.
    of_mixes: f64,
    /// Variance of the noise, as a share of the amplitude.
    noise: f64,
}

impl Kernel {
    /// Returns the covariance of the function's values at two points, without noise.
    fn of(self, one: &Features, two: &Features) -> f64 {
        let sum = |one: &[f64], two: &[f64], of: fn(f64, f64) -> f64| {
            one.iter().zip(two).map(|(a, b)| of(*a, *b)).sum::<f64>()
        };
        if self.is_quadratic {
            let product = |a: f64, b: f64| a * b;
            let settings = sum(&one.settings, &two.settings, product) / self.of_settings;
            let mixes = sum(&one.mix, &two.mix, product) / self.of_mixes;
            (1.0 + settings + mixes).powi(2)
        } else {
            let square = |a: f64, b: f64| (a - b) * (a - b);
            let settings =
                sum(&one.settings, &two.settings, square) / (self.of_settings * self.of_settings);
            let mixes = sum(&one.mix, &two.mix, square) / (self.of_mixes * self.of_mixes);
            (-0.5 * (settings + mixes)).exp()
        }
    }

    /// Returns the covariance matrix of the measurements at these points, with noise.
    fn covariances(self, all: &[Features]) -> DenseMatrix<f64> {
        let count = all.len();
        let mut values = Vec::with_capacity(count * count);
        // The noise is relative to the mean variance of the functions, so that it means the same for both kinds.
        let scale = all.iter().map(|one| self.of(one, one)).sum::<f64>() / count as f64;
        for (n, one) in all.iter().enumerate() {
            for (m, two) in all.iter().enumerate() {
                let noise = if n == m { self.noise * scale } else { 0.0 };
                values.push(self.of(one, two) + noise);
            }
        }
        DenseMatrix::new(count, count, values, false).expect("as many values as a square has")
    }

    /// Returns the log marginal likelihood of the measurements with the best amplitude, up to a constant; `None` if the
    /// covariance matrix is nearly singular.
    fn likelihood(self, all: &[Features], logs: &[f64]) -> Option<f64> {
        let lower = self.covariances(all).cholesky_mut().ok()?.L();
        let count = logs.len();
        let (mut solved, mut determinant) = (vec![0.0; count], 0.0);
        for n in 0..count {
            let known: f64 = (0..n).map(|m| lower.get((n, m)) * solved[m]).sum();
            let diagonal = *lower.get((n, n));
            if diagonal <= 0.0 {
                return None;
            }
            solved[n] = (logs[n] - known) / diagonal;
            determinant += diagonal.ln();
        }
        let square: f64 = solved.iter().map(|of| of * of).sum();
        let amplitude = (square / count as f64).max(f64::MIN_POSITIVE);
        let likelihood = -0.5 * count as f64 * amplitude.ln() - determinant;
        likelihood.is_finite().then_some(likelihood)
    }

    /// Returns the kernel that makes the measurements most likely, among the candidate scales and noises.
    fn likeliest(is_quadratic: bool, all: &[Features], logs: &[f64]) -> Self {
        let mut best: Option<(f64, Self)> = None;
        for noise in NOISES {
            for of_settings in SCALES {
                for of_mixes in SCALES {
                    let kernel = Self { is_quadratic, of_settings, of_mixes, noise };
                    let Some(likelihood) = kernel.likelihood(all, logs) else { continue };
                    if best.is_none_or(|(most, _)| likelihood > most) {
                        best = Some((likelihood, kernel));
                    }
                }
            }
        }
        let most_noise = NOISES[NOISES.len() - 1];
        let plain = Self { is_quadratic, of_settings: 1.5, of_mixes: 1.5, noise: most_noise };
        best.map_or(plain, |(_, kernel)| kernel)
    }
}

/// A random forest of smartcore.
type Forest = RandomForestRegressor<f64, f64, DenseMatrix<f64>, Vec<f64>>;

/// A learned model of the logarithm of the throughput.
#[derive(Debug)]
pub(super) struct Model {
    /// Mean of the logarithms of the throughputs.
    mean: f64,
    /// The model of the differences of the logarithms from their mean.
    learned: Learned,
}

/// The two families of models.
#[derive(Debug)]
enum Learned {
    Forest(Box<Forest>),
    Process { kernel: Kernel, known: Vec<Features>, weights: Vec<f64> },
}

impl Model {
    /// Learns a model of this kind from cells; `seed` is the seed of a random forest.
    pub(super) fn fit(kind: Kind, axes: &[Axis], cells: &[&Cell], seed: u64) -> Self {
        let (known, logs, mean) = prepared(axes, cells);
        let learned = match kind {
            Kind::Forest => forest(&known, &logs, seed),
            Kind::Quadratic | Kind::Smooth => {
                let (some, their) =
                    (thinned(&known, CELLS_FOR_SCALES), thinned(&logs, CELLS_FOR_SCALES));
                let kernel = Kernel::likeliest(kind == Kind::Quadratic, &some, &their);
                process(kernel, &known, &logs)
            }
        };
        Self { mean, learned }
    }

    /// Learns the same kind of model from other cells, with the same scales.
    pub(super) fn again(&self, axes: &[Axis], cells: &[&Cell], seed: u64) -> Self {
        let (known, logs, mean) = prepared(axes, cells);
        let learned = match &self.learned {
            Learned::Forest(_) => forest(&known, &logs, seed),
            Learned::Process { kernel, .. } => process(*kernel, &known, &logs),
        };
        Self { mean, learned }
    }

    /// Predicts the natural logarithm of the throughput in operations per second.
    pub(super) fn log_rate(&self, axes: &[Axis], point: &[f64], mix: Mix) -> f64 {
        let at = Features::new(axes, point, mix);
        let of_mean = match &self.learned {
            Learned::Forest(forest) => {
                let row = at.all();
                let row = DenseMatrix::new(1, row.len(), row, false).expect("one row");
                forest.predict(&row).expect("the features that it learned from")[0]
            }
            Learned::Process { kernel, known, weights } => {
                known.iter().zip(weights).map(|(one, weight)| kernel.of(one, &at) * weight).sum()
            }
        };
        self.mean + of_mean
    }
}

/// Returns the features of the cells, the logarithms of their throughputs less the mean, and the mean.
fn prepared(axes: &[Axis], cells: &[&Cell]) -> (Vec<Features>, Vec<f64>, f64) {
    assert!(!cells.is_empty(), "nothing to learn from");
    assert!(cells.iter().all(|cell| cell.rate_s > 0.0), "a cell has served nothing");
    let known = cells.iter().map(|cell| Features::new(axes, &cell.point, cell.mix)).collect();
    let logs: Vec<f64> = cells.iter().map(|cell| cell.rate_s.ln()).collect();
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    (known, logs.into_iter().map(|log| log - mean).collect(), mean)
}

/// Returns at most `most` elements of `all`, taken evenly.
fn thinned<T: Clone>(all: &[T], most: usize) -> Vec<T> {
    let taken = all.len().min(most);
    (0..taken).map(|n| all[n * all.len() / taken].clone()).collect()
}

/// Fits a Gaussian process with this kernel to the logarithms of throughputs, less their mean.
fn process(kernel: Kernel, known: &[Features], logs: &[f64]) -> Learned {
    let (known, logs) = (thinned(known, CELLS_MAX), thinned(logs, CELLS_MAX));
    let target = DenseMatrix::new(logs.len(), 1, logs, false).expect("one column");
    let weights = kernel
        .covariances(&known)
        .cholesky_solve_mut(target)
        .expect("covariances with noise are positive definite");
    let weights = (0..known.len()).map(|n| *weights.get((n, 0))).collect();
    Learned::Process { kernel, known, weights }
}

/// Fits a random forest to the logarithms of throughputs, less their mean.
fn forest(known: &[Features], logs: &[f64], seed: u64) -> Learned {
    let rows: Vec<Vec<f64>> = known.iter().map(Features::all).collect();
    let width = rows[0].len();
    let matrix =
        DenseMatrix::new(rows.len(), width, rows.concat(), false).expect("rows of one width");
    let parameters = RandomForestRegressorParameters::default()
        .with_n_trees(TREES)
        .with_m(width.div_ceil(2))
        .with_min_samples_leaf(1)
        .with_min_samples_split(2)
        .with_seed(seed);
    let forest = Forest::fit(&matrix, &logs.to_vec(), parameters);
    Learned::Forest(Box::new(forest.expect("rows, and as many responses")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that is asked where it has learned, and has learned much, says what it was told: the textbook's Eq. 2.25,
    /// here beside a solution by elimination.
    #[test]
    fn a_process_predicts_by_the_solution_of_its_covariances() {
        let axes = [Axis::number(16.0, 64.0), Axis::Words(2)];
        let at = |n: usize| {
            let mix = Mix::of_reads(0.25 * (n % 5) as f64);
            (vec![16.0 + 12.0 * (n % 4) as f64, (n % 2) as f64], mix)
        };
        let cells: Vec<Cell> = (0..20)
            .map(|n| {
                let (point, mix) = at(n);
                let rate_s = 3_000.0 + 20.0 * point[0] - 400.0 * mix.shares()[0] * point[1];
                Cell { configuration: n, point, mix_number: n % 5, mix, rate_s }
            })
            .collect();
        let all: Vec<&Cell> = cells.iter().collect();
        let (known, logs, mean) = prepared(&axes, &all);
        for is_quadratic in [false, true] {
            let kernel = Kernel { is_quadratic, of_settings: 1.5, of_mixes: 4.0, noise: 0.01 };
            let model = Model { mean, learned: process(kernel, &known, &logs) };
            let covariances = kernel.covariances(&known);
            let mut rows: Vec<Vec<f64>> = (0..20)
                .map(|n| (0..20).map(|m| *covariances.get((n, m))).chain([logs[n]]).collect())
                .collect();
            for pivot in 0..20 {
                let top = rows[pivot].clone();
                for (_, row) in rows.iter_mut().enumerate().filter(|(n, _)| *n != pivot) {
                    let times = row[pivot] / top[pivot];
                    row.iter_mut().zip(&top).for_each(|(of, above)| *of -= times * above);
                }
            }
            let (point, mix) = (vec![30.0, 1.0], Mix::of_reads(0.6));
            let features = Features::new(&axes, &point, mix);
            let by_elimination: f64 =
                (0..20).map(|n| rows[n][20] / rows[n][n] * kernel.of(&known[n], &features)).sum();
            let said = model.log_rate(&axes, &point, mix);
            assert!((said - mean - by_elimination).abs() < 1e-6, "{said} {by_elimination}");
        }
    }

    #[test]
    fn the_likeliest_scale_is_that_of_the_function() {
        let axes = [Axis::number(0.0, 1.0)];
        let known: Vec<Features> = (0..40)
            .map(|n| Features::new(&axes, &[f64::from(n) / 39.0], Mix::of_reads(0.5)))
            .collect();
        let fast: Vec<f64> = (0..40).map(|n| (f64::from(n) * 0.25).sin()).collect();
        let slow: Vec<f64> = (0..40).map(|n| f64::from(n) / 39.0 - 0.5).collect();
        let of = |logs: &[f64]| Kernel::likeliest(false, &known, logs);
        assert!(of(&fast).of_settings < of(&slow).of_settings);
        let rough: Vec<f64> = (0..40).map(|n| if n % 2 == 0 { 1.0 } else { -1.0 }).collect();
        assert!(of(&rough).noise > of(&slow).noise, "what no smooth function is, is noise");
    }

    #[test]
    fn what_is_thinned_is_taken_evenly() {
        let all: Vec<usize> = (0..10).collect();
        assert_eq!(thinned(&all, 5), [0, 2, 4, 6, 8]);
        assert_eq!(thinned(&all, 20), all);
    }
}
