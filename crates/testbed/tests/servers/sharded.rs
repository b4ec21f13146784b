//! A sharded cluster on real servers, through its router.

use std::time::Duration;

use bson::{Document, doc};
use imago_testbed::{Cluster, ClusterSpec, Relay, Role};
use mongodb::Client;

#[tokio::test]
async fn two_shards_take_writes_through_the_router() {
    let cluster = Cluster::start(ClusterSpec::sharded("routed", 2)).await.unwrap();
    let client = Client::with_uri_str(cluster.uri()).await.unwrap();
    let shards = client.database("config").collection::<Document>("shards");
    assert_eq!(shards.count_documents(doc! {}).await.unwrap(), 2);
    let documents = client.database("test").collection::<Document>("written");
    documents.insert_one(doc! { "_id": 1 }).await.unwrap();
    assert!(documents.find_one(doc! { "_id": 1 }).await.unwrap().is_some());
}

#[tokio::test]
async fn with_authorisation_the_application_writes_through_the_router() {
    let cluster = Cluster::start(ClusterSpec::sharded("locked", 1).with_auth()).await.unwrap();
    let client = Client::with_uri_str(cluster.uri()).await.unwrap();
    let documents = client.database("test").collection::<Document>("written");
    documents.insert_one(doc! { "_id": 1 }).await.unwrap();
}

#[tokio::test]
async fn a_killed_router_comes_back_at_its_address_and_a_relay_can_stand_before_it() {
    let cluster = Cluster::start(ClusterSpec::sharded("front", 1)).await.unwrap();
    let nodes = cluster.nodes();
    let router = nodes.iter().find(|node| node.role == Role::Router).unwrap();
    let relay = Relay::start(router.port).unwrap();
    let uri = format!("mongodb://{}/?serverSelectionTimeoutMS=20000", relay.address());
    let client = Client::with_uri_str(&uri).await.unwrap();
    let documents = client.database("test").collection::<Document>("written");
    documents.insert_one(doc! { "_id": 1 }).await.unwrap();

    cluster.kill(&router.name).unwrap();
    cluster.restart(&router.name).await.unwrap();
    documents.insert_one(doc! { "_id": 2 }).await.unwrap();

    relay.slow(Duration::from_millis(50));
    let started = std::time::Instant::now();
    documents.find_one(doc! { "_id": 2 }).await.unwrap();
    assert!(started.elapsed() >= Duration::from_millis(100));
}
