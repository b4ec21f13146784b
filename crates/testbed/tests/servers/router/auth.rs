//! Authorisation through the router: the servers decide, for the very user that has logged in.

use bson::{Document, doc};
use imago_testbed::{Cluster, ClusterSpec};
use mongodb::Client;

use super::{code, counts_of, on_both_shards, shard_by_k};

/// "User writes are blocked."
const USER_WRITES_BLOCKED: Option<i32> = Some(371);

#[tokio::test]
async fn users_are_who_they_log_in_as() {
    let cluster = Cluster::start(ClusterSpec::sharded("guard", 2).with_auth()).await.unwrap();
    let admin = Client::with_uri_str(cluster.admin_uri()).await.unwrap();
    let app = Client::with_uri_str(cluster.uri()).await.unwrap();
    shard_by_k(&cluster, &admin, "a").await;
    let documents = app.database("a").collection::<Document>("c");
    documents.insert_many(on_both_shards(10)).await.unwrap();

    a_write_block_stops_the_application_and_lets_the_administrator_pass(&admin, &app).await;
    the_application_cannot_lift_a_write_block(&admin, &app).await;
    who_has_not_logged_in_reads_nothing(&cluster).await;
    a_wrong_password_is_refused(&cluster).await;
}

async fn a_write_block_stops_the_application_and_lets_the_administrator_pass(
    admin: &Client,
    app: &Client,
) {
    let block = |global: bool| doc! { "setUserWriteBlockMode": 1, "global": global };
    admin.database("admin").run_command(block(true)).await.unwrap();
    let documents = app.database("a").collection::<Document>("c");
    for k in [-1, 1] {
        let set = || doc! { "$set": { "x": 1 } };
        let insert = documents.insert_one(doc! { "_id": k * 100, "k": k * 100 }).await;
        assert_eq!(code(&insert.unwrap_err()), USER_WRITES_BLOCKED);
        let update = documents.update_one(doc! { "k": k }, set()).await;
        assert_eq!(code(&update.unwrap_err()), USER_WRITES_BLOCKED);
        let many = documents.update_many(doc! { "k": k }, set()).await;
        assert_eq!(code(&many.unwrap_err()), USER_WRITES_BLOCKED);
        let delete = documents.delete_one(doc! { "k": k }).await;
        assert_eq!(code(&delete.unwrap_err()), USER_WRITES_BLOCKED);
        let modify = documents.find_one_and_update(doc! { "k": k }, set()).await;
        assert_eq!(code(&modify.unwrap_err()), USER_WRITES_BLOCKED);
    }
    assert_eq!(documents.count_documents(doc! {}).await.unwrap(), 20);
    let by_admin = admin.database("a").collection::<Document>("c");
    by_admin.insert_many([doc! { "k": -1 }, doc! { "k": 1 }]).await.unwrap();
    admin.database("admin").run_command(block(false)).await.unwrap();
    documents.delete_many(doc! { "_id": { "$type": "objectId" } }).await.unwrap();
    assert_eq!(counts_of(&documents).await, 20);
}

async fn the_application_cannot_lift_a_write_block(admin: &Client, app: &Client) {
    let block = |global: bool| doc! { "setUserWriteBlockMode": 1, "global": global };
    admin.database("admin").run_command(block(true)).await.unwrap();
    let lifted = app.database("admin").run_command(block(false)).await;
    assert_eq!(code(&lifted.unwrap_err()), Some(13));
    admin.database("admin").run_command(block(false)).await.unwrap();
}

async fn who_has_not_logged_in_reads_nothing(cluster: &Cluster) {
    let router = cluster.nodes().into_iter().find(|node| node.set.is_empty()).unwrap();
    let uri = format!("mongodb://127.0.0.1:{}", router.port);
    let nobody = Client::with_uri_str(&uri).await.unwrap();
    let read = nobody.database("a").collection::<Document>("c").find_one(doc! {}).await;
    assert_eq!(code(&read.unwrap_err()), Some(13));
}

async fn a_wrong_password_is_refused(cluster: &Cluster) {
    let password = &cluster.credentials().unwrap().app.password;
    let uri = cluster.uri().replace(password.as_str(), "wrong");
    let stranger = Client::with_uri_str(&uri).await.unwrap();
    let refused = stranger.database("a").collection::<Document>("c").find_one(doc! {}).await;
    let refused = refused.unwrap_err();
    assert!(
        matches!(&*refused.kind, mongodb::error::ErrorKind::Authentication { .. }),
        "{refused}"
    );
}
