//! The hash of a hashed shard key, as the servers compute it.
//!
//! The hash is the first eight bytes of an MD5 digest over a seed of four zero bytes and the value, in a form in
//! which all numeric types with the same integer part have the same bytes.

use bson::{Bson, RawDocumentBuf, doc};
use md5::{Digest, Md5};

/// Returns the hash of a shard key value; `None` for types that only the servers can hash (decimals, for example).
#[must_use]
pub fn hash(value: &Bson) -> Option<i64> {
    let mut digest = Md5::new();
    digest.update([0; 4]);
    add(&mut digest, value, None)?;
    let digest = digest.finalize();
    Some(i64::from_le_bytes(digest[..8].try_into().expect("a digest has sixteen bytes")))
}

fn add(digest: &mut Md5, value: &Bson, name: Option<&str>) -> Option<()> {
    digest.update(canonical_type(value)?.to_le_bytes());
    if let Some(name) = name {
        digest.update(name);
        digest.update([0]);
    }
    match value {
        Bson::Int32(number) => digest.update(i64::from(*number).to_le_bytes()),
        Bson::Int64(number) => digest.update(number.to_le_bytes()),
        Bson::Double(number) => digest.update(truncated(*number).to_le_bytes()),
        Bson::Document(document) => {
            for (name, value) in document {
                add(digest, value, Some(name))?;
            }
            add_end(digest);
        }
        Bson::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                add(digest, value, Some(&index.to_string()))?;
            }
            add_end(digest);
        }
        other => digest.update(value_bytes(other)?),
    }
    Some(())
}

/// Adds the end of a document or array to `digest`: it is hashed as an element of type 0 without name and value.
fn add_end(digest: &mut Md5) {
    digest.update(0i32.to_le_bytes());
}

/// Converts a double to an integer, truncated towards zero and clamped to the range of `i64`.
#[allow(clippy::cast_possible_truncation)]
fn truncated(number: f64) -> i64 {
    // The cast saturates and maps NaN to 0, as the servers do.
    number as i64
}

/// Returns the bytes that encode `value` inside a BSON document, without type and name; `None` if it cannot be
/// encoded.
fn value_bytes(value: &Bson) -> Option<Vec<u8>> {
    let raw = RawDocumentBuf::try_from(&doc! { "": value.clone() }).ok()?;
    // Length, type and the empty name precede the value; the end of the document follows it.
    let bytes = raw.as_bytes();
    Some(bytes.get(6..bytes.len() - 1)?.to_vec())
}

fn canonical_type(value: &Bson) -> Option<i32> {
    Some(match value {
        Bson::MinKey => -1,
        Bson::MaxKey => 127,
        Bson::Undefined => 0,
        Bson::Null => 5,
        Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_) => 10,
        Bson::String(_) | Bson::Symbol(_) => 15,
        Bson::Document(_) => 20,
        Bson::Array(_) => 25,
        Bson::Binary(_) => 30,
        Bson::ObjectId(_) => 35,
        Bson::Boolean(_) => 40,
        Bson::DateTime(_) => 45,
        Bson::Timestamp(_) => 47,
        Bson::RegularExpression(_) => 50,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::oid::ObjectId;
    use bson::spec::BinarySubtype;
    use bson::{Binary, DateTime, Timestamp, bson};

    /// Values, and their entries in a hashed index of a real server.
    #[test]
    fn hashes_are_those_in_a_servers_hashed_index() {
        let binary = |subtype| Bson::Binary(Binary { subtype, bytes: b"abc".to_vec() });
        let expected = [
            (bson!(1), 5_902_408_780_260_971_510),
            (Bson::Int64(1), 5_902_408_780_260_971_510),
            (bson!(1.7), 5_902_408_780_260_971_510),
            (bson!(-1.5), 1_140_205_862_565_771_219),
            (bson!(f64::NAN), 4_854_801_880_128_277_513),
            (bson!(f64::INFINITY), 921_523_596_458_303_250),
            (bson!(f64::NEG_INFINITY), 4_532_067_210_535_695_462),
            (bson!(1e30), 921_523_596_458_303_250),
            (bson!("abc"), 8_478_485_326_885_698_097),
            (bson!(""), 2_049_396_243_249_673_340),
            (Bson::Null, 2_338_878_944_348_059_895),
            (bson!(true), 6_405_873_908_747_105_701),
            (bson!(false), 6_289_544_573_401_934_092),
            (bson!({ "a": 1, "b": "x" }), -9_120_163_015_462_966_597),
            (bson!({}), 7_980_500_913_326_740_417),
            (bson!({ "a": { "b": 1.0 } }), -2_085_206_356_559_573_680),
            (
                Bson::ObjectId(ObjectId::parse_str("0123456789abcdef01234567").unwrap()),
                2_741_278_085_215_419_733,
            ),
            (Bson::DateTime(DateTime::from_millis(1_577_836_800_000)), -8_439_725_397_068_880_569),
            (Bson::Timestamp(Timestamp { time: 5, increment: 6 }), -6_832_991_088_748_649_283),
            (binary(BinarySubtype::Generic), -5_469_096_009_886_218_469),
            (binary(BinarySubtype::Uuid), -259_801_246_508_650_346),
            (Bson::MinKey, 7_961_148_599_568_647_290),
            (Bson::MaxKey, 5_504_842_513_779_440_750),
            (bson!({ "a": [1, "x"] }), -8_515_234_045_594_899_816),
        ];
        for (value, server) in expected {
            assert_eq!(hash(&value), Some(server), "{value}");
        }
    }
}
