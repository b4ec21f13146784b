//! The surrogate on response surfaces that are known.

use rand::rngs::StdRng;
use rand::{Rng, RngExt as _, SeedableRng as _};

use super::super::design::{Column, draw};
use super::*;

/// Readers, memory for writes, a strategy of compaction.
fn axes() -> Vec<Axis> {
    vec![Axis::number(16.0, 64.0), Axis::number(32.0, 64.0), Axis::Words(2)]
}

/// Operations a second, without noise. Each operation takes its time, so that a mix serves the harmonic mean of what its
/// kinds do; readers help reads up to a point, memory helps writes, and the strategies favour one of them each.
fn surface(point: &[f64], mix: Mix) -> f64 {
    let [reads, updates, ..] = mix.shares();
    let axes = axes();
    let (readers, memory) = (axes[0].unit(point[0]), axes[1].unit(point[1]));
    let for_reads = point[2];
    let of_reads = 2_200.0 * (1.0 + 0.5 * readers - 0.3 * readers * readers + 0.35 * for_reads);
    let of_updates = 2_600.0 * (1.0 + 0.25 * memory - 0.25 * for_reads);
    1.0 / (reads / of_reads + updates / of_updates)
}

/// Twelve configurations and five mixes, each measured twice with a normal error of this standard deviation.
fn cells(deviation: f64, dice: &mut StdRng) -> Vec<Cell> {
    let column = |axis: &Axis| match axis {
        Axis::Number { .. } => Column { axis: *axis, values: None, is_whole: true },
        Axis::Words(_) => Column { axis: *axis, values: Some(vec![0.0, 1.0]), is_whole: true },
    };
    let columns: Vec<Column> = axes().iter().map(column).collect();
    let points = draw(&columns, &[], 12, dice).unwrap();
    let mut cells = Vec::new();
    for (configuration, point) in points.iter().enumerate() {
        for mix_number in 0..5 {
            let mix = Mix::of_reads(0.25 * mix_number as f64);
            let measured =
                |dice: &mut StdRng| surface(point, mix) * (1.0 + deviation * normal(dice));
            let rate_s = (measured(dice) + measured(dice)) / 2.0;
            cells.push(Cell { configuration, point: point.clone(), mix_number, mix, rate_s });
        }
    }
    cells
}

/// A normal number, as the sum of twelve even ones.
fn normal(dice: &mut impl Rng) -> f64 {
    (0..12).map(|_| dice.random::<f64>()).sum::<f64>() - 6.0
}

#[test]
fn with_an_error_of_five_percent_in_each_measurement_mixes_that_were_left_out_are_predicted_within_seven_and_a_half()
 {
    for seed in 0..2 {
        let cells = cells(0.05, &mut StdRng::seed_from_u64(seed));
        let told = validate(&axes(), &cells, seed).unwrap();
        let (mixes, configurations) = (told.mixes.unwrap(), told.configurations);
        assert!(mixes.mean <= 0.075, "{told:?}");
        assert!(configurations.mean <= 0.075, "{told:?}");
        assert_eq!((mixes.cells, configurations.cells), (60, 60));
        assert!(configurations.mean < 0.7 * told.without_settings.mean, "{told:?}");
        // What was never measured is predicted as well: beside the surface itself.
        let surrogate = Surrogate::fit(told.chosen, &axes(), &cells, seed);
        let mut dice = StdRng::seed_from_u64(100 + seed);
        let error = |dice: &mut StdRng| {
            let point = vec![
                dice.random_range(16.0..64.0),
                dice.random_range(32.0..64.0),
                f64::from(dice.random_range(0..2_u8)),
            ];
            let mix = Mix::of_reads(dice.random_range(0.0..1.0));
            let real = surface(&point, mix);
            (surrogate.rate_s(&point, mix) - real).abs() / real
        };
        let mean = (0..200).map(|_| error(&mut dice)).sum::<f64>() / 200.0;
        assert!(mean < 0.05, "{mean} {:?}", told.chosen);
    }
}

#[test]
fn where_settings_do_nothing_the_mean_of_the_others_is_as_good_and_the_error_says_so() {
    let mut dice = StdRng::seed_from_u64(8);
    let mut cells = cells(0.0, &mut dice);
    for cell in &mut cells {
        cell.rate_s = 2_000.0 * (1.0 + 0.1 * normal(&mut dice));
    }
    let told = validate(&axes(), &cells, 1).unwrap();
    assert!(told.configurations.mean > 0.85 * told.without_settings.mean, "{told:?}");
    assert!(
        told.configurations.mean > 0.05,
        "an error is not measured on what was learned: {told:?}"
    );
}

#[test]
fn a_choice_is_never_made_with_what_it_is_measured_on() {
    // One configuration is so odd that it could be known only by having been seen.
    let mut cells = cells(0.0, &mut StdRng::seed_from_u64(2));
    cells.iter_mut().filter(|cell| cell.configuration == 3).for_each(|cell| cell.rate_s *= 5.0);
    let told = validate(&axes(), &cells, 0).unwrap();
    // Its five cells are off by four fifths each, and so is the mean at the least.
    assert!(told.configurations.mean > 0.5 * 5.0 / 60.0, "{told:?}");
    for by in [FoldBy::Mix, FoldBy::Configuration] {
        let mut seen = 0;
        for (left_in, left_out) in by.folds(&cells, FOLDS) {
            assert!(left_out.iter().all(|out| left_in.iter().all(|one| by.of(one) != by.of(out))));
            assert_eq!(left_in.len() + left_out.len(), cells.len());
            seen += left_out.len();
        }
        assert_eq!(seen, cells.len(), "each is left out once");
    }
}

#[test]
fn steps_are_learned_by_the_forest_and_curves_by_a_process() {
    let mut dice = StdRng::seed_from_u64(6);
    // Five settings do nothing.
    let axes = [Axis::number(0.0, 1.0); 6];
    let cells = |of: &dyn Fn(&[f64]) -> f64, dice: &mut StdRng| -> Vec<Cell> {
        (0..40)
            .map(|configuration| {
                let point: Point = (0..6).map(|_| dice.random::<f64>()).collect();
                let rate_s = of(&point) * (1.0 + 0.01 * normal(dice));
                let mix = Mix::of_reads(1.0);
                Cell { configuration, point, mix_number: 0, mix, rate_s }
            })
            .collect()
    };
    let steps = cells(&|at| if at[0] > 0.37 { 9_000.0 } else { 1_000.0 }, &mut dice);
    let told = validate(&axes, &steps, 3).unwrap();
    assert_eq!((told.chosen, told.mixes), (Kind::Forest, None), "{told:?}");
    let curve = cells(&|at| 2_000.0 * (1.0 + at[0] + at[1] * at[1]), &mut dice);
    assert_ne!(validate(&axes, &curve, 3).unwrap().chosen, Kind::Forest);
}

#[test]
fn too_few_are_said() {
    let cells = cells(0.0, &mut StdRng::seed_from_u64(2));
    let few: Vec<Cell> = cells.into_iter().filter(|cell| cell.configuration < 3).collect();
    assert_eq!(validate(&axes(), &few, 0), Err(TooFew { found: 3 }));
}
