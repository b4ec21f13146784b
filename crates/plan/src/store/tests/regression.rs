//! Linear functions beside the solution of the normal equations.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::store::cost::{CostModel, SiteRates};
use crate::store::regression::Linear;

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
fn a_function_with_a_prior_stays_sound_whatever_comes_first() {
    for first in [0.0, 1e-9, 0.3, 40.0, 1e12] {
        let mut queue = Linear::<1>::new([0.1]).with_prior([1.0]).rising().with_replay(40);
        queue.observe([first], 50.0);
        for n in 0..600_u32 {
            let at_site = f64::from(n % 17);
            queue.observe([at_site], 40.0 + 250.0 * at_site);
        }
        let told = queue.predict([10.0]);
        assert!((1_800.0..3_400.0).contains(&told), "{told} after {first}");
    }
}

#[test]
fn inputs_that_rise_together_keep_what_they_are_worth_against_each_other() {
    // A site's reads and writes as long as all sites have the same mix; in truth a write costs thirty reads.
    let mut cpu =
        Linear::<3>::new([10.0; 3]).with_prior([1.0, 30.0, 12.0]).rising().with_replay(60);
    for n in 0..300_u32 {
        let share = 0.1 + f64::from(n % 10) / 11.0;
        let (reads, writes) = (600_000.0 * share, 3_000.0 * share);
        cpu.observe([reads, writes, 0.0], (reads + 30.0 * writes) * 1e-6);
    }
    let (of_reads, of_writes) =
        (cpu.predict([600_000.0, 0.0, 0.0]), cpu.predict([0.0, 3_000.0, 0.0]));
    assert!((0.4..0.75).contains(&of_reads), "{of_reads}");
    assert!((0.05..0.25).contains(&of_writes), "{of_writes}");
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

#[test]
fn what_comes_once_among_many_zeros_is_not_expected_again() {
    let mut lock = Linear::new([0.01]).rising();
    (0..300).for_each(|_| lock.observe([0.2], 0.0));
    assert_eq!(lock.predict([0.2]), 0.0);
    lock.observe([0.2], 9_000.0);
    assert!(lock.predict([0.2]) < 200.0, "{}", lock.predict([0.2]));
}

#[test]
fn a_store_that_was_filled_before_it_is_read_learns_what_reads_cost() {
    // Site 0 is filled with 60,000 rows a second, and then scanned; three other sites are idle all the time.
    let mut cpu = Linear::<3>::new([10.0; 3])
        .with_prior([1.0, 30.0, 12.0])
        .rising()
        .proportional()
        .with_replay(60);
    let cost = |[reads, writes, _]: [f64; 3]| reads * 0.3e-6 + writes * 9e-6;
    let learn = |cpu: &mut Linear<3>, inputs: [f64; 3]| {
        cpu.observe(inputs, cost(inputs));
        (0..3).for_each(|_| cpu.observe([0.0; 3], 0.0));
    };
    (0..6).for_each(|n| learn(&mut cpu, [f64::from(n) * 2.0, 60_000.0, 0.0]));
    let mix = |n: u32| {
        let share = 1.0 + f64::from(n % 5) / 20.0;
        [1_600_000.0 * share, 8_000.0 * share, 0.0]
    };
    (0..30).for_each(|n| learn(&mut cpu, mix(n)));
    for share in [0.25, 0.5, 1.0, 1.5] {
        let inputs = mix(0).map(|rate_s| rate_s * share);
        let (told, exact) = (cpu.predict(inputs), cost(inputs));
        assert!((told - exact).abs() <= 0.2 * exact, "{told} and {exact} at {share} of the load");
    }
}

#[test]
fn what_a_transaction_costs_beside_its_rows_is_learned() {
    // Four sites of one store: a master, which runs 85 % of the transactions (two rows read, one written), and replicas
    // that apply its rows and run what only reads; the master's share of the reads rises and falls.
    let mut cpu = CostModel::default().cpu;
    let cost = |[read, written, applied, run]: SiteRates| {
        read * 0.4e-6 + written * 3e-6 + applied * 2.2e-6 + run * 6e-6
    };
    for n in 0..120_u32 {
        let all = 20_000.0 + 1_000.0 * f64::from(n % 7);
        let (writing, reading) = (0.85 * all, 0.15 * all * f64::from(n % 5) / 4.0);
        let master = [2.0 * (writing + reading), writing, 0.0, writing + reading];
        let elsewhere = (0.15 * all - reading) / 3.0;
        let replica = [2.0 * elsewhere, 0.0, writing, elsewhere];
        cpu.observe(master, cost(master));
        (0..3).for_each(|_| cpu.observe(replica, cost(replica)));
    }
    let reads = |rate_s: f64| [2.0 * rate_s, 0.0, 0.0, rate_s];
    let (is, was) = (cost(reads(3_000.0)), cpu.predict(reads(3_000.0)));
    assert!((0.6..1.4).contains(&(was / is)), "{was} of {is}");
}
