//! Documents that ordinary writes would change, cut or refuse.

use bson::raw::{CString, RawBsonRef, cstr};
use bson::{Bson, RawDocumentBuf, Timestamp, doc, rawdoc};

use crate::copy::world::{Between, collection, create, documents, fill, run, run_on};

const ZERO: Timestamp = Timestamp { time: 0, increment: 0 };

fn named(id: &str, name: &str, value: i32) -> RawDocumentBuf {
    let mut document = rawdoc! {"_id": id};
    document.append(CString::try_from(name).unwrap(), value);
    document.append(cstr!("last"), RawBsonRef::Null);
    document
}

#[test]
fn documents_near_the_limit_are_inserted_replaced_and_deleted() {
    run(Between::ReplicaSets, "large", |ends| async move {
        let source = ends.source("large");
        let docs = documents(&source);
        // The largest document that a server takes has 16 MiB.
        let room = 16 * 1024 * 1024
            - RawDocumentBuf::try_from(&doc! {"_id": 0, "x": ""}).unwrap().as_bytes().len();
        let large = |id: i32, letter: &str| doc! {"_id": id, "x": letter.repeat(room)};
        docs.insert_one(large(1, "a")).await.unwrap();
        docs.insert_one(large(2, "b")).await.unwrap();
        let mut job = ends.copy(&ends.all()).await;
        job.reaches("follow").await;
        docs.insert_one(large(3, "c")).await.unwrap();
        docs.insert_one(large(4, "d")).await.unwrap();
        docs.replace_one(doc! {"_id": 1}, large(1, "e")).await.unwrap();
        docs.delete_one(doc! {"_id": 2}).await.unwrap();
        // As large, and of the kind that a plain write would change.
        let odd = doc! {"$replaceWith": {"$literal":
        {"_id": 3, "t": ZERO, "x": "f".repeat(room - 11 - 64 * 1024)}}};
        docs.update_one(doc! {"_id": 3}, vec![odd]).await.unwrap();
        job.catches_up().await;
        assert_eq!(
            documents(&ends.destination("large")).count_documents(doc! {}).await.unwrap(),
            3
        );
        ends.assert_same("large").await;
        job.stop().await;
    });
}

#[test]
fn zero_timestamps_and_operator_like_names_are_kept() {
    run(Between::ReplicaSets, "odd", |ends| async move {
        let source = ends.source("odd");
        fill(&source, 1_000).await;
        let raw = collection(&source);
        for (id, name) in [("dollar", "$set"), ("dotted", "a.b"), ("both", "$a.$b"), ("empty", "")]
        {
            raw.insert_one(named(id, name, 1)).await.unwrap();
        }
        let zero = |id: &str, n: i32| doc! {"_id": id, "t": ZERO, "in": {"t": ZERO}, "n": n};
        // A plain insert would have the server fill the timestamp in: this is how one comes about.
        let put = |id: &str, n: i32| {
            let replace = doc! {"$replaceWith": {"$literal": zero(id, n)}};
            doc! {"update": "odd", "updates": [{"q": {"_id": id}, "u": [replace], "upsert": true}]}
        };
        run_on(&source, put("before", 1)).await;
        let plain = doc! {"_id": "turns", "t": Timestamp { time: 5, increment: 5 }};
        documents(&source).insert_one(plain).await.unwrap();
        let mut job = ends.copy(&ends.all()).await;
        run_on(&source, put("during", 1)).await;
        raw.insert_one(named("dollar during", "$set", 1)).await.unwrap();
        job.reaches("follow").await;
        run_on(&source, put("before", 2)).await;
        run_on(&source, put("after", 1)).await;
        documents(&source).delete_one(doc! {"_id": "turns"}).await.unwrap();
        run_on(&source, put("turns", 1)).await;
        for (id, name) in [("dollar", "$inc"), ("dotted", "c.d"), ("both", "$$a..b")] {
            raw.delete_one(doc! {"_id": id}).await.unwrap();
            raw.insert_one(named(id, name, 2)).await.unwrap();
        }
        let field = doc! {"$setField":
        {"field": {"$literal": "a.b"}, "input": "$$ROOT", "value": 7}};
        let update = doc! {"$replaceWith": field};
        documents(&source).update_one(doc! {"_id": "before"}, vec![update]).await.unwrap();
        job.catches_up().await;
        ends.assert_same("odd").await;
        let found = documents(&ends.destination("odd")).find_one(doc! {"_id": "after"}).await;
        assert_eq!(found.unwrap().unwrap().get("t"), Some(&Bson::Timestamp(ZERO)));
        job.stop().await;
    });
}

#[test]
fn arrays_fields_and_their_order_follow() {
    run(Between::ReplicaSets, "fields", |ends| async move {
        let source = ends.source("fields");
        let docs = documents(&source);
        fill(&source, 1_000).await;
        let long = || doc! {"list": (0..2_000).collect::<Vec<i32>>(), "a": 1, "b": 2};
        for id in ["cut", "grown", "nested", "turned", "renamed", "type"] {
            let mut document = doc! {"_id": id, "deep": {"list": [1, [2, 3], {"x": [4, 5, 6]}]}};
            document.extend(long());
            docs.insert_one(document).await.unwrap();
        }
        let mut job = ends.copy(&ends.all()).await;
        for round in 0..2 {
            let slice = -500 + round * 498;
            let cut = doc! {"$push": {"list": {"$each": [], "$slice": slice}}};
            docs.update_one(doc! {"_id": "cut"}, cut).await.unwrap();
            let many: Vec<String> = (0..20_000).map(|n| format!("{round}-{n}")).collect();
            let grow = doc! {"$push": {"list": {"$each": many}}};
            docs.update_one(doc! {"_id": "grown"}, grow).await.unwrap();
            let nested = doc! {"$set": {"deep.list.2.x.1": round}, "$pop": {"deep.list.1": 1}};
            docs.update_one(doc! {"_id": "nested"}, nested).await.unwrap();
            let turned = if round == 0 {
                doc! {"b": 2, "a": 1}
            } else {
                doc! {"a": 1, "b": 2}
            };
            docs.replace_one(doc! {"_id": "turned"}, turned).await.unwrap();
            let rename = doc! {"$rename": {"a": format!("z{round}")}};
            docs.update_one(doc! {"_id": "renamed"}, rename).await.unwrap();
            docs.update_one(doc! {"_id": "renamed"}, doc! {"$set": {"a": round}}).await.unwrap();
            let value = if round == 0 { Bson::Int64(1) } else { Bson::Double(1.0) };
            docs.update_one(doc! {"_id": "type"}, doc! {"$set": {"a": value}}).await.unwrap();
            job.reaches("follow").await;
        }
        job.catches_up().await;
        ends.assert_same("fields").await;
        job.stop().await;
    });
}

#[test]
fn an_empty_collection_is_made_and_followed() {
    run(Between::ReplicaSets, "empty", |ends| async move {
        create(&ends.source("empty"), doc! {}).await;
        create(&ends.source("later"), doc! {}).await;
        let mut job = ends.copy(&ends.all()).await;
        job.reaches("follow").await;
        documents(&ends.source("later")).insert_one(doc! {"_id": 1}).await.unwrap();
        job.catches_up().await;
        ends.assert_same("empty").await;
        ends.assert_same("later").await;
        job.stop().await;
    });
}
