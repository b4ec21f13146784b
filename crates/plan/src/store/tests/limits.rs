//! Limits where it is not known what was carried out, or where a plan was not to its end.

use super::*;

const LIMITS: Thresholds = Thresholds {
    split_above: 1.5,
    merge_below: 0.5,
    together_min: 0.5,
    partitions_max: 3,
    replicas_max: 1,
    replicas_min: 0,
};

#[test]
fn what_may_have_been_carried_out_counts_as_done() {
    let layout = users(&[(0, &[]), (1, &[])]);
    let (split, other) = (Operator::Split(user(1_500)), [Operator::Split(user(500))]);
    assert!(LIMITS.permits_with_pending(&layout, [], &other));
    assert!(!LIMITS.permits_with_pending(&layout, [&split], &other));
    let (copy, other) =
        (Operator::AddReplica(user(1_000), 2), [Operator::AddReplica(user(1_000), 3)]);
    assert!(LIMITS.permits_with_pending(&layout, [], &other));
    assert!(!LIMITS.permits_with_pending(&layout, [&copy], &other));
    // What cannot be done any more is not waited for.
    let after = users(&[(0, &[]), (1, &[]), (1, &[])]);
    let remaster = [Operator::AddReplica(user(2_000), 0)];
    assert!(LIMITS.permits_with_pending(&after, [&Operator::Split(user(1_000))], &remaster));
}

#[test]
fn copies_of_an_unfinished_plan_are_taken_back_where_they_are_too_many() {
    let made = [Operator::Split(user(1_000)), Operator::AddReplica(user(1_000), 2)];
    let back = |masters: &[(Site, &[Site])]| -> Vec<_> {
        LIMITS.surplus(&users(masters), &made).collect()
    };
    assert_eq!(back(&[(0, &[]), (1, &[2])]), []);
    assert_eq!(back(&[(0, &[]), (1, &[0, 3])]), [], "it has not come, or is gone");
    let removal = |site| [Operator::RemoveReplica(user(1_000), site)];
    assert_eq!(back(&[(0, &[]), (1, &[0, 2])]), removal(2));
    assert_eq!(back(&[(0, &[]), (2, &[1, 3])]), removal(1), "it has become the master");
}

#[test]
fn no_plan_leaves_fewer_replicas_than_the_least() {
    let layout = users(&[(0, &[1, 2]), (0, &[1])]);
    let limits = Thresholds { replicas_min: 1, ..LIMITS };
    let (first, second) = (String::new(), user(1_000));
    let remove = |start: &String, site| Operator::RemoveReplica(start.clone(), site);
    assert!(limits.permits(&layout, &[remove(&first, 1)]));
    assert!(!limits.permits(&layout, &[remove(&first, 1), remove(&first, 2)]), "both together");
    assert!(!limits.permits(&layout, &[remove(&second, 1)]));
    let exchange = [Operator::AddReplica(second.clone(), 3), remove(&second, 1)];
    assert!(limits.permits(&layout, &exchange));
    assert!(!limits.permits(&layout, &[exchange[1].clone(), exchange[0].clone()]), "in between");
    // What has fewer already may stay so.
    let more = Thresholds { replicas_min: 2, ..LIMITS };
    let moved = [Operator::Remaster(second.clone(), 1)];
    assert!(more.permits(&layout, &moved));
}
