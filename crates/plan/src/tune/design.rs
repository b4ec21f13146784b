//! Experimental design: a small set of configurations to measure that reveals most about the varied settings.
//!
//! Each setting takes its values equally often. A number between two bounds takes as many values as there are
//! configurations, evenly from bound to bound: a Latin hypercube. Swaps of values improve their combinations until no
//! configuration is needlessly close to another one (the criterion of Morris and Mitchell, *Exploratory designs for
//! computational experiments*, 1995). Of several such designs, the one with the least correlated settings is taken,
//! since the effects of correlated settings cannot be separated.

use rand::seq::SliceRandom as _;
use rand::{Rng, RngExt as _};

use super::space::{Axis, Point, distance};

/// Number of experimental designs that are drawn and improved, of which the best is taken.
const DESIGNS_TRIED: usize = 20;
/// Number of swaps that are tried to improve each design, per setting and configuration.
const SWAPS: usize = 40;
/// Exponent of the distances in the criterion; with such a large negative one, the closest points dominate.
const POWER: i32 = -10;
/// Distance of two points below which they count as equal.
const DISTANCE_EPSILON: f64 = 1e-6;

/// A setting that is varied in an experimental design.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Axis of the setting, which scales its values.
    pub axis: Axis,
    /// The values that the setting takes; `None`: any value between the bounds of the axis.
    pub values: Option<Vec<f64>>,
    /// True if the setting takes whole numbers only.
    pub is_whole: bool,
}

/// The error that the settings have fewer combinations than configurations were requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "these settings make {combinations} configurations besides the default, and {requested} are asked for: \
     ask for fewer, or give the settings more values"
)]
pub struct TooMany {
    /// Number of combinations of the settings' values, without the known configurations.
    pub combinations: usize,
    /// Number of configurations that were requested.
    pub requested: usize,
}

impl Column {
    /// Returns the setting's values for `runs` configurations in random order, drawn with `dice`. Each value appears
    /// equally often, or some once more.
    fn spread(&self, runs: usize, dice: &mut impl Rng) -> Vec<f64> {
        let mut values = match &self.values {
            Some(values) => values.clone(),
            None => self.between(runs),
        };
        // The values that appear once more are drawn at random, too.
        values.shuffle(dice);
        let mut spread: Vec<f64> = values.into_iter().cycle().take(runs).collect();
        spread.shuffle(dice);
        spread
    }

    /// Returns `count` values of a numeric setting, evenly from the lower to the upper bound of its axis.
    fn between(&self, count: usize) -> Vec<f64> {
        let place = |n: usize| if count > 1 { n as f64 / (count - 1) as f64 } else { 0.5 };
        let of = |n: usize| {
            let value = self.axis.value(place(n));
            if self.is_whole { value.round() } else { value }
        };
        (0..count).map(of).collect()
    }

    /// Returns the distinct values that the setting would take in `runs` configurations.
    fn different(&self, runs: usize) -> Vec<f64> {
        let mut values = self.values.clone().unwrap_or_else(|| self.between(runs));
        values.sort_by(f64::total_cmp);
        values.dedup();
        values
    }
}

/// Draws `runs` configurations of the settings `columns`, none of which is one of the `known` ones.
///
/// # Errors
/// There are fewer than `runs` combinations.
///
/// # Panics
/// If a setting has no values.
pub fn draw(
    columns: &[Column],
    known: &[Point],
    runs: usize,
    dice: &mut impl Rng,
) -> Result<Vec<Point>, TooMany> {
    let different: Vec<Vec<f64>> = columns.iter().map(|column| column.different(runs)).collect();
    assert!(different.iter().all(|values| !values.is_empty()), "a setting without values");
    let axes: Vec<Axis> = columns.iter().map(|column| column.axis).collect();
    let all = different.iter().fold(1_usize, |all, values| all.saturating_mul(values.len()));
    let few = runs.saturating_add(known.len());
    if all <= few {
        let is_new =
            |point: &Point| known.iter().all(|one| distance(&axes, one, point) > DISTANCE_EPSILON);
        let combinations: Vec<Point> = product(&different).into_iter().filter(is_new).collect();
        if combinations.len() < runs {
            return Err(TooMany { combinations: combinations.len(), requested: runs });
        }
        if combinations.len() == runs {
            return Ok(combinations);
        }
    }
    let mut best: Option<((bool, f64), Vec<Point>)> = None;
    for _ in 0..DESIGNS_TRIED {
        let points = improved(columns, &axes, known, runs, dice);
        let rating = (has_twins(&axes, known, &points), correlation(&axes, &points));
        let is_better =
            |than: &(bool, f64)| rating.0.cmp(&than.0).then(rating.1.total_cmp(&than.1)).is_lt();
        if best.as_ref().is_none_or(|(than, _)| is_better(than)) {
            best = Some((rating, points));
        }
    }
    match best {
        Some(((false, _), points)) => Ok(points),
        // With few values, equal numbers may not be possible without duplicates: any distinct combinations are taken
        // then.
        _ => Ok(uneven(&different, &axes, known, runs, dice)),
    }
}

/// Returns all combinations of one value of each setting.
fn product(values: &[Vec<f64>]) -> Vec<Point> {
    let mut points = vec![Vec::new()];
    for of in values {
        let with =
            |point: &Point| of.iter().map(|value| [&point[..], &[*value]].concat()).collect();
        points = points.iter().flat_map::<Vec<Point>, _>(with).collect();
    }
    points
}

/// Draws a design of `runs` configurations, and improves it by swaps of two configurations' values of a setting.
fn improved(
    columns: &[Column],
    axes: &[Axis],
    known: &[Point],
    runs: usize,
    dice: &mut impl Rng,
) -> Vec<Point> {
    let spread: Vec<Vec<f64>> = columns.iter().map(|column| column.spread(runs, dice)).collect();
    let mut points: Vec<Point> =
        (0..runs).map(|run| spread.iter().map(|values| values[run]).collect()).collect();
    if runs < 2 {
        return points;
    }
    for _ in 0..SWAPS * runs * columns.len() {
        let column = dice.random_range(0..columns.len());
        let (one, two) = (dice.random_range(0..runs), dice.random_range(0..runs));
        if points[one][column] == points[two][column] {
            continue;
        }
        let crowded = |points: &[Point]| {
            crowding_of(axes, known, points, one) + crowding_of(axes, known, points, two)
        };
        let before = crowded(&points);
        swap(&mut points, column, one, two);
        if crowded(&points) > before {
            swap(&mut points, column, one, two);
        }
    }
    points
}

/// Swaps the values of the setting `column` between the configurations `one` and `two`.
fn swap(points: &mut [Point], column: usize, one: usize, two: usize) {
    let value = points[one][column];
    points[one][column] = points[two][column];
    points[two][column] = value;
}

/// Returns the crowding of the point with index `one`: the sum of a negative power of its distances to all others and
/// to the known points.
fn crowding_of(axes: &[Axis], known: &[Point], points: &[Point], one: usize) -> f64 {
    let others = points.iter().enumerate().filter(|(other, _)| *other != one);
    let others = others.map(|(_, other)| other).chain(known);
    others.map(|other| distance(axes, &points[one], other).max(DISTANCE_EPSILON).powi(POWER)).sum()
}

/// Returns true if two of the points are equal, or one equals a known point.
fn has_twins(axes: &[Axis], known: &[Point], points: &[Point]) -> bool {
    let is_twin = |(number, one): (usize, &Point)| {
        points[..number]
            .iter()
            .chain(known)
            .any(|other| distance(axes, one, other) <= DISTANCE_EPSILON)
    };
    points.iter().enumerate().any(is_twin)
}

/// Draws `runs` distinct combinations of values, without the rule that each value appears equally often.
fn uneven(
    values: &[Vec<f64>],
    axes: &[Axis],
    known: &[Point],
    runs: usize,
    dice: &mut impl Rng,
) -> Vec<Point> {
    // The combinations are hardly more than the configurations; otherwise evenly spread values would have been
    // distinct.
    let mut all = product(values);
    all.retain(|point| known.iter().all(|one| distance(axes, one, point) > DISTANCE_EPSILON));
    all.shuffle(dice);
    all.truncate(runs);
    all
}

/// Returns the largest absolute correlation of two settings over the configurations `points`; 0 for equally frequent,
/// independent values.
#[must_use]
pub fn correlation(axes: &[Axis], points: &[Point]) -> f64 {
    let columns = |setting: usize| -> Vec<Vec<f64>> {
        let terms: Vec<Vec<f64>> =
            points.iter().map(|point| axes[setting].terms(point[setting])).collect();
        // The square of a number is not an effect of its own here.
        let count = match axes[setting] {
            Axis::Number { .. } => 1,
            Axis::Words(words) => words.saturating_sub(1),
        };
        (0..count).map(|term| terms.iter().map(|row| row[term]).collect()).collect()
    };
    let columns: Vec<_> = (0..axes.len()).map(columns).collect();
    let mut most: f64 = 0.0;
    for (setting, of) in columns.iter().enumerate() {
        for other in columns[..setting].iter().flatten() {
            most = of.iter().map(|one| pearson(one, other).abs()).fold(most, f64::max);
        }
    }
    most
}

/// Returns Pearson's correlation coefficient of two columns; 0 if one of the columns is constant.
fn pearson(one: &[f64], two: &[f64]) -> f64 {
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
    let (m, n) = (mean(one), mean(two));
    let of = |one: &[f64], m: f64, two: &[f64], n: f64| {
        one.iter().zip(two).map(|(a, b)| (a - m) * (b - n)).sum::<f64>()
    };
    let scale = (of(one, m, one, m) * of(two, n, two, n)).sqrt();
    if scale > 0.0 { of(one, m, two, n) / scale } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    use super::*;

    fn range(least: f64, most: f64) -> Column {
        Column { axis: Axis::number(least, most), values: None, is_whole: true }
    }

    fn words(count: usize) -> Column {
        let values = (0..count).map(|word| word as f64).collect();
        Column { axis: Axis::Words(count), values: Some(values), is_whole: false }
    }

    fn columns() -> impl Strategy<Value = Vec<Column>> {
        let column = prop_oneof![
            (1..200_u32, 100..1_000_u32)
                .prop_map(|(least, more)| range(least.into(), (least + more).into())),
            (2..4_usize).prop_map(words),
        ];
        prop::collection::vec(column, 1..5)
    }

    fn crowding(axes: &[Axis], points: &[Point]) -> f64 {
        (0..points.len()).map(|one| crowding_of(axes, &[], &points[one..], 0)).sum()
    }

    fn counts(points: &[Point], column: usize) -> BTreeMap<u64, usize> {
        let mut counts = BTreeMap::new();
        for point in points {
            *counts.entry(point[column].to_bits()).or_default() += 1;
        }
        counts
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn all_are_different_and_within_bounds(columns in columns(), runs in 1..16_usize, seed: u64) {
            let axes: Vec<Axis> = columns.iter().map(|column| column.axis).collect();
            let known: Point = columns.iter().map(|column| column.different(3)[0]).collect();
            let drawn = draw(&columns, std::slice::from_ref(&known), runs, &mut StdRng::seed_from_u64(seed));
            let combinations = columns.iter().map(|column| column.different(runs).len()).product::<usize>();
            match drawn {
                Err(TooMany { combinations: left, requested }) => {
                    prop_assert!(left < requested && left + 1 >= combinations);
                }
                Ok(points) => {
                    prop_assert_eq!(points.len(), runs);
                    for (number, point) in points.iter().enumerate() {
                        prop_assert!(*point != known);
                        prop_assert!(!points[..number].contains(point), "{points:?}");
                        for (value, axis) in point.iter().zip(&axes) {
                            let unit = axis.unit(*value);
                            let is_within = match axis {
                                Axis::Number { .. } => (-1e-9..=1.0 + 1e-9).contains(&unit),
                                Axis::Words(words) => unit < *words as f64,
                            };
                            prop_assert!(is_within, "{value} {axis:?}");
                        }
                    }
                    let again = draw(&columns, &[known], runs, &mut StdRng::seed_from_u64(seed));
                    prop_assert_eq!(again, Ok(points));
                }
            }
        }
    }

    #[test]
    fn numbers_go_evenly_from_bound_to_bound_and_words_come_equally_often() {
        let columns = [range(100.0, 210.0), words(3), range(16.0, 256.0), words(2)];
        let points = draw(&columns, &[], 12, &mut StdRng::seed_from_u64(1)).unwrap();
        let mut first: Vec<f64> = points.iter().map(|point| point[0]).collect();
        first.sort_by(f64::total_cmp);
        assert_eq!(first, (0..12).map(|n| 100.0 + 10.0 * f64::from(n)).collect::<Vec<_>>());
        assert!(counts(&points, 1).values().all(|count| *count == 4), "{points:?}");
        assert!(counts(&points, 3).values().all(|count| *count == 6), "{points:?}");
        assert_eq!(counts(&points, 2).len(), 12);
    }

    #[test]
    fn a_design_is_less_crowded_and_less_correlated_than_one_drawn_at_will() {
        let columns = [range(100.0, 300.0), range(100.0, 300.0), words(2), range(1.0, 64.0)];
        let axes: Vec<Axis> = columns.iter().map(|column| column.axis).collect();
        let closest = |points: &[Point]| {
            let pairs = points.iter().enumerate();
            let pairs = pairs.flat_map(|(n, one)| points[..n].iter().map(move |two| (one, two)));
            pairs.map(|(one, two)| distance(&axes, one, two)).fold(f64::MAX, f64::min)
        };
        let mut dice = StdRng::seed_from_u64(4);
        let at_will: Vec<Vec<Point>> = (0..50)
            .map(|_| {
                let spread: Vec<_> =
                    columns.iter().map(|column| column.spread(12, &mut dice)).collect();
                (0..12).map(|run| spread.iter().map(|values| values[run]).collect()).collect()
            })
            .collect();
        let mean = |of: &dyn Fn(&[Point]) -> f64| {
            at_will.iter().map(|points| of(points)).sum::<f64>() / at_will.len() as f64
        };
        let points = draw(&columns, &[], 12, &mut dice).unwrap();
        let (far, little) = (closest(&points), correlation(&axes, &points));
        assert!(far > 1.5 * mean(&closest), "{far} {}", mean(&closest));
        assert!(little < 0.5 * mean(&|of| correlation(&axes, of)), "{little}");
    }

    #[test]
    fn of_four_points_in_a_square_no_arrangement_is_less_crowded() {
        let columns = [range(100.0, 103.0), range(100.0, 103.0)];
        let axes: Vec<Axis> = columns.iter().map(|column| column.axis).collect();
        let values = [100.0, 101.0, 102.0, 103.0];
        let mut least = f64::MAX;
        for order in 0..256_usize {
            let places: Vec<usize> = (0..4).map(|n| (order >> (2 * n)) & 3).collect();
            let is_permutation = (0..4).all(|place| places.contains(&place));
            if is_permutation {
                let points: Vec<Point> = places
                    .iter()
                    .zip(values)
                    .map(|(place, value)| vec![value, values[*place]])
                    .collect();
                least = least.min(crowding(&axes, &points));
            }
        }
        let points = draw(&columns, &[], 4, &mut StdRng::seed_from_u64(2)).unwrap();
        assert!(crowding(&axes, &points) <= least * (1.0 + 1e-9), "{points:?}");
    }

    #[test]
    fn where_there_are_as_many_combinations_as_configurations_all_are_taken_and_more_are_refused() {
        let columns = [words(2), words(3)];
        let mut dice = StdRng::seed_from_u64(0);
        let known = [vec![0.0, 0.0]];
        assert_eq!(draw(&columns, &known, 5, &mut dice).unwrap().len(), 5);
        let refused = draw(&columns, &known, 6, &mut dice).unwrap_err();
        assert_eq!(refused, TooMany { combinations: 5, requested: 6 });
        assert!(refused.to_string().contains("5 configurations besides the default"), "{refused}");
        for seed in 0..20 {
            let three = draw(&columns, &known, 3, &mut StdRng::seed_from_u64(seed)).unwrap();
            assert!(!three.contains(&known[0]), "{three:?}");
        }
    }
}
