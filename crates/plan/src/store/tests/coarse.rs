//! Tests of coarse samples: they say of each design that could be decided on what the samples say.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{layouts, transactions, user, users};
use crate::store::coarse::{coarse, starts};
use crate::store::layout::{Layout, Operator};
use crate::store::workload::{Numbered, Sample};

type Weighed = Vec<(f64, Sample<String>)>;

/// The partitions read and written, with the weight of the samples that touch just these, and of their rows.
fn seen(layout: &Layout<String>, samples: &Weighed) -> BTreeMap<(Vec<usize>, Vec<usize>), u64> {
    let numbered = Numbered::new(layout);
    let mut seen = BTreeMap::new();
    for (weight, sample) in samples {
        let touched = numbered.touched(sample);
        *seen.entry((touched.reads, touched.writes)).or_default() += (weight * 4.0) as u64;
    }
    seen
}

fn rows(samples: &Weighed) -> (f64, f64) {
    let of = |(weight, sample): &(f64, Sample<String>)| {
        (weight * f64::from(sample.rows_read), weight * f64::from(sample.rows_written))
    };
    samples.iter().map(of).fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn by_any_design_that_splits_at_pieces_they_touch_the_same(
        layout in layouts(), samples in transactions(), splits in proptest::collection::vec(any::<prop::sample::Index>(), 0..4),
        split_above in 0.1..2.0,
    ) {
        let samples: Weighed =
            samples.into_iter().zip(1..).map(|(one, n)| (f64::from(n % 7) * 0.25 + 0.25, one)).collect();
        let coarse = coarse(&layout, &samples, split_above);
        prop_assert!(coarse.len() <= samples.len());
        let starts = starts(&layout, &samples, split_above);
        let mut design = layout.clone();
        for split in splits {
            _ = design.apply(&Operator::Split(starts[split.index(starts.len())].clone()));
        }
        prop_assert_eq!(seen(&design, &coarse), seen(&design, &samples));
        let weight = coarse.iter().map(|(weight, _)| weight).sum::<f64>();
        let (fine, rounded) = (rows(&samples), rows(&coarse));
        prop_assert!((fine.0 - rounded.0).abs() <= weight / 2.0 + 1e-6, "{fine:?} {rounded:?}");
        prop_assert!((fine.1 - rounded.1).abs() <= weight / 2.0 + 1e-6, "{fine:?} {rounded:?}");
    }
}

fn write_of(keys: &[u64]) -> Sample<String> {
    let writes = keys.iter().map(|n| user(*n)).collect();
    Sample { reads: Vec::new(), writes, rows_read: 3, rows_written: 3 }
}

#[test]
fn a_partition_that_is_hardly_used_is_one_piece_and_a_hot_key_is_one() {
    let layout = users(&[(0, &[]), (1, &[])]);
    let hot = (0..100).map(|_| write_of(&[77, 78, 79]));
    let warm = (0..100).map(|n| write_of(&[200 + n, 500 + n]));
    let cold = (0..20).map(|n| write_of(&[1_000 + n]));
    let samples: Weighed = hot.chain(warm).chain(cold).map(|one| (1.0, one)).collect();
    let starts = starts(&layout, &samples, 1.5);
    let expected =
        [0, 200, 232, 264, 296, 1_000].map(|n| if n == 0 { String::new() } else { user(n) });
    assert_eq!(starts, expected);
    let coarse = coarse(&layout, &samples, 1.5);
    assert!(coarse.len() < 20, "{coarse:?}");
    assert!(coarse.contains(&(100.0, Sample { writes: vec![String::new()], ..write_of(&[]) })));
}
