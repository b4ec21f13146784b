//! Indexes and options that no stream reports, and a database that gets another primary shard.

use bson::{Document, doc};
use imago_mongo::server::endpoint::Endpoint;
use imago_testbed::pool::{replica_set, sharded};
use imago_testbed::{Cluster, Role, wait};

use crate::cutover::catalog::{count, follows, insert, options, orders, status};
use crate::cutover::scene::{Scene, administer};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_servers_own_resharding_builds_is_built_too() {
    let scene = Scene::of(sharded(2).with_auth(), replica_set(1).with_auth()).await;
    administer(&scene.old, "admin", doc! {"enableSharding": "shop"}).await;
    let shard = doc! {"shardCollection": "shop.orders", "key": {"_id": 1}};
    administer(&scene.old, "admin", shard).await;
    insert(&scene.old, "orders", orders(0..300)).await;
    let (mut copy, job) = follows(&scene, &["--ns", "shop.orders"]);
    let reshard = doc! {"reshardCollection": "shop.orders", "key": {"customer": 1}};
    administer(&scene.old, "admin", reshard).await;
    let names = async || {
        let listed = administer(&scene.new, "shop", doc! {"listIndexes": "orders"}).await;
        let indexes = listed.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
        let name =
            |index: &bson::Bson| index.as_document().unwrap().get_str("name").unwrap().to_owned();
        indexes.iter().map(name).collect::<Vec<String>>()
    };
    wait::until("the index of the new key is there", async || {
        assert!(copy.is_running(), "{}", copy.errors());
        names().await.contains(&"customer_1".to_owned())
    })
    .await;
    wait::until_blocking("it may be cut over", || {
        assert!(copy.is_running(), "{}", copy.errors());
        status(&scene, &job)["progress"]["cutover_ready"] == true
    });
    let (exit, done) = scene.run(scene.cutover(&job, &["--lift-block"]));
    assert_eq!(exit, 0, "{done}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bound_of_documents_comes_and_goes() {
    let scene = Scene::start().await;
    let capped = doc! {"create": "events", "capped": true, "size": 1_048_576};
    administer(&scene.old, "shop", capped).await;
    insert(&scene.old, "events", orders(0..100)).await;
    let (_copy, job) = follows(&scene, &["--ns", "shop.events"]);
    administer(&scene.old, "shop", doc! {"collMod": "events", "cappedMax": 500}).await;
    let (exit, done) = scene.run(scene.cutover(&job, &["--lift-block"]));
    assert_eq!(exit, 0, "{done}");
    assert_eq!(options(&scene.new, "events").await, options(&scene.old, "events").await);
    let of = |options: Option<Document>| options.unwrap().get("max").cloned();
    assert!(of(options(&scene.new, "events").await).is_some());
    assert_eq!(count(&scene.new, "events").await, 100);
}

/// Gives a database another primary shard, as a router asks its primary shard for it.
async fn move_primary(cluster: &Cluster, db: &str) {
    let of = doc! {"find": "databases", "filter": {"_id": db}};
    let found = administer(cluster, "config", of).await;
    let found = found.get_document("cursor").unwrap().get_array("firstBatch").unwrap()[0].clone();
    let found = found.as_document().unwrap();
    let now = found.get_str("primary").unwrap();
    let to = cluster.set_names().find(|name| *name != now).unwrap();
    let nodes = cluster.nodes();
    let primary = nodes.iter().find(|node| node.role == Role::Member && node.set == now).unwrap();
    let admin = &cluster.credentials().unwrap().admin;
    let uri = format!(
        "mongodb://{}:{}@127.0.0.1:{}/?authSource=admin&directConnection=true",
        admin.name, admin.password, primary.port
    );
    let primary = Endpoint::connect(&uri, "source").await.unwrap();
    let command = doc! {
        "_shardsvrMovePrimary": db, "to": to, "writeConcern": {"w": "majority"},
        "databaseVersion": found.get("version").unwrap().clone(),
    };
    primary.run("admin", command).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_gets_another_primary_is_copied_anew() {
    for words in [["--ns", "shop.orders"], ["--ns", "shop.*"]] {
        let scene = Scene::of(sharded(2).with_auth(), replica_set(1).with_auth()).await;
        insert(&scene.old, "orders", orders(0..300)).await;
        let (mut copy, job) = follows(&scene, &words);
        move_primary(&scene.old, "shop").await;
        insert(&scene.old, "orders", orders(300..350)).await;
        wait::until_blocking("it is copied anew", || {
            assert!(copy.is_running(), "{}", copy.errors());
            let status = status(&scene, &job);
            status["joined"].to_string().contains("shop.orders")
                && status["progress"]["cutover_ready"] == true
        });
        let (exit, done) = scene.run(scene.cutover(&job, &["--lift-block"]));
        assert_eq!(exit, 0, "{done}");
        assert_eq!(count(&scene.new, "orders").await, 350);
    }
}
