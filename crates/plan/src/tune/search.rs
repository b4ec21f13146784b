//! Search for the configuration with the highest predicted throughput for a mix (SOPHIA, §4.3, Eq. 4), and reuse of
//! such optima for near mixes.
//!
//! Only values within the measured range are tried: beyond it, a surrogate has no information. If there are few
//! combinations, all are tried; otherwise a hill climb starts from random combinations and changes one setting at a
//! time until no change improves the prediction. Both are bounded. As in the paper, the optimum of the nearest known
//! mix is used if that mix is near enough.

use rand::{Rng, RngExt as _};

use super::space::{Axis, Point};
use super::workload::Mix;

/// Number of combinations of values up to which all are tried.
const EXHAUSTIVE: usize = 10_000;
/// Number of random combinations from which hill climbs start.
const RESTARTS: usize = 40;
/// Maximum number of rounds through all settings in one climb.
const ROUNDS: usize = 30;
/// Number of evenly spaced values of a numeric setting that a search tries, in addition to the measured ones.
const STEPS: usize = 9;
/// Distance of two mixes up to which they share an optimum; see [`Mix::distance`].
pub const SHARED_OPTIMUM_DISTANCE: f64 = 0.05;

/// Returns the values of a setting that a search tries: the measured ones and, for a number, evenly spaced ones
/// between the least and the greatest of them, rounded if `is_whole`.
///
/// # Panics
/// If no value was measured.
#[must_use]
pub fn values(axis: Axis, measured: &[f64], is_whole: bool) -> Vec<f64> {
    assert!(!measured.is_empty(), "a setting without a value");
    let mut values = measured.to_vec();
    if let Axis::Number { .. } = axis {
        let least = measured.iter().copied().fold(f64::INFINITY, f64::min);
        let most = measured.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let bounded = Axis::number(least, most);
        let step = |n: usize| bounded.value(n as f64 / (STEPS - 1) as f64).clamp(least, most);
        values.extend((0..STEPS).map(step).map(|of| if is_whole { of.round() } else { of }));
    }
    values.sort_by(f64::total_cmp);
    values.dedup_by(|one, two| (*one - *two).abs() < 1e-9);
    values
}

/// The result of a search for the best combination of settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The best combination of values: one for each setting.
    pub point: Point,
    /// Rating of the combination, as the rating function returned it.
    pub rate: f64,
    /// True if all combinations were tried; false if hill climbs found this one.
    pub is_exhaustive: bool,
}

/// Returns the combination of values with the highest rating, which `rate` returns; of equal ones, the first that is
/// tried. `values` has the values of each setting that are tried.
///
/// # Panics
/// If a setting has no value.
pub fn best(values: &[Vec<f64>], rate: &impl Fn(&[f64]) -> f64, dice: &mut impl Rng) -> Found {
    assert!(values.iter().all(|of| !of.is_empty()), "a setting without a value");
    let all = values.iter().fold(1_usize, |all, of| all.saturating_mul(of.len()));
    if all <= EXHAUSTIVE { exhaustive(values, all, rate) } else { climbing(values, rate, dice) }
}

/// Tries all combinations of values, of which there are `all`, and returns the best.
fn exhaustive(values: &[Vec<f64>], all: usize, rate: &impl Fn(&[f64]) -> f64) -> Found {
    let point = |mut number: usize| -> Point {
        let place = |of: &Vec<f64>| {
            let value = of[number % of.len()];
            number /= of.len();
            value
        };
        values.iter().map(place).collect()
    };
    let first = point(0);
    let mut found = Found { rate: rate(&first), point: first, is_exhaustive: true };
    for number in 1..all {
        let tried = point(number);
        let of = rate(&tried);
        if of > found.rate {
            found = Found { point: tried, rate: of, is_exhaustive: true };
        }
    }
    found
}

/// Climbs from random combinations, one setting at a time, and returns the best combination found.
fn climbing(values: &[Vec<f64>], rate: &impl Fn(&[f64]) -> f64, dice: &mut impl Rng) -> Found {
    let mut found: Option<Found> = None;
    for _ in 0..RESTARTS {
        let mut at: Point = values.iter().map(|of| of[dice.random_range(0..of.len())]).collect();
        let mut most = rate(&at);
        for _ in 0..ROUNDS {
            let before = most;
            for (setting, of) in values.iter().enumerate() {
                let mut kept = at[setting];
                for value in of {
                    at[setting] = *value;
                    let tried = rate(&at);
                    if tried > most {
                        (most, kept) = (tried, *value);
                    }
                }
                at[setting] = kept;
            }
            if most <= before {
                break;
            }
        }
        if found.as_ref().is_none_or(|one| most > one.rate) {
            found = Some(Found { point: at, rate: most, is_exhaustive: false });
        }
    }
    found.expect("a restart")
}

/// Returns the index and the distance of the known mix that is nearest to `mix`; `None` if no mix is known.
#[must_use]
pub fn nearest(known: &[Mix], mix: Mix) -> Option<(usize, f64)> {
    let distances = known.iter().map(|one| one.distance(mix)).enumerate();
    distances.min_by(|(_, one), (_, two)| one.total_cmp(two))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    use super::*;

    /// Values of settings, and a rating of their combinations: a sum for each setting, and products of neighbours.
    fn problems() -> impl Strategy<Value = (Vec<Vec<f64>>, Vec<f64>, u64)> {
        let values = prop::collection::vec(prop::collection::vec(-1.0..1.0_f64, 1..6), 1..5);
        (values, prop::collection::vec(-2.0..2.0_f64, 10), any::<u64>())
    }

    fn rated(by: &[f64], at: &[f64]) -> f64 {
        let alone: f64 = at.iter().zip(by).map(|(value, by)| by * value - value * value).sum();
        let pairs = at.windows(2).zip(&by[5..]).map(|(pair, by)| by * pair[0] * pair[1]);
        alone + pairs.sum::<f64>()
    }

    fn by_brute_force(values: &[Vec<f64>], rate: &impl Fn(&[f64]) -> f64) -> f64 {
        let mut points: Vec<Point> = vec![Vec::new()];
        for of in values {
            let with = |point: &Point| {
                of.iter().map(|value| [&point[..], &[*value]].concat()).collect::<Vec<_>>()
            };
            points = points.iter().flat_map(with).collect();
        }
        points.iter().map(|point| rate(point)).fold(f64::NEG_INFINITY, f64::max)
    }

    proptest! {
        #[test]
        fn it_finds_what_brute_force_finds((values, by, seed) in problems()) {
            let rate = |at: &[f64]| rated(&by, at);
            let most = by_brute_force(&values, &rate);
            let mut dice = StdRng::seed_from_u64(seed);
            let found = best(&values, &rate, &mut dice);
            prop_assert!(found.is_exhaustive && found.rate == most && rate(&found.point) == most);
            let climbed = climbing(&values, &rate, &mut dice);
            prop_assert!(climbed.rate <= most && rate(&climbed.point) == climbed.rate);
            for (setting, of) in values.iter().enumerate() {
                prop_assert!(of.contains(&climbed.point[setting]));
                for value in of {
                    let mut other = climbed.point.clone();
                    other[setting] = *value;
                    prop_assert!(rate(&other) <= climbed.rate, "{climbed:?} {other:?}");
                }
            }
        }
    }

    #[test]
    fn climbing_finds_nearly_always_what_brute_force_finds() {
        let mut dice = StdRng::seed_from_u64(17);
        let mut found = 0;
        for _ in 0..200 {
            let values: Vec<Vec<f64>> =
                (0..4).map(|_| (0..5).map(|_| dice.random_range(-1.0..1.0)).collect()).collect();
            let by: Vec<f64> = (0..10).map(|_| dice.random_range(-2.0..2.0)).collect();
            let rate = |at: &[f64]| rated(&by, at);
            let most = by_brute_force(&values, &rate);
            found += usize::from(climbing(&values, &rate, &mut dice).rate >= most - 1e-12);
        }
        assert!(found >= 195, "{found} of 200");
    }

    #[test]
    fn what_is_too_much_to_try_is_climbed_and_ends() {
        let values: Vec<Vec<f64>> =
            (0..12).map(|_| (0..9).map(|n| f64::from(n) / 8.0).collect()).collect();
        let tried = std::cell::Cell::new(0_usize);
        // A ridge: neighbours have to agree, and all of them have to be at three quarters.
        let rate = |at: &[f64]| {
            tried.set(tried.get() + 1);
            let apart: f64 = at.windows(2).map(|pair| (pair[0] - pair[1]).powi(2)).sum();
            -apart - at.iter().map(|value| (value - 0.75).powi(2)).sum::<f64>()
        };
        let found = best(&values, &rate, &mut StdRng::seed_from_u64(1));
        assert_eq!((found.rate, found.is_exhaustive), (0.0, false), "{found:?}");
        assert!(tried.get() <= RESTARTS * (1 + ROUNDS * 12 * 9), "{}", tried.get());
    }

    #[test]
    fn nothing_beyond_what_was_measured_is_tried() {
        let values = values(Axis::number(16.0, 128.0), &[20.0, 64.0, 32.0], true);
        assert_eq!((values[0], values[values.len() - 1]), (20.0, 64.0));
        assert!(values.contains(&32.0) && values.len() > 8, "{values:?}");
        assert!(values.iter().all(|value| value.fract() == 0.0));
        let words = super::values(Axis::Words(4), &[3.0, 1.0, 3.0], false);
        assert_eq!(words, [1.0, 3.0], "a word that was not measured is none");
    }

    #[test]
    fn the_nearest_mix_is_found_with_its_distance() {
        let known = [Mix::of_reads(0.0), Mix::of_reads(1.0), Mix::of_reads(0.5)];
        let (number, distance) = nearest(&known, Mix::of_reads(0.95)).unwrap();
        assert!(number == 1 && distance < SHARED_OPTIMUM_DISTANCE, "{number} {distance}");
        let (number, distance) = nearest(&known, Mix::of_reads(0.3)).unwrap();
        assert!(number == 2 && distance > SHARED_OPTIMUM_DISTANCE, "{number} {distance}");
        assert_eq!(nearest(&[], Mix::of_reads(0.3)), None);
    }
}
