//! Linear functions beside the solution of the normal equations.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::design::regression::Linear;

#[test]
fn a_function_is_learned_as_least_squares_would_have_it() {
    let mut dice = StdRng::seed_from_u64(3);
    let mut learned = Linear::<2>::new([1.0, 0.1]);
    let mut samples = Vec::new();
    for _ in 0..6_000 {
        let (rows, partitions) = (dice.random_range(0.0..200.0), dice.random_range(0.0..8.0));
        let noise = dice.random_range(-4.0..4.0);
        let us = 30.0 + 0.5 * rows + 6.0 * partitions + noise;
        samples.push((rows, partitions, us));
        learned.observe([rows, partitions], us);
    }
    let best = least_squares(&samples);
    for (rows, partitions) in [(0.0, 0.0), (10.0, 1.0), (150.0, 7.0)] {
        let exact = best[0] + best[1] * rows + best[2] * partitions;
        let told = learned.predict([rows, partitions]);
        assert!((told - exact).abs() <= 0.05 * exact, "{told} and {exact}");
    }
    assert!(learned.r_squared().unwrap() > 0.97, "{:?}", learned.r_squared());
}

/// The normal equations of a constant and two inputs, by Gauss.
fn least_squares(samples: &[(f64, f64, f64)]) -> [f64; 3] {
    let mut matrix = [[0.0; 4]; 3];
    for (one, two, out) in samples {
        let row = [1.0, *one, *two, *out];
        for n in 0..3 {
            for m in 0..4 {
                matrix[n][m] += row[n] * row[m];
            }
        }
    }
    for n in 0..3 {
        for m in 0..3 {
            if m != n {
                let factor = matrix[m][n] / matrix[n][n];
                let subtracted = matrix[n];
                for (value, other) in matrix[m].iter_mut().zip(subtracted) {
                    *value -= factor * other;
                }
            }
        }
    }
    [0, 1, 2].map(|n| matrix[n][3] / matrix[n][n])
}

#[test]
fn outliers_and_wild_inputs_spoil_nothing() {
    let mut dice = StdRng::seed_from_u64(9);
    let mut learned = Linear::<1>::new([0.1]);
    for n in 0..5_000 {
        let cpu = dice.random_range(0.0..1.0);
        // Every fiftieth is a pause of half a second.
        let us = if n % 50 == 0 { 500_000.0 } else { 100.0 + 300.0 * cpu };
        learned.observe([cpu], us);
        if n % 100 == 0 {
            learned.observe([f64::NAN], 1.0);
            learned.observe([1e300], 1e300);
            learned.observe([0.5], f64::INFINITY);
        }
    }
    let told = learned.predict([0.5]);
    assert!((200.0..400.0).contains(&told), "{told}");
    assert!(learned.predict([1e300]).is_finite());
}

#[test]
fn a_function_that_saw_nothing_says_so() {
    let mut none = Linear::<1>::new([0.1]);
    assert_eq!((none.predict([0.7]), none.r_squared()), (0.0, None));
    for _ in 0..99 {
        none.observe([0.7], 250.0);
    }
    assert_eq!(none.r_squared(), None, "19 held-out samples are too few");
    none.observe([0.7], 250.0);
    assert!(none.r_squared().unwrap() > 0.9, "{:?}", none.r_squared());
}
