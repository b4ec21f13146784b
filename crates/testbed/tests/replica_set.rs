//! Replica sets on real servers: up, written to, hurt, and up again.

use bson::{Document, doc};
use imago_testbed::{Cluster, ClusterSpec};
use mongodb::Client;
use mongodb::options::WriteConcern;

async fn write_majority(uri: &str, id: i32) {
    let client = Client::with_uri_str(uri).await.unwrap();
    let documents = client.database("test").collection::<Document>("written");
    documents
        .insert_one(doc! { "_id": id })
        .write_concern(WriteConcern::majority())
        .await
        .unwrap();
}

#[tokio::test]
async fn a_set_of_one_takes_majority_writes_as_soon_as_it_is_started() {
    let cluster = Cluster::start(ClusterSpec::replica_set("one", 1)).await.unwrap();
    write_majority(&cluster.uri(), 1).await;
}

#[tokio::test]
async fn a_set_of_three_elects_another_primary_when_its_primary_is_killed() {
    let cluster = Cluster::start(ClusterSpec::replica_set("three", 3)).await.unwrap();
    let old = cluster.primary("three").await.unwrap();
    cluster.kill(&old).unwrap();
    let new = cluster.primary_other_than("three", &old).await.unwrap();
    assert_ne!(new, old);
    write_majority(&cluster.uri(), 1).await;

    cluster.restart(&old).await.unwrap();
    let process = |name: &str| {
        let nodes = cluster.nodes();
        nodes.iter().find(|node| node.name == name).unwrap().process
    };
    assert!(process(&old).is_some());
}
