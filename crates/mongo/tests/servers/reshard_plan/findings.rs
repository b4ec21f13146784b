//! Obstacles and warnings of a plan, each in a situation that causes it.

use bson::doc;
use imago_mongo::error::Error;
use imago_mongo::reshard::plan::Request;

use crate::reshard_plan::world::{SHARDS, codes, obstacle, run, warning};

#[test]
fn a_collection_that_is_not_sharded_is_planned_for_and_cannot_be_resharded() {
    run("flat", |place| async move {
        let flat = place.documents("flat");
        flat.insert_many((0..100).map(|n| doc! {"_id": n, "u": n})).await.unwrap();
        let plan = place.plan(&place.request("flat", Some(r#"{"u": 1}"#))).await.unwrap();
        assert_eq!(codes(&plan), obstacle("not_sharded"));
        // All of it is on one shard, and goes to three.
        assert!(plan.moved.bytes > plan.size.bytes / 2, "{plan:?}");
    });
}

#[test]
fn a_unique_index_that_does_not_begin_with_the_key_is_in_the_way() {
    run("unique", |place| async move {
        place.filled("unique").await;
        let index = doc! {"key": {"k": 1, "u": 1}, "name": "ku", "unique": true};
        let command = doc! {"createIndexes": "unique", "indexes": [index]};
        place.router.run(&place.db, command).await.unwrap();
        assert_eq!(place.find("unique", r#"{"u": 1}"#).await, obstacle("unique_index"));
        assert_eq!(place.find("unique", r#"{"k": 1, "u": 1}"#).await, []);
    });
}

#[test]
fn documents_without_the_key_are_told_and_arrays_are_in_the_way() {
    run("odd", |place| async move {
        place.filled("odd").await;
        let odd = place.documents("odd");
        odd.update_many(doc! {"k": {"$lt": 30}}, doc! {"$unset": {"u": 1}}).await.unwrap();
        let plan = place.plan(&place.request("odd", Some(r#"{"u": "hashed"}"#))).await.unwrap();
        assert_eq!(codes(&plan), warning("missing_fields"));
        assert!(plan.findings[0].what.starts_with("1.00 %"), "{:?}", plan.findings);
        odd.update_one(doc! {"k": 40}, doc! {"$set": {"u": [1, 2]}}).await.unwrap();
        let both = [obstacle("array"), warning("missing_fields")].concat();
        assert_eq!(place.find("odd", r#"{"u": 1}"#).await, both);
        assert_eq!(place.find("odd", r#"{"u": "hashed"}"#).await, both);
    });
}

#[test]
fn one_id_on_two_shards_is_in_the_way() {
    run("twice", |place| async move {
        place.filled("twice").await;
        // The second shard does not own this one, which the first one has.
        let orphan = doc! {"_id": 7, "k": 7, "u": 1};
        place.on_shard(1, "twice").await.insert_one(orphan).await.unwrap();
        let plan = place.plan(&place.request("twice", Some(r#"{"u": 1}"#))).await.unwrap();
        assert_eq!(codes(&plan), []);
        let twin = doc! {"_id": 5, "k": 2_500, "r": 1, "u": 1};
        place.documents("twice").insert_one(twin).await.unwrap();
        let plan = place.plan(&place.request("twice", Some(r#"{"u": 1}"#))).await.unwrap();
        assert_eq!(codes(&plan), obstacle("duplicate_ids"));
        assert!(plan.findings[0].what.contains(r#"{"$numberInt":"5"}"#), "{:?}", plan.findings);
    });
}

#[test]
fn a_value_that_is_larger_than_a_chunk_is_told_with_the_value() {
    run("large", |place| async move {
        place.filled("large").await;
        let large = |n: i32| doc! {"_id": -n, "k": n, "u": 7, "filler": "z".repeat(200_000)};
        place.documents("large").insert_many((1..10).map(large)).await.unwrap();
        let small = Request {
            chunk_bytes: Some(1024 * 1024),
            ..place.request("large", Some(r#"{"u": 1}"#))
        };
        let plan = place.plan(&small).await.unwrap();
        assert_eq!(codes(&plan), warning("jumbo"));
        assert!(plan.findings[0].what.contains(r#"{"u":{"$numberInt":"7"}}"#), "{plan:?}");
    });
}

#[test]
fn a_key_of_few_values_is_told() {
    run("few", |place| async move {
        place.filled("few").await;
        let found = [warning("missing_fields"), warning("few_values")].concat();
        assert_eq!(place.find("few", r#"{"nothing": 1}"#).await, found);
    });
}

#[test]
fn a_collation_is_told() {
    run("collated", |place| async move {
        let command = doc! {"create": "collated", "collation": {"locale": "de"}};
        place.router.run(&place.db, command).await.unwrap();
        let simple = doc! {
            "shardCollection": place.ns("collated"), "key": {"k": 1},
            "collation": {"locale": "simple"},
        };
        place.admin(simple).await;
        place.fill("collated").await;
        assert_eq!(place.find("collated", r#"{"u": 1}"#).await, warning("collation"));
    });
}

#[test]
fn zones_are_in_the_way() {
    run("zoned", |place| async move {
        place.filled("zoned").await;
        let ns = place.ns("zoned");
        let config = place.client("plan-cfg").await.database("config");
        let zone = doc! {
            "_id": {"ns": &ns, "min": {"k": 0}}, "ns": &ns, "tag": "north", "min": {"k": 0},
            "max": {"k": 10},
        };
        config.collection("tags").insert_one(zone).await.unwrap();
        assert_eq!(place.find("zoned", r#"{"u": 1}"#).await, obstacle("zones"));
    });
}

#[test]
fn what_makes_no_sense_is_refused() {
    run("refused", |place| async move {
        place.filled("weights").await;
        let refused = async |request: Request| place.plan(&request).await.unwrap_err();
        let usage = |error: Error| assert!(matches!(error, Error::Usage { .. }), "{error:?}");
        let unmet =
            |error: Error| assert!(matches!(error, Error::Precondition { .. }), "{error:?}");
        usage(refused(place.request("weights", Some(r#"{"k": 1}"#))).await);
        usage(refused(place.request("weights", None)).await);
        usage(refused(place.request("weights", Some("{}"))).await);
        let all = (0..SHARDS).map(|shard| place.shard(shard)).collect();
        usage(refused(Request { drain_shards: all, ..place.request("weights", None) }).await);
        unmet(refused(place.request("nothing", Some(r#"{"u": 1}"#))).await);
        let strange = Request { add_shards: vec!["s99".into()], ..place.request("weights", None) };
        unmet(refused(strange).await);
        let command = doc! {"create": "view", "viewOn": "weights", "pipeline": []};
        place.router.run(&place.db, command).await.unwrap();
        unmet(refused(place.request("view", Some(r#"{"u": 1}"#))).await);
        let series = doc! {"create": "series", "timeseries": {"timeField": "at"}};
        place.router.run(&place.db, series).await.unwrap();
        unmet(refused(place.request("series", Some(r#"{"u": 1}"#))).await);
    });
}
