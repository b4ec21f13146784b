//! Destinations whose shard key is not the `_id`, and sources that are sharded.

use std::time::Duration;

use bson::oid::ObjectId;
use bson::{Bson, Document, Uuid, doc};
use imago_job::record::Limits;
use imago_mongo::server::collection::Handle;

use imago_testbed::wait::Wait;

use crate::copy::world::{Between, Dice, Ends, Job, create, documents, run, run_across};

const DOCUMENTS: i32 = 1_500;

/// Documents with the key `userID`, which some have not, and some have as null.
async fn fill_users(side: &Handle) {
    let document = |n: i32| {
        let mut document = doc! {"_id": n, "n": 0};
        match n % 10 {
            0 => {}
            1 => drop(document.insert("userID", Bson::Null)),
            _ => drop(document.insert("userID", n / 3)),
        }
        document.insert("filler", "x".repeat(500));
        document
    };
    documents(side).insert_many((0..DOCUMENTS).map(document)).await.unwrap();
}

/// Changes the key's value, its type, takes it away, or deletes and inserts.
async fn change(side: &Handle, dice: &mut Dice, round: i32) {
    let docs = documents(side);
    let id = i32::try_from(dice.below(DOCUMENTS as usize)).unwrap();
    let this = doc! {"_id": id};
    let values = [
        Bson::Int32(round),
        Bson::Double(f64::from(round)),
        Bson::from("text"),
        Bson::Null,
        Bson::Document(doc! {"a": 1}),
    ];
    let value = values[dice.below(values.len())].clone();
    let update: Document = match dice.below(5) {
        0 => doc! {"$unset": {"userID": ""}},
        1 => doc! {"$inc": {"n": 1}},
        2 => {
            docs.delete_one(this).await.unwrap();
            return;
        }
        _ => doc! {"$set": {"userID": value}},
    };
    docs.update_one(this, update).upsert(true).await.unwrap();
}

async fn change_and_compare(ends: &Ends, mut job: Job, coll: &str) {
    let (source, mut dice) = (ends.source(coll), Dice::new(11));
    for round in 0..300 {
        change(&source, &mut dice, round).await;
    }
    job.reaches("follow").await;
    for round in 300..600 {
        change(&source, &mut dice, round).await;
    }
    job.catches_up().await;
    ends.assert_same(coll).await;
    job.stop().await;
}

async fn shards_that_hold(side: &Handle) -> u64 {
    let pipeline = [doc! {"$collStats": {"count": {}}}, doc! {"$match": {"count": {"$gt": 0}}}];
    let command = doc! {"aggregate": &side.ns.coll, "pipeline": pipeline.to_vec(), "cursor": {}};
    let reply = side.endpoint.run(&side.ns.db, command).await.unwrap();
    let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    batch.len() as u64
}

#[test]
fn a_destination_sharded_by_a_range_of_another_key() {
    run_across(true, "ranged", |ends| async move {
        fill_users(&ends.source("docs")).await;
        let mut request = ends.all();
        request.shard_key = Some(r#"{"userID": 1}"#.into());
        let job = ends.copy(&request).await;
        change_and_compare(&ends, job, "docs").await;
        let destination = ends.destination("docs");
        assert_eq!(destination.shard_key().await.unwrap(), Some(doc! {"userID": 1}));
        assert_eq!(shards_that_hold(&destination).await, 3);
    });
}

/// Orders as shops have them: an ObjectId, a customer by his UUID, and when it was made, in milliseconds.
fn order(n: u32) -> Document {
    let mut id = [0; 12];
    id[..4].copy_from_slice(&(0x6540_0000 + n).to_be_bytes());
    id[8..].copy_from_slice(&n.wrapping_mul(2_654_435_761).to_be_bytes());
    let customer = u128::from(n % 400).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
    doc! {
        "_id": ObjectId::from_bytes(id),
        "customer": Uuid::from_bytes(customer.to_be_bytes()),
        "made": 1_700_000_000_000 + 37 * i64::from(n),
        "paid": 0, "filler": "x".repeat(400),
    }
}

/// A part of the orders is paid, changes hands, is deleted, or deleted and made again.
async fn orders_change(side: &Handle, dice: &mut Dice, times: usize) {
    let orders = documents(side);
    for _ in 0..times {
        let now = order(u32::try_from(dice.below(1_200)).unwrap());
        let this = doc! {"_id": now.get_object_id("_id").unwrap()};
        match dice.below(5) {
            0 => drop(orders.delete_one(this).await.unwrap()),
            1 => {
                orders.delete_one(this).await.unwrap();
                orders.insert_one(now).await.unwrap();
            }
            2 => {
                let other = order(u32::try_from(dice.below(400)).unwrap());
                let hands = doc! {"$set": {"customer": other.get("customer").unwrap()}};
                orders.update_one(this, hands).await.unwrap();
            }
            _ => drop(orders.update_one(this, doc! {"$inc": {"paid": 1}}).await.unwrap()),
        }
    }
}

#[test]
fn a_shard_key_may_contain_the_id() {
    for (n, key) in [
        r#"{"customer": 1, "_id": 1}"#,
        r#"{"_id": 1, "made": 1}"#,
        r#"{"customer": "hashed", "_id": 1}"#,
        r#"{"customer": 1, "_id": "hashed"}"#,
        r#"{"_id": "hashed", "made": 1}"#,
    ]
    .into_iter()
    .enumerate()
    {
        run_across(true, &format!("with_id_{n}"), move |ends| async move {
            let (source, mut dice) = (ends.source("orders"), Dice::new(7));
            documents(&source).insert_many((0..1_000).map(order)).await.unwrap();
            let mut request = ends.all();
            request.shard_key = Some(key.into());
            let mut job = ends.copy(&request).await;
            orders_change(&source, &mut dice, 150).await;
            job.reaches("follow").await;
            orders_change(&source, &mut dice, 250).await;
            job.catches_up().await;
            ends.assert_same("orders").await;
            job.stop().await;
        });
    }
}

/// Indexes that stand where the server would make the one of the key.
fn in_the_way(kind: &str) -> Vec<(&'static str, Document)> {
    let index = |key: Document, name: &str, more: Document| {
        let mut index = doc! {"key": key, "name": name};
        index.extend(more);
        index
    };
    let way: Bson = if kind == "hashed" { "hashed".into() } else { 1.into() };
    let (of, name) =
        (|| doc! {"customer": way.clone()}, format!("customer_{way}").replace('"', ""));
    let partial = doc! {"partialFilterExpression": {"paid": {"$gt": 5}}};
    let mut all = vec![
        ("sparse", index(of(), &name, doc! {"sparse": true})),
        ("partial", index(of(), &name, partial)),
        ("hidden", index(of(), &name, doc! {"hidden": true})),
        ("named_so", index(doc! {"made": 1}, &name, doc! {})),
    ];
    if kind != "hashed" {
        all.push(("collated", index(of(), &name, doc! {"collation": {"locale": "de"}})));
    }
    all
}

#[test]
fn an_index_in_the_way_of_the_keys_is_copied_beside_it() {
    for kind in ["ranged", "hashed"] {
        for (what, index) in in_the_way(kind) {
            let key =
                if kind == "hashed" { r#"{"customer": "hashed"}"# } else { r#"{"customer": 1}"# };
            run_across(true, &format!("in_the_way_{kind}_{what}"), move |ends| async move {
                let source = ends.source("orders");
                documents(&source).insert_many((0..300).map(order)).await.unwrap();
                let create = doc! {"createIndexes": "orders", "indexes": [index]};
                crate::copy::world::run_on(&source, create).await;
                let mut request = ends.all();
                request.shard_key = Some(key.into());
                let mut job = ends.copy(&request).await;
                job.catches_up().await;
                ends.assert_same("orders").await;
                let destination = ends.destination("orders");
                let have = destination.indexes().await.unwrap();
                for index in source.indexes().await.unwrap() {
                    assert!(have.contains(&index), "{index} of {have:?}");
                }
                assert_eq!(have.len(), source.indexes().await.unwrap().len() + 1, "{have:?}");
                job.stop().await;
            });
        }
    }
}

/// To the collection "Anna@…" and "anna@…" are one `_id`; to the chunks they are two keys.
#[test]
fn a_collection_with_a_collation_is_sharded_and_follows() {
    run_across(true, "collated_key", |ends| async move {
        let source = ends.source("accounts");
        let collation = doc! {"locale": "en", "strength": 2};
        create(&source, doc! {"collation": collation}).await;
        let mail = |n: u32| format!("customer-{n:05}@example.com");
        let account = |n: u32| {
            doc! {"_id": mail(n), "tenant": format!("Tenant-{:03}", n % 400), "visits": 0_i64}
        };
        let accounts = documents(&source);
        accounts.insert_many((0..1_000).map(account)).await.unwrap();
        let mut request = ends.all();
        request.shard_key = Some(r#"{"tenant": 1}"#.into());
        let mut job = ends.copy(&request).await;
        for phase in ["copy", "follow"] {
            job.reaches(phase).await;
            let first = if phase == "copy" { 0 } else { 500 };
            for n in first..first + 60 {
                let this = doc! {"_id": mail(n)};
                match n % 6 {
                    // Another spelling of the `_id`, at the same shard and at another one.
                    0 | 1 => {
                        accounts.delete_one(this).await.unwrap();
                        let tenant = if n % 6 == 0 { n % 400 } else { (n + 200) % 400 };
                        let again = doc! {
                            "_id": mail(n).to_uppercase(), "tenant": format!("Tenant-{tenant:03}"),
                            "visits": 7_i64,
                        };
                        accounts.insert_one(again).await.unwrap();
                    }
                    2 => drop(accounts.delete_one(this).await.unwrap()),
                    // The key changes its case alone, and altogether.
                    3 => {
                        let key = format!("TENANT-{:03}", n % 400);
                        let change = doc! {"$set": {"tenant": key}};
                        accounts.update_one(this, change).await.unwrap();
                    }
                    4 => {
                        let key = format!("Tenant-{:03}", (n + 100) % 400);
                        let change = doc! {"$set": {"tenant": key}};
                        accounts.update_one(this, change).await.unwrap();
                    }
                    _ => {
                        drop(accounts.update_one(this, doc! {"$inc": {"visits": 1}}).await.unwrap())
                    }
                }
            }
        }
        job.catches_up().await;
        ends.assert_same("accounts").await;
        assert!(shards_that_hold(&ends.destination("accounts")).await > 1);
        job.stop().await;
    });
}

#[test]
fn a_unique_index_of_the_shard_key_stays_unique() {
    run_across(true, "unique_key", |ends| async move {
        let source = ends.source("docs");
        let document = |n: i32| doc! {"_id": n, "userID": 3 * n};
        documents(&source).insert_many((0..900).map(document)).await.unwrap();
        let unique = doc! {"key": {"userID": 1}, "name": "userID_1", "unique": true};
        let create = doc! {"createIndexes": "docs", "indexes": [unique]};
        crate::copy::world::run_on(&source, create).await;
        let mut request = ends.all();
        request.shard_key = Some(r#"{"userID": 1}"#.into());
        let mut job = ends.copy(&request).await;
        for n in 0..100 {
            let moves = doc! {"$set": {"userID": 3 * n + 1}};
            documents(&source).update_one(doc! {"_id": n}, moves).await.unwrap();
        }
        job.catches_up().await;
        ends.assert_same("docs").await;
        assert_eq!(shards_that_hold(&ends.destination("docs")).await, 3);
        job.stop().await;
    });
}

#[test]
fn what_an_attempt_left_half_split_is_completed() {
    run_across(true, "half_split", |ends| async move {
        let (source, destination) = (ends.source("docs"), ends.destination("docs"));
        fill_users(&source).await;
        let key = doc! {"userID": 1};
        shard(&destination, key.clone(), doc! {"userID": 100}).await;
        for _ in 0..2 {
            imago_mongo::server::shard::shard(&source, &destination, &key).await.unwrap();
        }
        fill_users(&destination).await;
        assert_eq!(shards_that_hold(&destination).await, 3);
    });
}

#[test]
fn a_destination_sharded_by_a_hash_of_another_key() {
    run_across(true, "hashed", |ends| async move {
        fill_users(&ends.source("docs")).await;
        let mut request = ends.all();
        request.shard_key = Some(r#"{"userID": "hashed"}"#.into());
        let job = ends.copy(&request).await;
        change_and_compare(&ends, job, "docs").await;
        assert_eq!(shards_that_hold(&ends.destination("docs")).await, 3);
    });
}

#[test]
fn a_destination_that_was_sharded_before_keeps_its_key() {
    run_across(true, "sharded_before", |ends| async move {
        fill_users(&ends.source("docs")).await;
        let destination = ends.destination("docs");
        shard(&destination, doc! {"userID": 1, "n": 1}, doc! {"userID": 100, "n": 0}).await;
        let job = ends.copy(&ends.all()).await;
        change_and_compare(&ends, job, "docs").await;
        let key = destination.shard_key().await.unwrap();
        assert_eq!(key, Some(doc! {"userID": 1, "n": 1}));
    });
}

/// Shards an empty collection, and puts the keys at and behind `middle` on another shard.
pub async fn shard(side: &Handle, key: Document, middle: Document) {
    let (router, ns) = (&side.endpoint, side.ns.to_string());
    create(side, doc! {}).await;
    router.run("admin", doc! {"enableSharding": &side.ns.db}).await.unwrap();
    router.run("admin", doc! {"shardCollection": &ns, "key": key}).await.unwrap();
    router.run("admin", doc! {"split": &ns, "middle": middle.clone()}).await.unwrap();
    let shards = router.run("admin", doc! {"listShards": 1}).await.unwrap();
    let config = router.client().database("config").collection::<Document>("databases");
    let own = config.find_one(doc! {"_id": &side.ns.db}).await.unwrap().unwrap();
    let own = own.get_str("primary").unwrap();
    let names = shards.get_array("shards").unwrap().iter();
    let mut names = names.map(|shard| shard.as_document().unwrap().get_str("_id").unwrap());
    let other = names.find(|name| *name != own).unwrap();
    let command = doc! {"moveChunk": ns, "find": middle, "to": other};
    // A shard takes part in one move at a time, and other tests move chunks too.
    let wait = Wait::until(Duration::from_millis(200), "the chunk is moved");
    while router.run("admin", command.clone()).await.is_err() {
        wait.again().await;
    }
}

#[test]
fn two_shards_become_a_replica_set() {
    run_across(false, "to_set", |ends| async move {
        let source = ends.source("docs");
        shard(&source, doc! {"_id": 1}, doc! {"_id": DOCUMENTS / 2}).await;
        fill_users(&source).await;
        let job = ends.copy(&ends.all()).await;
        change_and_compare(&ends, job, "docs").await;
    });
}

#[test]
fn two_shards_become_three_of_another_key() {
    run(Between::Sharded, "reshard", |ends| async move {
        let source = ends.source("docs");
        shard(&source, doc! {"_id": 1}, doc! {"_id": DOCUMENTS / 2}).await;
        fill_users(&source).await;
        let mut request = ends.all();
        request.shard_key = Some(r#"{"userID": 1}"#.into());
        let job = ends.copy(&request).await;
        change_and_compare(&ends, job, "docs").await;
    });
}

/// Has each shard break off one read through the router, behind its first batches.
async fn break_reads_off(side: &Handle) {
    for (_, shard) in side.endpoint.shards().await.unwrap() {
        let data = doc! {
            "failCommands": ["clusterGetMore"], "errorCode": 91, "failInternalCommands": true,
        };
        let mode = doc! {"skip": 1, "times": 1};
        let command = doc! {"configureFailPoint": "failCommand", "mode": mode, "data": data};
        shard.unwrap().run("admin", command).await.unwrap();
    }
}

/// Reads that were broken off.
async fn broken_off(side: &Handle) -> i64 {
    let mut count = 0;
    for (_, shard) in side.endpoint.shards().await.unwrap() {
        let command = doc! {"configureFailPoint": "failCommand", "mode": "off"};
        let reply = shard.unwrap().run("admin", command).await.unwrap();
        count += reply.get_i32("count").map_or_else(|_| reply.get_i64("count").unwrap(), i64::from);
    }
    count
}

#[test]
fn a_read_of_two_shards_that_is_broken_off_goes_on_where_it_was() {
    run_across(false, "broken_off", |ends| async move {
        let source = ends.source("reviews");
        shard(&source, doc! {"userID": 1}, doc! {"userID": 50}).await;
        // Each shard has every second document, by their `_id`s.
        let review = |n: i32| {
            let user = (n % 2) * 50 + n % 50;
            doc! {"_id": format!("review-{n:012}"), "userID": user, "filler": "x".repeat(500)}
        };
        documents(&source).insert_many((0..800).map(review)).await.unwrap();
        break_reads_off(&source).await;
        let limits = Limits { documents_s: Some(60), ..Limits::default() };
        let mut job = ends.copy_at(&ends.all(), limits).await;
        job.reaches("follow").await;
        ends.assert_same("reviews").await;
        assert!(broken_off(&source).await > 0, "no read was broken off");
        job.stop().await;
    });
}
