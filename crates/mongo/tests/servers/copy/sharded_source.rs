//! Sources whose shard key is not the `_id`: documents change shards, and two shards may hold one `_id`.

use bson::{Document, doc};
use imago_job::record::Limits;
use imago_mongo::error::Error;
use imago_mongo::server::collection::Handle;

use crate::copy::keys::shard;
use crate::copy::world::{Between, Dice, Ends, Job, documents, run, run_across};

const TENANTS: i32 = 100;

fn order_id(n: i32) -> String {
    format!("order-2026-{n:07}")
}

fn order(n: i32, tenant: i32) -> Document {
    doc! {"_id": order_id(n), "tenant": tenant, "paid": false, "lines": "x".repeat(400)}
}

/// Orders of a hundred tenants, those from 50 on upon another shard.
async fn orders(side: &Handle, count: i32) {
    shard(side, doc! {"tenant": 1}, doc! {"tenant": TENANTS / 2}).await;
    let orders = (0..count).map(|n| order(n, n % TENANTS));
    documents(side).insert_many(orders).await.unwrap();
}

/// Inserts orders, each of which another tenant gets at once, most of them of the other shard; some change hands again, or are
/// deleted.
async fn change_hands(side: &Handle, range: std::ops::Range<i32>) {
    let (docs, mut dice) = (documents(side), Dice::new(29));
    for n in range {
        let (this, tenant) = (doc! {"_id": order_id(n)}, n % TENANTS);
        docs.insert_one(order(n, tenant)).await.unwrap();
        let of = |tenant: i32| doc! {"_id": order_id(n), "tenant": tenant};
        let to = |tenant: i32| doc! {"$set": {"tenant": tenant}};
        let other = (tenant + TENANTS / 2) % TENANTS;
        docs.update_one(of(tenant), to(other)).await.unwrap();
        match dice.below(4) {
            0 => drop(docs.update_one(of(other), to((other + 1) % TENANTS)).await.unwrap()),
            1 => drop(docs.update_one(of(other), to(tenant)).await.unwrap()),
            2 => drop(docs.delete_one(this).await.unwrap()),
            _ => {}
        }
    }
}

async fn follows_orders_that_change_hands(ends: &Ends, key: Option<&str>) {
    let source = ends.source("orders");
    orders(&source, 1_200).await;
    let mut request = ends.all();
    request.shard_key = key.map(str::to_owned);
    let mut job =
        ends.copy_at(&request, Limits { documents_s: Some(800), ..Limits::default() }).await;
    job.reaches("copy").await;
    change_hands(&source, 10_000..10_100).await;
    job.reaches("follow").await;
    change_hands(&source, 20_000..20_100).await;
    job.catches_up().await;
    ends.assert_same("orders").await;
    job.stop().await;
}

#[test]
fn a_document_whose_key_changes_right_after_its_insert_arrives_at_a_replica_set() {
    run_across(false, "hands_to_set", |ends| async move {
        follows_orders_that_change_hands(&ends, None).await;
    });
}

#[test]
fn a_document_whose_key_changes_right_after_its_insert_arrives_at_shards() {
    for (n, key) in [r#"{"tenant": 1}"#, r#"{"tenant": "hashed"}"#].into_iter().enumerate() {
        run(Between::Sharded, &format!("hands_to_shards_{n}"), move |ends| async move {
            follows_orders_that_change_hands(&ends, Some(key)).await;
        });
    }
}

/// Checks that the job fails with the `_id`, mends it, and goes on.
async fn is_named_and_mended(ends: &Ends, job: Job, n: i32) -> Job {
    let (clusters, id) = (job.clusters.clone(), job.id.clone());
    let failure = job.failure().await;
    let Error::Document { id: named, cause, help, .. } = &failure else { panic!("{failure:?}") };
    assert!(named.contains(&order_id(n)), "{failure}");
    assert!(cause.contains("on different shards"), "{failure}");
    assert!(help.contains("imago job resume"), "{help}");
    let orders = documents(&ends.source("orders"));
    let gone = orders.delete_one(doc! {"_id": order_id(n), "tenant": 99});
    assert_eq!(gone.await.unwrap().deleted_count, 1);
    Job::go_on(clusters, id).await
}

async fn meets_one_id_twice(ends: &Ends, key: Option<&str>) {
    let source = ends.source("orders");
    orders(&source, 600).await;
    let docs = documents(&source);
    let twin = |n: i32| docs.insert_one(order(n, 99));
    // The tenant of this order is on the other shard.
    twin(301).await.unwrap();
    let mut request = ends.all();
    request.shard_key = key.map(str::to_owned);
    let job = ends.copy(&request).await;
    let mut job = is_named_and_mended(ends, job, 301).await;
    job.catches_up().await;
    twin(402).await.unwrap();
    let mut job = is_named_and_mended(ends, job, 402).await;
    job.catches_up().await;
    ends.assert_same("orders").await;
    job.stop().await;
}

#[test]
fn one_id_on_two_shards_is_named_on_the_way_to_a_replica_set() {
    run_across(false, "twice_to_set", |ends| async move { meets_one_id_twice(&ends, None).await });
}

#[test]
fn one_id_on_two_shards_is_named_on_the_way_to_shards() {
    run(Between::Sharded, "twice_to_shards", |ends| async move {
        meets_one_id_twice(&ends, Some(r#"{"tenant": 1}"#)).await;
    });
}
