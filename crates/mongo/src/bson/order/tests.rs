//! The order and identity of `_id` values: a ladder as a server sorts it, and the laws of an order
//! for values drawn at random.

use std::cmp::Ordering;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use bson::{Bson, Decimal128, RawBson, RawDocumentBuf, bson, doc};
use proptest::prelude::*;

use super::{Id, cmp_values};

fn id(value: impl Into<Bson>) -> Id {
    let raw = RawBson::try_from(value.into()).unwrap();
    Id::from_raw(raw.as_raw_bson_ref())
}

fn dec(text: &str) -> Bson {
    Bson::Decimal128(text.parse::<Decimal128>().unwrap())
}

fn hash_of(id: &Id) -> u64 {
    let mut state = DefaultHasher::new();
    id.hash(&mut state);
    state.finish()
}

/// Each line holds values that are one `_id`; each line comes before the next one.
fn ladder() -> Vec<Vec<Bson>> {
    const TWO_53: i64 = 1 << 53;
    let binary = |subtype: u8, bytes: &[u8]| {
        Bson::Binary(bson::Binary { subtype: subtype.into(), bytes: bytes.to_vec() })
    };
    let regex = |pattern: &str, options: &str| {
        Bson::RegularExpression(bson::Regex {
            pattern: pattern.try_into().unwrap(),
            options: options.try_into().unwrap(),
        })
    };
    let timestamp = |time, increment| Bson::Timestamp(bson::Timestamp { time, increment });
    let scoped = |code: &str, scope| {
        Bson::JavaScriptCodeWithScope(bson::JavaScriptCodeWithScope { code: code.into(), scope })
    };
    vec![
        vec![Bson::MinKey],
        vec![Bson::Undefined],
        vec![Bson::Null],
        vec![Bson::Double(f64::NAN), Bson::Double(-f64::NAN), dec("NaN")],
        vec![Bson::Double(f64::NEG_INFINITY), dec("-Infinity")],
        vec![dec("-9E+6111")],
        vec![Bson::Double(f64::MIN)],
        vec![Bson::Int64(i64::MIN), Bson::Double(-9_223_372_036_854_775_808.0)],
        vec![Bson::Int64(i64::MIN + 1), dec("-9223372036854775807")],
        vec![Bson::Int32(-1), Bson::Int64(-1), Bson::Double(-1.0), dec("-1.000")],
        vec![dec("-1E-6176")],
        vec![Bson::Int32(0), Bson::Int64(0), Bson::Double(-0.0), dec("-0E+30"), dec("0.00")],
        vec![dec("1E-6176"), dec("1E-6176")],
        vec![Bson::Double(5e-324)],
        // 34 digits of the double 0.1 are not the double 0.1; the decimal 0.1 is below both.
        vec![dec("0.1"), dec("0.10")],
        vec![dec("0.1000000000000000055511151231257827")],
        vec![Bson::Double(0.1)],
        vec![dec("0.1000000000000000055511151231257828")],
        vec![Bson::Double(0.5), dec("0.5"), dec("0.50000")],
        vec![Bson::Int64(TWO_53 - 1), Bson::Double(9_007_199_254_740_991.0)],
        vec![Bson::Int64(TWO_53), Bson::Double(9_007_199_254_740_992.0)],
        vec![Bson::Int64(TWO_53 + 1), dec("9007199254740993")],
        vec![Bson::Int64(TWO_53 + 2), Bson::Double(9_007_199_254_740_994.0)],
        vec![Bson::Int64(i64::MAX), dec("9223372036854775807")],
        vec![Bson::Double(9_223_372_036_854_775_808.0), dec("9223372036854775808")],
        vec![dec("1E+22"), Bson::Double(1e22), dec("10000000000000000000000")],
        vec![Bson::Double(f64::MAX)],
        vec![dec("1.797693134862315708145274237317044E+308")],
        vec![dec("9.999999999999999999999999999999999E+6144")],
        vec![Bson::Double(f64::INFINITY), dec("Infinity")],
        vec![Bson::String(String::new()), Bson::Symbol(String::new())],
        vec![Bson::String("\0".into())],
        vec![Bson::String("a".into()), Bson::Symbol("a".into())],
        vec![Bson::String("a\0b".into())],
        vec![Bson::String("ab".into())],
        vec![Bson::String("é".into())],
        vec![bson!({})],
        // Type before name before value.
        vec![bson!({"z": 1}), bson!({"z": 1.0})],
        vec![bson!({"a": "x"})],
        vec![bson!({"a": "x", "b": 1})],
        vec![bson!({"b": "a"})],
        vec![bson!({"a": {"b": 1}})],
        vec![bson!({"a": [1]})],
        vec![bson!([])],
        vec![bson!([1, 2])],
        vec![bson!([2]), bson!([2.0])],
        vec![binary(0, b"")],
        vec![binary(0x80, b"")],
        vec![binary(0, b"b")],
        vec![binary(5, b"a")],
        vec![binary(0, b"aaaa")],
        // The old subtype's own length counts: four bytes and none.
        vec![binary(2, b"")],
        vec![Bson::ObjectId(bson::oid::ObjectId::from_bytes([1; 12]))],
        vec![Bson::ObjectId(bson::oid::ObjectId::from_bytes([255; 12]))],
        vec![Bson::Boolean(false)],
        vec![Bson::Boolean(true)],
        vec![Bson::DateTime(bson::DateTime::from_millis(-1))],
        vec![Bson::DateTime(bson::DateTime::from_millis(1))],
        vec![timestamp(0, 1)],
        vec![timestamp(0, u32::MAX)],
        vec![timestamp(u32::MAX, 0)],
        vec![regex("a", "i")],
        vec![regex("a", "m")],
        vec![regex("b", "")],
        vec![Bson::JavaScriptCode("a".into())],
        vec![Bson::JavaScriptCode("b".into())],
        vec![scoped("a", doc! {"x": 1})],
        vec![scoped("a", doc! {"x": 2})],
        vec![scoped("b", doc! {})],
        vec![Bson::MaxKey],
    ]
}

#[test]
fn values_of_each_step_are_one_id_and_steps_ascend() {
    let steps: Vec<Vec<Id>> =
        ladder().into_iter().map(|step| step.into_iter().map(id).collect()).collect();
    for (i, left) in steps.iter().enumerate() {
        for (j, right) in steps.iter().enumerate() {
            for a in left {
                for b in right {
                    assert_eq!(a.cmp(b), i.cmp(&j), "{a} against {b}");
                    if i == j {
                        assert_eq!(hash_of(a), hash_of(b), "hash of {a} and {b}");
                        assert_eq!(a.stable_hash(), b.stable_hash(), "lane of {a} and {b}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_stable_hash_never_changes() {
    assert_eq!(id(1).stable_hash(), 0xde21_2872_558b_042f);
    assert_eq!(id("imago").stable_hash(), 0x7f63_0e02_5c64_09b9);
}

#[test]
fn an_object_id_takes_no_heap() {
    let object_id = id(bson::oid::ObjectId::from_bytes([7; 12]));
    assert_eq!(object_id.memory_bytes(), 32);
}

#[test]
fn a_document_without_id_is_refused() {
    let document = RawDocumentBuf::try_from(&doc! {"a": 1}).unwrap();
    assert!(matches!(Id::of_document(&document), Err(super::IdError::Missing { .. })));
}

#[test]
fn an_id_that_is_not_utf8_is_refused() {
    let mut bytes = RawDocumentBuf::try_from(&doc! {"_id": {"a": "x"}}).unwrap().into_bytes();
    let at = bytes.iter().position(|&b| b == b'x').unwrap();
    bytes[at] = 0xff;
    let document = RawDocumentBuf::from_bytes(bytes).unwrap();
    assert!(matches!(Id::of_document(&document), Err(super::IdError::Malformed { kind: 3, .. })));
}

#[test]
fn malformed_bytes_compare_without_panicking() {
    let good =
        RawDocumentBuf::try_from(&doc! {"a": {"b": "text", "c": [1, 2.5, {"d": 1}]}}).unwrap();
    let bytes = good.as_bytes().to_vec();
    for at in 4..bytes.len() - 1 {
        for value in [0u8, 1, 2, 5, 0x0b, 0x7f, 0x80, 0xff] {
            let mut bad = bytes.clone();
            bad[at] = value;
            let bad = RawDocumentBuf::from_bytes(bad).unwrap();
            let (a, b) = (bson::RawBsonRef::Document(&bad), bson::RawBsonRef::Document(&good));
            assert_eq!(cmp_values(a, b), cmp_values(b, a).reverse());
            assert_eq!(cmp_values(a, a), Ordering::Equal);
        }
    }
}

fn number() -> impl Strategy<Value = Bson> {
    let near = prop_oneof![Just(0i64), Just(1 << 53), Just(i64::MAX), Just(i64::MIN), Just(10)]
        .prop_flat_map(|base| (-3i64..=3).prop_map(move |d| base.saturating_add(d)));
    let int = prop_oneof![near, any::<i64>()];
    prop_oneof![
        int.clone().prop_map(Bson::Int64),
        any::<i32>().prop_map(Bson::Int32),
        (-3i32..=3).prop_map(Bson::Int32),
        #[allow(clippy::cast_precision_loss)]
        int.clone().prop_map(|v| Bson::Double(v as f64)),
        any::<f64>().prop_map(Bson::Double),
        int.prop_map(|v| dec(&v.to_string())),
        any::<u64>().prop_map(|v| Bson::Double(f64::from_bits(v))),
        // Any 16 bytes are some decimal: canonical or not.
        any::<u128>().prop_map(|v| Bson::Decimal128(Decimal128::from_bytes(v.to_le_bytes()))),
        (-5i64..=5, -3i32..=3).prop_map(|(c, e)| dec(&format!("{c}E{e}"))),
        (any::<u64>(), -40i32..=40).prop_map(|(c, e)| dec(&format!("{c}E{e}"))),
    ]
}

fn leaf() -> impl Strategy<Value = Bson> {
    prop_oneof![
        4 => number(),
        2 => "[ab\0é]{0,3}".prop_map(Bson::String),
        1 => "[ab]{0,2}".prop_map(Bson::Symbol),
        1 => (prop_oneof![Just(0u8), Just(2), Just(5), Just(0x80)], prop::collection::vec(0u8..3, 0..6))
            .prop_map(|(s, bytes)| Bson::Binary(bson::Binary { subtype: s.into(), bytes })),
        1 => any::<[u8; 12]>().prop_map(|b| Bson::ObjectId(bson::oid::ObjectId::from_bytes(b))),
        1 => any::<bool>().prop_map(Bson::Boolean),
        1 => any::<i64>().prop_map(|v| Bson::DateTime(bson::DateTime::from_millis(v))),
        1 => any::<(u32, u32)>()
            .prop_map(|(time, increment)| Bson::Timestamp(bson::Timestamp { time, increment })),
        1 => prop_oneof![Just(Bson::Null), Just(Bson::MinKey), Just(Bson::MaxKey),
            Just(Bson::Undefined)],
        1 => "[ab]{0,2}".prop_map(Bson::JavaScriptCode),
    ]
}

fn value() -> impl Strategy<Value = Bson> {
    leaf().prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Bson::Array),
            prop::collection::vec(("[ab]{1}", inner), 0..3)
                .prop_map(|fields| Bson::Document(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_order_is_antisymmetric(a in value(), b in value()) {
        let (a, b) = (id(a), id(b));
        prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
        prop_assert_eq!(a.cmp(&b) == Ordering::Equal, a == b);
    }

    #[test]
    fn the_order_is_transitive(values in prop::collection::vec(value(), 3)) {
        let mut ids: Vec<Id> = values.into_iter().map(id).collect();
        ids.sort();
        prop_assert!(ids[0] <= ids[1] && ids[1] <= ids[2] && ids[0] <= ids[2]);
    }

    #[test]
    fn numbers_are_transitive(a in number(), b in number(), c in number()) {
        let (a, b, c) = (id(a), id(b), id(c));
        if a <= b && b <= c {
            prop_assert!(a <= c, "{} {} {}", a, b, c);
        }
        if a == b && b == c {
            prop_assert!(a == c, "{} {} {}", a, b, c);
        }
    }

    #[test]
    fn equal_ids_hash_equally(a in number(), b in number()) {
        let (a, b) = (id(a), id(b));
        if a == b {
            prop_assert_eq!(hash_of(&a), hash_of(&b));
            prop_assert_eq!(a.stable_hash(), b.stable_hash());
        }
    }

    #[test]
    fn a_long_equals_the_decimal_and_the_double_that_hold_it(v in any::<i64>()) {
        let (long, decimal) = (id(v), id(dec(&v.to_string())));
        prop_assert_eq!(&long, &decimal);
        prop_assert_eq!(hash_of(&long), hash_of(&decimal));
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
        let (double, exact) = (v as f64, (v as f64) as i128 == i128::from(v));
        prop_assert_eq!(long == id(double), exact);
    }

    #[test]
    fn two_ids_that_differ_rarely_share_a_stable_hash(a in value(), b in value()) {
        let (a, b) = (id(a), id(b));
        prop_assert_eq!(a == b, a.stable_hash() == b.stable_hash());
    }

    #[test]
    fn an_id_keeps_the_stored_type_and_bytes(v in value()) {
        let raw = RawBson::try_from(v).unwrap();
        let made = Id::from_raw(raw.as_raw_bson_ref());
        let mut left = RawDocumentBuf::new();
        left.append(bson::raw::cstr!("v"), raw.as_raw_bson_ref());
        let mut right = RawDocumentBuf::new();
        right.append(bson::raw::cstr!("v"), made.as_raw());
        prop_assert_eq!(left.as_bytes(), right.as_bytes());
    }
}
