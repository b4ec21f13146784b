//! Tests of the guardrails: plans that are held back, and plans that are undone.

use proptest::prelude::*;

use super::{layouts, transactions, user, users};
use crate::store::considered::Hold;
use crate::store::guardrails::{Guardrails, Judgement, LatencyBaseline, Limits, inverse};
use crate::store::layout::{Layout, Operator, Partition};
use crate::store::plans::{Thresholds, View, plans};
use crate::store::regimes::Latencies;
use crate::store::regimes::Latency;
use crate::store::workload::{Numbered, Sample, Statistics, Touched};

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

/// A regime whose mean latency was so, and what was predicted.
fn before(regime: u64, mean_us: f64) -> LatencyBaseline {
    let latency = Latency { mean_us, error_us: 5.0 };
    LatencyBaseline { regime, latency, predicted_us: (200.0, 150.0), others: Vec::new() }
}

/// Latencies of a regime, from a time up to another one.
fn add(latencies: &mut Latencies, regime: u64, (from_ms, to_ms): (u64, u64), mean_us: f64) {
    for at_ms in (from_ms..to_ms).step_by(500).filter(|at_ms| at_ms + 500 <= to_ms) {
        latencies.push(regime, (at_ms, at_ms + 500), mean_us * 40.0, 40.0);
    }
}

fn measured(span_ms: (u64, u64), mean_us: f64) -> Latencies {
    let mut latencies = Latencies::default();
    add(&mut latencies, 0, span_ms, mean_us);
    latencies
}

/// Why an operator is not carried out now at all.
fn forbidden(hold: Option<Hold>) -> Option<String> {
    match hold {
        Some(Hold::Forbidden(why)) => Some(why),
        Some(Hold::Reversal(..)) | None => None,
    }
}

#[test]
fn a_change_that_made_things_worse_is_undone_and_remembered() {
    let layout = users(&[(0, &[]), (1, &[0])]);
    let mut guardrails = Guardrails::new(Limits::default());
    let plan = vec![Operator::AddReplica(String::new(), 1), Operator::Remaster(String::new(), 1)];
    guardrails.done(&layout, plan.clone(), 10_000, before(0, 200.0));
    let worse = |from_ms, to_ms| measured((from_ms, to_ms), 245.0);
    assert_eq!(
        guardrails.judge(12_999, &measured((10_000, 12_999), 900.0)),
        [],
        "for three seconds"
    );
    assert_eq!(guardrails.judge(13_000, &worse(9_000, 13_000)), [], "it looks worse: once more");
    assert_eq!(guardrails.judge(15_999, &worse(9_000, 15_999)), [], "for three seconds");
    let judged = guardrails.judge(16_000, &worse(9_000, 16_000));
    let [Judgement::Undo(one)] = &judged[..] else { panic!("{judged:?}") };
    let back = [Operator::Remaster(String::new(), 0), Operator::RemoveReplica(String::new(), 1)];
    assert_eq!(one.inverse, back);
    let banned = |guardrails: &Guardrails<String>, now_ms| {
        forbidden(guardrails.holds(&layout, &plan[1], now_ms))
    };
    assert!(banned(&guardrails, 16_001).unwrap().contains("made things worse 1 times"));
    assert_eq!(banned(&guardrails, 76_001), None, "it is tried again after a minute");
    guardrails.done(&layout, plan.clone(), 80_000, before(0, 200.0));
    let worse = measured((80_000, 90_000), 300.0);
    assert_eq!(guardrails.judge(83_000, &measured((80_000, 83_000), 300.0)), []);
    assert_eq!(guardrails.judge(86_000, &worse).len(), 1);
    assert!(banned(&guardrails, 86_000 + 119_000).is_some(), "then after two");
    assert_eq!(banned(&guardrails, 86_000 + 121_000), None);
}

#[test]
fn a_change_that_helped_stays() {
    let layout = users(&[(0, &[]), (1, &[0])]);
    let mut guardrails = Guardrails::new(Limits::default());
    guardrails.done(&layout, vec![Operator::Split(user(500))], 10_000, before(0, 200.0));
    let judged = guardrails.judge(20_000, &measured((9_000, 20_000), 225.0));
    assert!(matches!(&judged[..], [Judgement::Keep(_)]), "within the bound: {judged:?}");
    assert_eq!(guardrails.watched(), []);
}

#[test]
fn a_change_that_looks_worse_for_a_moment_stays() {
    let layout = users(&[(0, &[]), (1, &[0])]);
    let mut guardrails = Guardrails::new(Limits::default());
    guardrails.done(&layout, vec![Operator::Split(user(500))], 10_000, before(0, 200.0));
    let mut latencies = measured((10_000, 13_000), 900.0);
    assert_eq!(guardrails.judge(13_000, &latencies), []);
    add(&mut latencies, 0, (13_000, 16_000), 160.0);
    let judged = guardrails.judge(16_000, &latencies);
    assert!(matches!(&judged[..], [Judgement::Keep(_)]), "{judged:?}");
    assert!(guardrails.holds(&layout, &Operator::Split(user(500)), 16_000).is_none());
}

#[test]
fn a_change_is_judged_by_each_workload_that_was_expected() {
    let layout = users(&[(0, &[]), (1, &[0])]);
    let done = |other_us: f64| {
        let mut guardrails = Guardrails::new(Limits::default());
        let others = vec![(1, 1.0, Latency { mean_us: 210.0, error_us: 4.0 })];
        let before = LatencyBaseline { others, ..before(0, 200.0) };
        guardrails.done(&layout, vec![Operator::AddReplica(String::new(), 1)], 10_000, before);
        let mut latencies = Latencies::default();
        add(&mut latencies, 1, (0, 10_000), 210.0);
        // Its own workload gains; the other one comes every ten seconds.
        let mut judged = Vec::new();
        for visit in 0..4_u64 {
            let (from_ms, is_other) = (10_000 + visit * 10_000, visit % 2 == 1);
            let us = if is_other { other_us } else { 150.0 };
            add(&mut latencies, visit % 2, (from_ms, from_ms + 10_000), us);
            judged.extend(guardrails.judge(from_ms + 10_000, &latencies));
            assert!(visit > 0 || judged.is_empty(), "the other workload was not seen yet");
        }
        judged
    };
    let kept = done(215.0);
    assert!(matches!(&kept[..], [Judgement::Keep(_)]), "{kept:?}");
    let kept = done(270.0);
    assert!(matches!(&kept[..], [Judgement::Keep(_)]), "as good on the whole: {kept:?}");
    let undone = done(420.0);
    assert!(matches!(&undone[..], [Judgement::Undo(_)]), "{undone:?}");
}

#[test]
fn each_reversal_asks_for_more_and_for_longer() {
    let mut layout = users(&[(0, &[1]), (1, &[])]);
    let mut guardrails = Guardrails::new(Limits::default());
    let (there, back) =
        (Operator::Remaster(String::new(), 1), Operator::Remaster(String::new(), 0));
    let mut asked = Vec::new();
    for n in 0..6_u64 {
        let (done, next) = if n % 2 == 0 { (&there, &back) } else { (&back, &there) };
        let now_ms = n * 1_000_000;
        guardrails.done(&layout, vec![done.clone()], now_ms, before(0, 200.0));
        layout.apply(done).unwrap();
        assert!(forbidden(guardrails.holds(&layout, next, now_ms + 9_999)).is_some());
        let times = |after_ms: u64| match guardrails.holds(&layout, next, now_ms + after_ms) {
            Some(Hold::Reversal(times, why)) => {
                assert!(why.starts_with("it takes back what was done"), "{why}");
                times
            }
            hold => panic!("{hold:?}"),
        };
        let lasts_s = (11..).find(|s| times(s * 1_000) == 1.0).unwrap();
        asked.push((times(11_000), lasts_s));
    }
    let expected = [(2.0, 20), (4.0, 40), (8.0, 80), (8.0, 160), (8.0, 320), (8.0, 640)];
    assert_eq!(asked, expected);
}

#[test]
fn a_split_at_another_key_takes_a_merge_back_too() {
    let layout = users(&[(0, &[]), (0, &[])]);
    let mut guardrails = Guardrails::new(Limits::default());
    let merge = vec![Operator::Merge(String::new())];
    guardrails.done(&layout, merge.clone(), 0, before(0, 200.0));
    let merged = users(&[(0, &[])]);
    let hold = guardrails.holds(&merged, &Operator::Split(user(431)), 11_000);
    assert!(matches!(hold, Some(Hold::Reversal(2.0, _))), "{hold:?}");
}

#[test]
fn a_partition_that_was_changed_is_left_alone_for_a_while() {
    let layout = users(&[(0, &[]), (0, &[]), (1, &[])]);
    let mut guardrails = Guardrails::new(Limits::default());
    guardrails.done(&layout, vec![Operator::AddReplica(user(1_000), 2)], 10_000, before(0, 200.0));
    let holds =
        |operator, now_ms| forbidden(guardrails.holds(&layout, &operator, now_ms)).is_some();
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
    let mut guardrails =
        Guardrails::<String>::new(Limits { changes_s_max: 2.0, ..Limits::default() });
    let layout = users(&[(0, &[]), (0, &[])]);
    let split = |n| [Operator::Split(user(n))];
    assert_eq!(guardrails.sustained(0, &layout, &[&split(5)]), [false]);
    assert_eq!(guardrails.sustained(0, &layout, &[&split(1_007)]), [false]);
    let both = [&split(5)[..], &split(1_200)];
    assert_eq!(
        guardrails.sustained(0, &layout, &both),
        [false, true],
        "twice in a row, anywhere in it"
    );
    // Each workload by itself, and in its own decisions.
    assert_eq!(guardrails.sustained(1, &layout, &[&split(1_200)]), [false]);
    assert_eq!(guardrails.sustained(0, &layout, &[&split(1_200)]), [true]);
    assert_eq!(guardrails.sustained(1, &layout, &[&split(1_200)]), [true]);
    assert!(guardrails.may_spend(2, 1_000));
    assert!(!guardrails.may_spend(1, 1_400));
    assert!(guardrails.may_spend(1, 1_500));
    assert!(!guardrails.may_spend(50, 1_600));
    assert!(guardrails.may_spend(50, 9_000), "a long plan waits for a full bucket, not for ever");
}

#[test]
fn what_is_left_of_a_plan_is_sustained_and_what_is_added_is_not() {
    let layout = users(&[(0, &[]), (1, &[]), (2, &[]), (3, &[])]);
    let mut guardrails = Guardrails::new(Limits::default());
    let moved = |number: u64, site: u16| {
        let key = user(number);
        [Operator::AddReplica(key.clone(), site), Operator::Remaster(key, site)]
    };
    let both = [moved(1_000, 0), moved(2_000, 0)].concat();
    assert_eq!(guardrails.sustained(0, &layout, &[&both]), [false]);
    // A transaction has moved the first one meanwhile.
    let left = moved(2_000, 0);
    let more = [moved(2_000, 0), moved(3_000, 0)].concat();
    assert_eq!(guardrails.sustained(0, &layout, &[&left, &more]), [true, false]);
    assert_eq!(guardrails.sustained(0, &layout, &[&more]), [true]);
}
