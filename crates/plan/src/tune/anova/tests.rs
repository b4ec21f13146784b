//! The analysis of variance beside published examples, beside classical sums of squares, and on noise alone.

use proptest::prelude::*;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;

use super::*;

fn words(count: usize) -> (Axis, Vec<Point>) {
    (Axis::Words(count), (0..count).map(|word| vec![word as f64]).collect())
}

fn near(value: f64, published: f64, within: f64) {
    assert!((value - published).abs() <= within, "{value} is not {published}");
}

/// Montgomery, *Design and Analysis of Experiments*, example 4.1: vascular grafts of four extrusion pressures, in six
/// batches of resin. Published: sums of squares 178.17 and 192.25, error 7.33 of 15, F = 8.11, P = 0.0019.
#[test]
fn a_randomised_block_design_is_as_published() {
    let grafts = [
        [90.3, 89.2, 98.2, 93.9, 87.4, 97.9],
        [92.5, 89.5, 90.6, 94.7, 87.0, 95.8],
        [85.5, 90.8, 89.6, 86.2, 88.0, 93.4],
        [82.5, 89.5, 85.6, 87.4, 78.9, 90.7],
    ];
    let (axis, points) = words(4);
    // A batch is a round: one of each pressure.
    let of = |configuration: usize| {
        grafts[configuration].iter().enumerate().map(move |(round, response)| Observation {
            configuration,
            mix: 0,
            round: Some(round),
            response: *response,
        })
    };
    let observed: Vec<Observation> = (0..4).flat_map(of).collect();
    let anova = analyse(&[axis], &points, &observed).unwrap();
    let main = anova.effects[0].main;
    near(main.squares, 178.17, 0.005);
    assert_eq!((main.degrees_of_freedom, anova.between_rounds.degrees_of_freedom), (3, 15));
    near(anova.between_rounds.mean_square, 7.33, 0.005);
    near(main.f, 8.11, 0.005);
    near(main.p, 0.0019, 0.00005);
    assert_eq!((anova.effects[0].with_mix, anova.kept), (None, 1));
}

/// Montgomery, example 5.1: the life of batteries of three materials at three temperatures, four of each. Published:
/// material F = 7.91, P = 0.0020; material by temperature F = 3.56, P = 0.0186; error 675.21 of 27.
#[test]
fn a_factorial_design_with_replicates_is_as_published() {
    let life = [
        [[130, 155, 74, 180], [34, 40, 80, 75], [20, 70, 82, 58]],
        [[150, 188, 159, 126], [136, 122, 106, 115], [25, 70, 58, 45]],
        [[138, 110, 168, 160], [174, 120, 150, 139], [96, 104, 82, 60]],
    ];
    let (axis, points) = words(3);
    let mut observed = Vec::new();
    for (configuration, material) in life.iter().enumerate() {
        for (mix, cell) in material.iter().enumerate() {
            let of = |response: &i32| Observation {
                configuration,
                mix,
                round: None,
                response: f64::from(*response),
            };
            observed.extend(cell.iter().map(of));
        }
    }
    let anova = analyse(&[axis], &points, &observed).unwrap();
    let (main, with_mix) = (anova.effects[0].main, anova.effects[0].with_mix.unwrap());
    near(main.squares, 10_683.72, 0.01);
    near(with_mix.squares, 9_613.78, 0.01);
    assert_eq!(
        (
            main.degrees_of_freedom,
            with_mix.degrees_of_freedom,
            anova.between_rounds.degrees_of_freedom
        ),
        (2, 4, 27)
    );
    near(anova.between_rounds.mean_square, 675.21, 0.01);
    near(main.f, 7.91, 0.005);
    near(main.p, 0.0020, 0.00005);
    near(with_mix.f, 3.56, 0.005);
    near(with_mix.p, 0.0186, 0.00005);
    near(anova.mixes_share, 39_118.72 / 77_646.97, 1e-6);
}

/// Yates, *Complex Experiments* (1935), as analysed in Venables and Ripley, *Modern Applied Statistics with S*, §10.2:
/// three varieties of oats on plots of six blocks, four amounts of nitrogen within each plot. Published: varieties
/// F = 1.485, P = 0.272 (error 601.3 of 10); nitrogen by variety F = 0.303, P = 0.932 (error 177.1 of 45).
#[test]
fn a_split_plot_design_is_as_published() {
    let victory = [
        [111, 130, 157, 174],
        [61, 91, 97, 100],
        [68, 64, 112, 86],
        [74, 89, 81, 122],
        [62, 90, 100, 116],
        [53, 74, 118, 113],
    ];
    let golden_rain = [
        [117, 114, 161, 141],
        [70, 108, 126, 149],
        [60, 102, 89, 96],
        [64, 103, 132, 133],
        [80, 82, 94, 126],
        [89, 82, 86, 104],
    ];
    let marvellous = [
        [105, 140, 118, 156],
        [96, 124, 121, 144],
        [89, 129, 132, 124],
        [70, 89, 104, 117],
        [63, 70, 109, 99],
        [97, 99, 119, 121],
    ];
    let (axis, points) = words(3);
    let mut observed = Vec::new();
    for (configuration, plots) in [victory, golden_rain, marvellous].iter().enumerate() {
        for (block, plot) in plots.iter().enumerate() {
            observed.extend(plot.iter().enumerate().map(|(mix, response)| Observation {
                configuration,
                mix,
                round: Some(block),
                response: f64::from(*response),
            }));
        }
    }
    let anova = analyse(&[axis], &points, &observed).unwrap();
    let (main, with_mix) = (anova.effects[0].main, anova.effects[0].with_mix.unwrap());
    assert_eq!(
        (anova.between_rounds.degrees_of_freedom, anova.within_rounds.degrees_of_freedom),
        (10, 45)
    );
    near(anova.between_rounds.mean_square, 601.3, 0.05);
    near(anova.within_rounds.mean_square, 177.1, 0.05);
    near(main.f, 1.485, 0.0006);
    near(main.p, 0.272, 0.0006);
    near(with_mix.f, 0.303, 0.0006);
    near(with_mix.p, 0.932, 0.0006);
    assert_eq!((anova.kept, anova.cut), (0, None), "no variety is better than another one");
}

/// All combinations of words, in each mix and round.
fn factorial(
    levels: &[usize],
    mixes: usize,
    rounds: usize,
) -> (Vec<Axis>, Vec<Point>, Vec<Observation>) {
    let axes = levels.iter().map(|count| Axis::Words(*count)).collect();
    let mut points: Vec<Point> = vec![Vec::new()];
    for count in levels {
        let with = |point: &Point| {
            (0..*count).map(|word| [&point[..], &[word as f64]].concat()).collect::<Vec<_>>()
        };
        points = points.iter().flat_map(with).collect();
    }
    let mut observed = Vec::new();
    for configuration in 0..points.len() {
        for mix in 0..mixes {
            observed.extend((0..rounds).map(|round| Observation {
                configuration,
                mix,
                round: Some(round),
                response: 0.0,
            }));
        }
    }
    (axes, points, observed)
}

/// The sum of squares of means by a key, as textbooks print it.
fn of_means<K: Ord>(observed: &[Observation], key: impl Fn(&Observation) -> K) -> f64 {
    let mut groups: BTreeMap<K, Vec<f64>> = BTreeMap::new();
    for one in observed {
        groups.entry(key(one)).or_default().push(one.response);
    }
    let grand = observed.iter().map(|one| one.response).sum::<f64>() / observed.len() as f64;
    let square = |of: &Vec<f64>| {
        let mean = of.iter().sum::<f64>() / of.len() as f64;
        of.len() as f64 * (mean - grand).powi(2)
    };
    groups.values().map(square).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn in_a_balanced_design_sums_of_squares_are_those_of_means(
        levels in prop::collection::vec(2..4_usize, 1..4),
        mixes in 1..4_usize,
        rounds in 2..4_usize,
        seed: u64,
    ) {
        let (axes, points, mut observed) = factorial(&levels, mixes, rounds);
        let mut dice = StdRng::seed_from_u64(seed);
        observed.iter_mut().for_each(|one| one.response = dice.random_range(400.0..9_000.0));
        let anova = analyse(&axes, &points, &observed).unwrap();
        let total = of_means(&observed, |one| (one.configuration, one.mix, one.round));
        let same = |one: f64, two: f64| (one - two).abs() <= 1e-7 * total;
        let mut explained = 0.0;
        let of_mix = of_means(&observed, |one| one.mix);
        for (setting, effect) in anova.effects.iter().enumerate() {
            let level = |one: &Observation| points[one.configuration][setting] as usize;
            let main = of_means(&observed, level);
            prop_assert!(same(effect.main.squares, main), "{effect:?} {main}");
            prop_assert_eq!(effect.main.degrees_of_freedom, levels[setting] - 1);
            explained += main;
            if let Some(with_mix) = effect.with_mix {
                let both = of_means(&observed, |one| (level(one), one.mix)) - main - of_mix;
                prop_assert!(same(with_mix.squares, both), "{effect:?} {both}");
                prop_assert_eq!(with_mix.degrees_of_freedom, (levels[setting] - 1) * (mixes - 1));
                explained += both;
            }
        }
        // The error between rounds: rolls, without configurations and rounds.
        let rolls = of_means(&observed, |one| (one.configuration, one.round))
            - of_means(&observed, |one| one.configuration)
            - of_means(&observed, |one| one.round);
        let freedom = (points.len() - 1) * (rounds - 1);
        prop_assert_eq!(anova.between_rounds.degrees_of_freedom, freedom);
        prop_assert!(same(anova.between_rounds.mean_square * freedom as f64, rolls));
        let shares: f64 = anova.effects.iter().map(|effect| effect.share).sum();
        let left = total - of_mix - of_means(&observed, |one| one.round);
        prop_assert!((shares - explained / left).abs() < 1e-7);
    }

    #[test]
    fn the_largest_fall_cuts_the_list(shares in prop::collection::vec(0.001..1.0_f64, 1..8), counting in 0..8_usize) {
        let none = Test { squares: 0.0, degrees_of_freedom: 1, f: 0.0, p: 1.0 };
        let effect = |(setting, share): (usize, &f64)| Effect {
            main: none,
            with_mix: None,
            share: *share,
            share_by_chance: 0.0005,
            p: if setting < counting { 0.01 } else { 0.5 },
        };
        let effects: Vec<Effect> = shares.iter().enumerate().map(effect).collect();
        let (ranked, kept, cut) = ranking(&effects);
        let mut by_share: Vec<f64> = shares.iter().take(counting).copied().collect();
        by_share.sort_by(|one, two| two.total_cmp(one));
        for (setting, share) in ranked.iter().zip(&by_share) {
            prop_assert_eq!(shares[*setting], *share);
        }
        prop_assert_eq!(kept == 0, by_share.is_empty());
        by_share.push(0.0005);
        if let Some(Cut { from, to, is_to_chance }) = cut {
            prop_assert_eq!(is_to_chance, kept + 1 == by_share.len());
            prop_assert_eq!((from, to), (by_share[kept - 1], by_share[kept]));
            for pair in by_share.windows(2) {
                prop_assert!(pair[1] / pair[0] >= to / from - 1e-12);
            }
        }
    }
}

/// Twelve configurations of four settings, drawn at will, three mixes, two rounds.
fn drawn(dice: &mut StdRng) -> (Vec<Axis>, Vec<Point>, Vec<Observation>) {
    let axes = vec![
        Axis::number(16.0, 64.0),
        Axis::number(32.0, 64.0),
        Axis::Words(3),
        Axis::number(0.0, 1.0),
    ];
    let point = |dice: &mut StdRng| -> Point {
        let value = |axis: &Axis| match axis {
            Axis::Words(words) => dice.random_range(0..*words) as f64,
            number @ Axis::Number { .. } => number.value(dice.random()),
        };
        axes.iter().map(value).collect()
    };
    let points: Vec<Point> = (0..16).map(|_| point(dice)).collect();
    let mut observed = Vec::new();
    for configuration in 0..points.len() {
        for mix in 0..3 {
            observed.extend((0..2).map(|round| Observation {
                configuration,
                mix,
                round: Some(round),
                response: 0.0,
            }));
        }
    }
    (axes, points, observed)
}

#[test]
fn permuted_responses_rank_no_setting_above_noise() {
    let mut dice = StdRng::seed_from_u64(11);
    let runs = 200;
    let mut wrong = 0;
    for _ in 0..runs {
        let (axes, points, mut observed) = drawn(&mut dice);
        // A response with strong effects, whose order is then lost.
        let mut responses: Vec<f64> = observed
            .iter()
            .map(|one| points[one.configuration][0] + dice.random_range(0.0..20.0))
            .collect();
        responses.shuffle(&mut dice);
        for (one, response) in observed.iter_mut().zip(responses) {
            one.response = response;
        }
        wrong += usize::from(analyse(&axes, &points, &observed).unwrap().kept > 0);
    }
    // One of twenty is what the level promises; beyond one of ten is no chance (P < 0.002).
    assert!(wrong <= runs / 10, "{wrong} of {runs}");
}

#[test]
fn a_roll_that_was_special_is_no_effect_of_its_settings() {
    let mut dice = StdRng::seed_from_u64(3);
    let runs = 200;
    let mut wrong = 0;
    for _ in 0..runs {
        let (axes, points, mut observed) = drawn(&mut dice);
        let special: Vec<f64> =
            (0..2 * points.len()).map(|_| dice.random_range(0.0..9.0)).collect();
        for one in &mut observed {
            let roll = 2 * one.configuration + one.round.unwrap();
            one.response = special[roll] + dice.random_range(0.0..1.0);
        }
        wrong += usize::from(analyse(&axes, &points, &observed).unwrap().kept > 0);
    }
    assert!(wrong <= runs / 10, "{wrong} of {runs}");
}

#[test]
fn what_helps_reads_and_harms_writes_is_found_though_its_mean_is_nothing() {
    let mut dice = StdRng::seed_from_u64(5);
    let (axes, points, mut observed) = drawn(&mut dice);
    for one in &mut observed {
        let point = &points[one.configuration];
        let for_reads = [-1.0, 0.0, 1.0][one.mix] * [-1.0, 0.0, 1.0][point[2] as usize];
        let of_all = 0.5 * axes[0].unit(point[0]);
        one.response = for_reads + of_all + dice.random_range(-0.1..0.1);
    }
    let anova = analyse(&axes, &points, &observed).unwrap();
    assert_eq!((&anova.ranked[..2], anova.kept), (&[2, 0][..], 2), "{anova:?}");
    let compaction = anova.effects[2];
    assert!(compaction.with_mix.unwrap().p < 1e-6 && compaction.main.p > 0.001, "{compaction:?}");
    let cut = anova.cut.unwrap();
    assert!(cut.from > 3.0 * cut.to, "{cut:?}");
}

#[test]
fn settings_that_do_something_together_are_a_lack_of_fit() {
    let (axes, points, mut observed) = factorial(&[2, 2, 2], 2, 2);
    let mut dice = StdRng::seed_from_u64(9);
    for one in &mut observed {
        let point = &points[one.configuration];
        let together = f64::from(u8::from(point[0] == point[1]));
        one.response = 3.0 * together + dice.random_range(0.0..0.5);
    }
    let anova = analyse(&axes, &points, &observed).unwrap();
    assert!(anova.lack_of_fit.unwrap().p < 0.01, "{anova:?}");
    assert_eq!(anova.kept, 0, "{anova:?}");
}

#[test]
fn what_was_measured_once_is_compared_with_what_the_settings_leave() {
    let (axes, points, mut observed) = factorial(&[3, 3], 2, 1);
    let mut dice = StdRng::seed_from_u64(1);
    for one in &mut observed {
        one.response = points[one.configuration][0] + dice.random_range(0.0..0.2);
    }
    let anova = analyse(&axes, &points, &observed).unwrap();
    assert!(anova.is_without_replicates && anova.lack_of_fit.is_none());
    assert_eq!(
        (anova.between_rounds.degrees_of_freedom, anova.within_rounds.degrees_of_freedom),
        (4, 4)
    );
    assert_eq!((anova.ranked[0], anova.kept), (0, 1), "{anova:?}");
}

#[test]
fn too_little_is_said() {
    let (axes, points, observed) = factorial(&[2], 3, 1);
    let too_few = AnovaError::TooFew { configurations: 2, terms: 1 };
    assert_eq!(analyse(&axes, &points, &observed), Err(too_few));
    let same = vec![vec![1.0]; points.len()];
    assert_eq!(analyse(&axes, &same, &observed), Err(AnovaError::Alike));
    assert_eq!(analyse(&axes, &points, &[]), Err(AnovaError::Alike));
    // Two settings that always go together, and one that does not.
    let (axes, mut points, observed) = factorial(&[2, 2, 2], 1, 2);
    points.iter_mut().for_each(|point| point[2] = point[0]);
    assert_eq!(analyse(&axes, &points, &observed), Err(AnovaError::Together(vec![0, 2])));
    // Replicates that are equal to the last digit leave no error; a difference is then beyond it.
    let (axes, points, mut observed) = factorial(&[2], 1, 2);
    observed.iter_mut().for_each(|one| one.response = one.configuration as f64);
    let anova = analyse(&axes, &points, &observed).unwrap();
    assert_eq!((anova.effects[0].main.f, anova.effects[0].p, anova.kept), (f64::INFINITY, 0.0, 1));
    observed.iter_mut().for_each(|one| one.response = 7.0);
    let anova = analyse(&axes, &points, &observed).unwrap();
    assert_eq!((anova.effects[0].main.f, anova.kept), (0.0, 0));
}
