//! Tests of the brakes: plans that are held back, and plans that are undone.

use proptest::prelude::*;

use super::{layouts, transactions, user, users};
use crate::design::brakes::{Brakes, Judged, Latency, Limits, inverse};
use crate::design::layout::{Layout, Operator, Partition};
use crate::design::plans::{Thresholds, View, plans};
use crate::design::workload::{Numbered, Sample, Statistics, Touched};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn an_inverse_takes_a_plan_back(layout in layouts(), samples in transactions(), site in 0..4_u16) {
        let numbered = Numbered::new(&layout);
        let touched: Vec<Touched> = samples.iter().map(|sample| numbered.touched(sample)).collect();
        let statistics = Statistics::of(layout.len(), touched.iter().map(|of| (1.0, of)));
        let weighed: Vec<(f64, Sample<String>)> = samples.iter().map(|one| (1.0, one.clone())).collect();
        let thresholds = Thresholds::default();
        let view = View::new(&numbered, &statistics, &weighed, &thresholds);
        let design = |layout: &Layout<String>| -> Vec<_> {
            let of = |(start, one): (&String, &Partition)| (start.clone(), one.master, one.replicas);
            layout.partitions().map(of).collect()
        };
        for touched in &touched {
            for plan in plans(&view, touched, site).into_iter().flatten() {
                let mut after = layout.clone();
                for operator in plan.iter().chain(&inverse(&layout, &plan)) {
                    prop_assert!(after.apply(operator).is_ok(), "{operator:?} of {plan:?}");
                }
                prop_assert_eq!(design(&after), design(&layout), "{:?}", plan);
            }
        }
    }
}

fn latency(mean_us: f64) -> Latency {
    Latency { mean_us, error_us: 5.0 }
}

#[test]
fn a_change_that_made_things_worse_is_undone_and_remembered() {
    let layout = users(&[(0, &[]), (1, &[0])]);
    let mut brakes = Brakes::new(Limits::default());
    let plan = vec![Operator::AddReplica(String::new(), 1), Operator::Remaster(String::new(), 1)];
    brakes.done(&layout, plan.clone(), 10_000, (latency(200.0), 150.0));
    assert_eq!(brakes.judge(12_999, latency(900.0)), [], "it is measured for three seconds");
    assert_eq!(brakes.judge(13_000, latency(245.0)), [], "it looks worse: measured once more");
    assert_eq!(brakes.judge(15_999, latency(245.0)), [], "for three seconds");
    let judged = brakes.judge(16_000, latency(245.0));
    let [Judged::Undo(one)] = &judged[..] else { panic!("{judged:?}") };
    let back = [Operator::Remaster(String::new(), 0), Operator::RemoveReplica(String::new(), 1)];
    assert_eq!(one.inverse, back);
    assert!(brakes.holds(&layout, &plan[1], 16_001).unwrap().contains("made things worse 1 times"));
    assert_eq!(brakes.holds(&layout, &plan[1], 76_001), None, "it is tried again after a minute");
    brakes.done(&layout, plan.clone(), 80_000, (latency(200.0), 150.0));
    assert_eq!(brakes.judge(83_000, latency(300.0)), []);
    assert_eq!(brakes.judge(86_000, latency(300.0)).len(), 1);
    assert!(brakes.holds(&layout, &plan[1], 86_000 + 119_000).is_some(), "then after two");
    assert_eq!(brakes.holds(&layout, &plan[1], 86_000 + 121_000), None);
}

#[test]
fn a_change_that_helped_stays() {
    let layout = users(&[(0, &[]), (1, &[0])]);
    let mut brakes = Brakes::new(Limits::default());
    brakes.done(&layout, vec![Operator::Split(user(500))], 10_000, (latency(200.0), 150.0));
    let judged = brakes.judge(20_000, latency(225.0));
    assert!(matches!(&judged[..], [Judged::Kept(_)]), "within the bound: {judged:?}");
    assert_eq!(brakes.watched(), []);
}

#[test]
fn a_change_that_looks_worse_for_a_moment_stays() {
    let layout = users(&[(0, &[]), (1, &[0])]);
    let mut brakes = Brakes::new(Limits::default());
    brakes.done(&layout, vec![Operator::Split(user(500))], 10_000, (latency(200.0), 150.0));
    assert_eq!(brakes.judge(13_000, latency(900.0)), []);
    let judged = brakes.judge(16_000, latency(160.0));
    assert!(matches!(&judged[..], [Judged::Kept(_)]), "{judged:?}");
    assert!(brakes.holds(&layout, &Operator::Split(user(500)), 16_000).is_none());
}

#[test]
fn a_partition_that_was_changed_is_left_alone_for_a_while() {
    let layout = users(&[(0, &[]), (0, &[]), (1, &[])]);
    let mut brakes = Brakes::new(Limits::default());
    brakes.done(
        &layout,
        vec![Operator::AddReplica(user(1_000), 2)],
        10_000,
        (latency(200.0), 150.0),
    );
    let holds = |operator, now_ms| brakes.holds(&layout, &operator, now_ms).is_some();
    assert!(holds(Operator::Split(user(1_200)), 10_999));
    assert!(holds(Operator::Merge(String::new()), 10_999), "the second of a merge counts, too");
    assert!(!holds(Operator::Split(user(200)), 10_999));
    assert!(!holds(Operator::Split(user(1_200)), 11_000));
    let back = Operator::RemoveReplica(user(1_000), 2);
    assert!(holds(back.clone(), 19_999), "what was done is not taken back at once");
    assert!(!holds(back, 20_000));
}

#[test]
fn a_burst_changes_nothing_and_changes_have_a_rate() {
    let mut brakes = Brakes::<String>::new(Limits { changes_s_max: 2.0, ..Limits::default() });
    let layout = users(&[(0, &[]), (0, &[])]);
    let split = |n| [Operator::Split(user(n))];
    assert_eq!(brakes.sustained(&layout, &[&split(5)]), [false]);
    assert_eq!(brakes.sustained(&layout, &[&split(1_007)]), [false]);
    let both = [&split(5)[..], &split(1_200)];
    assert_eq!(brakes.sustained(&layout, &both), [false, true], "twice in a row, anywhere in it");
    assert!(brakes.may_spend(2, 1_000));
    assert!(!brakes.may_spend(1, 1_400));
    assert!(brakes.may_spend(1, 1_500));
    assert!(!brakes.may_spend(50, 1_600));
    assert!(brakes.may_spend(50, 9_000), "a long plan waits for a full bucket, not for ever");
}
