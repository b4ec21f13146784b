//! Our order and equality of `_id`s beside those of a real mongod.

use std::collections::BTreeSet;

use bson::{Bson, Decimal128, RawDocumentBuf, doc};
use futures_util::TryStreamExt;
use imago_mongo::bson::order::Id;
use imago_mongo::server::collection::Handle;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::verify::world::{collection, with_sides};

fn dec(text: &str) -> Bson {
    Bson::Decimal128(text.parse::<Decimal128>().unwrap())
}

fn binary(subtype: u8, bytes: &[u8]) -> Bson {
    Bson::Binary(bson::Binary { subtype: subtype.into(), bytes: bytes.to_vec() })
}

fn numbers() -> Vec<Bson> {
    let mut all = vec![
        Bson::Double(f64::NAN),
        dec("NaN"),
        Bson::Double(f64::INFINITY),
        dec("Infinity"),
        Bson::Double(f64::NEG_INFINITY),
        dec("-Infinity"),
        Bson::Double(-0.0),
        dec("-0E+10"),
        Bson::Double(f64::MAX),
        Bson::Double(f64::MIN),
        Bson::Double(f64::MIN_POSITIVE),
        Bson::Double(5e-324),
        dec("1E-6176"),
        dec("9.999999999999999999999999999999999E+6144"),
        dec("1E+400"),
        dec("-1E+400"),
        Bson::Double(1e22),
        dec("1E+22"),
        Bson::Double(0.1),
        dec("0.1"),
        dec("0.10"),
        dec("0.1000000000000000055511151231257827"),
        dec("0.1000000000000000055511151231257828"),
        Bson::Double(0.5),
        dec("0.5"),
        Bson::Double(9_223_372_036_854_775_808.0),
        dec("9223372036854775807"),
        dec("9223372036854775807.5"),
        dec("9223372036854775808"),
    ];
    for base in [0i64, 1 << 31, 1 << 53, -(1 << 53), i64::MAX, i64::MIN] {
        for offset in -2..=2 {
            let n = base.saturating_add(offset);
            #[expect(clippy::cast_precision_loss)]
            let double = n as f64;
            all.extend([Bson::Int64(n), Bson::Double(double), dec(&n.to_string())]);
            all.extend(i32::try_from(n).map(Bson::Int32));
            all.push(dec(&format!("{n}.5")));
        }
    }
    all
}

fn others() -> Vec<Bson> {
    let oid = |byte| Bson::ObjectId(bson::oid::ObjectId::from_bytes([byte; 12]));
    let timestamp = |time, increment| Bson::Timestamp(bson::Timestamp { time, increment });
    let scoped = |code: &str, scope| {
        Bson::JavaScriptCodeWithScope(bson::JavaScriptCodeWithScope { code: code.into(), scope })
    };
    let regex = |pattern: &str| {
        Bson::RegularExpression(bson::Regex {
            pattern: pattern.try_into().unwrap(),
            options: "i".try_into().unwrap(),
        })
    };
    let mut all = vec![
        Bson::MinKey,
        Bson::MaxKey,
        Bson::Null,
        Bson::Boolean(true),
        Bson::Boolean(false),
        oid(0),
        oid(0x7f),
        oid(0x80),
        Bson::DateTime(bson::DateTime::from_millis(i64::MIN)),
        Bson::DateTime(bson::DateTime::from_millis(-1)),
        Bson::DateTime(bson::DateTime::from_millis(1)),
        timestamp(0, 1),
        timestamp(1, 0),
        timestamp(u32::MAX, u32::MAX),
        Bson::JavaScriptCode("a".into()),
        Bson::JavaScriptCode("b".into()),
        scoped("a", doc! {"x": 1}),
        scoped("a", doc! {"x": 1.0}),
        scoped("a", doc! {"x": 2}),
        Bson::Symbol("sym".into()),
        Bson::String("sym".into()),
        Bson::String("sym\0".into()),
        Bson::String("Sym".into()),
        Bson::String("symé".into()),
        Bson::String("sym\u{ffff}".into()),
        Bson::String("sym\u{10000}".into()),
        Bson::String(String::new()),
        Bson::Document(doc! {}),
        Bson::Document(doc! {"a": Bson::Null}),
        Bson::Document(doc! {"a": Bson::Undefined}),
        Bson::Document(doc! {"a": regex("x")}),
        Bson::Document(doc! {"a": regex("y")}),
        Bson::Document(doc! {"a": Bson::MinKey}),
        Bson::Document(doc! {"a": Bson::MaxKey}),
        Bson::Document(doc! {"a": "x", "b": 1}),
        Bson::Document(doc! {"b": 1, "a": "x"}),
        Bson::Document(doc! {"z": 1}),
        Bson::Document(doc! {"z": 1_i64}),
        Bson::Document(doc! {"a": 1.5}),
        Bson::Document(doc! {"aa": 1}),
        Bson::Document(doc! {"a": {"b": {"c": dec("1.0")}}}),
        Bson::Document(doc! {"a": {"b": {"c": 1}}}),
        Bson::Document(doc! {"a": []}),
        Bson::Document(doc! {"a": [1, "x"]}),
        Bson::Document(doc! {"a": [1.0, Bson::Symbol("x".into())]}),
        Bson::Document(doc! {"a": [{"b": 1}]}),
        Bson::Document(doc! {"a": [{"c": 1}]}),
        Bson::Document(doc! {"a": [[1]]}),
    ];
    for subtype in [0, 2, 3, 5, 0x80, 0xff] {
        all.extend([binary(subtype, b""), binary(subtype, b"a"), binary(subtype, &[0xff; 300])]);
    }
    all
}

/// Inserts one by one. The server's verdict on each, duplicate or not, must be ours.
async fn same_verdicts(side: &Handle, values: Vec<Bson>) -> BTreeSet<Id> {
    let collection = collection(side);
    let mut ours: BTreeSet<Id> = BTreeSet::new();
    for value in values {
        let document = RawDocumentBuf::try_from(&doc! {"_id": value}).unwrap();
        let id = Id::of_document(&document).unwrap();
        let is_new = match collection.insert_one(document).await {
            Ok(_) => true,
            Err(error) if error.to_string().contains("E11000") => false,
            Err(error) => panic!("{id}: {error}"),
        };
        let held = ours.get(&id).cloned();
        assert_eq!(held.is_none(), is_new, "mongod on {id}, which we take to equal {held:?}");
        ours.insert(id);
    }
    ours
}

async fn same_order(side: &Handle, ours: BTreeSet<Id>) {
    let cursor = collection(side).find(doc! {}).sort(doc! {"_id": 1}).await.unwrap();
    let documents: Vec<RawDocumentBuf> = cursor.try_collect().await.unwrap();
    let theirs: Vec<Id> = documents.iter().map(|d| Id::of_document(d).unwrap()).collect();
    assert_eq!(theirs.len(), ours.len());
    for (mine, theirs) in ours.into_iter().zip(theirs) {
        assert_eq!(mine, theirs);
    }
}

#[test]
fn mongod_keeps_every_type_in_our_order() {
    with_sides("order_types", |sides| async move {
        let mut values = numbers();
        values.extend(others());
        let ours = same_verdicts(&sides.source, values).await;
        same_order(&sides.source, ours).await;
    });
}

#[test]
fn mongod_keeps_random_numbers_in_our_order() {
    with_sides("order_numbers", |sides| async move {
        let mut random = StdRng::seed_from_u64(7);
        let mut values = Vec::new();
        for _ in 0..400 {
            let bits: u64 = random.random();
            let small = random.random_range(-1_000i64..1_000);
            let exponent = random.random_range(-30..30);
            let coefficient: u64 = random.random();
            #[expect(clippy::cast_precision_loss)]
            values.extend([
                Bson::Double(f64::from_bits(bits)),
                Bson::Int64(bits.cast_signed()),
                Bson::Double(bits.cast_signed() as f64),
                dec(&format!("{small}E{exponent}")),
                Bson::Double(format!("{small}E{exponent}").parse().unwrap()),
                dec(&format!("{coefficient}E{exponent}")),
                Bson::Double(format!("{coefficient}E{exponent}").parse().unwrap()),
                // Any 16 bytes: also decimals that are not canonical.
                Bson::Decimal128(Decimal128::from_bytes(random.random::<u128>().to_le_bytes())),
            ]);
        }
        let ours = same_verdicts(&sides.source, values).await;
        same_order(&sides.source, ours).await;
    });
}
