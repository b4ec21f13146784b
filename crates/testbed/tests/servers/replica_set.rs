//! Replica sets on real servers: up, written to, inject, and up again.

use bson::{Document, doc};
use imago_testbed::{Cluster, ClusterSpec, Relay, require};
use mongodb::Client;
use mongodb::options::WriteConcern;

async fn write_majority(uri: &str, id: i32) {
    let client = Client::with_uri_str(uri).await.unwrap();
    let documents = client.database("test").collection::<Document>("written");
    documents.insert_one(doc! { "_id": id }).write_concern(WriteConcern::majority()).await.unwrap();
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

#[tokio::test]
async fn behind_a_cut_relay_a_node_cannot_be_reached_until_it_is_restored() {
    let cluster = Cluster::start(ClusterSpec::replica_set("relayed", 1)).await.unwrap();
    let relay = Relay::start(cluster.nodes()[0].port).unwrap();
    let bounds = "connectTimeoutMS=2000&serverSelectionTimeoutMS=2000";
    let uri = format!("mongodb://{}/?directConnection=true&{bounds}", relay.address());
    let database = Client::with_uri_str(&uri).await.unwrap().database("admin");
    database.run_command(doc! { "ping": 1 }).await.unwrap();
    relay.cut();
    assert!(database.run_command(doc! { "ping": 1 }).await.is_err());
    relay.restore();
    let client = Client::with_uri_str(&uri).await.unwrap();
    client.database("admin").run_command(doc! { "ping": 1 }).await.unwrap();
}

#[tokio::test]
async fn a_stopped_primary_of_three_is_replaced_and_follows_when_it_goes_on() {
    let cluster = Cluster::start(ClusterSpec::replica_set("frozen", 3)).await.unwrap();
    let old = cluster.primary("frozen").await.unwrap();
    cluster.stop(&old).unwrap();
    let new = cluster.primary_other_than("frozen", &old).await.unwrap();
    cluster.resume(&old).unwrap();
    cluster.settled("frozen").await.unwrap();
    assert_eq!(cluster.primary("frozen").await.unwrap(), new);
}

#[tokio::test]
async fn a_primary_that_steps_down_makes_way_for_another() {
    let cluster = Cluster::start(ClusterSpec::replica_set("stepping", 3)).await.unwrap();
    let old = cluster.primary("stepping").await.unwrap();
    let new = cluster.step_down("stepping").await.unwrap();
    assert_ne!(new, old);
}

#[tokio::test]
async fn a_node_that_does_not_exist_is_named_with_those_that_do() {
    let cluster = Cluster::start(ClusterSpec::replica_set("named", 1)).await.unwrap();
    let error = cluster.kill("named-7").unwrap_err().to_string();
    assert!(error.contains("named-7") && error.contains("it has named-0"), "{error}");
}

#[tokio::test]
async fn a_member_with_a_share_of_the_processors_has_it_after_a_restart_too() {
    let spec = ClusterSpec { cpu_percent: Some(40), ..ClusterSpec::replica_set("shared", 1) };
    let cluster = Cluster::start(spec).await.unwrap();
    let Some(()) = require(cluster.unshared().map_or(Ok(()), Err)) else { return };
    let group = || {
        let pid = cluster.nodes()[0].process.unwrap().pid;
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        groups.lines().find(|line| line.contains("imago-testbed-")).map(str::to_owned)
    };
    let begun = group();
    assert!(begun.as_ref().is_some_and(|group| group.ends_with("-shared-0")), "{begun:?}");
    cluster.kill("shared-0").unwrap();
    cluster.restart("shared-0").await.unwrap();
    assert_eq!(group(), begun);
    cluster.enforce_cpu_limits(false).unwrap();
    cluster.enforce_cpu_limits(true).unwrap();
    let least = ClusterSpec { cpu_percent: Some(1), ..ClusterSpec::replica_set("shared", 1) };
    let error = Cluster::start(least).await.unwrap_err().to_string();
    assert!(error.contains("1 % of a processor"), "{error}");
}
