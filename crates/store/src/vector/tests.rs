use proptest::prelude::*;

use super::*;

const KEYS: u8 = 12;

fn key(n: u8) -> Key {
    if n == 0 { Key::least() } else { Key::from_bytes(&[n]) }
}

fn range(from: u8, to: u8) -> KeyRange {
    KeyRange { start: key(from), end: (to < KEYS).then(|| key(to)) }
}

/// What a vector says of each key, and of the keys behind the last.
fn versions(vector: &Vector) -> Vec<u64> {
    (0..KEYS).map(|n| vector.required(&range(n, n + 1))).collect()
}

fn vector() -> impl Strategy<Value = (Vector, Vec<u64>)> {
    let part = (0..KEYS, 1..=KEYS, 1..6_u64);
    prop::collection::vec(part, 0..6).prop_map(|parts| {
        let (mut vector, mut oracle) = (Vector::default(), vec![0; KEYS.into()]);
        for (from, many, version) in parts {
            let to = from.saturating_add(many).min(KEYS);
            vector.merge(&Vector::of(range(from, to), version));
            for n in from..to {
                oracle[usize::from(n)] = version.max(oracle[usize::from(n)]);
            }
        }
        (vector, oracle)
    })
}

#[track_caller]
fn check(vector: &Vector, oracle: &[u64]) {
    assert_eq!(versions(vector), oracle);
    for piece in &vector.0 {
        assert!(!piece.range.is_empty() && piece.version > 0);
    }
    for pair in vector.0.windows(2) {
        let end = pair[0].range.end.as_ref().expect("only the last reaches to the end");
        assert!(*end < pair[1].range.start || pair[0].version != pair[1].version, "{vector:?}");
        assert!(*end <= pair[1].range.start, "{vector:?}");
    }
}

proptest! {
    #[test]
    fn merging_takes_the_larger_version_of_each_key(
        (mut one, oracle) in vector(), (other, others) in vector(),
    ) {
        check(&one, &oracle);
        one.merge(&other);
        let larger: Vec<u64> = oracle.iter().zip(&others).map(|(a, b)| *a.max(b)).collect();
        check(&one, &larger);
    }

    #[test]
    fn what_holds_everywhere_is_forgotten(
        (mut one, oracle) in vector(), (everywhere, all) in vector(),
    ) {
        one.collect(&everywhere);
        let kept: Vec<u64> =
            oracle.iter().zip(&all).map(|(own, all)| if own > all { *own } else { 0 }).collect();
        check(&one, &kept);
    }

    #[test]
    fn a_range_requires_what_any_of_its_keys_does(
        (one, oracle) in vector(), from in 0..KEYS, many in 1..=KEYS,
    ) {
        let to = from.saturating_add(many).min(KEYS);
        let expected = oracle[usize::from(from)..usize::from(to)].iter().max();
        prop_assert_eq!(Some(&one.required(&range(from, to))), expected);
    }
}
