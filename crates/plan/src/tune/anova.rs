//! Analysis of variance over measurements: which settings matter (SOPHIA, §4.3, where the tuner Rafiki does it).
//!
//! The model of a response is a sum of the mix, the round of measuring, each setting (a number by itself and its
//! square, a word by its mean), and the interaction of each setting with each mix, since a setting that helps reads and
//! harms writes has no effect in the mean, and is the one that tuning is about. The variance that a setting explains is
//! the growth of the residual sum of squares when this setting alone is omitted, so the design need not be balanced; if
//! it is, these are the classical sums of squares.
//!
//! The error is estimated from replicates, and there are two errors. All mixes of a round are measured after one roll,
//! so the peculiarities of the roll affect all of them. A setting's main effect is compared with the differences
//! between rounds of one configuration, and its interaction with mixes with the residual (a split-plot design:
//! Montgomery, *Design and Analysis of Experiments*, ch. 14). A setting is significant if F is improbable in either of
//! the two tests, by Holm's correction over all settings. The list of significant settings is cut where the share of
//! variance drops most, as in the paper.

use std::collections::BTreeMap;

use statrs::distribution::{ContinuousCDF as _, FisherSnedecor};

use super::space::{Axis, Point};

/// Significance level: a setting is significant if its F is less probable than this by chance.
pub const SIGNIFICANT: f64 = 0.05;
/// Norm of a column's residual, relative to the column's norm, below which the column counts as linearly dependent on
/// the model.
const DEPENDENT: f64 = 1e-9;
/// Size relative to the total sum of squares below which a sum of squares counts as a rounding error.
const ROUNDING: f64 = 1e-13;

/// One measurement of a response, such as a throughput, for one configuration under one mix of operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation {
    /// Index of the measured configuration.
    pub configuration: usize,
    /// Index of the mix of operations under which the configuration was measured.
    pub mix: usize,
    /// Round of the measurement: all mixes of a configuration in one round are measured after one roll. `None` if it is
    /// not known; then each measurement counts as having its own roll.
    pub round: Option<usize>,
    /// The measured response, in any unit that is the same for all observations.
    pub response: f64,
}

/// An F test of one source of variance, such as a setting, against the error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Test {
    /// Sum of squares that the source explains.
    pub squares: f64,
    /// Degrees of freedom of the source.
    pub degrees_of_freedom: usize,
    /// F statistic: the mean square of the source, as a multiple of the mean square of the error.
    pub f: f64,
    /// Probability that F is at least as large by chance, from 0 to 1.
    pub p: f64,
}

/// An estimate of the measurement error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    /// Mean square of the error.
    pub mean_square: f64,
    /// Degrees of freedom of the error.
    pub degrees_of_freedom: usize,
}

/// The effect of one setting on the response.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effect {
    /// Test of the setting's main effect, in the mean over all mixes.
    pub main: Test,
    /// Test of the interaction of the setting with the mix; `None` if there is only one mix.
    pub with_mix: Option<Test>,
    /// Share of the variance left by mixes and rounds that the main effect and the interaction explain together, from
    /// 0 to 1.
    pub share: f64,
    /// Expected share of that variance for a setting without any effect.
    pub share_by_chance: f64,
    /// Probability that F is at least as large by chance in either of the two tests, after Holm's correction over all
    /// settings.
    pub p: f64,
}

/// The place where the list of significant settings, by descending share of variance, is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cut {
    /// Share of variance of the last setting that is kept, from 0 to 1.
    pub from: f64,
    /// Share of variance of the next significant setting, or the share that is expected by chance for the last kept
    /// one.
    pub to: f64,
    /// True if no significant setting follows, so that `to` is the share expected by chance.
    pub is_to_chance: bool,
}

/// The result of an analysis of variance: which settings affect the response.
#[derive(Clone, Debug, PartialEq)]
pub struct Anova {
    /// The effect of each setting, in the order of the settings.
    pub effects: Vec<Effect>,
    /// Indexes of the settings: first the significant ones, each group by descending share of variance.
    pub ranked: Vec<usize>,
    /// Number of settings at the beginning of `ranked` that are kept.
    pub kept: usize,
    /// The place where the list is cut; `None` if no setting is significant.
    pub cut: Option<Cut>,
    /// Share of the total variance that mixes explain, from 0 to 1.
    pub mixes_share: f64,
    /// Error between rounds of one configuration.
    pub between_rounds: Noise,
    /// Residual error between the mixes of one round.
    pub within_rounds: Noise,
    /// True if no measurement was replicated, so that the error is the residual of the model.
    pub is_without_replicates: bool,
    /// Test of the differences between configurations that the sum of the effects of their settings does not explain;
    /// `None` if this cannot be tested.
    pub lack_of_fit: Option<Test>,
}

/// A reason why an analysis of variance is not possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnovaError {
    /// No setting differs between configurations.
    #[error("the configurations differ in no setting that can be compared")]
    Alike,
    /// These settings, given by their indexes, differ only together with others, so that their effects cannot be
    /// separated.
    #[error(
        "settings differ only together with others, so that their effects cannot be told apart"
    )]
    Together(Vec<usize>),
    /// No degrees of freedom are left to estimate the error.
    #[error(
        "{configurations} configurations leave nothing to tell an error by beside {terms} terms of settings: \
         measure each twice at least, or more configurations, or vary fewer settings"
    )]
    TooFew {
        /// Number of configurations that were measured.
        configurations: usize,
        /// Degrees of freedom of all settings together.
        terms: usize,
    },
}

/// The column space of a linear model, as an orthonormal basis.
#[derive(Clone, Debug, Default)]
struct Model {
    /// Orthonormal basis vectors, each with one entry per measurement.
    base: Vec<Vec<f64>>,
}

impl Model {
    /// Returns this model extended by the given columns.
    fn and<'c>(&self, columns: impl IntoIterator<Item = &'c Vec<f64>>) -> Self {
        let mut model = self.clone();
        for column in columns {
            let length = norm(column);
            // Twice, since one pass leaves the rounding errors of long columns.
            let left = model.residual(&model.residual(column));
            let rest = norm(&left);
            if rest > DEPENDENT * length.max(1.0) {
                model.base.push(left.iter().map(|of| of / rest).collect());
            }
        }
        model
    }

    /// Returns the part of a response, or of a column, that the model does not explain.
    fn residual(&self, of: &[f64]) -> Vec<f64> {
        let mut left = of.to_vec();
        for column in &self.base {
            let along: f64 = left.iter().zip(column).map(|(one, two)| one * two).sum();
            left.iter_mut().zip(column).for_each(|(left, of)| *left -= along * of);
        }
        left
    }

    /// Returns the dimension of the model's column space.
    fn rank(&self) -> usize {
        self.base.len()
    }
}

/// Returns the Euclidean norm of a vector.
fn norm(of: &[f64]) -> f64 {
    of.iter().map(|of| of * of).sum::<f64>().sqrt()
}

/// Returns an indicator column for each distinct key, with one row for each element of `keys`.
fn dummies<K: Ord>(keys: impl Iterator<Item = K>) -> Vec<Vec<f64>> {
    let keys: Vec<K> = keys.collect();
    let mut places = BTreeMap::new();
    for key in &keys {
        let next = places.len();
        places.entry(key).or_insert(next);
    }
    let mut columns = vec![vec![0.0; keys.len()]; places.len()];
    for (row, key) in keys.iter().enumerate() {
        columns[places[key]][row] = 1.0;
    }
    columns
}

/// Tests the mean square of a source with `freedom` degrees of freedom against an error; sums of squares up to
/// `nothing` count as rounding errors.
fn test(squares: f64, freedom: usize, noise: Noise, nothing: f64) -> Test {
    let squares = squares.max(0.0);
    if freedom == 0 || squares <= nothing {
        return Test { squares, degrees_of_freedom: freedom, f: 0.0, p: 1.0 };
    }
    let f = squares / freedom as f64 / noise.mean_square.max(f64::MIN_POSITIVE);
    if noise.mean_square * noise.degrees_of_freedom as f64 <= nothing || !f.is_finite() {
        return Test { squares, degrees_of_freedom: freedom, f: f64::INFINITY, p: 0.0 };
    }
    let distribution = FisherSnedecor::new(freedom as f64, noise.degrees_of_freedom as f64);
    let p = distribution.expect("degrees of freedom above zero").sf(f);
    Test { squares, degrees_of_freedom: freedom, f, p }
}

/// The columns from which all models of an analysis are built.
struct Columns {
    /// Columns of the mean, mixes and rounds.
    blocks: Vec<Vec<f64>>,
    /// An indicator column for each mix.
    mixes: Vec<Vec<f64>>,
    /// The main-effect columns of each setting: those of [`Axis::terms`].
    mains: Vec<Vec<Vec<f64>>>,
    /// The products of each setting's terms and the mixes' columns.
    with_mix: Vec<Vec<Vec<f64>>>,
    /// An indicator column for each pair of mix and configuration.
    cells: Vec<Vec<f64>>,
    /// An indicator column for each configuration.
    configurations: Vec<Vec<f64>>,
    /// An indicator column for each roll.
    rolls: Vec<Vec<f64>>,
}

impl Columns {
    /// Builds all columns, with one row per measurement; `points` has the settings of each configuration.
    fn new(axes: &[Axis], points: &[Point], observed: &[Observation]) -> Self {
        let have_rounds = observed.iter().all(|one| one.round.is_some());
        let round = |row: usize| observed[row].round.filter(|_| have_rounds);
        let mixes = dummies(observed.iter().map(|one| one.mix));
        let mut blocks = vec![vec![1.0; observed.len()]];
        blocks.extend(mixes.clone());
        blocks.extend(dummies((0..observed.len()).map(round)));
        let terms = |setting: usize| {
            let of = |one: &Observation| axes[setting].terms(points[one.configuration][setting]);
            let rows: Vec<Vec<f64>> = observed.iter().map(of).collect();
            let count = rows.first().map_or(0, Vec::len);
            (0..count).map(|term| rows.iter().map(|row| row[term]).collect()).collect()
        };
        let mains: Vec<Vec<Vec<f64>>> = (0..axes.len()).map(terms).collect();
        let product =
            |one: &Vec<f64>, two: &Vec<f64>| one.iter().zip(two).map(|(a, b)| a * b).collect();
        let by_mix = |main: &Vec<Vec<f64>>| {
            let of = |term| mixes.iter().map(move |mix| product(term, mix));
            main.iter().flat_map(of).collect()
        };
        let roll =
            |row: usize| (observed[row].configuration, round(row), (!have_rounds).then_some(row));
        Self {
            blocks,
            with_mix: mains.iter().map(by_mix).collect(),
            cells: dummies(observed.iter().map(|one| (one.mix, one.configuration))),
            configurations: dummies(observed.iter().map(|one| one.configuration)),
            rolls: dummies((0..observed.len()).map(roll)),
            mixes,
            mains,
        }
    }

    /// Iterates over the columns of all settings except the one with the index `left_out`.
    fn others(of: &[Vec<Vec<f64>>], left_out: Option<usize>) -> impl Iterator<Item = &Vec<f64>> {
        let kept = of.iter().enumerate().filter(move |(setting, _)| Some(*setting) != left_out);
        kept.flat_map(|(_, columns)| columns)
    }
}

/// Analyses which settings affect the measured response. `axes` describes the settings, and `points` has the values of
/// the settings of each configuration.
///
/// # Errors
/// The measurements do not suffice; see [`AnovaError`].
///
/// # Panics
/// If a measurement names a configuration that has no point, or a response is not finite.
pub fn analyse(
    axes: &[Axis],
    points: &[Point],
    observed: &[Observation],
) -> Result<Anova, AnovaError> {
    assert!(observed.iter().all(|one| one.response.is_finite()), "a response that is no number");
    let rows = observed.len();
    let y: Vec<f64> = observed.iter().map(|one| one.response).collect();
    let columns = Columns::new(axes, points, observed);
    let squares = |model: &Model| norm(&model.residual(&y)).powi(2);

    let mean = Model::default().and([&vec![1.0; rows]]);
    let blocks = Model::default().and(&columns.blocks);
    let mains = blocks.and(Columns::others(&columns.mains, None));
    let whole = mains.and(Columns::others(&columns.with_mix, None));
    let cells = Model::default().and(columns.cells.iter().chain(&columns.blocks));
    let rolls = cells.and(&columns.rolls);
    let terms = mains.rank() - blocks.rank();
    if terms == 0 {
        return Err(AnovaError::Alike);
    }
    let all = squares(&mean);
    let nothing = ROUNDING * all + (ROUNDING * norm(&y)).powi(2);
    let noise = |of: f64, freedom: usize| Noise {
        mean_square: of.max(0.0) / freedom.max(1) as f64,
        degrees_of_freedom: freedom,
    };
    let is_without_replicates = rolls.rank() == cells.rank();
    let (upper, lower) = if is_without_replicates {
        let configurations = whole.and(&columns.configurations);
        let between = squares(&whole) - squares(&configurations);
        (
            noise(between, configurations.rank() - whole.rank()),
            noise(squares(&configurations), rows - configurations.rank()),
        )
    } else {
        (
            noise(squares(&cells) - squares(&rolls), rolls.rank() - cells.rank()),
            noise(squares(&rolls), rows - rolls.rank()),
        )
    };
    let adds = |setting: &usize| {
        let without = blocks.and(Columns::others(&columns.mains, Some(*setting)));
        mains.rank() > without.rank()
    };
    let together: Vec<usize> = (0..axes.len()).filter(|setting| !adds(setting)).collect();
    if !together.is_empty() {
        return Err(AnovaError::Together(together));
    }
    if upper.degrees_of_freedom == 0 {
        let configurations = columns.configurations.len();
        return Err(AnovaError::TooFew { configurations, terms });
    }
    let lower = if lower.degrees_of_freedom == 0 { upper } else { lower };

    let left = squares(&blocks);
    let effect = |setting: usize| {
        let without = blocks.and(Columns::others(&columns.mains, Some(setting)));
        let freedom = mains.rank() - without.rank();
        let main = test(squares(&without) - squares(&mains), freedom, upper, nothing);
        let with_mix = (columns.mixes.len() > 1).then(|| {
            let without = mains.and(Columns::others(&columns.with_mix, Some(setting)));
            let freedom = whole.rank() - without.rank();
            test(squares(&without) - squares(&whole), freedom, lower, nothing)
        });
        let explained = main.squares + with_mix.map_or(0.0, |test| test.squares);
        let chance = main.degrees_of_freedom as f64 * upper.mean_square
            + with_mix.map_or(0.0, |test| test.degrees_of_freedom as f64 * lower.mean_square);
        let share = |squares: f64| if left > 0.0 { squares / left } else { 0.0 };
        let p = with_mix.map_or(main.p, |with_mix| (2.0 * main.p.min(with_mix.p)).min(1.0));
        Effect { main, with_mix, share: share(explained), share_by_chance: share(chance), p }
    };
    let mut effects: Vec<Effect> = (0..axes.len()).map(effect).collect();
    correct(&mut effects);
    let (ranked, kept, cut) = ranking(&effects);
    let lack = whole.rank() < cells.rank() && !is_without_replicates;
    let lack_of_fit = lack.then(|| {
        test(squares(&whole) - squares(&cells), cells.rank() - whole.rank(), upper, nothing)
    });
    let mixes = squares(&mean) - squares(&mean.and(&columns.mixes));
    Ok(Anova {
        effects,
        ranked,
        kept,
        cut,
        mixes_share: if all > 0.0 { mixes / all } else { 0.0 },
        between_rounds: upper,
        within_rounds: lower,
        is_without_replicates,
        lack_of_fit,
    })
}

/// Applies Holm's correction: the least of n probabilities is multiplied by n, the next one by n − 1, and so on.
fn correct(effects: &mut [Effect]) {
    let mut order: Vec<usize> = (0..effects.len()).collect();
    order.sort_by(|one, two| effects[*one].p.total_cmp(&effects[*two].p));
    let mut least: f64 = 0.0;
    for (place, setting) in order.into_iter().enumerate() {
        let times = (effects.len() - place) as f64;
        least = least.max((effects[setting].p * times).min(1.0));
        effects[setting].p = least;
    }
}

/// Returns the ranking of the settings, the number of them that are kept, and the place of the cut.
fn ranking(effects: &[Effect]) -> (Vec<usize>, usize, Option<Cut>) {
    let counts = |setting: usize| effects[setting].p <= SIGNIFICANT;
    let mut ranked: Vec<usize> = (0..effects.len()).collect();
    ranked.sort_by(|one, two| {
        let by_share = effects[*two].share.total_cmp(&effects[*one].share);
        counts(*two).cmp(&counts(*one)).then(by_share)
    });
    let counting = ranked.iter().filter(|setting| counts(**setting)).count();
    let cut = |kept: usize| {
        let last = &effects[ranked[kept - 1]];
        // The last significant setting is followed by chance, even if there is no other setting.
        let is_to_chance = kept == counting;
        let to = if is_to_chance { last.share_by_chance } else { effects[ranked[kept]].share };
        Cut { from: last.share, to, is_to_chance }
    };
    let steepest = (1..=counting)
        .map(|kept| (kept, cut(kept)))
        .min_by(|(_, one), (_, two)| (one.to / one.from).total_cmp(&(two.to / two.from)));
    match steepest {
        Some((kept, cut)) => (ranked, kept, Some(cut)),
        None => (ranked, 0, None),
    }
}

#[cfg(test)]
mod tests;
