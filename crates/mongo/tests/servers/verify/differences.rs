//! The differences that a full verification finds.

use bson::{Bson, doc};
use imago_mongo::error::{Class, Error};
use imago_mongo::verify::{Spec, Unwatched, verify};

use crate::verify::world::{collection, control, create, insert, listed, quick, with_sides};

fn reviews(count: i32) -> Vec<bson::Document> {
    (0..count).map(|n| doc! {"_id": n, "text": format!("review {n}"), "stars": n % 5}).collect()
}

#[test]
fn equal_sides_are_clean() {
    with_sides("clean", |sides| async move {
        sides.fill(reviews(3_000)).await;
        let report = sides.verify(&quick()).await;
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(report.compared, 3_000);
    });
}

#[test]
fn one_changed_byte_is_found() {
    with_sides("byte", |sides| async move {
        sides.fill(reviews(2_000)).await;
        let change = doc! {"$set": {"text": "review 777 "}};
        collection(&sides.destination).update_one(doc! {"_id": 777}, change).await.unwrap();
        let report = sides.verify(&quick()).await;
        assert_eq!(listed(&report.differences), [r#"different {"$numberInt":"777"}"#]);
        assert_eq!(report.different, 1);
    });
}

#[test]
fn another_order_of_fields_is_a_difference() {
    with_sides("fields", |sides| async move {
        insert(&sides.source, [doc! {"_id": 1, "a": 1, "b": 2}]).await;
        insert(&sides.destination, [doc! {"_id": 1, "b": 2, "a": 1}]).await;
        assert_eq!(sides.verify(&quick()).await.different, 1);
    });
}

#[test]
fn another_numeric_type_is_a_difference() {
    with_sides("types", |sides| async move {
        insert(&sides.source, [doc! {"_id": 1, "n": 1}, doc! {"_id": 2}]).await;
        insert(&sides.destination, [doc! {"_id": 1, "n": 1_i64}, doc! {"_id": 2.0}]).await;
        assert_eq!(sides.verify(&quick()).await.different, 2);
    });
}

#[test]
fn documents_of_one_side_alone_are_found() {
    with_sides("alone", |sides| async move {
        sides.fill(reviews(1_000)).await;
        collection(&sides.destination).delete_one(doc! {"_id": 0}).await.unwrap();
        collection(&sides.destination).delete_one(doc! {"_id": 500}).await.unwrap();
        insert(&sides.destination, [doc! {"_id": "only here"}, doc! {"_id": -1}]).await;
        let report = sides.verify(&quick()).await;
        assert_eq!((report.missing, report.extra, report.different), (2, 2, 0));
        assert_eq!(
            listed(&report.differences),
            [
                r#"extra {"$numberInt":"-1"}"#,
                r#"missing {"$numberInt":"0"}"#,
                r#"missing {"$numberInt":"500"}"#,
                r#"extra "only here""#,
            ]
        );
    });
}

fn odd_ids() -> Vec<Bson> {
    vec![
        Bson::MinKey,
        Bson::Null,
        Bson::Double(f64::NAN),
        Bson::Int32(1),
        Bson::Int64((1 << 53) + 1),
        Bson::Double(9_007_199_254_740_992.0),
        Bson::Decimal128("0.1".parse().unwrap()),
        Bson::String(String::new()),
        Bson::String("a\0b".into()),
        Bson::Document(doc! {"b": 1, "a": {"$ref": 1}}.into_iter().take(1).collect()),
        Bson::Binary(bson::Binary { subtype: 2u8.into(), bytes: vec![1] }),
        Bson::ObjectId(bson::oid::ObjectId::from_bytes([1; 12])),
        Bson::Boolean(false),
        Bson::DateTime(bson::DateTime::from_millis(-5)),
        Bson::Timestamp(bson::Timestamp { time: 1, increment: 2 }),
        Bson::JavaScriptCode("f".into()),
        Bson::MaxKey,
    ]
}

#[test]
fn every_type_of_id_is_aligned() {
    with_sides("odd", |sides| async move {
        let all: Vec<bson::Document> =
            odd_ids().into_iter().map(|id| doc! {"_id": id, "v": 1}).collect();
        sides.fill(all.clone()).await;
        assert!(sides.verify(&quick()).await.is_clean());
        collection(&sides.destination).delete_many(doc! {}).await.unwrap();
        let report = sides.verify(&quick()).await;
        assert_eq!(report.missing, all.len() as u64);
    });
}

/// Enough documents for several ranges, more than a draw could miss of either end of the index.
#[test]
fn ranges_cover_the_whole_index() {
    with_sides("ranges", |sides| async move {
        let ends = [doc! {"_id": Bson::MinKey}, doc! {"_id": Bson::MaxKey}];
        let numbers = (0..120_000).map(|n| doc! {"_id": n});
        sides.fill(numbers.chain(ends)).await;
        let delete = doc! {"_id": {"$in": [0, 60_000, 119_999, Bson::MinKey, Bson::MaxKey]}};
        collection(&sides.destination).delete_many(delete).await.unwrap();
        let report = sides.verify(&quick()).await;
        assert_eq!((report.compared, report.missing), (120_002, 5));
    });
}

#[test]
fn a_filter_restricts_both_sides() {
    with_sides("filter", |sides| async move {
        insert(&sides.source, [doc! {"_id": 1, "in": true}, doc! {"_id": 2, "in": false}]).await;
        insert(&sides.destination, [doc! {"_id": 1, "in": true}, doc! {"_id": 3, "in": false}])
            .await;
        let spec = Spec { filter: Some(doc! {"in": true}), ..quick() };
        let report = sides.verify(&spec).await;
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(report.compared, 1);
        assert_eq!(sides.verify(&quick()).await.document_differences(), 2);
    });
}

#[test]
fn a_document_that_left_the_filter_at_the_source_is_extra() {
    with_sides("left", |sides| async move {
        insert(&sides.source, [doc! {"_id": 1, "in": false}]).await;
        insert(&sides.destination, [doc! {"_id": 1, "in": true}]).await;
        let spec = Spec { filter: Some(doc! {"in": true}), ..quick() };
        assert_eq!(listed(&sides.verify(&spec).await.differences), [r#"extra {"$numberInt":"1"}"#]);
    });
}

#[test]
fn ids_under_a_collation_are_compared() {
    with_sides("collation", |sides| async move {
        let collation = doc! {"collation": {"locale": "en", "strength": 2}};
        create(&sides.source, collation.clone()).await;
        create(&sides.destination, collation).await;
        let both = ["b", "a", "D", "c"].map(|id| doc! {"_id": id, "v": 1});
        sides.fill(both).await;
        insert(&sides.source, [doc! {"_id": "E"}, doc! {"_id": "f"}]).await;
        insert(&sides.destination, [doc! {"_id": "e"}, doc! {"_id": "g"}]).await;
        let report = sides.verify(&quick()).await;
        assert_eq!(
            listed(&report.differences),
            [r#"missing "E""#, r#"extra "e""#, r#"missing "f""#, r#"extra "g""#]
        );
    });
}

#[test]
fn a_clustered_collection_is_compared() {
    with_sides("clustered", |sides| async move {
        let options = doc! {"clusteredIndex": {"key": {"_id": 1}, "unique": true}};
        create(&sides.source, options.clone()).await;
        create(&sides.destination, options).await;
        sides.fill(reviews(200)).await;
        assert!(sides.verify(&quick()).await.is_clean());
        collection(&sides.destination).delete_one(doc! {"_id": 100}).await.unwrap();
        assert_eq!(sides.verify(&quick()).await.missing, 1);
    });
}

#[test]
fn documents_near_the_size_limit_are_compared() {
    with_sides("large", |sides| async move {
        let large = "x".repeat(16 * 1024 * 1024 - 200);
        let all: Vec<bson::Document> = (0..3).map(|n| doc! {"_id": n, "v": &large}).collect();
        for document in &all {
            insert(&sides.source, [document.clone()]).await;
            insert(&sides.destination, [document.clone()]).await;
        }
        let change = doc! {"$set": {"v": large.replacen('x', "y", 1)}};
        collection(&sides.destination).update_one(doc! {"_id": 1}, change).await.unwrap();
        let report = sides.verify(&quick()).await;
        assert_eq!(listed(&report.differences), [r#"different {"$numberInt":"1"}"#]);
    });
}

#[test]
fn too_many_suspects_end_the_search_with_a_reason() {
    with_sides("many", |sides| async move {
        insert(&sides.source, reviews(3_000)).await;
        create(&sides.destination, doc! {}).await;
        let spec = Spec { suspects_max: 1_000, listed_max: 5, ..quick() };
        let report = sides.verify(&spec).await;
        assert_eq!(report.missing, 1_000);
        assert_eq!(report.differences.len(), 5);
        assert!(report.incomplete.is_some());
    });
}

#[test]
fn a_collection_that_only_the_source_has_differs_and_one_that_it_has_not_is_a_precondition() {
    with_sides("unknown", |sides| async move {
        create(&sides.destination, doc! {}).await;
        let failed =
            verify(&sides.source, &sides.destination, &quick(), &control(), &mut Unwatched).await;
        let error: Error = failed.unwrap_err();
        assert_eq!(error.class(), Class::Precondition);
        assert!(error.to_string().contains("_unknown.docs at the source"), "{error}");
        create(&sides.source, doc! {}).await;
        sides.destination.drop().await.unwrap();
        let report = sides.verify(&quick()).await;
        assert!(report.is_missing && !report.is_clean(), "{report:?}");
    });
}

#[test]
fn two_empty_collections_are_equal() {
    with_sides("empty", |sides| async move {
        create(&sides.source, doc! {}).await;
        create(&sides.destination, doc! {}).await;
        assert!(sides.verify(&quick()).await.is_clean());
    });
}

#[test]
fn a_filter_that_the_server_does_not_understand_is_a_usage_error() {
    with_sides("nonsense", |sides| async move {
        sides.fill(reviews(1)).await;
        let spec = Spec { filter: Some(doc! {"$nonsense": 1}), ..quick() };
        let failed =
            verify(&sides.source, &sides.destination, &spec, &control(), &mut Unwatched).await;
        let error = failed.unwrap_err();
        assert_eq!(error.class(), Class::Usage);
        assert!(error.to_string().ends_with("using $getField or $setField."), "{error}");
    });
}
