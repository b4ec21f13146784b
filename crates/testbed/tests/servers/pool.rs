//! A leased cluster is like a new one, though another test had it before, or it is a new one.
//!
//! Each test asks for a cache of its own size, so that no other test has such a cluster.

use bson::{Document, doc};
use imago_testbed::pool::{self, Leased, replica_set};
use imago_testbed::{ClusterSpec, Role};
use mongodb::Client;
use mongodb::options::{Acknowledgment, WriteConcern};

async fn lease(cache_mb: u32) -> Leased {
    let spec = ClusterSpec { cache_mb, ..replica_set(1).with_auth() };
    Box::pin(pool::lease(spec)).await.unwrap()
}

async fn client(uri: &str) -> Client {
    Client::with_uri_str(uri).await.unwrap()
}

async fn administer(cluster: &Leased, command: Document) {
    let client = client(&cluster.admin_uri()).await;
    client.database("admin").run_command(command).await.unwrap();
}

#[tokio::test]
async fn what_one_test_left_the_next_does_not_find() {
    let first = lease(257).await;
    let name = first.name().to_owned();
    let note = doc! { "_id": "5f2b18e0c4d3a91be07f6a55", "text": "left behind" };
    let docs = client(&first.uri()).await.database("shop").collection("docs");
    docs.insert_one(note.clone()).await.unwrap();
    administer(&first, doc! { "setUserWriteBlockMode": 1, "global": true }).await;
    docs.insert_one(doc! {}).await.unwrap_err();
    drop(first);

    let second = lease(257).await;
    assert_eq!(second.name(), name, "it is the same cluster");
    let docs = client(&second.uri()).await.database("shop").collection::<Document>("docs");
    assert_eq!(docs.count_documents(doc! {}).await.unwrap(), 0);
    docs.insert_one(note).await.unwrap();
}

#[tokio::test]
async fn a_change_is_undone_or_ends_the_cluster() {
    let expire = |is_on: bool| doc! { "setParameter": 1, "ttlMonitorEnabled": is_on };
    let first = lease(258).await;
    let name = first.name().to_owned();
    administer(&first, expire(false)).await;
    first.undo(Role::Member, expire(true));
    drop(first);

    let second = lease(258).await;
    assert_eq!(second.name(), name, "what was undone is as if it had never been");
    administer(&second, expire(false)).await;
    drop(second);
    let third = lease(258).await;
    assert_ne!(third.name(), name, "the change was not undone");
    third.end_with_this_test();
    let name = third.name().to_owned();
    drop(third);
    assert_ne!(lease(258).await.name(), name, "it was to end");
}

#[tokio::test]
async fn a_cluster_that_was_hurt_is_well_again_before_the_next_test_gets_it() {
    let spec = ClusterSpec { cache_mb: 259, ..replica_set(3).with_auth() };
    let first = Box::pin(pool::lease(spec.clone())).await.unwrap();
    let name = first.name().to_owned();
    let killed = first.step_down(&name).await.unwrap();
    first.kill(&killed).unwrap();
    let frozen = first.primary_other_than(&name, &killed).await.unwrap();
    first.stop(&frozen).unwrap();
    drop(first);

    let second = Box::pin(pool::lease(spec)).await.unwrap();
    assert_eq!(second.name(), name, "it is the same cluster");
    assert!(second.nodes().iter().all(|node| node.process.is_some()), "{:?}", second.nodes());
    let docs = client(&second.uri()).await.database("shop").collection("docs");
    let everywhere = WriteConcern::builder().w(Acknowledgment::Nodes(3)).build();
    let inserted = docs.insert_one(doc! { "_id": "5f2b18e0c4d3a91be07f6a55" });
    inserted.write_concern(everywhere).await.unwrap();
}
