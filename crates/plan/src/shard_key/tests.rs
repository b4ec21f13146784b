//! Routing against an oracle that tries every point of a small key space, and effects against sums made in another way.

use proptest::prelude::*;

use super::routing::{Route, Router};
use super::*;
use crate::reshard::placement::Shares;

/// Values of each field are 0 to this one.
const RANK_MAX: u32 = 5;
const FIELDS: usize = 3;

/// A hash that is no monotone function of the rank.
fn value(rank: u32) -> Value {
    Value { rank, hash: i64::from(rank).wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64) }
}

fn nulls() -> Vec<Value> {
    vec![value(0); FIELDS]
}

fn rules(finds_single_writes: bool) -> Rules {
    Rules { id: Some(2), finds_single_writes }
}

const COSTS: Costs = Costs { request_us: 40.0, document_us: 5.0, write_us: 60.0 };

fn key() -> impl Strategy<Value = Key> {
    let part = (0..FIELDS as Field, any::<bool>());
    let part = part.prop_map(|(field, is_hashed)| Part { field, is_hashed });
    prop::collection::vec(part, 1..=FIELDS).prop_filter_map("repeated field", Key::new)
}

fn documents() -> impl Strategy<Value = Documents> {
    let values = prop::collection::vec(0..=RANK_MAX, FIELDS);
    let document = (values, 0..3_u16, 100..4_000_u64);
    prop::collection::vec(document, 1..120).prop_map(|all| {
        let mut documents = Documents::new(FIELDS);
        for (ranks, shard, bytes) in all {
            let values: Vec<Value> = ranks.into_iter().map(value).collect();
            documents.push(SampledDocument { bytes, shard }, &values);
        }
        documents
    })
}

/// An operation as its conditions: for each field the ranks of its values.
#[derive(Clone, Debug)]
struct Made {
    kind: Kind,
    conditions: Vec<(Field, Condition, Vec<u32>)>,
    is_upsert: bool,
    is_opaque: bool,
}

impl Made {
    fn shape(&self) -> Shape {
        let conditions = self.conditions.iter().map(|(field, of, _)| (*field, *of)).collect();
        Shape {
            kind: self.kind,
            conditions,
            sets: vec![1],
            is_upsert: self.is_upsert,
            is_opaque: self.is_opaque,
        }
    }

    fn values(&self) -> Vec<Value> {
        let mut values = Vec::new();
        for (_, condition, ranks) in &self.conditions {
            if *condition == Condition::In {
                values.push(Value { rank: ranks.len() as u32, hash: 0 });
            }
            values.extend(ranks.iter().map(|rank| value(*rank)));
        }
        values
    }

    fn of(&self, field: Field) -> Option<(Condition, &[u32])> {
        let found = self.conditions.iter().find(|(at, ..)| *at == field)?;
        Some((found.1, &found.2))
    }
}

fn condition() -> impl Strategy<Value = (Condition, Vec<u32>)> {
    let rank = 0..=RANK_MAX;
    prop_oneof![
        rank.clone().prop_map(|rank| (Condition::Equal, vec![rank])),
        prop::collection::vec(rank.clone(), 0..4).prop_map(|ranks| (Condition::In, ranks)),
        (rank.clone(), rank).prop_map(|(a, b)| (Condition::Between, vec![a.min(b), a.max(b)])),
    ]
}

const KINDS: [Kind; 5] =
    [Kind::Read, Kind::UpdateOne, Kind::DeleteOne, Kind::WriteMany, Kind::FindAndModify];

fn operation() -> impl Strategy<Value = Made> {
    let conditions = prop::collection::vec(prop::option::of(condition()), FIELDS);
    let order = Just((0..FIELDS as Field).collect::<Vec<_>>()).prop_shuffle();
    let other = (
        prop::sample::select(&KINDS[..]),
        conditions,
        order,
        prop::bool::weighted(0.05),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(kind, conditions, order, is_opaque, is_upsert)| {
            let conditions = { order.into_iter() }
                .filter_map(|field| {
                    let (condition, ranks) = conditions[usize::from(field)].clone()?;
                    Some((field, condition, ranks))
                })
                .collect();
            {
                let updates = matches!(kind, Kind::UpdateOne | Kind::WriteMany);
                Made { kind, conditions, is_opaque, is_upsert: is_upsert && updates }
            }
        });
    let insert = prop::collection::vec(prop::option::weighted(0.9, 0..=RANK_MAX), FIELDS);
    let insert = insert.prop_map(|ranks| {
        let field = |(field, rank): (usize, Option<u32>)| {
            Some((field as Field, Condition::Equal, vec![rank?]))
        };
        let conditions = ranks.into_iter().enumerate().filter_map(field).collect();
        Made { kind: Kind::Insert, conditions, is_upsert: false, is_opaque: false }
    });
    prop_oneof![5 => other, 1 => insert]
}

fn workload(operations: &[Made]) -> Workload {
    let mut workload = Workload::default();
    for (index, made) in operations.iter().enumerate() {
        let transaction = (index % 3 == 0).then_some(index as u64 / 9);
        workload.push(&made.shape(), &made.values(), index as u32 % 4, transaction).unwrap();
    }
    workload
}

/// Returns the positions that an operation leaves to a field of the key, and whether a router uses conditions on later
/// fields after it.
fn positions(made: &Made, part: Part, is_exact: bool) -> (Vec<i64>, bool) {
    let everything = || {
        let ranks = (0..=RANK_MAX).map(|rank| part.position(value(rank)));
        (ranks.chain([i64::MIN, i64::MAX]).collect(), false)
    };
    let each = |ranks: &[u32]| ranks.iter().map(|rank| part.position(value(*rank))).collect();
    if !is_exact || made.is_opaque {
        return everything();
    }
    match made.of(part.field) {
        Some((Condition::Equal, ranks)) => (each(ranks), true),
        Some((Condition::In, ranks)) if !ranks.is_empty() => (each(ranks), true),
        Some((Condition::In, _)) => (Vec::new(), false),
        Some((Condition::Between, ranks)) if !part.is_hashed => {
            ((ranks[0]..=ranks[1]).map(i64::from).collect(), false)
        }
        None if made.kind == Kind::Insert => (each(&[0]), true),
        _ => everything(),
    }
}

/// Returns the shards that have a chunk with a point which the operation leaves, by trying all points; and whether the
/// operation is for one point alone.
fn brute_force(made: &Made, layout: &Layout) -> (Vec<usize>, bool) {
    let mut points = vec![Point::default()];
    let mut is_exact = true;
    for (at, part) in layout.key().parts().iter().enumerate() {
        let (positions, goes_on) = positions(made, *part, is_exact);
        is_exact &= goes_on;
        let extended = points.iter().flat_map(|point| {
            positions.iter().map(|position| {
                let mut point = *point;
                point[at] = *position;
                point
            })
        });
        points = extended.collect();
    }
    let mut shards: Vec<usize> =
        points.iter().map(|point| usize::from(layout.shard_of(layout.chunk_of(point)))).collect();
    shards.sort_unstable();
    shards.dedup();
    (shards, is_exact && points.len() == 1)
}

proptest! {
    #[test]
    fn operations_reach_the_shards_with_a_point_that_they_may_match(
        documents in documents(), key in key(), chunks in 1..9_usize,
        operations in prop::collection::vec(operation(), 1..40), finds in any::<bool>(),
    ) {
        let shares = Shares::equal(3).unwrap();
        let layout = Layout::planned(&documents, key, chunks, &shares).unwrap();
        let workload = workload(&operations);
        let nulls = nulls();
        let mut router = Router::new(&layout, &workload, rules(finds), &nulls);
        for (index, made) in operations.iter().enumerate() {
            let route = router.route(workload.shape_at(index), &workload.get(index));
            let reached: Vec<usize> = router.reached.iter().collect();
            let (expected, is_point) = brute_force(made, &layout);
            let everywhere: Vec<usize> = (0..3).collect();
            let is_one = expected.len() <= 1;
            let is_single = matches!(
                made.kind, Kind::UpdateOne | Kind::DeleteOne | Kind::FindAndModify
            );
            let by_id = matches!(made.of(2), Some((Condition::Equal, _)));
            if made.kind == Kind::WriteMany && !made.is_upsert && !is_one {
                prop_assert_eq!(reached, everywhere);
                continue;
            }
            if (is_single || made.is_upsert) && !finds && !is_point {
                let is_refused = made.is_upsert || made.kind == Kind::FindAndModify
                    || !(by_id || is_one && made.kind == Kind::UpdateOne);
                if made.is_opaque {
                    prop_assert_eq!(reached, everywhere);
                } else if is_refused {
                    prop_assert_eq!(route, Route::Refused);
                } else if !(is_one && made.kind == Kind::UpdateOne) {
                    prop_assert_eq!(reached, everywhere);
                }
                continue;
            }
            if expected.is_empty() {
                prop_assert_eq!(reached.len(), 1, "an empty list is answered by one shard");
            } else {
                prop_assert_eq!(&reached, &expected, "{:?} by {:?}", made, layout);
            }
            prop_assert_eq!(matches!(route, Route::At { .. }), is_point);
        }
    }

    #[test]
    fn each_operation_is_counted_once_and_loads_are_those_of_operations(
        documents in documents(), key in key(), chunks in 1..9_usize,
        operations in prop::collection::vec(operation(), 1..200),
    ) {
        let shares = Shares::equal(3).unwrap();
        let layout = Layout::planned(&documents, key, chunks, &shares).unwrap();
        let workload = workload(&operations);
        let effect = effect(&workload, &documents, &layout, rules(false), &nulls(), COSTS);
        let writes = operations.iter().filter(|made| made.kind.is_write()).count() as u64;
        prop_assert_eq!(effect.writes.total(), writes);
        prop_assert_eq!(effect.reads.total() + writes, operations.len() as u64);
        let sum: f64 = effect.load_us.iter().sum();
        prop_assert!((sum - effect.total_us).abs() < 1e-9 * sum.max(1.0));
        let answered = operations.len() as u64 - effect.reads.refused - effect.writes.refused;
        let requests: u64 = effect.operations.iter().sum();
        prop_assert!(requests >= answered && requests <= answered * 3);
        let extra = (requests - answered) as f64 * COSTS.request_us / operations.len() as f64;
        prop_assert!((effect.scatter_us - extra).abs() < 1e-9 * extra.max(1.0));
        if let Some((_, share)) = effect.hottest {
            prop_assert!(share > 0.0 && share <= 1.0);
        }
    }

    #[test]
    fn chunks_hold_all_bytes_and_no_shard_has_more_than_its_share_of_chunks(
        documents in documents(), key in key(), chunks in 1..9_usize,
    ) {
        let layout = Layout::planned(&documents, key.clone(), chunks, &Shares::equal(3).unwrap());
        let layout = layout.unwrap();
        let bytes: u64 = documents.documents().iter().map(|document| document.bytes).sum();
        prop_assert_eq!(layout.bytes().iter().sum::<u64>(), bytes);
        for shard in 0..3 {
            let held = (0..layout.chunks()).filter(|chunk| layout.shard_of(*chunk) == shard);
            prop_assert!(held.count() <= layout.chunks().div_ceil(3));
        }
        // What is placed as it is planned is the present layout afterwards.
        let chunks: Vec<(Point, u16)> = (0..layout.chunks())
            .map(|chunk| {
                let first = (0..documents.len())
                    .map(|index| documents.point(index, &key))
                    .filter(|point| layout.chunk_of(point) == chunk)
                    .min();
                (first.unwrap_or([i64::MIN; FIELDS_MAX]), layout.shard_of(chunk))
            })
            .collect();
        let present = Layout::present(&documents, key, &chunks, 3);
        prop_assert_eq!(present.bytes(), layout.bytes());
    }
}

/// Orders of a shop: 2,000 customers with ten orders each, ids that increase with time.
fn orders() -> Documents {
    let mut documents = Documents::new(FIELDS);
    for order in 0..20_000_u32 {
        // Customer, state of the order (one of four), id.
        let values = [value(order * 7 % 2_000), value(order % 4), value(order)];
        documents.push(SampledDocument { bytes: 800, shard: (order % 4) as u16 }, &values);
    }
    documents
}

/// Clients look at the orders of a customer, and put new ones.
fn shopping() -> Workload {
    let find = Shape {
        kind: Kind::Read,
        conditions: vec![(0, Condition::Equal)],
        sets: Vec::new(),
        is_upsert: false,
        is_opaque: false,
    };
    let insert = Shape {
        kind: Kind::Insert,
        conditions: (0..FIELDS as Field).map(|field| (field, Condition::Equal)).collect(),
        sets: Vec::new(),
        is_upsert: false,
        is_opaque: false,
    };
    let mut workload = Workload::default();
    for step in 0..10_000_u32 {
        let customer = value(step.wrapping_mul(2_654_435_761) % 2_000);
        if step % 10 == 0 {
            let values = [customer, value(0), value(20_000 + step)];
            workload.push(&insert, &values, 1, None).unwrap();
        } else {
            workload.push(&find, &[customer], 10, None).unwrap();
        }
    }
    workload
}

fn judged(parts: &[(Field, bool)]) -> Effect {
    let parts =
        parts.iter().map(|(field, is_hashed)| Part { field: *field, is_hashed: *is_hashed });
    let key = Key::new(parts.collect()).unwrap();
    let documents = orders();
    let layout = Layout::planned(&documents, key, 64, &Shares::equal(4).unwrap()).unwrap();
    effect(&shopping(), &documents, &layout, rules(false), &nulls(), COSTS)
}

#[test]
fn the_key_of_most_conditions_is_better_than_one_that_grows() {
    let (customer, id) = (judged(&[(0, false), (2, false)]), judged(&[(2, false)]));
    // Chunks may end within a customer's orders: at most 63 of 2,000 customers.
    assert!(customer.reads.one_share() > 0.96, "{:?}", customer.reads);
    assert_eq!(id.reads.all, id.reads.total());
    assert_eq!(id.inserts_in_one_chunk, Some(1.0), "ids grow");
    assert!(customer.inserts_in_one_chunk < Some(0.1));
    let gain = compare(&customer, &id);
    assert!(gain.value > 1.4 && gain.interval.0 > 1.3, "{gain:?}");
    assert!(gain.interval.0 <= gain.value && gain.value <= gain.interval.1);
    // A key is no better than itself.
    assert_eq!(compare(&id, &id), Estimate { value: 1.0, interval: (1.0, 1.0) });
}

#[test]
fn a_key_of_few_values_loads_few_shards() {
    let state = judged(&[(1, false)]);
    assert_eq!(state.writes.one, state.writes.total());
    assert_eq!(state.hottest.map(|(point, _)| point[0]), Some(0), "new orders are in state 0");
    assert_eq!(
        state.heaviest.map(|(_, bytes, documents)| (bytes, documents)),
        Some((5_000 * 800, 5_000))
    );
}

#[test]
fn candidates_begin_with_the_fields_of_conditions() {
    let named = Key::new(vec![Part { field: 2, is_hashed: false }]).unwrap();
    let wanted = Wanted {
        usable: vec![0, 1, 2],
        id: Some(2),
        indexes: vec![vec![1, 0]],
        named: vec![named.clone()],
    };
    let keys = candidates(&shopping(), &orders(), &wanted);
    let texts: Vec<Vec<(Field, bool)>> = { keys.iter() }
        .map(|key| key.parts().iter().map(|part| (part.field, part.is_hashed)).collect())
        .collect();
    assert_eq!(keys[0], named, "named ones come first");
    for expected in [&[(0, false)][..], &[(0, true)], &[(2, true)], &[(0, false), (2, false)]] {
        assert!(texts.iter().any(|text| text == expected), "{expected:?} of {texts:?}");
    }
    assert!(texts.contains(&vec![(1, false), (0, false)]), "the index's own key: {texts:?}");
    assert!(keys.len() <= CANDIDATES_MAX + 1);
    let mut distinct = texts.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), texts.len(), "none twice");
}

#[test]
fn an_operation_that_several_shards_show_counts_once() {
    let key = Key::new(vec![Part { field: 0, is_hashed: false }]).unwrap();
    let documents = orders();
    let layout = Layout::planned(&documents, key, 64, &Shares::equal(4).unwrap()).unwrap();
    let find = |field: Field| Shape {
        kind: Kind::Read,
        conditions: vec![(field, Condition::Equal)],
        sets: Vec::new(),
        is_upsert: false,
        is_opaque: false,
    };
    let mut workload = Workload::default();
    let mut shown_at = Vec::new();
    // By its state an order may be anywhere: all four shards show the find.
    for shard in 0..4 {
        workload.push(&find(1), &[value(2)], 5, None).unwrap();
        shown_at.push(Some(shard));
    }
    // By its customer it is on one, and an entry of another shard is not explained by the key.
    let nulls = nulls();
    let mut of_customer = Workload::default();
    of_customer.push(&find(0), &[value(77)], 5, None).unwrap();
    let mut router = Router::new(&layout, &of_customer, rules(false), &nulls);
    router.route(0, &of_customer.get(0));
    let own = router.reached.iter().next().unwrap() as u16;
    for shard in [own, (own + 1) % 4] {
        workload.push(&find(0), &[value(77)], 5, None).unwrap();
        shown_at.push(Some(shard));
    }
    let counted = count_once(&workload, &layout, rules(false), &nulls, &shown_at);
    assert_eq!(counted, [Some(4), None, None, None, Some(1), Some(1)]);
    let kept = workload.filtered(|index| counted[index]);
    let documents: Vec<u32> = (0..kept.len()).map(|index| kept.get(index).documents).collect();
    assert_eq!(documents, [20, 5, 5], "what one shard shows stands for what all returned");
}
