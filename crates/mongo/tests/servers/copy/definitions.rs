//! The definition of a collection, carried over and followed.

use bson::{Bson, Document, doc};
use imago_mongo::server::collection::Handle;

use crate::copy::world::{Between, assert_same, collection, create, documents, fill, run, run_on};

#[test]
fn ids_that_a_collation_makes_equal_follow() {
    run(Between::ReplicaSets, "collation", |ends| async move {
        let source = ends.source("docs");
        create(&source, doc! {"collation": {"locale": "en", "strength": 2}}).await;
        let docs = documents(&source);
        fill(&source, 500).await;
        let ids = ["a", "b", "C", "été", "zoë"];
        for id in ids {
            docs.insert_one(doc! {"_id": id, "v": 0}).await.unwrap();
        }
        let mut job = ends.copy(&ends.all()).await;
        for id in &ids[..2] {
            docs.delete_one(doc! {"_id": id}).await.unwrap();
            docs.insert_one(doc! {"_id": id.to_uppercase(), "v": 1}).await.unwrap();
        }
        job.reaches("follow").await;
        for (id, twin) in [("A", "a"), ("C", "c"), ("été", "ÉTÉ")] {
            docs.delete_one(doc! {"_id": id}).await.unwrap();
            docs.insert_one(doc! {"_id": twin, "v": 2}).await.unwrap();
        }
        docs.update_one(doc! {"_id": "ZOË"}, doc! {"$set": {"v": 3}}).await.unwrap();
        docs.delete_one(doc! {"_id": "B"}).await.unwrap();
        docs.insert_one(doc! {"_id": {"name": "N"}}).await.unwrap();
        docs.delete_one(doc! {"_id": {"name": "n"}}).await.unwrap();
        docs.insert_one(doc! {"_id": {"name": "n"}}).await.unwrap();
        job.catches_up().await;
        ends.assert_same("docs").await;
        job.stop().await;
    });
}

async fn validate(source: &Handle) {
    let validator = doc! {"n": {"$type": "int"}};
    run_on(source, doc! {"collMod": "docs", "validator": validator}).await;
}

async fn break_the_validator(source: &Handle) {
    let update = doc! {"update": "docs", "bypassDocumentValidation": true, "updates": [
        {"q": {"_id": "bad"}, "u": {"$set": {"more": 1}}},
        {"q": {"_id": "worse"}, "u": {"n": "none"}, "upsert": true},
    ]};
    run_on(source, update).await;
}

#[test]
fn documents_that_break_the_validator_are_copied_with_it() {
    run(Between::ReplicaSets, "validator", |ends| async move {
        let source = ends.source("docs");
        fill(&source, 500).await;
        documents(&source).insert_one(doc! {"_id": "bad", "n": "no number"}).await.unwrap();
        validate(&source).await;
        let mut job = ends.copy(&ends.all()).await;
        job.reaches("follow").await;
        break_the_validator(&source).await;
        job.catches_up().await;
        ends.assert_same("docs").await;
        job.stop().await;
    });
}

#[test]
fn a_validator_that_comes_while_following_does_not_stop_the_copy() {
    run(Between::ReplicaSets, "validator_late", |ends| async move {
        let source = ends.source("docs");
        fill(&source, 500).await;
        documents(&source).insert_one(doc! {"_id": "bad", "n": "no number"}).await.unwrap();
        let mut job = ends.copy(&ends.all()).await;
        job.catches_up().await;
        validate(&source).await;
        job.catches_up().await;
        break_the_validator(&source).await;
        job.catches_up().await;
        ends.assert_same("docs").await;
        job.stop().await;
    });
}

#[test]
fn a_capped_collection_stays_one() {
    run(Between::ReplicaSets, "capped", |ends| async move {
        let source = ends.source("docs");
        let size = doc! {"capped": true, "size": 4 * 1024 * 1024, "max": 9_000};
        create(&source, size).await;
        fill(&source, 1_000).await;
        let mut job = ends.copy(&ends.all()).await;
        job.reaches("follow").await;
        run_on(&source, doc! {"collMod": "docs", "cappedSize": 8 * 1024 * 1024}).await;
        run_on(&source, doc! {"collMod": "docs", "cappedMax": 5_000}).await;
        documents(&source).insert_many((1_000..1_100).map(|n| doc! {"_id": n})).await.unwrap();
        job.catches_up().await;
        ends.assert_same("docs").await;
        job.stop().await;
    });
}

#[test]
fn a_clustered_collection_stays_one() {
    run(Between::ReplicaSets, "clustered", |ends| async move {
        let source = ends.source("docs");
        let index = doc! {"key": {"_id": 1}, "unique": true, "name": "by id"};
        create(&source, doc! {"clusteredIndex": index}).await;
        fill(&source, 1_500).await;
        let docs = documents(&source);
        let mut job = ends.copy(&ends.all()).await;
        docs.update_many(doc! {"_id": {"$gte": 1_400}}, doc! {"$set": {"n": -1}}).await.unwrap();
        job.reaches("follow").await;
        docs.delete_many(doc! {"_id": {"$lt": 100}}).await.unwrap();
        docs.insert_one(doc! {"_id": "new"}).await.unwrap();
        job.catches_up().await;
        ends.assert_same("docs").await;
        job.stop().await;
    });
}

#[test]
fn indexes_of_every_kind_and_views_are_carried_over() {
    run(Between::ReplicaSets, "indexes", |ends| async move {
        let source = ends.source("docs");
        fill(&source, 300).await;
        let place = doc! {"_id": "place", "at": [12.5, 41.9], "on": {"type": "Point",
        "coordinates": [12.5, 41.9]}, "text": "a word or two", "tags": ["x", "y"]};
        documents(&source).insert_one(place).await.unwrap();
        let indexes = [
            doc! {"key": {"n": 1, "u": -1}, "name": "two fields"},
            doc! {"key": {"n": -1}, "name": "hidden", "hidden": true},
            doc! {"key": {"u": 1}, "name": "partial", "unique": true,
            "partialFilterExpression": {"u": {"$gt": 5}}},
            doc! {"key": {"filler": 1}, "name": "sparse", "sparse": true,
            "collation": {"locale": "de", "strength": 1}},
            doc! {"key": {"text": "text", "more": "text"}, "name": "words",
            "weights": {"text": 5}, "default_language": "none"},
            doc! {"key": {"at": "2d"}, "name": "plane", "min": -200, "max": 200},
            doc! {"key": {"on": "2dsphere"}, "name": "globe"},
            doc! {"key": {"$**": 1}, "name": "wild", "wildcardProjection": {"tags": 1}},
            doc! {"key": {"n": "hashed"}, "name": "hashed"},
            doc! {"key": {"when": 1}, "name": "expiry", "expireAfterSeconds": 3_600},
        ];
        let command = doc! {"createIndexes": "docs", "indexes": indexes.to_vec()};
        run_on(&source, command).await;
        let pipeline = doc! {"pipeline": [{"$match": {"n": {"$gt": 5}}}], "viewOn": "docs"};
        create(&ends.source("view"), pipeline).await;
        ends.copy(&ends.all()).await.finish().await;
        ends.assert_same("docs").await;
        let [from, to] = [ends.source("view"), ends.destination("view")];
        let (from, to) = (from.definition().await.unwrap(), to.definition().await.unwrap());
        assert!(from.is_some() && from == to, "{from:?} {to:?}");
    });
}

/// Indexes and options that [`change_structure`] changes.
async fn structure(source: &Handle) {
    fill(source, 500).await;
    let indexes = [
        doc! {"key": {"n": 1}, "name": "goes"},
        doc! {"key": {"u": 1}, "name": "hides"},
        doc! {"key": {"at": 1}, "name": "expiry", "expireAfterSeconds": 3_600},
        doc! {"key": {"then": 1}, "name": "lasts", "expireAfterSeconds": 3_600},
        doc! {"key": {"u": 1, "n": 1}, "name": "turns unique"},
    ];
    run_on(source, doc! {"createIndexes": "docs", "indexes": indexes.to_vec()}).await;
}

async fn change_structure(source: &Handle) {
    run_on(source, doc! {"dropIndexes": "docs", "index": "goes"}).await;
    // The same names, and other indexes: one that no longer expires, one that is unique now.
    run_on(source, doc! {"dropIndexes": "docs", "index": ["lasts", "turns unique"]}).await;
    let again = [
        doc! {"key": {"then": 1}, "name": "lasts"},
        doc! {"key": {"u": 1, "n": 1}, "name": "turns unique", "unique": true},
    ];
    run_on(source, doc! {"createIndexes": "docs", "indexes": again.to_vec()}).await;
    let new = [
        doc! {"key": {"filler": 1, "n": 1}, "name": "comes"},
        doc! {"key": {"n": 1, "u": 1}, "name": "comes unique", "unique": true},
    ];
    run_on(source, doc! {"createIndexes": "docs", "indexes": new.to_vec()}).await;
    let hide = doc! {"name": "hides", "hidden": true};
    run_on(source, doc! {"collMod": "docs", "index": hide}).await;
    let sooner = doc! {"name": "expiry", "expireAfterSeconds": 60};
    run_on(source, doc! {"collMod": "docs", "index": sooner}).await;
    let options = doc! {"collMod": "docs", "validator": {"n": {"$exists": true}},
    "validationLevel": "moderate", "validationAction": "warn"};
    run_on(source, options).await;
    let (images, on) = ("changeStreamPreAndPostImages", doc! {"enabled": true});
    run_on(source, doc! {"collMod": "docs", images: on}).await;
    documents(source).insert_one(doc! {"_id": "after", "n": Bson::Null}).await.unwrap();
}

#[test]
fn indexes_and_options_that_change_while_following_follow() {
    run(Between::ReplicaSets, "structure", |ends| async move {
        let source = ends.source("docs");
        structure(&source).await;
        let mut job = ends.copy(&ends.all()).await;
        job.catches_up().await;
        change_structure(&source).await;
        job.catches_up().await;
        ends.assert_same("docs").await;
        job.stop().await;
    });
}

#[test]
fn indexes_and_options_changed_while_the_job_is_down_follow() {
    run(Between::ReplicaSets, "structure_down", |ends| async move {
        let source = ends.source("docs");
        structure(&source).await;
        let mut job = ends.copy(&ends.all()).await;
        job.catches_up().await;
        let own = doc! {"key": {"own": 1}, "name": "of the destination's users"};
        let create = doc! {"createIndexes": "docs", "indexes": [own.clone()]};
        run_on(&ends.destination("docs"), create).await;
        let mut job = job.down(change_structure(&source)).await;
        job.catches_up().await;
        let have = ends.destination("docs").indexes().await.unwrap();
        let is_own = |index: &Document| index.get("name") == own.get("name");
        assert!(have.iter().any(is_own), "an index that is not the job's stays: {have:?}");
        let drop = doc! {"dropIndexes": "docs", "index": own.get_str("name").unwrap()};
        run_on(&ends.destination("docs"), drop).await;
        ends.assert_same("docs").await;
        job.stop().await;
    });
}

#[test]
fn an_index_that_comes_while_the_bulk_is_copied_is_built() {
    run(Between::ReplicaSets, "structure_early", |ends| async move {
        let source = ends.source("docs");
        fill(&source, 3_000).await;
        let mut job = ends.copy(&ends.all()).await;
        job.reaches("copy").await;
        let new = doc! {"key": {"n": 1}, "name": "comes", "unique": true};
        run_on(&source, doc! {"createIndexes": "docs", "indexes": [new]}).await;
        job.catches_up().await;
        assert_same(&source, &ends.destination("docs"), None).await;
        assert!(collection(&ends.destination("docs")).count_documents(doc! {}).await.unwrap() > 0);
        job.stop().await;
    });
}
