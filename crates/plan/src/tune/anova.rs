//! Which settings matter: an analysis of variance over measurements (SOPHIA, §4.3; there the tuner Rafiki does it).
//!
//! The model of a response is a sum: the mix, the round of measuring, each setting (a number by itself and its square, a
//! word by its mean), and each setting once more for each mix, since a setting that helps reads and harms writes has no
//! effect in the mean, and is the one that tuning is about. What a setting explains is what the sum of squares grows by
//! when it alone is left out, so that settings need not have been drawn evenly; where they were, these are the classical
//! sums of squares.
//!
//! The error is that of replicates, and there are two of them. All mixes of a round are measured behind one roll, so that
//! what was special about the roll is in all of them: a setting is compared with the differences between rounds of one
//! configuration, and its change from mix to mix with what these leave (a split-plot design: Montgomery, *Design and
//! Analysis of Experiments*, ch. 14). A setting counts if F is improbable for either of the two, by Holm's correction over
//! all settings; the list of those that count is cut where the share of variance falls most, as in the paper.

use std::collections::BTreeMap;

use statrs::distribution::{ContinuousCDF as _, FisherSnedecor};

use super::space::{Axis, Point};

/// A setting counts if so large an F is less probable than this by chance.
pub const SIGNIFICANT: f64 = 0.05;
/// A column that adds less than this to a model adds nothing.
const DEPENDENT: f64 = 1e-9;
/// Below this, as a share of what it was calculated from, a value is rounding.
const ROUNDING: f64 = 1e-13;

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation {
    /// The configuration, by number.
    pub configuration: usize,
    /// The mix, by number.
    pub mix: usize,
    /// The round: what a configuration served of all mixes in one round was measured behind one roll. None if it is
    /// not known; then each measurement is taken to have had a roll of its own.
    pub round: Option<usize>,
    /// What was measured.
    pub response: f64,
}

/// A source of variance, compared with the error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Test {
    /// The sum of squares.
    pub squares: f64,
    /// Degrees of freedom.
    pub freedom: usize,
    /// The mean square, as a multiple of the error's.
    pub f: f64,
    /// The probability of so large an F by chance.
    pub p: f64,
}

/// An error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    /// Its mean square.
    pub mean_square: f64,
    /// Degrees of freedom.
    pub freedom: usize,
}

/// What a setting does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effect {
    /// In the mean of all mixes.
    pub main: Test,
    /// Differently from mix to mix; none if there is one mix.
    pub with_mix: Option<Test>,
    /// What both explain of the variance that mixes and rounds leave.
    pub share: f64,
    /// What a setting without any effect would explain of it, in the mean.
    pub by_chance: f64,
    /// The probability of so large an F by chance, in either of the two tests, and by Holm's correction.
    pub p: f64,
}

/// Where the list of settings is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cut {
    /// The share of variance of the last setting that is kept.
    pub from: f64,
    /// The share of the next one that counts, or what chance alone explains.
    pub to: f64,
    /// True if the next one is chance.
    pub is_to_chance: bool,
}

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq)]
pub struct Anova {
    /// By setting.
    pub effects: Vec<Effect>,
    /// The settings' numbers, those with the largest shares first.
    pub ranked: Vec<usize>,
    /// Those that are kept come first in the ranking: so many.
    pub kept: usize,
    /// Where the list is cut; none if no setting counts.
    pub cut: Option<Cut>,
    /// The share of all variance that mixes explain.
    pub mixes_share: f64,
    /// What rounds of one configuration differ by.
    pub between_rounds: Noise,
    /// What is left behind that, from mix to mix.
    pub within_rounds: Noise,
    /// True if nothing was measured twice, so that the error is what the model leaves.
    pub is_without_replicates: bool,
    /// What configurations differ by that the sum of their settings does not explain; none if nothing could be left.
    pub lack_of_fit: Option<Test>,
}

/// Why nothing can be told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Untold {
    /// No setting differs between configurations.
    #[error("the configurations differ in no setting that can be compared")]
    Alike,
    /// Settings, by number, that differ only where others do.
    #[error(
        "settings differ only together with others, so that their effects cannot be told apart"
    )]
    Together(Vec<usize>),
    /// Nothing is left to tell an error by.
    #[error(
        "{configurations} configurations leave nothing to tell an error by beside {terms} terms of settings: \
         measure each twice at least, or more configurations, or vary fewer settings"
    )]
    TooFew {
        /// Configurations.
        configurations: usize,
        /// Degrees of freedom that the settings take.
        terms: usize,
    },
}

/// Columns of a model, as an orthonormal base of what they span.
#[derive(Clone, Debug, Default)]
struct Model {
    base: Vec<Vec<f64>>,
}

impl Model {
    /// The columns of this and others.
    fn and<'c>(&self, columns: impl IntoIterator<Item = &'c Vec<f64>>) -> Self {
        let mut model = self.clone();
        for column in columns {
            let length = norm(column);
            // Twice, as one pass leaves the rounding errors of long columns.
            let left = model.residual(&model.residual(column));
            let rest = norm(&left);
            if rest > DEPENDENT * length.max(1.0) {
                model.base.push(left.iter().map(|of| of / rest).collect());
            }
        }
        model
    }

    /// What the columns do not explain of a response.
    fn residual(&self, of: &[f64]) -> Vec<f64> {
        let mut left = of.to_vec();
        for column in &self.base {
            let along: f64 = left.iter().zip(column).map(|(one, two)| one * two).sum();
            left.iter_mut().zip(column).for_each(|(left, of)| *left -= along * of);
        }
        left
    }

    fn rank(&self) -> usize {
        self.base.len()
    }
}

fn norm(of: &[f64]) -> f64 {
    of.iter().map(|of| of * of).sum::<f64>().sqrt()
}

/// A column for each value that a key takes: 1 where it has it.
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

/// Compares a mean square with an error; sums of squares up to `nothing` are rounding alone.
fn test(squares: f64, freedom: usize, noise: Noise, nothing: f64) -> Test {
    let squares = squares.max(0.0);
    if freedom == 0 || squares <= nothing {
        return Test { squares, freedom, f: 0.0, p: 1.0 };
    }
    let f = squares / freedom as f64 / noise.mean_square.max(f64::MIN_POSITIVE);
    if noise.mean_square * noise.freedom as f64 <= nothing || !f.is_finite() {
        return Test { squares, freedom, f: f64::INFINITY, p: 0.0 };
    }
    let distribution = FisherSnedecor::new(freedom as f64, noise.freedom as f64);
    let p = distribution.expect("degrees of freedom above zero").sf(f);
    Test { squares, freedom, f, p }
}

/// The columns of all models.
struct Columns {
    /// The mean, mixes and rounds.
    blocks: Vec<Vec<f64>>,
    mixes: Vec<Vec<f64>>,
    /// By setting: its terms.
    mains: Vec<Vec<Vec<f64>>>,
    /// By setting: its terms, for each mix.
    with_mix: Vec<Vec<Vec<f64>>>,
    /// For each mix and configuration.
    cells: Vec<Vec<f64>>,
    configurations: Vec<Vec<f64>>,
    /// For each roll.
    rolls: Vec<Vec<f64>>,
}

impl Columns {
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

    /// Everything but one setting's.
    fn others(of: &[Vec<Vec<f64>>], left_out: Option<usize>) -> impl Iterator<Item = &Vec<f64>> {
        let kept = of.iter().enumerate().filter(move |(setting, _)| Some(*setting) != left_out);
        kept.flat_map(|(_, columns)| columns)
    }
}

/// Analyses measurements: the settings of each configuration are its point, by its number.
///
/// # Errors
/// Nothing can be told from so little.
///
/// # Panics
/// If a measurement names a configuration that has no point, or a response is not finite.
pub fn analyse(axes: &[Axis], points: &[Point], observed: &[Observation]) -> Result<Anova, Untold> {
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
        return Err(Untold::Alike);
    }
    let all = squares(&mean);
    let nothing = ROUNDING * all + (ROUNDING * norm(&y)).powi(2);
    let noise = |of: f64, freedom: usize| Noise {
        mean_square: of.max(0.0) / freedom.max(1) as f64,
        freedom,
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
        return Err(Untold::Together(together));
    }
    if upper.freedom == 0 {
        let configurations = columns.configurations.len();
        return Err(Untold::TooFew { configurations, terms });
    }
    let lower = if lower.freedom == 0 { upper } else { lower };

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
        let chance = main.freedom as f64 * upper.mean_square
            + with_mix.map_or(0.0, |test| test.freedom as f64 * lower.mean_square);
        let share = |squares: f64| if left > 0.0 { squares / left } else { 0.0 };
        let p = with_mix.map_or(main.p, |with_mix| (2.0 * main.p.min(with_mix.p)).min(1.0));
        Effect { main, with_mix, share: share(explained), by_chance: share(chance), p }
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

/// Holm's correction: the least probability counts as often as there are settings, the next one once less, and so on.
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

/// The settings by what they explain, those that count first; how many are kept, and where the list is cut.
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
        // Behind the settings that count is chance, also if there is no other setting.
        let is_to_chance = kept == counting;
        let to = if is_to_chance { last.by_chance } else { effects[ranked[kept]].share };
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
