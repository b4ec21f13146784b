//! The order of BSON values in a shard key, as far as the router can compare them.
//!
//! The servers place a document by comparing its shard key with the chunks' bounds in BSON's comparison order. The
//! router compares the types that shard keys usually have. For the rest (decimals among numbers, code, patterns)
//! the result is `None`, and a shard is queried instead.

use std::cmp::Ordering;

use bson::Bson;

/// Returns the rank of a value's type in BSON's comparison order; `None` if the router does not compare values of
/// that type.
fn rank(value: &Bson) -> Option<u8> {
    Some(match value {
        Bson::MinKey => 0,
        Bson::Undefined => 1,
        Bson::Null => 5,
        Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_) => 10,
        Bson::String(_) | Bson::Symbol(_) => 15,
        Bson::Document(_) => 20,
        Bson::Binary(_) => 30,
        Bson::ObjectId(_) => 35,
        Bson::Boolean(_) => 40,
        Bson::DateTime(_) => 45,
        Bson::Timestamp(_) => 47,
        Bson::MaxKey => 127,
        _ => return None,
    })
}

/// Compares two values as the servers do with the simple collation. Returns `None` if only the servers can compare
/// them.
pub(super) fn compare(left: &Bson, right: &Bson) -> Option<Ordering> {
    let by_type = rank(left)?.cmp(&rank(right)?);
    if by_type != Ordering::Equal {
        return Some(by_type);
    }
    Some(match (left, right) {
        (Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_), _) => compare_numbers(left, right)?,
        (Bson::String(left) | Bson::Symbol(left), Bson::String(right) | Bson::Symbol(right)) => {
            left.as_bytes().cmp(right.as_bytes())
        }
        (Bson::Document(left), Bson::Document(right)) => {
            let mut pairs = right.iter();
            for (key, value) in left {
                let Some((other_key, other)) = pairs.next() else {
                    return Some(Ordering::Greater);
                };
                // Type first, then name, then value.
                let by_name = rank(value)?.cmp(&rank(other)?).then_with(|| key.cmp(other_key));
                let order = match by_name {
                    Ordering::Equal => compare(value, other)?,
                    order => order,
                };
                if order != Ordering::Equal {
                    return Some(order);
                }
            }
            if pairs.next().is_some() { Ordering::Less } else { Ordering::Equal }
        }
        (Bson::Binary(left), Bson::Binary(right)) => {
            let key = |binary: &bson::Binary| (binary.bytes.len(), u8::from(binary.subtype));
            key(left).cmp(&key(right)).then_with(|| left.bytes.cmp(&right.bytes))
        }
        (Bson::ObjectId(left), Bson::ObjectId(right)) => left.cmp(right),
        (Bson::Boolean(left), Bson::Boolean(right)) => left.cmp(right),
        (Bson::DateTime(left), Bson::DateTime(right)) => left.cmp(right),
        (Bson::Timestamp(left), Bson::Timestamp(right)) => left.cmp(right),
        // Types with a single value: null, the two ends, undefined.
        _ => Ordering::Equal,
    })
}

fn compare_numbers(left: &Bson, right: &Bson) -> Option<Ordering> {
    let whole = |value: &Bson| match value {
        Bson::Int32(value) => Some(i64::from(*value)),
        Bson::Int64(value) => Some(*value),
        _ => None,
    };
    Some(match (whole(left), whole(right), left, right) {
        (Some(left), Some(right), ..) => left.cmp(&right),
        (Some(left), None, _, Bson::Double(right)) => compare_mixed(left, *right),
        (None, Some(right), Bson::Double(left), _) => compare_mixed(right, *left).reverse(),
        (None, None, Bson::Double(left), Bson::Double(right)) => {
            // NaN sorts first and equals itself.
            left.partial_cmp(right).unwrap_or_else(|| right.is_nan().cmp(&left.is_nan()))
        }
        _ => return None,
    })
}

/// Compares an integer with a double without loss of precision; NaN is less than every integer.
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
fn compare_mixed(whole: i64, float: f64) -> Ordering {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if float.is_nan() || float < -LIMIT {
        return Ordering::Greater;
    }
    if float >= LIMIT {
        return Ordering::Less;
    }
    // In this range the integer part of the double is exact in an i64.
    let floor = float.floor();
    whole.cmp(&(floor as i64)).then(if float > floor { Ordering::Less } else { Ordering::Equal })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{bson, doc, oid::ObjectId};

    #[test]
    fn values_of_all_types_come_in_the_servers_order() {
        let ordered = [
            Bson::MinKey,
            Bson::Null,
            Bson::Double(f64::NAN),
            Bson::Double(f64::NEG_INFINITY),
            Bson::Int64(i64::MIN),
            Bson::Int32(-1),
            Bson::Double(-0.5),
            Bson::Int32(0),
            Bson::Double(0.5),
            Bson::Int64(1),
            Bson::Int64((1 << 53) + 1),
            Bson::Int64(i64::MAX),
            Bson::Double(9_223_372_036_854_775_808.0),
            bson!(""),
            bson!("B"),
            bson!("a"),
            bson!({}),
            bson!({ "a": 1 }),
            bson!({ "a": 1, "b": 1 }),
            bson!({ "b": 1 }),
            Bson::ObjectId(ObjectId::from_bytes([0; 12])),
            bson!(false),
            bson!(true),
            Bson::MaxKey,
        ];
        for (left, a) in ordered.iter().enumerate() {
            for (right, b) in ordered.iter().enumerate() {
                assert_eq!(compare(a, b), Some(left.cmp(&right)), "{a} and {b}");
            }
        }
    }

    #[test]
    fn equal_numbers_of_different_types_are_equal() {
        assert_eq!(compare(&bson!(1), &bson!(1.0)), Some(Ordering::Equal));
        assert_eq!(compare(&Bson::Int64(0), &Bson::Double(-0.0)), Some(Ordering::Equal));
    }

    #[test]
    fn a_decimal_is_left_to_the_servers() {
        let decimal = Bson::Decimal128("1".parse().unwrap());
        assert_eq!(compare(&decimal, &bson!(1)), None);
        assert_eq!(compare(&bson!({ "a": decimal }), &Bson::Document(doc! { "a": 1 })), None);
    }
}
