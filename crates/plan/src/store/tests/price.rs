//! Prices beside what is counted by hand, key by key.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{layouts, learned, transactions};
use crate::store::cost::CostModel;
use crate::store::layout::{Layout, Operator, Partition, Site};
use crate::store::price::{CPU_WEIGHT, Price, Situation, price, price_by};
use crate::store::regimes::Expected;
use crate::store::workload::{Accesses, Numbered, Sample};

const RATE_S: f64 = 12_000.0;

type Weighed = Vec<(f64, Sample<String>)>;

fn weighed(samples: Vec<Sample<String>>) -> Weighed {
    samples.into_iter().zip(1..).map(|(one, n)| (f64::from(n % 5) * 0.5 + 0.5, one)).collect()
}

fn with_situation<R>(samples: &Weighed, run: impl FnOnce(&Situation<'_, String>) -> R) -> R {
    let (cost, lag_entries): (CostModel, _) = (learned(), BTreeMap::from([(1, 400.0), (2, 30.0)]));
    run(&Situation {
        samples,
        rate_s: RATE_S,
        population: 64.0,
        cost: &cost,
        lag_entries: &lag_entries,
        cpu_weight: CPU_WEIGHT,
        expected: Expected::default(),
    })
}

/// The partitions of the keys that a transaction writes, each once.
fn written<'l>(layout: &'l Layout<String>, sample: &Sample<String>) -> Vec<&'l Partition> {
    let by_start: BTreeMap<_, _> = sample.writes.iter().map(|key| layout.of(key)).collect();
    by_start.into_values().collect()
}

fn can_run(layout: &Layout<String>, sample: &Sample<String>, site: Site) -> bool {
    let mut read = sample.reads.iter().flat_map(|(from, end)| layout.within(from, end.as_ref()));
    written(layout, sample).iter().all(|one| one.master == site)
        && read.all(|(_, one)| one.is_at(site))
}

/// The share of transactions that some site can run, and of these that write: rows written at their masters, and rows
/// that other sites apply, a second.
fn by_hand(layout: &Layout<String>, samples: &Weighed) -> (f64, f64, f64) {
    let all: f64 = samples.iter().map(|(weight, _)| weight).sum();
    let (mut able, mut wrote, mut applied) = (0.0, 0.0, 0.0);
    for (weight, sample) in samples {
        if !layout.sites().iter().any(|site| can_run(layout, sample, site)) {
            continue;
        }
        able += weight / all;
        let rows_s = RATE_S * weight / all * f64::from(sample.rows_written);
        let partitions = written(layout, sample);
        if let Some(first) = partitions.first() {
            wrote += rows_s;
            let others = |one: &&Partition| {
                let copied = |site: &Site| one.is_at(*site) && *site != first.master;
                layout.sites().iter().filter(copied).count() as f64
            };
            let each = rows_s / partitions.len() as f64;
            applied += each * partitions.iter().map(others).sum::<f64>();
        }
    }
    (able, wrote, applied)
}

fn is_near(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-6 * one.abs().max(other.abs()).max(1.0)
}

fn sum_of(price: &Price, load: usize) -> f64 {
    price.loads.values().map(|loads| loads[load]).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_sites_can_run_and_apply_is_counted_key_by_key(
        layout in layouts(), samples in transactions(),
    ) {
        // Where no site can run it is for the price to choose: those are left out.
        let samples: Vec<_> = samples
            .into_iter()
            .filter(|one| layout.sites().iter().any(|site| can_run(&layout, one, site)))
            .collect();
        prop_assume!(!samples.is_empty());
        let samples = weighed(samples);
        let is = with_situation(&samples, |situation| price(&layout, situation));
        let (able, wrote, applied) = by_hand(&layout, &samples);
        prop_assert!(is_near(is.single_site, able), "{} {able}", is.single_site);
        prop_assert!(is_near(sum_of(&is, 1), wrote), "{} {wrote}", sum_of(&is, 1));
        prop_assert!(is_near(sum_of(&is, 2), applied), "{} {applied}", sum_of(&is, 2));
    }

    #[test]
    fn a_share_of_transactions_can_run_somewhere(layout in layouts(), samples in transactions()) {
        let samples = weighed(samples);
        let is = with_situation(&samples, |situation| price(&layout, situation));
        let (able, ..) = by_hand(&layout, &samples);
        prop_assert!(is_near(is.single_site, able), "{} {able}", is.single_site);
    }

    #[test]
    fn masters_and_replicas_leave_accesses_as_they_are(
        layout in layouts(), samples in transactions(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..4_u16, 0..3), 1..8),
    ) {
        let samples = weighed(samples);
        let numbered = Numbered::new(&layout);
        let accesses = Accesses::of(&numbered, &samples);
        let mut after = layout.clone();
        for (at, site, kind) in changes {
            let start = numbered.start(at.index(layout.len())).clone();
            _ = after.apply(&match kind {
                0 => Operator::AddReplica(start, site),
                1 => Operator::RemoveReplica(start, site),
                _ => Operator::Remaster(start, site),
            });
        }
        with_situation(&samples, |situation| {
            assert_eq!(price_by(&accesses, &after, situation), price(&after, situation));
        });
    }
}
