//! A pattern of many collections, whose catalogs are compared, made and indexed many at a time.

use std::collections::BTreeSet;

use bson::{Document, doc};
use imago_testbed::Cluster;

use crate::cutover::catalog::{count, follows, insert, orders};
use crate::cutover::scene::{Scene, administer};

const TENANTS: u32 = 120;
const DOCUMENTS: u32 = 12;

fn coll(tenant: u32) -> String {
    format!("orders-of-tenant-{tenant:04}")
}

async fn create(cluster: &Cluster, tenants: std::ops::Range<u32>) {
    for tenant in tenants {
        insert(cluster, &coll(tenant), orders(0..DOCUMENTS)).await;
        index(cluster, tenant, "customer").await;
    }
}

async fn index(cluster: &Cluster, tenant: u32, field: &str) {
    let index = doc! {"key": {field: 1}, "name": format!("by-{field}")};
    let command = doc! {"createIndexes": coll(tenant), "indexes": [index]};
    administer(cluster, "shop", command).await;
}

async fn indexes(cluster: &Cluster, tenant: u32) -> BTreeSet<String> {
    let reply = administer(cluster, "shop", doc! {"listIndexes": coll(tenant)}).await;
    let listed = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    let name = |index: &Document| index.get_str("name").unwrap().to_owned();
    listed.iter().map(|index| name(index.as_document().unwrap())).collect()
}

/// The collections of tenants.
async fn listed(cluster: &Cluster) -> BTreeSet<String> {
    let filter = doc! {"name": {"$regex": "^orders-of-tenant-"}};
    let list = doc! {"listCollections": 1, "nameOnly": true, "filter": filter, "cursor": {"batchSize": 10_000}};
    let reply = administer(cluster, "shop", list).await;
    let listed = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    listed
        .iter()
        .map(|one| one.as_document().unwrap().get_str("name").unwrap().to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a minute and a half of changes of the catalog, which make test-long has"]
async fn many_collections_come_go_and_get_indexes_while_they_are_copied() {
    let scene = Scene::start().await;
    let load = scene.load();
    create(&scene.old, 0..TENANTS).await;
    let (mut copy, job) = follows(&scene, &["--ns", "shop.*"]);

    create(&scene.old, TENANTS..TENANTS + 40).await;
    for tenant in 0..40 {
        index(&scene.old, tenant, "at").await;
        insert(&scene.old, &coll(tenant), orders(DOCUMENTS..2 * DOCUMENTS)).await;
    }
    for tenant in 40..60 {
        administer(&scene.old, "shop", doc! {"drop": coll(tenant)}).await;
    }
    let hook = scene.switch_to(&scene.new);
    let (exit, ended) = scene.run(scene.cutover(&job, &["--on-cutover", &hook]));
    assert_eq!(exit, 0, "{ended}");
    assert_eq!(copy.ended().0, 0);
    scene.load_goes_on(20);
    scene.nothing_lost(load, &scene.new);

    assert_eq!(listed(&scene.new).await, listed(&scene.old).await);
    assert_eq!(listed(&scene.new).await.len() as u32, TENANTS + 40 - 20);
    for tenant in (0..40).chain(60..TENANTS + 40) {
        let documents = if tenant < 40 { 2 * DOCUMENTS } else { DOCUMENTS };
        assert_eq!(count(&scene.new, &coll(tenant)).await as u32, documents, "{tenant}");
        let found = (indexes(&scene.new, tenant).await, indexes(&scene.old, tenant).await);
        assert_eq!(found.0, found.1, "{tenant}");
        assert_eq!(found.0.len(), if tenant < 40 { 3 } else { 2 }, "{tenant}: {found:?}");
    }
}
