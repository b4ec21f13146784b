//! Extended JSON there and back: written values read as the same bytes, and text without a meaning
//! is refused.

use bson::{Bson, RawBson, RawDocumentBuf, doc, rawdoc};

use super::{ExtJson, ExtJsonError, parse, parse_document};

fn bytes_of(value: bson::raw::RawBsonRef<'_>) -> Vec<u8> {
    let mut document = RawDocumentBuf::new();
    document.append(bson::raw::cstr!("v"), value);
    document.into_bytes()
}

fn returns_as_the_same_bytes(value: &RawBson) {
    let text = serde_json::to_string(&ExtJson(value.as_raw_bson_ref())).unwrap();
    let back = parse(&text).unwrap();
    assert_eq!(
        bytes_of(back.as_raw_bson_ref()),
        bytes_of(value.as_raw_bson_ref()),
        "through {text}"
    );
}

#[test]
fn every_type_returns_as_the_same_bytes() {
    let pointer = r#"{"$dbPointer":{"$ref":"a.b","$id":{"$oid":"0123456789abcdef01234567"}}}"#;
    let scoped = bson::JavaScriptCodeWithScope { code: "f()".into(), scope: doc! {"b": 1, "a": 2} };
    let values = [
        Bson::Double(0.1),
        Bson::Double(-0.0),
        Bson::Double(1e300),
        Bson::Double(5e-324),
        Bson::Double(f64::INFINITY),
        Bson::Double(f64::NEG_INFINITY),
        Bson::Double(f64::NAN),
        Bson::String("a\"\u{1}\0 é\u{1F600}".into()),
        Bson::Array(vec![Bson::Null, Bson::Int32(1)]),
        Bson::Document(doc! {"b": 1, "a": {"c": []}}),
        Bson::Boolean(true),
        Bson::Null,
        Bson::RegularExpression(bson::Regex {
            pattern: "^a/".try_into().unwrap(),
            options: "im".try_into().unwrap(),
        }),
        Bson::JavaScriptCode("f()".into()),
        Bson::JavaScriptCodeWithScope(scoped),
        Bson::Int32(i32::MIN),
        Bson::Int64((1 << 53) + 1),
        Bson::Int64(1),
        Bson::Timestamp(bson::Timestamp { time: u32::MAX, increment: 1 }),
        Bson::Binary(bson::Binary { subtype: 0u8.into(), bytes: vec![0, 255] }),
        Bson::Binary(bson::Binary { subtype: 2u8.into(), bytes: vec![] }),
        Bson::Binary(bson::Binary { subtype: 0x80u8.into(), bytes: vec![1] }),
        Bson::ObjectId(bson::oid::ObjectId::from_bytes([9; 12])),
        Bson::DateTime(bson::DateTime::from_millis(i64::MIN)),
        Bson::Symbol("s".into()),
        Bson::Decimal128("1.00".parse().unwrap()),
        Bson::Decimal128("-Infinity".parse().unwrap()),
        Bson::Decimal128("9.999999999999999999999999999999999E+6144".parse().unwrap()),
        Bson::Undefined,
        Bson::MaxKey,
        Bson::MinKey,
    ];
    for value in values {
        returns_as_the_same_bytes(&RawBson::try_from(value).unwrap());
    }
    returns_as_the_same_bytes(&parse(pointer).unwrap());
}

#[test]
fn order_and_repetition_of_names_are_kept() {
    let mut document = rawdoc! {"z": 1};
    document.append(bson::raw::cstr!("a"), 1);
    document.append(bson::raw::cstr!("z"), 2);
    returns_as_the_same_bytes(&RawBson::Document(document));
}

#[test]
fn relaxed_forms_are_read_too() {
    let filter = parse_document(
        r#"{"n": {"$gt": 5, "$lt": 5000000000}, "x": 1.5, "at": {"$date": "1970-01-01T00:00:01Z"}}"#,
    )
    .unwrap();
    let expected = rawdoc! {
        "n": {"$gt": 5, "$lt": 5_000_000_000_i64},
        "x": 1.5,
        "at": bson::DateTime::from_millis(1_000),
    };
    assert_eq!(filter.as_bytes(), expected.as_bytes());
}

#[test]
fn the_shells_notation_is_read_as_far_as_json5_has_it() {
    let key = parse_document("{userID: 1, 'time': -1, n: 5000000000, x: 1.5, a: {$gt: [null]}}");
    let expected = rawdoc! {
        "userID": 1, "time": -1, "n": 5_000_000_000_i64, "x": 1.5, "a": {"$gt": [null]},
    };
    assert_eq!(key.unwrap().as_bytes(), expected.as_bytes());
    let error = parse("{userID: ISODate()}").unwrap_err();
    assert!(error.to_string().starts_with("not valid JSON: key must be a string"), "{error}");
}

#[test]
fn what_cannot_be_meant_is_refused() {
    assert!(matches!(parse(r#"{"$oid": "xyz"}"#), Err(ExtJsonError::Wrapper { .. })));
    assert!(matches!(parse("{"), Err(ExtJsonError::Syntax(_))));
    assert!(matches!(parse_document("[1]"), Err(ExtJsonError::NoDocument(_))));
    assert!(matches!(parse("{\"a\\u0000b\": 1}"), Err(ExtJsonError::Name(_))));
}
