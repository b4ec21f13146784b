//! Tests of waves: every order within a wave leads to the design of the plan.

use proptest::prelude::*;

use super::{layouts, transactions, user, users};
use crate::store::layout::{Layout, Operator, Partition};
use crate::store::plans::{Thresholds, View, plans};
use crate::store::waves::waves;
use crate::store::workload::{Numbered, Sample, Statistics, Touched};

type Shape = Vec<(String, u16, Vec<u16>)>;

fn shape(layout: &Layout<String>) -> Shape {
    let of = |(start, one): (&String, &Partition)| {
        (start.clone(), one.master, one.replicas.iter().collect())
    };
    layout.partitions().map(of).collect()
}

fn applied<'o>(
    layout: &Layout<String>,
    operators: impl IntoIterator<Item = &'o Operator<String>>,
) -> Option<Layout<String>> {
    let mut after = layout.clone();
    operators.into_iter().all(|one| after.apply(one).is_ok()).then_some(after)
}

#[test]
fn partitions_of_their_own_change_at_the_same_time() {
    let layout = users(&[(0, &[]), (0, &[]), (1, &[])]);
    let plan = [
        Operator::AddReplica(user(1_000), 2),
        Operator::Remaster(user(1_000), 2),
        Operator::Split(user(200)),
        Operator::AddReplica(user(200), 2),
        Operator::AddReplica(user(2_000), 2),
    ];
    let of = |numbers: &[usize]| numbers.iter().map(|n| plan[*n].clone()).collect::<Vec<_>>();
    assert_eq!(waves(&layout, &plan), [of(&[0, 2, 4]), of(&[1, 3])]);
}

#[test]
fn an_impossible_operator_comes_last() {
    let layout = users(&[(0, &[]), (0, &[])]);
    let impossible = Operator::Remaster(String::new(), 3);
    let split = Operator::Split(user(1_200));
    let plan = [split.clone(), impossible.clone()];
    assert_eq!(waves(&layout, &plan), [vec![split], vec![impossible]]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_order_within_waves_leads_to_the_design_of_the_plan(
        layout in layouts(), samples in transactions(), sites in proptest::collection::vec(0..4_u16, 2),
    ) {
        let numbered = Numbered::new(&layout);
        let touched: Vec<Touched> = samples.iter().map(|sample| numbered.touched(sample)).collect();
        let statistics = Statistics::of(layout.len(), touched.iter().map(|of| (1.0, of)));
        let weighed: Vec<(f64, Sample<String>)> = samples.iter().map(|one| (1.0, one.clone())).collect();
        let thresholds = Thresholds::default();
        let view = View::new(&numbered, &statistics, &weighed, &thresholds);
        for touched in &touched {
            for plan in plans(&view, touched, sites[0]).into_iter().flatten() {
                let waves = waves(&layout, &plan);
                let after = shape(&applied(&layout, &plan).unwrap());
                prop_assert_eq!(waves.concat().len(), plan.len());
                let forward = applied(&layout, waves.iter().flatten());
                prop_assert_eq!(&shape(&forward.unwrap()), &after, "{:?}", plan);
                let backward = applied(&layout, waves.iter().flat_map(|wave| wave.iter().rev()));
                prop_assert_eq!(&shape(&backward.unwrap()), &after, "{:?}", plan);
            }
        }
    }
}
