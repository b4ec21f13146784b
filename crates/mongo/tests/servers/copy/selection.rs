//! Which collections and documents are copied, to which names.

use bson::doc;

use crate::copy::world::{Between, assert_same, documents, fill, request, run};
use imago_mongo::namespace::Namespace;
use imago_mongo::server::collection::Handle;

#[test]
fn collections_of_several_databases_are_picked_and_renamed() {
    run(Between::ReplicaSets, "pick", |ends| async move {
        for coll in ["a.one", "a.two", "b"] {
            fill(&ends.source(coll), 100).await;
        }
        let other = Handle::new(ends.clusters.source.clone(), Namespace::new("pick_other", "c"));
        fill(&other, 100).await;
        let wanted = request(&["pick.a.*", "pick_other.c=pick_new.d.e"]);
        let mut job = ends.copy(&wanted).await;
        job.reaches("follow").await;
        documents(&other).delete_one(doc! {"_id": 5}).await.unwrap();
        documents(&ends.source("a.two")).delete_one(doc! {"_id": 5}).await.unwrap();
        job.catches_up().await;
        ends.assert_same("a.one").await;
        ends.assert_same("a.two").await;
        let to = Namespace::new("pick_new", "d.e");
        let renamed = Handle::new(ends.clusters.destination.clone(), to);
        assert_same(&other, &renamed, None).await;
        assert!(ends.destination("b").definition().await.unwrap().is_none(), "not picked");
        job.stop().await;
    });
}

#[test]
fn documents_enter_and_leave_the_filter() {
    run(Between::ReplicaSets, "filter", |ends| async move {
        let source = ends.source("docs");
        let docs = documents(&source);
        fill(&source, 1_500).await;
        let mut wanted = ends.all();
        wanted.filter = Some(r#"{"n": {"$gte": 500}}"#.into());
        let mut job = ends.copy(&wanted).await;
        let set = |from: i32, n: i32| {
            let these = doc! {"_id": {"$gte": from, "$lt": from + 50}};
            docs.update_many(these, doc! {"$set": {"n": n}})
        };
        set(0, 900).await.unwrap();
        set(1_000, 1).await.unwrap();
        job.reaches("follow").await;
        set(100, 901).await.unwrap();
        set(1_100, 2).await.unwrap();
        set(0, 3).await.unwrap();
        docs.insert_one(doc! {"_id": "out", "n": 499}).await.unwrap();
        docs.insert_one(doc! {"_id": "in", "n": 500}).await.unwrap();
        job.catches_up().await;
        let destination = documents(&ends.destination("docs"));
        let outside = destination.count_documents(doc! {"n": {"$lt": 500}}).await.unwrap();
        assert_eq!(outside, 0);
        let filter = Some(doc! {"n": {"$gte": 500}});
        assert_same(&source, &ends.destination("docs"), filter).await;
        job.stop().await;
    });
}

#[test]
fn documents_that_were_there_are_replaced_or_stay() {
    run(Between::ReplicaSets, "existing", |ends| async move {
        let (source, destination) = (ends.source("docs"), ends.destination("docs"));
        fill(&source, 800).await;
        let there = (700..900).map(|n| doc! {"_id": n, "old": true});
        documents(&destination).insert_many(there).await.unwrap();
        let mut wanted = ends.all();
        wanted.into_existing = true;
        let mut job = ends.copy(&wanted).await;
        job.reaches("follow").await;
        documents(&source).delete_one(doc! {"_id": 750}).await.unwrap();
        job.catches_up().await;
        let old = documents(&destination).count_documents(doc! {"old": true}).await.unwrap();
        assert_eq!(old, 100, "those that the source has not");
        let of_source = Some(doc! {"_id": {"$lt": 800}});
        assert_same(&source, &destination, of_source).await;
        job.stop().await;
    });
}

#[test]
fn what_was_there_stays_when_its_namesake_is_left_out_by_the_filter() {
    run(Between::ReplicaSets, "existing_filter", |ends| async move {
        let (source, destination) = (ends.source("docs"), ends.destination("docs"));
        fill(&source, 800).await;
        let there = (0..100).map(|n| doc! {"_id": n, "n": -1, "old": true});
        documents(&destination).insert_many(there).await.unwrap();
        let mut wanted = ends.all();
        wanted.into_existing = true;
        wanted.filter = Some(r#"{"n": {"$gte": 500}}"#.into());
        let mut job = ends.copy(&wanted).await;
        job.reaches("follow").await;
        let left_out = doc! {"_id": {"$lt": 50}};
        documents(&source).update_many(left_out, doc! {"$set": {"more": 1}}).await.unwrap();
        let leaves = doc! {"_id": {"$gte": 700}};
        documents(&source).update_many(leaves, doc! {"$set": {"n": 0}}).await.unwrap();
        job.catches_up().await;
        let held = async |filter| documents(&destination).count_documents(filter).await.unwrap();
        assert_eq!(held(doc! {"old": true}).await, 100, "touched, but none of the filter's");
        assert_eq!(held(doc! {"_id": {"$gte": 700}}).await, 0, "they left the filter");
        assert_eq!(held(doc! {"_id": {"$gte": 500, "$lt": 700}}).await, 200);
        job.stop().await;
    });
}
