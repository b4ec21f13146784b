//! Oracles for statistics, regression and plans, and what is decided for workloads that are told by hand.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::considered::{Considered, Hold, Rejected};
use super::cost::{CostModel, Inputs, Measured, Operation, Uses};
use super::decide::{Decided, decide, emulated};
use super::layout::{Layout, Operator, Partition, Site};
use super::parameters::Parameters;
use super::plans::{Thresholds, View, necessary, plans};
use super::price::{CPU_WEIGHT, Situation};
use super::regimes::Expected;
use super::workload::{CoAccess, Numbered, Sample, Statistics, Touched};

mod coarse;
mod guardrails;
mod limits;
mod periods;
mod price;
mod redesigns;
mod regression;
mod removals;
mod triggers;
mod uncertain;
mod waves;

fn user(n: u64) -> String {
    format!("user:{n:010}")
}

/// Partitions of a thousand users each, at these masters, with replicas, over sites 0 to 3.
pub(super) fn users(of: &[(Site, &[Site])]) -> Layout<String> {
    let partition = |(n, (master, replicas)): (usize, &(Site, &[Site]))| {
        let start = if n == 0 { String::new() } else { user(n as u64 * 1_000) };
        let replicas = replicas.iter().copied().collect();
        let pin = None;
        (start, Partition { master: *master, replicas, rows: 1_000, bytes: 300_000, pin })
    };
    Layout::new(of.iter().enumerate().map(partition).collect(), (0..4).collect())
}

pub(super) fn writes(keys: impl IntoIterator<Item = u64>) -> Sample<String> {
    let writes: Vec<String> = keys.into_iter().map(user).collect();
    let rows = writes.len() as u32;
    Sample { reads: Vec::new(), writes, rows_read: rows, rows_written: rows }
}

fn scan(from: u64, rows: u32) -> Sample<String> {
    let reads = vec![(user(from), Some(user(from + u64::from(rows))))];
    Sample { reads, writes: Vec::new(), rows_read: rows, rows_written: 0 }
}

/// A model that has learned what this store could take: a site is saturated by 100,000 rows read a second, and a
/// transaction costs what its rows cost.
pub(super) fn learned() -> CostModel {
    let mut model = CostModel::default();
    let mut dice = StdRng::seed_from_u64(11);
    for _ in 0..4_000 {
        let mut random = |max: f64| dice.random_range(0.0..max);
        let inputs = Inputs {
            queued_work_us: random(20_000.0),
            other_queued_work_us: 0.0,
            lag_entries: random(2_000.0),
            update_share: random(1.0),
            contention: random(0.5),
            rows: (random(300.0), random(20.0)),
            copied: 0.0,
            partitions: (random(4.0), random(4.0)),
        };
        let measured = Measured {
            service: Some(inputs.queued_work_us),
            wait_updates: Some(10.0 + 0.05 * inputs.lag_entries + 20.0 * inputs.update_share),
            lock: Some(5.0 + 200.0 * inputs.contention),
            read_write: Some(3.0 + 0.5 * inputs.rows.0 + 2.0 * inputs.rows.1),
            commit: Some(20.0 + inputs.partitions.0 + 5.0 * inputs.partitions.1),
        };
        let all = Operation::Transaction { reads: true, writes: true };
        model.observe(all, &inputs, &measured);
        let load = [random(100_000.0), random(50_000.0), random(50_000.0), random(50_000.0)];
        let cpu = 0.01 + load[0] * 1e-5 + load[1] * 2e-5 + load[2] * 1e-5;
        model.cpu.observe(load, cpu);
    }
    model
}

fn decided(
    layout: &Layout<String>,
    samples: &[Sample<String>],
    rate_s: f64,
    parameters: &Parameters,
) -> Decided<String> {
    let mut dice = StdRng::seed_from_u64(5);
    let samples = emulated(layout, samples.to_vec(), 50, &mut dice);
    let (cost, lag_entries) = (learned(), BTreeMap::new());
    let known = Situation {
        samples: &samples,
        rate_s,
        population: 30.0,
        cost: &cost,
        lag_entries: &lag_entries,
        cpu_weight: CPU_WEIGHT,
        expected: Expected::default(),
    };
    decide(layout, &known, parameters, &|_, _| None, &[], &mut dice)
}

fn chosen(decided: &Decided<String>) -> Vec<Operator<String>> {
    decided.chosen().flat_map(|plan| plan.operators.clone()).collect()
}

#[test]
fn operations_use_the_functions_of_table_1() {
    let row = |operation: Operation| {
        let Uses { service, wait_updates, lock, read_write, commit } = operation.uses();
        [service, wait_updates, lock, read_write, commit].map(|used| if used { 'x' } else { '.' })
    };
    let table = [
        (Operation::Transaction { reads: true, writes: true }, "xxxxx"),
        (Operation::Transaction { reads: true, writes: false }, "xx.xx"),
        (Operation::Transaction { reads: false, writes: true }, "x.xxx"),
        (Operation::Remaster, "xxx.x"),
        (Operation::Split, "x.x.x"),
        (Operation::Merge, "x.x.x"),
        (Operation::AddReplica, "x..x."),
        (Operation::RemoveReplica, "x...."),
    ];
    for (operation, functions) in table {
        assert_eq!(String::from_iter(row(operation)), functions, "{operation:?}");
    }
}

/// P(·|·) as it is defined: of the samples with the one, those with the other.
fn given(all: &[Touched], kind: CoAccess, one: usize, two: usize) -> f64 {
    let has = |sample: &Touched, partition: usize, writes: bool| {
        if writes { sample.writes.contains(&partition) } else { sample.reads.contains(&partition) }
    };
    let (first, second) = match kind {
        CoAccess::ReadRead => (false, false),
        CoAccess::WriteWrite => (true, true),
        CoAccess::WriteRead => (true, false),
        CoAccess::ReadWrite => (false, true),
    };
    let with_one: Vec<&Touched> = all.iter().filter(|sample| has(sample, one, first)).collect();
    let with_both = with_one.iter().filter(|sample| has(sample, two, second)).count();
    with_both as f64 / with_one.len().max(1) as f64
}

fn layouts() -> impl Strategy<Value = Layout<String>> {
    let partition = (
        0..4_u16,
        prop::collection::btree_set(0..4_u16, 0..4),
        prop::option::weighted(0.1, 0..4_u16),
    );
    let cuts = prop::collection::btree_map(1..40_u64, partition.clone(), 0..12);
    (cuts, partition).prop_map(|(cuts, first)| {
        let whole = |(start, (master, mut replicas, pin)): (
            String,
            (Site, BTreeSet<Site>, Option<Site>),
        )| {
            // A pinned partition is mastered by the site that it is pinned to.
            let master = pin.unwrap_or(master);
            replicas.remove(&master);
            let replicas = replicas.into_iter().collect();
            (start, Partition { master, replicas, rows: 500, bytes: 100_000, pin })
        };
        let all = cuts.into_iter().map(|(n, of)| (user(n * 25), of));
        Layout::new(
            std::iter::once((String::new(), first)).chain(all).map(whole).collect(),
            (0..4).collect(),
        )
    })
}

fn transactions() -> impl Strategy<Value = Vec<Sample<String>>> {
    let write = prop::collection::vec(0..1_000_u64, 1..4).prop_map(writes);
    let read = (0..1_000_u64, 1..300_u32).prop_map(|(from, rows)| scan(from, rows));
    let both = (write.clone(), read.clone()).prop_map(|(write, read)| Sample {
        reads: read.reads,
        rows_read: read.rows_read + write.rows_read,
        ..write
    });
    prop::collection::vec(prop_oneof![write, read, both], 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn statistics_are_what_they_are_defined_as(layout in layouts(), samples in transactions()) {
        let numbered = Numbered::new(&layout);
        let touched: Vec<Touched> = samples.iter().map(|sample| numbered.touched(sample)).collect();
        for (sample, touched) in samples.iter().zip(&touched) {
            let start = |n: &usize| numbered.start(*n).clone();
            let written: BTreeSet<String> = touched.writes.iter().map(start).collect();
            let expected: BTreeSet<String> =
                sample.writes.iter().map(|key| layout.of(key).0.clone()).collect();
            prop_assert_eq!(&written, &expected);
            let read: BTreeSet<String> = touched.reads.iter().map(start).collect();
            let within = sample.reads.iter().flat_map(|(from, end)| layout.within(from, end.as_ref()));
            let expected: BTreeSet<String> =
                within.map(|(start, _)| start.clone()).filter(|start| !written.contains(start)).collect();
            prop_assert_eq!(read, expected);
        }
        let statistics = Statistics::of(layout.len(), touched.iter().map(|of| (1.0, of)));
        let shares = (0..layout.len()).map(|one| statistics.accesses(one)).sum::<f64>();
        prop_assert!((shares - 1.0).abs() < 1e-9);
        for one in 0..layout.len() {
            for two in (0..layout.len()).filter(|two| *two != one) {
                for kind in [CoAccess::ReadRead, CoAccess::WriteWrite, CoAccess::WriteRead, CoAccess::ReadWrite] {
                    let (told, defined) = (statistics.conditional_probability(kind, one, two), given(&touched, kind, one, two));
                    prop_assert!((told - defined).abs() < 1e-9, "{kind:?} {one} {two}: {told} {defined}");
                }
            }
        }
    }

    #[test]
    fn after_a_plan_its_transaction_runs_at_its_site(
        layout in layouts(), samples in transactions(), site in 0..4_u16, replicas_max in 0..4_usize,
    ) {
        let numbered = Numbered::new(&layout);
        let touched: Vec<Touched> = samples.iter().map(|sample| numbered.touched(sample)).collect();
        let statistics = Statistics::of(layout.len(), touched.iter().map(|of| (1.0, of)));
        let thresholds = Thresholds { replicas_max, partitions_max: 14, ..Thresholds::default() };
        let weighed: Vec<(f64, Sample<String>)> = samples.iter().map(|one| (1.0, one.clone())).collect();
        let view = View::new(&numbered, &statistics, &weighed, &thresholds);
        for (sample, touched) in samples.iter().zip(&touched) {
            let Ok(all) = plans(&view, touched, site) else { continue };
            let mut first = layout.clone();
            for operator in necessary(&view, touched, site).unwrap() {
                first.apply(&operator).unwrap();
            }
            let is_there = |layout: &Layout<String>| {
                let read = sample.reads.iter().flat_map(|(from, end)| layout.within(from, end.as_ref()));
                sample.writes.iter().all(|key| layout.of(key).1.master == site)
                    && read.into_iter().all(|(_, one)| one.is_at(site))
            };
            prop_assert!(is_there(&first), "{sample:?}");
            for plan in all {
                let mut after = layout.clone();
                for operator in &plan {
                    after.apply(operator).unwrap();
                }
                // Limits hold, but for what broke them before.
                let replicas = |layout: &Layout<String>, key: &String| layout.of(key).1.replicas.len();
                for (start, one) in after.partitions() {
                    prop_assert!(one.replicas.len() <= replicas_max.max(replicas(&layout, start)), "{plan:?}");
                    prop_assert!(one.pin.is_none_or(|pin| pin == one.master), "{plan:?}");
                }
                prop_assert!(after.len() <= 14.max(layout.len()));
                prop_assert!(thresholds.permits(&layout, &plan), "{plan:?}");
            }
        }
    }

    #[test]
    fn chosen_plans_can_be_applied_and_are_cheaper(layout in layouts(), samples in transactions()) {
        let decided = decided(&layout, &samples, 20_000.0, &Parameters::default());
        let mut after = layout.clone();
        for operator in chosen(&decided) {
            prop_assert!(after.apply(&operator).is_ok());
        }
        prop_assert!(decided.after.total_us <= decided.before.total_us + 1e-9);
        for plan in decided.chosen() {
            prop_assert!(plan.net_us(1.0) > 0.0);
        }
        for plan in &decided.considered {
            prop_assert!(plan.rejected.is_some() || !plan.operators.is_empty());
        }
    }
}

/// Figure 2 of the paper: one trigger for each operator.
mod figure_2 {
    use super::*;

    /// Users of the first partition and the second are written together, each time.
    #[test]
    fn remaster() {
        let layout = users(&[(0, &[]), (1, &[0]), (2, &[]), (3, &[])]);
        let samples: Vec<_> =
            (0..100).map(|n| writes([n * 9 % 1_000, 1_000 + n * 7 % 1_000])).collect();
        let decided = decided(&layout, &samples, 2_000.0, &Parameters::default());
        assert!(decided.before.single_site < 0.01 && decided.after.single_site > 0.99);
        let operators = chosen(&decided);
        assert!(operators.iter().any(|one| matches!(one, Operator::Remaster(..))), "{operators:?}");
    }

    /// All is read at one site, which is busy; nothing is written.
    #[test]
    fn add_replica() {
        let layout = users(&[(0, &[]), (1, &[]), (2, &[]), (3, &[])]);
        let samples: Vec<_> = (0..200).map(|n| scan(n * 13 % 900, 100)).collect();
        let decided = decided(&layout, &samples, 1_200.0, &Parameters::default());
        let operators = chosen(&decided);
        assert!(
            operators.iter().any(|one| matches!(one, Operator::AddReplica(..))),
            "{operators:?}"
        );
        assert!(
            decided.after.cpu.values().all(|cpu| *cpu < 0.8 * decided.before.cpu[&0]),
            "{decided:?}"
        );
    }

    /// A partition that has replicas everywhere is written all the time, and is not read.
    #[test]
    fn remove_replica() {
        let layout = users(&[(0, &[1, 2, 3]), (1, &[]), (2, &[]), (3, &[])]);
        let samples: Vec<_> = (0..200).map(|n| writes([n * 13 % 1_000])).collect();
        let thresholds = Thresholds { split_above: 10.0, ..Thresholds::default() };
        let parameters = Parameters { thresholds, gain_min: 0.001, ..Parameters::default() };
        let decided = decided(&layout, &samples, 20_000.0, &parameters);
        let operators = chosen(&decided);
        assert!(
            operators.iter().any(|one| matches!(one, Operator::RemoveReplica(..))),
            "{operators:?}"
        );
    }

    /// One partition has all the writes, at one site.
    #[test]
    fn split() {
        let layout = users(&[(0, &[]), (1, &[]), (2, &[]), (3, &[])]);
        let samples: Vec<_> = (0..400).map(|n| writes([n * 13 % 1_000])).collect();
        let decided = decided(&layout, &samples, 20_000.0, &Parameters::default());
        let operators = chosen(&decided);
        assert!(operators.iter().any(|one| matches!(one, Operator::Split(..))), "{operators:?}");
        let busiest =
            |price: &crate::store::price::Price| price.cpu.values().copied().fold(0.0, f64::max);
        assert!(busiest(&decided.after) < 0.7 * busiest(&decided.before), "{decided:?}");
    }

    /// Two neighbours that hardly anything touches; each scan over them needs both.
    #[test]
    fn merge() {
        let all: Vec<(Site, &[Site])> =
            (0..8).map(|n| (if n < 2 { 0 } else { n % 4 }, &[] as &[Site])).collect();
        let layout = users(&all);
        let hot = (0..300).map(|n| writes([2_000 + n * 137 % 6_000]));
        let samples: Vec<_> = hot.chain((0..20).map(|n| scan(950 + n, 100))).collect();
        let parameters = Parameters { triggers: 60, gain_min: 0.0, ..Parameters::default() };
        let decided = decided(&layout, &samples, 5_000.0, &parameters);
        let is_merge = |operators: &[Operator<String>]| matches!(operators, [Operator::Merge(start)] if start.is_empty());
        assert!(decided.considered.iter().any(|plan| is_merge(&plan.operators)), "{decided:?}");
    }
}

#[test]
fn a_balanced_workload_is_left_alone() {
    let layout = users(&[(0, &[]), (1, &[]), (2, &[]), (3, &[])]);
    let samples: Vec<_> = (0..400).map(|n| writes([n * 10])).collect();
    let decided = decided(&layout, &samples, 20_000.0, &Parameters::default());
    assert_eq!(chosen(&decided), []);
}

#[test]
fn a_model_that_learned_nothing_changes_nothing() {
    let layout = users(&[(0, &[]), (0, &[]), (0, &[]), (0, &[])]);
    let samples: Vec<(f64, Sample<String>)> =
        (0..100).map(|n| (1.0, writes([n * 40, n * 39]))).collect();
    let (cost, lag_entries) = (CostModel::default(), BTreeMap::new());
    let known = Situation {
        samples: &samples,
        rate_s: 20_000.0,
        population: 30.0,
        cost: &cost,
        lag_entries: &lag_entries,
        cpu_weight: CPU_WEIGHT,
        expected: Expected::default(),
    };
    let mut dice = StdRng::seed_from_u64(1);
    let decided = decide(&layout, &known, &Parameters::default(), &|_, _| None, &[], &mut dice);
    assert_eq!(chosen(&decided), []);
    assert!(!decided.considered.is_empty(), "it was looked at, and says why not");
}

#[test]
fn a_hot_row_ends_alone() {
    let mut layout = users(&[(0, &[])]);
    let samples: Vec<_> =
        (0..400).map(|n| writes([if n % 4 == 0 { n * 7 % 1_000 } else { 500 }])).collect();
    for _ in 0..4 {
        let decided = decided(&layout, &samples, 30_000.0, &Parameters::default());
        for operator in chosen(&decided) {
            layout.apply(&operator).unwrap();
        }
    }
    let (start, _) = layout.of(&user(500));
    let (next, _) = layout.next(start).unwrap();
    assert_eq!(*start, user(500));
    assert!(*next <= user(504), "the next one that was sampled, not {next}");
}

#[test]
fn what_is_held_back_says_why() {
    let layout = users(&[(0, &[]), (1, &[0]), (2, &[]), (3, &[])]);
    let samples: Vec<(f64, Sample<String>)> =
        (0..100).map(|n| (1.0, writes([n * 9, 1_000 + n * 7 % 1_000]))).collect();
    let (cost, lag_entries) = (learned(), BTreeMap::new());
    let known = Situation {
        samples: &samples,
        rate_s: 2_000.0,
        population: 4.0,
        cost: &cost,
        lag_entries: &lag_entries,
        cpu_weight: CPU_WEIGHT,
        expected: Expected::default(),
    };
    let held = |_: &Layout<String>, operator: &Operator<String>| {
        matches!(operator, Operator::Remaster(..))
            .then(|| Hold::Forbidden("it was changed 2 s ago".to_owned()))
    };
    let decided =
        decide(&layout, &known, &Parameters::default(), &held, &[], &mut StdRng::seed_from_u64(1));
    let is_held = |plan: &super::considered::Considered<String>| {
        matches!(plan.rejected, Some(Rejected::OnHold(_)))
    };
    assert!(decided.considered.iter().any(is_held), "{decided:?}");
    let is_remaster = |one: &Operator<String>| matches!(one, Operator::Remaster(..));
    assert!(!chosen(&decided).iter().any(is_remaster));
}

#[test]
fn no_site_gets_more_than_it_may_hold() {
    let layout = users(&[(0, &[]), (1, &[]), (2, &[]), (3, &[])]);
    let samples: Vec<_> = (0..200).map(|n| scan(n * 13 % 900, 100)).collect();
    let parameters = Parameters { memory_max: Some(500_000), ..Parameters::default() };
    let decided = decided(&layout, &samples, 1_200.0, &parameters);
    let full = |plan: &super::considered::Considered<String>| {
        matches!(plan.rejected, Some(Rejected::Memory(_)))
    };
    assert!(decided.considered.iter().any(full), "{decided:?}");
    let mut after = layout;
    for operator in chosen(&decided) {
        after.apply(&operator).unwrap();
    }
    assert!(after.sites().iter().all(|site| after.bytes_at(site) <= 500_000));
}
