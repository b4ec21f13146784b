//! `_id`s of every type, in a collection of many slices, changed before, during and after the bulk.

use bson::spec::BinarySubtype;
use bson::{
    Binary, Bson, DateTime, Decimal128, JavaScriptCodeWithScope, Timestamp, doc, oid::ObjectId,
};
use mongodb::options::ReplaceOptions;

use crate::copy::world::{Between, Dice, Ends, documents, fill, run};

fn decimal(text: &str) -> Bson {
    Bson::Decimal128(text.parse::<Decimal128>().unwrap())
}

fn binary(subtype: BinarySubtype, bytes: &[u8]) -> Bson {
    Bson::Binary(Binary { subtype, bytes: bytes.to_vec() })
}

/// Each line holds `_id`s that are equal to a server, and different in their bytes.
fn families() -> Vec<Vec<Bson>> {
    let alone = [
        Bson::MinKey,
        Bson::Null,
        Bson::Double(f64::NEG_INFINITY),
        Bson::Double(0.1),
        decimal("0.1"),
        Bson::Double(-7.5),
        decimal("1E+6000"),
        Bson::Int64(i64::MAX - 1),
        Bson::Double(5e-324),
        Bson::from(""),
        Bson::from("a"),
        Bson::from("a\0b"),
        Bson::from("ä"),
        Bson::Document(doc! {}),
        Bson::Document(doc! {"a": 1}),
        Bson::Document(doc! {"a": {"b": Bson::Null, "c": [1, 2]}}),
        Bson::Document(doc! {"b": 1, "a": 1}),
        Bson::Document(doc! {"a": 1, "b": 1}),
        binary(BinarySubtype::Generic, &[]),
        binary(BinarySubtype::Generic, &[0, 255]),
        binary(BinarySubtype::Uuid, &[7; 16]),
        binary(BinarySubtype::Md5, &[7; 16]),
        binary(BinarySubtype::UserDefined(128), &[1]),
        Bson::ObjectId(ObjectId::from_bytes([0; 12])),
        Bson::ObjectId(ObjectId::from_bytes([255; 12])),
        Bson::Boolean(false),
        Bson::Boolean(true),
        Bson::DateTime(DateTime::from_millis(i64::MIN)),
        Bson::DateTime(DateTime::from_millis(-1)),
        Bson::DateTime(DateTime::from_millis(0)),
        Bson::Timestamp(Timestamp { time: 0, increment: 0 }),
        Bson::Timestamp(Timestamp { time: u32::MAX, increment: 1 }),
        Bson::JavaScriptCode("f()".into()),
        Bson::JavaScriptCodeWithScope(JavaScriptCodeWithScope {
            code: "f()".into(),
            scope: doc! {"a": 1},
        }),
        Bson::MaxKey,
    ];
    let mut families: Vec<Vec<Bson>> = alone.into_iter().map(|id| vec![id]).collect();
    families.push(vec![Bson::Double(-0.0), Bson::Double(0.0), Bson::Int64(0), decimal("-0E+3")]);
    families.push(vec![Bson::Double(f64::NAN), decimal("NaN")]);
    families.push(vec![Bson::Double(f64::INFINITY), decimal("Infinity")]);
    families.push(vec![Bson::from("sym"), Bson::Symbol("sym".into())]);
    for n in [1_i32, 500, 1_999] {
        let twins = [Bson::Int64(n.into()), Bson::Double(n.into()), Bson::Int32(n)];
        families.push([&twins[..], &[decimal(&format!("{n}.0"))]].concat());
    }
    families.push(vec![
        Bson::Int64(1 << 53),
        Bson::Double(9_007_199_254_740_992.0),
        decimal("9007199254740992"),
    ]);
    let nested = |n: Bson| Bson::Document(doc! {"n": n});
    families.push(vec![nested(Bson::Int32(3)), nested(Bson::Double(3.0)), nested(decimal("3"))]);
    families
}

/// Replaces, updates, deletes, and inserts again with an equal `_id` of another type.
async fn change(ends: &Ends, dice: &mut Dice, family: &[Bson], round: i32) {
    let docs = documents(&ends.source("ids"));
    let id = family[dice.below(family.len())].clone();
    let this = doc! {"_id": {"$eq": id.clone()}};
    match dice.below(5) {
        0 => docs.delete_one(this).await.map(|_| ()).unwrap(),
        1 => docs.update_one(this, doc! {"$set": {"n": round}}).await.map(|_| ()).unwrap(),
        2 => {
            let options = ReplaceOptions::builder().upsert(true).build();
            let new = doc! {"replaced": round};
            docs.replace_one(this, new).with_options(options).await.map(|_| ()).unwrap();
        }
        _ => {
            docs.delete_one(this).await.unwrap();
            docs.insert_one(doc! {"_id": id, "again": round}).await.unwrap();
        }
    }
}

#[test]
fn odd_ids_are_copied_and_followed() {
    run(Between::ReplicaSets, "ids", |ends| async move {
        fill(&ends.source("ids"), 2_000).await;
        let families = families();
        for family in &families {
            let this = doc! {"_id": {"$eq": family[0].clone()}};
            documents(&ends.source("ids")).delete_one(this).await.unwrap();
            let document = doc! {"_id": family[0].clone(), "first": true};
            documents(&ends.source("ids")).insert_one(document).await.unwrap();
        }
        let mut dice = Dice::new(1);
        let mut job = ends.copy(&ends.all()).await;
        for round in 0..8 {
            for family in &families {
                change(&ends, &mut dice, family, round).await;
            }
        }
        job.reaches("follow").await;
        for round in 8..16 {
            for family in &families {
                change(&ends, &mut dice, family, round).await;
            }
            if round % 4 == 0 {
                job.catches_up().await;
            }
        }
        job.catches_up().await;
        ends.assert_same("ids").await;
        job.stop().await;
    });
}

/// `_id`s whose key strings do not tell their type: milliseconds, a snowflake, prices, and numbers
/// that do not fit into a double.
fn untold() -> Vec<Bson> {
    vec![
        Bson::Int64(1_700_000_000_000),
        Bson::Int64(1_145_871_254_630_744_114),
        Bson::Int64((1 << 53) + 1),
        Bson::Double(9_007_199_254_740_994.0),
        Bson::Double(1.25),
        decimal("19.99"),
        Bson::Double(f64::NAN),
        Bson::Double(f64::INFINITY),
        Bson::Document(doc! {"shop": "Lyon", "order": Bson::Int64(1_700_000_000_001)}),
    ]
}

#[test]
fn a_copy_is_resumed_right_after_a_change_of_any_id() {
    run(Between::ReplicaSets, "resumed", |ends| async move {
        let orders = documents(&ends.source("orders"));
        let all = untold().into_iter().map(|id| doc! {"_id": id, "paid": 0});
        orders.insert_many(all).await.unwrap();
        let mut job = ends.copy(&ends.all()).await;
        job.reaches("follow").await;
        for id in untold() {
            // The last that it knows when it stops is one of these, and not that nothing happened.
            let this = doc! {"_id": {"$eq": id.clone()}};
            let busy = tokio::spawn({
                let orders = orders.clone();
                async move {
                    loop {
                        let pay = orders.update_one(this.clone(), doc! {"$inc": {"paid": 1}});
                        assert_eq!(pay.await.unwrap().matched_count, 1, "{id}");
                    }
                }
            });
            job.catches_up().await;
            job = job.down(async {}).await;
            job.catches_up().await;
            busy.abort();
        }
        job.catches_up().await;
        ends.assert_same("orders").await;
        job.stop().await;
    });
}
